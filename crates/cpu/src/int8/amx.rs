//! Blocks on the matrix unit, which takes the rows and the panels as they are: 64 terms at a time of 32 rows and 32
//! columns. Meanwhile the vector units take the square before it to C.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use super::block::{Block, Finish};
use super::path::{Dot, MATRIX_GROUPS};
use super::x86::Avx512Vnni;
use crate::amx::{SIDE, Unit};

/// Bytes of a step of a row.
const STEP_BYTES: usize = MATRIX_GROUPS * Avx512Vnni::GROUP;
/// Columns of a tile.
const COLUMNS: usize = 16;
/// Columns of a packed panel, and the bytes of a group of each.
const PANEL: usize = Avx512Vnni::TILE_VECTORS * COLUMNS;
const PANEL_BYTES: usize = PANEL * Avx512Vnni::GROUP;
/// Rows of a square that are taken to C at a time.
const FINISHED: usize = 8;

/// The sums of a square.
#[repr(C, align(64))]
struct Square([i32; SIDE * SIDE]);

/// What every row of a square starts with.
#[repr(C, align(64))]
struct Zeros([i32; SIDE]);
static ZEROS: Zeros = Zeros([0; SIDE]);

/// Computes a block with whole tiles of groups.
///
/// # Safety
/// As [`Block`] says.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
pub(super) unsafe fn run<U: Unit>(d: Avx512Vnni, unit: &mut U, block: Block<'_>) {
    let mut squares = [const { Square([0; SIDE * SIDE]) }; 2];
    let panel_bytes = block.groups * PANEL_BYTES;
    // Columns after the last panel are none.
    let last_tile = block.n.next_multiple_of(PANEL) - COLUMNS;
    let mut pending: Option<Finish<'_>> = None;
    let mut count = 0;
    for column in (0..block.n).step_by(SIDE) {
        let columns = SIDE.min(block.n - column);
        let tile = |column: usize| {
            let column = column.min(last_tile);
            let start = column / PANEL * panel_bytes + column % PANEL * Avx512Vnni::GROUP;
            block.b.wrapping_add(start).cast::<u8>()
        };
        let b = [tile(column), tile(column + COLUMNS)];
        for row in (0..block.m).step_by(SIDE) {
            let rows = SIDE.min(block.m - row);
            unit.configure(rows);
            // Where there are no lower rows, the one that a tile must have is the first.
            let lower = if rows > 16 { row + 16 } else { row };
            // SAFETY: the block vouches for its rows, panels and part of C.
            unsafe {
                let a = [block.a.add(row * block.stride), block.a.add(lower * block.stride)];
                unit.begin_sums(ZEROS.0.as_ptr().cast());
                for step in 0..block.groups / MATRIX_GROUPS {
                    let a = a.map(|a| a.add(step * STEP_BYTES));
                    let b = b.map(|b| b.add(step * MATRIX_GROUPS * PANEL_BYTES));
                    unit.load::<6>(b[0], PANEL_BYTES);
                    unit.load::<4>(a[0], block.stride);
                    unit.multiply_bytes::<0, 4, 6>();
                    unit.load::<7>(b[1], PANEL_BYTES);
                    unit.multiply_bytes::<1, 4, 7>();
                    unit.load::<5>(a[1], block.stride);
                    unit.multiply_bytes::<2, 5, 6>();
                    unit.multiply_bytes::<3, 5, 7>();
                    for a in a {
                        for row in 0..16 {
                            let next = a.wrapping_add(STEP_BYTES + row * block.stride);
                            _mm_prefetch::<_MM_HINT_T0>(next.cast());
                        }
                    }
                    finish(d, &mut pending, FINISHED);
                }
                finish(d, &mut pending, SIDE);
                let sums = squares[count % 2].0.as_mut_ptr();
                count += 1;
                unit.end_sums(sums.cast());
                pending = Some(Finish {
                    sums,
                    stride: SIDE,
                    rows,
                    columns,
                    row_scales: block.row_scales.add(row),
                    row_offsets: block.row_offsets.add(row),
                    column_scales: block.column_scales.add(column),
                    weight_sums: block.weight_sums.add(column),
                    c: block.c.add(row * block.ldc + column),
                    ldc: block.ldc,
                    epilogue: block.epilogue.part(row, column),
                });
            }
        }
    }
    finish(d, &mut pending, SIDE);
}

/// Takes the next so many rows of a square to C, or those that are left.
#[inline(always)]
fn finish(d: Avx512Vnni, pending: &mut Option<Finish<'_>>, rows: usize) {
    let Some(mut square) = pending.take() else { return };
    let rows = rows.min(square.rows);
    d.vectorize(Finish { rows, ..square });
    if rows < square.rows {
        square.rows -= rows;
        square.sums = square.sums.wrapping_add(rows * square.stride);
        square.row_scales = square.row_scales.wrapping_add(rows);
        square.row_offsets = square.row_offsets.wrapping_add(rows);
        square.c = square.c.wrapping_add(rows * square.ldc);
        square.epilogue = square.epilogue.part(rows, 0);
        *pending = Some(square);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activation::Activation;
    use crate::amx::Emulated;
    use crate::gemm::Epilogue;
    use crate::int8::pack::{pack, packed_len, sections};
    use crate::int8::path::{Path, TileShape};

    #[test]
    fn blocks_are_those_of_the_vector_units() {
        let path = Path::Avx512Vnni;
        if !path.is_available() {
            eprintln!("skipped: this machine has no {path}");
            return;
        }
        for (m, n, k) in [(1, 1, 64), (17, 48, 64), (32, 40, 128), (33, 96, 192), (70, 150, 64), (5, 33, 832)] {
            let mut state = 7u32;
            let mut next = || {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state >> 8
            };
            let number = |x: u32| x as f32 / 8_388_608.0 - 1.0;
            let (stride, ldc) = (k + 64, n + 3);
            let weights: Vec<f32> = (0..n * k).map(|_| number(next())).collect();
            let rows: Vec<u8> = (0..m * stride).map(|_| next() as u8).collect();
            let row_scales: Vec<f32> = (0..m).map(|_| number(next()) + 1.1).collect();
            let row_offsets: Vec<i32> = (0..m).map(|_| (next() & 255) as i32).collect();
            let bias: Vec<f32> = (0..n).map(|_| number(next())).collect();
            let residual: Vec<f32> = (0..m * ldc).map(|_| number(next())).collect();
            let mut packed = vec![0.0; packed_len(path, k, n)];
            pack(path, &weights, k, n, &mut packed);
            let (scales, sums, bytes) = sections(path.dispatch(TileShape), n, &packed);
            let compute = |run: &dyn Fn(Block<'_>)| {
                let mut c = vec![-1.0; m * ldc];
                run(Block {
                    m,
                    n,
                    groups: k / 4,
                    a: rows.as_ptr(),
                    stride,
                    row_scales: row_scales.as_ptr(),
                    row_offsets: row_offsets.as_ptr(),
                    b: bytes.as_ptr(),
                    column_scales: scales.as_ptr(),
                    weight_sums: sums.as_ptr(),
                    c: c.as_mut_ptr(),
                    ldc,
                    epilogue: Epilogue {
                        bias: Some(&bias),
                        activation: Some(Activation::Gelu),
                        residual: Some((&residual, ldc)),
                        ..Epilogue::default()
                    },
                });
                c
            };
            let want = compute(&|block| path.dispatch(block));
            // SAFETY: the machine has the instructions, and the slices are as long as the block says.
            let got = compute(&|block| unsafe { run(Avx512Vnni::new(), &mut Emulated::new(), block) });
            assert!(got == want, "{m} x {n} x {k}");
        }
    }
}
