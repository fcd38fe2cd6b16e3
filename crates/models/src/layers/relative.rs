//! Relative positions: attention scores have a bias per head that depends on the offset between query and key. Biases are
//! stored in a table of all offsets, or computed from them ([`ContinuousBias`](super::ContinuousBias)).

use vit_graph::ops::Constant;
use vit_graph::{Init, Tensor};

/// The initialisation of bias tables.
pub const TABLE: Init = Init::TruncatedNormal { std: 0.02 };

/// The number of offsets between two positions of a grid.
pub fn offsets([rows, columns]: [usize; 2]) -> usize {
    (2 * rows - 1) * (2 * columns - 1)
}

/// The biases of pairs with a prefix token (a class token or register), which has no place in the grid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrefixBias {
    /// None.
    Zero,
    /// Three rows of the table after those of the offsets: from a prefix token to a patch, from a patch to a prefix token,
    /// between prefix tokens (BEiT).
    Rows,
}

/// The row of the table for every pair of tokens, `[query][key]`: prefix tokens, then a grid. It is -1, which gathers
/// zeros, where a pair has no bias.
pub fn relative_index([rows, columns]: [usize; 2], prefix: usize, prefix_bias: PrefixBias) -> Vec<i32> {
    let (tokens, offsets) = (prefix + rows * columns, offsets([rows, columns]) as i32);
    let row = |pair: usize| match ((pair / tokens).checked_sub(prefix), (pair % tokens).checked_sub(prefix)) {
        (Some(i), Some(j)) => {
            let row = i / columns + rows - 1 - j / columns;
            let column = i % columns + columns - 1 - j % columns;
            (row * (2 * columns - 1) + column) as i32
        }
        _ if prefix_bias == PrefixBias::Zero => -1,
        (None, Some(_)) => offsets,
        (Some(_), None) => offsets + 1,
        (None, None) => offsets + 2,
    };
    (0..tokens * tokens).map(row).collect()
}

/// The bias `[1, heads, tokens, tokens]` from a table `[rows, heads]`, where prefix tokens come before those of the grid. Tap:
/// `bias_table`.
pub fn relative_bias(table: &Tensor, grid: [usize; 2], prefix: usize, prefix_bias: PrefixBias) -> Tensor {
    table.tap("bias_table");
    let (tokens, heads) = (prefix + grid[0] * grid[1], table.extent(1));
    let index = table.constant(Constant::i32([tokens, tokens], relative_index(grid, prefix, prefix_bias)));
    table.gather(&index).permute([2, 0, 1]).reshape([1, heads, tokens, tokens])
}

/// The bias `[1, heads, area, area]` of a window from a table `[offsets, heads]`.
pub fn window_bias(table: &Tensor, window: [usize; 2]) -> Tensor {
    relative_bias(table, window, 0, PrefixBias::Zero)
}
