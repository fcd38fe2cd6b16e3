//! Relative positions inside a window: every pair of places has an offset, and every offset a bias per head.

use vit_graph::ops::Constant;
use vit_graph::{Init, Tensor};

/// For every pair of places of a window, query by query, the number of its offset.
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

/// Offsets of a window in logarithms, `[offsets, 2]`, from which a small network makes biases (Swin v2's idea, with
/// natural logarithms and without normalisation, as timm's "cr" mode has it).
pub fn log_offsets([rows, columns]: [usize; 2]) -> Vec<f32> {
    let log = |offset: i64| offset.signum() as f32 * ((offset.abs() + 1) as f32).ln();
    let side = |extent: usize| -(extent as i64 - 1)..extent as i64;
    side(rows).flat_map(|y| side(columns).flat_map(move |x| [log(y), log(x)])).collect()
}

/// How tables of biases start.
pub const TABLE: Init = Init::TruncatedNormal { std: 0.02 };
