//! The constructor of google-research/vision_transformer (`vit_jax`).

use serde_json::{Map, Value};
use vit_graph::ops::Activation;

use super::{Arguments, Config, unnamed};
use crate::preprocessing::Preprocessing;
use crate::vit::{Pooling, Positions, Vit};

pub(super) fn from_arguments(args: &Map<String, Value>, input: Option<[usize; 2]>) -> Result<Config, String> {
    let args = Arguments::new("vit_jax", args);
    let missing = |name: &str| format!("vit_jax's option `{name}` is missing");
    if args.object("resnet")?.is_some() {
        return Err("vit_jax's option `resnet` (a hybrid model) cannot be used here yet".into());
    }
    let patches = Arguments::new("vit_jax", args.object("patches")?.ok_or_else(|| missing("patches"))?);
    let encoder = Arguments::new("vit_jax", args.object("transformer")?.ok_or_else(|| missing("transformer"))?);
    let classifier = args.text("classifier")?.unwrap_or("token");
    let pooling = match classifier {
        "token" => Pooling::Token,
        "gap" => Pooling::Mean,
        other => return Err(format!("vit_jax's option `classifier` should be token or gap, not `{other}`")),
    };
    let rate = |name| encoder.rate(name).map(Option::unwrap_or_default);
    let vit = Vit {
        image_size: input.unwrap_or([224, 224]),
        patch_size: patches.pair("size")?.ok_or_else(|| missing("patches.size"))?,
        classes: args.count("num_classes")?.unwrap_or(0),
        dim: args.count("hidden_size")?.ok_or_else(|| missing("hidden_size"))?,
        depth: encoder.count("num_layers")?.ok_or_else(|| missing("transformer.num_layers"))?,
        heads: encoder.count("num_heads")?.ok_or_else(|| missing("transformer.num_heads"))?,
        mlp_dim: encoder.count("mlp_dim")?.ok_or_else(|| missing("transformer.mlp_dim"))?,
        class_token: classifier == "token",
        pooling,
        positions: match encoder.flag("add_position_embedding")? {
            Some(false) => Positions::None,
            _ => Positions::Learned,
        },
        pre_logits: args.count("representation_size")?,
        activation: Activation::GeluTanh,
        dropout: rate("dropout_rate")?,
        attention_dropout: rate("attention_dropout_rate")?,
        ..Vit::default()
    };
    patches.finish(&["grid"])?;
    encoder.finish(&[])?;
    args.finish(&["head_bias_init", "model_name"])?;
    Ok(unnamed(
        vit,
        Preprocessing {
            crop_pct: 1.0,
            crop_mode: "squash".into(),
            interpolation: "bilinear".into(),
            ..Preprocessing::inception()
        },
    ))
}
