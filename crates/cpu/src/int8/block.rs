//! A block of C on one thread: quantised rows times packed panels, tile by tile. A register tile sums all of k at once,
//! stores its integers to a buffer of its own size, and is dequantised from that while it is in the L1 cache.

use super::path::{Dot, DotKernel, DotPath, MAX_TILE_COLUMNS, MAX_TILE_ROWS};
use crate::activation::{ActivationFn, with_activation};
use crate::gemm::{Epilogue, LoopBody, for_each_tile};
use crate::simd::Simd;

/// Bytes of a cache line.
const LINE: usize = 64;

/// The sums of a register tile in memory, rows NR apart.
#[repr(C, align(64))]
struct SumBuffer([i32; MAX_TILE_ROWS * MAX_TILE_COLUMNS]);

/// The product of some quantised rows and some panels of weights.
pub(super) struct QuantisedBlock<'a> {
    pub m: usize,
    pub n: usize,
    /// Groups of [`Dot::GROUP`] terms in each sum.
    pub groups: usize,
    pub a: *const u8,
    /// Bytes from one row of A to the next.
    pub stride: usize,
    pub row_scales: *const f32,
    /// The zero point of each row, as [`Dot::offset`] gives it.
    pub row_offsets: *const i32,
    /// Packed panels, `[panel][group][NR][GROUP]`.
    pub b: *const i8,
    pub column_scales: *const f32,
    /// The sum of each column's weights.
    pub weight_sums: *const i32,
    pub c: *mut f32,
    pub ldc: usize,
    pub epilogue: Epilogue<'a>,
}

impl QuantisedBlock<'_> {
    /// Computes the block with the vector instructions of a path.
    ///
    /// # Safety
    /// `m` rows of A with their scales and offsets, the panels that have the `n` columns, the scales and weight sums of
    /// all columns of these panels, and the operands of the epilogue must be readable; `m` x `n` of C must be writable,
    /// and no other thread may access it.
    pub unsafe fn run(self, path: DotPath) {
        path.dispatch(DotMacrokernel(self));
    }

    /// The tile of `[rows, columns]` at `[row, column]` of this block: its `sums`, rows `stride` apart, with their
    /// scales and the epilogue.
    #[inline(always)]
    pub fn dequantise(
        &self,
        sums: *const i32,
        stride: usize,
        [row, column]: [usize; 2],
        [rows, columns]: [usize; 2],
    ) -> DequantiseTile<'_> {
        DequantiseTile {
            sums,
            stride,
            rows,
            columns,
            row_scales: self.row_scales.wrapping_add(row),
            row_offsets: self.row_offsets.wrapping_add(row),
            column_scales: self.column_scales.wrapping_add(column),
            weight_sums: self.weight_sums.wrapping_add(column),
            c: self.c.wrapping_add(row * self.ldc + column),
            ldc: self.ldc,
            epilogue: self.epilogue.at(row, column),
        }
    }
}

struct DotMacrokernel<'a>(QuantisedBlock<'a>);

impl DotKernel for DotMacrokernel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<D: Dot>(self, d: D) {
        let block = self.0;
        let buffer = &mut SumBuffer([0; MAX_TILE_ROWS * MAX_TILE_COLUMNS]);
        let (m, n, nr) = (block.m, block.n, D::TILE_VECTORS * D::Float::LANES);
        let k_blocks = 1;
        for_each_tile(m, n, k_blocks, nr, &mut QuantisedBody { d, block, buffer, column: 0, columns: 0 });
    }
}

/// The state of the loops over one block, with the columns of the current panel. Its raw pointers are valid as
/// [`QuantisedBlock::run`] requires.
struct QuantisedBody<'a, 'b, D> {
    d: D,
    block: QuantisedBlock<'a>,
    buffer: &'b mut SumBuffer,
    column: usize,
    columns: usize,
}

impl<D: Dot> LoopBody for QuantisedBody<'_, '_, D> {
    /// The only kc block needs no preparation.
    #[inline(always)]
    fn begin_k_block(&mut self, _: usize) {}

    #[inline(always)]
    fn begin_panel(&mut self, column: usize, columns: usize) {
        (self.column, self.columns) = (column, columns);
    }

    #[inline(always)]
    fn tiles(&mut self, row: usize) -> usize {
        let Self { d, block, column, columns, .. } = self;
        let (d, column, columns) = (*d, *column, *columns);
        let nr = D::TILE_VECTORS * D::Float::LANES;
        let panel = block.groups * D::GROUP * nr;
        let rows = D::TILE_ROWS.min(block.m - row);
        // SAFETY: the tile is inside the block, for which the caller of `QuantisedBlock::run` guarantees the memory.
        unsafe {
            let b = block.b.add(column * block.groups * D::GROUP);
            prefetch_tile(d, block.c.add(row * block.ldc + column), block.ldc, rows, columns);
            if let Some((residual, ld)) = block.epilogue.residual {
                prefetch_tile(d, residual.as_ptr().wrapping_add(row * ld + column), ld, rows, columns);
            }
            // The first tiles of a panel prefetch the next panel, a cache line for each group.
            let prefetched = row / D::TILE_ROWS * block.groups * LINE;
            let args = DotTileArgs {
                groups: block.groups,
                a: block.a.add(row * block.stride),
                stride: block.stride,
                b,
                out: self.buffer.0.as_mut_ptr(),
                next_b: if prefetched < panel { b.wrapping_add(panel + prefetched) } else { b },
            };
            dot_microkernel(d, rows, columns.div_ceil(D::Float::LANES), args);
            block.dequantise(args.out, nr, [row, column], [rows, columns]).store(d);
        }
        rows
    }
}

/// Prefetches the cache lines of a tile of C.
#[inline(always)]
fn prefetch_tile<D: Dot>(d: D, start: *const f32, ld: usize, rows: usize, columns: usize) {
    for row in 0..rows {
        let mut column = 0;
        while column < columns {
            d.float().prefetch(start.wrapping_add(row * ld + column));
            column += LINE / 4;
        }
    }
}

/// Operands of a register tile.
#[derive(Clone, Copy)]
struct DotTileArgs {
    groups: usize,
    a: *const u8,
    stride: usize,
    /// One packed panel.
    b: *const i8,
    out: *mut i32,
    /// Prefetched, a cache line for each group; it need not be valid.
    next_b: *const i8,
}

struct DotMicrokernel<const ROWS: usize, const VECTORS: usize>(DotTileArgs);

impl<const ROWS: usize, const VECTORS: usize> DotKernel for DotMicrokernel<ROWS, VECTORS> {
    type Output = ();

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "plain counted loops are what unrolls into registers")]
    fn run<D: Dot>(self, d: D) {
        // A compile-time condition: no code is generated for shapes that the path does not have.
        if ROWS > D::TILE_ROWS || VECTORS > D::TILE_VECTORS {
            unreachable!("tile larger than the registers");
        }
        let DotTileArgs { groups, a, stride, mut b, out, mut next_b } = self.0;
        let lanes = D::Float::LANES;
        let mut sums = [[d.zero(); VECTORS]; ROWS];
        let mut row = [a; ROWS];
        // SAFETY: guaranteed by the caller of `dot_microkernel`.
        unsafe {
            for (r, p) in row.iter_mut().enumerate() {
                *p = a.add(r * stride);
            }
            for i in 0..groups {
                let mut right = [d.load_right(b); VECTORS];
                for j in 1..VECTORS {
                    right[j] = d.load_right(b.add(j * lanes * D::GROUP));
                }
                d.float().prefetch(next_b.cast());
                next_b = next_b.wrapping_add(LINE);
                for r in 0..ROWS {
                    let left = d.load_left(row[r].add(i * D::GROUP * D::LEFT_BYTES));
                    for j in 0..VECTORS {
                        sums[r][j] = d.dot(left, right[j], sums[r][j]);
                    }
                }
                b = b.add(D::TILE_VECTORS * lanes * D::GROUP);
            }
            for r in 0..ROWS {
                for j in 0..VECTORS {
                    d.store_sums(out.add((r * D::TILE_VECTORS + j) * lanes), sums[r][j]);
                }
            }
        }
    }
}

/// Computes the sums of `rows` x `vectors` vectors into `args.out`.
///
/// # Safety
/// The operands must be readable and the output writable to that extent.
#[inline(always)]
unsafe fn dot_microkernel<D: Dot>(d: D, rows: usize, vectors: usize, args: DotTileArgs) {
    macro_rules! shapes {
        ($($rows:literal),*) => {
            match (rows, vectors) {
                $(
                    ($rows, 1) => d.vectorize(DotMicrokernel::<$rows, 1>(args)),
                    ($rows, 2) => d.vectorize(DotMicrokernel::<$rows, 2>(args)),
                    ($rows, 3) => d.vectorize(DotMicrokernel::<$rows, 3>(args)),
                )*
                _ => unreachable!("no tile of {rows} rows and {vectors} vectors"),
            }
        };
    }
    shapes!(1, 2, 3, 4, 5, 6, 7, 8)
}

/// Integer sums of a tile, and the scales and the epilogue that turn them into elements of C.
#[derive(Clone, Copy)]
pub(super) struct DequantiseTile<'a> {
    pub sums: *const i32,
    /// Row stride of the sums.
    pub stride: usize,
    pub rows: usize,
    pub columns: usize,
    pub row_scales: *const f32,
    pub row_offsets: *const i32,
    pub column_scales: *const f32,
    pub weight_sums: *const i32,
    pub c: *mut f32,
    pub ldc: usize,
    pub epilogue: Epilogue<'a>,
}

impl DequantiseTile<'_> {
    /// Dequantises the next rows, at most `rows` of them, and returns the others.
    ///
    /// # Safety
    /// As for [`DequantiseTile::store`].
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub unsafe fn store_rows<D: Dot>(mut self, d: D, rows: usize) -> Option<Self> {
        let rows = rows.min(self.rows);
        // SAFETY: guaranteed by the caller.
        unsafe { DequantiseTile { rows, ..self }.store(d) };
        if rows == self.rows {
            return None;
        }
        self.rows -= rows;
        self.sums = self.sums.wrapping_add(rows * self.stride);
        self.row_scales = self.row_scales.wrapping_add(rows);
        self.row_offsets = self.row_offsets.wrapping_add(rows);
        self.c = self.c.wrapping_add(rows * self.ldc);
        self.epilogue = self.epilogue.at(rows, 0);
        Some(self)
    }

    /// Dequantises and applies the epilogue.
    ///
    /// # Safety
    /// `rows` x `columns` elements of C and of the operands of the epilogue must be valid; `rows` row scales and
    /// offsets must be readable; sums, column scales and weight sums must be readable in whole vectors.
    #[inline(always)]
    pub unsafe fn store<D: Dot>(self, d: D) {
        d.vectorize(Dequantise(self));
    }
}

/// Chooses the kernel for the activation. As a function of its own it leaves one call in the loops over tiles, not a
/// branch with a call for each activation.
struct Dequantise<'a>(DequantiseTile<'a>);

impl DotKernel for Dequantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<D: Dot>(self, d: D) {
        let tile = self.0;
        with_activation!(tile.epilogue.activation, f => d.vectorize(DequantiseWith { tile, f }));
    }
}

struct DequantiseWith<'a, F> {
    tile: DequantiseTile<'a>,
    f: F,
}

impl<F: ActivationFn> DotKernel for DequantiseWith<'_, F> {
    type Output = ();

    #[inline(always)]
    fn run<D: Dot>(self, d: D) {
        let s = d.float();
        let lanes = D::Float::LANES;
        let tile = self.tile;
        let Epilogue { bias, scale: epilogue_scale, residual, .. } = tile.epilogue;
        let mut column = 0;
        while column < tile.columns {
            let n = tile.columns - column;
            // SAFETY: guaranteed by the caller of `DequantiseTile::store`.
            unsafe {
                let column_scale = s.load(tile.column_scales.add(column));
                let weight_sums = tile.weight_sums.add(column);
                let bias = match bias {
                    Some(bias) => s.load_up_to(bias.as_ptr().add(column), n),
                    None => s.splat(0.0),
                };
                let epilogue_scale = match epilogue_scale {
                    Some(scale) => s.load_up_to(scale.as_ptr().add(column), n),
                    None => s.splat(1.0),
                };
                for row in 0..tile.rows {
                    let c = tile.c.add(row * tile.ldc + column);
                    let sums = tile.sums.add(row * tile.stride + column);
                    let centred_sums = d.load_centred_sums(sums, *tile.row_offsets.add(row), weight_sums);
                    let row_scale = s.splat(*tile.row_scales.add(row));
                    let x = s.mul(s.mul(centred_sums, column_scale), row_scale);
                    let mut x = s.mul(self.f.value(s, s.add(x, bias)), epilogue_scale);
                    if let Some((residual, ld)) = residual {
                        x = s.add(x, s.load_up_to(residual.as_ptr().add(row * ld + column), n));
                    }
                    s.store_up_to(c, x, n);
                }
            }
            column += lanes;
        }
    }
}
