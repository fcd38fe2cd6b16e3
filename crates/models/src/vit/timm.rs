//! The constructor of timm's `VisionTransformer`, also with convolutional stages before it.

use serde_json::{Map, Value, json};
use vit_graph::ops::{Activation, Operation};

use super::{FinalNorm, Pooling, Positions, PositionsOn, Vit, variants};
use crate::architecture::Architecture;
use crate::config::timm::{object, short, square};
use crate::config::{Arguments, Configured, TimmForm};
use crate::resnetv2::ResNetV2;
use vit_preprocess::Preprocess;

const CLASS: &str = "timm.models.vision_transformer.VisionTransformer";
const HYBRID: &str = "timm.models.vision_transformer.VisionTransformer+HybridEmbed";
const DISTILLED: &str = "timm.models.deit.VisionTransformerDistilled";

/// Options of training and initialisation.
const IGNORED: [&str; 9] = [
    "weight_init",
    "fix_init",
    "dynamic_img_size",
    "dynamic_img_pad",
    "strict_img_size",
    "pretrained",
    "features_only",
    "patch_drop_rate",
    "drop_rate",
];

impl Configured for Vit {
    fn constructor(&self) -> (&'static str, Map<String, Value>) {
        let class = match (&self.backbone, self.distillation_head) {
            (Some(_), _) => HYBRID,
            (None, true) => DISTILLED,
            (None, false) => CLASS,
        };
        let mut args = arguments(self);
        args.insert("num_classes".into(), json!(self.classes));
        args.insert("in_chans".into(), json!(self.channels));
        if let Some(backbone) = &self.backbone {
            args.insert("backbone".into(), Value::Object(backbone.constructor().1));
        }
        (class, args)
    }

    fn configure(&mut self, args: &Arguments) -> Result<(), String> {
        let old_ratio = self.mlp_dim as f64 / self.dim as f64;
        self.image_size = args.pair("img_size")?.unwrap_or(self.image_size);
        self.patch_size = args.pair("patch_size")?.unwrap_or(self.patch_size);
        self.channels = args.count("in_chans")?.unwrap_or(self.channels);
        self.classes = args.count("num_classes")?.unwrap_or(self.classes);
        self.dim = args.count("embed_dim")?.unwrap_or(self.dim);
        self.depth = args.count("depth")?.unwrap_or(self.depth);
        self.heads = args.count("num_heads")?.unwrap_or(self.heads);
        self.mlp_dim = (self.dim as f64 * args.number("mlp_ratio")?.unwrap_or(old_ratio)) as usize;
        self.qkv_bias = args.flag("qkv_bias")?.unwrap_or(self.qkv_bias);
        self.qk_norm = args.flag("qk_norm")?.unwrap_or(self.qk_norm);
        self.class_token = args.flag("class_token")?.unwrap_or(self.class_token);
        self.registers = args.count("reg_tokens")?.unwrap_or(self.registers);
        self.pre_norm = args.flag("pre_norm")?.unwrap_or(self.pre_norm);
        self.layer_scale = args.number("init_values")?.map(|v| v as f32).or(self.layer_scale);
        self.activation = args.activation("act_layer")?.unwrap_or(self.activation);
        if let Some(no_embed_class) = args.flag("no_embed_class")? {
            self.positions_on = if no_embed_class { PositionsOn::Patches } else { PositionsOn::AllTokens };
        }
        match args.text("pos_embed")? {
            Some("" | "none") => self.positions = Positions::None,
            Some("learn") => self.positions = Positions::Learned,
            Some(other) => return Err(format!("timm's option `pos_embed` should be learn or none, not {other}")),
            None => {}
        }
        let found_pooling = self.pooling;
        let pooling = args.text("global_pool")?;
        match pooling {
            Some("token") => self.pooling = Pooling::Token,
            Some("avg") => self.pooling = Pooling::Mean,
            Some("map") => self.pooling = Pooling::Map,
            Some(other) => {
                return Err(format!("timm's option `global_pool` should be token, avg or map, not `{other}`"));
            }
            None => {}
        }
        // In timm, a named model that pools by the mean after its norm sets `fc_norm` to false itself.
        let fixed = (found_pooling == Pooling::Mean && self.final_norm == FinalNorm::BeforePooling).then_some(false);
        let fc_norm = args.flag("fc_norm")?.or(fixed);
        let final_norm = args.flag("final_norm")?.unwrap_or(self.final_norm != FinalNorm::Absent);
        self.final_norm = match (final_norm, fc_norm, pooling) {
            (false, ..) => FinalNorm::Absent,
            (_, Some(true), _) | (_, None, Some("avg")) => FinalNorm::AfterPooling,
            (_, Some(false), _) | (_, None, Some(_)) => FinalNorm::BeforePooling,
            (_, None, None) => self.final_norm,
        };
        let rates = [args.rate("proj_drop_rate")?, args.rate("pos_drop_rate")?];
        self.dropout = rates.into_iter().flatten().fold(self.dropout, f32::max);
        self.attention_dropout = args.rate("attn_drop_rate")?.unwrap_or(self.attention_dropout);
        self.drop_path = args.rate("drop_path_rate")?.unwrap_or(self.drop_path);
        for name in ["pool_include_prefix", "scale_attn_norm", "scale_mlp_norm"] {
            if args.flag(name)? == Some(true) {
                return Err(format!("timm's option `{name}` cannot be used here yet"));
            }
        }
        if args.flag("proj_bias")? == Some(false) {
            return Err("timm's option `proj_bias: false` cannot be used here yet".into());
        }
        if let Some(backbone) = args.object("backbone")? {
            let mut stages = ResNetV2 { classes: 0, ..ResNetV2::default() };
            stages.configure(&Arguments::new("timm", backbone))?;
            self.backbone = Some(Box::new(stages));
        }
        args.finish(&IGNORED)
    }

    /// Reads what `extra` writes.
    fn configure_extra(&mut self, extra: &Arguments) -> Result<(), String> {
        self.norm_epsilon = extra.number("norm_epsilon")?.map_or(self.norm_epsilon, |e| e as f32);
        self.pre_logits = extra.count("pre_logits")?.or(self.pre_logits);
        self.distillation_token = extra.flag("distillation_token")?.unwrap_or(self.distillation_token);
        self.distillation_head = extra.flag("distillation_head")?.unwrap_or(self.distillation_head);
        // Older versions wrote a width that is not a multiple.
        self.mlp_dim = extra.count("mlp_dim")?.unwrap_or(self.mlp_dim);
        self.positions = match extra.text("positions")? {
            None => self.positions,
            Some("learned_2d") => Positions::Learned2d,
            Some("sin_cos") => Positions::SinCos,
            Some("relative") => Positions::Relative,
            Some(other) => return Err(format!("`positions` should be learned_2d, sin_cos or relative, not {other}")),
        };
        extra.finish(&[])
    }

    fn timm(&self) -> TimmForm {
        let usual = Vit::default().norm_epsilon;
        let difference = format!(
            "timm computes with an epsilon of {usual:e} in its layer norms instead of {:e}; its outputs differ a little",
            self.norm_epsilon
        );
        TimmForm {
            beside_name: arguments(self),
            base: base(self).map(|name| (name, arguments(self))),
            fixed_image_size: true,
            keys: object(json!({ "num_features": self.dim, "global_pool": pooling(self) })),
            extra: extra(self),
            differences: if self.norm_epsilon == usual { Vec::new() } else { vec![difference] },
        }
    }

    /// Rates of dropout belong to a training run here, and the epsilon is not among timm's arguments.
    fn same_in_timm(&self, other: &Architecture) -> bool {
        let Some(other) = other.downcast_ref::<Vit>() else { return false };
        let Vit { dropout, attention_dropout, drop_path, norm_epsilon, .. } = *self;
        Vit { dropout, attention_dropout, drop_path, norm_epsilon, ..other.clone() } == *self
    }

    fn classes() -> Vec<(&'static str, Self, Preprocess)> {
        let distilled = Vit { distillation_token: true, distillation_head: true, ..Vit::default() };
        vec![
            (CLASS, Vit::default(), Preprocess::inception()),
            (HYBRID, Vit::default(), Preprocess::inception()),
            (DISTILLED, distilled, Preprocess::imagenet()),
        ]
    }
}

/// The arguments of `create_model` without name, channels and classes.
fn arguments(vit: &Vit) -> Map<String, Value> {
    let mut args = Map::new();
    let mut set = |name: &str, value: Value| args.insert(name.into(), value);
    set("img_size", json!(vit.image_size));
    set("patch_size", square(vit.patch_size));
    set("embed_dim", json!(vit.dim));
    set("depth", json!(vit.depth));
    set("num_heads", json!(vit.heads));
    set("mlp_ratio", json!(mlp_ratio(vit)));
    set("qkv_bias", json!(vit.qkv_bias));
    set("class_token", json!(vit.class_token));
    if !vit.distillation_head {
        set("global_pool", json!(pooling(vit)));
        set("fc_norm", json!(vit.final_norm == FinalNorm::AfterPooling));
    }
    for (name, on) in [
        ("qk_norm", vit.qk_norm),
        ("pre_norm", vit.pre_norm),
        ("no_embed_class", vit.positions_on == PositionsOn::Patches),
    ] {
        if on {
            set(name, json!(true));
        }
    }
    if vit.final_norm == FinalNorm::Absent {
        set("final_norm", json!(false));
    }
    if vit.registers > 0 {
        set("reg_tokens", json!(vit.registers));
    }
    if let Some(initial) = vit.layer_scale {
        set("init_values", json!(f64::from(initial)));
    }
    if vit.activation != Activation::Gelu {
        set("act_layer", json!(vit.activation.name()));
    }
    if vit.positions == Positions::None {
        set("pos_embed", json!("none"));
    }
    args
}

/// The MLP's ratio, rounded so that the width is the same again after the product is rounded down.
fn mlp_ratio(vit: &Vit) -> f64 {
    let ratio = vit.mlp_dim as f64 / vit.dim as f64;
    if (vit.dim as f64 * ratio) as usize == vit.mlp_dim { ratio } else { ratio.next_up() }
}

/// The name of the model that timm changes into this one, or why it cannot.
fn base(vit: &Vit) -> Result<String, String> {
    let positions = match vit.positions {
        Positions::None | Positions::Learned => None,
        Positions::Learned2d => Some("positions that are learned for rows and columns"),
        Positions::SinCos => Some("positions of sines and cosines"),
        Positions::Relative => Some("relative positions"),
    };
    let lone = vit.distillation_token && !vit.distillation_head;
    let missing = [
        positions,
        vit.pre_logits.map(|_| "a hidden layer in the head"),
        lone.then_some("a distillation token without a head of its own"),
    ];
    if let Some(what) = missing.into_iter().flatten().next() {
        return Err(format!("timm's VisionTransformer has no option for {what}"));
    }
    match (&vit.backbone, vit.distillation_head) {
        (None, false) => Ok("vit_base_patch16_224".into()),
        (None, true) => Ok("deit_base_distilled_patch16_224".into()),
        (Some(_), _) => hybrid(vit).ok_or_else(|| "timm has no such convolutional stages before the encoder".into()),
    }
}

/// A published hybrid with the same stages.
fn hybrid(vit: &Vit) -> Option<String> {
    let stages = |other: &Vit| other.backbone == vit.backbone;
    variants::variants().into_iter().find(|v| v.architecture.downcast_ref().is_some_and(stages)).map(|v| v.name)
}

/// timm's name of a way to pool.
fn pooling(vit: &Vit) -> &'static str {
    match vit.pooling {
        Pooling::Token => "token",
        Pooling::Mean => "avg",
        Pooling::Map => "map",
    }
}

/// Settings that timm's arguments cannot express.
fn extra(vit: &Vit) -> Map<String, Value> {
    let mut extra = Map::new();
    if vit.norm_epsilon != Vit::default().norm_epsilon {
        extra.insert("norm_epsilon".into(), json!(short(vit.norm_epsilon)));
    }
    if let Some(hidden) = vit.pre_logits {
        extra.insert("pre_logits".into(), json!(hidden));
    }
    if vit.distillation_token && !vit.distillation_head {
        extra.insert("distillation_token".into(), json!(true));
    }
    let positions = match vit.positions {
        Positions::None | Positions::Learned => None,
        Positions::Learned2d => Some("learned_2d"),
        Positions::SinCos => Some("sin_cos"),
        Positions::Relative => Some("relative"),
    };
    if let Some(positions) = positions {
        extra.insert("positions".into(), json!(positions));
    }
    extra
}
