//! The constructor of timm's `VisionTransformer`, also with convolutional stages before it. The other classes that are
//! Vision Transformers have a file each.

use serde_json::{Map, Value, json};
use vit_graph::ops::{Activation, Operation};

use super::{
    Backbone, BiasSharing, BlockKind, Embedding, FinalNorm, Lineage, MaskedPatches, Pooling, Positions, PositionsOn,
    Pretraining, QkvBias, RelativeBias, RelativeBiasKind, RotaryAngles, Vit, beit, eva, relpos, variants,
};
use crate::architecture::Architecture;
use crate::config::timm::{object, short, square};
use crate::config::{Arguments, Configured, TimmForm, whole};
use crate::layers::{Gate, NormKind};
use crate::weights::names::timm::beit_name;
use vit_preprocess::Preprocess;

const CLASS: &str = "timm.models.vision_transformer.VisionTransformer";
const HYBRID: &str = "timm.models.vision_transformer.VisionTransformer+HybridEmbed";
const MASKED_PATCHES: &str = "timm.models.vision_transformer.VisionTransformer + mask_token";
const DISTILLED: &str = "timm.models.deit.VisionTransformerDistilled";

/// Options of training and initialisation.
pub(super) const IGNORED: [&str; 9] = [
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
        let class = match (self.lineage, &self.backbone, self.distillation_head) {
            (Lineage::Beit, ..) => beit::CLASS,
            (Lineage::RelPos, ..) => relpos::CLASS,
            (Lineage::Eva, ..) => eva::CLASS,
            (Lineage::VisionTransformer, Some(_), _) => HYBRID,
            (Lineage::VisionTransformer, None, true) => DISTILLED,
            (Lineage::VisionTransformer, None, false) => CLASS,
        };
        let mut args = arguments(self, self);
        args.extend(classes_of_layers(self));
        args.insert("num_classes".into(), json!(self.classes));
        args.insert("in_chans".into(), json!(self.channels));
        if let Some(backbone) = &self.backbone {
            args.insert("backbone".into(), Value::Object(backbone.described()));
        }
        (class, args)
    }

    fn configure(&mut self, args: &Arguments) -> Result<(), String> {
        match self.lineage {
            Lineage::VisionTransformer => {}
            Lineage::Beit => return beit::configure(self, args),
            Lineage::RelPos => return relpos::configure(self, args),
            Lineage::Eva => return eva::configure(self, args),
        }
        if let Some(gate) = gate(args)? {
            // The ratio of a named model stays, and timm's counts both halves of a packed gate.
            let ratio = mlp_ratio(self);
            self.gate = gate;
            self.mlp_dim = hidden_width(self, ratio);
        }
        if let Some((block, differential)) = block(args)? {
            (self.block, self.differential) = (block, differential || self.differential);
        }
        if let Some(class) = args.text("attn_layer")? {
            self.differential = match class {
                "" | "attn" | "Attention" => false,
                "diff" | "DiffAttention" => true,
                _ => return Err(format!("timm's option `attn_layer` should be attn or diff, not `{class}`")),
            };
        }
        configure_encoder(self, args, QkvBias::All)?;
        if let Some(found) = norm(args, "embed_norm_layer")? {
            if found != (self.norm, self.norm_epsilon) {
                return Err("timm's option `embed_norm_layer` should be the same as `norm_layer`".into());
            }
            self.patch_norm = true;
        }
        self.patch_drop = args.rate("patch_drop_rate")?.unwrap_or(self.patch_drop);
        self.qk_norm = args.flag("qk_norm")?.unwrap_or(self.qk_norm);
        self.attention_norm = args.flag("scale_attn_norm")?.unwrap_or(self.attention_norm);
        self.mlp_norm = args.flag("scale_mlp_norm")?.unwrap_or(self.mlp_norm);
        self.projection_bias = args.flag("proj_bias")?.unwrap_or(self.projection_bias);
        self.class_token = args.flag("class_token")?.unwrap_or(self.class_token);
        self.registers = args.count("reg_tokens")?.unwrap_or(self.registers);
        self.pre_norm = args.flag("pre_norm")?.unwrap_or(self.pre_norm);
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
        if let Some(name) = pooling {
            let Some((_, found)) = POOLING.iter().find(|(known, _)| *known == name) else {
                let known: Vec<&str> = POOLING.iter().map(|(known, _)| *known).collect();
                return Err(format!("timm's option `global_pool` should be one of {}, not `{name}`", known.join(", ")));
            };
            self.pooling = *found;
        }
        self.pool_prefix = args.flag("pool_include_prefix")?.unwrap_or(self.pool_prefix);
        // In timm, a named model that pools by the mean after its norm sets `fc_norm` to false itself.
        let fixed = (over_patches(found_pooling) && self.final_norm == FinalNorm::BeforePooling).then_some(false);
        let fc_norm = args.flag("fc_norm")?.or(fixed);
        let final_norm = args.flag("final_norm")?.unwrap_or(self.final_norm != FinalNorm::Absent);
        self.final_norm = match (final_norm, fc_norm, pooling) {
            (false, ..) => FinalNorm::Absent,
            (_, Some(true), _) => FinalNorm::AfterPooling,
            (_, None, Some(_)) if over_patches(self.pooling) => FinalNorm::AfterPooling,
            (_, Some(false), _) | (_, None, Some(_)) => FinalNorm::BeforePooling,
            (_, None, None) => self.final_norm,
        };
        if matches!(self.pretraining, Some(Pretraining::MaskedPatches(_))) {
            // The head predicts patches.
            self.classes = 0;
        }
        if let Some(backbone) = args.object("backbone")? {
            self.backbone = Some(Box::new(Backbone::read(backbone)?));
        }
        args.finish(&IGNORED)
    }

    /// Reads what `extra` writes.
    fn configure_extra(&mut self, extra: &Arguments) -> Result<(), String> {
        self.norm_epsilon = extra.number("norm_epsilon")?.map_or(self.norm_epsilon, |e| e as f32);
        self.pre_logits = extra.count("pre_logits")?.or(self.pre_logits);
        if let (Some(rotary), Some(true)) = (&mut self.rotary, extra.flag("bf16_periods")?) {
            rotary.round_periods();
        }
        self.activation = extra.activation("activation")?.unwrap_or(self.activation);
        self.projection_bias = extra.flag("projection_bias")?.unwrap_or(self.projection_bias);
        self.final_norm = match extra.text("final_norm")? {
            None => self.final_norm,
            Some("absent") => FinalNorm::Absent,
            Some(other) => return Err(format!("`final_norm` should be absent, not {other}")),
        };
        self.distillation_token = extra.flag("distillation_token")?.unwrap_or(self.distillation_token);
        self.distillation_head = extra.flag("distillation_head")?.unwrap_or(self.distillation_head);
        self.pooling = match extra.text("pooling")? {
            None => self.pooling,
            Some("token_and_mean") => Pooling::TokenAndMean,
            Some(other) => return Err(format!("`pooling` should be token_and_mean, not {other}")),
        };
        self.embedding = match extra.get("embedding") {
            None => self.embedding,
            Some(Value::String(kind)) if kind == "pooled" => Some(Embedding::Pooled),
            Some(width) => Some(Embedding::Projected(whole(width).ok_or("`embedding` should be pooled or a width")?)),
        };
        // Older versions wrote a width that is not a multiple.
        self.mlp_dim = extra.count("mlp_dim")?.unwrap_or(self.mlp_dim);
        match extra.text("positions")? {
            None => {}
            Some("learned_2d") => self.positions = Positions::Learned2d,
            Some("sin_cos") => self.positions = Positions::SinCos,
            // A table in each block and no other positions, as older versions wrote it.
            Some("relative") => (self.positions, self.relative_bias) = (Positions::None, Some(RelativeBias::TABLES)),
            Some(other) => return Err(format!("`positions` should be learned_2d, sin_cos or relative, not {other}")),
        }
        match extra.text("qkv_bias")? {
            None => {}
            Some("query_value") => self.qkv.bias = QkvBias::QueryValue,
            Some(other) => return Err(format!("`qkv_bias` should be query_value, not {other}")),
        }
        if let Some(pretraining) = extra.object("pretraining")? {
            self.pretraining = Some(Pretraining::read(pretraining)?);
        }
        if let Some(bias) = extra.object("relative_bias")? {
            self.relative_bias = Some(read_bias(&Arguments::new("vit", bias))?);
        }
        extra.finish(&[])
    }

    fn timm(&self) -> TimmForm {
        let base = base(self);
        let mut extra = extra(self);
        // The epsilon is not among the arguments: the model that timm changes into this one has another.
        if base.as_ref().is_ok_and(|(name, _)| published_epsilon(name) != Some(self.norm_epsilon)) {
            extra.insert("norm_epsilon".into(), json!(short(self.norm_epsilon)));
        }
        TimmForm {
            beside_name: arguments(self, self),
            base: base.map(|(name, base)| (name, arguments(self, &base))),
            fixed_image_size: true,
            keys: object(json!({ "num_features": self.dim, "global_pool": pooling(self) })),
            extra,
        }
    }

    fn differences(&self, built: &Architecture) -> Vec<String> {
        let Some(built) = built.downcast_ref::<Vit>().filter(|built| built.norm_epsilon != self.norm_epsilon) else {
            return Vec::new();
        };
        vec![format!(
            "timm computes with an epsilon of {:e} in its norms instead of {:e}; its outputs differ a little",
            built.norm_epsilon, self.norm_epsilon
        )]
    }

    /// Rates of dropout belong to a training run here, and the epsilon is not among timm's arguments.
    fn same_in_timm(&self, other: &Architecture) -> bool {
        let Some(other) = other.downcast_ref::<Vit>() else { return false };
        let Vit { dropout, attention_dropout, patch_drop, drop_path, norm_epsilon, .. } = *self;
        // So are layers that only pre-training has.
        let pretraining = self.pretraining.clone();
        Vit { dropout, attention_dropout, patch_drop, drop_path, norm_epsilon, pretraining, ..other.clone() } == *self
    }

    fn timm_name(&self, parameter: &str) -> Option<String> {
        matches!(self.lineage, Lineage::Beit | Lineage::Eva).then(|| beit_name(parameter))
    }

    fn classes() -> Vec<(&'static str, Self, Preprocess)> {
        let distilled = Vit { distillation_token: true, distillation_head: true, ..Vit::default() };
        let masked_patches =
            Vit { pretraining: Some(Pretraining::MaskedPatches(MaskedPatches::default())), ..Vit::default() };
        vec![
            (beit::CLASS, beit::default(), Preprocess::inception()),
            (relpos::CLASS, relpos::default(), Preprocess::inception()),
            (CLASS, Vit::default(), Preprocess::inception()),
            (HYBRID, Vit::default(), Preprocess::inception()),
            (MASKED_PATCHES, masked_patches, Preprocess::inception()),
            (DISTILLED, distilled, Preprocess::imagenet()),
            (eva::CLASS, eva::default(), Preprocess::clip()),
        ]
    }
}

/// Reads the arguments that all classes have; `bias` is that of `qkv_bias: true`.
pub(super) fn configure_encoder(vit: &mut Vit, args: &Arguments, bias: QkvBias) -> Result<(), String> {
    let old_ratio = mlp_ratio(vit);
    if let Some((kind, epsilon)) = norm(args, "norm_layer")? {
        (vit.norm, vit.norm_epsilon) = (kind, epsilon);
    }
    vit.image_size = args.pair("img_size")?.unwrap_or(vit.image_size);
    vit.patch_size = args.pair("patch_size")?.unwrap_or(vit.patch_size);
    vit.channels = args.count("in_chans")?.unwrap_or(vit.channels);
    vit.classes = args.count("num_classes")?.unwrap_or(vit.classes);
    vit.dim = args.count("embed_dim")?.unwrap_or(vit.dim);
    vit.depth = args.count("depth")?.unwrap_or(vit.depth);
    vit.heads = args.count("num_heads")?.unwrap_or(vit.heads);
    vit.mlp_dim = hidden_width(vit, args.number("mlp_ratio")?.unwrap_or(old_ratio));
    if let Some(biased) = args.flag("qkv_bias")? {
        vit.qkv.bias = if biased { bias } else { QkvBias::None };
    }
    vit.layer_scale = args.number("init_values")?.map(|v| v as f32).or(vit.layer_scale);
    vit.activation = args.activation("act_layer")?.unwrap_or(vit.activation);
    let rates = [args.rate("proj_drop_rate")?, args.rate("pos_drop_rate")?];
    vit.dropout = rates.into_iter().flatten().fold(vit.dropout, f32::max);
    vit.attention_dropout = args.rate("attn_drop_rate")?.unwrap_or(vit.attention_dropout);
    vit.drop_path = args.rate("drop_path_rate")?.unwrap_or(vit.drop_path);
    Ok(())
}

/// The arguments that all classes have, without channels and classes.
pub(super) fn encoder_arguments(vit: &Vit, base: &Vit) -> Map<String, Value> {
    let mut args = object(json!({
        "img_size": vit.image_size,
        "patch_size": square(vit.patch_size),
        "embed_dim": vit.dim,
        "depth": vit.depth,
        "num_heads": vit.heads,
        "mlp_ratio": mlp_ratio(vit),
        "qkv_bias": vit.qkv.bias != QkvBias::None,
    }));
    if let Some(initial) = vit.layer_scale {
        args.insert("init_values".into(), json!(f64::from(initial)));
    }
    if vit.activation != Activation::Gelu || base.activation != Activation::Gelu {
        args.insert("act_layer".into(), json!(vit.activation.name()));
    }
    args
}

/// The arguments of `create_model` without name, channels and classes, that turn a named model with the layers of `base`
/// into this one.
fn arguments(vit: &Vit, base: &Vit) -> Map<String, Value> {
    let mut args = encoder_arguments(vit, base);
    match vit.lineage {
        Lineage::VisionTransformer => {}
        Lineage::Beit => return beit::arguments(vit, args),
        Lineage::RelPos => return relpos::arguments(vit, args),
        Lineage::Eva => return eva::arguments(vit, args),
    }
    let mut set = |name: &str, value: Value| args.insert(name.into(), value);
    set("class_token", json!(vit.class_token));
    if !vit.distillation_head {
        set("global_pool", json!(pooling(vit)));
        set("fc_norm", json!(vit.final_norm == FinalNorm::AfterPooling));
    }
    type Flag = fn(&Vit) -> bool;
    let flags: [(&str, Flag); 8] = [
        ("qk_norm", |vit| vit.qk_norm),
        ("scale_attn_norm", |vit| vit.attention_norm),
        ("scale_mlp_norm", |vit| vit.mlp_norm),
        ("proj_bias", |vit| vit.projection_bias),
        ("pre_norm", |vit| vit.pre_norm),
        ("no_embed_class", |vit| vit.positions_on == PositionsOn::Patches),
        ("pool_include_prefix", |vit| vit.pool_prefix),
        ("final_norm", |vit| vit.final_norm != FinalNorm::Absent),
    ];
    let usual = Vit::default();
    for (name, flag) in flags {
        if flag(vit) != flag(&usual) || flag(vit) != flag(base) {
            set(name, json!(flag(vit)));
        }
    }
    if vit.registers > 0 || base.registers > 0 {
        set("reg_tokens", json!(vit.registers));
    }
    if (vit.differential || base.differential) && vit.block != BlockKind::Parallel {
        set("attn_layer", json!(if vit.differential { "diff" } else { "attn" }));
    }
    if vit.positions == Positions::None {
        set("pos_embed", json!("none"));
    }
    args
}

/// The MLP's ratio. timm counts both halves of a packed gate.
fn mlp_ratio(vit: &Vit) -> f64 {
    width_ratio(if vit.gate == Gate::Packed { 2 * vit.mlp_dim } else { vit.mlp_dim }, vit.dim)
}

/// `hidden / dim`, rounded so that the product with `dim`, rounded down, is `hidden` again.
pub(super) fn width_ratio(hidden: usize, dim: usize) -> f64 {
    let ratio = hidden as f64 / dim as f64;
    if (dim as f64 * ratio) as usize == hidden { ratio } else { ratio.next_up() }
}

/// The width of the hidden layer for timm's ratio.
fn hidden_width(vit: &Vit, ratio: f64) -> usize {
    let hidden = (vit.dim as f64 * ratio) as usize;
    if vit.gate == Gate::Packed { hidden / 2 } else { hidden }
}

/// Arguments that are classes: as JSON they are understood here, not by timm.
fn classes_of_layers(vit: &Vit) -> Map<String, Value> {
    let mut args = Map::new();
    let mut set = |name: &str, value: Value| args.insert(name.into(), value);
    let class = if vit.norm == NormKind::Rms { "RmsNorm" } else { "LayerNorm" };
    let norm = json!({ class: { "eps": short(vit.norm_epsilon) } });
    if vit.lineage == Lineage::Eva {
        set("norm_layer", norm);
        return args;
    }
    if vit.patch_norm {
        set("embed_norm_layer", norm.clone());
    }
    if vit.patch_norm || vit.norm == NormKind::Rms {
        set("norm_layer", norm);
    }
    match vit.gate {
        // Beit's argument is `swiglu_mlp`.
        _ if vit.lineage != Lineage::VisionTransformer => {}
        Gate::None => {}
        Gate::Packed => drop(set("mlp_layer", json!("SwiGLUPacked"))),
        Gate::Separate => drop(set("mlp_layer", json!("SwiGLU"))),
    }
    if vit.block != BlockKind::PreNorm {
        set("block_fn", block_class(vit));
    }
    args
}

/// The class of blocks.
pub(super) fn block_class(vit: &Vit) -> Value {
    let relpos = vit.lineage == Lineage::RelPos;
    match vit.block {
        BlockKind::PreNorm => json!(if relpos { "RelPosBlock" } else { "Block" }),
        BlockKind::PostNorm => json!(if relpos { "ResPostRelPosBlock" } else { "ResPostBlock" }),
        BlockKind::Parallel if vit.differential => json!("DiffParallelScalingBlock"),
        BlockKind::Parallel => json!("ParallelScalingBlock"),
        BlockKind::Branches(branches) => json!({ "ParallelThingsBlock": { "num_parallel": branches } }),
    }
}

/// A norm by timm's class or short name.
pub(super) fn norm(args: &Arguments, name: &str) -> Result<Option<(NormKind, f32)>, String> {
    let Some((class, bound)) = args.class(name)? else { return Ok(None) };
    let kind = match class.to_ascii_lowercase().as_str() {
        "layernorm" => NormKind::Layer,
        "rmsnorm" => NormKind::Rms,
        _ => return Err(format!("timm's option `{name}` should be LayerNorm or RmsNorm, not `{class}`")),
    };
    let epsilon = bound.number("eps")?.unwrap_or(1e-6) as f32;
    bound.finish(&[])?;
    Ok(Some((kind, epsilon)))
}

fn gate(args: &Arguments) -> Result<Option<Gate>, String> {
    let Some((class, bound)) = args.class("mlp_layer")? else { return Ok(None) };
    let gate = match class {
        "Mlp" => Gate::None,
        "SwiGLUPacked" => Gate::Packed,
        "SwiGLU" => Gate::Separate,
        // The first half is the gate, as in SwiGLUPacked.
        "GluMlp" if bound.flag("gate_last")? == Some(false) => Gate::Packed,
        other => return Err(format!("timm's option `mlp_layer` should be Mlp, SwiGLU or SwiGLUPacked, not `{other}`")),
    };
    bound.finish(&["act_layer"])?;
    Ok(Some(gate))
}

/// A block, and whether its attention is differential.
fn block(args: &Arguments) -> Result<Option<(BlockKind, bool)>, String> {
    let Some((class, bound)) = args.class("block_fn")? else { return Ok(None) };
    let block = match class {
        "Block" => BlockKind::PreNorm,
        "ResPostBlock" => BlockKind::PostNorm,
        "ParallelScalingBlock" | "DiffParallelScalingBlock" => BlockKind::Parallel,
        "ParallelThingsBlock" => BlockKind::Branches(bound.count("num_parallel")?.unwrap_or(2)),
        other => {
            return Err(format!(
                "timm's option `block_fn` should be Block, ResPostBlock, ParallelScalingBlock or ParallelThingsBlock, not \
                 `{other}`"
            ));
        }
    };
    bound.finish(&[])?;
    Ok(Some((block, class.starts_with("Diff"))))
}

/// The model that timm changes into this one, by name, or why it cannot.
fn base(vit: &Vit) -> Result<(String, Vit), String> {
    if vit.lineage == Lineage::Eva {
        return Ok((eva::base(vit).into(), eva::default()));
    }
    let positions = match vit.positions {
        _ if vit.lineage != Lineage::VisionTransformer => None,
        _ if vit.relative_bias.is_some() => Some("relative positions"),
        Positions::None | Positions::Learned => None,
        Positions::Learned2d => Some("positions that are learned for rows and columns"),
        Positions::SinCos => Some("positions of sines and cosines"),
    };
    let partial = vit.qkv.bias == QkvBias::QueryValue && vit.lineage == Lineage::VisionTransformer;
    let lone = vit.distillation_token && !vit.distillation_head;
    let missing = [
        positions,
        partial.then_some("biases of query and value alone"),
        vit.pre_logits.map(|_| "a hidden layer in the head"),
        vit.embedding.map(|_| "an embedding of length 1 before the head"),
        (vit.pooling == Pooling::TokenAndMean)
            .then_some("a head that reads the class token and the mean of the patches"),
        lone.then_some("a distillation token without a head of its own"),
    ];
    if let Some(what) = missing.into_iter().flatten().next() {
        return Err(format!("timm's VisionTransformer has no option for {what}"));
    }
    match (&vit.backbone, vit.distillation_head) {
        (None, false) => with_layers_of(vit).ok_or_else(|| "timm has no named model with such layers".into()),
        (None, true) => Ok(("deit_base_distilled_patch16_224".into(), Vit::default())),
        (Some(_), _) => hybrid(vit)
            .map(|name| (name, Vit::default()))
            .ok_or_else(|| "timm has no such convolutional stages before the encoder".into()),
    }
}

fn published_epsilon(name: &str) -> Option<f32> {
    variants::variant(name)?.architecture.downcast_ref().map(|vit: &Vit| vit.norm_epsilon)
}

/// A published model whose layers are of the same classes, which are not among the arguments that timm reads from a file;
/// one with the same epsilon if there is one.
fn with_layers_of(vit: &Vit) -> Option<(String, Vit)> {
    let parallel = |vit: &Vit| vit.block == BlockKind::Parallel && vit.differential;
    let layers = |vit: &Vit| (vit.lineage, vit.block, parallel(vit), vit.gate, vit.norm, vit.patch_norm);
    let usual = ("vit_base_patch16_224".to_string(), Vit::default());
    let published = variants::variants().into_iter().filter_map(|v| {
        let found: &Vit = v.architecture.downcast_ref()?;
        let plain = found.lineage == Lineage::VisionTransformer && found.backbone.is_none();
        (plain && !found.distillation_head).then(|| (v.name.clone(), found.clone()))
    });
    let mut suitable: Vec<_> =
        std::iter::once(usual).chain(published).filter(|(_, found)| layers(found) == layers(vit)).collect();
    // Stable, so that of equally similar ones the first comes first.
    let norms = |vit: &Vit| (vit.pre_norm, vit.attention_norm, vit.mlp_norm);
    suitable.sort_by_key(|(_, found)| (found.norm_epsilon != vit.norm_epsilon, norms(found) != norms(vit)));
    suitable.into_iter().next()
}

/// A published hybrid with the same stages.
fn hybrid(vit: &Vit) -> Option<String> {
    let stages = |other: &Vit| other.backbone == vit.backbone;
    variants::variants().into_iter().find(|v| v.architecture.downcast_ref().is_some_and(stages)).map(|v| v.name)
}

/// timm's names of pooling.
const POOLING: [(&str, Pooling); 7] = [
    ("token", Pooling::Token),
    ("avg", Pooling::Mean),
    ("max", Pooling::Max),
    ("avgmax", Pooling::MeanMax),
    ("map", Pooling::Map),
    ("prr", Pooling::Refined),
    ("", Pooling::None),
];

pub(super) fn pooling(vit: &Vit) -> &'static str {
    POOLING.iter().find(|(_, pooling)| *pooling == vit.pooling).map_or("token", |(name, _)| name)
}

/// Whether timm moves the norm after this pooling unless `fc_norm` says otherwise.
fn over_patches(pooling: Pooling) -> bool {
    matches!(pooling, Pooling::Mean | Pooling::Max | Pooling::MeanMax)
}

/// Settings that timm's arguments cannot express.
fn extra(vit: &Vit) -> Map<String, Value> {
    let mut extra = Map::new();
    if vit.norm_epsilon != Vit::default().norm_epsilon {
        extra.insert("norm_epsilon".into(), json!(short(vit.norm_epsilon)));
    }
    if matches!(vit.rotary.map(|r| r.angles), Some(RotaryAngles::Centred { bf16_periods: true, .. })) {
        extra.insert("bf16_periods".into(), json!(true));
    }
    if vit.lineage != Lineage::VisionTransformer {
        extra.extend(beyond_class(vit));
    }
    if let Some(hidden) = vit.pre_logits {
        extra.insert("pre_logits".into(), json!(hidden));
    }
    if vit.distillation_token && !vit.distillation_head {
        extra.insert("distillation_token".into(), json!(true));
    }
    if vit.pooling == Pooling::TokenAndMean {
        extra.insert("pooling".into(), json!("token_and_mean"));
    }
    match vit.embedding {
        None => {}
        Some(Embedding::Pooled) => drop(extra.insert("embedding".into(), json!("pooled"))),
        Some(Embedding::Projected(width)) => drop(extra.insert("embedding".into(), json!(width))),
    }
    let positions = match vit.positions {
        Positions::None | Positions::Learned => None,
        Positions::Learned2d => Some("learned_2d"),
        Positions::SinCos => Some("sin_cos"),
    };
    if vit.lineage == Lineage::VisionTransformer && vit.qkv.bias == QkvBias::QueryValue {
        extra.insert("qkv_bias".into(), json!("query_value"));
    }
    if let Some(bias) = vit.relative_bias.filter(|_| vit.lineage == Lineage::VisionTransformer) {
        extra.insert("relative_bias".into(), written_bias(bias));
    }
    if let Some(pretraining) = &vit.pretraining {
        extra.insert("pretraining".into(), pretraining.written());
    }
    if let Some(positions) = positions {
        extra.insert("positions".into(), json!(positions));
    }
    extra
}

/// Settings of transformers' models that their class in timm has no arguments for.
fn beyond_class(vit: &Vit) -> Map<String, Value> {
    let mut extra = Map::new();
    let activation = if vit.gate == Gate::None { Activation::Gelu } else { Activation::Silu };
    if vit.activation != activation && vit.lineage != Lineage::RelPos {
        extra.insert("activation".into(), json!(vit.activation.name()));
    }
    if !vit.projection_bias {
        extra.insert("projection_bias".into(), json!(false));
    }
    if vit.final_norm == FinalNorm::Absent && vit.lineage == Lineage::Beit {
        extra.insert("final_norm".into(), json!("absent"));
    }
    extra
}

/// A bias by relative position, as [`read_bias`] reads it.
fn written_bias(bias: RelativeBias) -> Value {
    let (kind, hidden) = match bias.kind {
        RelativeBiasKind::Table => ("bias", None),
        RelativeBiasKind::Continuous(network) => (relpos::kind(network.form), Some(network.hidden)),
    };
    let sharing = match bias.sharing {
        BiasSharing::PerBlock => "per_block",
        BiasSharing::Shared => "shared",
        BiasSharing::Both => "both",
    };
    json!({ "kind": kind, "hidden": hidden, "sharing": sharing })
}

fn read_bias(args: &Arguments) -> Result<RelativeBias, String> {
    let kind = args.text("kind")?.unwrap_or("bias");
    let hidden = args.count("hidden")?;
    let sharing = match args.text("sharing")? {
        None | Some("per_block") => BiasSharing::PerBlock,
        Some("shared") => BiasSharing::Shared,
        Some("both") => BiasSharing::Both,
        Some(other) => return Err(format!("`sharing` should be per_block, shared or both, not `{other}`")),
    };
    args.finish(&[])?;
    Ok(RelativeBias { kind: relpos::bias_kind(kind, hidden), sharing })
}
