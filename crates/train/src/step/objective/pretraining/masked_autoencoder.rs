//! The loss of a masked autoencoder (He et al., 2022): the mean squared error of the pixels of patches that were left out.

use vit_graph::ops::{Constant, GatherTokens, LayerNorm, SquaredError};
use vit_graph::{Graph, GraphError, Value};
use vit_models::vit::{MaskedAutoencoder, Vit};

use super::{MaskedPrediction, rows_of};

/// Added to the variance of a patch.
const EPSILON: f32 = 1e-6;

pub(super) fn loss(
    graph: &mut Graph,
    vit: &Vit,
    mae: &MaskedAutoencoder,
    found: &MaskedPrediction,
) -> Result<Value, GraphError> {
    let patches = vit.grid().iter().product();
    let kept = mae.kept(patches);
    let mut targets = found.pixels(graph, vit, GatherTokens { start: kept, count: patches - kept })?;
    let pixels = graph.shape(targets).last();
    if mae.normalised {
        // The published code divides by n - 1 in the variance, a layer norm by n.
        let share = (pixels as f32 - 1.0) / pixels as f32;
        let scale = graph.value(Constant::filled([pixels], share.sqrt()), &[])?;
        let shift = graph.value(Constant::filled([pixels], 0.0), &[])?;
        targets = graph.value(LayerNorm::new(share * EPSILON), &[targets, scale, shift])?;
    }
    let prediction = rows_of(graph, found.prediction, pixels)?;
    graph.value(SquaredError, &[prediction, targets])
}
