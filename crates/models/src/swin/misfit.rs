//! Which options decide whether a parameter exists and what shape it has, for the messages about files that do not fit.

use super::{Swin, SwinVersion};

/// The options behind a parameter with their values, by timm's names.
pub(super) fn options(swin: &Swin, parameter: &str) -> Option<String> {
    let size = |[height, width]: [usize; 2]| format!("{height}x{width}");
    let image = || ("img_size", size(swin.image_size));
    let patch = || ("patch_size", size(swin.patch_size));
    let depths = || ("depths", format!("{:?}", swin.depths));
    let width = |stage: usize| ("embed_dim", format!("for a width of {}", swin.widths[stage]));
    let first = swin.widths[0];
    let last = swin.widths.len() - 1;
    let stage = parameter.strip_prefix("layers.").and_then(|rest| {
        let (stage, part) = rest.split_once('.')?;
        Some((stage.parse::<usize>().ok()?, part))
    });
    let found = match (parameter, stage) {
        (_, Some((stage, _))) if stage >= swin.depths.len() => vec![depths()],
        (_, Some((stage, part))) => {
            let heads = ("num_heads", swin.heads[stage].to_string());
            let Some((block, part)) = part.strip_prefix("blocks.").and_then(|rest| rest.split_once('.')) else {
                return Some(text(&[width(stage)]));
            };
            match part {
                _ if block.parse::<usize>().is_ok_and(|block| block >= swin.depths[stage]) => vec![depths()],
                "attn.relative_position_bias_table" => {
                    vec![heads, ("window_size", size(swin.windows[stage])), image(), patch()]
                }
                "attn.logit_scale" => vec![heads],
                _ if part.starts_with("attn.cpb_mlp.") => vec![heads],
                "attn.qkv.bias" | "attn.q_bias" | "attn.v_bias" => {
                    vec![width(stage), ("qkv_bias", swin.qkv_bias.to_string())]
                }
                _ if part.starts_with("attn.") && swin.version == SwinVersion::V1 => {
                    let head_dim = swin.head_dims[stage].map_or("none".into(), |dim| dim.to_string());
                    vec![width(stage), heads, ("head_dim", head_dim)]
                }
                _ if part.starts_with("mlp.") => {
                    vec![width(stage), ("mlp_ratio", swin.mlp_ratios[stage].to_string())]
                }
                _ => vec![width(stage)],
            }
        }
        _ if parameter.starts_with("patch_embed.") => {
            vec![("embed_dim", first.to_string()), ("in_chans", swin.channels.to_string()), patch()]
        }
        _ if parameter.starts_with("head.fc.") => vec![width(last), ("num_classes", swin.classes.to_string())],
        _ if parameter.starts_with("norm.") => vec![width(last)],
        _ => return None,
    };
    Some(text(&found))
}

fn text(options: &[(&str, String)]) -> String {
    options.iter().map(|(name, value)| format!("`{name}` {value}")).collect::<Vec<_>>().join(", ")
}
