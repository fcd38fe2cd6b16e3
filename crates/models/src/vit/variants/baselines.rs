//! timm's "Searching for better ViT baselines" (SBB): registers, mean pooling, and shapes between those of the paper, with
//! parallel blocks and differential attention among them.

use super::published::*;
use crate::variant::Variant;
use crate::vit::{BlockKind, FinalNorm, Pooling, PositionsOn, Qkv, QkvBias, Vit};
use vit_preprocess::Preprocess;

const FAMILY: &str = "SBB ViT";

pub(super) fn variants() -> Vec<Variant> {
    let gap = |vit: Vit| Vit {
        class_token: false,
        pooling: Pooling::Mean,
        final_norm: FinalNorm::AfterPooling,
        layer_scale: Some(1e-5),
        positions_on: PositionsOn::Patches,
        ..vit
    };
    let one = |vit: Vit| Vit { registers: 1, ..gap(vit) };
    let four = |vit: Vit| Vit { registers: 4, ..gap(vit) };
    let parallel = |vit: Vit| Vit { block: BlockKind::Parallel, ..one(vit) };
    let differential = |vit: Vit| Vit { differential: true, ..one(vit) };
    // The shape-optimised ones have positions on all tokens.
    let so150m = |vit: Vit| Vit { class_token: false, registers: 4, pooling: Pooling::Mean, ..vit };
    let so150m_map = |vit: Vit| Vit { pooling: Pooling::Map, ..so150m(vit) };
    let so150m2 = |vit: Vit| Vit { positions_on: PositionsOn::AllTokens, qkv: Qkv::packed(QkvBias::None), ..one(vit) };
    let half = Preprocess::inception;
    [
        published(&ONE_REGISTER, FAMILY, half(), one),
        published(&FOUR_REGISTERS, FAMILY, half(), four),
        published(&PARALLEL, FAMILY, half(), parallel),
        published(&DIFFERENTIAL, FAMILY, half(), differential),
        published(&PARALLEL_DIFFERENTIAL, FAMILY, half(), |vit| Vit { differential: true, ..parallel(vit) }),
        published(&SO150M, FAMILY, half(), so150m),
        published(&SO150M_MAP, FAMILY, half(), so150m_map),
        published(&SO150M2, FAMILY, half(), so150m2),
        published(&BASE_REGISTERS, FAMILY, half(), |vit| Vit { layer_scale: None, ..four(vit) }),
    ]
    .concat()
}

const ONE_REGISTER: [Row; 4] = [
    row("vit_wee_patch16_reg1_gap_256", Size(256, 14, 4, 1280), 16, 256, 1000, center(0.95)),
    row("vit_little_patch16_reg1_gap_256", Size(320, 14, 5, 1792), 16, 256, 1000, center(0.95)),
    row("vit_medium_patch16_reg1_gap_256", MEDIUM, 16, 256, 1000, center(0.95)),
    row("vit_betwixt_patch16_reg1_gap_256", BETWIXT, 16, 256, 1000, center(0.95)),
];

const FOUR_REGISTERS: [Row; 6] = [
    row("vit_little_patch16_reg4_gap_256", Size(320, 14, 5, 1792), 16, 256, 1000, center(0.95)),
    row("vit_medium_patch16_reg4_gap_256", MEDIUM, 16, 256, 1000, center(0.95)),
    row("vit_mediumd_patch16_reg4_gap_256", Size(512, 20, 8, 2048), 16, 256, 1000, center(0.95)),
    row("vit_mediumd_patch16_reg4_gap_384", Size(512, 20, 8, 2048), 16, 384, 1000, center(1.0)),
    row("vit_betwixt_patch16_reg4_gap_256", BETWIXT, 16, 256, 1000, center(0.95)),
    row("vit_betwixt_patch16_reg4_gap_384", BETWIXT, 16, 384, 1000, center(1.0)),
];

const PARALLEL: [Row; 1] = [row("vit_pwee_patch16_reg1_gap_256", Size(256, 16, 4, 1280), 16, 256, 1000, center(0.95))];

const DIFFERENTIAL: [Row; 2] = [
    row("vit_dwee_patch16_reg1_gap_256", Size(256, 14, 4, 1280), 16, 256, 1000, center(0.95)),
    row("vit_dlittle_patch16_reg1_gap_256", Size(320, 14, 5, 1792), 16, 256, 1000, center(0.95)),
];

const PARALLEL_DIFFERENTIAL: [Row; 1] =
    [row("vit_dpwee_patch16_reg1_gap_256", Size(256, 16, 4, 1280), 16, 256, 1000, center(0.95))];

const SO150M: [Row; 2] = [
    row("vit_so150m_patch16_reg4_gap_256", Size(896, 18, 14, 2304), 16, 256, 1000, center(0.95)),
    row("vit_so150m_patch16_reg4_gap_384", Size(896, 18, 14, 2304), 16, 384, 1000, center(1.0)),
];

const SO150M_MAP: [Row; 1] =
    [row("vit_so150m_patch16_reg4_map_256", Size(896, 18, 14, 2304), 16, 256, 1000, center(0.9))];

const SO150M2: [Row; 3] = [
    row("vit_so150m2_patch16_reg1_gap_256", Size(832, 21, 13, 2176), 16, 256, 1000, center(1.0)),
    row("vit_so150m2_patch16_reg1_gap_384", Size(832, 21, 13, 2176), 16, 384, 1000, center(1.0)),
    row("vit_so150m2_patch16_reg1_gap_448", Size(832, 21, 13, 2176), 16, 448, 1000, squash(1.0)),
];

const BASE_REGISTERS: [Row; 1] = [row("vit_base_patch16_reg4_gap_256", BASE, 16, 256, 1000, center(0.9))];
