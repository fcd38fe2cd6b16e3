//! One block of C on one thread: the loops that bring A and B through the caches to the register tile.
//! B comes packed, or is packed panel by panel on the way; A is read where it lies, except that a transposed one is
//! copied if the caller gives room for it.

use super::matmul::{ALIGN, aligned};
use super::microkernel::{Finish, LINE, Lines, Soon, TileArgs, TileBuffer, TileRow, tile};
use super::pack::copy_panel;
use super::pipelined::{self, Pending};
use super::{ALayout, Epilogue};
use crate::simd::{Kernel, MAX_LANES, MAX_TILE_ROWS, MAX_TILE_VECTORS, Simd};

/// The most terms that are summed in registers before they go to C.
const BLOCK_TERMS: usize = 768;

/// The number of terms summed at a time: equal parts, decided by `k` alone.
fn terms(k: usize) -> usize {
    let blocks = k.div_ceil(BLOCK_TERMS).max(1);
    k.div_ceil(blocks).next_multiple_of(8)
}

/// How many numbers of scratch a block of at most `rows` rows wants.
pub(crate) fn block_scratch(rows: usize, k: usize) -> usize {
    panel_room(k) + (rows + MAX_TILE_ROWS) * terms(k) + MAX_LANES + ALIGN
}

/// Room for a part of a panel.
fn panel_room(k: usize) -> usize {
    terms(k) * MAX_TILE_VECTORS * MAX_LANES + ALIGN
}

/// The product of some rows of A with some panels of B.
///
/// Making one is a promise: `m` x `k` of A, the panels of B and `m` x `n` of C and of the slope, if there is one, are
/// valid, and nobody else uses these two.
pub(crate) struct Block<'a> {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: *const f32,
    pub lda: usize,
    pub a_layout: ALayout,
    /// Packed panels, the first of them that of column 0, or `[k, n]` as it is.
    pub b: *const f32,
    /// 0 if B is packed, else the distance of its rows; there must be scratch then.
    pub ldb: usize,
    pub c: *mut f32,
    pub ldc: usize,
    pub alpha: f32,
    pub accumulate: bool,
    pub epilogue: Epilogue<'a>,
    /// Takes the slope of the activation, laid out as C; null if nobody wants it.
    pub slope: *mut f32,
    /// Empty, or as long as [`block_scratch`] says.
    pub scratch: &'a mut [f32],
}

impl Kernel for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let width = S::TILE_VECTORS * S::LANES;
        let step = terms(self.k);
        let mut buffer = TileBuffer([0.0; MAX_TILE_ROWS * MAX_TILE_VECTORS * MAX_LANES]);
        let mut pending = Pending {
            sums: TileBuffer([0.0; MAX_TILE_ROWS * MAX_TILE_VECTORS * MAX_LANES]),
            c: std::ptr::null_mut(),
            slope: std::ptr::null_mut(),
            ldc: self.ldc,
        };
        let room = block_scratch(self.m, self.k);
        // Where a tile takes half of each line of A that it touches, reading them again for every panel is cheap, unless
        // rows a power of two apart compete for the same places in the cache. The copy changes no sum.
        let scattered = S::LANES < MAX_LANES || self.lda.is_multiple_of(1024);
        let copy =
            self.a_layout == ALayout::Transposed && scattered && self.n > 2 * width && self.scratch.len() >= room;
        let plain_b = self.ldb > 0;
        assert!(!plain_b || self.scratch.len() >= room, "a plain B takes scratch");
        let scratch = std::mem::take(&mut self.scratch);
        let (panel, scratch) = scratch.split_at_mut(if plain_b { panel_room(self.k) } else { 0 });
        let panel = if plain_b { aligned(panel, panel_room(self.k) - ALIGN).0 } else { panel };
        let panel = panel.as_mut_ptr();
        let copied = if copy { aligned(scratch, room - panel_room(self.k) - ALIGN).0 } else { &mut [] };
        let mut lines = Lines::new();
        // Where nothing else comes before it, the bias is what the sums start with.
        let bias = if self.alpha == 1.0 && !self.accumulate { self.epilogue.bias.take() } else { None };
        let mut bias_panel = TileRow([0.0; MAX_TILE_VECTORS * MAX_LANES]);
        let mut start = 0;
        loop {
            let k = step.min(self.k - start);
            let last = start + k == self.k;
            let add = self.accumulate || start > 0;
            let slope = if last { self.slope } else { std::ptr::null_mut() };
            let epilogue = if last { Some(self.epilogue) } else { None };
            let Epilogue { factor: times, residual: plus, .. } = epilogue.unwrap_or_default();
            let slow = epilogue.is_some_and(|e| e.bias.is_some() || e.activation.is_some() || e.scale.is_some());
            // Whether the tile can go straight to C.
            let twice = add && (times.is_some() || plus.is_some());
            let alone = self.alpha == 1.0 && !twice;
            let simple = alone && !slow && slope.is_null();
            // Whether it goes there through nothing but an activation.
            let activation = epilogue.and_then(|e| e.activation);
            let only_activation = alone
                && activation.is_some()
                && epilogue.is_some_and(|e| e.bias.is_none() && e.scale.is_none())
                && times.is_none()
                && plus.is_none()
                && self.a_layout == ALayout::RowMajor;
            if copy {
                // SAFETY: the rows are those of A, and `copied` has room for them.
                unsafe { copy_transposed(s, self.a.add(start * self.lda), self.lda, self.m, k, copied) };
            }
            let mut column = 0;
            while column < self.n {
                let columns = width.min(self.n - column);
                let vectors = columns.div_ceil(S::LANES);
                let whole = columns % S::LANES == 0;
                let direct = simple && whole;
                let in_place = !S::OVERLAP && only_activation && whole && slope.is_null();
                lines.set(S::TILE_ROWS, columns, self.ldc);
                bias_panel.0.fill(0.0);
                if let (Some(bias), 0) = (bias, start) {
                    bias_panel.0[..columns].copy_from_slice(&bias[column..][..columns]);
                }
                if plain_b {
                    // SAFETY: these are rows of B, and the panel has room for them.
                    unsafe { copy_panel(s, self.b.add(start * self.ldb + column), self.ldb, k, columns, panel) };
                }
                let mut row = 0;
                while row < self.m {
                    let rows = S::TILE_ROWS.min(self.m - row);
                    let overlapped = S::OVERLAP && only_activation && rows == S::TILE_ROWS && columns == width;
                    // What goes straight to C needs nobody between its tiles.
                    let straight = direct || in_place || overlapped;
                    let tiles = if straight { (self.m - row) / rows } else { 1 };
                    // SAFETY: the block's own promise covers these tiles of it.
                    unsafe {
                        let (a, lda, a_step) = match self.a_layout {
                            ALayout::RowMajor => (self.a.add(row * self.lda + start), self.lda, rows * self.lda),
                            ALayout::Transposed if copy => (copied.as_ptr().add(row * k), S::TILE_ROWS, rows * k),
                            ALayout::Transposed => (self.a.add(start * self.lda + row), self.lda, rows),
                        };
                        let c = self.c.add(row * self.ldc + column);
                        let b = if plain_b { panel } else { self.b.add(column * self.k + start * width) };
                        // A tile takes long enough for what comes after it to arrive from wherever it is: its part of
                        // C, the next rows of A, and over the first tiles of a panel the panel after it.
                        let part = |(x, ld): (&[f32], usize)| (x.as_ptr().wrapping_add(row * ld + column), ld);
                        let nothing = (std::ptr::null(), 0);
                        let (times, plus) = (times.map_or(nothing, part), plus.map_or(nothing, part));
                        let slope = if slope.is_null() { slope } else { slope.add(row * self.ldc + column) };
                        let mut later = [c.cast_const(); 2];
                        for (x, ld) in [times, plus, (slope.cast_const(), self.ldc)] {
                            if ld == self.ldc && !x.is_null() {
                                later[1] = x;
                            }
                        }
                        let before = row / S::TILE_ROWS;
                        let (next, step, tile_step) = match plain_b {
                            true => (self.b.wrapping_add(start * self.ldb + column + width), self.ldb, LINE),
                            false => (b.wrapping_add(self.k * width), LINE, k * LINE),
                        };
                        let args = TileArgs {
                            tiles,
                            k,
                            a,
                            lda,
                            a_step,
                            fetch_a: column == 0 && self.a_layout == ALayout::RowMajor,
                            b,
                            start: bias_panel.0.as_ptr(),
                            out: if straight { c } else { buffer.0.as_mut_ptr() },
                            out_stride: if straight { self.ldc } else { width },
                            times: if direct { times } else { nothing },
                            plus: match straight {
                                true if add => (c.cast_const(), self.ldc),
                                true => plus,
                                false => nothing,
                            },
                            soon: Soon {
                                start: next.wrapping_add(before * tile_step),
                                step,
                                tile_step,
                                tiles: (width / LINE).saturating_sub(before),
                            },
                            later,
                            later_stride: self.ldc,
                            lines: &lines,
                        };
                        if overlapped {
                            pipelined::tiles(s, activation, &args, slope, &mut pending);
                        } else {
                            tile(s, rows, vectors, self.a_layout, &args);
                        }
                        if !straight {
                            s.vectorize(Finish {
                                tile: buffer.0.as_ptr(),
                                stride: width,
                                rows,
                                columns,
                                c,
                                ldc: self.ldc,
                                alpha: self.alpha,
                                add,
                                epilogue: epilogue.map(|e| e.part(row, column)),
                                slope,
                            });
                        }
                    }
                    row += tiles * rows;
                }
                if in_place {
                    // SAFETY: these are columns of the block.
                    unsafe {
                        let c = self.c.add(column);
                        s.vectorize(Finish {
                            tile: c,
                            stride: self.ldc,
                            rows: self.m,
                            columns,
                            c,
                            ldc: self.ldc,
                            alpha: 1.0,
                            add: false,
                            epilogue: epilogue.map(|e| e.part(0, column)),
                            slope: std::ptr::null_mut(),
                        });
                    }
                }
                column += columns;
            }
            // SAFETY: the pending tile is one of this block.
            unsafe { pipelined::finish(s, activation, &mut pending) };
            start += k;
            if last {
                break;
            }
        }
    }
}

/// Copies `k` rows of `m` numbers so that the columns of each tile are together: `[tile][k][tile rows]`.
///
/// # Safety
/// The rows must be readable, and `to` as long as [`block_scratch`] says, less what aligns it.
#[inline(always)]
unsafe fn copy_transposed<S: Simd>(s: S, a: *const f32, lda: usize, m: usize, k: usize, to: &mut [f32]) {
    debug_assert!(to.len() >= m.next_multiple_of(S::TILE_ROWS) * k + S::LANES);
    let to = to.as_mut_ptr();
    let mut row = 0;
    while row < m {
        let rows = S::TILE_ROWS.min(m - row);
        for i in 0..k {
            let mut r = 0;
            while r < rows {
                // SAFETY: reads stay below m. A write may go past the tile's row, by less than a vector: into what is
                // written next, or into the room kept at the end.
                unsafe {
                    let v = s.load_up_to(a.add(i * lda + row + r), rows - r);
                    s.store(to.add(row * k + i * S::TILE_ROWS + r), v);
                }
                r += S::LANES;
            }
        }
        row += rows;
    }
}
