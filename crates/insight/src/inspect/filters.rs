//! Principal components of the patch-embedding (or first convolution's) filters: the paper's Figure 7, left.

use vit_data::Image;
use vit_models::Architecture;
use vit_models::weights::Weights;
use vit_plot::palette::MUTED;
use vit_plot::{Anchor, Area, Scene, Text};

use super::figure::{Figure, FigureData};
use crate::{InsightError, principal_components};

/// As many as the paper shows.
const SHOWN: usize = 28;
const ACROSS: usize = 7;
const TILE: f32 = 76.0;
const STEP: [f32; 2] = [TILE + 10.0, TILE + 24.0];

pub(super) fn figure(architecture: &Architecture, weights: &Weights) -> Result<Figure, InsightError> {
    let name = architecture.first_filters();
    let Some(filters) = weights.tensors.get(&name) else {
        return Err(InsightError::Unsuitable(format!("First filters: the weights have no `{name}`.")));
    };
    let &[count, channels, height, width] = filters.shape.as_slice() else {
        return Err(InsightError::Unsuitable(format!("First filters: `{name}` has the shape {:?}.", filters.shape)));
    };
    let dim = channels * height * width;
    let components = principal_components(&filters.data, dim, SHOWN.min(dim).min(count))?;
    let shown = components.shares.len();
    let rows = shown.div_ceil(ACROSS);
    let mut scene = Scene::new(48.0 + ACROSS as f32 * STEP[0], 84.0 + rows as f32 * STEP[1]);
    let title = format!("The first {shown} principal components of {count} filters, {height} x {width}");
    scene.text(Text::new(&title, [24.0, 28.0], 16.0).bold().within(scene.size().0 - 48.0));
    scene.text(Text::new("below each: its share of the variance", [24.0, 52.0], 12.0).colour(MUTED));
    for (index, (vector, share)) in components.vectors.chunks(dim).zip(&components.shares).enumerate() {
        let x = 24.0 + (index % ACROSS) as f32 * STEP[0];
        let y = 76.0 + (index / ACROSS) as f32 * STEP[1];
        if let Some(image) = tile(vector, channels, [height, width]) {
            scene.image(Area { x, y, width: TILE, height: TILE }, image);
        }
        let label = format!("{:.1} %", 100.0 * share);
        scene.text(Text::new(label, [x + TILE / 2.0, y + TILE + 9.0], 10.5).colour(MUTED).anchor(Anchor::Middle));
    }
    let mut table = String::from("component,share_of_variance\n");
    components.shares.iter().enumerate().for_each(|(i, share)| table += &format!("{i},{share}\n"));
    Ok(Figure {
        name: "filters",
        title: "Principal components of the first filters".into(),
        text: format!(
            "Principal components of `{name}`, the linear map from {height} x {width} pixels to {count} features. In a model \
             trained on much data they resemble a basis for the fine structure of a patch: flat colours, edges, gratings of \
             rising frequency. Noise suggests short training or little data."
        ),
        scene,
        data: vec![FigureData::Csv(table), FigureData::Npy(vec![shown, channels, height, width], components.vectors)],
    })
}

/// A component as an image, scaled to its range.
fn tile(vector: &[f32], channels: usize, [height, width]: [usize; 2]) -> Option<Image> {
    let (low, high) = vector.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), &v| (l.min(v), h.max(v)));
    let spread = (high - low).max(f32::MIN_POSITIVE);
    let value = |channel: usize, at: usize| ((vector[channel * height * width + at] - low) / spread * 255.0) as u8;
    let pixel = |at: usize| match channels {
        3 => [0, 1, 2].map(|channel| value(channel, at)),
        _ => [value(0, at); 3],
    };
    Image::from_rgb(width, height, (0..height * width).flat_map(pixel).collect()).ok()
}
