//! DINOv2 (Oquab et al., 2023), its models with registers (Darcet et al., 2023), and TIPSv2, which has its layers.

use vit_graph::ops::Activation;

use super::published::*;
use crate::layers::Gate;
use crate::variant::Variant;
use crate::vit::{PositionsOn, Vit};
use vit_preprocess::Preprocess;

pub(super) fn variants() -> Vec<Variant> {
    let plain = |vit: Vit| Vit { layer_scale: Some(1e-5), ..vit };
    let registers = |vit: Vit| Vit { registers: 4, positions_on: PositionsOn::Patches, ..plain(vit) };
    let tips = |vit: Vit| Vit { registers: 1, layer_scale: Some(1.0), ..registers(vit) };
    let gated = |vit: Vit| Vit { gate: Gate::Packed, activation: Activation::Silu, ..vit };
    let (imagenet, unit) = (Preprocess::imagenet, Preprocess::unit);
    let mut all = Vec::new();
    for (row, registered) in DINOV2.into_iter().zip(DINOV2_REGISTERS) {
        all.push(row.variant("DINOv2", imagenet(), plain));
        all.push(registered.variant("DINOv2", imagenet(), registers));
    }
    all.push(GIANT_DINOV2.variant("DINOv2", imagenet(), |vit| gated(plain(vit))));
    all.push(GIANT_DINOV2_REGISTERS.variant("DINOv2", imagenet(), |vit| gated(registers(vit))));
    all.extend(published(&TIPS, "TIPSv2", unit(), tips));
    all.push(GIANT_TIPS.variant("TIPSv2", unit(), |vit| gated(tips(vit))));
    all
}

const DINOV2: [Row; 3] = [
    row("vit_small_patch14_dinov2", SMALL, 14, 518, 0, center(1.0)),
    row("vit_base_patch14_dinov2", BASE, 14, 518, 0, center(1.0)),
    row("vit_large_patch14_dinov2", LARGE, 14, 518, 0, center(1.0)),
];

const DINOV2_REGISTERS: [Row; 3] = [
    row("vit_small_patch14_reg4_dinov2", SMALL, 14, 518, 0, center(1.0)),
    row("vit_base_patch14_reg4_dinov2", BASE, 14, 518, 0, center(1.0)),
    row("vit_large_patch14_reg4_dinov2", LARGE, 14, 518, 0, center(1.0)),
];

const TIPS: [Row; 3] = [
    row("vit_base_patch14_reg1_tipsv2", BASE, 14, 448, 0, center(1.0)),
    row("vit_large_patch14_reg1_tipsv2", LARGE, 14, 448, 0, center(1.0)),
    row("vit_so400m_patch14_reg1_tipsv2", SO400M, 14, 448, 0, center(1.0)),
];

const GIANT_DINOV2: Row = row("vit_giant_patch14_dinov2", Size(1536, 40, 24, 4096), 14, 518, 0, center(1.0));

const GIANT_DINOV2_REGISTERS: Row =
    row("vit_giant_patch14_reg4_dinov2", Size(1536, 40, 24, 4096), 14, 518, 0, center(1.0));

const GIANT_TIPS: Row = row("vit_giant_patch14_reg1_tipsv2", Size(1536, 40, 24, 4096), 14, 448, 0, center(1.0));
