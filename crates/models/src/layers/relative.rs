//! Relative positions inside a window: each offset between two positions has a bias per head.

use vit_graph::ops::Constant;
use vit_graph::{Init, Tensor};

/// The index of the offset of every pair of positions in a window, `[query][key]`.
pub fn relative_index([rows, columns]: [usize; 2]) -> Vec<i32> {
    let area = rows * columns;
    let offset = |pair: usize| {
        let (i, j) = (pair / area, pair % area);
        let row = i / columns + rows - 1 - j / columns;
        let column = i % columns + columns - 1 - j % columns;
        (row * (2 * columns - 1) + column) as i32
    };
    (0..area * area).map(offset).collect()
}

/// The bias `[1, heads, area, area]` from a table `[offsets, heads]`.
pub fn relative_bias(table: &Tensor, window: [usize; 2]) -> Tensor {
    let (area, heads) = (window[0] * window[1], table.extent(1));
    let index = table.constant(Constant::i32([area, area], relative_index(window)));
    table.gather(&index).permute([2, 0, 1]).reshape([1, heads, area, area])
}

/// The signed logarithms of a window's offsets, `[offsets, 2]`, the input of an MLP that computes biases (Swin v2, with
/// natural logarithms and without normalisation, as in timm's "cr" mode).
pub fn log_offsets([rows, columns]: [usize; 2]) -> Vec<f32> {
    let log = |offset: i64| offset.signum() as f32 * ((offset.abs() + 1) as f32).ln();
    let side = |extent: usize| -(extent as i64 - 1)..extent as i64;
    side(rows).flat_map(|y| side(columns).flat_map(move |x| [log(y), log(x)])).collect()
}

/// The initialisation of bias tables.
pub const TABLE: Init = Init::TruncatedNormal { std: 0.02 };
