//! Models that are a size of the paper's with a few options: one function per family.

use super::published::*;
use crate::layers::NormKind;
use crate::variant::Variant;
use crate::vit::{BlockKind, FinalNorm, Pooling, PositionsOn, Qkv, QkvBias, Vit};
use vit_preprocess::{Filter, Preprocess};

pub(super) fn variants() -> Vec<Variant> {
    [plain(), mean_pooled(), parallel(), flexivit(), beit3(), eva_large(), ijepa(), intern(), for_tests()].concat()
}

/// Deeper, wider and differently normalised relatives of the paper's models.
fn plain() -> Vec<Variant> {
    let scaled = |vit: Vit| Vit { layer_scale: Some(1e-5), ..vit };
    // The norm of the residual branches takes the place of layer scale.
    let post_norm = |vit: Vit| Vit {
        class_token: false,
        pooling: Pooling::Mean,
        final_norm: FinalNorm::AfterPooling,
        qkv: Qkv::packed(QkvBias::None),
        layer_scale: Some(1e-5),
        block: BlockKind::PostNorm,
        ..vit
    };
    let miil = Preprocess { interpolation: Filter::Bilinear, ..Preprocess::unit() };
    [
        published(&SCALED, "ViT", Preprocess::inception(), scaled),
        published(&POST_NORM, "ViT", Preprocess::inception(), post_norm),
        published(&MIIL, "ViT", miil, |vit| Vit { qkv: Qkv::packed(QkvBias::None), ..vit }),
    ]
    .concat()
}

const SCALED: [Row; 3] = [
    row("vit_small_patch16_36x1_224", Size(384, 36, 6, 1536), 16, 224, 1000, center(0.9)),
    row("vit_base_patch32_plus_256", BASE_PLUS, 32, 256, 1000, center(0.95)),
    row("vit_base_patch16_plus_240", BASE_PLUS, 16, 240, 1000, center(0.95)),
];

const POST_NORM: [Row; 1] = [row("vit_base_patch16_rpn_224", BASE, 16, 224, 1000, center(0.9))];

const MIIL: [Row; 1] = [row("vit_base_patch16_224_miil", BASE, 16, 224, 11_221, center(0.875))];

/// The mean of the patches instead of a class token, after the norm.
fn mean_pooled() -> Vec<Variant> {
    let gap = |vit: Vit| Vit { class_token: false, pooling: Pooling::Mean, ..vit };
    let scaled = |vit: Vit| Vit { qkv: Qkv::packed(QkvBias::None), layer_scale: Some(1e-6), ..gap(vit) };
    [
        published(&MEAN_POOLED_SCALED, "ViT", Preprocess::inception(), scaled),
        published(&MEAN_POOLED, "ViT", Preprocess::inception(), gap),
    ]
    .concat()
}

const MEAN_POOLED_SCALED: [Row; 4] = [
    row("vit_medium_patch16_gap_240", MEDIUM, 16, 240, 11_821, center(0.95)),
    row("vit_medium_patch16_gap_256", MEDIUM, 16, 256, 1000, center(0.95)),
    row("vit_medium_patch16_gap_384", MEDIUM, 16, 384, 1000, squash(0.95)),
    row("vit_betwixt_patch16_gap_256", BETWIXT, 16, 256, 1000, center(0.95)),
];

/// It has 16 heads.
const MEAN_POOLED: [Row; 1] = [row("vit_base_patch16_gap_224", Size(768, 12, 16, 3072), 16, 224, 1000, center(0.9))];

/// Blocks whose branches are computed side by side: several attentions and MLPs (Touvron et al., 2022), or attention and
/// MLP (Dehghani et al., 2023).
fn parallel() -> Vec<Variant> {
    let branches = |vit: Vit| Vit { block: BlockKind::Branches(2), layer_scale: Some(1e-5), ..vit };
    let one_norm = |vit: Vit| Vit {
        block: BlockKind::Parallel,
        norm: NormKind::Rms,
        pre_norm: true,
        qk_norm: true,
        qkv: Qkv::packed(QkvBias::None),
        positions_on: PositionsOn::Patches,
        ..vit
    };
    [
        published(&BRANCHES, "Parallel ViT", Preprocess::inception(), branches),
        published(&ONE_NORM, "Parallel ViT", Preprocess::inception(), one_norm),
    ]
    .concat()
}

const BRANCHES: [Row; 2] = [
    row("vit_small_patch16_18x2_224", Size(384, 18, 6, 1536), 16, 224, 1000, center(0.9)),
    row("vit_base_patch16_18x2_224", Size(768, 18, 12, 3072), 16, 224, 1000, center(0.9)),
];

const ONE_NORM: [Row; 3] = [
    row("vit_base_patch16_xp_224", BASE, 16, 224, 1000, center(0.9)),
    row("vit_large_patch14_xp_224", LARGE, 14, 224, 1000, center(0.9)),
    row("vit_huge_patch14_xp_224", HUGE, 14, 224, 1000, center(0.9)),
];

/// FlexiViT (Beyer et al., 2022), trained with patches of many sizes.
fn flexivit() -> Vec<Variant> {
    let flexible = |vit: Vit| Vit { positions_on: PositionsOn::Patches, ..vit };
    published(&FLEXIVIT, "FlexiViT", Preprocess::inception(), flexible)
}

const FLEXIVIT: [Row; 3] = [
    row("flexivit_small", SMALL, 16, 240, 1000, center(0.95)),
    row("flexivit_base", BASE, 16, 240, 1000, center(0.95)),
    row("flexivit_large", LARGE, 16, 240, 1000, center(0.95)),
];

/// BEiT-3 (Wang et al., 2022): norms inside attention and the MLP.
fn beit3() -> Vec<Variant> {
    let inner_norms = |vit: Vit| Vit {
        pooling: Pooling::Mean,
        final_norm: FinalNorm::AfterPooling,
        attention_norm: true,
        mlp_norm: true,
        norm_epsilon: 1e-5,
        ..vit
    };
    published(&BEIT3, "BEiT-3", Preprocess::imagenet(), inner_norms)
}

const BEIT3: [Row; 4] = [
    row("beit3_base_patch16_224", BASE, 16, 224, 1000, center(1.0)),
    row("beit3_large_patch16_224", LARGE, 16, 224, 1000, center(1.0)),
    row("beit3_giant_patch14_224", GIANT, 14, 224, 1000, center(1.0)),
    row("beit3_giant_patch14_336", GIANT, 14, 336, 1000, center(1.0)),
];

/// The large model of EVA (Fang et al., 2022).
fn eva_large() -> Vec<Variant> {
    let gap = |vit: Vit| Vit { pooling: Pooling::Mean, final_norm: FinalNorm::AfterPooling, ..vit };
    published(&EVA_LARGE, "EVA", Preprocess::clip(), gap)
}

const EVA_LARGE: [Row; 2] = [
    row("eva_large_patch14_196", LARGE, 14, 196, 1000, center(1.0)),
    row("eva_large_patch14_336", LARGE, 14, 336, 1000, squash(1.0)),
];

/// I-JEPA (Assran et al., 2023).
fn ijepa() -> Vec<Variant> {
    let gap = |vit: Vit| Vit { class_token: false, pooling: Pooling::Mean, ..vit };
    published(&IJEPA, "I-JEPA", Preprocess::imagenet(), gap)
}

const IJEPA: [Row; 3] = [
    row("vit_huge_patch14_gap_224", HUGE, 14, 224, 0, center(0.9)),
    row("vit_huge_patch16_gap_448", HUGE, 16, 448, 0, center(1.0)),
    row("vit_giant_patch16_gap_224", GIANT, 16, 224, 0, center(0.9)),
];

/// InternViT (Chen et al., 2024).
fn intern() -> Vec<Variant> {
    let no_norm = |vit: Vit| Vit { layer_scale: Some(0.1), final_norm: FinalNorm::Absent, ..vit };
    published(&INTERN, "InternViT", Preprocess::imagenet(), no_norm)
}

const INTERN: [Row; 1] = [row("vit_intern300m_patch14_448", LARGE, 14, 448, 0, center(1.0))];

/// Tiny models that timm has for its own tests.
fn for_tests() -> Vec<Variant> {
    fn register(vit: Vit) -> Vit {
        Vit { class_token: false, registers: 1, layer_scale: Some(1e-5), ..vit }
    }
    fn gap(vit: Vit) -> Vit {
        Vit { pooling: Pooling::Mean, final_norm: FinalNorm::AfterPooling, ..register(vit) }
    }
    let changes: [fn(Vit) -> Vit; 4] = [
        |vit| vit,
        gap,
        |vit| Vit { pooling: Pooling::Map, pool_prefix: true, ..register(vit) },
        |vit| Vit { norm: NormKind::Rms, ..gap(vit) },
    ];
    let half = Preprocess::inception;
    FOR_TESTS.into_iter().zip(changes).map(|(row, change)| row.variant("Test", half(), change)).collect()
}

const FOR_TESTS: [Row; 4] = [
    row("test_vit", Size(64, 6, 2, 192), 16, 160, 1000, center(0.95)),
    row("test_vit2", Size(64, 8, 2, 192), 16, 160, 1000, center(0.95)),
    row("test_vit3", Size(96, 9, 3, 192), 16, 160, 1000, center(0.95)),
    row("test_vit4", Size(96, 9, 3, 288), 16, 160, 1000, center(0.95)),
];
