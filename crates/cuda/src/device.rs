//! An NVIDIA GPU as a device.

use std::sync::Arc;

use vit_graph::device::{Algorithms, Device, Executable, Memory, Parameters};
use vit_graph::exchange::Exchange;
use vit_graph::{Graph, GraphError, Precision, rewrite};
use vit_system::host::{FreeMemory, MemoryLimit};

use crate::driver::info::DeviceInfo;
use crate::driver::libraries::Unavailable;
use crate::driver::{Gpu, NAME, error};
use crate::plan::prepare::{LoweringTarget, Prepared};
use crate::run::exchange::GpuExchange;
use crate::run::executable::CudaExecutable;

/// An NVIDIA GPU. All devices of one number share its context and its compiled kernels.
#[derive(Clone)]
pub struct Cuda {
    gpu: Arc<Gpu>,
    precision: Precision,
    exchange: Option<Arc<GpuExchange>>,
}

impl Cuda {
    /// Opens GPU number `ordinal`.
    pub fn new(ordinal: usize, precision: Precision) -> Result<Self, Unavailable> {
        if precision == Precision::Int8 {
            return Err(Unavailable::CpuPrecision(precision));
        }
        let gpu = Gpu::open(ordinal)?;
        let (major, minor) = gpu.info.compute_capability;
        if precision == Precision::Fp8 && (major, minor) < (8, 9) {
            return Err(Unavailable::NoFp8 { name: gpu.info.name.clone(), found: format!("{major}.{minor}") });
        }
        Ok(Cuda { gpu, precision, exchange: None })
    }

    /// In one of several processes that train together.
    pub fn with_exchange(self, exchange: Arc<dyn Exchange>) -> Self {
        let exchange = Some(exchange).filter(|exchange| exchange.processes() > 1);
        Cuda { exchange: exchange.map(|exchange| Arc::new(GpuExchange::new(exchange))), ..self }
    }

    /// As a single process whose gradients pass through NCCL nevertheless, which shows its cost.
    pub fn with_one_nccl_rank(self) -> Result<Self, GraphError> {
        let exchange = GpuExchange::one_nccl_rank(&self.gpu)?;
        Ok(Cuda { exchange: Some(Arc::new(exchange)), ..self })
    }

    /// The GPU's properties.
    pub fn info(&self) -> &DeviceInfo {
        &self.gpu.info
    }

    /// The precision it computes in.
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
        let target = LoweringTarget {
            precision: self.precision,
            multiprocessors: self.gpu.info.multiprocessors,
            hopper: self.gpu.target.is_hopper(),
        };
        Prepared::new(rewritten(graph)?, target)
    }
}

/// The memory that a graph needs on an H100 or H200, planned without one.
pub fn plan_without_gpu(graph: &Graph, precision: Precision) -> Result<Memory, GraphError> {
    Ok(Prepared::new(rewritten(graph)?, LoweringTarget { precision, multiprocessors: 132, hopper: true })?.memory())
}

impl Device for Cuda {
    fn name(&self) -> &'static str {
        NAME
    }

    fn id(&self) -> String {
        format!("{NAME}:{}", self.info().ordinal)
    }

    fn description(&self) -> String {
        format!("{} ({})", self.id(), self.info().name)
    }

    fn plan(&self, graph: &Graph) -> Result<Memory, GraphError> {
        Ok(self.prepare(graph)?.memory())
    }

    fn algorithms(&self) -> Algorithms {
        self.gpu.gemm_algorithms().record(&self.gpu.info)
    }

    fn use_algorithms(&self, algorithms: &Algorithms) {
        self.gpu.gemm_algorithms().restore(algorithms);
    }

    fn connect(&self) -> Result<(), GraphError> {
        self.exchange.as_ref().map_or(Ok(()), |exchange| exchange.connect(&self.gpu))
    }

    fn free_memory(&self) -> Option<FreeMemory> {
        let (free, total) = self.gpu.memory().ok()?;
        Some(FreeMemory { free: free as u64, total: total as u64, limit: MemoryLimit::Gpu })
    }

    fn compile(&self, graph: &Graph, parameters: &mut dyn Parameters) -> Result<Box<dyn Executable>, GraphError> {
        let (gpu, prepared) = (self.gpu.clone(), self.prepare(graph)?);
        Ok(Box::new(CudaExecutable::new(gpu, prepared, parameters, self.exchange.as_deref())?))
    }
}

/// Applies the rewrites of this device.
pub(crate) fn rewritten(graph: &Graph) -> Result<Graph, GraphError> {
    let graph = rewrite::eliminate_dead_tokens(graph)?;
    let graph = rewrite::relu_grad_from_output(&graph)?;
    let graph = rewrite::patchify(&graph)?;
    let graph = rewrite::fuse_linear(&graph)?;
    let graph = rewrite::fuse_add_norm(&graph)?;
    rewrite::eliminate_dead_code(&graph)
}
