//! What a masked autoencoder makes of images: the image, the patches that the encoder sees, and the reconstruction.

use serde_json::json;
use vit_data::Image;
use vit_graph::device::Device;
use vit_graph::ops::RandomPartition;
use vit_graph::random::Seed;
use vit_models::Config;
use vit_models::vit::{MaskedAutoencoder, Masks, Pretraining, Vit};
use vit_models::weights::Weights;
use vit_plot::palette::{FRAME, MUTED};
use vit_plot::{Anchor, Area, Scene, Text};

use super::Sample;
use super::figure::{Figure, FigureData};
use crate::InsightError;
use crate::runner::Runner;

const TILE: f32 = 168.0;
const LEFT: f32 = 24.0;
/// The grey of patches that the encoder does not see.
const HIDDEN: u8 = 128;
const COLUMNS: [&str; 3] = ["image", "what the encoder sees", "reconstruction"];

/// Reconstructions of the first images.
pub(super) struct Reconstructions {
    runner: Runner,
    vit: Vit,
    mae: MaskedAutoencoder,
    mean: Vec<f32>,
    std: Vec<f32>,
    /// For every example the three images.
    examples: Vec<[Image; 3]>,
    errors: Vec<f64>,
}

impl Reconstructions {
    /// `None` if the model is not a masked autoencoder with its decoder, or has not three channels.
    pub fn new(config: &Config, weights: &Weights, device: &dyn Device) -> Result<Option<Self>, InsightError> {
        let Some(vit) = config.architecture.downcast_ref::<Vit>().filter(|vit| vit.channels == 3) else {
            return Ok(None);
        };
        let Some(Pretraining::MaskedAutoencoder(mae)) = &vit.pretraining else { return Ok(None) };
        let mut graph = config.architecture.build_pretraining(1, Masks::Given)?;
        graph.retain_outputs(|name| name == "prediction_all");
        Ok(Some(Reconstructions {
            runner: Runner::new(&graph, weights, device)?,
            vit: vit.clone(),
            mae: mae.clone(),
            mean: config.preprocessing.mean.clone(),
            std: config.preprocessing.std.clone(),
            examples: Vec::new(),
            errors: Vec::new(),
        }))
    }

    /// Reconstructs an image that figures show, with a mask of its own.
    pub fn add(&mut self, sample: &Sample) -> Result<(), InsightError> {
        if !sample.shown {
            return Ok(());
        }
        let patches: usize = self.vit.grid().iter().product();
        let kept = self.mae.kept(patches);
        let (mut words, mut order) = (vec![0; patches], vec![0; patches]);
        let partition = RandomPartition { samples: 1, tokens: patches, chosen: kept, stream: 0 };
        partition.order(Seed::new(7, self.examples.len() as u64), 0, &mut words, &mut order);
        self.runner.run_masked(sample.input, &order)?;
        let prediction = self.runner.read("prediction_all")?;
        let mut hidden = vec![true; patches];
        order[..kept].iter().for_each(|&patch| hidden[patch as usize] = false);
        let (reconstructed, error) = self.reconstructed(sample.input, &prediction, &hidden);
        if let (Some(image), Some(reconstructed)) = (self.image(sample.input), self.image(&reconstructed)) {
            self.examples.push([image.clone(), self.greyed(image, &hidden), reconstructed]);
            self.errors.push(error);
        }
        Ok(())
    }

    /// The input with predicted patches in place of hidden ones, and the mean squared error of those.
    fn reconstructed(&self, input: &[f32], prediction: &[f32], hidden: &[bool]) -> (Vec<f32>, f64) {
        let ([height, width], [high, wide]) = (self.vit.image_size, self.vit.patch_size);
        let pixels = high * wide * 3;
        let mut reconstructed = input.to_vec();
        let (mut squares, mut count) = (0.0, 0);
        for (patch, _) in hidden.iter().enumerate().filter(|(_, hidden)| **hidden) {
            let (row, column) = (patch / self.vit.grid()[1] * high, patch % self.vit.grid()[1] * wide);
            // The place in the input of a patch's element, in the order row, column, channel.
            let place = |i: usize| (i % 3 * height + row + i / 3 / wide) * width + column + i / 3 % wide;
            let predicted = &prediction[patch * pixels..][..pixels];
            let (mean, deviation) = match self.mae.normalised {
                true => statistics((0..pixels).map(|i| input[place(i)])),
                false => (0.0, 1.0),
            };
            for (i, &value) in predicted.iter().enumerate() {
                let value = value * deviation + mean;
                squares += f64::from(value - input[place(i)]).powi(2);
                count += 1;
                reconstructed[place(i)] = value;
            }
        }
        (reconstructed, squares / f64::from(count.max(1)))
    }

    /// A normalised input as an image.
    fn image(&self, input: &[f32]) -> Option<Image> {
        let [height, width] = self.vit.image_size;
        let byte = |i: usize| {
            let (pixel, channel) = (i / 3, i % 3);
            let value = input[channel * height * width + pixel] * self.std[channel] + self.mean[channel];
            (value * 255.0).round().clamp(0.0, 255.0) as u8
        };
        Image::from_rgb(width, height, (0..height * width * 3).map(byte).collect()).ok()
    }

    fn greyed(&self, mut image: Image, hidden: &[bool]) -> Image {
        let ([high, wide], columns) = (self.vit.patch_size, self.vit.grid()[1]);
        let width = image.width();
        for (pixel, colour) in image.pixels_mut().chunks_exact_mut(3).enumerate() {
            if hidden[pixel / width / high * columns + pixel % width / wide] {
                colour.fill(HIDDEN);
            }
        }
        image
    }

    /// The figure, if images were given.
    pub fn figure(&self) -> Option<Figure> {
        if self.examples.is_empty() {
            return None;
        }
        let title = "Reconstruction of masked patches";
        let step = TILE + 8.0;
        let (columns, rows) = (COLUMNS.len() as f32, self.examples.len() as f32);
        let mut scene = Scene::new(2.0 * LEFT + columns * step, 78.0 + rows * step + 12.0);
        scene.text(Text::new(title, [LEFT, 28.0], 16.0).bold());
        for (column, name) in COLUMNS.into_iter().enumerate() {
            let at = [LEFT + column as f32 * step + TILE / 2.0, 62.0];
            scene.text(Text::new(name, at, 11.0).colour(MUTED).anchor(Anchor::Middle).within(TILE));
        }
        for (row, images) in self.examples.iter().enumerate() {
            for (column, image) in images.iter().enumerate() {
                let (x, y) = (LEFT + column as f32 * step, 78.0 + row as f32 * step);
                let area = Area { x, y, width: TILE, height: TILE };
                let side = 2 * TILE as usize;
                scene.image(area, vit_data::resize(image, side, side, vit_data::Filter::Nearest));
                scene.frame(area, FRAME);
            }
        }
        let share = 100.0 * f64::from(self.mae.mask);
        let scaled = if self.mae.normalised {
            " The decoder predicts normalised patches; mean and deviation are those of the image."
        } else {
            ""
        };
        Some(Figure {
            name: "reconstruction",
            title: title.into(),
            text: format!(
                "{share:.0} % of the patches are hidden from the encoder, and the decoder predicts their pixels (He et al., \
                 2022). Patches that the encoder sees are shown as they are.{scaled}"
            ),
            scene,
            data: vec![FigureData::Json(json!({ "squared_error": self.errors }))],
        })
    }
}

/// Mean and standard deviation of a patch, the latter as in the loss.
fn statistics(values: impl Iterator<Item = f32> + Clone) -> (f32, f32) {
    let count = values.clone().count().max(2) as f64;
    let mean = values.clone().map(f64::from).sum::<f64>() / count;
    let variance = values.map(|v| (f64::from(v) - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (mean as f32, (variance + 1e-6).sqrt() as f32)
}
