//! The constructor of google-research/vision_transformer (`vit_jax`).

use serde_json::{Map, Value};
use vit_graph::ops::Activation;

use super::{Arguments, Config, unnamed};
use crate::layers::{Norm, Standardise};
use crate::resnetv2::ResNetV2;
use crate::vit::{Pooling, Positions, Vit};
use vit_preprocess::{CropMode, Filter, Preprocess};

pub(super) fn from_arguments(args: &Map<String, Value>, input: Option<[usize; 2]>) -> Result<Config, String> {
    let args = Arguments::new("vit_jax", args);
    let missing = |name: &str| format!("vit_jax's option `{name}` is missing");
    let backbone = match args.object("resnet")? {
        Some(resnet) => Some(Box::new(stages(&Arguments::new("vit_jax", resnet))?.into())),
        None => None,
    };
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
        backbone,
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
    Ok(unnamed(vit, google_preprocessing()))
}

/// The preprocessing of Google's code: both sides resized, without a crop.
pub(super) fn google_preprocessing() -> Preprocess {
    Preprocess {
        crop_pct: 1.0,
        crop_mode: CropMode::Squash,
        interpolation: Filter::Bilinear,
        ..Preprocess::inception()
    }
}

/// The convolutional stages of a hybrid model, with Google's epsilons.
fn stages(args: &Arguments) -> Result<ResNetV2, String> {
    let depths = args.counts("num_layers")?.unwrap_or_default();
    let width = args.number("width_factor")?.unwrap_or(1.0) * 64.0;
    args.finish(&[])?;
    if !(1.0..=65536.0).contains(&width) || depths.len() > 8 {
        return Err("vit_jax's option `resnet` is out of bounds".into());
    }
    Ok(google_stages(&depths, width as usize))
}

/// The stages before a hybrid with Google's epsilons: blocks of each stage, and the stem's width.
pub(crate) fn google_stages(depths: &[usize], width: usize) -> ResNetV2 {
    ResNetV2 {
        depths: depths.to_vec(),
        widths: (0..depths.len()).map(|stage| (4 * width) << stage).collect(),
        stem_width: width,
        norm: Norm::Group { groups: 32, epsilon: 1e-6 },
        standardise: Some(Standardise::Deviation(1e-5)),
        ..ResNetV2::before_tokens(&[])
    }
}
