//! The text tower: embedded tokens and positions, the blocks of a Vision Transformer, one token of which is projected.

use vit_graph::ops::{Activation, Constant};
use vit_graph::{Init, Tensor};

use super::TextInputs;
use crate::layers::{Forward, linear_from, unit_length};
use crate::vit::{BlockInputs, Vit};

/// The score of a pair of tokens that do not see each other: its weight is exactly 0, also in f16.
const MASKED: f32 = -3e4;

/// One text tower.
#[derive(Debug, Clone, PartialEq)]
pub struct TextTower {
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    /// Tokens of a text, padding included.
    pub context: usize,
    /// Width of a token.
    pub dim: usize,
    /// Blocks.
    pub depth: usize,
    /// Attention heads.
    pub heads: usize,
    /// Width of the MLP's hidden layer.
    pub mlp_dim: usize,
    /// The MLP's activation.
    pub activation: Activation,
    /// The norms' epsilon.
    pub norm_epsilon: f32,
    /// Layer scale and its starting value.
    pub layer_scale: Option<f32>,
    /// Tokens see only those before them (CLIP); in SigLIP all see all, padding included.
    pub causal: bool,
    /// The token that stands for the text.
    pub pooling: TextPooling,
    /// Width of the embedding.
    pub embed_dim: usize,
    /// Whether the projection to the embedding has a bias.
    pub projection_bias: bool,
}

/// The token that stands for a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TextPooling {
    /// The first with this id, the end of the text; the first token where there is none.
    Id(i32),
    /// The first with the highest id: the end of the text in CLIP's vocabulary.
    HighestId,
    /// The first token.
    First,
    /// The last token of the context, padding or not (SigLIP).
    Last,
}

impl TextPooling {
    /// Whether the token's position depends on the text.
    pub fn reads_ids(self) -> bool {
        matches!(self, TextPooling::Id(_) | TextPooling::HighestId)
    }

    /// The position of the token in a text.
    fn position(self, ids: &[i32]) -> usize {
        let first = |wanted: i32| ids.iter().position(|&id| id == wanted).unwrap_or(0);
        match self {
            TextPooling::Id(id) => first(id),
            TextPooling::HighestId => first(ids.iter().copied().max().unwrap_or(0)),
            TextPooling::First => 0,
            TextPooling::Last => ids.len().saturating_sub(1),
        }
    }
}

impl TextTower {
    /// The input `ends` for the input `ids [texts, context]`: for each text the row of its pooled token among all tokens.
    pub fn ends(&self, ids: &[i32]) -> Vec<i32> {
        let texts = ids.chunks(self.context.max(1)).enumerate();
        texts.map(|(text, ids)| (text * self.context + self.pooling.position(ids)) as i32).collect()
    }

    /// Why no tower can be built with these choices.
    pub(super) fn contradiction(&self) -> Option<String> {
        for (what, found, most) in [
            ("vocabulary", self.vocabulary, 1 << 24),
            ("context", self.context, 1 << 14),
            ("width", self.dim, 1 << 16),
            ("depth", self.depth, 1 << 10),
            ("width of the MLP", self.mlp_dim, 1 << 18),
            ("width of the embedding", self.embed_dim, 1 << 16),
        ] {
            if !(1..=most).contains(&found) {
                return Some(format!("the text tower's {what} is {found}, it must be from 1 to {most}"));
            }
        }
        (self.heads == 0 || !self.dim.is_multiple_of(self.heads))
            .then(|| format!("the text tower's width of {} cannot be divided among {} heads", self.dim, self.heads))
    }

    /// The blocks, which are a Vision Transformer's.
    fn blocks(&self) -> Vit {
        Vit {
            dim: self.dim,
            depth: self.depth,
            heads: self.heads,
            mlp_dim: self.mlp_dim,
            activation: self.activation,
            norm_epsilon: self.norm_epsilon,
            layer_scale: self.layer_scale,
            ..Vit::default()
        }
    }
}

impl Forward<'_, TextTower> {
    /// Outputs: `text_tokens` after the last norm, `text_features`, and `text_embeds`, which are the same at length 1.
    pub(super) fn run(&self, inputs: &TextInputs) -> Tensor {
        let (text, ids) = (self.net, &inputs.ids);
        let _scope = ids.scope("text");
        let table = ids.parameter("token_embedding.weight", [text.vocabulary, text.dim], Init::Normal { std: 0.02 });
        let positions = ids.parameter("pos_embed", [1, text.context, text.dim], Init::Normal { std: 0.01 });
        let mut x = table.gather(ids) + positions;
        let blocks = text.blocks();
        let encoder = Forward { net: &blocks, building: self.building };
        let mut block = BlockInputs { depth: 0, shared_bias: self.mask(inputs), rotation: None };
        for depth in 0..text.depth {
            block.depth = depth;
            x = encoder.block(x, &block);
        }
        let x = encoder.norm(&x, "norm");
        x.output("text_tokens");
        let init = Init::Normal { std: (text.dim as f32).powf(-0.5) };
        let y = linear_from(&self.pool(&x, inputs), text.embed_dim, text.projection_bias, init, "proj");
        y.output("text_features");
        let y = unit_length(&y);
        y.output("text_embeds");
        y
    }

    /// The bias of attention scores: later tokens are masked, and those that the input `attention_mask` hides.
    fn mask(&self, inputs: &TextInputs) -> Option<Tensor> {
        let TextTower { context, heads, causal, .. } = *self.net;
        let ids = &inputs.ids;
        let later = causal.then(|| {
            let score = |i: usize| if i % context > i / context { MASKED } else { 0.0 };
            ids.constant(Constant::f32([1, 1, context, context], (0..context * context).map(score).collect::<Vec<_>>()))
        });
        let hidden = inputs.mask.as_ref().map(|mask| {
            let one = mask.constant(Constant::filled([1], 1.0));
            (one - mask.clone()).scale(MASKED).reshape([ids.extent(0), 1, 1, context])
        });
        let bias = match (later, hidden) {
            (Some(later), Some(hidden)) => later + hidden,
            (later, hidden) => later.or(hidden)?,
        };
        Some(bias.broadcast([bias.extent(0), heads, context, context]))
    }

    /// One token of each text.
    fn pool(&self, x: &Tensor, inputs: &TextInputs) -> Tensor {
        let [texts, context, dim] = [0, 1, 2].map(|axis| x.extent(axis));
        let token = |at: usize| x.slice(1, at, 1).reshape([texts, dim]);
        match (self.net.pooling, &inputs.ends) {
            (_, Some(ends)) => x.reshape([texts * context, dim]).gather(ends),
            (TextPooling::Last, None) => token(context - 1),
            (_, None) => token(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TextPooling;

    #[test]
    fn the_pooled_token_is_the_first_end_of_the_text() {
        let ids = [9, 4, 7, 8, 8, 8];
        assert_eq!(TextPooling::Id(8).position(&ids), 3);
        assert_eq!(TextPooling::Id(5).position(&ids), 0);
        assert_eq!(TextPooling::HighestId.position(&[1, 4, 9, 9, 0]), 2);
        assert_eq!(TextPooling::Last.position(&ids), 5);
    }
}
