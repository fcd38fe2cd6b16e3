//! BEiT (Bao et al., 2021) and BEiT v2 (Peng et al., 2022): timm's class `Beit`, and its named models.

use serde_json::{Map, Value, json};
use vit_graph::ops::Activation;

use super::timm::{IGNORED, configure_encoder, pooling};
use super::variants::{by_timm, imagenet, inception};
use super::{BiasSharing, FinalNorm, Lineage, Pooling, Positions, Qkv, QkvBias, RelativeBias, RelativeBiasKind, Vit};
use crate::config::Arguments;
use crate::layers::Gate;
use crate::variant::Variant;

pub(super) const CLASS: &str = "timm.models.beit.Beit";

/// Name, size, image size, starting value of layer scale, and crop fraction. Weights of BEiT take colours from -1 to 1, those
/// of BEiT v2 ImageNet's normalised ones.
const VARIANTS: [(&str, &str, usize, f32, f64); 7] = [
    ("beit_base_patch16_224", "base", 224, 0.1, 0.9),
    ("beit_base_patch16_384", "base", 384, 0.1, 1.0),
    ("beit_large_patch16_224", "large", 224, 1e-5, 0.9),
    ("beit_large_patch16_384", "large", 384, 1e-5, 1.0),
    ("beit_large_patch16_512", "large", 512, 1e-5, 1.0),
    ("beitv2_base_patch16_224", "base", 224, 1e-5, 0.9),
    ("beitv2_large_patch16_224", "large", 224, 1e-5, 0.95),
];

/// The named models.
pub(super) fn variants() -> Vec<Variant> {
    let variant = |(name, size, image, initial, crop_pct): (&str, &str, usize, f32, f64)| {
        let size = by_timm(size).expect("BEiT's sizes are the paper's");
        let Vit { lineage, qkv, pooling, final_norm, .. } = default();
        let vit = Vit {
            lineage,
            qkv,
            pooling,
            final_norm,
            positions: Positions::None,
            relative_bias: Some(RelativeBias::TABLES),
            layer_scale: Some(initial),
            ..size.vit(16, image)
        };
        match name {
            _ if name.starts_with("beitv2") => imagenet(name, "BEiT v2", vit, crop_pct),
            _ => inception(name, "BEiT", vit, crop_pct),
        }
    };
    VARIANTS.into_iter().map(variant).collect()
}

/// The model made without arguments.
pub(super) fn default() -> Vit {
    Vit {
        lineage: Lineage::Beit,
        qkv: Qkv::packed(QkvBias::QueryValue),
        pooling: Pooling::Mean,
        final_norm: FinalNorm::AfterPooling,
        ..Vit::default()
    }
}

pub(super) fn configure(vit: &mut Vit, args: &Arguments) -> Result<(), String> {
    if let Some(gated) = args.flag("swiglu_mlp")? {
        (vit.gate, vit.activation) =
            if gated { (Gate::Separate, Activation::Silu) } else { (Gate::None, Activation::Gelu) };
    }
    vit.mlp_norm = args.flag("scale_mlp")?.unwrap_or(vit.mlp_norm);
    configure_encoder(vit, args, QkvBias::QueryValue)?;
    if args.has("init_values") {
        vit.layer_scale = args.number("init_values")?.map(|initial| initial as f32).filter(|&initial| initial != 0.0);
    }
    if let Some(embedded) = args.flag("use_abs_pos_emb")? {
        vit.positions = if embedded { Positions::Learned } else { Positions::None };
    }
    let (own, shared) = vit
        .relative_bias
        .map_or((false, false), |bias| (bias.sharing != BiasSharing::Shared, bias.sharing != BiasSharing::PerBlock));
    let own = args.flag("use_rel_pos_bias")?.unwrap_or(own);
    let shared = args.flag("use_shared_rel_pos_bias")?.unwrap_or(shared);
    let sharing = match (own, shared) {
        (false, false) => None,
        (true, false) => Some(BiasSharing::PerBlock),
        (false, true) => Some(BiasSharing::Shared),
        (true, true) => Some(BiasSharing::Both),
    };
    vit.relative_bias = sharing.map(|sharing| RelativeBias { kind: RelativeBiasKind::Table, sharing });
    (vit.pooling, vit.final_norm) = match args.text("global_pool")? {
        None => (vit.pooling, vit.final_norm),
        Some("avg") => (Pooling::Mean, FinalNorm::AfterPooling),
        Some("token") => (Pooling::Token, FinalNorm::BeforePooling),
        Some("") => (Pooling::None, FinalNorm::BeforePooling),
        Some(other) => return Err(format!("timm's option `global_pool` should be avg, token or empty, not `{other}`")),
    };
    args.finish(&[&IGNORED[..], &["head_init_scale"]].concat())
}

/// The arguments without channels and classes, from those that all classes have.
pub(super) fn arguments(vit: &Vit, mut args: Map<String, Value>) -> Map<String, Value> {
    let sharing = vit.relative_bias.map(|bias| bias.sharing);
    args.remove("act_layer");
    args.entry("init_values").or_insert(Value::Null);
    for (name, value) in [
        ("global_pool", json!(pooling(vit))),
        ("swiglu_mlp", json!(vit.gate == Gate::Separate)),
        ("scale_mlp", json!(vit.mlp_norm)),
        ("use_abs_pos_emb", json!(vit.positions == Positions::Learned)),
        ("use_rel_pos_bias", json!(matches!(sharing, Some(BiasSharing::PerBlock | BiasSharing::Both)))),
        ("use_shared_rel_pos_bias", json!(matches!(sharing, Some(BiasSharing::Shared | BiasSharing::Both)))),
    ] {
        args.insert(name.into(), value);
    }
    args
}
