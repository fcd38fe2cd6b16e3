//! The largest batch that fits into a device's memory, as a hint in errors.

use vit_system::host::MemoryLimit;

use crate::device::Device;
use crate::{Graph, GraphError, Hint};

/// The largest batch below `batch` for which `fits` holds: any size up to 8, then multiples of 8, all of them divisible
/// into `parts`. A batch smaller than one that fits must fit: the search is binary.
pub fn largest_batch(batch: usize, parts: usize, mut fits: impl FnMut(usize) -> bool) -> Option<usize> {
    let usual = |n: &usize| n.is_multiple_of(parts) && (*n <= 8 || n.is_multiple_of(8));
    let candidates: Vec<usize> = (1..batch).filter(usual).collect();
    let fitting = candidates.partition_point(|&n| fits(n));
    fitting.checked_sub(1).map(|last| candidates[last])
}

/// Adds the largest batch that fits to a [`GraphError::Memory`]; other errors are returned unchanged.
///
/// `held` are the bytes of host memory that the weights occupy now and that compiling frees; on a GPU they do not
/// count. `graph` builds the same graph for another batch.
pub fn suggest_batch(
    error: GraphError,
    device: &dyn Device,
    batch: usize,
    held: u64,
    graph: impl Fn(usize) -> Result<Graph, GraphError>,
) -> GraphError {
    let (GraphError::Memory { device: name, what, .. }, Some(room)) = (&error, device.free_memory()) else {
        return error;
    };
    let held = if room.limit == MemoryLimit::Gpu { 0 } else { held };
    let fits = |batch: usize| {
        let planned = graph(batch).and_then(|graph| device.plan(&graph));
        planned.is_ok_and(|memory| memory.bytes().saturating_sub(held) <= room.free)
    };
    let (what, hint) = match largest_batch(batch, 1, fits) {
        Some(fits) => (what.clone(), Hint::BatchThatFits { requested: batch, fits }),
        None if batch > 1 => (format!("{what}; not even a batch of 1 would fit"), Hint::SmallerModel),
        None => (what.clone(), Hint::SmallerModel),
    };
    GraphError::Memory { device: name, what, hints: vec![hint] }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Executable, Memory, Parameters};
    use crate::ops::Input;
    use crate::{Type, Value};
    use vit_system::host::FreeMemory;

    /// A device with 100 free bytes.
    struct Small(MemoryLimit);

    impl Device for Small {
        fn name(&self) -> &'static str {
            "small"
        }
        fn plan(&self, graph: &Graph) -> Result<Memory, GraphError> {
            Ok(Memory { stored_bytes: 40, arena_bytes: graph.ty(Value { node: 0, output: 0 }).bytes() })
        }
        fn free_memory(&self) -> Option<FreeMemory> {
            Some(FreeMemory { free: 100, total: 100, limit: self.0 })
        }
        fn compile(&self, _: &Graph, _: &mut dyn Parameters) -> Result<Box<dyn Executable>, GraphError> {
            Err(GraphError::device("small", "it only plans"))
        }
    }

    #[test]
    fn weights_in_host_memory_counted_as_free_memory_of_a_gpu() {
        let build = |batch: usize| {
            let mut graph = Graph::new();
            graph.add(Input { name: "x".into(), ty: Type::f32([batch, 5]) }, &[])?;
            Ok(graph)
        };
        let error = GraphError::Memory { device: "small", what: "too large".into(), hints: Vec::new() };
        // 20 bytes per sample and 40 for weights, which the host frees.
        for (limit, fits) in [(MemoryLimit::Machine, 5), (MemoryLimit::Gpu, 3)] {
            let found = suggest_batch(error.clone(), &Small(limit), 8, 40, build);
            assert_eq!(found.hints(), [Hint::BatchThatFits { requested: 8, fits }]);
        }
    }

    #[test]
    fn only_usual_batch_sizes_are_tried() {
        assert_eq!(largest_batch(64, 1, |n| n <= 37), Some(32));
        assert_eq!(largest_batch(64, 1, |n| n <= 7), Some(7));
        assert_eq!(largest_batch(64, 3, |n| n <= 37), Some(24));
        assert_eq!(largest_batch(64, 1, |_| false), None);
        assert_eq!(largest_batch(1, 1, |_| true), None);
    }
}
