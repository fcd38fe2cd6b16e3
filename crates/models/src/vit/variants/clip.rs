//! Image encoders of CLIP (Radford et al., 2021): OpenAI's, OpenCLIP's, MetaCLIP's, Apple's and TinyCLIP's.

use vit_graph::ops::Activation;

use super::published::*;
use crate::variant::Variant;
use crate::vit::Vit;
use vit_preprocess::Preprocess;

pub(super) fn variants() -> Vec<Variant> {
    let clip = |vit: Vit| Vit { pre_norm: true, norm_epsilon: 1e-5, ..vit };
    let quick = |vit: Vit| Vit { activation: Activation::QuickGelu, ..clip(vit) };
    let mut all = published(&CLIP, "CLIP", Preprocess::clip(), clip);
    all.extend(published(&HALF_CLIP, "CLIP", Preprocess::inception(), clip));
    all.extend(published(&QUICK_CLIP, "CLIP", Preprocess::clip(), quick));
    all
}

const CLIP: [Row; 17] = [
    row("vit_base_patch16_clip_224", BASE, 16, 224, 1000, center(0.95)),
    row("vit_base_patch16_clip_384", BASE, 16, 384, 1000, squash(1.0)),
    row("vit_base_patch16_plus_clip_240", BASE_PLUS, 16, 240, 640, center(1.0)),
    row("vit_base_patch32_clip_224", BASE, 32, 224, 1000, center(0.9)),
    row("vit_base_patch32_clip_256", BASE, 32, 256, 512, center(1.0)),
    row("vit_base_patch32_clip_384", BASE, 32, 384, 1000, center(1.0)),
    row("vit_base_patch32_clip_448", BASE, 32, 448, 1000, center(1.0)),
    row("vit_betwixt_patch32_clip_224", BETWIXT, 32, 224, 512, center(0.9)),
    row("vit_giant_patch14_clip_224", GIANT, 14, 224, 1024, center(1.0)),
    row("vit_gigantic_patch14_clip_224", GIGANTIC, 14, 224, 1280, center(1.0)),
    row("vit_gigantic_patch14_clip_378", GIGANTIC, 14, 378, 1280, squash(1.0)),
    row("vit_huge_patch14_clip_224", HUGE, 14, 224, 1000, center(1.0)),
    row("vit_huge_patch14_clip_336", HUGE, 14, 336, 1000, squash(1.0)),
    row("vit_huge_patch14_clip_378", HUGE, 14, 378, 1024, center(1.0)),
    row("vit_medium_patch16_clip_224", MEDIUM, 16, 224, 512, center(0.9)),
    row("vit_medium_patch32_clip_224", MEDIUM, 32, 224, 512, center(0.9)),
    row("vit_xsmall_patch16_clip_224", Size(256, 10, 4, 1024), 16, 224, 512, center(0.9)),
];

/// Models whose latest weights take values in -1..1.
const HALF_CLIP: [Row; 2] = [
    row("vit_large_patch14_clip_224", LARGE, 14, 224, 1000, center(1.0)),
    row("vit_large_patch14_clip_336", LARGE, 14, 336, 1000, squash(1.0)),
];

/// Models with the GELU of OpenAI's code.
const QUICK_CLIP: [Row; 7] = [
    row("vit_base_patch16_clip_quickgelu_224", BASE, 16, 224, 512, center(1.0)),
    row("vit_base_patch32_clip_quickgelu_224", BASE, 32, 224, 512, center(0.9)),
    row("vit_gigantic_patch14_clip_quickgelu_224", GIGANTIC, 14, 224, 1280, center(1.0)),
    row("vit_huge_patch14_clip_quickgelu_224", HUGE, 14, 224, 1024, center(1.0)),
    row("vit_huge_patch14_clip_quickgelu_378", HUGE, 14, 378, 1024, center(1.0)),
    row("vit_large_patch14_clip_quickgelu_224", LARGE, 14, 224, 768, center(1.0)),
    row("vit_large_patch14_clip_quickgelu_336", LARGE, 14, 336, 768, center(1.0)),
];
