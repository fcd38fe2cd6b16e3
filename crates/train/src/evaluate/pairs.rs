//! The evaluation of an image-text model on pairs: their loss, and how often an image finds its text and a text its image.

use std::collections::HashMap;
use std::sync::OnceLock;

use serde::Serialize;
use vit_graph::GraphError;
use vit_graph::device::{Elements, Executable};
use vit_models::clip::Pairing;

use crate::pairs::{Captions, Texts};

/// The output of a model that is evaluated on pairs.
pub(crate) const FACTORS: &str = "factors";

/// What an image-text model is evaluated on besides images.
pub(crate) struct EvaluatedPairs {
    pub captions: Captions,
    pub pairing: Pairing,
    /// Pairs of a batch in training.
    pub batch: usize,
}

impl EvaluatedPairs {
    /// Of a model whose factors have this width.
    pub fn evaluation(&self, width: usize) -> PairEvaluation {
        PairEvaluation::new(self.pairing, self.batch, width)
    }

    /// Writes the texts of some samples; the rest of the batch repeats the first.
    pub fn write_texts(
        &self,
        executable: &mut dyn Executable,
        samples: &[usize],
        batch: usize,
    ) -> Result<(), GraphError> {
        let mut whole = samples.to_vec();
        whole.resize(batch, samples[0]);
        let Texts { ids, ends } = self.captions.texts(&whole);
        executable.write("ids", Elements::I32(&ids))?;
        ends.map_or(Ok(()), |ends| executable.write("ends", Elements::I32(&ends)))
    }
}

/// The most pairs that are measured, the first ones: as many as COCO's test images, on which retrieval is usually reported.
const MAX_PAIRS: usize = 5000;

/// The metrics of pairs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PairMetrics {
    /// The mean loss of batches as large as in training, whose pairs are from the whole of the dataset.
    pub loss: f64,
    /// The share of images whose text is the best of all distinct texts.
    pub image_to_text_r1: f64,
    /// The same among the best five.
    pub image_to_text_r5: f64,
    /// The share of texts of which an image is the best of all images.
    pub text_to_image_r1: f64,
    /// The same among the best five.
    pub text_to_image_r5: f64,
    /// Pairs that were measured.
    pub measured: usize,
    /// Pairs.
    pub samples: usize,
}

impl PairMetrics {
    /// The mean of both directions' R@1, which decides which model is best.
    pub fn r1(&self) -> f64 {
        0.5 * (self.image_to_text_r1 + self.text_to_image_r1)
    }
}

/// Pairs as they are evaluated one batch after the other.
#[derive(Debug, Clone, PartialEq)]
pub struct PairEvaluation {
    pairing: Pairing,
    /// Pairs of a batch in training.
    batch: usize,
    /// Values of a factor.
    width: usize,
    /// Those of the pairs that are measured.
    measured: Factors,
    samples: usize,
    metrics: OnceLock<PairMetrics>,
}

/// Rows of two factors, of the image and of the text, and the captions' numbers.
#[derive(Debug, Clone, Default, PartialEq)]
struct Factors {
    rows: Vec<f32>,
    captions: Vec<u32>,
}

impl Factors {
    /// The logit of an image and a text.
    fn logit(&self, image: usize, text: usize, width: usize) -> f64 {
        let left = &self.rows[2 * image * width..][..width];
        let right = &self.rows[(2 * text + 1) * width..][..width];
        // Partial sums, so that this is vectorised.
        let mut sums = [0f32; 16];
        let (a, a_rest) = left.as_chunks::<16>();
        let (b, b_rest) = right.as_chunks::<16>();
        for (a, b) in a.iter().zip(b) {
            (0..16).for_each(|i| sums[i] += a[i] * b[i]);
        }
        let rest = a_rest.iter().zip(b_rest).map(|(a, b)| f64::from(a * b)).sum::<f64>();
        sums.iter().map(|&sum| f64::from(sum)).sum::<f64>() + rest
    }
}

impl PairEvaluation {
    /// Of a model whose factors have this width, trained with such batches.
    fn new(pairing: Pairing, batch: usize, width: usize) -> Self {
        let (batch, measured) = (batch.max(1), Factors::default());
        PairEvaluation { pairing, batch, width, measured, samples: 0, metrics: OnceLock::new() }
    }

    /// Adds pairs: a row of both factors for each, and the numbers of their captions.
    pub(crate) fn add(&mut self, rows: &[f32], captions: &[u32]) {
        self.metrics = OnceLock::new();
        for (row, &caption) in rows.chunks_exact(2 * self.width).zip(captions) {
            if self.samples < MAX_PAIRS {
                self.measured.rows.extend_from_slice(row);
                self.measured.captions.push(caption);
            }
            self.samples += 1;
        }
    }

    /// The metrics of all pairs so far.
    pub fn metrics(&self) -> &PairMetrics {
        self.metrics.get_or_init(|| {
            let [image_to_text, text_to_image] = self.ranks();
            let within =
                |ranks: &[usize], k: usize| ranks.iter().filter(|&&rank| rank < k).count() as f64 / ranks.len() as f64;
            PairMetrics {
                loss: self.loss(),
                image_to_text_r1: within(&image_to_text, 1),
                image_to_text_r5: within(&image_to_text, 5),
                text_to_image_r1: within(&text_to_image, 1),
                text_to_image_r5: within(&text_to_image, 5),
                measured: self.measured.captions.len(),
                samples: self.samples,
            }
        })
    }

    /// The mean loss of batches. Neighbours in a dataset are often alike, so they go to different batches.
    fn loss(&self) -> f64 {
        let pairs = self.measured.captions.len();
        let batches = (pairs / self.batch).max(1);
        let of_batch = |first: usize| (first..pairs).step_by(batches).take(self.batch).collect::<Vec<usize>>();
        (0..batches).map(|first| self.loss_of(&of_batch(first))).sum::<f64>() / batches as f64
    }

    /// The loss of a batch as in training.
    fn loss_of(&self, batch: &[usize]) -> f64 {
        let pairs = batch.len();
        let logit = |at: usize| self.measured.logit(batch[at / pairs], batch[at % pairs], self.width);
        let logits: Vec<f64> = (0..pairs * pairs).map(logit).collect();
        let alike = |i: usize, j: usize| self.measured.captions[batch[i]] == self.measured.captions[batch[j]];
        let of_row = |i: usize, logit: &dyn Fn(usize) -> f64| match self.pairing {
            Pairing::Sigmoid => (0..pairs)
                .map(|j| {
                    let z = if alike(i, j) { logit(j) } else { -logit(j) };
                    // log(1 + exp(-z)) without overflow.
                    (-z).max(0.0) + (-z.abs()).exp().ln_1p()
                })
                .sum::<f64>(),
            Pairing::Softmax => {
                let max = (0..pairs).map(logit).fold(f64::NEG_INFINITY, f64::max);
                let total = max + (0..pairs).map(|j| (logit(j) - max).exp()).sum::<f64>().ln();
                let same: Vec<usize> = (0..pairs).filter(|&j| alike(i, j)).collect();
                same.iter().map(|&j| total - logit(j)).sum::<f64>() / same.len() as f64
            }
        };
        let rows = (0..pairs).map(|i| of_row(i, &|j| logits[i * pairs + j])).sum::<f64>() / pairs as f64;
        match self.pairing {
            Pairing::Sigmoid => rows,
            Pairing::Softmax => {
                let columns = (0..pairs).map(|i| of_row(i, &|j| logits[j * pairs + i])).sum::<f64>() / pairs as f64;
                0.5 * (rows + columns)
            }
        }
    }

    /// Of each image, how many other texts are at least as good as its own; of each distinct text, how many other images
    /// are at least as good as its best.
    fn ranks(&self) -> [Vec<usize>; 2] {
        let Factors { captions, .. } = &self.measured;
        // A sample for each distinct text, and the text of each sample.
        let (mut texts, mut numbers) = (Vec::new(), HashMap::new());
        let mut text_of = Vec::with_capacity(captions.len());
        for (sample, caption) in captions.iter().enumerate() {
            text_of.push(*numbers.entry(caption).or_insert_with(|| {
                texts.push(sample);
                texts.len() - 1
            }));
        }
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let share = text_of.len().div_ceil(threads).max(1);
        let (texts, text_of) = (&texts, &text_of);
        let logits: Vec<Vec<f64>> = std::thread::scope(|scope| {
            let rows = |first: usize| {
                let images = first..(first + share).min(text_of.len());
                let logit =
                    move |image: usize| texts.iter().map(move |&text| self.measured.logit(image, text, self.width));
                images.flat_map(logit).collect()
            };
            let begun: Vec<_> =
                (0..text_of.len()).step_by(share).map(|first| scope.spawn(move || rows(first))).collect();
            begun.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
        });
        let logits: Vec<f64> = logits.into_iter().flatten().collect();
        let row = |image: usize| &logits[image * texts.len()..][..texts.len()];
        let of_images = text_of.iter().enumerate().map(|(image, &text)| {
            let scores = row(image);
            let others = scores.iter().enumerate().filter(|(other, _)| *other != text);
            others.filter(|(_, score)| **score >= scores[text]).count()
        });
        let mut best = vec![f64::NEG_INFINITY; texts.len()];
        for (image, &text) in text_of.iter().enumerate() {
            best[text] = best[text].max(row(image)[text]);
        }
        let mut of_texts = vec![0; texts.len()];
        for (image, &own) in text_of.iter().enumerate() {
            for (text, score) in row(image).iter().enumerate().filter(|(text, _)| *text != own) {
                of_texts[text] += usize::from(*score >= best[text]);
            }
        }
        [of_images.collect(), of_texts]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Factors of two values: the text of sample 2 is nearer to image 3 than to image 2, samples 0 and 1 have one caption.
    #[test]
    fn retrieval_counts_other_texts_and_images() {
        let (images, texts) =
            ([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.4, 0.7]], [[1.0, 0.0], [1.0, 0.0], [0.3, 1.0], [0.4, 0.9]]);
        let rows: Vec<f32> = images.iter().zip(&texts).flat_map(|(image, text)| [*image, *text].concat()).collect();
        let mut evaluation = PairEvaluation::new(Pairing::Softmax, 2, 2);
        evaluation.add(&rows[..8], &[7, 7]);
        evaluation.add(&rows[8..], &[1, 2]);
        let [image_to_text, text_to_image] = evaluation.ranks();
        // Image 3 scores 0.79 with its own text and 0.82 with text 2; image 2 scores 1 with its own.
        assert_eq!(image_to_text, [0, 0, 0, 1]);
        // Text 2: image 2 scores 1; text 3: image 2 scores 0.9, its own image 0.79.
        assert_eq!(text_to_image, [0, 0, 1]);
        let metrics = evaluation.metrics();
        assert_eq!((metrics.image_to_text_r1, metrics.text_to_image_r1), (0.75, 2.0 / 3.0));
        assert_eq!((metrics.text_to_image_r5, metrics.samples), (1.0, 4));
        // Batches of samples 0 and 2, 1 and 3: the loss of their rows and columns.
        let loss = |own: f64, other: f64| (own.exp() + other.exp()).ln() - own;
        let of_batch = |[[a, b], [c, d]]: [[f64; 2]; 2]| 0.25 * (loss(a, b) + loss(d, c) + loss(a, c) + loss(d, b));
        let expected = 0.5 * (of_batch([[1.0, 0.3], [0.0, 1.0]]) + of_batch([[0.9, 0.45], [0.4, 0.79]]));
        assert!((metrics.loss - expected).abs() < 1e-6, "{metrics:?}");
        // One batch of all four, in which samples 0 and 1 belong to each other's text, too.
        let whole = PairEvaluation { batch: 4, ..evaluation.clone() }.loss();
        let z = |i: usize, j: usize| f64::from(images[i][0] * texts[j][0] + images[i][1] * texts[j][1]);
        let row = |i: usize, z: &dyn Fn(usize) -> f64| {
            let own = if i < 2 { 0.5 * (z(0) + z(1)) } else { z(i) };
            (0..4).map(|j| z(j).exp()).sum::<f64>().ln() - own
        };
        let expected = (0..4).map(|i| row(i, &|j| z(i, j)) + row(i, &|j| z(j, i))).sum::<f64>() / 8.0;
        assert!((whole - expected).abs() < 1e-6);
    }
}
