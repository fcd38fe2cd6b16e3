//! The constructor of timm's `MaxxVit`, as far as it makes CoAtNets, and its two nested configurations.

use serde_json::{Map, Value, json};
use vit_graph::ops::{Activation, Operation};

use super::{BlockKind, CoAtNet, Convolutions, Downsample, RelativePositions, StrideOn, Transformers};
use crate::config::timm::{mean_pooling, object, rates, short};
use crate::config::{Arguments, Configured, TimmForm};
use crate::layers::{Norm, Padding};
use vit_preprocess::Preprocess;

const CLASS: &str = "timm.models.maxxvit.MaxxVit";

/// Options of MaxViT's blocks only, and those that do not change what a model computes.
const IGNORED: [&str; 8] = [
    "head_first",
    "partition_ratio",
    "window_size",
    "grid_size",
    "no_block_attn",
    "use_nchw_attn",
    "norm_layer_cl",
    "init_values",
];

/// The two nested configurations, and the prefixes of their arguments.
const PARTS: [(&str, &str); 2] = [("conv_cfg", "conv_"), ("transformer_cfg", "transformer_")];

impl Configured for CoAtNet {
    fn constructor(&self) -> (&'static str, Map<String, Value>) {
        (CLASS, arguments(self))
    }

    fn configure(&mut self, args: &Arguments) -> Result<(), String> {
        self.image_size = args.pair("img_size")?.unwrap_or(self.image_size);
        self.channels = args.count("in_chans")?.unwrap_or(self.channels);
        self.classes = args.count("num_classes")?.unwrap_or(self.classes);
        self.dropout = args.rate("drop_rate")?.unwrap_or(self.dropout);
        self.drop_path = args.rate("drop_path_rate")?.unwrap_or(self.drop_path);
        mean_pooling(args)?;
        if let Some(cfg) = args.object("cfg")? {
            configure_parts(&Arguments::new("timm", cfg), self)?;
        }
        if let Some(cfg) = overlaid(args, self) {
            configure_parts(&Arguments::new("timm", &cfg), self)?;
        }
        args.finish(&["pretrained", "features_only"])
    }

    fn timm(&self) -> TimmForm {
        let mut beside_name = rates(flat(self));
        beside_name.insert("img_size".into(), json!(self.image_size));
        let base = Ok(("coatnet_0_rw_224".into(), flat(self)));
        TimmForm { beside_name, base, fixed_image_size: true, ..TimmForm::published(Map::new()) }
    }

    fn classes() -> Vec<(&'static str, Self, Preprocess)> {
        vec![(CLASS, constructed(), Preprocess::inception())]
    }
}

/// The model of the constructor without arguments.
fn constructed() -> CoAtNet {
    CoAtNet { head_hidden: None, ..CoAtNet::default() }
}

/// The model's configuration with arguments merged into it, those of its two parts by their prefixes; `None` if there are
/// none.
fn overlaid(args: &Arguments, net: &CoAtNet) -> Option<Map<String, Value>> {
    let mut cfg = arguments(net).remove("cfg")?.as_object()?.clone();
    let mut changed = false;
    let mut lay = |part: &mut Map<String, Value>, prefix: &str| {
        for (name, value) in part.iter_mut().filter(|(_, value)| !value.is_object()) {
            if let Some(given) = args.get(&format!("{prefix}{name}")) {
                (*value, changed) = (given.clone(), true);
            }
        }
    };
    lay(&mut cfg, "");
    for (part, prefix) in PARTS {
        lay(cfg.get_mut(part)?.as_object_mut()?, prefix);
    }
    changed.then_some(cfg)
}

fn configure_parts(cfg: &Arguments, net: &mut CoAtNet) -> Result<(), String> {
    net.widths = cfg.counts("embed_dim")?.unwrap_or_else(|| net.widths.clone());
    let depths = cfg.counts("depths")?.unwrap_or_else(|| net.stages.iter().map(Vec::len).collect());
    if depths.len() > 16 || depths.iter().any(|&d| d > 1 << 10) {
        return Err(format!("timm's option `depths` is out of bounds: {depths:?}"));
    }
    let kinds = match cfg.get("block_type") {
        Some(value) => value.as_array().ok_or("timm's option `block_type` should be a list")?.clone(),
        None => vec![json!("C"), json!("C"), json!("T"), json!("T")],
    };
    net.stages = kinds.iter().zip(&depths).map(|(kind, &depth)| stage(kind, depth)).collect::<Result<_, _>>()?;
    net.stem_widths = cfg.pair("stem_width")?.unwrap_or(net.stem_widths);
    net.stem_bias = cfg.flag("stem_bias")?.unwrap_or(net.stem_bias);
    net.head_hidden = match cfg.count("head_hidden_size")? {
        Some(0) => None,
        hidden => hidden.or(net.head_hidden),
    };
    if let Some(conv) = cfg.object("conv_cfg")? {
        net.convolutions = convolutions(&Arguments::new("timm", conv))?;
    }
    if let Some(transformer) = cfg.object("transformer_cfg")? {
        net.transformers = transformers(&Arguments::new("timm", transformer))?;
    }
    cfg.finish(&["weight_init"])
}

/// One kind for all blocks of a stage, or a list for its first ones, whose last is repeated.
fn stage(kinds: &Value, depth: usize) -> Result<Vec<BlockKind>, String> {
    let one = |value: &Value| match value.as_str() {
        Some("C") => Ok(BlockKind::Convolution),
        Some("T") => Ok(BlockKind::Transformer),
        _ => Err(format!("timm's blocks of type {value} cannot be used here yet; C and T can")),
    };
    let first: Vec<BlockKind> = match kinds.as_array() {
        Some(each) => each.iter().map(one).collect::<Result<_, _>>()?,
        None => vec![one(kinds)?],
    };
    let last = *first.last().ok_or("timm's option `block_type` has an empty stage")?;
    Ok((0..depth).map(|i| first.get(i).copied().unwrap_or(last)).collect())
}

fn downsample(args: &Arguments, name: &str, usual: Downsample) -> Result<Downsample, String> {
    match args.text(name)? {
        None => Ok(usual),
        Some("max") => Ok(Downsample::Max),
        Some("max2") => Ok(Downsample::Max2),
        Some("avg") => Ok(Downsample::Mean),
        Some("avg2") => Ok(Downsample::Mean2),
        Some(other) => Err(format!("timm's option `{name}` should be max, max2, avg or avg2, not `{other}`")),
    }
}

fn norm(args: &Arguments, usual: &str, epsilon: f64) -> Result<Norm, String> {
    let epsilon = args.number("norm_eps")?.unwrap_or(epsilon) as f32;
    match args.text("norm_layer")?.filter(|name| !name.is_empty()).unwrap_or(usual) {
        "batchnorm2d" => Ok(Norm::Batch { epsilon, momentum: 0.1 }),
        "layernorm2d" => Ok(Norm::Layer { epsilon }),
        other => Err(format!("timm's option `norm_layer` should be batchnorm2d or layernorm2d, not `{other}`")),
    }
}

fn convolutions(args: &Arguments) -> Result<Convolutions, String> {
    let usual = Convolutions::default();
    match args.text("block_type")? {
        None | Some("mbconv") => {}
        Some(other) => return Err(format!("timm's option `block_type` should be mbconv, not `{other}`")),
    }
    let pooling = downsample(args, "pool_type", Downsample::Mean2)?;
    let before = match args.text("downsample_pool_type")? {
        Some("") => pooling,
        _ => downsample(args, "downsample_pool_type", Downsample::Mean2)?,
    };
    let found = Convolutions {
        expansion: args.number("expand_ratio")?.unwrap_or(usual.expansion),
        expand_output: args.flag("expand_output")?.unwrap_or(usual.expand_output),
        kernel: args.count("kernel_size")?.unwrap_or(usual.kernel),
        group_size: args.count("group_size")?.unwrap_or(usual.group_size),
        pre_norm_activation: args.flag("pre_norm_act")?.unwrap_or(usual.pre_norm_activation),
        output_bias: args.flag("output_bias")?.unwrap_or(usual.output_bias),
        stride_on: match args.text("stride_mode")?.unwrap_or("dw") {
            "pool" => StrideOn::Pooling(before),
            "1x1" => StrideOn::Pointwise,
            "dw" => StrideOn::Depthwise,
            other => return Err(format!("timm's option `stride_mode` should be pool, 1x1 or dw, not `{other}`")),
        },
        shortcut: pooling,
        padding: match args.text("padding")?.map(str::to_ascii_lowercase).as_deref() {
            None | Some("") => Padding::Symmetric,
            Some("same") => Padding::Same,
            Some(other) => return Err(format!("timm's option `padding` should be same or empty, not `{other}`")),
        },
        squeeze_early: args.flag("attn_early")?.unwrap_or(usual.squeeze_early),
        squeeze: match args.text("attn_layer")?.unwrap_or("se") {
            "se" => Some(args.number("attn_ratio")?.unwrap_or(0.25)),
            "" => None,
            other => return Err(format!("timm's option `attn_layer` should be se or empty, not `{other}`")),
        },
        squeeze_activation: args.activation("attn_act_layer")?.unwrap_or(usual.squeeze_activation),
        activation: args.activation("act_layer")?.unwrap_or(usual.activation),
        norm: norm(args, "batchnorm2d", 1e-5)?,
    };
    args.number("attn_ratio")?;
    args.finish(&IGNORED)?;
    Ok(found)
}

fn transformers(args: &Arguments) -> Result<Transformers, String> {
    let usual = Transformers::default();
    let hidden = args.count("rel_pos_dim")?.unwrap_or(512);
    let found = Transformers {
        head_dim: args.count("dim_head")?.unwrap_or(usual.head_dim),
        mlp_ratio: args.number("expand_ratio")?.unwrap_or(usual.mlp_ratio),
        expand_first: args.flag("expand_first")?.unwrap_or(usual.expand_first),
        shortcut_bias: args.flag("shortcut_bias")?.unwrap_or(usual.shortcut_bias),
        attention_bias: args.flag("attn_bias")?.unwrap_or(usual.attention_bias),
        pooling: downsample(args, "pool_type", usual.pooling)?,
        positions: match args.text("rel_pos_type")?.unwrap_or("bias") {
            "bias" => RelativePositions::Table,
            "bias_tf" => RelativePositions::TableByHead,
            "mlp" => RelativePositions::Network(hidden),
            "" => RelativePositions::None,
            other => return Err(format!("timm's option `rel_pos_type` should be bias, bias_tf or mlp, not `{other}`")),
        },
        // timm treats 0 as no layer scale.
        layer_scale: args.number("init_values")?.filter(|&v| v != 0.0).map(|v| v as f32),
        activation: args.activation("act_layer")?.unwrap_or(usual.activation),
        norm: norm(args, "layernorm2d", 1e-6)?,
        attention_dropout: args.rate("attn_drop")?.unwrap_or(usual.attention_dropout),
        projection_dropout: args.rate("proj_drop")?.unwrap_or(usual.projection_dropout),
    };
    args.finish(&IGNORED)?;
    Ok(found)
}

fn pooled(how: Downsample) -> &'static str {
    match how {
        Downsample::Max => "max",
        Downsample::Max2 => "max2",
        Downsample::Mean => "avg",
        Downsample::Mean2 => "avg2",
    }
}

fn normed(norm: Norm) -> (&'static str, f64) {
    match norm {
        Norm::Batch { epsilon, .. } | Norm::Group { epsilon, .. } => ("batchnorm2d", short(epsilon)),
        Norm::Layer { epsilon } => ("layernorm2d", short(epsilon)),
    }
}

/// The constructor's arguments that make this model.
fn arguments(net: &CoAtNet) -> Map<String, Value> {
    let (c, t) = (&net.convolutions, &net.transformers);
    let kinds: Vec<Value> = net.stages.iter().map(|stage| kinds(stage)).collect();
    let depths: Vec<usize> = net.stages.iter().map(Vec::len).collect();
    let (stride, before) = match c.stride_on {
        StrideOn::Pooling(how) => ("pool", how),
        StrideOn::Pointwise => ("1x1", Downsample::Mean2),
        StrideOn::Depthwise => ("dw", Downsample::Mean2),
    };
    let (positions, hidden) = match t.positions {
        RelativePositions::None => ("", 512),
        RelativePositions::Table => ("bias", 512),
        RelativePositions::TableByHead => ("bias_tf", 512),
        RelativePositions::Network(hidden) => ("mlp", hidden),
    };
    let name = |a: Activation| a.name();
    object(json!({
        "img_size": net.image_size,
        "in_chans": net.channels,
        "num_classes": net.classes,
        "drop_rate": short(net.dropout),
        "drop_path_rate": short(net.drop_path),
        "cfg": {
            "embed_dim": net.widths,
            "depths": depths,
            "block_type": kinds,
            "stem_width": net.stem_widths,
            "stem_bias": net.stem_bias,
            "head_hidden_size": net.head_hidden.unwrap_or(0),
            "conv_cfg": {
                "expand_ratio": c.expansion,
                "expand_output": c.expand_output,
                "kernel_size": c.kernel,
                "group_size": c.group_size,
                "pre_norm_act": c.pre_norm_activation,
                "output_bias": c.output_bias,
                "stride_mode": stride,
                "pool_type": pooled(c.shortcut),
                "downsample_pool_type": pooled(before),
                "padding": if c.padding == Padding::Same { "same" } else { "" },
                "attn_early": c.squeeze_early,
                "attn_layer": if c.squeeze.is_some() { "se" } else { "" },
                "attn_ratio": c.squeeze.unwrap_or(0.25),
                "attn_act_layer": name(c.squeeze_activation),
                "act_layer": name(c.activation),
                "norm_layer": normed(c.norm).0,
                "norm_eps": normed(c.norm).1,
            },
            "transformer_cfg": {
                "dim_head": t.head_dim,
                "expand_ratio": t.mlp_ratio,
                "expand_first": t.expand_first,
                "shortcut_bias": t.shortcut_bias,
                "attn_bias": t.attention_bias,
                "pool_type": pooled(t.pooling),
                "rel_pos_type": positions,
                "rel_pos_dim": hidden,
                "init_values": t.layer_scale.map(short),
                "act_layer": name(t.activation),
                "norm_layer": normed(t.norm).0,
                "norm_eps": normed(t.norm).1,
                "attn_drop": short(t.attention_dropout),
                "proj_drop": short(t.projection_dropout),
            },
        },
    }))
}

/// The blocks of a stage: one letter if they are all of one kind.
fn kinds(stage: &[BlockKind]) -> Value {
    let letter = |kind: &BlockKind| if *kind == BlockKind::Transformer { "T" } else { "C" };
    match stage {
        [first, rest @ ..] if rest.iter().all(|kind| kind == first) => json!(letter(first)),
        mixed => json!(mixed.iter().map(letter).collect::<Vec<_>>()),
    }
}

/// The arguments as `create_model` takes them, with prefixes for the two parts.
fn flat(net: &CoAtNet) -> Map<String, Value> {
    let mut args = arguments(net);
    let cfg = args.remove("cfg").and_then(|cfg| cfg.as_object().cloned()).unwrap_or_default();
    for (name, value) in cfg {
        match PARTS.iter().find(|(part, _)| *part == name) {
            Some((_, prefix)) => {
                let part = value.as_object().cloned().unwrap_or_default();
                args.extend(part.into_iter().filter(|(_, v)| !v.is_null()).map(|(n, v)| (format!("{prefix}{n}"), v)));
            }
            None => {
                args.insert(name, value);
            }
        }
    }
    for name in ["num_classes", "in_chans"] {
        args.remove(name);
    }
    args
}
