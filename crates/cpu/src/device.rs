//! The CPU as a device: which instructions it has, its one pool of threads, and how it prepares a graph.

use std::collections::BTreeMap;
use std::sync::Arc;

use vit_graph::device::{Algorithms, Device, Executable, Memory, Parameters};
use vit_graph::{Graph, GraphError, rewrite};

use crate::executable::{CpuExecutable, Prepared};
use crate::isa::Isa;
use crate::pool::Pool;

/// What a running kernel needs besides its operands.
pub(crate) struct Processor {
    pub isa: Isa,
    pub pool: Pool,
}

/// The CPU device. All executables that it compiles share its threads.
#[derive(Clone)]
pub struct Cpu {
    processor: Arc<Processor>,
}

impl Cpu {
    /// The best instructions found, on this many threads; `None` takes all cores.
    pub fn new(threads: Option<usize>) -> Self {
        Cpu::with_isa(Isa::detect(), threads)
    }

    /// Instructions of one's own choice, for tests and comparisons; they must be available.
    pub fn with_isa(isa: Isa, threads: Option<usize>) -> Self {
        assert!(isa.is_available(), "this CPU has no {isa}");
        let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
        Cpu { processor: Arc::new(Processor { isa, pool: Pool::new(threads.unwrap_or_else(cores).max(1)) }) }
    }

    /// The instructions in use.
    pub fn isa(&self) -> Isa {
        self.processor.isa
    }

    /// The threads.
    pub(crate) fn pool(&self) -> &Pool {
        &self.processor.pool
    }

    /// The number of threads.
    pub fn threads(&self) -> usize {
        self.processor.pool.threads()
    }
}

impl Device for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn plan(&self, graph: &Graph) -> Result<Memory, GraphError> {
        Ok(Prepared::new(&self.processor, prepare(graph)?)?.memory(self.processor.isa))
    }

    fn algorithms(&self) -> Algorithms {
        // Shapes and the instruction set alone decide in which order a kernel sums.
        let environment = BTreeMap::from([("instruction set".to_string(), self.processor.isa.to_string())]);
        Algorithms { environment, chosen: BTreeMap::new() }
    }

    fn compile(&self, graph: &Graph, parameters: &mut dyn Parameters) -> Result<Box<dyn Executable>, GraphError> {
        let prepared = Prepared::new(&self.processor, prepare(graph)?)?;
        Ok(Box::new(CpuExecutable::new(self.processor.clone(), prepared, parameters)?))
    }
}

/// The rewrites that pay on a CPU.
fn prepare(graph: &Graph) -> Result<Graph, GraphError> {
    // Residuals go into the matrix products first: there they cost nothing, while a sum fused with a norm still
    // passes over memory once.
    let graph = rewrite::needed_rows(graph)?;
    let graph = rewrite::fold_norm(&graph)?;
    let graph = rewrite::fuse_conv(&graph)?;
    let graph = rewrite::patchify(&graph)?;
    let graph = rewrite::fuse_linear(&graph)?;
    let graph = rewrite::fuse_add_norm(&graph)?;
    let graph = rewrite::keep_slope(&graph)?;
    let graph = rewrite::fuse_norm_grad_add(&graph)?;
    rewrite::dead_code(&graph)
}
