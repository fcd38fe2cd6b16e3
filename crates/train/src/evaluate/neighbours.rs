//! The accuracy of nearest neighbours: what features are worth that were learned without labels.

use std::sync::Arc;

use vit_data::Samples;
use vit_data::dataset::Dataset;
use vit_graph::ops::{Binary, Constant, Input, Linear, Reduce, Reshape, Unary};
use vit_graph::{Graph, GraphError, Shape, Type};

use super::probe::NearestNeighbours;

/// Training images that are compared with at most.
const MAX_REFERENCES: usize = 10_000;

/// Labelled training images, whose features are compared with those of others.
pub(crate) struct Neighbours {
    train: Arc<Dataset>,
    /// The training samples that are compared with, evenly spaced.
    references: Vec<usize>,
}

impl Neighbours {
    /// The references among training images; `None` if these do not have one of several labels each.
    pub fn of(train: &Arc<Dataset>) -> Option<Self> {
        let labelled = (0..train.len()).filter(|&index| train.labels(index).len() == 1);
        let labelled: Vec<usize> = labelled.collect();
        let stride = labelled.len().div_ceil(MAX_REFERENCES).max(1);
        let references: Vec<usize> = labelled.into_iter().step_by(stride).collect();
        let useful = train.classes().len() > 1 && !references.is_empty();
        useful.then(|| Neighbours { train: train.clone(), references })
    }

    /// The training images, and those of them that are compared with.
    pub fn references(&self) -> (&Dataset, &[usize]) {
        (&self.train, &self.references)
    }

    /// The number of classes.
    pub fn classes(&self) -> usize {
        self.train.classes().len()
    }

    /// Replaces the outputs of a graph with `features [batch, width]` of length 1 and their cosines `similarities [batch,
    /// references]` to an input `references [references, width]`.
    pub fn append(&self, graph: &mut Graph) -> Result<(), GraphError> {
        let features = graph.output("features")?;
        let (batch, width) = (graph.shape(features)[0], graph.shape(features).last());
        let squares = graph.value(Binary::Mul, &[features, features])?;
        let sums = graph.value(Reduce::sum([1]), &[squares])?;
        let floor = graph.value(Constant::filled(Shape::default(), 1e-12), &[])?;
        let sums = graph.value(Binary::Add, &[sums, floor])?;
        let lengths = graph.value(Unary::Power(-0.5), &[sums])?;
        let lengths = graph.value(Reshape([batch, 1].into()), &[lengths])?;
        let unit = graph.value(Binary::Mul, &[features, lengths])?;
        let ty = Type::f32([self.references.len(), width]);
        let references = graph.value(Input { name: "references".into(), ty }, &[])?;
        let similarities = graph.value(Linear::default(), &[unit, references])?;
        graph.retain_outputs(|_| false);
        graph.set_output("features", unit)?;
        graph.set_output("similarities", similarities)
    }

    /// Writes the logarithms of the classes' shares of the votes, for one image's similarities.
    pub fn vote(&self, similarities: &[f32], scores: &mut [f32]) {
        let class = |at: usize| self.train.labels(self.references[at]).first().map_or(0, |&label| label as usize);
        let mut votes = vec![0.0; scores.len()];
        NearestNeighbours::default().vote(similarities, class, &mut votes);
        let (all, classes) = (votes.iter().sum::<f64>(), scores.len() as f64);
        for (score, votes) in scores.iter_mut().zip(votes) {
            // Every class has a part of one in a thousand, so that the loss is finite.
            *score = (0.999 * votes / all + 0.001 / classes).ln() as f32;
        }
    }
}
