//! Blocks on AMX, which takes quantised rows and packed panels without conversion: four TDPBUSD multiply 64 terms of 32
//! rows and 32 columns. The vector units dequantise the previous accumulators at the same time.

use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use super::block::{DequantiseTile, QuantisedBlock};
use super::path::{AMX_TILE_GROUPS, Dot};
use super::x86::Avx512Vnni;
use crate::amx::{ACC_SIDE, TILE_ROWS, Tmul};

/// Bytes of a k step of a row.
const K_STEP_BYTES: usize = AMX_TILE_GROUPS * Avx512Vnni::GROUP;
/// Columns of a tile register.
const TILE_COLUMNS: usize = 16;
/// Columns of a packed panel, and the bytes of a group of each.
const PANEL: usize = Avx512Vnni::TILE_VECTORS * TILE_COLUMNS;
const PANEL_BYTES: usize = PANEL * Avx512Vnni::GROUP;
/// Rows of the previous accumulators that are dequantised in a k step.
const DEQUANTISED_ROWS: usize = 8;

/// The accumulators in memory.
#[repr(C, align(64))]
struct Accumulators([i32; ACC_SIDE * ACC_SIDE]);

/// Initial sums of every row.
#[repr(C, align(64))]
struct Zeros([i32; ACC_SIDE]);
static ZEROS: Zeros = Zeros([0; ACC_SIDE]);

/// Computes a block whose groups fill whole tile registers.
///
/// # Safety
/// As for [`QuantisedBlock::run`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
pub(super) unsafe fn run<T: Tmul>(d: Avx512Vnni, tmul: &mut T, block: QuantisedBlock<'_>) {
    let mut accumulators = [const { Accumulators([0; ACC_SIDE * ACC_SIDE]) }; 2];
    let panel_bytes = block.groups * PANEL_BYTES;
    // The right tile of the last columns may begin after the last panel; its columns are unused, so any tile will do.
    let last_tile = block.n.next_multiple_of(PANEL) - TILE_COLUMNS;
    let mut previous: Option<DequantiseTile<'_>> = None;
    let mut accumulations = 0;
    for column in (0..block.n).step_by(ACC_SIDE) {
        let columns = ACC_SIDE.min(block.n - column);
        let tile = |column: usize| {
            let column = column.min(last_tile);
            let start = column / PANEL * panel_bytes + column % PANEL * Avx512Vnni::GROUP;
            block.b.wrapping_add(start).cast::<u8>()
        };
        let b = [tile(column), tile(column + TILE_COLUMNS)];
        for row in (0..block.m).step_by(ACC_SIDE) {
            let rows = ACC_SIDE.min(block.m - row);
            tmul.ldtilecfg(rows);
            // Without lower rows, the one row that the tile must have is a valid one.
            let lower = if rows > TILE_ROWS { row + TILE_ROWS } else { row };
            // SAFETY: the caller guarantees the rows, the panels and the block of C.
            unsafe {
                let a = [block.a.add(row * block.stride), block.a.add(lower * block.stride)];
                tmul.load_accumulators(ZEROS.0.as_ptr().cast());
                for step in 0..block.groups / AMX_TILE_GROUPS {
                    let a = a.map(|a| a.add(step * K_STEP_BYTES));
                    let b = b.map(|b| b.add(step * AMX_TILE_GROUPS * PANEL_BYTES));
                    tmul.tileloadd::<6>(b[0], PANEL_BYTES);
                    tmul.tileloadd::<4>(a[0], block.stride);
                    tmul.tdpbusd::<0, 4, 6>();
                    tmul.tileloadd::<7>(b[1], PANEL_BYTES);
                    tmul.tdpbusd::<1, 4, 7>();
                    tmul.tileloadd::<5>(a[1], block.stride);
                    tmul.tdpbusd::<2, 5, 6>();
                    tmul.tdpbusd::<3, 5, 7>();
                    for a in a {
                        for row in 0..TILE_ROWS {
                            let next = a.wrapping_add(K_STEP_BYTES + row * block.stride);
                            _mm_prefetch::<_MM_HINT_T0>(next.cast());
                        }
                    }
                    if let Some(tile) = previous.take() {
                        previous = tile.store_rows(d, DEQUANTISED_ROWS);
                    }
                }
                if let Some(tile) = previous.take() {
                    tile.store(d);
                }
                let sums = accumulators[accumulations % 2].0.as_mut_ptr();
                accumulations += 1;
                tmul.store_accumulators(sums.cast());
                previous = Some(block.dequantise(sums, ACC_SIDE, [row, column], [rows, columns]));
            }
        }
    }
    if let Some(tile) = previous {
        // SAFETY: as above.
        unsafe { tile.store(d) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activation::Activation;
    use crate::amx::EmulatedTmul;
    use crate::gemm::Epilogue;
    use crate::int8::pack::{pack, packed_len, sections};
    use crate::int8::path::{DotPath, ShapeOf};

    #[test]
    fn blocks_match_those_of_the_vector_units() {
        let path = DotPath::Avx512Vnni;
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
            let value = |x: u32| x as f32 / 8_388_608.0 - 1.0;
            let (stride, ldc) = (k + 64, n + 3);
            let weights: Vec<f32> = (0..n * k).map(|_| value(next())).collect();
            let rows: Vec<u8> = (0..m * stride).map(|_| next() as u8).collect();
            let row_scales: Vec<f32> = (0..m).map(|_| value(next()) + 1.1).collect();
            let row_offsets: Vec<i32> = (0..m).map(|_| (next() & 255) as i32).collect();
            let bias: Vec<f32> = (0..n).map(|_| value(next())).collect();
            let residual: Vec<f32> = (0..m * ldc).map(|_| value(next())).collect();
            let mut packed = vec![0.0; packed_len(path, k, n)];
            pack(path, &weights, k, n, &mut packed);
            let (scales, sums, bytes) = sections(path.dispatch(ShapeOf), n, &packed);
            let compute = |run: &dyn Fn(QuantisedBlock<'_>)| {
                let mut c = vec![-1.0; m * ldc];
                run(QuantisedBlock {
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
            // SAFETY: the machine has the instructions, and the slices are as long as the block says.
            let want = compute(&|block| unsafe { block.run(path) });
            // SAFETY: as above.
            let got = compute(&|block| unsafe { run(Avx512Vnni::new(), &mut EmulatedTmul::new(), block) });
            assert!(got == want, "{m} x {n} x {k}");
        }
    }
}
