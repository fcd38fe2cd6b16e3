//! Image encoders of SigLIP (Zhai et al., 2023) and SigLIP 2, also without their pooling ("gap").

use vit_graph::ops::Activation;

use super::published::*;
use crate::variant::Variant;
use crate::vit::{Pooling, Vit};
use vit_preprocess::Preprocess;

pub(super) fn variants() -> Vec<Variant> {
    let map = |vit: Vit| Vit { class_token: false, pooling: Pooling::Map, ..vit };
    let gap = |vit: Vit| Vit { class_token: false, pooling: Pooling::Mean, ..vit };
    let tanh = |vit: Vit| Vit { activation: Activation::GeluTanh, ..vit };
    let half = Preprocess::inception;
    let mut all = published(&SIGLIP, "SigLIP", half(), map);
    all.extend(published(&SIGLIP_TANH, "SigLIP", half(), |vit| tanh(map(vit))));
    all.extend(published(&SIGLIP_GAP, "SigLIP", half(), gap));
    all.extend(published(&SIGLIP_GAP_TANH, "SigLIP", half(), |vit| tanh(gap(vit))));
    all
}

const SIGLIP: [Row; 9] = [
    row("vit_base_patch16_siglip_224", BASE, 16, 224, 0, center(0.9)),
    row("vit_base_patch16_siglip_256", BASE, 16, 256, 0, center(0.9)),
    row("vit_base_patch16_siglip_384", BASE, 16, 384, 0, center(0.9)),
    row("vit_base_patch16_siglip_512", BASE, 16, 512, 0, center(0.9)),
    row("vit_large_patch16_siglip_256", LARGE, 16, 256, 0, center(0.9)),
    row("vit_large_patch16_siglip_384", LARGE, 16, 384, 0, center(0.9)),
    row("vit_so400m_patch14_siglip_224", SO400M, 14, 224, 0, center(0.9)),
    row("vit_so400m_patch14_siglip_378", SO400M, 14, 378, 0, center(0.9)),
    row("vit_so400m_patch14_siglip_384", SO400M, 14, 384, 0, center(0.9)),
];

/// Models with the tanh form of GELU.
const SIGLIP_TANH: [Row; 7] = [
    row("vit_base_patch32_siglip_256", BASE, 32, 256, 0, center(0.9)),
    row("vit_giantopt_patch16_siglip_256", Size(1536, 40, 16, 6144), 16, 256, 0, center(0.9)),
    row("vit_giantopt_patch16_siglip_384", Size(1536, 40, 16, 6144), 16, 384, 0, center(0.9)),
    row("vit_large_patch16_siglip_512", LARGE, 16, 512, 0, center(0.9)),
    row("vit_so400m_patch16_siglip_256", SO400M, 16, 256, 0, center(0.9)),
    row("vit_so400m_patch16_siglip_384", SO400M, 16, 384, 0, center(0.9)),
    row("vit_so400m_patch16_siglip_512", SO400M, 16, 512, 0, center(0.9)),
];

const SIGLIP_GAP: [Row; 11] = [
    row("vit_base_patch16_siglip_gap_224", BASE, 16, 224, 0, center(0.9)),
    row("vit_base_patch16_siglip_gap_256", BASE, 16, 256, 0, center(0.9)),
    row("vit_base_patch16_siglip_gap_384", BASE, 16, 384, 0, center(0.9)),
    row("vit_base_patch16_siglip_gap_512", BASE, 16, 512, 0, center(0.9)),
    row("vit_large_patch16_siglip_gap_256", LARGE, 16, 256, 0, center(0.9)),
    row("vit_large_patch16_siglip_gap_384", LARGE, 16, 384, 0, center(0.9)),
    row("vit_so400m_patch14_siglip_gap_224", SO400M, 14, 224, 0, center(0.9)),
    row("vit_so400m_patch14_siglip_gap_378", SO400M, 14, 378, 0, center(0.9)),
    row("vit_so400m_patch14_siglip_gap_384", SO400M, 14, 384, 0, center(1.0)),
    row("vit_so400m_patch14_siglip_gap_448", SO400M, 14, 448, 0, center(1.0)),
    row("vit_so400m_patch14_siglip_gap_896", SO400M, 14, 896, 0, center(1.0)),
];

const SIGLIP_GAP_TANH: [Row; 7] = [
    row("vit_base_patch32_siglip_gap_256", BASE, 32, 256, 0, center(0.9)),
    row("vit_giantopt_patch16_siglip_gap_256", Size(1536, 40, 16, 6144), 16, 256, 0, center(0.9)),
    row("vit_giantopt_patch16_siglip_gap_384", Size(1536, 40, 16, 6144), 16, 384, 0, center(0.9)),
    row("vit_large_patch16_siglip_gap_512", LARGE, 16, 512, 0, center(0.9)),
    row("vit_so400m_patch16_siglip_gap_256", SO400M, 16, 256, 0, center(0.9)),
    row("vit_so400m_patch16_siglip_gap_384", SO400M, 16, 384, 0, center(0.9)),
    row("vit_so400m_patch16_siglip_gap_512", SO400M, 16, 512, 0, center(0.9)),
];
