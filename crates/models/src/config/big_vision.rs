//! The constructor of google-research/big_vision's `models.vit`.

use serde_json::{Map, Value};
use vit_graph::ops::Activation;

use super::vision_transformer::google_preprocessing;
use super::{Arguments, Config, unnamed};
use crate::vit::{PAPER_SIZES, Pooling, Positions, PositionsOn, Vit};

pub(super) fn from_arguments(args: &Map<String, Value>, input: Option<[usize; 2]>) -> Result<Config, String> {
    let args = Arguments::new("big_vision", args);
    let mut vit = Vit {
        image_size: input.unwrap_or([224, 224]),
        activation: Activation::GeluTanh,
        positions_on: PositionsOn::Patches,
        class_token: false,
        pooling: Pooling::Mean,
        ..Vit::default()
    };
    if let Some(variant) = args.text("variant")? {
        let (name, patch) = variant.split_once('/').map_or((variant, None), |(name, patch)| (name, patch.parse().ok()));
        let known = || PAPER_SIZES.iter().map(|s| s.paper).collect::<Vec<_>>().join(", ");
        let size = PAPER_SIZES.iter().find(|s| s.paper == name);
        let size = size.ok_or_else(|| format!("big_vision's variant `{name}` is not known here; {} are", known()))?;
        vit = Vit { dim: size.dim, depth: size.depth, heads: size.heads, mlp_dim: size.mlp_dim, ..vit };
        vit.patch_size = patch.map_or(vit.patch_size, |p| [p, p]);
    }
    vit.patch_size = args.pair("patch_size")?.unwrap_or(vit.patch_size);
    vit.classes = args.count("num_classes")?.unwrap_or(0);
    vit.dim = args.count("width")?.unwrap_or(vit.dim);
    vit.depth = args.count("depth")?.unwrap_or(vit.depth);
    vit.heads = args.count("num_heads")?.unwrap_or(vit.heads);
    vit.mlp_dim = args.count("mlp_dim")?.unwrap_or(4 * vit.dim);
    vit.dropout = args.rate("dropout")?.unwrap_or_default();
    vit.pre_logits = match args.get("rep_size") {
        Some(Value::Bool(true)) => Some(vit.dim),
        Some(Value::Bool(false)) | None => None,
        Some(_) => args.count("rep_size")?.filter(|&n| n > 0),
    };
    vit.positions = match args.text("posemb")?.unwrap_or("learn") {
        "learn" => Positions::Learned,
        "sincos2d" => Positions::SinCos,
        other => return Err(format!("big_vision's option `posemb` should be learn or sincos2d, not `{other}`")),
    };
    match args.text("pool_type")?.unwrap_or("gap") {
        "gap" => {}
        "map" => vit.pooling = Pooling::Map,
        // The class token has no position: it is prepended after they were added.
        "tok" => (vit.pooling, vit.class_token) = (Pooling::Token, true),
        other => return Err(format!("big_vision's option `pool_type` should be gap, map or tok, not `{other}`")),
    }
    args.finish(&["head_zeroinit", "scan", "remat_policy", "dtype_mm"])?;
    Ok(unnamed(vit, google_preprocessing()))
}
