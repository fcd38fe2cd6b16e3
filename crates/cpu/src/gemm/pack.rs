//! Packing of B: panels as wide as the register tile, each with its k rows one after the other, padded with zeros.

use super::check_matrix;
use crate::isa::Isa;
use crate::pool::{DisjointMut, Pool};
use crate::simd::{Kernel, Simd, TRANSPOSE, TileShape};

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

/// Packs `k` x `n` numbers, whose rows are `ld` apart, for [`super::gemm`] with the same instruction set.
///
/// # Panics
/// If `src` is too short, or `dst` is not [`packed_len`] long.
pub fn pack_b(isa: Isa, src: &[f32], layout: BLayout, ld: usize, k: usize, n: usize, dst: &mut [f32]) {
    check(isa, src, layout, ld, k, n, dst.len());
    isa.dispatch(PackPanels { src: src.as_ptr(), layout, ld, k, n, dst: dst.as_mut_ptr() });
}

/// [`pack_b`] on the threads of the pool.
///
/// # Panics
/// As [`pack_b`].
#[allow(clippy::too_many_arguments)]
pub fn pack_b_parallel(
    pool: &Pool,
    isa: Isa,
    src: &[f32],
    layout: BLayout,
    ld: usize,
    k: usize,
    n: usize,
    dst: &mut [f32],
) {
    check(isa, src, layout, ld, k, n, dst.len());
    let (_, width) = isa.dispatch(TileShape);
    let dst = DisjointMut::new(dst);
    // A task is about as long as it takes to hand it out a hundred times.
    let panels = (64 * 1024 / (k.max(1) * width)).max(1);
    pool.run(n.div_ceil(panels * width), &|task| {
        let column = task * panels * width;
        let columns = (panels * width).min(n - column);
        let start = match layout {
            BLayout::RowsAreN => column * ld,
            BLayout::RowsAreK => column,
        };
        // The panels of different tasks do not overlap.
        isa.dispatch(PackPanels {
            src: src.as_ptr().wrapping_add(start),
            layout,
            ld,
            k,
            n: columns,
            dst: dst.at(column * k),
        });
    });
}

fn check(isa: Isa, src: &[f32], layout: BLayout, ld: usize, k: usize, n: usize, dst: usize) {
    match layout {
        BLayout::RowsAreN => check_matrix("B", src.len(), n, k, ld),
        BLayout::RowsAreK => check_matrix("B", src.len(), k, n, ld),
    }
    assert_eq!(dst, packed_len(isa, k, n), "packed B for k={k} n={n}");
}

/// Packs on one thread.
///
/// Making one is a promise: the source and `packed_len` numbers of the destination are valid, and nobody else uses
/// that destination.
pub(crate) struct PackPanels {
    pub src: *const f32,
    pub layout: BLayout,
    pub ld: usize,
    pub k: usize,
    pub n: usize,
    pub dst: *mut f32,
}

impl Kernel for PackPanels {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let width = S::TILE_VECTORS * S::LANES;
        let mut column = 0;
        while column < self.n {
            let columns = width.min(self.n - column);
            // SAFETY: the promise of whoever made this covers the panel.
            unsafe {
                let dst = self.dst.add(column * self.k);
                match self.layout {
                    BLayout::RowsAreN => {
                        let src = self.src.add(column * self.ld);
                        transpose_panel(s, src, self.ld, self.k, columns, dst);
                    }
                    BLayout::RowsAreK => {
                        let src = self.src.add(column);
                        copy_panel(s, src, self.ld, self.k, columns, dst);
                    }
                }
            }
            column += columns;
        }
    }
}

/// Rows to ask for ahead of time: short rows far apart, such as those of a head, are not a stream to the processor.
const AHEAD: usize = 16;

/// # Safety
/// As for [`PackPanels`].
#[inline(always)]
pub(super) unsafe fn copy_panel<S: Simd>(s: S, src: *const f32, ld: usize, k: usize, columns: usize, dst: *mut f32) {
    let width = S::TILE_VECTORS * S::LANES;
    for i in 0..k {
        for j in 0..S::TILE_VECTORS {
            let offset = j * S::LANES;
            s.prefetch(src.wrapping_add((i + AHEAD) * ld + offset));
            // SAFETY: reads stay below `columns`, writes below `width`.
            unsafe {
                let v = if offset < columns {
                    s.load_up_to(src.add(i * ld + offset), columns - offset)
                } else {
                    s.splat(0.0)
                };
                s.store(dst.add(i * width + offset), v);
            }
        }
    }
}

/// # Safety
/// As for [`PackPanels`].
#[inline(always)]
unsafe fn transpose_panel<S: Simd>(s: S, src: *const f32, ld: usize, k: usize, columns: usize, dst: *mut f32) {
    let width = S::TILE_VECTORS * S::LANES;
    let mut column = 0;
    while column < width {
        let full = column + TRANSPOSE <= columns;
        let mut i = 0;
        // SAFETY: reads stay below row `columns` and column `k`, writes below `k` x `width`.
        unsafe {
            if full {
                while i + TRANSPOSE <= k {
                    for j in 0..TRANSPOSE {
                        s.prefetch(src.wrapping_add((column + AHEAD + j) * ld + i));
                    }
                    let from = src.add(column * ld + i);
                    s.transpose(from, ld, dst.add(i * width + column), width);
                    i += TRANSPOSE;
                }
            }
            while i < k {
                for j in column..width.min(column + TRANSPOSE) {
                    let x = if j < columns { *src.add(j * ld + i) } else { 0.0 };
                    *dst.add(i * width + j) = x;
                }
                i += 1;
            }
        }
        column += TRANSPOSE;
    }
}
