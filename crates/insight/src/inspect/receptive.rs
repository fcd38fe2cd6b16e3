//! The effective receptive field (Luo et al., 2016): the gradient of the central position's features with respect to the
//! input. The measure is the same for convolutional networks and transformers.

use vit_data::Image;
use vit_graph::device::Device;
use vit_graph::ops::{Reduce, Reshape, Slice};
use vit_graph::{Graph, Value, autodiff};
use vit_models::weights::Weights;
use vit_models::{Architecture, Mode, TokenSequence};
use vit_plot::palette::{Colour, FRAME, MUTED};
use vit_plot::{Anchor, Area, ColourMap, Scene, Text};
use vit_system::csv_line;

use super::figure::{Figure, FigureData};
use crate::InsightError;
use crate::runner::Runner;

/// The most depths measured.
const MOST: usize = 4;
const TILE: f32 = 190.0;

/// Sums of absolute gradients, one map of the input per depth.
pub(super) struct ReceptiveFields {
    runners: Vec<(String, Runner)>,
    sums: Vec<Vec<f64>>,
    size: [usize; 2],
}

impl ReceptiveFields {
    pub fn new(
        architecture: &Architecture,
        weights: &Weights,
        device: &dyn Device,
        batch: usize,
    ) -> Result<Self, InsightError> {
        let mut runners = Vec::new();
        for tap in depths(architecture) {
            let graph = centre_gradient(architecture, batch, &tap)?;
            runners.push((tap, Runner::new(&graph, weights, device)?));
        }
        let size = architecture.image_size();
        let sums = vec![vec![0.0; size[0] * size[1]]; runners.len()];
        Ok(ReceptiveFields { runners, sums, size })
    }

    pub fn add(&mut self, inputs: &[&[f32]]) -> Result<(), InsightError> {
        let area = self.size[0] * self.size[1];
        for ((_, runner), sums) in self.runners.iter_mut().zip(&mut self.sums) {
            runner.run(inputs.iter().copied(), &[])?;
            let gradient = runner.read("gradient")?;
            let each = gradient.len() / runner.batch();
            for plane in gradient[..inputs.len() * each].chunks(area) {
                sums.iter_mut().zip(plane).for_each(|(sum, &g)| *sum += f64::from(g.abs()));
            }
        }
        Ok(())
    }

    pub fn figure(&self, noise: bool) -> Result<Figure, InsightError> {
        let mut table = String::from("depth,half_of_it_within_pixels,nine_tenths_within_pixels\n");
        let mut fields = Vec::new();
        for ((name, _), sums) in self.runners.iter().zip(&self.sums) {
            let radii = [0.5, 0.9].map(|share| radius(sums, self.size, share));
            table += &csv_line([name.clone(), format!("{:.1}", radii[0]), format!("{:.1}", radii[1])]);
            let largest = sums.iter().copied().fold(0.0, f64::max).max(f64::MIN_POSITIVE);
            fields.push((name.as_str(), sums.iter().map(|v| (v / largest) as f32).collect::<Vec<f32>>(), radii));
        }
        let on = if noise { "noise (no images were given)" } else { "the images" };
        let values = fields.iter().flat_map(|(_, values, _)| values).copied().collect();
        Ok(Figure {
            name: "receptive_field",
            title: "Effective receptive field".into(),
            text: format!(
                "The mean absolute gradient of the central position's features with respect to each input pixel, over {on}, at \
                 growing depth. Each square is scaled to its maximum, by square root so that faint borders are visible. In \
                 convolutional networks the field widens with depth but stays much smaller than the theoretical one; \
                 transformers can be global from the first block."
            ),
            scene: draw(&fields, self.size),
            data: vec![FigureData::Csv(table), FigureData::Npy(vec![fields.len(), self.size[0], self.size[1]], values)],
        })
    }
}

/// The taps to measure, by depth.
fn depths(architecture: &Architecture) -> Vec<String> {
    let is_depth = |name: &str| {
        let number = name.strip_prefix("blocks.").or_else(|| name.strip_prefix("stages."));
        number.is_some_and(|number| !number.contains('.'))
    };
    let Ok(graph) = architecture.build(1, Mode::Inference) else { return Vec::new() };
    let mut taps: Vec<(&String, &Value)> = graph.taps().iter().filter(|(name, _)| is_depth(name)).collect();
    taps.sort_by_key(|(_, value)| value.node);
    let names: Vec<String> = taps.into_iter().map(|(name, _)| name.clone()).collect();
    match names.len() {
        count if count <= MOST => names,
        count => (0..MOST).map(|i| names[i * (count - 1) / (MOST - 1)].clone()).collect(),
    }
}

/// The gradient of the sum of the central position's features with respect to the image.
fn centre_gradient(architecture: &Architecture, batch: usize, tap: &str) -> Result<Graph, InsightError> {
    let mut graph = architecture.build(batch, Mode::Inference)?;
    graph.request(tap)?;
    let features = graph.output(tap)?;
    graph.retain_outputs(|_| false);
    let image = graph.inputs().find(|(_, input)| input.name == "image").map(|(node, _)| Value { node, output: 0 });
    let Some(image) = image else { return Err(InsightError::Unsuitable("the model has no image".into())) };
    let shape = graph.shape(features).clone();
    let centre = match (architecture.tokens(), shape.len()) {
        (Some(TokenSequence { prefix, grid: [rows, columns], .. }), 3) => {
            let start = prefix + rows / 2 * columns + columns / 2;
            graph.value(Slice { axis: 1, start, length: 1 }, &[features])?
        }
        _ => {
            let flat = graph.value(Reshape([shape[0], shape[1] * shape[2], shape[3]].into()), &[features])?;
            let start = shape[1] / 2 * shape[2] + shape[2] / 2;
            graph.value(Slice { axis: 1, start, length: 1 }, &[flat])?
        }
    };
    let sum = graph.value(Reduce::sum([0, 1, 2]), &[centre])?;
    let gradient = autodiff::gradients(&mut graph, sum, &[image])?[0];
    graph.set_output("gradient", gradient)?;
    // Devices require that a norm whose statistics are used also has its result used.
    graph.set_output("centre", centre)?;
    Ok(graph)
}

/// The distance from the centre of mass within which this share of the total lies.
fn radius(values: &[f64], [height, width]: [usize; 2], share: f64) -> f64 {
    let total: f64 = values.iter().sum();
    if total <= 0.0 {
        return 0.0;
    }
    let moment =
        |f: &dyn Fn(usize) -> usize| values.iter().enumerate().map(|(i, v)| f(i) as f64 * v).sum::<f64>() / total;
    let (y, x) = (moment(&|i| i / width), moment(&|i| i % width));
    let mut by_distance: Vec<(f64, f64)> =
        (0..height * width).map(|i| (((i / width) as f64 - y).hypot((i % width) as f64 - x), values[i])).collect();
    by_distance.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut sum = 0.0;
    for (distance, value) in by_distance {
        sum += value;
        if sum >= share * total {
            return distance;
        }
    }
    0.0
}

fn draw(fields: &[(&str, Vec<f32>, [f64; 2])], [height, width]: [usize; 2]) -> Scene {
    let scale = TILE / height.max(width) as f32;
    let size = [width as f32 * scale, height as f32 * scale];
    let step = TILE + 16.0;
    let mut scene = Scene::new((48.0 + fields.len() as f32 * step).max(420.0), 84.0 + size[1] + 54.0);
    scene.text(Text::new("Effective receptive field", [24.0, 28.0], 16.0).bold());
    for (index, (name, values, [half, most])) in fields.iter().enumerate() {
        let area = Area { x: 24.0 + index as f32 * step, y: 80.0, width: size[0], height: size[1] };
        let middle = area.x + size[0] / 2.0;
        let heading = Text::new(*name, [middle, 64.0], 12.0).bold().anchor(Anchor::Middle);
        scene.text(heading.within(TILE));
        let pixels = values.iter().flat_map(|v| {
            let Colour(r, g, b) = ColourMap::Heat.at(v.sqrt());
            [r, g, b]
        });
        if let Ok(image) = Image::from_rgb(width, height, pixels.collect()) {
            scene.image(area, image);
        }
        scene.frame(area, FRAME);
        let lines = [format!("half within {half:.0} px"), format!("nine tenths within {most:.0} px")];
        for (line, text) in lines.into_iter().enumerate() {
            let at = [middle, area.bottom() + 16.0 + 18.0 * line as f32];
            scene.text(Text::new(text, at, 11.5).colour(MUTED).anchor(Anchor::Middle).within(TILE));
        }
    }
    scene
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn radii_are_distances_from_the_middle() {
        let mut values = vec![0.0; 81];
        values[4 * 9 + 4] = 1.0;
        assert_eq!(radius(&values, [9, 9], 0.9), 0.0);
        for at in [4 * 9, 4 * 9 + 8, 4, 8 * 9 + 4] {
            values[at] = 0.25;
        }
        assert_eq!([radius(&values, [9, 9], 0.5), radius(&values, [9, 9], 0.9)], [0.0, 4.0]);
    }

    #[test]
    fn fields_are_readable() {
        for size in [[32, 32], [224, 160]] {
            let field = vec![0.5; size[0] * size[1]];
            let fields: Vec<_> = (0..4).map(|_| ("stages.3", field.clone(), [12.0, 100.0])).collect();
            draw(&fields, size).assert_readable();
        }
    }
}
