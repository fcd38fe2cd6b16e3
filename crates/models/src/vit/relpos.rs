//! Vision Transformers with relative positions alone: timm's class `VisionTransformerRelPos`, and its named models.

use serde_json::{Map, Value, json};

use super::timm::{IGNORED, configure_encoder, pooling};
use super::variants::inception;
use super::{
    BiasSharing, BlockKind, FinalNorm, Lineage, Pooling, Positions, Qkv, QkvBias, RelativeBias, RelativeBiasKind, Vit,
};
use crate::config::Arguments;
use crate::layers::{ContinuousBias, ContinuousForm};
use crate::variant::Variant;

pub(super) const CLASS: &str = "timm.models.vision_transformer_relpos.VisionTransformerRelPos";

/// Width of the hidden layer of the MLP that computes biases, unless `rel_pos_dim` is given.
const HIDDEN: usize = 128;

/// The model made without arguments.
pub(super) fn default() -> Vit {
    Vit {
        lineage: Lineage::RelPos,
        class_token: false,
        pooling: Pooling::Mean,
        positions: Positions::None,
        layer_scale: Some(1e-6),
        relative_bias: Some(RelativeBias { kind: bias_kind("mlp", None), sharing: BiasSharing::PerBlock }),
        ..Vit::default()
    }
}

/// The named models.
pub(super) fn variants() -> Vec<Variant> {
    let sized = |dim: usize, heads: usize, image: usize| Vit {
        image_size: [image; 2],
        dim,
        heads,
        mlp_dim: 4 * dim,
        qkv: Qkv::packed(QkvBias::None),
        ..default()
    };
    let fc_norm = |vit: &Vit| Vit { final_norm: FinalNorm::AfterPooling, ..vit.clone() };
    let class_token = |vit: &Vit| Vit { class_token: true, ..vit.clone() };
    let by_token = |vit: &Vit| Vit { pooling: Pooling::Token, ..class_token(vit) };
    let mlp = |hidden, sharing| Some(RelativeBias { kind: bias_kind("mlp", Some(hidden)), sharing });
    let shared = |vit: &Vit| Vit { relative_bias: mlp(vit.dim, BiasSharing::Shared), ..vit.clone() };
    let post_norm = |vit: Vit| Vit { block: BlockKind::PostNorm, ..vit };
    let (small, medium, base) = (sized(384, 6, 224), sized(512, 8, 224), sized(768, 12, 224));
    let plus = |image| Vit { qkv: Qkv::packed(QkvBias::All), ..sized(896, 14, image) };
    let medium_by_token = Vit { relative_bias: mlp(256, BiasSharing::PerBlock), ..by_token(&medium) };
    let all = [
        ("vit_relpos_small_patch16_224", fc_norm(&small)),
        ("vit_srelpos_small_patch16_224", shared(&small)),
        ("vit_relpos_medium_patch16_224", fc_norm(&medium)),
        ("vit_srelpos_medium_patch16_224", shared(&medium)),
        ("vit_relpos_medium_patch16_cls_224", medium_by_token),
        ("vit_relpos_base_patch16_224", fc_norm(&base)),
        ("vit_relpos_base_patch16_cls_224", by_token(&base)),
        ("vit_relpos_base_patch16_clsgap_224", fc_norm(&class_token(&base))),
        ("vit_relpos_base_patch16_plus_240", plus(240)),
        ("vit_relpos_small_patch16_rpn_224", post_norm(small)),
        ("vit_relpos_medium_patch16_rpn_224", post_norm(medium)),
        ("vit_relpos_base_patch16_rpn_224", post_norm(base)),
        ("vit_relpos_base_patch32_plus_rpn_256", post_norm(Vit { patch_size: [32; 2], ..plus(256) })),
    ];
    all.into_iter().map(|(name, vit)| inception(name, "Relative-position ViT", vit, 0.9)).collect()
}

/// A bias by timm's `rel_pos_type` and `rel_pos_dim`.
pub(super) fn bias_kind(kind: &str, hidden: Option<usize>) -> RelativeBiasKind {
    let hidden = hidden.unwrap_or(HIDDEN);
    match kind.strip_prefix("mlp") {
        None => RelativeBiasKind::Table,
        Some(form) if form.contains("swin") => {
            RelativeBiasKind::Continuous(ContinuousBias { hidden, form: ContinuousForm::Swin { pretrained: None } })
        }
        Some(_) => RelativeBiasKind::Continuous(ContinuousBias { hidden, form: ContinuousForm::Natural }),
    }
}

/// timm's `rel_pos_type`.
pub(super) fn kind(form: ContinuousForm) -> &'static str {
    match form {
        ContinuousForm::Natural => "mlp",
        ContinuousForm::Swin { .. } => "mlp_swin",
    }
}

pub(super) fn configure(vit: &mut Vit, args: &Arguments) -> Result<(), String> {
    configure_encoder(vit, args, QkvBias::All)?;
    if args.has("init_values") {
        vit.layer_scale = args.number("init_values")?.map(|initial| initial as f32).filter(|&initial| initial != 0.0);
    }
    vit.qk_norm = args.flag("qk_norm")?.unwrap_or(vit.qk_norm);
    vit.class_token = args.flag("class_token")?.unwrap_or(vit.class_token);
    let bias = vit.relative_bias.unwrap_or(RelativeBias::TABLES);
    let (old_kind, old_hidden) = match bias.kind {
        RelativeBiasKind::Table => ("bias", None),
        RelativeBiasKind::Continuous(network) => (kind(network.form), Some(network.hidden)),
    };
    let hidden = args.count("rel_pos_dim")?.filter(|&hidden| hidden > 0).or(old_hidden);
    let kind = bias_kind(args.text("rel_pos_type")?.unwrap_or(old_kind), hidden);
    let sharing = match args.flag("shared_rel_pos")? {
        None => bias.sharing,
        Some(true) => BiasSharing::Shared,
        Some(false) => BiasSharing::PerBlock,
    };
    vit.relative_bias = Some(RelativeBias { kind, sharing });
    vit.pooling = match args.text("global_pool")? {
        None => vit.pooling,
        Some("avg") => Pooling::Mean,
        Some("token") => Pooling::Token,
        Some("") => Pooling::None,
        Some(other) => return Err(format!("timm's option `global_pool` should be avg, token or empty, not `{other}`")),
    };
    if let Some(after) = args.flag("fc_norm")? {
        vit.final_norm = if after { FinalNorm::AfterPooling } else { FinalNorm::BeforePooling };
    }
    if let Some(block) = args.text("block_fn")? {
        vit.block = match block.rsplit('.').next() {
            Some("RelPosBlock") => BlockKind::PreNorm,
            Some("ResPostRelPosBlock") => BlockKind::PostNorm,
            _ => {
                return Err(format!(
                    "timm's option `block_fn` should be RelPosBlock or ResPostRelPosBlock, not `{block}`"
                ));
            }
        };
    }
    args.finish(&IGNORED)
}

/// The arguments without channels and classes, from those that all classes have.
pub(super) fn arguments(vit: &Vit, mut args: Map<String, Value>) -> Map<String, Value> {
    args.entry("init_values").or_insert(Value::Null);
    for (name, value) in [
        ("class_token", json!(vit.class_token)),
        ("global_pool", json!(pooling(vit))),
        ("fc_norm", json!(vit.final_norm == FinalNorm::AfterPooling)),
        ("qk_norm", json!(vit.qk_norm)),
    ] {
        args.insert(name.into(), value);
    }
    if let Some(bias) = vit.relative_bias {
        args.insert("shared_rel_pos".into(), json!(bias.sharing == BiasSharing::Shared));
        let name = match bias.kind {
            RelativeBiasKind::Table => "bias",
            RelativeBiasKind::Continuous(network) => {
                args.insert("rel_pos_dim".into(), json!(network.hidden));
                kind(network.form)
            }
        };
        args.insert("rel_pos_type".into(), json!(name));
    }
    args
}
