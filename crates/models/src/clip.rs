//! Image-text models: CLIP (Radford et al., 2021), OpenCLIP and SigLIP (Zhai et al., 2023).
//!
//! Two towers, of which the image's is a [`Vit`] and the text's has the same blocks, give vectors of length 1 in one space.
//! Their cosines, scaled, are the logits of all pairs. The image tower's parameters have timm's names, those of the text
//! tower begin with `text.`.

mod classifier;
mod network;
pub(crate) mod open_clip;
mod text;
mod variants;

pub use text::{TextPooling, TextTower};
pub use variants::variants;

use vit_graph::ops::{Constant, MatMul};
use vit_graph::{DType, Graph, GraphError, Init, Tensor};

use crate::architecture::Network;
use crate::layers::{Building, Forward, Mode};
use crate::vit::Vit;

/// The parameter whose exponential scales cosines to logits.
pub const LOGIT_SCALE: &str = "logit_scale";

/// One image-text model.
#[derive(Debug, Clone, PartialEq)]
pub struct Clip {
    /// The image tower; it has an [`embedding`](Vit::embedding) and no classes.
    pub image: Vit,
    /// The text tower.
    pub text: TextTower,
    /// How an image and a text are judged to be a pair.
    pub pairing: Pairing,
}

/// How an image and a text are judged to be a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// By a softmax over all texts of an image, and over all images of a text (CLIP).
    Softmax,
    /// By a sigmoid for each pair, with a bias that is learned (SigLIP).
    Sigmoid,
}

/// The numbers of images and texts of a graph, and whether texts have a mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PairExtents {
    /// Images.
    pub images: usize,
    /// Texts.
    pub texts: usize,
    /// Whether there is an input `attention_mask f32[texts, context]`, in which 0 hides a token from all others.
    pub masked: bool,
}

/// The inputs of the text tower.
struct TextInputs {
    /// `ids i32[texts, context]`.
    ids: Tensor,
    /// `ends i32[texts]`: the pooled row of each text, as [`TextTower::ends`] gives it.
    ends: Option<Tensor>,
    /// `attention_mask f32[texts, context]`.
    mask: Option<Tensor>,
}

impl Clip {
    /// The graph for any numbers of images and texts. Inputs: `image`, `ids i32[texts, context]`, and `ends i32[texts]` where
    /// the pooled token depends on the text. Outputs: `tokens`, `features` and `image_embeds` of the images, `text_tokens`,
    /// `text_features` and `text_embeds` of the texts, and `logits_per_image [images, texts]`.
    pub fn build_pairs(&self, extents: PairExtents, mode: Mode) -> Result<Graph, GraphError> {
        let Vit { channels, image_size, .. } = self.image;
        let (image, building) = Building::start(extents.images, channels, image_size, mode, &self.rates());
        match self.contradiction() {
            Some(reason) => drop(image.refuse(self.kind(), reason)),
            None => self.run(&image, extents, &building),
        }
        image.finish()
    }

    fn run(&self, image: &Tensor, extents: PairExtents, building: &Building) {
        let (image_embeds, text_embeds) = self.embed(image, extents, building);
        self.logits(&image_embeds, &text_embeds).output("logits_per_image");
    }

    /// The embeddings of images and texts.
    fn embed(&self, image: &Tensor, extents: PairExtents, building: &Building) -> (Tensor, Tensor) {
        let PairExtents { texts, masked, .. } = extents;
        let inputs = TextInputs {
            ids: image.another_input("ids", DType::I32, [texts, self.text.context]),
            ends: self.text.pooling.reads_ids().then(|| image.another_input("ends", DType::I32, [texts])),
            mask: masked.then(|| image.another_input("attention_mask", DType::F32, [texts, self.text.context])),
        };
        let image_embeds = Forward { net: &self.image, building }.run(image);
        let text_embeds = Forward { net: &self.text, building }.run(&inputs);
        (image_embeds, text_embeds)
    }

    /// The logits `[images, texts]` of all pairs: cosines, scaled; figure 3 of the CLIP paper, algorithm 1 of the SigLIP
    /// paper.
    pub fn logits(&self, image_embeds: &Tensor, text_embeds: &Tensor) -> Tensor {
        let (scale, bias) = self.scale_and_bias(image_embeds);
        let cosines = image_embeds.apply(MatMul { transpose_a: false, transpose_b: true }, &[text_embeds]);
        match bias {
            None => cosines * scale,
            Some(bias) => cosines * scale + bias,
        }
    }

    fn scale_and_bias(&self, of: &Tensor) -> (Tensor, Option<Tensor>) {
        let (temperature, bias) = match self.pairing {
            Pairing::Softmax => (1.0 / 0.07, None),
            Pairing::Sigmoid => (10.0, Some(-10.0)),
        };
        let scale = of.parameter(LOGIT_SCALE, [1], Init::Constant(f32::ln(temperature))).exp();
        (scale, bias.map(|bias| of.parameter("logit_bias", [1], Init::Constant(bias))))
    }

    /// The largest `logit_scale` in training: CLIP's is clipped, so that no logit is scaled by more than 100 (section 2.5 of
    /// the paper).
    pub fn max_logit_scale(&self) -> Option<f32> {
        (self.pairing == Pairing::Softmax).then(|| f32::ln(100.0))
    }

    /// The graph of pairs whose logits are compared on the host. Output: `factors [pairs, 2, w]`; the logit of an image and a
    /// text is the inner product of the image's row 0 and the text's row 1.
    pub fn build_factors(&self, pairs: usize) -> Result<Graph, GraphError> {
        let Vit { channels, image_size, .. } = self.image;
        let (image, building) = Building::start(pairs, channels, image_size, Mode::Inference, &self.rates());
        match self.contradiction() {
            Some(reason) => drop(image.refuse(self.kind(), reason)),
            None => {
                let extents = PairExtents { images: pairs, texts: pairs, masked: false };
                let (image_embeds, text_embeds) = self.embed(&image, extents, &building);
                let (scale, bias) = self.scale_and_bias(&image);
                let (mut left, mut right) = (image_embeds * scale, text_embeds);
                if let Some(bias) = bias {
                    let ones = image.constant(Constant::filled([pairs, 1], 1.0));
                    left = Tensor::concat(&[&left, &(ones.clone() * bias)], 1);
                    right = Tensor::concat(&[&right, &ones], 1);
                }
                let width = left.extent(1);
                Tensor::concat(&[&left, &right], 1).reshape([pairs, 2, width]).output("factors");
            }
        }
        image.finish()
    }
}
