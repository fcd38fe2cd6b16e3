//! The models of timm's class `Eva`: EVA and EVA-02, DINOv3 and those of its form, the Perception Encoder, and Vision
//! Transformers with rotary positions.

use vit_graph::ops::Activation;
use vit_preprocess::{CropMode, Filter, Preprocess};

use super::super::{
    BlockKind, CoordinateAugmentation, FinalNorm, Lineage, Pooling, Positions, PositionsOn, Qkv, QkvBias, RotaryAngles,
    RotaryPositions, Vit,
};
use crate::layers::{Gate, NormKind};
use crate::variant::Variant;

/// Width, depth and heads.
#[derive(Clone, Copy)]
struct EvaSize(usize, usize, usize);

const TINY: EvaSize = EvaSize(192, 12, 3);
const SMALL: EvaSize = EvaSize(384, 12, 6);
const MEDIUM: EvaSize = EvaSize(512, 12, 8);
const BASE: EvaSize = EvaSize(768, 12, 12);
const LARGE: EvaSize = EvaSize(1024, 24, 16);
const GIANT: EvaSize = EvaSize(1408, 40, 16);
const GIGANTIC: EvaSize = EvaSize(1536, 50, 16);

pub(super) fn variants() -> Vec<Variant> {
    [eva(), eva02(), rope(), naver(), perception(), dinov3(), lingbot(), sapiens()].concat()
}

/// The class without arguments, in a size: the mean of the patches, then a norm; biases of queries and values.
fn of_size(EvaSize(dim, depth, heads): EvaSize, patch: usize, image: usize) -> Vit {
    Vit {
        lineage: Lineage::Eva,
        image_size: [image, image],
        patch_size: [patch, patch],
        dim,
        depth,
        heads,
        mlp_dim: 4 * dim,
        pooling: Pooling::Mean,
        final_norm: FinalNorm::AfterPooling,
        qkv: Qkv::packed(QkvBias::QueryValue),
        ..Vit::default()
    }
}

/// Pooled by the class token, after the norm.
fn by_token(vit: Vit) -> Vit {
    Vit { pooling: Pooling::Token, final_norm: FinalNorm::BeforePooling, ..vit }
}

fn variant(name: &str, family: &'static str, vit: Vit, preprocessing: Preprocess) -> Variant {
    let preprocessing = Preprocess { image_size: vit.image_size, ..preprocessing };
    Variant { name: name.into(), paper_name: None, family, architecture: vit.into(), preprocessing }
}

fn squash(preprocessing: Preprocess) -> Preprocess {
    Preprocess { crop_pct: 1.0, crop_mode: CropMode::Squash, ..preprocessing }
}

fn crop(crop_pct: f64, preprocessing: Preprocess) -> Preprocess {
    Preprocess { crop_pct, ..preprocessing }
}

/// Fang et al., 2022.
fn eva() -> Vec<Variant> {
    let giant = |image| Vit { mlp_dim: 6144, ..of_size(GIANT, 14, image) };
    let clip = Vit { classes: 1024, ..by_token(giant(224)) };
    let variant = |name: &str, vit, preprocessing| variant(name, "EVA", vit, preprocessing);
    vec![
        variant("eva_giant_patch14_224", giant(224), crop(0.9, Preprocess::clip())),
        variant("eva_giant_patch14_336", giant(336), squash(Preprocess::clip())),
        variant("eva_giant_patch14_560", giant(560), squash(Preprocess::imagenet())),
        variant("eva_giant_patch14_clip_224", clip, crop(0.9, Preprocess::clip())),
    ]
}

/// Fang et al., 2023: rotary positions beside learned ones, and SwiGLU. The larger ones have separate projections and a
/// norm inside the MLP.
fn eva02() -> Vec<Variant> {
    let eva02 = |size: EvaSize, patch, image| Vit {
        mlp_dim: size.0 * 8 / 3,
        gate: Gate::Packed,
        activation: Activation::Silu,
        rotary: Some(RotaryPositions::eva02([16, 16])),
        ..of_size(size, patch, image)
    };
    let large = |size, patch, image| Vit {
        qkv: Qkv { bias: QkvBias::QueryValue, separate: true },
        gate: Gate::Separate,
        mlp_norm: true,
        ..eva02(size, patch, image)
    };
    let clip =
        |size, patch, image, classes| by_token(Vit { attention_norm: true, classes, ..large(size, patch, image) });
    let enormous = EvaSize(1792, 64, 16);
    let post_norm =
        Vit { mlp_dim: 15360, block: BlockKind::PostNorm, classes: 1024, ..by_token(of_size(enormous, 14, 224)) };
    let headless = |vit: Vit| Vit { classes: 0, ..vit };
    let variant = |name: &str, vit, preprocessing| variant(name, "EVA-02", vit, preprocessing);
    let (small, whole) = (crop(0.9, Preprocess::clip()), crop(1.0, Preprocess::clip()));
    vec![
        variant("eva02_tiny_patch14_224", headless(eva02(TINY, 14, 224)), small.clone()),
        variant("eva02_tiny_patch14_336", eva02(TINY, 14, 336), whole.clone()),
        variant("eva02_small_patch14_224", headless(eva02(SMALL, 14, 224)), small.clone()),
        variant("eva02_small_patch14_336", eva02(SMALL, 14, 336), whole.clone()),
        variant("eva02_base_patch14_224", headless(large(BASE, 14, 224)), small.clone()),
        variant("eva02_base_patch14_448", large(BASE, 14, 448), squash(Preprocess::clip())),
        variant("eva02_large_patch14_224", headless(large(LARGE, 14, 224)), small.clone()),
        variant("eva02_large_patch14_448", large(LARGE, 14, 448), squash(Preprocess::clip())),
        variant("eva02_base_patch16_clip_224", clip(BASE, 16, 224, 512), small.clone()),
        variant("eva02_large_patch14_clip_224", clip(LARGE, 14, 224, 768), small.clone()),
        variant("eva02_large_patch14_clip_336", clip(LARGE, 14, 336, 768), whole),
        variant("eva02_enormous_patch14_clip_224", post_norm, small),
    ]
}

/// timm's own, with rotary positions alone, registers and no class token.
fn rope() -> Vec<Variant> {
    let rope = |size, registers, bias| Vit {
        qkv: Qkv::packed(bias),
        layer_scale: Some(1e-5),
        class_token: false,
        registers,
        positions: Positions::None,
        rotary: Some(RotaryPositions::eva02([16, 16])),
        ..of_size(size, 16, 256)
    };
    let mediumd = EvaSize(512, 20, 8);
    let betwixt = EvaSize(640, 12, 10);
    let variant = |name: &str, vit, preprocessing| variant(name, "RoPE-ViT", vit, crop(0.95, preprocessing));
    let inception = Preprocess::inception;
    vec![
        variant("vit_medium_patch16_rope_reg1_gap_256", rope(MEDIUM, 1, QkvBias::QueryValue), inception()),
        variant("vit_mediumd_patch16_rope_reg1_gap_256", rope(mediumd, 1, QkvBias::None), inception()),
        variant("vit_betwixt_patch16_rope_reg4_gap_256", rope(betwixt, 4, QkvBias::QueryValue), Preprocess::clip()),
        variant("vit_base_patch16_rope_reg1_gap_256", rope(BASE, 1, QkvBias::QueryValue), inception()),
    ]
}

/// Heo et al., 2024: axial or learned frequencies, with or without learned positions.
fn naver() -> Vec<Variant> {
    let mut all = Vec::new();
    for (angles, temperature, infix) in
        [(RotaryAngles::Axial { reference: None }, 100.0, ""), (RotaryAngles::Mixed, 10.0, "_mixed")]
    {
        for (positions, ape) in [(Positions::None, ""), (Positions::Learned, "_ape")] {
            for (name, size) in [("small", SMALL), ("base", BASE), ("large", LARGE)] {
                let rotary =
                    RotaryPositions { angles, temperature, columns_first: true, ..RotaryPositions::eva02([1, 1]) };
                let learned = positions == Positions::Learned;
                let vit = by_token(Vit {
                    qkv: Qkv::packed(QkvBias::All),
                    layer_scale: Some(1e-5),
                    positions,
                    positions_on: if learned { PositionsOn::Patches } else { PositionsOn::AllTokens },
                    rotary: Some(rotary),
                    ..of_size(size, 16, 224)
                });
                let name = format!("vit_{name}_patch16_rope{infix}{ape}_224");
                all.push(variant(&name, "RoPE-ViT", vit, crop(0.9, Preprocess::imagenet())));
            }
        }
    }
    all
}

/// The Perception Encoder (Bolya et al., 2025): a norm before the blocks, learned and rotary positions.
fn perception() -> Vec<Variant> {
    let encoder = |size: EvaSize, patch, image, reference: usize| Vit {
        qkv: Qkv::packed(QkvBias::All),
        pre_norm: true,
        norm_epsilon: 1e-5,
        rotary: Some(RotaryPositions { columns_first: true, offset: 1.0, ..RotaryPositions::eva02([reference; 2]) }),
        ..of_size(size, patch, image)
    };
    // Without a class token, rows and columns count from 0.
    let gigantic = |depth: usize| Vit {
        depth,
        mlp_dim: 8960,
        class_token: false,
        rotary: Some(RotaryPositions { columns_first: true, ..RotaryPositions::eva02([32; 2]) }),
        ..encoder(GIGANTIC, 14, 448, 32)
    };
    // Answers by attention pooling over all tokens.
    let core = |vit: Vit, classes: usize| Vit {
        classes,
        pooling: Pooling::Map,
        final_norm: FinalNorm::BeforePooling,
        pool_prefix: true,
        pool_heads: Some(8),
        pool_mlp_dim: Some(4 * vit.dim),
        ..vit
    };
    // Features of an inner block, without a norm.
    let inner = |vit: Vit| Vit { classes: 0, final_norm: FinalNorm::Absent, ..vit };
    let scaled = |vit: Vit| Vit { layer_scale: Some(0.1), ..inner(vit) };
    let variant = |name: &str, vit| variant(name, "Perception Encoder", vit, crop(1.0, Preprocess::inception()));
    let lang = Vit { depth: 23, ..encoder(LARGE, 14, 448, 32) };
    vec![
        variant("vit_pe_core_tiny_patch16_384", core(encoder(TINY, 16, 384, 24), 512)),
        variant("vit_pe_core_small_patch16_384", core(encoder(SMALL, 16, 384, 24), 512)),
        variant("vit_pe_core_base_patch16_224", core(encoder(BASE, 16, 224, 14), 1024)),
        variant("vit_pe_core_large_patch14_336", core(encoder(LARGE, 14, 336, 24), 1024)),
        variant("vit_pe_core_gigantic_patch14_448", core(gigantic(50), 1280)),
        variant("vit_pe_lang_large_patch14_448", scaled(lang)),
        variant("vit_pe_lang_gigantic_patch14_448", scaled(gigantic(47))),
        variant("vit_pe_spatial_tiny_patch16_512", inner(encoder(TINY, 16, 512, 32))),
        variant("vit_pe_spatial_small_patch16_512", inner(encoder(SMALL, 16, 512, 32))),
        variant("vit_pe_spatial_base_patch16_512", inner(encoder(BASE, 16, 512, 32))),
        variant("vit_pe_spatial_large_patch14_448", inner(encoder(LARGE, 14, 448, 32))),
        variant("vit_pe_spatial_gigantic_patch14_448", scaled(gigantic(50))),
    ]
}

/// DINOv3 (Siméoni et al., 2025) without a head; the mean of the patches, as timm has it.
fn headless_dino(size: EvaSize, image: usize) -> Vit {
    Vit {
        classes: 0,
        qkv: Qkv::packed(QkvBias::None),
        final_norm: FinalNorm::BeforePooling,
        layer_scale: Some(1e-5),
        norm_epsilon: 1e-5,
        registers: 4,
        positions: Positions::None,
        rotary: Some(RotaryPositions::dinov3()),
        ..of_size(size, 16, image)
    }
}

fn swiglu(vit: Vit, mlp_dim: usize) -> Vit {
    Vit { mlp_dim, gate: Gate::Separate, activation: Activation::Silu, ..vit }
}

/// `_qkvb` has biases of queries and values, which are zero in DINOv3's published weights.
fn dinov3() -> Vec<Variant> {
    let dino = |size| headless_dino(size, 256);
    let plus = |size: EvaSize| swiglu(dino(size), 4 * size.0);
    let biased = |vit: Vit| Vit { qkv: Qkv::packed(QkvBias::QueryValue), ..vit };
    let preprocessing = crop(1.0, Preprocess::imagenet());
    let of = |name: &str, vit| variant(name, "DINOv3", vit, preprocessing.clone());
    // Its published weights are EUPE's.
    let mut all = vec![of("vit_tiny_patch16_dinov3_qkvb", biased(dino(TINY)))];
    for (name, vit) in [
        ("small", dino(SMALL)),
        ("small_plus", plus(SMALL)),
        ("base", dino(BASE)),
        ("large", dino(LARGE)),
        ("huge_plus", plus(EvaSize(1280, 32, 20))),
    ] {
        all.push(of(&format!("vit_{name}_patch16_dinov3"), vit.clone()));
        all.push(of(&format!("vit_{name}_patch16_dinov3_qkvb"), biased(vit)));
    }
    let seven_billion = swiglu(dino(EvaSize(4096, 40, 32)), 8192);
    all.push(of("vit_7b_patch16_dinov3", seven_billion));
    all
}

/// LingBot-Vision (Fu et al., 2026): DINOv3's form, pooled by the class token.
fn lingbot() -> Vec<Variant> {
    let lingbot = |size| {
        let vit = Vit { qkv: Qkv::packed(QkvBias::QueryValue), ..headless_dino(size, 512) };
        by_token(vit)
    };
    let giant = Vit { qkv: Qkv::packed(QkvBias::None), ..swiglu(lingbot(EvaSize(1536, 40, 24)), 4096) };
    let preprocessing = Preprocess { interpolation: Filter::Bilinear, ..squash(Preprocess::imagenet()) };
    let sizes = [("small", lingbot(SMALL)), ("base", lingbot(BASE)), ("large", lingbot(LARGE)), ("giant", giant)];
    let of = |(name, vit)| {
        let name = format!("vit_{name}_patch16_lingbot");
        variant(&name, "LingBot-Vision", vit, preprocessing.clone())
    };
    sizes.into_iter().map(of).collect()
}

/// Sapiens2 (Khirodkar et al., 2026): RMS norm, normed queries and keys, and in all but the first and the last eight
/// blocks half as many heads of keys and values.
fn sapiens() -> Vec<Variant> {
    let sapiens = |size: EvaSize| {
        let EvaSize(dim, depth, heads) = size;
        let key_value_heads = (0..depth).map(|block| if block < 8 || block + 8 >= depth { heads } else { heads / 2 });
        let augmentation = CoordinateAugmentation { rescale: Some(2.0), ..CoordinateAugmentation::default() };
        let angles = RotaryAngles::Centred { augmentation, bf16_periods: false };
        by_token(Vit {
            image_size: [1024, 768],
            classes: 0,
            qkv: Qkv { bias: QkvBias::All, separate: true },
            key_value_heads: if depth > 16 { key_value_heads.collect() } else { Vec::new() },
            qk_norm: true,
            norm: NormKind::Rms,
            mlp_dim: 4 * dim,
            gate: Gate::Packed,
            activation: Activation::Silu,
            layer_scale: Some(1.0),
            attention_only_layer_scale: true,
            registers: 8,
            positions: Positions::None,
            rotary: Some(RotaryPositions { angles, ..RotaryPositions::dinov3() }),
            ..of_size(size, 16, 1024)
        })
    };
    let preprocessing = Preprocess { interpolation: Filter::Bilinear, ..squash(Preprocess::imagenet()) };
    [
        ("base", BASE),
        ("large", LARGE),
        ("huge", EvaSize(1280, 32, 16)),
        ("giant", EvaSize(1536, 40, 24)),
        ("5b", EvaSize(2432, 56, 32)),
    ]
    .map(|(name, size)| {
        let name = format!("vit_{name}_patch16_sapiens2");
        variant(&name, "Sapiens2", sapiens(size), preprocessing.clone())
    })
    .into()
}
