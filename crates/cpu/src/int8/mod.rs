//! Linear layers on bytes: `C = epilogue(A Wᵀ)` with the weights quantised once per output channel and the activations
//! per row on the way in. Sums of products are exact integers on every machine, so paths differ only in how the last
//! few floating-point operations are rounded, and the bits of a result do not depend on the number of threads.
//!
//! [`vit_graph::quantise`] defines what is computed: with `x = scale_x (q - zero)` and
//! `w = scale_w p`, an element of C is `epilogue(f32(Σ (q - zero) p) * scale_w * scale_x)`.

#[cfg(target_arch = "x86_64")]
mod amx;
mod block;
#[cfg(target_arch = "aarch64")]
mod neon;
mod pack;
mod path;
mod portable;
mod quantise;
#[cfg(target_arch = "x86_64")]
mod x86;

use crate::gemm::{ALIGN, Epilogue, Grid, aligned, check_matrix, check_workspace};
use crate::pool::{DisjointMut, Pool};

use block::Block;
pub use pack::{pack, pack_parallel, packed_len};
pub use path::{Path, dot_loop};
use path::{Shape, TileShape};
use quantise::QuantiseRows;

/// The most terms of a sum: with more, it could exceed 32 bits.
pub const MAX_TERMS: usize = 1 << 16;

/// One product of activations with packed weights.
#[derive(Debug)]
pub struct Gemm8<'a> {
    /// Rows of C.
    pub m: usize,
    /// Columns of C: output channels.
    pub n: usize,
    /// Terms of each sum, at most [`MAX_TERMS`].
    pub k: usize,
    /// The activations, `[m, k]`.
    pub a: &'a [f32],
    /// Distance of the rows of `a`.
    pub lda: usize,
    /// The weights from [`pack`], for the same path.
    pub b_packed: &'a [f32],
    /// The result, `[m, n]`.
    pub c: &'a mut [f32],
    /// Distance of the rows of `c`.
    pub ldc: usize,
    /// What happens on the way to C.
    pub epilogue: Epilogue<'a>,
}

/// How many numbers of workspace [`gemm`] needs.
pub fn workspace(path: impl Into<Path>, _threads: usize, m: usize, _n: usize, k: usize) -> usize {
    let shape = path.into().dispatch(TileShape);
    m * row_bytes(shape, k) / 4 + 2 * m + ALIGN
}

/// The distance of quantised rows: whole cache lines, an odd number of them, so that the rows of a tile do not compete
/// for the same places in the cache.
fn row_bytes(shape: Shape, k: usize) -> usize {
    (k * shape.left_bytes).div_ceil(64).max(1) / 2 * 128 + 64
}

/// Computes the product on the threads of the pool. A row with a NaN or an infinity becomes NaN.
///
/// # Panics
/// If a slice is too short for the shape, or B is packed for another path's length.
pub fn gemm(pool: &Pool, path: impl Into<Path>, gemm: Gemm8<'_>, workspace: &mut [f32]) {
    let path = path.into();
    let Gemm8 { m, n, k, .. } = gemm;
    check_matrix("A", gemm.a.len(), m, k, gemm.lda);
    assert_eq!(gemm.b_packed.len(), packed_len(path, k, n), "packed weights for k={k} n={n}");
    check_matrix("C", gemm.c.len(), m, n, gemm.ldc);
    gemm.epilogue.check(m, n);
    check_workspace("int8 gemm", workspace.len(), self::workspace(path, pool.threads(), m, n, k));
    if m == 0 || n == 0 {
        return;
    }

    let shape = path.dispatch(TileShape);
    let stride = row_bytes(shape, k);
    let (quantised, rest) = aligned(workspace, m * stride / 4);
    let (row_scales, rest) = rest.split_at_mut(m);
    let row_offsets: &mut [i32] = bytemuck::cast_slice_mut(&mut rest[..m]);
    let quantised: &mut [u8] = bytemuck::cast_slice_mut(quantised);
    quantise_rows(pool, path, &gemm, stride, quantised, row_scales, row_offsets);

    assert!(gemm.epilogue.factor.is_none(), "products on bytes have no factors");
    let (scales, sums, weights) = pack::sections(shape, n, gemm.b_packed);
    let groups = k.div_ceil(shape.group);
    let (tile, most_rows) = path.block_shape(m, groups, shape);
    let most = (BLOCK_BYTES / stride).clamp(tile[0], most_rows);
    let Grid { rows, columns } = Grid::of(pool.threads(), [m, n], tile, most);
    let c = DisjointMut::new(gemm.c);
    pool.run(rows.parts * columns.parts, &|task| {
        let (row, rows) = rows.part(task / columns.parts);
        let (column, columns) = columns.part(task % columns.parts);
        // The checks above cover every block, and blocks of C do not overlap.
        path.block(Block {
            m: rows,
            n: columns,
            groups,
            a: quantised[row * stride..].as_ptr(),
            stride,
            row_scales: row_scales[row..].as_ptr(),
            row_offsets: row_offsets[row..].as_ptr(),
            b: weights[column * groups * shape.group..].as_ptr(),
            column_scales: scales[column..].as_ptr(),
            weight_sums: sums[column..].as_ptr(),
            c: c.at(row * gemm.ldc + column),
            ldc: gemm.ldc,
            epilogue: gemm.epilogue.part(row, column),
        });
    });
}

/// Elements that one task quantises: enough work to be worth handing out.
const QUANTISE_ELEMENTS: usize = 16 * 1024;

fn quantise_rows(
    pool: &Pool,
    path: Path,
    gemm: &Gemm8<'_>,
    stride: usize,
    quantised: &mut [u8],
    scales: &mut [f32],
    offsets: &mut [i32],
) {
    let rows_each = (QUANTISE_ELEMENTS / gemm.k.max(1)).max(1);
    let (quantised, scales, offsets) =
        (DisjointMut::new(quantised), DisjointMut::new(scales), DisjointMut::new(offsets));
    pool.run(gemm.m.div_ceil(rows_each), &|task| {
        let row = task * rows_each;
        let rows = rows_each.min(gemm.m - row);
        // SAFETY: the rows of different tasks do not overlap.
        let kernel = unsafe {
            QuantiseRows {
                k: gemm.k,
                a: &gemm.a[(row * gemm.lda).min(gemm.a.len())..],
                lda: gemm.lda,
                to: quantised.slice(row * stride, rows * stride),
                stride,
                scales: scales.slice(row, rows),
                offsets: offsets.slice(row, rows),
            }
        };
        path.dispatch(kernel);
    });
}

/// Bytes of A that a block keeps in the second-level cache.
const BLOCK_BYTES: usize = 384 * 1024;
