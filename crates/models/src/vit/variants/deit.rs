//! DeiT (Touvron et al., 2021), with and without distillation, and DeiT III (Touvron et al., 2022).

use super::published::*;
use crate::variant::Variant;
use crate::vit::{PositionsOn, Vit};
use vit_preprocess::Preprocess;

pub(super) fn variants() -> Vec<Variant> {
    let distilled = |vit: Vit| Vit { distillation_token: true, distillation_head: true, ..vit };
    let third = |vit: Vit| Vit { positions_on: PositionsOn::Patches, layer_scale: Some(1e-6), ..vit };
    let imagenet = Preprocess::imagenet;
    [
        published(&DEIT, "DeiT", imagenet(), |vit| vit),
        published(&DISTILLED, "DeiT", imagenet(), distilled),
        published(&DEIT3, "DeiT III", imagenet(), third),
    ]
    .concat()
}

const DEIT: [Row; 4] = [
    row("deit_tiny_patch16_224", TINY, 16, 224, 1000, center(0.9)),
    row("deit_small_patch16_224", SMALL, 16, 224, 1000, center(0.9)),
    row("deit_base_patch16_224", BASE, 16, 224, 1000, center(0.9)),
    row("deit_base_patch16_384", BASE, 16, 384, 1000, center(1.0)),
];

const DISTILLED: [Row; 4] = [
    row("deit_tiny_distilled_patch16_224", TINY, 16, 224, 1000, center(0.9)),
    row("deit_small_distilled_patch16_224", SMALL, 16, 224, 1000, center(0.9)),
    row("deit_base_distilled_patch16_224", BASE, 16, 224, 1000, center(0.9)),
    row("deit_base_distilled_patch16_384", BASE, 16, 384, 1000, center(1.0)),
];

const DEIT3: [Row; 8] = [
    row("deit3_small_patch16_224", SMALL, 16, 224, 1000, center(0.9)),
    row("deit3_small_patch16_384", SMALL, 16, 384, 1000, center(1.0)),
    row("deit3_medium_patch16_224", MEDIUM, 16, 224, 1000, center(0.9)),
    row("deit3_base_patch16_224", BASE, 16, 224, 1000, center(0.9)),
    row("deit3_base_patch16_384", BASE, 16, 384, 1000, center(1.0)),
    row("deit3_large_patch16_224", LARGE, 16, 224, 1000, center(0.9)),
    row("deit3_large_patch16_384", LARGE, 16, 384, 1000, center(1.0)),
    row("deit3_huge_patch14_224", HUGE, 14, 224, 1000, center(0.9)),
];
