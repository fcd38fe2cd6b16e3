//! A model's graph with a batch of any size. Graphs are built for one batch size; two of them, for different sizes, have the
//! same nodes, and tell which extents are multiples of the batch and which are not.

use vit_graph::{Graph, Node, NodeId, Value};

use super::OnnxError;

/// Two batch sizes without a common factor. They are large, so that rewrites that compare activations with weights decide as
/// for any large batch.
pub(super) const BATCHES: [usize; 2] = [1021, 1031];

/// An extent of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Extent {
    /// The same for any batch.
    Fixed(usize),
    /// So many times the batch.
    Batches(usize),
}

impl Extent {
    /// From the extents for the two sizes; `None` if they are no multiples of the batch.
    fn of(extents: [usize; 2]) -> Option<Self> {
        let [one, other] = extents;
        if one == other {
            return Some(Extent::Fixed(one));
        }
        let times = one / BATCHES[0];
        (extents == BATCHES.map(|batch| times * batch)).then_some(Extent::Batches(times))
    }

    /// As a `Reshape` takes it: -1 is what is left, which is the batch.
    pub fn dimension(self) -> i64 {
        match self {
            Extent::Fixed(extent) => extent as i64,
            Extent::Batches(_) => -1,
        }
    }

    pub fn is_fixed(self) -> bool {
        matches!(self, Extent::Fixed(_))
    }
}

/// The same graph for both of [`BATCHES`].
pub(super) struct BatchGraph {
    graphs: [Graph; 2],
}

impl BatchGraph {
    /// The graph that `build` builds for a batch size.
    pub fn new(build: impl Fn(usize) -> Result<Graph, OnnxError>) -> Result<Self, OnnxError> {
        let [one, other] = BATCHES;
        let graphs = [build(one)?, build(other)?];
        let [a, b] = &graphs;
        let same = |(a, b): (&Node, &Node)| {
            std::mem::discriminant(&a.op) == std::mem::discriminant(&b.op) && a.inputs == b.inputs
        };
        if a.nodes().len() != b.nodes().len() || !a.nodes().iter().zip(b.nodes()).all(same) {
            return Err(OnnxError::Batch { scope: "the model".into(), what: "the operations".into() });
        }
        Ok(BatchGraph { graphs })
    }

    /// The graph for the first batch size.
    pub fn graph(&self) -> &Graph {
        &self.graphs[0]
    }

    pub fn node(&self, id: NodeId) -> &Node {
        self.graph().node(id)
    }

    /// The shape of a value.
    pub fn shape(&self, value: Value) -> Result<Vec<Extent>, OnnxError> {
        let [a, b] = [0, 1].map(|graph| self.graphs[graph].shape(value));
        let extents = a.iter().zip(b.iter()).map(|(&a, &b)| Extent::of([a, b]));
        let shape: Option<Vec<Extent>> = extents.collect();
        shape.ok_or_else(|| {
            let node = self.node(value.node);
            OnnxError::Batch { scope: node.scope.clone(), what: format!("the extents {a}") }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_fixed_or_multiples_of_the_batch() {
        let [one, other] = BATCHES;
        assert_eq!(Extent::of([one, other]), Some(Extent::Batches(1)));
        assert_eq!(Extent::of([64 * one, 64 * other]), Some(Extent::Batches(64)));
        assert_eq!(Extent::of([197, 197]), Some(Extent::Fixed(197)));
        assert_eq!(Extent::of([one, one]), Some(Extent::Fixed(one)));
        assert_eq!(Extent::of([one + 1, other + 1]), None);
        assert_eq!(Extent::of([one.div_ceil(2), other.div_ceil(2)]), None);
        assert_eq!(Extent::Batches(64).dimension(), -1);
    }
}
