//! torchvision's constructor of `VisionTransformer`.

use serde_json::{Map, Value};

use super::{Arguments, Config, unnamed};
use crate::preprocessing::Preprocessing;
use crate::vit::Vit;

pub(super) fn from_arguments(args: &Map<String, Value>) -> Result<Config, String> {
    let args = Arguments::new("torchvision", args);
    let needed =
        |name: &'static str| args.count(name)?.ok_or_else(|| format!("torchvision's option `{name}` is missing"));
    let vit = Vit {
        image_size: args.pair("image_size")?.unwrap_or([224, 224]),
        patch_size: args.pair("patch_size")?.unwrap_or([16, 16]),
        depth: needed("num_layers")?,
        heads: needed("num_heads")?,
        dim: needed("hidden_dim")?,
        mlp_dim: needed("mlp_dim")?,
        classes: args.count("num_classes")?.unwrap_or(1000),
        pre_logits: args.count("representation_size")?,
        dropout: args.rate("dropout")?.unwrap_or_default(),
        attention_dropout: args.rate("attention_dropout")?.unwrap_or_default(),
        ..Vit::default()
    };
    args.finish(&[])?;
    let bilinear = Preprocessing { crop_pct: 0.875, interpolation: "bilinear".into(), ..Preprocessing::imagenet() };
    Ok(unnamed(vit, bilinear))
}
