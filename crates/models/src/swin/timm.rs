//! The constructors of timm's `SwinTransformer` and `SwinTransformerV2`.

use serde_json::{Map, Value, json};
use vit_graph::ops::{Activation, Operation};

use super::{Swin, SwinVersion};
use crate::config::timm::{mean_pooling, norm, object, short, square};
use crate::config::{Arguments, Configured, TimmForm, pair, whole};
use crate::layers::Norm;
use vit_preprocess::Preprocess;

const CLASS: &str = "timm.models.swin_transformer.SwinTransformer";
const CLASS_V2: &str = "timm.models.swin_transformer_v2.SwinTransformerV2";

impl Configured for Swin {
    fn constructor(&self) -> (&'static str, Map<String, Value>) {
        let class = match self.version {
            SwinVersion::V1 => CLASS,
            SwinVersion::V2 { .. } => CLASS_V2,
        };
        (class, arguments(self))
    }

    fn configure(&mut self, args: &Arguments) -> Result<(), String> {
        self.image_size = args.pair("img_size")?.unwrap_or(self.image_size);
        self.patch_size = args.pair("patch_size")?.unwrap_or(self.patch_size);
        self.channels = args.count("in_chans")?.unwrap_or(self.channels);
        self.classes = args.count("num_classes")?.unwrap_or(self.classes);
        self.depths = args.counts("depths")?.unwrap_or_else(|| self.depths.clone());
        let stages = self.depths.len();
        let wrong = |name: &str| format!("timm's option `{name}` does not fit {stages} stages");
        if stages == 0 || stages > 16 {
            return Err(wrong("depths"));
        }
        self.heads = args.counts("num_heads")?.unwrap_or_else(|| self.heads.clone());
        let first = self.widths[0];
        self.widths = match args.get("embed_dim") {
            Some(value) => match whole(value) {
                Some(width) => (0..stages).map(|stage| width << stage).collect(),
                None => args.counts("embed_dim")?.unwrap_or_default(),
            },
            None => (0..stages).map(|stage| first << stage).collect(),
        };
        self.windows = match args.get("window_size") {
            Some(value) => windows(value, stages).ok_or_else(|| wrong("window_size"))?,
            None => for_stages(&self.windows, stages),
        };
        self.mlp_ratios = match args.get("mlp_ratio") {
            Some(value) => per_stage(value, stages, Value::as_f64).ok_or_else(|| wrong("mlp_ratio"))?,
            None => for_stages(&self.mlp_ratios, stages),
        };
        self.head_dims = match args.get("head_dim") {
            Some(value) => per_stage(value, stages, |v| Some(whole(v))).ok_or_else(|| wrong("head_dim"))?,
            None => for_stages(&self.head_dims, stages),
        };
        if let SwinVersion::V2 { pretrained_windows } = &mut self.version {
            *pretrained_windows = match args.get("pretrained_window_sizes") {
                Some(value) => per_stage(value, stages, pretrained).ok_or_else(|| wrong("pretrained_window_sizes"))?,
                None if pretrained_windows.len() == stages => pretrained_windows.clone(),
                None => vec![None; stages],
            };
        }
        self.activation = args.activation("act_layer")?.unwrap_or(self.activation);
        self.always_partition = args.flag("always_partition")?.unwrap_or(self.always_partition);
        self.qkv_bias = args.flag("qkv_bias")?.unwrap_or(self.qkv_bias);
        match norm(args, "norm_layer", Norm::Layer { epsilon: self.norm_epsilon })? {
            Norm::Layer { epsilon } => self.norm_epsilon = epsilon,
            _ => return Err("timm's option `norm_layer` should be a layer norm here".into()),
        }
        self.dropout = args.rate("drop_rate")?.unwrap_or(self.dropout);
        self.projection_dropout = args.rate("proj_drop_rate")?.unwrap_or(self.projection_dropout);
        self.attention_dropout = args.rate("attn_drop_rate")?.unwrap_or(self.attention_dropout);
        self.drop_path = args.rate("drop_path_rate")?.unwrap_or(self.drop_path);
        mean_pooling(args)?;
        args.finish(&["strict_img_size", "weight_init", "pretrained", "features_only"])
    }

    fn timm(&self) -> TimmForm {
        let mut form = TimmForm { base: base(self), fixed_image_size: true, ..TimmForm::published(arguments(self)) };
        form.beside_name.insert("img_size".into(), json!(self.image_size));
        form
    }

    fn classes() -> Vec<(&'static str, Self, Preprocess)> {
        let version = SwinVersion::V2 { pretrained_windows: vec![None; 4] };
        let second = Swin { version, ..Swin::default() };
        vec![(CLASS, Swin::default(), Preprocess::imagenet()), (CLASS_V2, second, Preprocess::imagenet())]
    }
}

/// The values of a named model's stages; with another number of stages, the first one's for all.
fn for_stages<T: Clone>(named: &[T], stages: usize) -> Vec<T> {
    if named.len() == stages { named.to_vec() } else { vec![named[0].clone(); stages] }
}

/// One size or pair for all stages, or one for each.
fn windows(value: &Value, stages: usize) -> Option<Vec<[usize; 2]>> {
    match value.as_array().map(Vec::as_slice) {
        Some([Value::Number(_), Value::Number(_)]) | None => Some(vec![pair(value)?; stages]),
        Some(each) => each.iter().map(pair).collect::<Option<Vec<_>>>().filter(|all| all.len() == stages),
    }
}

fn per_stage<T: Clone>(value: &Value, stages: usize, read: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    match value.as_array() {
        Some(each) => each.iter().map(read).collect::<Option<Vec<_>>>().filter(|all| all.len() == stages),
        None => Some(vec![read(value)?; stages]),
    }
}

/// The window of a stage in pre-training; 0 where it was the model's.
fn pretrained(value: &Value) -> Option<Option<[usize; 2]>> {
    pair(value).map(|window| Some(window).filter(|[height, _]| *height > 0))
}

/// One value where those of all stages are equal.
fn uniform<T: PartialEq>(stages: &[T]) -> Option<&T> {
    stages.first().filter(|first| stages.iter().all(|stage| stage == *first))
}

/// The constructor's arguments that make this model.
fn arguments(swin: &Swin) -> Map<String, Value> {
    let mut args = object(json!({
        "img_size": swin.image_size,
        "patch_size": square(swin.patch_size),
        "in_chans": swin.channels,
        "num_classes": swin.classes,
        "embed_dim": swin.widths,
        "depths": swin.depths,
        "num_heads": swin.heads,
        "window_size": uniform(&swin.windows).map_or_else(|| json!(swin.windows), |window| square(*window)),
        "always_partition": swin.always_partition,
        "mlp_ratio": swin.mlp_ratios,
        "qkv_bias": swin.qkv_bias,
        "norm_layer": { "LayerNorm": { "eps": short(swin.norm_epsilon) } },
        "drop_rate": short(swin.dropout),
        "proj_drop_rate": short(swin.projection_dropout),
        "attn_drop_rate": short(swin.attention_dropout),
        "drop_path_rate": short(swin.drop_path),
    }));
    match &swin.version {
        SwinVersion::V1 => {
            args.insert("head_dim".into(), json!(swin.head_dims));
        }
        SwinVersion::V2 { pretrained_windows } => {
            let sizes = pretrained_windows.iter().map(|window| window.map_or(json!(0), square));
            args.insert("pretrained_window_sizes".into(), sizes.collect());
        }
    }
    if swin.activation != Activation::Gelu {
        args.insert("act_layer".into(), json!(swin.activation.name()));
    }
    args
}

/// The model that timm changes into this one and the arguments, or why it cannot.
fn base(swin: &Swin) -> Result<(String, Map<String, Value>), String> {
    let doubling = swin.widths.iter().enumerate().all(|(stage, &width)| width == swin.widths[0] << stage);
    if !doubling {
        return Err("timm's Swin doubles its width from stage to stage".into());
    }
    if swin.norm_epsilon != Swin::default().norm_epsilon {
        return Err("timm reads no epsilon of a norm from a file".into());
    }
    if swin.windows.iter().any(|[height, width]| height != width) {
        return Err("timm does not load weights for windows that are not square".into());
    }
    let mut args = arguments(swin);
    for name in ["num_classes", "in_chans", "norm_layer"] {
        args.remove(name);
    }
    args.insert("embed_dim".into(), json!(swin.widths[0]));
    match &swin.version {
        SwinVersion::V1 => {
            if swin.activation != Activation::Gelu {
                return Err("timm's Swin has no other activation than GELU".into());
            }
            if swin.head_dims.iter().all(Option::is_none) {
                args.remove("head_dim");
            }
            // timm would read one pair as a size per stage.
            if args["window_size"].is_array() {
                args.insert("window_size".into(), json!(swin.windows));
            }
            Ok(("swin_tiny_patch4_window7_224".into(), args))
        }
        SwinVersion::V2 { .. } => {
            let (Some(ratio), Some(_)) = (uniform(&swin.mlp_ratios), uniform(&swin.windows)) else {
                return Err("timm's Swin V2 has one MLP ratio and one window size for all stages".into());
            };
            args.insert("mlp_ratio".into(), json!(ratio));
            Ok(("swinv2_tiny_window8_256".into(), args))
        }
    }
}
