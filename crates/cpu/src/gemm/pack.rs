//! Packing of B into panels of NR columns: `[panel][k][NR]`, padded with zeros.

use super::check_matrix;
use crate::isa::Isa;
use crate::simd::{Kernel, Simd, TRANSPOSE, TileShape};
use crate::thread_pool::{DisjointMut, ThreadPool};

/// How B lies in memory before it is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BLayout {
    /// `[n, k]`, as the weights of a linear layer.
    RowsAreN,
    /// `[k, n]`.
    RowsAreK,
}

/// The length of a packed `k` x `n` matrix. The slice should start at a multiple of 64 bytes for full speed.
pub fn packed_len(isa: Isa, k: usize, n: usize) -> usize {
    n.next_multiple_of(isa.dispatch(TileShape).1) * k
}

/// Packs a `k` x `n` matrix with row stride `ld` for [`super::gemm`] with the same instruction set.
///
/// # Panics
/// If `src` is too short, or `dst` is not [`packed_len`] long.
pub fn pack_b(isa: Isa, src: &[f32], layout: BLayout, ld: usize, k: usize, n: usize, dst: &mut [f32]) {
    check(isa, src, layout, ld, k, n, dst.len());
    // SAFETY: both slices are as long as the shape says.
    unsafe { pack_panels(isa, PackPanels { src: src.as_ptr(), layout, ld, k, n, dst: dst.as_mut_ptr() }) };
}

/// [`pack_b`] on the threads of the pool.
///
/// # Panics
/// As [`pack_b`].
#[allow(clippy::too_many_arguments)]
pub fn pack_b_parallel(
    pool: &ThreadPool,
    isa: Isa,
    src: &[f32],
    layout: BLayout,
    ld: usize,
    k: usize,
    n: usize,
    dst: &mut [f32],
) {
    check(isa, src, layout, ld, k, n, dst.len());
    let (_, nr) = isa.dispatch(TileShape);
    let dst = DisjointMut::new(dst);
    // Packing 64 Ki elements takes about a hundred times as long as handing a task to a thread.
    let task_columns = (64 * 1024 / (k.max(1) * nr)).max(1) * nr;
    pool.run(n.div_ceil(task_columns), &|task| {
        let column = task * task_columns;
        let columns = task_columns.min(n - column);
        let start = match layout {
            BLayout::RowsAreN => column * ld,
            BLayout::RowsAreK => column,
        };
        let panels =
            PackPanels { src: src.as_ptr().wrapping_add(start), layout, ld, k, n: columns, dst: dst.at(column * k) };
        // SAFETY: both slices are as long as the shape says, and the panels of different tasks do not overlap.
        unsafe { pack_panels(isa, panels) };
    });
}

fn check(isa: Isa, src: &[f32], layout: BLayout, ld: usize, k: usize, n: usize, dst: usize) {
    match layout {
        BLayout::RowsAreN => check_matrix("B", src.len(), n, k, ld),
        BLayout::RowsAreK => check_matrix("B", src.len(), k, n, ld),
    }
    assert_eq!(dst, packed_len(isa, k, n), "packed B for k={k} n={n}");
}

/// A matrix and the destination of its panels.
pub(super) struct PackPanels {
    pub src: *const f32,
    pub layout: BLayout,
    pub ld: usize,
    pub k: usize,
    pub n: usize,
    pub dst: *mut f32,
}

/// Packs on one thread.
///
/// # Safety
/// The source must be readable and `packed_len` elements of the destination writable; no other thread may access the
/// destination.
pub(super) unsafe fn pack_panels(isa: Isa, panels: PackPanels) {
    isa.dispatch(Pack(panels));
}

struct Pack(PackPanels);

impl Kernel for Pack {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let PackPanels { src, layout, ld, k, n, dst } = self.0;
        let nr = S::TILE_VECTORS * S::LANES;
        let mut column = 0;
        while column < n {
            let columns = nr.min(n - column);
            // SAFETY: guaranteed by the caller of `pack_panels`.
            unsafe {
                let dst = dst.add(column * k);
                match layout {
                    BLayout::RowsAreN => transpose_panel(s, src.add(column * ld), ld, k, columns, dst),
                    BLayout::RowsAreK => copy_panel(s, src.add(column), ld, k, columns, dst),
                }
            }
            column += columns;
        }
    }
}

/// How many rows ahead to prefetch: the hardware prefetcher does not follow short rows that are far apart, such as
/// those of a head.
const ROWS_AHEAD: usize = 16;

/// Packs `columns` columns of a `[k, n]` matrix as one panel `[k][NR]`.
///
/// # Safety
/// As for [`pack_panels`].
#[inline(always)]
pub(super) unsafe fn copy_panel<S: Simd>(s: S, src: *const f32, ld: usize, k: usize, columns: usize, dst: *mut f32) {
    let nr = S::TILE_VECTORS * S::LANES;
    for i in 0..k {
        for j in 0..S::TILE_VECTORS {
            let offset = j * S::LANES;
            s.prefetch(src.wrapping_add((i + ROWS_AHEAD) * ld + offset));
            // SAFETY: reads stay below `columns`, writes below `nr`.
            unsafe {
                let v = if offset < columns {
                    s.load_up_to(src.add(i * ld + offset), columns - offset)
                } else {
                    s.splat(0.0)
                };
                s.store(dst.add(i * nr + offset), v);
            }
        }
    }
}

/// Packs `columns` rows of an `[n, k]` matrix as one panel `[k][NR]`.
///
/// # Safety
/// As for [`pack_panels`].
#[inline(always)]
unsafe fn transpose_panel<S: Simd>(s: S, src: *const f32, ld: usize, k: usize, columns: usize, dst: *mut f32) {
    let nr = S::TILE_VECTORS * S::LANES;
    let mut column = 0;
    while column < nr {
        let full = column + TRANSPOSE <= columns;
        let mut i = 0;
        // SAFETY: reads stay below row `columns` and column `k`, writes below `k` x `nr`.
        unsafe {
            if full {
                while i + TRANSPOSE <= k {
                    for j in 0..TRANSPOSE {
                        s.prefetch(src.wrapping_add((column + ROWS_AHEAD + j) * ld + i));
                    }
                    let from = src.add(column * ld + i);
                    s.transpose(from, ld, dst.add(i * nr + column), nr);
                    i += TRANSPOSE;
                }
            }
            while i < k {
                for j in column..nr.min(column + TRANSPOSE) {
                    let x = if j < columns { *src.add(j * ld + i) } else { 0.0 };
                    *dst.add(i * nr + j) = x;
                }
                i += 1;
            }
        }
        column += TRANSPOSE;
    }
}
