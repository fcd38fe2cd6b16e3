//! Relative position bias on attention scores: of each block, or shared by all blocks.

use vit_graph::Tensor;

use super::Vit;
use crate::layers::{Building, CONTINUOUS_BIAS_DROPOUT, ContinuousBias, PrefixBias, TABLE, offsets, relative_bias};

/// The most pairs of tokens with a bias.
const LARGEST_BIAS: usize = 1 << 27;

/// A bias on attention scores that depends on the offset between query and key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelativeBias {
    /// How biases are stored.
    pub kind: RelativeBiasKind,
    /// Which blocks have the same ones.
    pub sharing: BiasSharing,
}

/// How biases are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelativeBiasKind {
    /// A value per offset and head and, with prefix tokens, three more ([`PrefixBias::Rows`]).
    Table,
    /// An MLP computes them; pairs with a prefix token have none.
    Continuous(ContinuousBias),
}

/// Which blocks have the same biases.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BiasSharing {
    /// Each block has its own.
    PerBlock,
    /// All blocks share them.
    Shared,
    /// The sum of a block's own and shared ones.
    Both,
}

impl RelativeBias {
    /// A table in each block.
    pub const TABLES: RelativeBias = RelativeBias { kind: RelativeBiasKind::Table, sharing: BiasSharing::PerBlock };

    /// Dropout inside the MLP.
    pub(super) fn dropout(&self) -> f32 {
        match self.kind {
            RelativeBiasKind::Table => 0.0,
            RelativeBiasKind::Continuous(_) => CONTINUOUS_BIAS_DROPOUT,
        }
    }

    fn bias(&self, vit: &Vit, building: &Building, x: &Tensor, name: &str) -> Tensor {
        let _scope = x.scope(name);
        let (grid, prefix) = (vit.grid(), vit.prefix_tokens());
        match self.kind {
            RelativeBiasKind::Table => {
                let rows = offsets(grid) + if prefix > 0 { 3 } else { 0 };
                let table = x.parameter("relative_position_bias_table", [rows, vit.heads], TABLE);
                relative_bias(&table, grid, prefix, PrefixBias::Rows)
            }
            RelativeBiasKind::Continuous(network) => {
                let drop = |h| building.dropout(h, CONTINUOUS_BIAS_DROPOUT);
                let table = network.table(x, vit.heads, grid, drop, ["mlp.fc1", "mlp.fc2"]);
                relative_bias(&table, grid, prefix, PrefixBias::Zero)
            }
        }
    }
}

/// The bias that all blocks share.
pub(super) fn shared_bias(vit: &Vit, building: &Building, x: &Tensor) -> Option<Tensor> {
    let relative = vit.relative_bias.filter(|relative| relative.sharing != BiasSharing::PerBlock)?;
    Some(relative.bias(vit, building, x, "shared_rel_pos"))
}

/// The bias `[1, heads, tokens, tokens]` of one block.
pub(super) fn block_bias(vit: &Vit, building: &Building, x: &Tensor, shared: Option<&Tensor>) -> Option<Tensor> {
    let own = vit.relative_bias.filter(|relative| relative.sharing != BiasSharing::Shared);
    match (own.map(|relative| relative.bias(vit, building, x, "rel_pos")), shared) {
        (Some(own), Some(shared)) => Some(own + shared.clone()),
        (own, shared) => own.or(shared.cloned()),
    }
}

/// Why this bias is impossible.
pub(super) fn contradiction(vit: &Vit) -> Option<String> {
    let [rows, columns] = vit.grid();
    let tokens = vit.prefix_tokens() + rows * columns;
    match vit.relative_bias?.kind {
        _ if tokens.saturating_mul(tokens) > LARGEST_BIAS => {
            Some(format!("a bias for every pair of {tokens} tokens takes too much memory"))
        }
        RelativeBiasKind::Continuous(ContinuousBias { hidden, .. }) if !(1..=1 << 16).contains(&hidden) => {
            Some(format!(
                "the hidden layer of the MLP of relative positions has a width of {hidden}, it must be from 1 to 65536"
            ))
        }
        _ => None,
    }
}
