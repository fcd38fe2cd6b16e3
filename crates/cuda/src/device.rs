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
use crate::run::exchange::ProcessGroup;
use crate::run::executable::CudaExecutable;

/// An NVIDIA GPU, and the precision of the graphs that it runs. All `Cuda` of one GPU share the context and the
/// compiled kernels.
#[derive(Clone)]
pub struct Cuda {
    gpu: Arc<Gpu>,
    precision: Precision,
    /// `None` for a process that trains alone.
    group: Option<Arc<ProcessGroup>>,
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
        Ok(Cuda { gpu, precision, group: None })
    }

    /// For one of several processes that train together; a group of one process changes nothing.
    pub fn with_exchange(self, exchange: Arc<dyn Exchange>) -> Self {
        let exchange = Some(exchange).filter(|exchange| exchange.processes() > 1);
        Cuda { group: exchange.map(|exchange| Arc::new(ProcessGroup::new(exchange))), ..self }
    }

    /// For a single process whose gradients pass through NCCL nevertheless, to measure the cost of that.
    pub fn with_one_nccl_rank(self) -> Result<Self, GraphError> {
        let group = ProcessGroup::one_nccl_rank(&self.gpu)?;
        Ok(Cuda { group: Some(Arc::new(group)), ..self })
    }

    /// The GPU's properties.
    pub fn info(&self) -> &DeviceInfo {
        &self.gpu.info
    }

    /// The precision of its graphs.
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Free bytes of the GPU's memory.
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

/// The memory that a graph needs on an H100 (SXM) or H200, planned without one.
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
        self.group.as_ref().map_or(Ok(()), |group| group.connect(&self.gpu))
    }

    fn free_memory(&self) -> Option<FreeMemory> {
        let (free, total) = self.gpu.memory().ok()?;
        Some(FreeMemory { free: free as u64, total: total as u64, limit: MemoryLimit::Gpu })
    }

    fn compile(&self, graph: &Graph, parameters: &mut dyn Parameters) -> Result<Box<dyn Executable>, GraphError> {
        let (gpu, prepared) = (self.gpu.clone(), self.prepare(graph)?);
        Ok(Box::new(CudaExecutable::new(gpu, prepared, parameters, self.group.as_deref())?))
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
