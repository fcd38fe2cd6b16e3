//! Packing of a head's rows into panels of whole vectors. Panels are about equally wide, so that no register tile is
//! too narrow to keep the multiply-add units busy.

use super::HeadView;
use crate::simd::{Kernel, Simd, TRANSPOSE};

/// How many rows ahead to prefetch: the hardware prefetcher does not follow short rows that are far apart, such as
/// those of a head.
pub(super) const PREFETCH_ROWS: usize = 16;
/// f32 elements of a cache line.
const LINE: usize = 16;

/// The panels of some columns, each as its first vector and its width in vectors.
pub(super) struct Panels {
    next: usize,
    vectors: usize,
    widest: usize,
}

impl Panels {
    #[inline(always)]
    pub fn of<S: Simd>(columns: usize) -> Panels {
        Panels { next: 0, vectors: columns.div_ceil(S::LANES), widest: S::HEAD_TILE_VECTORS }
    }
}

impl Iterator for Panels {
    type Item = (usize, usize);

    #[inline(always)]
    fn next(&mut self) -> Option<(usize, usize)> {
        let left = self.vectors - self.next;
        if left == 0 {
            return None;
        }
        let width = left.div_ceil(left.div_ceil(self.widest));
        let start = self.next;
        self.next += width;
        Some((start, width))
    }
}

/// Prefetches a row of `n` elements, which need not be valid.
#[inline(always)]
pub(super) fn prefetch_row<S: Simd>(s: S, row: *const f32, n: usize) {
    let mut i = 0;
    while i < n {
        s.prefetch(row.wrapping_add(i));
        i += LINE;
    }
}

/// Packs the rows of a head transposed, as `[panel][head_dim][row of the panel]`. Padding repeats the last row: in
/// `Q Kᵀ` it changes no maximum over the keys, and the scores of padding are then overwritten or ignored.
pub(super) struct PackTransposed<'a> {
    pub view: HeadView<'a>,
    pub b: usize,
    pub h: usize,
    pub rows: usize,
    pub head_dim: usize,
    pub packed: &'a mut [f32],
}

impl Kernel for PackTransposed<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let PackTransposed { view, b, h, rows, head_dim, packed } = self;
        let from = view.first_of(rows, b, 0, h, head_dim);
        assert!(packed.len() >= rows.next_multiple_of(S::LANES) * head_dim, "attention: no room for packed rows");
        for (start, vectors) in Panels::of::<S>(rows) {
            let width = vectors * S::LANES;
            let first = start * S::LANES;
            let panel = packed.as_mut_ptr().wrapping_add(first * head_dim);
            let mut column = 0;
            while column < width {
                let columns = TRANSPOSE.min(width - column);
                for ahead in first + column + PREFETCH_ROWS..first + column + PREFETCH_ROWS + columns {
                    prefetch_row(s, from.wrapping_add(ahead * view.row_stride), head_dim);
                }
                let source = PanelColumns { from, stride: view.row_stride, rows, first: first + column, columns };
                let mut d = 0;
                while d < head_dim {
                    // SAFETY: all `rows` rows are valid, and the columns from `column` on are inside the panel.
                    unsafe { source.transpose(s, d, head_dim, panel.add(d * width + column), width) };
                    d += TRANSPOSE;
                }
                column += columns;
            }
        }
    }
}

/// Up to `TRANSPOSE` neighbouring rows of a head, which become as many columns of a panel.
struct PanelColumns {
    /// Row 0 of the head.
    from: *const f32,
    stride: usize,
    /// The number of rows of the head.
    rows: usize,
    /// The row that becomes the first column; rows past the last are replaced by the last.
    first: usize,
    columns: usize,
}

impl PanelColumns {
    /// Writes elements `d..d + TRANSPOSE` of these rows (as far as `head_dim`) as rows of `to`.
    ///
    /// # Safety
    /// `rows` rows of `head_dim` elements must be readable, and up to `TRANSPOSE` rows of `columns` elements at `to`
    /// writable.
    #[inline(always)]
    unsafe fn transpose<S: Simd>(&self, s: S, d: usize, head_dim: usize, to: *mut f32, to_stride: usize) {
        let &PanelColumns { from, stride, rows, first, columns } = self;
        let elements = TRANSPOSE.min(head_dim - d);
        // SAFETY: reads are of rows below `rows` and elements below `head_dim`.
        unsafe {
            if columns == TRANSPOSE && elements == TRANSPOSE && first + TRANSPOSE <= rows {
                s.transpose(from.add(first * stride + d), stride, to, to_stride);
            } else if columns == TRANSPOSE && elements == TRANSPOSE {
                let mut padded = [0.0f32; TRANSPOSE * TRANSPOSE];
                for (c, to) in padded.chunks_exact_mut(TRANSPOSE).enumerate() {
                    let from = from.add((first + c).min(rows - 1) * stride + d);
                    std::ptr::copy_nonoverlapping(from, to.as_mut_ptr(), TRANSPOSE);
                }
                s.transpose(padded.as_ptr(), TRANSPOSE, to, to_stride);
            } else {
                for c in 0..columns {
                    let from = from.add((first + c).min(rows - 1) * stride + d);
                    for i in 0..elements {
                        *to.add(i * to_stride + c) = *from.add(i);
                    }
                }
            }
        }
    }
}

/// Packs rows of a head as `[panel][row][column of the panel]`, padded with zeros.
pub(super) struct PackRows<'a> {
    pub view: HeadView<'a>,
    pub b: usize,
    pub h: usize,
    pub first: usize,
    pub rows: usize,
    pub head_dim: usize,
    pub packed: &'a mut [f32],
}

impl Kernel for PackRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let PackRows { view, b, h, first, rows, head_dim, packed } = self;
        let from = view.first_of(rows, b, first, h, head_dim);
        assert!(packed.len() >= head_dim.next_multiple_of(S::LANES) * rows, "attention: no room for packed rows");
        for (start, vectors) in Panels::of::<S>(head_dim) {
            let first_column = start * S::LANES;
            let panel = packed.as_mut_ptr().wrapping_add(first_column * rows);
            for row in 0..rows {
                for j in 0..vectors {
                    let column = first_column + j * S::LANES;
                    s.prefetch(from.wrapping_add((row + PREFETCH_ROWS) * view.row_stride + column));
                    // SAFETY: reads are of rows below `rows` and columns below `head_dim`, writes inside the panel.
                    unsafe {
                        let v = s.load_up_to(from.add(row * view.row_stride + column), head_dim - column);
                        s.store(panel.add((row * vectors + j) * S::LANES), v);
                    }
                }
            }
        }
    }
}
