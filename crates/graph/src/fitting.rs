//! The batch that fits, where one that was asked for does not.

use crate::device::Device;
use crate::{Graph, GraphError, Hint};

/// The largest batch below `batch` that fits: any up to 8, then multiples of 8; all of them multiples of `parts`.
pub fn largest_fitting(batch: usize, parts: usize, mut fits: impl FnMut(usize) -> bool) -> Option<usize> {
    let usual = |n: &usize| n.is_multiple_of(parts) && (*n <= 8 || n.is_multiple_of(8));
    let candidates: Vec<usize> = (1..batch).filter(usual).collect();
    let fitting = candidates.partition_point(|&n| fits(n));
    fitting.checked_sub(1).map(|last| candidates[last])
}

/// Says in a refusal for lack of memory which batch would fit; other errors stay as they are. `held` are the bytes of
/// host memory that the weights take now, `graph` builds the same graph for another batch.
pub fn with_fitting_batch(
    error: GraphError,
    device: &dyn Device,
    batch: usize,
    held: u64,
    graph: impl Fn(usize) -> Result<Graph, GraphError>,
) -> GraphError {
    let (GraphError::Memory { device: name, what, .. }, Some(room)) = (&error, device.free_memory()) else {
        return error;
    };
    let fits = |batch: usize| {
        let planned = graph(batch).and_then(|graph| device.plan(&graph));
        planned.is_ok_and(|memory| memory.bytes().saturating_sub(held) <= room.free)
    };
    let (what, hint) = match largest_fitting(batch, 1, fits) {
        Some(fits) => (what.clone(), Hint::BatchThatFits { requested: batch, fits }),
        None if batch > 1 => (format!("{what}; not even a batch of 1 would fit"), Hint::SmallerModel),
        None => (what.clone(), Hint::SmallerModel),
    };
    GraphError::Memory { device: name, what, hints: vec![hint] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_tried_in_the_sizes_that_people_use() {
        assert_eq!(largest_fitting(64, 1, |n| n <= 37), Some(32));
        assert_eq!(largest_fitting(64, 1, |n| n <= 7), Some(7));
        assert_eq!(largest_fitting(64, 3, |n| n <= 37), Some(24));
        assert_eq!(largest_fitting(64, 1, |_| false), None);
        assert_eq!(largest_fitting(1, 1, |_| true), None);
    }
}
