//! The CPU as a device: its instruction set, its thread pool, and the rewrites it applies to a graph.

use std::collections::BTreeMap;
use std::sync::Arc;

use vit_graph::device::{Algorithms, Device, Executable, Memory, Parameters};
use vit_graph::exchange::Exchange;
use vit_graph::{Graph, GraphError, Hint, rewrite};
use vit_system::host::FreeMemory;

use crate::exchange::ExchangeThread;
use crate::executable::{CpuExecutable, LoweredGraph, SharedBuffers, SharedStorage};
use crate::isa::Isa;
use crate::thread_pool::ThreadPool;

/// The context in which kernels run.
pub(crate) struct Processor {
    pub isa: Isa,
    pub pool: ThreadPool,
    /// Constants of the executables that [`Device::compile_shared`] compiled, each stored once.
    pub shared: Arc<SharedBuffers>,
    /// The thread that exchanges values with other processes; `None` in a single process.
    pub exchange: Option<ExchangeThread>,
}

/// The CPU device. All executables that it compiles share its threads.
#[derive(Clone)]
pub struct Cpu {
    processor: Arc<Processor>,
}

impl Cpu {
    /// The fastest instruction set of this machine, on this many threads; `None` takes as many as the system grants
    /// (`available_parallelism`).
    pub fn new(threads: Option<usize>) -> Self {
        Cpu::with_isa(Isa::detect(), threads)
    }

    /// A given instruction set, for tests and comparisons.
    ///
    /// # Panics
    /// If this machine does not have it.
    pub fn with_isa(isa: Isa, threads: Option<usize>) -> Self {
        Cpu::build(isa, threads, None)
    }

    /// As [`Cpu::new`], in one of several processes that train together.
    pub fn with_exchange(threads: Option<usize>, exchange: Arc<dyn Exchange>) -> Self {
        let several = exchange.processes() > 1;
        Cpu::build(Isa::detect(), threads, several.then(|| ExchangeThread::new(exchange)))
    }

    fn build(isa: Isa, threads: Option<usize>, exchange: Option<ExchangeThread>) -> Self {
        assert!(isa.is_available(), "this CPU has no {isa}");
        let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
        let pool = ThreadPool::new(threads.unwrap_or_else(cores).max(1));
        Cpu { processor: Arc::new(Processor { isa, pool, shared: Arc::default(), exchange }) }
    }

    /// The instruction set in use.
    pub fn isa(&self) -> Isa {
        self.processor.isa
    }

    pub(crate) fn pool(&self) -> &ThreadPool {
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

    fn description(&self) -> String {
        format!("cpu ({})", self.isa())
    }

    fn plan(&self, graph: &Graph) -> Result<Memory, GraphError> {
        Ok(LoweredGraph::new(&self.processor, prepare(graph)?)?.memory(self.processor.isa))
    }

    fn algorithms(&self) -> Algorithms {
        // The order in which a kernel sums depends on shapes and the instruction set alone.
        let environment = BTreeMap::from([("instruction set".to_string(), self.processor.isa.to_string())]);
        Algorithms { environment, chosen: BTreeMap::new() }
    }

    fn compile(&self, graph: &Graph, parameters: &mut dyn Parameters) -> Result<Box<dyn Executable>, GraphError> {
        let lowered = LoweredGraph::new(&self.processor, prepare(graph)?)?;
        let memory = lowered.memory(self.processor.isa);
        check_memory(memory, self.free_memory(), parameters.held_bytes(), !graph.updates().is_empty())?;
        Ok(Box::new(CpuExecutable::new(self.processor.clone(), lowered, parameters, None)?))
    }

    fn compile_shared(
        &self,
        graph: &Graph,
        parameters: &mut dyn Parameters,
    ) -> Result<Box<dyn Executable>, GraphError> {
        if !graph.updates().is_empty() {
            return self.compile(graph, parameters);
        }
        let lowered = LoweredGraph::new(&self.processor, prepare(graph)?)?;
        let (memory, free) = (lowered.memory(self.processor.isa), self.free_memory());
        let held = parameters.held_bytes();
        // How much of the constants is new is known only once they are packed: `SharedStorage` counts new buffers against
        // what is left, and returns this error at the first that does not fit.
        let arena = Memory { stored_bytes: 0, ..memory };
        check_memory(arena, free, held, false)?;
        let room = free.map(|free| ((free.free + held).saturating_sub(arena.bytes()), too_large(memory, free, false)));
        let shared = SharedStorage::new(self.processor.shared.clone(), room);
        Ok(Box::new(CpuExecutable::new(self.processor.clone(), lowered, parameters, Some(shared))?))
    }
}

/// Refuses a graph that needs more than the free memory, before any of it is allocated: Linux overcommits memory, and
/// kills the process once it writes to more than there is. Compiling frees `held` bytes, those of the caller's
/// parameters.
fn check_memory(needed: Memory, free: Option<FreeMemory>, held: u64, training: bool) -> Result<(), GraphError> {
    match free.filter(|memory| needed.bytes().saturating_sub(held) > memory.free) {
        Some(free) => Err(too_large(needed, free, training)),
        None => Ok(()),
    }
}

fn too_large(needed: Memory, free: FreeMemory, training: bool) -> GraphError {
    let gb = |bytes: usize| bytes as f64 / 1e9;
    let (whole, stored) = match training {
        true => ("a training step", "weights and optimiser"),
        false => ("this model", "weights"),
    };
    GraphError::Memory {
        device: "cpu",
        what: format!(
            "{whole} needs {:.2} GB of memory ({:.2} for {stored}, {:.2} for activations), and {free}",
            gb(needed.stored_bytes + needed.arena_bytes),
            gb(needed.stored_bytes),
            gb(needed.arena_bytes),
        ),
        hints: vec![Hint::SmallerBatch],
    }
}

/// Applies the rewrites that make a graph faster on a CPU.
fn prepare(graph: &Graph) -> Result<Graph, GraphError> {
    let graph = rewrite::eliminate_dead_tokens(graph)?;
    let graph = rewrite::fold_batch_norm(&graph)?;
    let graph = rewrite::fuse_conv(&graph)?;
    let graph = rewrite::patchify(&graph)?;
    // Before `fuse_add_norm`: in the epilogue of a matrix product the sum is added in registers, whereas `AddLayerNorm`
    // reads both terms and writes the sum.
    let graph = rewrite::fuse_linear(&graph)?;
    let graph = rewrite::fuse_add_norm(&graph)?;
    let graph = rewrite::save_activation_derivative(&graph)?;
    let graph = rewrite::fuse_norm_grad_add(&graph)?;
    rewrite::eliminate_dead_code(&graph)
}

#[cfg(test)]
mod tests {
    use super::*;
    use vit_system::host::MemoryLimit;

    #[test]
    fn a_graph_beyond_the_free_memory_is_refused_before_it_is_allocated() {
        let needed = Memory { stored_bytes: 1_500_000_000, arena_bytes: 59_730_000_000 };
        let room = |free| Some(FreeMemory { free, total: 64_000_000_000, limit: MemoryLimit::ControlGroup });
        let refused = check_memory(needed, room(44_100_000_000), 0, true).unwrap_err().to_string();
        assert_eq!(
            refused,
            "cpu: a training step needs 61.23 GB of memory (1.50 for weights and optimiser, 59.73 for activations), and \
             44.10 of the 64.00 GB are free that its control group allows; take a smaller batch"
        );
        assert!(check_memory(needed, room(61_230_000_000), 0, true).is_ok());
        // Weights that are in memory already are not counted twice.
        assert!(check_memory(needed, room(59_800_000_000), 0, false).is_err());
        assert!(check_memory(needed, room(59_800_000_000), 1_500_000_000, false).is_ok());
        assert!(check_memory(needed, None, 0, true).is_ok());
    }
}
