//! Which options decide whether a parameter exists and what shape it has, for the messages about files that do not fit.

use super::timm::{block_class, pooling};
use super::{
    Backbone, BiasSharing, BlockKind, FinalNorm, Lineage, Positions, PositionsOn, QkvBias, RelativeBiasKind, Vit,
    relpos,
};
use crate::architecture::Network;
use crate::layers::{Gate, NormKind};

/// An option of timm's constructor and its value.
type NamedOption = (&'static str, String);

/// The options behind a parameter with their values, by timm's names: ``"`embed_dim` 384, `num_heads` 6"``.
pub(super) fn options(vit: &Vit, parameter: &str) -> Option<String> {
    let found = match parameter.strip_prefix("blocks.").and_then(|rest| rest.split_once('.')) {
        Some((index, _)) if index.parse::<usize>().is_ok_and(|index| index >= vit.depth) => {
            vec![("depth", vit.depth.to_string())]
        }
        Some((_, part)) => vit.options_in_block(part)?,
        None => vit.options_around_blocks(parameter)?,
    };
    let options: Vec<String> = found.iter().map(|(name, value)| format!("`{name}` {value}")).collect();
    Some(options.join(", "))
}

impl Vit {
    /// The options behind a parameter of a block.
    fn options_in_block(&self, part: &str) -> Option<Vec<NamedOption>> {
        let starts = |prefix: &str| part.starts_with(prefix);
        // Branches have a block's parts under their numbers.
        for branches in ["attns.", "ffns."] {
            if let Some((_, part)) = part.strip_prefix(branches).and_then(|rest| rest.split_once('.')) {
                let mut options = self.options_of_layer(part)?;
                options.push(self.block_option());
                return Some(options);
            }
        }
        // The projections of attention and MLP side by side.
        if starts("in_") || starts("mlp_") || starts("attn_out_proj.") || starts("out_proj.") {
            let biased = flag("qkv_bias", self.qkv.bias != QkvBias::None);
            return Some(vec![self.width_option(), self.hidden_option(), biased, self.block_option()]);
        }
        let mut options = self.options_of_layer(part)?;
        let norms = self.lineage == Lineage::VisionTransformer && starts("norm");
        if norms || starts("ls.") || !matches!(self.block, BlockKind::PreNorm | BlockKind::PostNorm) {
            options.push(self.block_option());
        }
        Some(options)
    }

    /// The options behind a parameter of a norm, an attention, an MLP or a layer scale.
    fn options_of_layer(&self, part: &str) -> Option<Vec<NamedOption>> {
        let eva = self.lineage == Lineage::Eva;
        let starts = |prefix: &str| part.starts_with(prefix);
        // Attention beside an MLP has no name.
        let in_attention = part.strip_prefix("attn.").unwrap_or(part);
        let fused = || eva.then(|| flag("qkv_fused", !self.qkv.separate));
        Some(match part {
            _ if starts("ls") => vec![self.width_option(), self.scale_option()],
            _ if starts("norm") => vec![self.width_option(), self.norm_option()],
            _ if in_attention.starts_with("q_norm.") || in_attention.starts_with("k_norm.") => {
                vec![self.width_option(), self.heads_option(), flag("qk_norm", self.qk_norm)]
            }
            _ if in_attention.starts_with("lambda_") || in_attention.starts_with("sub_norm.") => {
                let class = if self.differential { "diff" } else { "attn" };
                vec![self.width_option(), self.heads_option(), ("attn_layer", class.into())]
            }
            "attn.q_bias" | "attn.v_bias" | "attn.qkv.bias" => {
                let biased = flag("qkv_bias", self.qkv.bias != QkvBias::None);
                [self.width_option(), biased].into_iter().chain(fused()).collect()
            }
            _ if starts("attn.q_proj.") || starts("attn.qkv.") => {
                [self.width_option()].into_iter().chain(fused()).collect()
            }
            _ if starts("attn.k_proj.") || starts("attn.v_proj.") => {
                vec![self.width_option(), self.heads_option(), ("num_kv_heads", format!("{:?}", self.key_value_heads))]
            }
            _ if starts("attn.norm.") => {
                let name = if eva { "scale_attn_inner" } else { "scale_attn_norm" };
                vec![self.width_option(), flag(name, self.attention_norm)]
            }
            _ if starts("attn.rel_pos.") => self.relative_options(),
            _ if starts("attn.proj.") => vec![self.width_option()],
            _ if starts("mlp.norm.") => {
                vec![self.hidden_option(), flag(if eva { "scale_mlp" } else { "scale_mlp_norm" }, self.mlp_norm)]
            }
            _ if starts("mlp.fc1") => vec![self.width_option(), self.hidden_option(), self.gate_option()],
            _ if starts("mlp.") => vec![self.width_option(), self.hidden_option()],
            _ => return None,
        })
    }

    /// The options behind a parameter before or after the blocks.
    fn options_around_blocks(&self, parameter: &str) -> Option<Vec<NamedOption>> {
        let eva = self.lineage == Lineage::Eva;
        let starts = |prefix: &str| parameter.starts_with(prefix);
        Some(match parameter {
            "pos_embed" => vec![
                self.width_option(),
                ("img_size", size(self.image_size)),
                ("patch_size", size(self.patch_size)),
                flag("no_embed_class", self.positions_on == PositionsOn::Patches),
                ("class_token", format!("and registers: {} tokens", self.prefix_tokens())),
                flag(if eva { "use_abs_pos_emb" } else { "pos_embed" }, self.positions == Positions::Learned),
            ],
            _ if starts("shared_rel_pos.") => self.relative_options(),
            "cls_token" => vec![self.width_option(), flag("class_token", self.class_token)],
            "reg_token" => {
                vec![
                    self.width_option(),
                    (if eva { "num_reg_tokens" } else { "reg_tokens" }, self.registers.to_string()),
                ]
            }
            "rope.freqs" => vec![
                ("depth", self.depth.to_string()),
                self.heads_option(),
                self.width_option(),
                ("rope_type", self.rotary.map_or("none".into(), |rotary| rotary.to_string())),
            ],
            _ if starts("patch_embed.backbone.") => {
                let channels = (parameter == self.first_filters()).then(|| ("in_chans", self.channels.to_string()));
                channels.into_iter().chain([self.backbone_option()]).collect()
            }
            _ if starts("patch_embed.norm.") => vec![self.width_option(), flag("embed_norm_layer", self.patch_norm)],
            _ if starts("patch_embed.proj.") => {
                let patch = ("patch_size", size(self.patch_size));
                match self.backbone {
                    None => vec![self.width_option(), ("in_chans", self.channels.to_string()), patch],
                    Some(_) => vec![self.width_option(), self.backbone_option(), patch],
                }
            }
            _ if starts("norm_pre.") => {
                let name = if eva { "use_pre_transformer_norm" } else { "pre_norm" };
                vec![self.width_option(), flag(name, self.pre_norm), self.norm_option()]
            }
            _ if starts("norm.") || starts("fc_norm.") => {
                let name = if eva { "use_fc_norm" } else { "fc_norm" };
                vec![self.width_option(), flag(name, self.final_norm == FinalNorm::AfterPooling), self.norm_option()]
            }
            _ if starts("attn_pool.") => vec![self.width_option(), ("global_pool", pooling(self).to_string())],
            _ if starts("head.") || starts("head_dist.") => {
                vec![self.width_option(), ("num_classes", self.classes.to_string())]
            }
            _ => return None,
        })
    }

    fn width_option(&self) -> NamedOption {
        ("embed_dim", self.dim.to_string())
    }

    fn heads_option(&self) -> NamedOption {
        ("num_heads", self.heads.to_string())
    }

    fn hidden_option(&self) -> NamedOption {
        let packed = if self.gate == Gate::Packed { ", twice for the gate" } else { "" };
        ("mlp_ratio", format!("for a hidden layer of {}{packed}", self.mlp_dim))
    }

    fn norm_option(&self) -> NamedOption {
        ("norm_layer", if self.norm == NormKind::Rms { "RmsNorm".into() } else { "LayerNorm".into() })
    }

    fn scale_option(&self) -> NamedOption {
        ("init_values", self.layer_scale.map_or("none".into(), |initial| format!("{initial:e}")))
    }

    fn gate_option(&self) -> NamedOption {
        match (self.lineage, self.gate) {
            (Lineage::Eva, gate) => flag("swiglu_mlp", gate != Gate::None),
            (_, Gate::None) => ("mlp_layer", "Mlp".into()),
            (_, Gate::Packed) => ("mlp_layer", "SwiGLUPacked".into()),
            (_, Gate::Separate) => ("mlp_layer", "SwiGLU".into()),
        }
    }

    fn block_option(&self) -> NamedOption {
        let class = block_class(self);
        ("block_fn", class.as_str().map_or_else(|| class.to_string(), str::to_string))
    }

    /// The convolutional stages, by the arguments that decide shapes.
    fn backbone_option(&self) -> NamedOption {
        const SHAPES: [&str; 6] = ["layers", "channels", "stem_chs", "stem_width", "stem_type", "block"];
        let described = self.backbone.as_deref().map(Backbone::described).unwrap_or_default();
        let value = |name: &&str| described.get(*name).filter(|value| !value.is_null());
        let shapes: Vec<String> = SHAPES.iter().filter_map(|name| Some(format!("{name} {}", value(name)?))).collect();
        ("backbone", if shapes.is_empty() { "none".into() } else { format!("of {}", shapes.join(", ")) })
    }

    /// The options behind relative position biases.
    fn relative_options(&self) -> Vec<NamedOption> {
        let sharing = self.relative_bias.map(|bias| bias.sharing);
        let own = matches!(sharing, Some(BiasSharing::PerBlock | BiasSharing::Both));
        let shared = matches!(sharing, Some(BiasSharing::Shared | BiasSharing::Both));
        let mut options = vec![self.heads_option()];
        match self.relative_bias.map(|bias| bias.kind) {
            Some(RelativeBiasKind::Continuous(network)) => {
                options.extend([
                    ("rel_pos_type", relpos::kind(network.form).to_string()),
                    ("rel_pos_dim", network.hidden.to_string()),
                ]);
            }
            _ => options.extend([("img_size", size(self.image_size)), ("patch_size", size(self.patch_size))]),
        }
        match self.lineage {
            Lineage::Beit => {
                options.extend([flag("use_rel_pos_bias", own), flag("use_shared_rel_pos_bias", shared)]);
            }
            _ => options.push(flag("shared_rel_pos", shared)),
        }
        options
    }
}

fn flag(name: &'static str, on: bool) -> NamedOption {
    (name, on.to_string())
}

fn size([height, width]: [usize; 2]) -> String {
    format!("{height}x{width}")
}
