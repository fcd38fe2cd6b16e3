//! int8 linear layers: `C = epilogue(A Wᵀ)` with weights quantised per output channel beforehand and activations
//! quantised per row in every call. Sums of products are exact integers, so paths differ only in the rounding of the
//! last few floating-point operations, and the bits of a result do not depend on the number of threads.
//!
//! [`vit_graph::quantise`] defines the result: with `x = scale_x (q - zero)` and
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

use crate::gemm::{ALIGN, Epilogue, TaskGrid, aligned, check_matrix, check_workspace};
use crate::thread_pool::{DisjointMut, ThreadPool};

use block::QuantisedBlock;
pub use pack::{pack, pack_parallel, packed_len};
pub use path::{DotPath, dot_loop};
use path::{PathShape, ShapeOf};
use quantise::QuantiseRows;

/// The largest power of two of terms whose sum fits an i32: 2^16 * 255 * 127 < 2^31.
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
    /// Row stride of `a`.
    pub lda: usize,
    /// The weights from [`pack`], for the same path: f32 scales, i32 sums and i8 panels, in a slice of f32 only as
    /// storage.
    pub b_packed: &'a [f32],
    /// The result, `[m, n]`.
    pub c: &'a mut [f32],
    /// Row stride of `c`.
    pub ldc: usize,
    /// The epilogue, without a factor.
    pub epilogue: Epilogue<'a>,
}

/// Elements of workspace that [`gemm`] needs.
pub fn workspace(path: impl Into<DotPath>, m: usize, k: usize) -> usize {
    let shape = path.into().dispatch(ShapeOf);
    m * row_bytes(shape, k) / 4 + 2 * m + ALIGN
}

/// Bytes from one quantised row to the next: an odd number of cache lines, so that the rows of a tile do not compete
/// for the same cache sets.
fn row_bytes(shape: PathShape, k: usize) -> usize {
    (k * shape.left_bytes).div_ceil(64) / 2 * 128 + 64
}

/// Computes the product on the threads of the pool. A row with a NaN or an infinity becomes NaN.
///
/// # Panics
/// If a slice is too short for the shape, `k` is above [`MAX_TERMS`], the epilogue has a factor, this machine lacks the
/// path, or `b_packed` is not [`packed_len`] long. Weights that were packed for another path with the same length are
/// not detected.
pub fn gemm(pool: &ThreadPool, path: impl Into<DotPath>, gemm: Gemm8<'_>, workspace: &mut [f32]) {
    let path = path.into();
    let Gemm8 { m, n, k, .. } = gemm;
    check_matrix("A", gemm.a.len(), m, k, gemm.lda);
    assert_eq!(gemm.b_packed.len(), packed_len(path, k, n), "packed weights for k={k} n={n}");
    check_matrix("C", gemm.c.len(), m, n, gemm.ldc);
    gemm.epilogue.check(m, n);
    check_workspace("int8 gemm", workspace.len(), self::workspace(path, m, k));
    if m == 0 || n == 0 {
        return;
    }

    let shape = path.dispatch(ShapeOf);
    let stride = row_bytes(shape, k);
    let (quantised, rest) = aligned(workspace, m * stride / 4);
    let (row_scales, rest) = rest.split_at_mut(m);
    // The zero point of each row, as `Dot::offset` gives it.
    let row_offsets: &mut [i32] = bytemuck::cast_slice_mut(&mut rest[..m]);
    let quantised: &mut [u8] = bytemuck::cast_slice_mut(quantised);
    quantise_rows(pool, path, &gemm, stride, quantised, row_scales, row_offsets);

    assert!(gemm.epilogue.factor.is_none(), "int8 products have no factor");
    let (scales, sums, weights) = pack::sections(shape, n, gemm.b_packed);
    let groups = k.div_ceil(shape.group);
    let (tile, max_rows) = path.block_shape(m, groups, shape);
    let mc = (BLOCK_BYTES / stride).clamp(tile[0], max_rows);
    let TaskGrid { rows, columns } = TaskGrid::with_tile(pool.threads(), [m, n], tile, mc);
    let c = DisjointMut::new(gemm.c);
    pool.run(rows.blocks * columns.blocks, &|task| {
        let (row, rows) = rows.block(task / columns.blocks);
        let (column, columns) = columns.block(task % columns.blocks);
        let block = QuantisedBlock {
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
            epilogue: gemm.epilogue.at(row, column),
        };
        // SAFETY: the checks above cover every block, and blocks of C do not overlap. Column blocks start at multiples
        // of `tile[1]`, so at a panel of B.
        unsafe { path.run_block(block) };
    });
}

/// Elements that a task quantises: with fewer, starting the task would take longer.
const QUANTISE_ELEMENTS: usize = 16 * 1024;

fn quantise_rows(
    pool: &ThreadPool,
    path: DotPath,
    gemm: &Gemm8<'_>,
    stride: usize,
    quantised: &mut [u8],
    scales: &mut [f32],
    offsets: &mut [i32],
) {
    let rows_per_task = (QUANTISE_ELEMENTS / gemm.k.max(1)).max(1);
    let (quantised, scales, offsets) =
        (DisjointMut::new(quantised), DisjointMut::new(scales), DisjointMut::new(offsets));
    pool.run(gemm.m.div_ceil(rows_per_task), &|task| {
        let row = task * rows_per_task;
        let rows = rows_per_task.min(gemm.m - row);
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

/// The most bytes of A in a block, which stay in the second-level cache beside the panels of B that pass through it.
const BLOCK_BYTES: usize = 384 * 1024;
