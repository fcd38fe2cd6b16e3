//! The named Vision Transformers: the paper's sizes at their patch sizes here, the models that followed in one file per
//! family.

mod aimv2;
mod baselines;
mod clip;
mod deit;
mod dinov2;
mod eva;
mod hybrid;
mod others;
mod published;
mod siglip;

use super::{Pooling, Vit, beit, relpos};
use crate::layers::Stem;
use crate::resnetv2::{ResNetV2, StemPooling};
use crate::variant::Variant;
use vit_preprocess::Preprocess;

/// Widths and depths that belong to a name.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub struct VitSize {
    /// As in the paper: `B`.
    pub paper: &'static str,
    /// As in timm: `base`.
    pub timm: &'static str,
    pub dim: usize,
    pub depth: usize,
    pub heads: usize,
    pub mlp_dim: usize,
}

const fn size(
    paper: &'static str,
    timm: &'static str,
    dim: usize,
    depth: usize,
    heads: usize,
    mlp_dim: usize,
) -> VitSize {
    VitSize { paper, timm, dim, depth, heads, mlp_dim }
}

/// Table 1 of the paper, and of "How to train your ViT" and "Scaling Vision Transformers".
/// The three smallest are for small images: two of this project, which train on a CPU, and the one of "Escaping
/// the Big Data Paradigm with Compact Transformers".
pub const PAPER_SIZES: [VitSize; 11] = [
    size("P", "pico", 64, 6, 2, 128),
    size("N", "nano", 96, 6, 3, 192),
    size("Lite", "lite", 256, 7, 4, 512),
    size("Ti", "tiny", 192, 12, 3, 768),
    size("S", "small", 384, 12, 6, 1536),
    size("M", "medium", 512, 12, 8, 2048),
    size("B", "base", 768, 12, 12, 3072),
    size("L", "large", 1024, 24, 16, 4096),
    size("H", "huge", 1280, 32, 16, 5120),
    size("g", "giant", 1408, 40, 16, 6144),
    size("G", "gigantic", 1664, 48, 16, 8192),
];

/// Patch and image sizes that were published for each size.
const PUBLISHED: [(&str, &[(usize, usize)]); 8] = [
    ("tiny", &[(16, 224), (16, 384)]),
    ("small", &[(32, 224), (32, 384), (16, 224), (16, 384), (8, 224)]),
    ("medium", &[(32, 224), (16, 224)]),
    ("base", &[(32, 224), (32, 384), (16, 224), (16, 384), (8, 224)]),
    ("large", &[(32, 224), (32, 384), (16, 224), (16, 384), (14, 224)]),
    ("huge", &[(14, 224)]),
    ("giant", &[(14, 224)]),
    ("gigantic", &[(14, 224)]),
];

impl VitSize {
    pub(super) fn vit(&self, patch: usize, image: usize) -> Vit {
        Vit {
            image_size: [image, image],
            patch_size: [patch, patch],
            dim: self.dim,
            depth: self.depth,
            heads: self.heads,
            mlp_dim: self.mlp_dim,
            ..Vit::default()
        }
    }

    fn timm_name(&self, patch: usize, image: usize) -> String {
        format!("vit_{}_patch{patch}_{image}", self.timm)
    }

    fn paper_name(&self, patch: usize, image: usize) -> String {
        let resolution = if image == 224 { String::new() } else { format!("@{image}") };
        format!("{}/{patch}{resolution}", self.paper)
    }
}

pub(super) fn by_timm(name: &str) -> Option<&'static VitSize> {
    PAPER_SIZES.iter().find(|s| s.timm == name)
}

/// The published variants, smallest first.
pub(super) fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    for (name, published) in PUBLISHED {
        let size = by_timm(name).expect("every published size is in the table");
        all.extend(published.iter().map(|&(patch, image)| match (name, patch) {
            // Its only published weights are DINO's.
            ("small", 8) => Variant {
                preprocessing: Preprocess { image_size: [image, image], ..Preprocess::imagenet() },
                ..plain(size, patch, image)
            },
            _ => plain(size, patch, image),
        }));
    }
    for family in [
        hybrid::variants,
        deit::variants,
        others::variants,
        baselines::variants,
        clip::variants,
        siglip::variants,
        dinov2::variants,
        aimv2::variants,
        beit::variants,
        relpos::variants,
        eva::variants,
    ] {
        all.extend(family());
    }
    all
}

/// Those of timm's class `Eva`.
pub(super) fn eva() -> Vec<Variant> {
    eva::variants()
}

/// The variant of a name that was not published: any patch and image size in timm's or the paper's form
/// (`vit_base_patch4_32`, `B/4@32`; `vit_base_patch4_gap_32` for the mean of the patches instead of a class token), of
/// DeiT (`deit_tiny_distilled_patch4_32`), or of a hybrid for small images (`vit_tiny_r20_s4_32`, `R20+Ti/4@32`).
pub(super) fn variant(name: &str) -> Option<Variant> {
    [from_timm_form, from_deit_form, from_hybrid_form, from_paper_form].iter().find_map(|form| form(name))
}

fn from_timm_form(name: &str) -> Option<Variant> {
    let (size, rest) = name.strip_prefix("vit_")?.split_once("_patch")?;
    let (patch, rest) = rest.split_once('_')?;
    let (size, patch) = (by_timm(size)?, positive(patch)?);
    let Some(image) = rest.strip_prefix("gap_") else { return Some(plain(size, patch, positive(rest)?)) };
    let image = positive(image)?;
    let vit = Vit { class_token: false, pooling: Pooling::Mean, ..size.vit(patch, image) };
    Some(Variant { name: name.into(), paper_name: None, architecture: vit.into(), ..plain(size, patch, image) })
}

fn from_deit_form(name: &str) -> Option<Variant> {
    let (size, rest) = name.strip_prefix("deit_")?.split_once("_patch")?;
    let (patch, image) = rest.split_once('_')?;
    let (size, distilled) = size.strip_suffix("_distilled").map_or((size, false), |size| (size, true));
    let (size, patch, image) = (by_timm(size)?, positive(patch)?, positive(image)?);
    let vit = Vit { distillation_token: distilled, distillation_head: distilled, ..size.vit(patch, image) };
    Some(imagenet(name, "DeiT", vit, if image == 224 { 0.9 } else { 1.0 }))
}

/// A small BiT before the encoder: a stem of stride 1 and three stages of two blocks, so that a token is 4x4 pixels.
fn from_hybrid_form(name: &str) -> Option<Variant> {
    let timm = || {
        let (size, image) = name.strip_prefix("vit_")?.split_once("_r20_s4_")?;
        Some((by_timm(size)?, image))
    };
    let paper = || {
        let (size, image) = name.strip_prefix("R20+")?.split_once("/4@")?;
        Some((PAPER_SIZES.iter().find(|s| s.paper == size)?, image))
    };
    let (size, image) = timm().or_else(paper)?;
    let image = positive(image)?;
    let stages = ResNetV2::before_tokens(&[2, 2, 2]);
    let stages = ResNetV2 { stem: Stem::Small, stem_pooling: StemPooling::Symmetric, ..stages };
    let vit = Vit { backbone: Some(Box::new(stages.into())), ..size.vit(1, image) };
    let variant = inception(&format!("vit_{}_r20_s4_{image}", size.timm), "Hybrid ViT", vit, 1.0);
    Some(Variant { paper_name: Some(format!("R20+{}/4@{image}", size.paper)), ..variant })
}

fn from_paper_form(name: &str) -> Option<Variant> {
    let name = name.strip_prefix("ViT-").unwrap_or(name);
    let (size, rest) = name.split_once('/')?;
    let (patch, image) = rest.split_once('@').unwrap_or((rest, "224"));
    let size = PAPER_SIZES.iter().find(|s| s.paper == size)?;
    Some(plain(size, positive(patch)?, positive(image)?))
}

fn positive(number: &str) -> Option<usize> {
    number.parse().ok().filter(|&n| n > 0)
}

/// A model of the paper, with the preprocessing of the published weights.
fn plain(size: &VitSize, patch: usize, image: usize) -> Variant {
    Variant {
        name: size.timm_name(patch, image),
        paper_name: Some(size.paper_name(patch, image)),
        family: "ViT",
        architecture: size.vit(patch, image).into(),
        preprocessing: Preprocess {
            image_size: [image, image],
            // Published weights at 224 pixels were evaluated on a central crop.
            crop_pct: if image == 224 { 0.9 } else { 1.0 },
            ..Preprocess::inception()
        },
    }
}

pub(super) fn imagenet(name: &str, family: &'static str, vit: Vit, crop_pct: f64) -> Variant {
    let preprocessing = Preprocess { image_size: vit.image_size, crop_pct, ..Preprocess::imagenet() };
    Variant { name: name.into(), paper_name: None, family, architecture: vit.into(), preprocessing }
}

pub(super) fn inception(name: &str, family: &'static str, vit: Vit, crop_pct: f64) -> Variant {
    let preprocessing = Preprocess { image_size: vit.image_size, crop_pct, ..Preprocess::inception() };
    Variant { name: name.into(), paper_name: None, family, architecture: vit.into(), preprocessing }
}
