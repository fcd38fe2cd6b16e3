//! The loss of masked patch prediction (Dosovitskiy et al., 2021, appendix B.1.2), a mean over the corrupted patches.

use vit_graph::ops::{
    Binary, ColourClass, Constant, CrossEntropy, Gather, GatherTokens, Permute, Reshape, SquaredError,
};
use vit_graph::{Graph, GraphError, Value};
use vit_models::vit::{MaskedPatches, PatchTarget, Vit};

use super::{Colours, MaskedPrediction, rows_of};

/// Rows and columns of a downsized patch.
const DOWNSIZED: usize = 4;

pub(super) fn loss(
    graph: &mut Graph,
    vit: &Vit,
    masked: &MaskedPatches,
    colours: &Colours,
    found: &MaskedPrediction,
) -> Result<Value, GraphError> {
    let count = masked.corrupted(vit.grid().iter().product());
    let corrupted = GatherTokens { start: 0, count };
    match masked.target {
        PatchTarget::MeanColour => classes(graph, vit, 1, colours, corrupted, found),
        PatchTarget::Downsized => classes(graph, vit, DOWNSIZED, colours, corrupted, found),
        PatchTarget::Pixels => {
            let pixels = found.pixels(graph, vit, corrupted)?;
            let targets = raw(graph, pixels, vit, colours)?;
            let prediction = rows_of(graph, found.prediction, graph.shape(targets).last())?;
            graph.value(SquaredError, &[prediction, targets])
        }
    }
}

/// Cross-entropy of the colours of `side` x `side` cells of every corrupted patch.
fn classes(
    graph: &mut Graph,
    vit: &Vit,
    side: usize,
    colours: &Colours,
    corrupted: GatherTokens,
    found: &MaskedPrediction,
) -> Result<Value, GraphError> {
    let batch = graph.shape(found.image)[0];
    let ([rows, columns], [high, wide]) = (vit.grid(), vit.patch_size);
    let Colours { mean, std } = colours.clone();
    let cells = graph.value(ColourClass { cell: [high / side, wide / side], mean, std }, &[found.image])?;
    let cut = graph.value(Reshape([batch, rows, side, columns, side].into()), &[cells])?;
    // One cell per patch is in this order already.
    let cut = if side == 1 { cut } else { graph.value(Permute(vec![0, 1, 3, 2, 4]), &[cut])? };
    let patches = graph.value(Reshape([batch, rows * columns, side * side].into()), &[cut])?;
    let chosen = graph.value(corrupted, &[patches, found.order])?;
    let classes = PatchTarget::colours(vit.channels);
    let one_hot = (0..classes * classes).map(|i| if i / classes == i % classes { 1.0 } else { 0.0 }).collect();
    let one_hot = graph.value(Constant::f32([classes, classes], one_hot), &[])?;
    let targets = graph.value(Gather, &[one_hot, chosen])?;
    let targets = rows_of(graph, targets, classes)?;
    let logits = rows_of(graph, found.prediction, classes)?;
    graph.value(CrossEntropy, &[logits, targets])
}

/// Pixels from 0 to 1.
fn raw(graph: &mut Graph, pixels: Value, vit: &Vit, colours: &Colours) -> Result<Value, GraphError> {
    let width = graph.shape(pixels).last();
    let per_pixel =
        |values: &[f32]| (0..width).map(|i| values[i % vit.channels.max(1) % values.len().max(1)]).collect();
    let std = graph.value(Constant::f32([width], per_pixel(&colours.std)), &[])?;
    let mean = graph.value(Constant::f32([width], per_pixel(&colours.mean)), &[])?;
    let scaled = graph.value(Binary::Mul, &[pixels, std])?;
    graph.value(Binary::Add, &[scaled, mean])
}
