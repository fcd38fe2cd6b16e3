//! The Vision Transformer as a [`Network`].

use vit_graph::{Graph, GraphError, Tensor};

use super::{
    BlockKind, FinalNorm, Lineage, Masks, Pooling, Positions, PositionsOn, Pretraining, QkvBias, RotaryAngles, Vit,
    eva, guess, misfit, positions, pretraining, relative, variants,
};
use crate::architecture::{Network, PatchGrid, PositionLayout, TokenSequence};
use crate::config::Config;
use crate::layers::{Building, Forward, Gate, refuses_patches};
use crate::network_fields;
use crate::variant::Variant;
use crate::weights::{Scheme, Weights};

impl Network for Vit {
    network_fields!(dropout, attention_dropout, patch_drop, drop_path);

    fn kind(&self) -> &'static str {
        "Vision Transformer"
    }

    fn forward(&self, image: &Tensor, building: &Building) {
        drop(Forward { net: self, building }.run(image));
    }

    fn contradiction(&self) -> Option<String> {
        for (what, found, least, most) in [
            ("image height", self.image_size[0], 1, 1 << 16),
            ("image width", self.image_size[1], 1, 1 << 16),
            ("patch height", self.patch_size[0], 1, 1 << 16),
            ("patch width", self.patch_size[1], 1, 1 << 16),
            ("number of channels", self.channels, 1, 1 << 12),
            ("number of classes", self.classes, 0, 1 << 24),
            ("width", self.dim, 1, 1 << 16),
            ("depth", self.depth, 0, 1 << 10),
            ("width of the MLP", self.mlp_dim, 1, 1 << 18),
            ("number of registers", self.registers, 0, 1 << 12),
        ] {
            if !(least..=most).contains(&found) {
                return Some(format!("the {what} is {found}, it must be from {least} to {most}"));
            }
        }
        let [rows, columns] = self.grid();
        let ([ih, iw], [ph, pw]) = (self.image_size, self.patch_size);
        if rows == 0 || columns == 0 {
            return Some(format!("an image of {ih}x{iw} pixels is smaller than a patch of {ph}x{pw}"));
        }
        if self.heads == 0 || !self.dim.is_multiple_of(self.heads) {
            return Some(format!("a width of {} cannot be divided among {} heads", self.dim, self.heads));
        }
        if matches!(self.pooling, Pooling::Token | Pooling::TokenAndMean) && !self.class_token {
            return Some("pooling by the class token needs a class token".into());
        }
        let plain = self.pooling == Pooling::Token
            && self.pre_logits.is_none()
            && self.embedding.is_none()
            && self.final_norm != FinalNorm::AfterPooling;
        if self.distillation_head && !(self.distillation_token && plain) {
            return Some(
                "a distillation head needs a distillation token, token pooling, and linear heads after the norm".into(),
            );
        }
        if self.distillation_token && !self.class_token {
            return Some("a distillation token needs a class token".into());
        }
        if let Some(what) = self.block_contradiction() {
            return Some(what);
        }
        if let Some(what) = self.attention_contradiction() {
            return Some(what);
        }
        let backbone = self.backbone.as_ref().and_then(|backbone| backbone.contradiction(self.dim));
        let parts = backbone.or_else(|| positions::contradiction(self)).or_else(|| relative::contradiction(self));
        parts.or_else(|| pretraining::contradiction(self))
    }

    fn pretraining(&self) -> Option<&Pretraining> {
        self.pretraining.as_ref()
    }

    fn build_pretraining(&self, batch: usize, masks: Masks) -> Result<Graph, GraphError> {
        let (image, building) = pretraining::start(self, batch, masks);
        match self.contradiction() {
            Some(reason) => drop(image.refuse(self.kind(), reason)),
            None => Forward { net: self, building: &building }.pretrain(&image),
        }
        image.finish()
    }

    fn without_pretraining(&mut self) {
        self.pretraining = None;
    }

    fn rates(&self) -> Vec<f32> {
        let relative = self.relative_bias.map_or(0.0, |relative| relative.dropout());
        let coordinates = self.rotary.is_some_and(|rotary| rotary.is_random());
        vec![
            self.dropout,
            self.attention_dropout,
            self.patch_drop,
            self.drop_path,
            relative,
            f32::from(u8::from(coordinates)),
        ]
    }

    fn heads(&self) -> &'static [&'static str] {
        if self.distillation_head { &["head", "head_dist"] } else { &["head"] }
    }

    /// The second head of distilled weights is one also to a model without it, and is dropped when classes change.
    fn is_head(&self, parameter: &str) -> bool {
        ["head.", "head_dist."].iter().any(|layer| parameter.starts_with(layer))
    }

    fn first_filters(&self) -> String {
        match &self.backbone {
            Some(backbone) => format!("patch_embed.backbone.{}", backbone.first_filters()),
            None => "patch_embed.proj.weight".into(),
        }
    }

    fn refuses_image_size(&self, size: [usize; 2]) -> Option<String> {
        match &self.backbone {
            Some(backbone) => {
                refuses_patches(size, self.patch_size, "a feature map that divides into patches", |extent| {
                    backbone.feature_grid([extent; 2])[0]
                })
            }
            None => refuses_patches(size, self.patch_size, "patches", |extent| extent),
        }
    }

    fn patches(&self) -> Option<PatchGrid> {
        Some(PatchGrid { grid: self.grid(), size: self.backbone.is_none().then_some(self.patch_size) })
    }

    fn tokens(&self) -> Option<TokenSequence> {
        Some(TokenSequence { prefix: self.prefix_tokens(), class_token: self.class_token, grid: self.grid() })
    }

    fn follows_teacher(&self) -> bool {
        self.distillation_head
    }

    fn position_layout(&self, parameter: &str) -> Option<PositionLayout> {
        let [rows, columns] = self.grid();
        match parameter {
            "decoder_pos_embed" => Some(PositionLayout::Tokens { prefix: self.prefix_tokens(), grid: self.grid() }),
            "pos_embed" => {
                let prefix = if self.positions_on == PositionsOn::AllTokens { self.prefix_tokens() } else { 0 };
                Some(PositionLayout::Tokens { prefix, grid: self.grid() })
            }
            "pos_embed_row" => Some(PositionLayout::Line(rows)),
            "pos_embed_column" => Some(PositionLayout::Line(columns)),
            _ if parameter.ends_with("relative_position_bias_table") => Some(PositionLayout::Window(self.grid())),
            _ => None,
        }
    }

    fn options_of(&self, parameter: &str) -> Option<String> {
        misfit::options(self, parameter)
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let ([rows, columns], [high, wide]) = (self.grid(), self.patch_size);
        let of = if self.backbone.is_some() { "of a convolutional feature map" } else { "pixels" };
        let mut others = Vec::new();
        if self.class_token {
            others.push("a class token".to_string());
        }
        if self.distillation_token {
            others.push("a distillation token".into());
        }
        if self.registers > 0 {
            others.push(format!("{} registers", self.registers));
        }
        let others = if others.is_empty() { "nothing else".into() } else { others.join(", ") };
        let positions = match self.positions {
            Positions::None => "none",
            Positions::Learned => "learned, one vector per token",
            Positions::Learned2d => "learned, by row and column",
            Positions::SinCos => "sines and cosines",
        };
        let relative = self.relative_bias.map(|_| "relative, a bias on attention");
        let positions = match (positions, relative) {
            ("none", Some(relative)) => relative.to_string(),
            (embedded, Some(relative)) => format!("{embedded}; {relative}"),
            (embedded, None) => embedded.to_string(),
        };
        let positions = match self.rotary {
            None => positions,
            Some(rotary) if self.positions == Positions::None => rotary.to_string(),
            Some(rotary) => format!("{positions}; {rotary}"),
        };
        let pooled = if self.pool_prefix { "all tokens" } else { "the patch tokens" };
        let pooling = match self.pooling {
            Pooling::Token => "the class token".into(),
            Pooling::Mean => format!("the mean of {pooled}"),
            Pooling::Max => format!("the maximum of {pooled}"),
            Pooling::MeanMax => format!("the mean of mean and maximum of {pooled}"),
            Pooling::Map => format!("attention pooling of {pooled}"),
            Pooling::Refined if self.class_token => "the class token, after attention without parameters".into(),
            Pooling::Refined => "the mean of all tokens, after attention without parameters".into(),
            Pooling::TokenAndMean => format!("the class token and the mean of {pooled}"),
            Pooling::None => "every token by itself".into(),
        };
        vec![
            ("Tokens", format!("{rows} x {columns} = {} patches of {high} x {wide} {of}; {others}", rows * columns)),
            (
                "Encoder",
                format!(
                    "{} blocks{}, width {}, {} heads, {} {}",
                    self.depth,
                    match self.block {
                        BlockKind::PreNorm => String::new(),
                        BlockKind::PostNorm => " with norms after the branches".into(),
                        BlockKind::Parallel => " of attention and MLP side by side".into(),
                        BlockKind::Branches(branches) => format!(" of {branches} attentions and {branches} MLPs"),
                    },
                    self.dim,
                    self.heads,
                    if self.gate == Gate::None { "MLP" } else { "gated MLP" },
                    self.mlp_dim
                ),
            ),
            ("Positions", positions),
            ("Answers from", pooling),
        ]
        .into_iter()
        .chain(self.pretraining.as_ref().map(|pretraining| ("Pre-training", pretraining.kind().to_string())))
        .collect()
    }

    fn variants() -> Vec<Variant> {
        variants::variants()
    }

    fn variant(name: &str) -> Option<Variant> {
        variants::variant(name)
    }

    fn guess(weights: &Weights, scheme: Scheme) -> Option<Config> {
        guess::guess(weights, scheme)
    }
}

impl Vit {
    /// Why no attention can be built with these options.
    fn attention_contradiction(&self) -> Option<String> {
        if self.patch_drop > 0.0 && (self.rotary.is_some() || self.relative_bias.is_some()) {
            return Some("patches can be left out only where all positions are added to the tokens".into());
        }
        let Vit { heads, depth, .. } = *self;
        let unusual = self.rotary.is_some() || self.qkv.separate || !self.key_value_heads.is_empty();
        if unusual && self.lineage != Lineage::Eva {
            return Some("rotary positions and separate projections are options of timm's class Eva only".into());
        }
        if self.differential && (unusual || self.relative_bias.is_some()) {
            return Some("differential attention has neither rotary nor relative positions".into());
        }
        if self.differential && !(self.dim / heads.max(1)).is_multiple_of(2) {
            return Some(format!(
                "the heads of differential attention have two halves, not {}",
                self.dim / heads.max(1)
            ));
        }
        if let Some(reason) = eva::contradiction(self).filter(|_| self.lineage == Lineage::Eva) {
            return Some(reason);
        }
        if self.qkv.separate && matches!(self.block, BlockKind::Parallel) {
            return Some("a block with attention and MLP side by side has one projection for all of them".into());
        }
        let grouped = &self.key_value_heads;
        if !grouped.is_empty() {
            let learned = self.rotary.is_some_and(|rotary| rotary.angles == RotaryAngles::Mixed);
            if grouped.len() != depth || !self.qkv.separate || learned {
                return Some(format!(
                    "heads of keys and values need one number for each of the {depth} blocks, separate projections and no \
                     learned rotary frequencies"
                ));
            }
            if let Some(wrong) = grouped.iter().find(|&&shared| shared == 0 || !heads.is_multiple_of(shared)) {
                return Some(format!("{heads} heads cannot share {wrong} heads of keys and values"));
            }
        }
        let pool_heads = self.pool_heads.filter(|&heads| heads == 0 || !self.dim.is_multiple_of(heads));
        pool_heads.map(|heads| format!("a width of {} cannot be divided among {heads} heads of pooling", self.dim))
    }

    /// Why no block can be built with these options.
    fn block_contradiction(&self) -> Option<String> {
        let gated = self.gate != Gate::None || self.mlp_norm;
        match self.block {
            BlockKind::Parallel if gated || self.attention_norm => Some(
                "a block with attention and MLP side by side has neither a gate nor norms inside its branches".into(),
            ),
            BlockKind::Parallel if self.qkv.bias == QkvBias::QueryValue => {
                Some("a block with attention and MLP side by side has biases of query, key and value, or none".into())
            }
            BlockKind::Branches(branches) if !(1..=64).contains(&branches) => {
                Some(format!("the number of branches of a block is {branches}, it must be from 1 to 64"))
            }
            _ => None,
        }
    }
}
