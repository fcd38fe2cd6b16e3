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

use vit_graph::ops::MatMul;
use vit_graph::{DType, Graph, GraphError, Init, Tensor};

use crate::architecture::Network;
use crate::layers::{Building, Forward, Mode};
use crate::vit::Vit;

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
        let PairExtents { texts, masked, .. } = extents;
        let inputs = TextInputs {
            ids: image.another_input("ids", DType::I32, [texts, self.text.context]),
            ends: self.text.pooling.reads_ids().then(|| image.another_input("ends", DType::I32, [texts])),
            mask: masked.then(|| image.another_input("attention_mask", DType::F32, [texts, self.text.context])),
        };
        let image_embeds = Forward { net: &self.image, building }.run(image);
        let text_embeds = Forward { net: &self.text, building }.run(&inputs);
        self.logits(&image_embeds, &text_embeds).output("logits_per_image");
    }

    /// Cosines of all pairs, scaled; figure 3 of the CLIP paper, algorithm 1 of the SigLIP paper.
    fn logits(&self, image_embeds: &Tensor, text_embeds: &Tensor) -> Tensor {
        let (temperature, bias) = match self.pairing {
            Pairing::Softmax => (1.0 / 0.07, None),
            Pairing::Sigmoid => (10.0, Some(-10.0)),
        };
        let scale = image_embeds.parameter("logit_scale", [1], Init::Constant(f32::ln(temperature))).exp();
        let cosines = image_embeds.apply(MatMul { transpose_a: false, transpose_b: true }, &[text_embeds]);
        match bias {
            None => cosines * scale,
            Some(bias) => cosines * scale + image_embeds.parameter("logit_bias", [1], Init::Constant(bias)),
        }
    }
}
