//! The device that runs a model, and its precision.

use std::str::FromStr;
use std::sync::{Arc, Once, OnceLock};

use vit_cpu::Cpu;
use vit_graph::device::Device;
use vit_graph::exchange::Exchange;
use vit_graph::{Graph, GraphError, Precision, rewrite};

use crate::Error;

/// A device by name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first GPU if it can be used, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The NVIDIA GPU of this number.
    Cuda(usize),
}

impl FromStr for DeviceChoice {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
        match (text, number) {
            ("auto", _) => Ok(DeviceChoice::Auto),
            ("cpu", _) => Ok(DeviceChoice::Cpu),
            ("cuda", _) => Ok(DeviceChoice::Cuda(0)),
            (_, Some(number)) => Ok(DeviceChoice::Cuda(number)),
            (other, None) => Err(format!("`{other}` is not a device; use auto, cpu, cuda or cuda:N")),
        }
    }
}

/// Which device to open, and in which precision it computes.
///
/// ```
/// use vit::{DeviceChoice, DeviceOptions};
///
/// let device = DeviceOptions::new().device(DeviceChoice::Cpu).threads(1).open()?;
/// assert_eq!(device.name(), "cpu");
/// # Ok::<(), vit::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceOptions {
    /// The device.
    pub device: DeviceChoice,
    /// Its precision.
    pub precision: Precision,
    /// Threads of the CPU; `None` for all cores.
    pub threads: Option<usize>,
}

impl DeviceOptions {
    /// The fastest device there is, in f32, on all cores.
    pub fn new() -> Self {
        Self::default()
    }

    /// On this device.
    pub fn device(self, device: DeviceChoice) -> Self {
        Self { device, ..self }
    }

    /// In this precision.
    pub fn precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// On this many threads of the CPU.
    pub fn threads(self, threads: usize) -> Self {
        Self { threads: Some(threads), ..self }
    }

    /// Opens the device. Threads may share it: every model that it runs keeps its own memory there.
    pub fn open(&self) -> Result<Arc<dyn Device>, Error> {
        self.open_with_exchange(None)
    }

    /// The same for one of several processes that train together.
    pub fn open_with_exchange(&self, exchange: Option<&Arc<dyn Exchange>>) -> Result<Arc<dyn Device>, Error> {
        let precision = self.precision;
        let runs_on_cpu = matches!(precision, Precision::F32 | Precision::Int8);
        let cpu = || match exchange {
            Some(exchange) => Arc::new(Cpu::with_exchange(self.threads, exchange.clone())),
            None => Arc::new(Cpu::new(self.threads)),
        };
        let needs_gpu = |why: &str| Error::Precision { precision, reason: format!("needs a GPU, and {why}") };
        match self.device {
            DeviceChoice::Cpu if runs_on_cpu => Ok(cpu()),
            DeviceChoice::Cpu => Err(needs_gpu("the CPU was asked for; it has f32 and int8")),
            DeviceChoice::Auto if precision == Precision::Int8 => Ok(cpu()),
            DeviceChoice::Auto => match gpu::open(0, precision, exchange) {
                Ok(gpu) => Ok(gpu),
                Err(reason) if runs_on_cpu => {
                    report_fallback(&reason);
                    Ok(cpu())
                }
                Err(reason) => Err(needs_gpu(&reason.to_string())),
            },
            DeviceChoice::Cuda(_) if precision == Precision::Int8 => Err(Error::Precision {
                precision,
                reason: "is only for the CPU; use f32, tf32, bf16, f16 or fp8 on a GPU".into(),
            }),
            DeviceChoice::Cuda(ordinal) => gpu::open(ordinal, precision, exchange)
                .map_err(|reason| Error::Device { device: format!("cuda:{ordinal}"), reason: reason.to_string() }),
        }
    }
}

#[cfg(feature = "bench")]
impl DeviceOptions {
    /// A GPU whose gradients pass through NCCL although it is the only one, which shows what that costs.
    pub(crate) fn open_with_one_nccl_rank(&self) -> Result<Arc<dyn Device>, Error> {
        let failed = |device: String| move |reason| Error::Device { device, reason };
        match self.device {
            DeviceChoice::Cpu => Err(failed("cpu".into())("NCCL connects GPUs".into())),
            DeviceChoice::Auto => gpu::open_with_one_nccl_rank(0, self.precision).map_err(failed("cuda:0".into())),
            DeviceChoice::Cuda(ordinal) => {
                gpu::open_with_one_nccl_rank(ordinal, self.precision).map_err(failed(format!("cuda:{ordinal}")))
            }
        }
    }
}

/// A device of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceDescription {
    /// The name by which it is opened: `cpu` or `cuda:0`.
    pub id: String,
    /// The CPU's instruction set, or the GPU's name.
    pub name: String,
    /// Threads, of the CPU.
    pub threads: Option<usize>,
    /// Bytes of memory, of a GPU.
    pub memory_bytes: Option<u64>,
}

/// The devices of this machine that models can run on: the CPU, and GPUs where they can be used.
pub fn devices() -> Vec<DeviceDescription> {
    let cpu = Cpu::new(None);
    let (name, threads) = (cpu.isa().to_string(), Some(cpu.threads()));
    let cpu = DeviceDescription { id: "cpu".into(), name, threads, memory_bytes: None };
    std::iter::once(cpu).chain(gpu::devices()).collect()
}

/// Rewrites a graph for a precision: `int8` marks its linear layers, the others leave it alone.
pub(crate) fn quantised(graph: Graph, precision: Precision) -> Result<Graph, GraphError> {
    match precision {
        // `patchify` first: a patch embedding counts as the first layer only once it is a matrix product.
        Precision::Int8 => rewrite::quantise_int8(&rewrite::patchify(&graph)?),
        _ => Ok(graph),
    }
}

static LISTENER: OnceLock<fn(&str)> = OnceLock::new();

/// Sets the function that is called, once per process, with the reason why [`DeviceChoice::Auto`] fell back to the CPU
/// although the machine seems to have a GPU. Only the first call has an effect.
pub fn on_cpu_fallback(listener: fn(&str)) {
    let _ = LISTENER.set(listener);
}

fn report_fallback(reason: &gpu::Unavailable) {
    static REPORTED: Once = Once::new();
    if let (Some(listener), true) = (LISTENER.get(), gpu::was_expected(reason)) {
        REPORTED.call_once(|| listener(&format!("running on the CPU, since no GPU can be used: {reason}")));
    }
}

#[cfg(feature = "cuda")]
mod gpu {
    use std::path::Path;
    use std::sync::Arc;

    use vit_cuda::Cuda;
    pub use vit_cuda::Unavailable;
    use vit_graph::Precision;
    use vit_graph::device::Device;
    use vit_graph::exchange::Exchange;

    use crate::DeviceDescription;

    pub fn open(
        ordinal: usize,
        precision: Precision,
        exchange: Option<&Arc<dyn Exchange>>,
    ) -> Result<Arc<dyn Device>, Unavailable> {
        let gpu = Cuda::new(ordinal, precision)?;
        Ok(Arc::new(exchange.map_or_else(|| gpu.clone(), |exchange| gpu.clone().with_exchange(exchange.clone()))))
    }

    #[cfg(feature = "bench")]
    pub fn open_with_one_nccl_rank(ordinal: usize, precision: Precision) -> Result<Arc<dyn Device>, String> {
        let gpu = Cuda::new(ordinal, precision).map_err(|reason| reason.to_string())?;
        Ok(Arc::new(gpu.with_one_nccl_rank().map_err(|reason| reason.to_string())?))
    }

    pub fn devices() -> Vec<DeviceDescription> {
        let gpu = |gpu: vit_cuda::DeviceInfo| DeviceDescription {
            id: format!("cuda:{}", gpu.ordinal),
            name: gpu.name,
            threads: None,
            memory_bytes: Some(gpu.memory_bytes as u64),
        };
        vit_cuda::devices().unwrap_or_default().into_iter().map(gpu).collect()
    }

    /// Whether a user of this machine may have expected a GPU.
    pub fn was_expected(reason: &Unavailable) -> bool {
        let present = ["/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg"].iter().any(|node| Path::new(node).exists());
        let hidden = std::env::var("CUDA_VISIBLE_DEVICES").is_ok_and(|gpus| ["", "-1"].contains(&gpus.trim()));
        is_surprising(reason, present, hidden)
    }

    /// A machine without a driver is the ordinary case, unless the kernel shows a GPU (`present`), as in a container that
    /// lacks the library; GPUs that were hidden on purpose are no surprise either.
    fn is_surprising(reason: &Unavailable, present: bool, hidden: bool) -> bool {
        match reason {
            _ if hidden => false,
            Unavailable::NoDriver => present,
            _ => true,
        }
    }

    #[test]
    fn a_broken_gpu_is_reported_and_a_missing_one_is_not() {
        let broken = Unavailable::Driver("initialisation failed".into());
        assert!(is_surprising(&broken, false, false));
        assert!(is_surprising(&Unavailable::NoLibrary("NVRTC"), true, false));
        assert!(is_surprising(&Unavailable::NoDriver, true, false));
        assert!(!is_surprising(&Unavailable::NoDriver, false, false));
        assert!(!is_surprising(&Unavailable::NoGpu { wanted: 0, found: 0 }, true, true));
    }
}

#[cfg(not(feature = "cuda"))]
mod gpu {
    use std::sync::Arc;

    use vit_graph::Precision;
    use vit_graph::device::Device;
    use vit_graph::exchange::Exchange;

    /// Why no GPU can be used.
    #[derive(Debug, thiserror::Error)]
    #[error("this program was built without the feature `cuda`")]
    pub struct Unavailable;

    pub fn open(
        _ordinal: usize,
        _precision: Precision,
        _exchange: Option<&Arc<dyn Exchange>>,
    ) -> Result<Arc<dyn Device>, Unavailable> {
        Err(Unavailable)
    }

    #[cfg(feature = "bench")]
    pub fn open_with_one_nccl_rank(_ordinal: usize, _precision: Precision) -> Result<Arc<dyn Device>, String> {
        Err(Unavailable.to_string())
    }

    pub fn devices() -> Vec<crate::DeviceDescription> {
        Vec::new()
    }

    pub fn was_expected(_reason: &Unavailable) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names() {
        assert_eq!("cuda".parse(), Ok(DeviceChoice::Cuda(0)));
        assert_eq!("cuda:3".parse(), Ok(DeviceChoice::Cuda(3)));
        for wrong in ["", "gpu", "cuda:", "cuda:x", "cuda:-1"] {
            assert!(wrong.parse::<DeviceChoice>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_precision_that_a_device_lacks_is_refused() {
        let refused = |device, precision| {
            DeviceOptions::new().device(device).precision(precision).threads(1).open().err().unwrap().to_string()
        };
        assert_eq!(
            refused(DeviceChoice::Cpu, Precision::Bf16),
            "bf16 needs a GPU, and the CPU was asked for; it has f32 and int8"
        );
        assert_eq!(
            refused(DeviceChoice::Cuda(0), Precision::Int8),
            "int8 is only for the CPU; use f32, tf32, bf16, f16 or fp8 on a GPU"
        );
    }
}
