//! torchvision's constructors of `VisionTransformer` and `ResNet`.

use serde_json::{Map, Value};

use super::{Arguments, Config, unnamed};
use crate::layers::Norm;
use crate::resnet::{ResNet, ResNetBlock};
use crate::vit::Vit;
use vit_preprocess::{Filter, Preprocess};

pub(super) fn vision_transformer(args: &Map<String, Value>) -> Result<Config, String> {
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
    Ok(unnamed(vit, preprocessing()))
}

pub(super) fn resnet(args: &Map<String, Value>, input: Option<[usize; 2]>) -> Result<Config, String> {
    let args = Arguments::new("torchvision", args);
    let base = ResNet::default();
    let block = args.text("block")?.ok_or("torchvision's option `block` is missing")?;
    let depths = args.counts("layers")?.ok_or("torchvision's option `layers` is missing")?;
    // Not torchvision's: the divisor of every stage's width in narrowed copies.
    let divisor = args.count("planes_divisor")?.unwrap_or(1).max(1);
    let net = ResNet {
        image_size: input.unwrap_or(base.image_size),
        classes: args.count("num_classes")?.unwrap_or(1000),
        block: ResNetBlock::of_class(block)?,
        widths: (0..depths.len().min(16)).map(|stage| (64 << stage) / divisor).collect(),
        depths,
        groups: args.count("groups")?.unwrap_or(1),
        group_width: args.count("width_per_group")?.unwrap_or(64),
        output_stride: match args.get("replace_stride_with_dilation").map(Value::to_string).as_deref() {
            None | Some("[false,false,false]") => 32,
            Some("[false,false,true]") => 16,
            Some("[false,true,true]") => 8,
            Some(other) => {
                return Err(format!(
                    "torchvision's option `replace_stride_with_dilation` can be used for the last stages only, not {other}"
                ));
            }
        },
        norm: match args.class("norm_layer")? {
            None => base.norm,
            Some(("BatchNorm2d", bound)) => Norm::Batch {
                epsilon: bound.number("eps")?.unwrap_or(1e-5) as f32,
                momentum: bound.number("momentum")?.unwrap_or(0.1) as f32,
            },
            Some((other, _)) => {
                return Err(format!("torchvision's option `norm_layer` should be BatchNorm2d, not `{other}`"));
            }
        },
        ..base
    };
    args.finish(&["zero_init_residual"])?;
    Ok(unnamed(net, preprocessing()))
}

fn preprocessing() -> Preprocess {
    Preprocess { crop_pct: 0.875, interpolation: Filter::Bilinear, ..Preprocess::imagenet() }
}
