//! A block of C on one thread: packing, the microkernel and the store of its tiles as the body of [`super::loops`].
//! A is read in place, since a block of its rows stays in the second-level cache; only a transposed A may be packed.

use super::epilogue::SumsToC;
use super::loops::{LoopBody, for_each_tile, k_blocks, kc};
use super::matmul::{ALIGN, aligned};
use super::microkernel::{InitialRow, LINE, MicroTiles, PanelPrefetch, TileBuffer, TileLines, microkernel};
use super::pack::copy_panel;
use super::pipelined::{DeferredTile, pipelined_tiles};
use super::{ALayout, CACHE_SET_STRIDE, Epilogue};
use crate::isa::Isa;
use crate::simd::{Kernel, MAX_LANES, MAX_TILE_ROWS, MAX_TILE_VECTORS, Simd};

/// Elements of scratch of a block of at most `rows` rows: for one kc block, a packed panel of B and the packed rows of
/// A.
pub(super) fn block_scratch(rows: usize, k: usize) -> usize {
    packed_panel_len(k) + (rows + MAX_TILE_ROWS) * kc(k) + MAX_LANES + ALIGN
}

/// Elements of a packed panel of B of one kc block.
fn packed_panel_len(k: usize) -> usize {
    kc(k) * MAX_TILE_VECTORS * MAX_LANES + ALIGN
}

/// The right-hand side of a block.
#[derive(Clone, Copy)]
pub(super) enum BlockB {
    /// Packed panels, `[panel][k][NR]`.
    Packed(*const f32),
    /// `[k, n]` and its row stride; every panel is packed into the scratch before its use.
    RowMajor(*const f32, usize),
}

/// The product of some rows of A and some columns of B.
pub(super) struct GemmBlock<'a> {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: *const f32,
    pub lda: usize,
    pub a_layout: ALayout,
    pub b: BlockB,
    pub c: *mut f32,
    pub ldc: usize,
    pub accumulate: bool,
    pub epilogue: Epilogue<'a>,
    /// Receives the derivative of the activation, laid out as C; null if unused.
    pub d_activation: *mut f32,
    /// Empty (only if B is packed), or as long as [`block_scratch`] says.
    pub scratch: &'a mut [f32],
}

impl GemmBlock<'_> {
    /// Computes the block.
    ///
    /// # Safety
    /// `m` x `k` of A, `k` x `n` of B and the operands of the epilogue must be readable; `m` x `n` of C and, unless it
    /// is null, of `d_activation` must be valid, and no other thread may access them.
    pub unsafe fn run(self, isa: Isa) {
        isa.dispatch(Macrokernel(self));
    }
}

struct Macrokernel<'a>(GemmBlock<'a>);

impl Kernel for Macrokernel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut block = self.0;
        let nr = S::TILE_VECTORS * S::LANES;
        let needed = block_scratch(block.m, block.k);
        let scratch = std::mem::take(&mut block.scratch);
        let pack_b = matches!(block.b, BlockB::RowMajor(..));
        assert!(!pack_b || scratch.len() >= needed, "packing B takes scratch");
        // A transposed A is read again for every panel. That is cheap on AVX-512, whose tiles use half of each cache
        // line and whose panels are the widest, unless rows are a multiple of 4 KiB apart and compete for the same
        // cache sets. Packing changes no sum.
        let expensive = S::LANES < MAX_LANES || block.lda.is_multiple_of(CACHE_SET_STRIDE);
        let pack_a = block.a_layout == ALayout::Transposed && expensive && block.n > 2 * nr && scratch.len() >= needed;
        let panel = packed_panel_len(block.k);
        let (b_scratch, a_scratch) = scratch.split_at_mut(if pack_b { panel } else { 0 });
        let packed_b = if pack_b { aligned(b_scratch, panel - ALIGN).0.as_mut_ptr() } else { std::ptr::null_mut() };
        let packed_a = if pack_a { Some(aligned(a_scratch, needed - panel - ALIGN).0) } else { None };
        // Without an old C the sums start with the bias.
        let initial_bias = if block.accumulate { None } else { block.epilogue.bias.take() };
        let (m, n, blocks) = (block.m, block.n, k_blocks(block.k));
        let mut body = GemmBody {
            s,
            block,
            packed_a,
            packed_b,
            initial_bias,
            initial: &mut InitialRow([0.0; MAX_TILE_VECTORS * MAX_LANES]),
            buffer: &mut TileBuffer::zeros(),
            deferred: &mut DeferredTile::none(),
            lines: &mut TileLines::new(),
            k_start: 0,
            k_len: 0,
            add_c: false,
            epilogue: Epilogue::default(),
            d_activation: std::ptr::null_mut(),
            column: 0,
            columns: 0,
            store: TileStore::Buffered,
            to_c: SumsToC::none(),
        };
        for_each_tile(m, n, blocks, nr, &mut body);
    }
}

/// How a register tile is stored to C.
#[derive(Clone, Copy, PartialEq)]
enum TileStore {
    /// The microkernel multiplies by the factor, adds C or the residual, and stores.
    Direct,
    /// The microkernel stores the sums to C, and one pass over the panel, which is still in the cache, applies the
    /// activation.
    PanelActivation,
    /// The activation is computed and the tile stored during the next tile ([`super::pipelined`]); full tiles only.
    Pipelined,
    /// The microkernel stores the sums to a buffer, from which [`SumsToC`] applies the epilogue and writes C.
    Buffered,
}

impl TileStore {
    /// The fastest choice for a panel. `add_c`: the old C (sums of earlier kc blocks, or the caller's) is added.
    #[inline(always)]
    fn choose<S: Simd>(
        epilogue: &Epilogue<'_>,
        add_c: bool,
        derivative: bool,
        layout: ALayout,
        columns: usize,
    ) -> TileStore {
        let whole_vectors = columns.is_multiple_of(S::LANES);
        let by_column = epilogue.bias.is_some() || epilogue.scale.is_some();
        let by_element = epilogue.factor.is_some() || epilogue.residual.is_some();
        if epilogue.activation.is_none() {
            // The microkernel stores `factor * sums + addend` with C or the residual as its addend. It cannot add C
            // beside a factor, which would have to multiply C, too, or beside a residual, a second addend.
            let c_by_element = add_c && by_element;
            let buffered = !whole_vectors || by_column || derivative || c_by_element;
            return if buffered { TileStore::Buffered } else { TileStore::Direct };
        }
        if by_column || by_element || layout == ALayout::Transposed {
            TileStore::Buffered
        } else if S::OVERLAP {
            let full = columns == S::TILE_VECTORS * S::LANES;
            if full { TileStore::Pipelined } else { TileStore::Buffered }
        } else if whole_vectors && !derivative {
            TileStore::PanelActivation
        } else {
            TileStore::Buffered
        }
    }
}

/// No operand: a null pointer with row stride 0.
const NONE: (*const f32, usize) = (std::ptr::null(), 0);

/// The state of the loops. Its raw pointers are valid as [`GemmBlock::run`] requires.
struct GemmBody<'a, 'b, S> {
    s: S,
    /// Without the bias if that is in the initial sums.
    block: GemmBlock<'a>,
    /// Room for a block of a transposed A, `[tile][k][MR]`, if it is packed.
    packed_a: Option<&'a mut [f32]>,
    /// Room for a panel of B if it is packed here.
    packed_b: *mut f32,
    initial_bias: Option<&'a [f32]>,
    initial: &'b mut InitialRow,
    buffer: &'b mut TileBuffer,
    deferred: &'b mut DeferredTile,
    lines: &'b mut TileLines,
    // State of the current kc block:
    k_start: usize,
    k_len: usize,
    add_c: bool,
    /// Empty except in the last kc block.
    epilogue: Epilogue<'a>,
    /// Null except in the last kc block.
    d_activation: *mut f32,
    // State of the current panel:
    column: usize,
    columns: usize,
    store: TileStore,
    to_c: SumsToC<'a>,
}

impl<S: Simd> LoopBody for GemmBody<'_, '_, S> {
    #[inline(always)]
    fn begin_k_block(&mut self, index: usize) {
        let GemmBlock { m, k, a, lda, .. } = self.block;
        self.k_start = index * kc(k);
        self.k_len = kc(k).min(k - self.k_start);
        self.add_c = self.block.accumulate || index > 0;
        if self.k_start + self.k_len == k {
            (self.epilogue, self.d_activation) = (self.block.epilogue, self.block.d_activation);
        }
        if let Some(packed) = &mut self.packed_a {
            // SAFETY: the rows are those of A, and the scratch holds them.
            unsafe { pack_transposed_a(self.s, a.add(self.k_start * lda), lda, m, self.k_len, packed) };
        }
    }

    #[inline(always)]
    fn begin_panel(&mut self, column: usize, columns: usize) {
        (self.column, self.columns) = (column, columns);
        let derivative = !self.d_activation.is_null();
        self.store = TileStore::choose::<S>(&self.epilogue, self.add_c, derivative, self.block.a_layout, columns);
        self.to_c = SumsToC {
            columns,
            c: self.block.c.wrapping_add(column),
            ldc: self.block.ldc,
            // With `PanelActivation` the microkernel has added C.
            add_c: self.add_c && self.store != TileStore::PanelActivation,
            epilogue: self.epilogue.at(0, column),
            residual_before_activation: None,
            d_activation: if derivative { self.d_activation.wrapping_add(column) } else { self.d_activation },
        };
        self.lines.set(S::TILE_ROWS, columns, self.block.ldc);
        self.initial.0.fill(0.0);
        if let (Some(bias), 0) = (self.initial_bias, self.k_start) {
            self.initial.0[..columns].copy_from_slice(&bias[column..][..columns]);
        }
        if let BlockB::RowMajor(b, ldb) = self.block.b {
            // SAFETY: these are rows of B, and the scratch holds a panel.
            unsafe {
                copy_panel(self.s, b.add(self.k_start * ldb + column), ldb, self.k_len, columns, self.packed_b);
            }
        }
    }

    #[inline(always)]
    fn tiles(&mut self, row: usize) -> usize {
        let GemmBlock { m, a_layout, ldc, .. } = self.block;
        let Self { s, column, columns, add_c, .. } = *self;
        let nr = S::TILE_VECTORS * S::LANES;
        let rows = S::TILE_ROWS.min(m - row);
        let store = match self.store {
            TileStore::Pipelined if rows < S::TILE_ROWS => TileStore::Buffered,
            store => store,
        };
        let tiles = if store == TileStore::Buffered { 1 } else { (m - row) / rows };
        let offset = row * ldc + column;
        // SAFETY: these tiles are inside the block, for which the caller of `GemmBlock::run` guarantees the memory.
        unsafe {
            let (a, lda, a_stride) = self.micro_panel_of_a(row, rows);
            let (b, prefetch_b) = self.panel_of_b(row / S::TILE_ROWS);
            let c = self.block.c.add(offset);
            let at_tile = |(x, ld): (&[f32], usize)| (x.as_ptr().wrapping_add(row * ld + column), ld);
            let factor = self.epilogue.factor.map_or(NONE, at_tile);
            let residual = self.epilogue.residual.map_or(NONE, at_tile);
            let d_activation =
                if self.d_activation.is_null() { self.d_activation } else { self.d_activation.add(offset) };
            let mut prefetch_c = [c.cast_const(); 2];
            for (x, ld) in [factor, residual, (d_activation.cast_const(), ldc)] {
                if ld == ldc && !x.is_null() {
                    prefetch_c[1] = x;
                }
            }
            let (out, out_stride, factor, addend) = match store {
                TileStore::Buffered => (self.buffer.0.as_mut_ptr(), nr, NONE, NONE),
                _ if add_c => (c, ldc, factor, (c.cast_const(), ldc)),
                _ => (c, ldc, factor, residual),
            };
            let args = MicroTiles {
                tiles,
                k: self.k_len,
                a,
                lda,
                a_stride,
                // Later panels find the rows in the cache.
                prefetch_a: column == 0 && a_layout == ALayout::RowMajor,
                b,
                initial: self.initial.0.as_ptr(),
                out,
                out_stride,
                factor,
                addend,
                prefetch_b,
                prefetch_c,
                ldc,
                lines: self.lines,
            };
            if store == TileStore::Pipelined {
                pipelined_tiles(s, self.epilogue.activation, &args, d_activation, self.deferred);
            } else {
                microkernel(s, rows, columns.div_ceil(S::LANES), a_layout, &args);
            }
            if store == TileStore::Buffered {
                self.to_c.store(s, out, nr, row, rows);
            }
        }
        tiles * rows
    }

    #[inline(always)]
    fn end_panel(&mut self) {
        if self.store != TileStore::PanelActivation {
            return;
        }
        let GemmBlock { m, c, ldc, .. } = self.block;
        // SAFETY: these are columns of the block.
        unsafe { self.to_c.store(self.s, c.add(self.column), ldc, 0, m) };
    }

    #[inline(always)]
    fn end_k_block(&mut self) {
        // SAFETY: the deferred tile is one of the block.
        unsafe { self.deferred.flush(self.s, self.epilogue.activation) };
    }
}

impl<S: Simd> GemmBody<'_, '_, S> {
    /// The micro-panel of A of the tile at this row, its row stride, and the distance to that of the next tile.
    ///
    /// # Safety
    /// The tile must be inside the block.
    #[inline(always)]
    unsafe fn micro_panel_of_a(&self, row: usize, rows: usize) -> (*const f32, usize, usize) {
        let GemmBlock { a, lda, a_layout, .. } = self.block;
        // SAFETY: guaranteed by the caller.
        unsafe {
            match (a_layout, &self.packed_a) {
                (ALayout::RowMajor, _) => (a.add(row * lda + self.k_start), lda, rows * lda),
                (ALayout::Transposed, None) => (a.add(self.k_start * lda + row), lda, rows),
                (ALayout::Transposed, Some(packed)) => {
                    (packed.as_ptr().add(row * self.k_len), S::TILE_ROWS, rows * self.k_len)
                }
            }
        }
    }

    /// The panel of B, and the prefetch of the next panel during the first tiles of this one, of which `earlier_tiles`
    /// are done. A tile prefetches a cache line for each term, so `NR / LINE` tiles prefetch a panel.
    #[inline(always)]
    fn panel_of_b(&self, earlier_tiles: usize) -> (*const f32, PanelPrefetch) {
        let Self { k_start, k_len, column, .. } = *self;
        let (k, nr) = (self.block.k, S::TILE_VECTORS * S::LANES);
        let (b, next, line_stride, tile_stride) = match self.block.b {
            BlockB::Packed(b) => {
                let b = b.wrapping_add(column * k + k_start * nr);
                (b, b.wrapping_add(k * nr), LINE, k_len * LINE)
            }
            BlockB::RowMajor(b, ldb) => {
                (self.packed_b.cast_const(), b.wrapping_add(k_start * ldb + column + nr), ldb, LINE)
            }
        };
        let start = next.wrapping_add(earlier_tiles * tile_stride);
        let tiles = (nr / LINE).saturating_sub(earlier_tiles);
        (b, PanelPrefetch { start, line_stride, tile_stride, tiles })
    }
}

/// Packs `k` rows of `m` elements as `[tile][k][MR]`.
///
/// # Safety
/// The rows must be readable, and `packed` as long as [`block_scratch`] says, without the alignment.
#[inline(always)]
unsafe fn pack_transposed_a<S: Simd>(s: S, a: *const f32, lda: usize, m: usize, k: usize, packed: &mut [f32]) {
    debug_assert!(packed.len() >= m.next_multiple_of(S::TILE_ROWS) * k + S::LANES);
    let to = packed.as_mut_ptr();
    let mut row = 0;
    while row < m {
        let rows = S::TILE_ROWS.min(m - row);
        for i in 0..k {
            let mut r = 0;
            while r < rows {
                // SAFETY: reads stay below m. A store may exceed the tile's row by less than a vector: the next store
                // overwrites that, and the last has room for it.
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
