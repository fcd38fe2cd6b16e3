//! Which options decide whether a parameter exists and what shape it has, for the messages about files that do not fit.

use super::timm::pooling;
use super::{BiasSharing, FinalNorm, Lineage, Positions, PositionsOn, QkvBias, RelativeBiasKind, Vit, relpos};
use crate::layers::{Gate, NormKind};

/// The options behind a parameter with their values, by timm's names: ``"`embed_dim` 384, `num_heads` 6"``.
pub(super) fn options(vit: &Vit, parameter: &str) -> Option<String> {
    let eva = vit.lineage == Lineage::Eva;
    let width = ("embed_dim", vit.dim.to_string());
    let heads = ("num_heads", vit.heads.to_string());
    let flag = |name, on: bool| (name, on.to_string());
    let hidden = || {
        let packed = if vit.gate == Gate::Packed { ", twice for the gate" } else { "" };
        ("mlp_ratio", format!("for a hidden layer of {}{packed}", vit.mlp_dim))
    };
    let norms = || ("norm_layer", if vit.norm == NormKind::Rms { "RmsNorm".into() } else { "LayerNorm".into() });
    let gate = || match (eva, vit.gate) {
        (true, gate) => flag("swiglu_mlp", gate != Gate::None),
        (false, Gate::None) => ("mlp_layer", "Mlp".into()),
        (false, Gate::Packed) => ("mlp_layer", "SwiGLUPacked".into()),
        (false, Gate::Separate) => ("mlp_layer", "SwiGLU".into()),
    };
    let scale = || ("init_values", vit.layer_scale.map_or("none".into(), |initial| format!("{initial:e}")));
    let block = parameter.strip_prefix("blocks.").and_then(|rest| rest.split_once('.'));
    let found = match (parameter, block) {
        (_, Some((index, _))) if index.parse::<usize>().is_ok_and(|index| index >= vit.depth) => {
            vec![("depth", vit.depth.to_string())]
        }
        (_, Some((_, part))) => match part {
            _ if part.starts_with("ls1.") || part.starts_with("ls2.") => vec![width, scale()],
            _ if part.starts_with("norm") => vec![width, norms()],
            _ if part.starts_with("attn.q_norm") || part.starts_with("attn.k_norm") => {
                vec![width, heads, flag("qk_norm", vit.qk_norm)]
            }
            "attn.q_bias" | "attn.v_bias" | "attn.qkv.bias" => {
                let mut options = vec![width, flag("qkv_bias", vit.qkv.bias != QkvBias::None)];
                if eva {
                    options.push(flag("qkv_fused", !vit.qkv.separate));
                }
                options
            }
            _ if part.starts_with("attn.q_proj") || part.starts_with("attn.qkv") => {
                let mut options = vec![width];
                if eva {
                    options.push(flag("qkv_fused", !vit.qkv.separate));
                }
                options
            }
            _ if part.starts_with("attn.k_proj") || part.starts_with("attn.v_proj") => {
                vec![width, heads, ("num_kv_heads", format!("{:?}", vit.key_value_heads))]
            }
            _ if part.starts_with("attn.norm") => {
                vec![width, flag(if eva { "scale_attn_inner" } else { "scale_attn_norm" }, vit.attention_norm)]
            }
            _ if part.starts_with("attn.rel_pos.") => relative(vit),
            _ if part.starts_with("attn.proj") => vec![width],
            _ if part.starts_with("mlp.norm") => {
                vec![hidden(), flag(if eva { "scale_mlp" } else { "scale_mlp_norm" }, vit.mlp_norm)]
            }
            _ if part.starts_with("mlp.fc1") => {
                vec![width, hidden(), gate()]
            }
            _ if part.starts_with("mlp.") => vec![width, hidden()],
            _ => return None,
        },
        ("pos_embed", _) => {
            let learned = (if eva { "use_abs_pos_emb" } else { "pos_embed" }, vit.positions == Positions::Learned);
            vec![
                width,
                ("img_size", size(vit.image_size)),
                ("patch_size", size(vit.patch_size)),
                flag("no_embed_class", vit.positions_on == PositionsOn::Patches),
                ("class_token", format!("and registers: {} tokens", vit.prefix_tokens())),
                flag(learned.0, learned.1),
            ]
        }
        _ if parameter.starts_with("shared_rel_pos.") => relative(vit),
        ("cls_token", _) => vec![width, flag("class_token", vit.class_token)],
        ("reg_token", _) => {
            vec![width, (if eva { "num_reg_tokens" } else { "reg_tokens" }, vit.registers.to_string())]
        }
        ("rope.freqs", _) => vec![
            ("depth", vit.depth.to_string()),
            heads,
            width,
            ("rope_type", vit.rotary.map_or("none".into(), |rotary| rotary.to_string())),
        ],
        _ if parameter.starts_with("patch_embed.proj.") => {
            let [height, across] = vit.patch_size;
            vec![width, ("in_chans", vit.channels.to_string()), ("patch_size", format!("{height}x{across}"))]
        }
        _ if parameter.starts_with("norm_pre.") => {
            let name = if eva { "use_pre_transformer_norm" } else { "pre_norm" };
            vec![width, flag(name, vit.pre_norm), norms()]
        }
        _ if parameter.starts_with("norm.") || parameter.starts_with("fc_norm.") => {
            let name = if eva { "use_fc_norm" } else { "fc_norm" };
            vec![width, flag(name, vit.final_norm == FinalNorm::AfterPooling), norms()]
        }
        _ if parameter.starts_with("attn_pool.") => vec![width, ("global_pool", pooling(vit).to_string())],
        _ if parameter.starts_with("head.") => vec![width, ("num_classes", vit.classes.to_string())],
        _ => return None,
    };
    let options: Vec<String> = found.iter().map(|(name, value)| format!("`{name}` {value}")).collect();
    Some(options.join(", "))
}

fn size([height, width]: [usize; 2]) -> String {
    format!("{height}x{width}")
}

/// The options behind relative position biases.
fn relative(vit: &Vit) -> Vec<(&'static str, String)> {
    let sharing = vit.relative_bias.map(|bias| bias.sharing);
    let own = matches!(sharing, Some(BiasSharing::PerBlock | BiasSharing::Both));
    let shared = matches!(sharing, Some(BiasSharing::Shared | BiasSharing::Both));
    let mut options = vec![("num_heads", vit.heads.to_string())];
    match vit.relative_bias.map(|bias| bias.kind) {
        Some(RelativeBiasKind::Continuous(network)) => {
            options.extend([
                ("rel_pos_type", relpos::kind(network.form).to_string()),
                ("rel_pos_dim", network.hidden.to_string()),
            ]);
        }
        _ => options.extend([("img_size", size(vit.image_size)), ("patch_size", size(vit.patch_size))]),
    }
    match vit.lineage {
        Lineage::Beit => {
            options.extend([("use_rel_pos_bias", own.to_string()), ("use_shared_rel_pos_bias", shared.to_string())])
        }
        _ => options.push(("shared_rel_pos", shared.to_string())),
    }
    options
}
