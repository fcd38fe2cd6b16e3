//! AIMv2 (Fini et al., 2024): RMS norm, SwiGLU, no biases in the blocks.

use vit_graph::ops::Activation;

use super::published::*;
use crate::layers::{Gate, NormKind};
use crate::variant::Variant;
use crate::vit::{Pooling, Qkv, QkvBias, Vit};
use vit_preprocess::Preprocess;

pub(super) fn variants() -> Vec<Variant> {
    published(&AIMV2, "AIMv2", Preprocess::clip(), |vit| Vit {
        class_token: false,
        pooling: Pooling::Mean,
        patch_norm: true,
        norm: NormKind::Rms,
        norm_epsilon: 1e-5,
        gate: Gate::Separate,
        activation: Activation::Silu,
        qkv: Qkv::packed(QkvBias::None),
        projection_bias: false,
        ..vit
    })
}

const AIMV2: [Row; 12] = [
    row("aimv2_large_patch14_224", Size(1024, 24, 8, 2816), 14, 224, 0, center(1.0)),
    row("aimv2_large_patch14_336", Size(1024, 24, 8, 2816), 14, 336, 0, center(1.0)),
    row("aimv2_large_patch14_448", Size(1024, 24, 8, 2816), 14, 448, 0, center(1.0)),
    row("aimv2_huge_patch14_224", Size(1536, 24, 12, 4096), 14, 224, 0, center(1.0)),
    row("aimv2_huge_patch14_336", Size(1536, 24, 12, 4096), 14, 336, 0, center(1.0)),
    row("aimv2_huge_patch14_448", Size(1536, 24, 12, 4096), 14, 448, 0, center(1.0)),
    row("aimv2_1b_patch14_224", Size(2048, 24, 16, 5632), 14, 224, 0, center(1.0)),
    row("aimv2_1b_patch14_336", Size(2048, 24, 16, 5632), 14, 336, 0, center(1.0)),
    row("aimv2_1b_patch14_448", Size(2048, 24, 16, 5632), 14, 448, 0, center(1.0)),
    row("aimv2_3b_patch14_224", Size(3072, 24, 24, 8192), 14, 224, 0, center(1.0)),
    row("aimv2_3b_patch14_336", Size(3072, 24, 24, 8192), 14, 336, 0, center(1.0)),
    row("aimv2_3b_patch14_448", Size(3072, 24, 24, 8192), 14, 448, 0, center(1.0)),
];
