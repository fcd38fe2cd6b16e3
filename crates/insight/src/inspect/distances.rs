//! Mean attention distance of every head, averaged over images: the paper's Figure 7, right.

use std::fmt::Display;

use vit_graph::ops::Windows;
use vit_models::Architecture;
use vit_plot::axis::{Axis, labels, ticks, ticks_around};
use vit_plot::palette::{BLUE, FRAME, GRID, MUTED, ORANGE, WHITE};
use vit_plot::{Anchor, Area, Scene, Text};
use vit_system::csv_line;

use super::figure::{Figure, FigureData};
use crate::layers::{Layer, Tokens, covered};
use crate::{Attention, InsightError, attention_distance};

/// Sums over images, one per layer and head.
pub(super) struct HeadDistances(Vec<Vec<f64>>);

impl HeadDistances {
    pub fn new(layers: &[Layer]) -> Self {
        HeadDistances(layers.iter().map(|layer| vec![0.0; layer.heads]).collect())
    }

    /// Adds one image's attention weights `[windows, heads, tokens, tokens]` in one layer.
    pub fn add(
        &mut self,
        architecture: &Architecture,
        index: usize,
        layer: &Layer,
        weights: &[f32],
    ) -> Result<(), InsightError> {
        let (grid, covers) = (layer.grid(), covered(architecture, layer.grid()));
        let cell = [0, 1].map(|axis| covers[axis] as f64 / grid[axis].max(1) as f64);
        // Distances within each window: attention cannot reach beyond it.
        let (prefix, within) = match layer.tokens {
            Tokens::Sequence { prefix, grid } => (prefix, grid),
            Tokens::Windowed { windows: Windows { size, .. }, .. } => (0, size),
        };
        let tokens = prefix + within[0] * within[1];
        let each = layer.heads * tokens * tokens;
        let windows = weights.len() / each.max(1);
        for weights in weights.chunks_exact(each) {
            let attention = Attention::new(layer.heads, tokens, weights)?;
            let found = attention_distance(attention, prefix, within, cell)?;
            self.0[index].iter_mut().zip(found).for_each(|(sum, d)| *sum += f64::from(d) / windows as f64);
        }
        Ok(())
    }

    pub fn figure(&self, layers: &[Layer], images: usize, architecture: &Architecture) -> Figure {
        let means: Vec<Vec<f64>> =
            self.0.iter().map(|heads| heads.iter().map(|sum| sum / images.max(1) as f64).collect()).collect();
        let mut table = String::from("layer,name,head,mean_attention_distance_in_pixels\n");
        for (index, (layer, heads)) in layers.iter().zip(&means).enumerate() {
            for (head, distance) in heads.iter().enumerate() {
                let fields: [&dyn Display; 4] = [&index, &layer.name, &head, &format_args!("{distance:.4}")];
                table += &csv_line(fields);
            }
        }
        Figure {
            name: "attention_distance",
            title: "Mean attention distance".into(),
            text: format!(
                "One dot per head: the distance between a position and those it attends to, weighted by attention, in pixels of \
                 the model's input, averaged over {images} images. The line is the mean of a layer. It is a transformer's \
                 analogue of receptive field size: heads with short distances in the first layers act like convolutions, \
                 others attend globally from the start."
            ),
            scene: draw(&means, architecture.image_size()),
            data: vec![FigureData::Csv(table)],
        }
    }
}

fn draw(means: &[Vec<f64>], [height, width]: [usize; 2]) -> Scene {
    let mut scene = Scene::new(760.0, 470.0);
    scene.text(Text::new("Mean attention distance", [24.0, 28.0], 16.0).bold());
    let note = format!("pixels of an input of {height} x {width}");
    scene.text(Text::new(note, [24.0, 52.0], 12.0).colour(MUTED));
    let area = Area { x: 76.0, y: 80.0, width: 652.0, height: 320.0 };
    let largest = means.iter().flatten().copied().fold(0.0, f64::max);
    let levels = ticks_around(0.0, largest, 5);
    let (from, to) = (levels[0].min(0.0), levels[levels.len() - 1]);
    let up = Axis { from, to, pixels: [area.bottom(), area.y] };
    let across = Axis { from: -0.5, to: means.len() as f64 - 0.5, pixels: [area.x, area.right()] };
    for (level, label) in levels.iter().zip(labels(&levels)) {
        let y = up.place(*level);
        scene.line(vec![[area.x, y], [area.right(), y]], 1.0, GRID);
        scene.text(Text::new(label, [area.x - 10.0, y], 12.0).colour(MUTED).anchor(Anchor::Right));
    }
    scene.line(vec![[area.x, area.bottom()], [area.right(), area.bottom()]], 1.0, FRAME);
    let numbers = ticks(0.0, (means.len() - 1) as f64, 12);
    let numbers = if numbers.is_empty() { vec![0.0] } else { numbers };
    for tick in numbers.iter().filter(|tick| tick.fract() == 0.0) {
        let at = [across.place(*tick), area.bottom() + 16.0];
        scene.text(Text::new(format!("{tick:.0}"), at, 12.0).colour(MUTED).anchor(Anchor::Middle));
    }
    let mean = |heads: &Vec<f64>| heads.iter().sum::<f64>() / heads.len().max(1) as f64;
    let line = means.iter().enumerate().map(|(i, heads)| [across.place(i as f64), up.place(mean(heads))]);
    scene.line(line.collect(), 2.0, ORANGE);
    for (index, heads) in means.iter().enumerate() {
        for (head, distance) in heads.iter().enumerate() {
            // Heads of a layer are spread horizontally, so that equal values do not overlap.
            let aside = if heads.len() > 1 { 0.3 * (head as f64 / (heads.len() - 1) as f64 - 0.5) } else { 0.0 };
            let place = [across.place(index as f64 + aside), up.place(*distance)];
            scene.dot(place, 4.6, WHITE);
            scene.dot(place, 3.6, BLUE);
        }
    }
    let under = [area.x + area.width / 2.0, area.bottom() + 42.0];
    scene.text(Text::new("layer", under, 13.0).bold().anchor(Anchor::Middle));
    let beside = [26.0, area.y + area.height / 2.0];
    scene.text(Text::new("distance in pixels", beside, 13.0).bold().anchor(Anchor::Middle).turned());
    scene
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scatter_plots_are_readable() {
        for layers in [1, 2, 7, 12, 24, 48] {
            let means: Vec<Vec<f64>> = (0..layers).map(|l| (0..12).map(|h| (l * h) as f64).collect()).collect();
            draw(&means, [224, 224]).assert_readable();
        }
        draw(&[vec![0.0]], [32, 32]).assert_readable();
    }
}
