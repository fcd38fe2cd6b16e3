//! Which processor runs a model, and how precisely.

use std::path::Path;
use std::str::FromStr;
use std::sync::{Arc, Once, OnceLock};

use vit_cpu::Cpu;
use vit_cuda::{Cuda, Unavailable};
pub use vit_graph::Precision;
use vit_graph::device::{Device, Memory};
use vit_graph::{Graph, GraphError, rewrite};

use crate::Error;

/// The processor asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The fastest there is: a GPU, else the CPU.
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

/// Rewrites a graph for a precision: `int8` marks the linear layers.
pub(crate) fn quantised(graph: Graph, precision: Precision) -> Result<Graph, GraphError> {
    match precision {
        // `patchify` first: a patch embedding counts as the first layer only once it is a matrix product.
        Precision::Int8 => rewrite::int8(&rewrite::patchify(&graph)?),
        _ => Ok(graph),
    }
}

fn runs_on_cpu(precision: Precision) -> bool {
    matches!(precision, Precision::F32 | Precision::Int8)
}

/// A processor that is open.
#[derive(Clone)]
pub enum Processor {
    /// The CPU.
    Cpu(Cpu),
    /// A GPU.
    Cuda(Cuda),
}

impl Processor {
    /// Opens the processor asked for, in this precision; `threads` limits the CPU's.
    pub fn open(choice: DeviceChoice, precision: Precision, threads: Option<usize>) -> Result<Self, Error> {
        let cpu = || Processor::Cpu(Cpu::new(threads));
        let only_gpu = |why: String| Error::Unsuitable(format!("{precision} needs a GPU, and {why}"));
        match choice {
            DeviceChoice::Cpu if runs_on_cpu(precision) => Ok(cpu()),
            DeviceChoice::Cpu => Err(only_gpu("the CPU was asked for; it has f32 and int8".into())),
            DeviceChoice::Auto if precision == Precision::Int8 => Ok(cpu()),
            DeviceChoice::Auto => match Cuda::new(0, precision) {
                Ok(cuda) => Ok(Processor::Cuda(cuda)),
                Err(reason) if runs_on_cpu(precision) => {
                    tell_fallback(&reason);
                    Ok(cpu())
                }
                Err(reason) => Err(only_gpu(reason.to_string())),
            },
            DeviceChoice::Cuda(ordinal) => match Cuda::new(ordinal, precision) {
                Ok(cuda) => Ok(Processor::Cuda(cuda)),
                Err(reason @ Unavailable::CpuPrecision(_)) => Err(Error::Unsuitable(reason.to_string())),
                Err(reason) => Err(Error::Unsuitable(format!("cuda:{ordinal} cannot be used: {reason}"))),
            },
        }
    }

    /// As what runs graphs.
    pub fn device(&self) -> &dyn Device {
        match self {
            Processor::Cpu(cpu) => cpu,
            Processor::Cuda(cuda) => cuda,
        }
    }

    /// What [`DeviceChoice`] calls it: `cpu` or `cuda:N`.
    pub fn name(&self) -> String {
        match self {
            Processor::Cpu(_) => "cpu".into(),
            Processor::Cuda(cuda) => format!("cuda:{}", cuda.info().ordinal),
        }
    }

    /// What it is, in a few words.
    pub fn description(&self) -> String {
        match self {
            Processor::Cpu(cpu) => format!("cpu ({})", cpu.isa()),
            Processor::Cuda(cuda) => format!("cuda:{} ({})", cuda.info().ordinal, cuda.info().name),
        }
    }
}

static LISTENER: OnceLock<fn(&str)> = OnceLock::new();

/// Names the function that is told, once and in one line, why a GPU that seems to be there is not used when the processor
/// is chosen automatically. Only the first call counts; without one nobody is told.
pub fn on_cpu_fallback(listener: fn(&str)) {
    let _ = LISTENER.set(listener);
}

fn tell_fallback(reason: &Unavailable) {
    static TOLD: Once = Once::new();
    let present = ["/dev/nvidia0", "/dev/nvidiactl", "/dev/dxg"].iter().any(|node| Path::new(node).exists());
    let hidden = std::env::var("CUDA_VISIBLE_DEVICES").is_ok_and(|gpus| ["", "-1"].contains(&gpus.trim()));
    if let (Some(listener), true) = (LISTENER.get(), worth_telling(reason, present, hidden)) {
        TOLD.call_once(|| listener(&format!("running on the CPU, since no GPU can be used: {reason}")));
    }
}

/// Whether someone may have expected a GPU. A machine without a driver is the ordinary case, unless the kernel shows a
/// GPU (`present`), as in a container that lacks the library; and whoever hides all GPUs knows.
fn worth_telling(reason: &Unavailable, present: bool, hidden: bool) -> bool {
    match reason {
        _ if hidden => false,
        Unavailable::NoDriver => present,
        _ => true,
    }
}

/// What running a graph would take on an H100 or H200, known on any machine; `None` for a precision that GPUs lack.
pub fn plan_without_gpu(graph: &Graph, precision: Precision) -> Result<Option<Memory>, Error> {
    match precision {
        Precision::Int8 => Ok(None),
        precision => Ok(Some(vit_cuda::plan_without_gpu(graph, precision)?)),
    }
}

/// Opens a device that computes in this precision; `threads` limits the CPU's.
pub fn device_for(
    choice: DeviceChoice,
    precision: Precision,
    threads: Option<usize>,
) -> Result<Arc<dyn Device>, Error> {
    Ok(match Processor::open(choice, precision, threads)? {
        Processor::Cpu(cpu) => Arc::new(cpu),
        Processor::Cuda(cuda) => Arc::new(cuda),
    })
}

/// Opens a device that computes in f32; `threads` limits the CPU's.
pub fn device(choice: DeviceChoice, threads: Option<usize>) -> Result<Arc<dyn Device>, Error> {
    device_for(choice, Precision::F32, threads)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_as_people_write_them() {
        assert_eq!("cuda".parse(), Ok(DeviceChoice::Cuda(0)));
        assert_eq!("cuda:3".parse(), Ok(DeviceChoice::Cuda(3)));
        for wrong in ["", "gpu", "cuda:", "cuda:x", "cuda:-1"] {
            assert!(wrong.parse::<DeviceChoice>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_gpu_that_fails_is_told_of_and_a_machine_without_one_is_not() {
        let broken = Unavailable::Driver("initialisation failed".into());
        assert!(worth_telling(&broken, false, false));
        assert!(worth_telling(&Unavailable::NoLibrary("NVRTC"), true, false));
        assert!(worth_telling(&Unavailable::NoDriver, true, false));
        assert!(!worth_telling(&Unavailable::NoDriver, false, false));
        assert!(!worth_telling(&Unavailable::NoGpu { wanted: 0, found: 0 }, true, true));
    }

    #[test]
    fn a_precision_that_a_processor_lacks_is_refused() {
        let refused = |choice, precision| Processor::open(choice, precision, Some(1)).err().unwrap().to_string();
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
