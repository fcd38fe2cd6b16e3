//! Pre-training without labels: the layers that only pre-training has, and its forward passes.

mod masked_autoencoder;
mod masked_patches;
mod self_distillation;

pub use masked_autoencoder::MaskedAutoencoder;
pub use masked_patches::{MaskedPatches, PatchTarget};
pub use self_distillation::SelfDistillation;

use serde_json::{Map, Value, json};
use vit_graph::{DType, Tensor};

use super::{FinalNorm, Pooling, Vit};
use crate::config::Arguments;
use crate::layers::{Building, Forward};

/// The objective that a model is pre-trained with, and the layers which only that has.
#[derive(Debug, Clone, PartialEq)]
pub enum Pretraining {
    /// The colours of corrupted patches are predicted (Dosovitskiy et al., 2021, appendix B.1.2).
    MaskedPatches(MaskedPatches),
    /// Most patches are left out, and a small decoder predicts their pixels (He et al., 2022).
    MaskedAutoencoder(MaskedAutoencoder),
    /// Crops of an image should get the same output as from a moving average of the model (Caron et al., 2021).
    SelfDistillation(SelfDistillation),
}

/// Where the random choices of pre-training come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Masks {
    /// The input `seed`.
    Random,
    /// The input `order i32 [batch, patches]`, a permutation which begins with the patches that are kept or corrupted; for
    /// masked patches also `sources i32 [batch, patches]`, the patch that each is replaced by, or the number of patches for
    /// the mask token. There is no dropout.
    Given,
}

impl Pretraining {
    /// Beginnings of the names of its parameters.
    pub fn prefixes(&self) -> &'static [&'static str] {
        match self {
            Pretraining::MaskedPatches(_) => &["mask_token", "head."],
            Pretraining::MaskedAutoencoder(_) => &["mask_token", "decoder_"],
            Pretraining::SelfDistillation(_) => &["dino_head."],
        }
    }

    /// In words.
    pub fn kind(&self) -> &'static str {
        match self {
            Pretraining::MaskedPatches(_) => "masked patch prediction",
            Pretraining::MaskedAutoencoder(_) => "a masked autoencoder",
            Pretraining::SelfDistillation(_) => "self-distillation",
        }
    }

    /// As JSON, which [`read`](Self::read) reads.
    pub(super) fn written(&self) -> Value {
        let (task, mut options) = match self {
            Pretraining::MaskedPatches(masked) => ("masked-patches", masked.written()),
            Pretraining::MaskedAutoencoder(mae) => ("mae", mae.written()),
            Pretraining::SelfDistillation(dino) => ("dino", dino.written()),
        };
        options.insert("task".into(), json!(task));
        Value::Object(options)
    }

    pub(super) fn read(options: &Map<String, Value>) -> Result<Self, String> {
        let args = Arguments::new("vit", options);
        let read = match args.text("task")? {
            Some("masked-patches") => Pretraining::MaskedPatches(MaskedPatches::read(&args)?),
            Some("mae") => Pretraining::MaskedAutoencoder(MaskedAutoencoder::read(&args)?),
            Some("dino") => Pretraining::SelfDistillation(SelfDistillation::read(&args)?),
            other => {
                return Err(format!("`task` of pre-training should be masked-patches, mae or dino, not {other:?}"));
            }
        };
        args.finish(&[])?;
        Ok(read)
    }
}

/// Why a model cannot be pre-trained without labels.
pub(super) fn contradiction(vit: &Vit) -> Option<String> {
    let pretraining = vit.pretraining.as_ref()?;
    let kind = pretraining.kind();
    if vit.backbone.is_some() || vit.distillation_token {
        return Some(format!("{kind} needs patches of the image, and no distillation token"));
    }
    let masked = !matches!(pretraining, Pretraining::SelfDistillation(_));
    if masked && (vit.pooling == Pooling::Map || vit.pre_logits.is_some()) {
        return Some(format!("{kind} does not train attention pooling or a hidden layer of the head"));
    }
    let ([height, width], [high, wide]) = (vit.image_size, vit.patch_size);
    if !height.is_multiple_of(high) || !width.is_multiple_of(wide) {
        return Some(format!("{kind} needs an image of whole patches, not {height}x{width} pixels"));
    }
    if vit.rotary.is_some() || vit.relative_bias.is_some() {
        return Some(format!("{kind} needs positions that are added to the tokens"));
    }
    match pretraining {
        Pretraining::MaskedPatches(masked) => masked.contradiction(vit),
        Pretraining::MaskedAutoencoder(mae) => mae.contradiction(vit),
        Pretraining::SelfDistillation(dino) => dino.contradiction(),
    }
}

/// The random choices of a graph.
enum MaskSource<'a> {
    Seed(&'a Tensor),
    Inputs,
}

impl MaskSource<'_> {
    /// A permutation of every sample's patches that begins with `chosen` random ones.
    fn order(&self, patches: &Tensor, chosen: usize) -> Tensor {
        let [samples, tokens] = [0, 1].map(|axis| patches.extent(axis));
        match self {
            MaskSource::Seed(seed) => seed.random_partition(samples, tokens, chosen),
            MaskSource::Inputs => patches.another_input("order", DType::I32, [samples, tokens]),
        }
    }

    /// The sources of patches whose first `corrupted` in `order` are corrupted.
    fn sources(&self, order: &Tensor, corrupted: usize) -> Tensor {
        match self {
            MaskSource::Seed(seed) => order.token_corruption(corrupted, seed),
            MaskSource::Inputs => order.another_input("sources", DType::I32, order.shape()),
        }
    }
}

impl Forward<'_, Vit> {
    /// The encoder's tokens, normalised, also where that is done after pooling otherwise.
    fn normalised_tokens(&self, image: &Tensor, x: Tensor) -> Tensor {
        let x = self.encode(image, x);
        let x = if self.net.final_norm == FinalNorm::AfterPooling { self.norm(&x, "fc_norm") } else { x };
        x.output("tokens");
        x
    }

    /// The forward pass of pre-training. Outputs: `tokens` after the encoder; `prediction [batch, chosen, outputs]` of the
    /// patches that the loss is computed on, `prediction_all [batch, patches, outputs]` of all; and `order`. Of self-distillation:
    /// `projection [batch, prototypes]`.
    pub(super) fn pretrain(&self, image: &Tensor) {
        let masks = self.building.seed().map_or(MaskSource::Inputs, MaskSource::Seed);
        match &self.net.pretraining {
            Some(Pretraining::MaskedPatches(masked)) => self.masked_patches(image, masked, &masks),
            Some(Pretraining::MaskedAutoencoder(mae)) => self.masked_autoencoder(image, mae, &masks),
            Some(Pretraining::SelfDistillation(dino)) => self.self_distillation(image, dino),
            None => drop(image.refuse("pre-training", "the model has no layers for it".into())),
        }
    }
}

/// Starts a graph of pre-training.
pub(super) fn start(vit: &Vit, batch: usize, masks: Masks) -> (Tensor, Building) {
    let mode = match masks {
        Masks::Random => crate::Mode::Training,
        Masks::Given => crate::Mode::Inference,
    };
    // The masks of self-distillation are its crops, which the data has.
    let random = !matches!(vit.pretraining, Some(Pretraining::SelfDistillation(_)));
    let rates = [vit.dropout, vit.attention_dropout, vit.drop_path, f32::from(u8::from(random))];
    Building::start(batch, vit.channels, vit.image_size, mode, &rates)
}
