//! Masked patch prediction, the self-supervision of the ViT paper (section 4.6, appendix B.1.2).

use serde_json::{Map, Value, json};
use vit_graph::ops::ColourClass;
use vit_graph::{Init, Tensor};

use super::super::Vit;
use super::MaskSource;
use crate::config::Arguments;
use crate::config::timm::{object, short};
use crate::layers::{Forward, linear};

/// What is predicted of a corrupted patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PatchTarget {
    /// Its mean colour with 3 bits per channel: one of 512 classes.
    #[default]
    MeanColour,
    /// The patch downsized to 4x4 pixels with such colours: 16 predictions in parallel.
    Downsized,
    /// All its pixels, by regression.
    Pixels,
}

/// Rows and columns of a downsized patch.
const DOWNSIZED: usize = 4;

impl PatchTarget {
    const NAMES: [(&'static str, PatchTarget); 3] = [
        ("mean-colour", PatchTarget::MeanColour),
        ("downsized", PatchTarget::Downsized),
        ("pixels", PatchTarget::Pixels),
    ];

    /// Classes of a colour, with this many channels.
    pub fn colours(channels: usize) -> usize {
        ColourClass::LEVELS.pow(channels as u32)
    }

    /// The outputs for one patch.
    pub fn outputs(self, vit: &Vit) -> usize {
        match self {
            PatchTarget::MeanColour => Self::colours(vit.channels),
            PatchTarget::Downsized => DOWNSIZED * DOWNSIZED * Self::colours(vit.channels),
            PatchTarget::Pixels => vit.patch_size[0] * vit.patch_size[1] * vit.channels,
        }
    }
}

/// The share of patches that are corrupted and what is predicted of them.
#[derive(Debug, Clone, PartialEq)]
pub struct MaskedPatches {
    /// The share of patches that are corrupted.
    pub mask: f32,
    /// What is predicted.
    pub target: PatchTarget,
}

impl Default for MaskedPatches {
    fn default() -> Self {
        MaskedPatches { mask: 0.5, target: PatchTarget::MeanColour }
    }
}

impl MaskedPatches {
    /// How many of these patches are corrupted.
    pub fn corrupted(&self, patches: usize) -> usize {
        ((patches as f64 * f64::from(self.mask)) as usize).clamp(1, patches.max(1))
    }

    pub(super) fn written(&self) -> Map<String, Value> {
        let name = PatchTarget::NAMES.iter().find(|(_, target)| *target == self.target).map(|(name, _)| *name);
        object(json!({ "mask": short(self.mask), "target": name }))
    }

    pub(super) fn read(args: &Arguments) -> Result<Self, String> {
        let usual = MaskedPatches::default();
        let target = match args.text("target")? {
            None => usual.target,
            Some(name) => {
                let found = PatchTarget::NAMES.iter().find(|(known, _)| *known == name);
                found.ok_or_else(|| format!("`target` should be mean-colour, downsized or pixels, not {name}"))?.1
            }
        };
        Ok(MaskedPatches { mask: args.rate("mask")?.unwrap_or(usual.mask), target })
    }

    pub(super) fn contradiction(&self, vit: &Vit) -> Option<String> {
        let [high, wide] = vit.patch_size;
        if self.target == PatchTarget::Downsized && [high, wide].iter().any(|side| !side.is_multiple_of(DOWNSIZED)) {
            return Some(format!("patches of {high}x{wide} pixels cannot be downsized to 4x4"));
        }
        if self.target != PatchTarget::Pixels && vit.channels > 3 {
            return Some(format!("colours of {} channels have too many classes", vit.channels));
        }
        (vit.classes > 0).then(|| "a model in masked patch prediction has no classes".into())
    }
}

impl Forward<'_, Vit> {
    /// The loss is computed on the corrupted patches, the first ones of `order`.
    pub(super) fn masked_patches(&self, image: &Tensor, masked: &MaskedPatches, masks: &MaskSource) {
        let vit = self.net;
        let patches = self.patches(image);
        let [batch, count] = [0, 1].map(|axis| patches.extent(axis));
        let corrupted = masked.corrupted(count);
        let order = masks.order(&patches, corrupted);
        let sources = masks.sources(&order, corrupted);
        order.output("order");
        // The mask token is the patch after the last.
        let token = patches.parameter("mask_token", [1, 1, vit.dim], Init::Normal { std: 0.02 });
        let choice = Tensor::concat(&[&patches, &token.broadcast([batch, 1, vit.dim])], 1);
        let x = self.with_positions(choice.gather_tokens(&sources, 0..count));
        let x = self.normalised_tokens(image, x);
        let prefix = vit.prefix_tokens();
        let x = if prefix == 0 { x } else { x.slice(1, prefix, count) };
        let predict = |x: &Tensor| linear(x, masked.target.outputs(vit), true, "head");
        predict(&x.gather_tokens(&order, 0..corrupted)).output("prediction");
        predict(&x).output("prediction_all");
    }
}
