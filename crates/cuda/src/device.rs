//! An NVIDIA GPU as a device, and how precisely it computes.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use vit_graph::device::{Algorithms, Device, Executable, Memory, Parameters};
use vit_graph::{Graph, GraphError, rewrite};
use vit_system::host::{FreeMemory, MemoryLimit};

use crate::driver::info::DeviceInfo;
use crate::driver::libraries::Unavailable;
use crate::driver::{Gpu, NAME, error};
use crate::plan::prepare::{Prepared, Profile};
use crate::plan::storage::Storage;
use crate::run::executable::CudaExecutable;

/// How precisely a GPU computes. Parameters, norms, softmax, losses and optimisers are f32 in all of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Precision {
    /// True 32-bit floating point.
    #[default]
    F32,
    /// 32 bits in memory; matrix products round their operands to 10 bits of mantissa.
    Tf32,
    /// Mixed precision: values between operations and operands of products have 8 bits of mantissa, sums are f32.
    Bf16,
    /// The same with 10 bits of mantissa and a smaller range; for inference.
    F16,
    /// Linear layers between the first and the last multiply numbers of eight bits, 3 of them mantissa; the rest is as in
    /// [`Precision::Bf16`]. For inference.
    Fp8,
}

impl Precision {
    /// How values between operations are stored, where not in 32 bits.
    pub(crate) fn short(self) -> Option<Storage> {
        match self {
            Precision::F32 | Precision::Tf32 => None,
            Precision::Bf16 | Precision::Fp8 => Some(Storage::Bf16),
            Precision::F16 => Some(Storage::F16),
        }
    }

    /// Whether training steps can be computed in it.
    pub fn trains(self) -> bool {
        !matches!(self, Precision::F16 | Precision::Fp8)
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Precision::F32 => "f32",
            Precision::Tf32 => "tf32",
            Precision::Bf16 => "bf16",
            Precision::F16 => "f16",
            Precision::Fp8 => "fp8",
        })
    }
}

impl FromStr for Precision {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "f32" => Ok(Precision::F32),
            "tf32" => Ok(Precision::Tf32),
            "bf16" => Ok(Precision::Bf16),
            "f16" => Ok(Precision::F16),
            "fp8" => Ok(Precision::Fp8),
            other => Err(format!("`{other}` is not a precision of a GPU; use f32, tf32, bf16, f16 or fp8")),
        }
    }
}

/// An NVIDIA GPU. All devices of one number share its context and its compiled kernels.
#[derive(Clone)]
pub struct Cuda {
    gpu: Arc<Gpu>,
    precision: Precision,
}

impl Cuda {
    /// Opens GPU number `ordinal`.
    pub fn new(ordinal: usize, precision: Precision) -> Result<Self, Unavailable> {
        let gpu = Gpu::open(ordinal)?;
        let (major, minor) = gpu.info.compute_capability;
        if precision == Precision::Fp8 && (major, minor) < (8, 9) {
            return Err(Unavailable::NoEightBits { name: gpu.info.name.clone(), found: format!("{major}.{minor}") });
        }
        Ok(Cuda { gpu, precision })
    }

    /// What the GPU is.
    pub fn info(&self) -> &DeviceInfo {
        &self.gpu.info
    }

    /// How precisely it computes.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Free bytes of its memory.
    pub fn free_memory(&self) -> Result<usize, GraphError> {
        self.gpu.memory().map(|(free, _)| free)
    }

    fn prepare(&self, graph: &Graph) -> Result<Prepared, GraphError> {
        if !graph.updates().is_empty() && !self.precision.trains() {
            return Err(error(format!("{} is for inference; train in bf16, tf32 or f32", self.precision)));
        }
        let profile = Profile {
            precision: self.precision,
            multiprocessors: self.gpu.info.multiprocessors,
            hopper: self.gpu.target.is_hopper(),
        };
        Prepared::new(rewritten(graph)?, profile)
    }
}

/// What running a graph would take on an H100 or H200, known without one.
pub fn plan_without_gpu(graph: &Graph, precision: Precision) -> Result<Memory, GraphError> {
    Ok(Prepared::new(rewritten(graph)?, Profile { precision, multiprocessors: 132, hopper: true })?.memory())
}

impl Device for Cuda {
    fn name(&self) -> &'static str {
        NAME
    }

    fn plan(&self, graph: &Graph) -> Result<Memory, GraphError> {
        Ok(self.prepare(graph)?.memory())
    }

    fn algorithms(&self) -> Algorithms {
        self.gpu.choices().record(&self.gpu.info)
    }

    fn use_algorithms(&self, algorithms: &Algorithms) {
        self.gpu.choices().restore(algorithms);
    }

    fn free_memory(&self) -> Option<FreeMemory> {
        let (free, total) = self.gpu.memory().ok()?;
        Some(FreeMemory { free: free as u64, total: total as u64, limit: MemoryLimit::Gpu })
    }

    fn compile(&self, graph: &Graph, parameters: &mut dyn Parameters) -> Result<Box<dyn Executable>, GraphError> {
        Ok(Box::new(CudaExecutable::new(self.gpu.clone(), self.prepare(graph)?, parameters)?))
    }
}

/// The rewrites that pay on a GPU.
pub(crate) fn rewritten(graph: &Graph) -> Result<Graph, GraphError> {
    let graph = rewrite::needed_rows(graph)?;
    let graph = rewrite::relu_by_result(&graph)?;
    let graph = rewrite::patchify(&graph)?;
    let graph = rewrite::fuse_linear(&graph)?;
    let graph = rewrite::fuse_add_norm(&graph)?;
    rewrite::dead_code(&graph)
}
