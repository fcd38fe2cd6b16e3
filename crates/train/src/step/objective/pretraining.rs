//! The objectives of pre-training without labels, from the outputs of a model's graph for it.

mod masked_autoencoder;
mod masked_patches;
pub(in crate::step) mod self_distillation;

pub use self_distillation::{DistillationSchedule, MultiCrop};

use vit_graph::ops::{GatherTokens, Reshape};
use vit_graph::{Graph, GraphError, Shape, Value};
use vit_models::vit::{Pretraining, Vit};

/// How images were normalised.
#[derive(Debug, Clone, PartialEq)]
pub struct Colours {
    /// The mean of each channel.
    pub mean: Vec<f32>,
    /// The standard deviation of each channel.
    pub std: Vec<f32>,
}

impl Default for Colours {
    fn default() -> Self {
        Colours { mean: vec![0.5; 3], std: vec![0.5; 3] }
    }
}

/// The outputs of a model's graph for pre-training, and its input.
#[derive(Debug, Clone, Copy)]
pub struct MaskedPrediction {
    /// The images `[batch, channels, height, width]`.
    pub image: Value,
    /// The prediction for the patches that the loss is computed on, `[batch, chosen, outputs]`.
    pub prediction: Value,
    /// The permutation of patches.
    pub order: Value,
}

impl MaskedPrediction {
    /// The outputs that [`Self::loss`] reads.
    pub const OUTPUTS: [&'static str; 2] = ["prediction", "order"];

    /// Adds the loss of masked prediction to a graph.
    pub fn loss(&self, graph: &mut Graph, vit: &Vit, colours: &Colours) -> Result<Value, GraphError> {
        match &vit.pretraining {
            Some(Pretraining::MaskedAutoencoder(mae)) => masked_autoencoder::loss(graph, vit, mae, self),
            Some(Pretraining::MaskedPatches(masked)) => masked_patches::loss(graph, vit, masked, colours, self),
            _ => Err(GraphError::UnknownName {
                kind: "objective",
                name: "masked prediction".into(),
                known: "that of masked autoencoders and of masked patches".into(),
            }),
        }
    }

    /// The pixels of the patches at places of the permutation, `[patches, pixels]`, each patch in the order row, column,
    /// channel.
    fn pixels(&self, graph: &mut Graph, vit: &Vit, places: GatherTokens) -> Result<Value, GraphError> {
        let [batch, channels] = [0, 1].map(|axis| graph.shape(self.image)[axis]);
        let ([rows, columns], [high, wide]) = (vit.grid(), vit.patch_size);
        let cut = graph.value(Reshape([batch, channels, rows, high, columns, wide].into()), &[self.image])?;
        let patches = graph.value(vit_graph::ops::Permute(vec![0, 2, 4, 3, 5, 1]), &[cut])?;
        let pixels = high * wide * channels;
        let patches = graph.value(Reshape([batch, rows * columns, pixels].into()), &[patches])?;
        let chosen = graph.value(places, &[patches, self.order])?;
        rows_of(graph, chosen, pixels)
    }
}

/// A value as rows of this width.
fn rows_of(graph: &mut Graph, value: Value, width: usize) -> Result<Value, GraphError> {
    let rows = graph.shape(value).elements() / width.max(1);
    graph.value(Reshape(Shape::from([rows, width])), &[value])
}
