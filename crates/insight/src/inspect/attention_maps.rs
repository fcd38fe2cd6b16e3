//! Attention maps by layer: the class token's attention to the patches or, in models without one, the attention that each
//! position receives from all others.

use serde_json::json;
use vit_data::{Image, Region};
use vit_models::Architecture;
use vit_plot::palette::{FRAME, MUTED};
use vit_plot::{Anchor, Area, ColourMap, Scene, Text, embed};

use super::Sample;
use super::figure::{Figure, FigureData};
use crate::layers::Layer;
use crate::{InsightError, Map};

/// The most layers shown; deeper models are sampled evenly.
const COLUMNS: usize = 12;
const TILE: f32 = 84.0;
const LEFT: f32 = 24.0;

/// Sums of maps over images, and the maps of the first ones.
pub(super) struct AttentionMaps {
    sums: Vec<Vec<f64>>,
    /// The class token's attention to patches (the rest goes to class, distillation and register tokens), summed over images.
    on_patches: Vec<f64>,
    examples: Vec<(Image, Vec<Map>)>,
}

impl AttentionMaps {
    pub fn new(layers: &[Layer]) -> Self {
        let sums = layers.iter().map(|layer| vec![0.0; layer.grid().iter().product()]).collect();
        AttentionMaps { sums, on_patches: vec![0.0; layers.len()], examples: Vec::new() }
    }

    /// Adds one image's attention weights `[windows, heads, tokens, tokens]` in one layer. Layers come in order.
    pub fn add(
        &mut self,
        architecture: &Architecture,
        index: usize,
        layer: &Layer,
        weights: &[f32],
        sample: &Sample,
    ) -> Result<(), InsightError> {
        let map = layer.received(architecture, &mean_of_heads(weights, layer))?;
        self.sums[index].iter_mut().zip(map.values()).for_each(|(sum, &v)| *sum += f64::from(v));
        self.on_patches[index] += map.values().iter().map(|&v| f64::from(v)).sum::<f64>();
        if !sample.shown {
            return Ok(());
        }
        if index == 0 {
            self.examples.push((sample.seen.clone(), Vec::new()));
        }
        // A batch is added layer by layer, so the current image is the first example with `index` maps so far.
        if let Some((_, maps)) = self.examples.iter_mut().find(|(_, maps)| maps.len() == index) {
            maps.push(map);
        }
        Ok(())
    }

    pub fn figure(&self, layers: &[Layer], images: usize, architecture: &Architecture) -> Result<Figure, InsightError> {
        let mut mean = Vec::new();
        for (layer, sums) in layers.iter().zip(&self.sums) {
            let values = sums.iter().map(|sum| (sum / images.max(1) as f64) as f32).collect();
            let grid = layer.grid();
            mean.push(Map::new(grid, values, architecture.image_size(), crate::covered(architecture, grid))?);
        }
        let numbers = layers.iter().zip(&mean).zip(&self.on_patches).map(|((layer, map), sum)| {
            json!({ "layer": layer.name, "grid": map.grid(), "mean_over_images": map.values(),
                    "share_on_patches": sum / images.max(1) as f64 })
        });
        let class_token = architecture.tokens().is_some_and(|tokens| tokens.class_token);
        let (title, what) = match class_token {
            true => ("What the class token attends to", "the class token's attention to the patches"),
            false => {
                ("Attention received by each position", "the attention that each position receives from the others")
            }
        };
        Ok(Figure {
            name: "attention_by_layer",
            title: title.into(),
            text: format!(
                "By layer, {what}, averaged over heads, each tile scaled to its range; in the last row averaged over {images} \
                 images: a pattern there does not depend on the image. Single tokens with high attention in every image are \
                 often used as registers and carry little local information (Darcet et al., 2024)."
            ),
            scene: draw(title, layers, &self.examples, &mean, class_token.then_some((&self.on_patches, images))),
            data: vec![FigureData::Json(numbers.collect())],
        })
    }
}

/// `[windows, heads, tokens, tokens]` to `[windows, tokens, tokens]`.
fn mean_of_heads(weights: &[f32], layer: &Layer) -> Vec<f32> {
    let heads = layer.heads;
    let windows = match layer.tokens {
        crate::Tokens::Sequence { .. } => 1,
        crate::Tokens::Windowed { windows, grid } => windows.grid(&[1, grid[0], grid[1], 1]).iter().product(),
    };
    let each = weights.len() / (windows * heads).max(1);
    let mut mean = vec![0.0; windows * each];
    for (window, weights) in weights.chunks(heads * each).enumerate() {
        for head in weights.chunks(each) {
            mean[window * each..][..each].iter_mut().zip(head).for_each(|(m, w)| *m += w / heads as f32);
        }
    }
    mean
}

fn draw(
    title: &str,
    layers: &[Layer],
    examples: &[(Image, Vec<Map>)],
    mean: &[Map],
    on_patches: Option<(&Vec<f64>, usize)>,
) -> Scene {
    let shown: Vec<usize> = match layers.len() {
        count if count <= COLUMNS => (0..count).collect(),
        count => (0..COLUMNS).map(|i| i * (count - 1) / (COLUMNS - 1)).collect(),
    };
    let step = TILE + 6.0;
    let rows = examples.len() + 1;
    let width = (2.0 * LEFT + (shown.len() + 1) as f32 * step).max(420.0);
    let mut scene = Scene::new(width, 78.0 + rows as f32 * step + 34.0);
    scene.text(Text::new(title, [LEFT, 28.0], 16.0).bold());
    let x = |column: usize| LEFT + column as f32 * step;
    for (column, &layer) in shown.iter().enumerate() {
        let name = layers[layer].name.trim_end_matches(".attn").replace(".blocks.", ".");
        let at = [x(column + 1) + TILE / 2.0, 62.0];
        scene.text(Text::new(name, at, 10.5).colour(MUTED).anchor(Anchor::Middle).within(TILE - 2.0));
    }
    for (row, (image, maps)) in examples.iter().enumerate() {
        let y = 78.0 + row as f32 * step;
        let tile = |column: usize| Area { x: x(column), y, width: TILE, height: TILE };
        let small = embed::shrunk(image, 2 * TILE as usize).unwrap_or_else(|| {
            let side = 2 * TILE as usize;
            vit_data::resize(image, side, side, vit_data::Filter::Nearest)
        });
        let all = Region { x: 0.0, y: 0.0, width: small.width() as f64, height: small.height() as f64 };
        scene.image(tile(0), small.clone());
        for (column, &layer) in shown.iter().enumerate() {
            if let Some(map) = maps.get(layer) {
                scene.image(tile(column + 1), map.over(&small, all));
            }
        }
    }
    let y = 78.0 + examples.len() as f32 * step;
    scene.text(Text::new("mean", [x(0) + TILE / 2.0, y + TILE / 2.0], 12.0).bold().anchor(Anchor::Middle));
    for (column, &layer) in shown.iter().enumerate() {
        let (map, area) = (&mean[layer], Area { x: x(column + 1), y, width: TILE, height: TILE });
        let [low, high] = map.range();
        let share = |v: f32| if high > low { (v - low) / (high - low) } else { 0.0 };
        let pixels = map.values().iter().flat_map(|&v| {
            let colour = ColourMap::Heat.at(share(v));
            [colour.0, colour.1, colour.2]
        });
        if let Ok(image) = Image::from_rgb(map.grid()[1], map.grid()[0], pixels.collect()) {
            scene.image(area, image);
        }
        scene.frame(area, FRAME);
        if let Some((sums, images)) = on_patches {
            let percent = format!("{:.0} %", 100.0 * sums[layer] / images.max(1) as f64);
            let at = [x(column + 1) + TILE / 2.0, y + TILE + 13.0];
            scene.text(Text::new(percent, at, 10.5).colour(MUTED).anchor(Anchor::Middle));
        }
    }
    if on_patches.is_some() {
        scene.text(Text::new("on patches", [x(0), y + TILE + 13.0], 10.5).colour(MUTED));
    }
    scene
}

#[cfg(test)]
mod tests {
    use super::*;
    use vit_graph::Value;

    #[test]
    fn layers_of_any_number_are_readable() {
        let map = Map::new([2, 2], vec![0.1, 0.2, 0.3, 0.4], [8, 8], [8, 8]).unwrap();
        for count in [1, 3, 12, 40] {
            let layer = |i: usize| Layer {
                name: format!("layers.2.blocks.{i}.attn"),
                tokens: crate::Tokens::Sequence { prefix: 1, grid: [2, 2] },
                heads: 2,
                weights: Value { node: i, output: 2 },
            };
            let layers: Vec<Layer> = (0..count).map(layer).collect();
            let image = Image::from_rgb(8, 8, vec![77; 192]).unwrap();
            let examples = vec![(image, vec![map.clone(); count])];
            let sums = vec![0.5; count];
            draw("What the class token attends to", &layers, &examples, &vec![map.clone(); count], Some((&sums, 1)))
                .assert_readable();
        }
    }
}
