//! Products of f32 on AMX: the loops around the bf16x3 microkernel.
//!
//! Every block of B is split into bf16x3 before its use. A is split two tiles of rows at a time: the vector units split
//! the next rows, and store the previous accumulators to C, while TMUL multiplies the current ones. Only an A that
//! several blocks of B use is split as a whole first.

mod interleave;
mod partition;
mod split;

use super::epilogue::SumsToC;
use super::macrokernel::{BlockB, GemmBlock};
use super::matmul::{ALIGN, aligned};
use super::tasks::TaskGrid;
use super::{Gemm, SharedGemm};
use crate::activation::{ActivationFn, with_activation};
use crate::amx::{ACC_SIDE, K_STEP, K_STEP_BYTES, Tmul, microkernel_bf16x3};
use crate::simd::{Avx512, Simd};
use crate::thread_pool::{DisjointMut, ThreadPool};

use interleave::{AccumulatorStore, SplitAndStore};
use partition::{AmxPartition, amx_kc, bf16x3_len};
use split::{RowSplitter, SplitA, split_b};

/// Columns of a packed panel.
const PANEL: usize = Avx512::TILE_VECTORS * Avx512::LANES;
/// The unit of column blocks: a multiple of a panel and of the accumulators.
const COLUMN_UNIT: usize = 2 * PANEL;
/// Elements of the cache line at the start of a thread's scratch. The first is the tag of the block of B that the
/// scratch holds, 0 for none.
const TAG: usize = 16;

/// Elements of workspace that [`run_tasks`] needs.
pub(super) fn workspace(threads: usize, m: usize, n: usize, k: usize) -> usize {
    let partition = AmxPartition::new(threads, m, n, k);
    threads * partition.scratch(k) + partition.split_a_len(m, k)
}

/// Computes the blocks of a product as tasks, each with a `Tmul` from `tmul`.
///
/// # Safety
/// The slices must be long enough for the shape; the machine must have AVX-512, and no thread may hold another
/// `Tmul` while a task runs.
pub(super) unsafe fn run_tasks<T: Tmul>(
    pool: &ThreadPool,
    gemm: Gemm<'_>,
    workspace: &mut [f32],
    tmul: impl Fn() -> T + Sync,
) {
    let Gemm { m, n, k, .. } = gemm;
    let partition = AmxPartition::new(pool.threads(), m, n, k);
    let scratch = partition.scratch(k);
    let (workspace, split_a_workspace) = workspace.split_at_mut(pool.threads() * scratch);
    for scratch in workspace.chunks_mut(scratch) {
        // No block of B yet: tags start at 1.
        scratch[0] = 0.0;
    }
    let split_a = partition.split_a_first.then(|| {
        let (to, _) = aligned(split_a_workspace, partition.split_a_len(m, k) - ALIGN);
        // SAFETY: the caller guarantees A and AVX-512; `split_a_len` elements are room for the split A, which only the
        // tasks of this function read.
        unsafe { SplitA::new(pool, &gemm, to) }
    });
    let TaskGrid { rows, columns } = partition.grid;
    let scratches = DisjointMut::new(workspace);
    let shared = SharedGemm::new(gemm, None);
    let blocks_per_share = rows.blocks / rows.shares;
    pool.run_with_worker(rows.blocks * columns.blocks, &|task, worker| {
        // Tasks are ordered by share, then column block, then row block: a thread computes all its rows with one block
        // of B, then with the next.
        let per_share = columns.blocks * blocks_per_share;
        let (share, task) = (task / per_share, task % per_share);
        let (row, rows) = rows.block(share * blocks_per_share + task % blocks_per_share);
        let (column, columns) = columns.block(task / blocks_per_share);
        // SAFETY: the caller guarantees the slices; blocks of C do not overlap, one thread at a time has a worker
        // index, and a task makes one `Tmul`.
        unsafe {
            let block = shared.block((row, rows), (column, columns), scratches.slice(worker * scratch, scratch));
            let split_a = split_a.as_ref().map(|split_a| split_a.skip_rows(row));
            run_block(Avx512::new(), &mut tmul(), block, split_a, 1.0 + column as f32);
        }
    });
}

/// The buffers of a block.
struct BlockBuffers {
    /// Accumulators in memory, in turns: those to be stored, and the current ones.
    accumulators: [*mut f32; 2],
    /// Split rows of A, in turns: the current ones, and the next.
    a: [*mut u8; 2],
    /// The split kc block of B.
    b: *mut u8,
    /// All of A if it is split already.
    split_a: Option<SplitA>,
}

/// Computes a block with a packed B. `tag` identifies its columns of B.
///
/// # Safety
/// As for [`GemmBlock::run`]; the scratch is as long as [`AmxPartition::scratch`] says and starts with the tag of the
/// columns of B that it holds.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
unsafe fn run_block<T: Tmul>(s: Avx512, tmul: &mut T, mut block: GemmBlock<'_>, split_a: Option<SplitA>, tag: f32) {
    let BlockB::Packed(packed_b) = block.b else { unreachable!("AMX takes a packed B") };
    let kc = amx_kc(block.k);
    let (held, scratch) = std::mem::take(&mut block.scratch).split_at_mut(TAG);
    let len = scratch.len() - ALIGN;
    let (scratch, _) = aligned(scratch, len);
    let (accumulators, scratch) = scratch.split_at_mut(2 * ACC_SIDE * ACC_SIDE);
    let (a, b) = scratch.split_at_mut(bf16x3_len(2 * ACC_SIDE * kc));
    assert!(b.len() >= bf16x3_len(block.n.next_multiple_of(ACC_SIDE) * kc), "scratch too short for B");
    let (first, second) = accumulators.split_at_mut(ACC_SIDE * ACC_SIDE);
    let (first_a, second_a) = a.split_at_mut(bf16x3_len(ACC_SIDE * kc));
    let buffers = BlockBuffers {
        accumulators: [first.as_mut_ptr(), second.as_mut_ptr()],
        a: [first_a.as_mut_ptr().cast(), second_a.as_mut_ptr().cast()],
        b: b.as_mut_ptr().cast(),
        split_a,
    };
    // If C is overwritten, the accumulators start from the bias; otherwise the epilogue adds it.
    let bias = if block.accumulate { None } else { block.epilogue.bias.take() };
    let mut k_start = 0;
    while k_start < block.k {
        let k_len = kc.min(block.k - k_start);
        let activation = if k_start + k_len == block.k { block.epilogue.activation } else { None };
        // SAFETY: the buffers are as long as the split operands; the caller guarantees the rest.
        unsafe {
            if k_len < block.k || held[0] != tag {
                split_b(packed_b, block.n, block.k, k_start, k_len, buffers.b);
                held[0] = if k_len < block.k { 0.0 } else { tag };
            }
            let bias = if k_start == 0 { bias } else { None };
            with_activation!(activation, f => run_k_block(s, tmul, f, &block, k_start, k_len, bias, &buffers));
        }
        k_start += k_len;
    }
}

/// Adds a kc block to all sums of a block of C; the last one also applies the epilogue, with `f` as its activation.
///
/// # Safety
/// As for [`run_block`], with this kc block of B in its buffer.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")]
#[allow(clippy::too_many_arguments)]
unsafe fn run_k_block<T: Tmul, F: ActivationFn>(
    s: Avx512,
    tmul: &mut T,
    f: F,
    block: &GemmBlock<'_>,
    k_start: usize,
    k_len: usize,
    bias: Option<&[f32]>,
    buffers: &BlockBuffers,
) {
    let k_steps = k_len.div_ceil(K_STEP);
    let columns_of_accumulators = block.n.div_ceil(ACC_SIDE);
    let last = k_start + k_len == block.k;
    let add_c = block.accumulate || k_start > 0;
    let epilogue = if last { block.epilogue } else { Default::default() };
    let d_activation = if last { block.d_activation } else { std::ptr::null_mut() };
    // The interleaved store applies only an activation and a residual.
    let interleave_store =
        d_activation.is_null() && epilogue.bias.is_none() && epilogue.scale.is_none() && epilogue.factor.is_none();
    let splitter = |row: usize, to: *mut u8| {
        // No rows if A is split already or ends before `row`.
        let rows = if buffers.split_a.is_some() { 0 } else { ACC_SIDE.min(block.m.saturating_sub(row)) };
        RowSplitter::new(block.a.wrapping_add(row * block.lda + k_start), block.lda, rows, k_len, to)
    };
    let mut interleaved = SplitAndStore {
        s,
        f,
        splitter: splitter(0, buffers.a[0]),
        splits_per_call: 0,
        store: AccumulatorStore::none(),
    };
    // SAFETY: the splitter has only rows of A, and its buffer has room for `ACC_SIDE` of them.
    unsafe { interleaved.splitter.split(usize::MAX) };
    let mut row = 0;
    let mut accumulations = 0;
    while row < block.m {
        let rows = ACC_SIDE.min(block.m - row);
        tmul.ldtilecfg(rows);
        interleaved.splitter = splitter(row + ACC_SIDE, buffers.a[(row / ACC_SIDE + 1) % 2]);
        // microkernel_bf16x3 advances the interleaved work twice per k step.
        let calls = 2 * k_steps * columns_of_accumulators;
        interleaved.splits_per_call = (interleaved.splitter.rows * k_steps).div_ceil(calls);
        let a = match buffers.split_a {
            Some(split_a) => split_a.at(row, k_start, k_len),
            None => buffers.a[row / ACC_SIDE % 2],
        };
        for i in 0..columns_of_accumulators {
            let column = i * ACC_SIDE;
            let columns = ACC_SIDE.min(block.n - column);
            let mut initial = AccumulatorRow([0.0; ACC_SIDE]);
            if let Some(bias) = bias {
                initial.0[..columns].copy_from_slice(&bias[column..][..columns]);
            }
            let sums = buffers.accumulators[accumulations % 2];
            accumulations += 1;
            // SAFETY: these rows of A and columns of B are split; the caller guarantees the block of C.
            unsafe {
                let b = buffers.b.add(i * k_steps * K_STEP_BYTES);
                microkernel_bf16x3(tmul, a, b, k_steps, initial.0.as_ptr(), sums, &mut interleaved);
                interleaved.store.store(s, f, usize::MAX);
                let offset = row * block.ldc + column;
                let (c, ldc) = (block.c.add(offset), block.ldc);
                if interleave_store && columns == ACC_SIDE {
                    let (residual, residual_stride) = match epilogue.residual {
                        Some((x, ld)) => (x.as_ptr().wrapping_add(row * ld + column), ld),
                        None => (std::ptr::null(), 0),
                    };
                    interleaved.store = AccumulatorStore { sums, rows, add_c, c, ldc, residual, residual_stride };
                } else {
                    let to_c = SumsToC {
                        columns,
                        c,
                        ldc,
                        add_c,
                        epilogue: epilogue.at(row, column),
                        residual_before_activation: None,
                        d_activation: if d_activation.is_null() { d_activation } else { d_activation.add(offset) },
                    };
                    to_c.store(s, sums, ACC_SIDE, 0, rows);
                }
            }
        }
        // SAFETY: as for the first rows.
        unsafe { interleaved.splitter.split(usize::MAX) };
        row += rows;
    }
    // SAFETY: the last accumulators are those of this block of C.
    unsafe { interleaved.store.store(s, f, usize::MAX) };
}

/// Initial sums, the same in each row of the accumulators.
#[repr(C, align(64))]
struct AccumulatorRow([f32; ACC_SIDE]);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activation::Activation;
    use crate::amx::EmulatedTmul;
    use crate::gemm::{ALayout, BLayout, Epilogue, pack_b, packed_len};
    use crate::isa::Isa;

    /// Values of very different magnitudes, the same in every run.
    fn values(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        (0..n).map(|_| (next() as f32 / 8_388_608.0 - 1.0) * [1.0, 0.01, 30.0][next() as usize % 3]).collect()
    }

    fn check(threads: usize, [m, n, k]: [usize; 3], interleaved: bool) {
        let (lda, ldc) = (k + 3, n + 5);
        let (a, b) = (values(m * lda, 1), values(k * n, 2));
        let (bias, scale, residual) = (values(n, 3), values(n, 4), values(m * ldc, 5));
        let before = values(m * ldc, 6);
        let mut c = before.clone();
        let mut packed = vec![0.0; packed_len(Isa::Avx512, k, n)];
        pack_b(Isa::Avx512, &b, BLayout::RowsAreK, n, k, n, &mut packed);
        let epilogue = Epilogue {
            bias: Some(&bias),
            activation: Some(Activation::Relu),
            scale: (!interleaved).then_some(&scale),
            factor: None,
            residual: Some((&residual, ldc)),
        };
        let gemm = Gemm {
            m,
            n,
            k,
            a: &a,
            lda,
            a_layout: ALayout::RowMajor,
            b: &packed,
            c: &mut c,
            ldc,
            accumulate: !interleaved,
            epilogue,
            d_activation: None,
        };
        let mut workspace = vec![f32::NAN; super::workspace(threads, m, n, k)];
        // SAFETY: the slices are as long as the shape says, and the test has checked for AVX-512.
        unsafe { run_tasks(&ThreadPool::new(threads), gemm, &mut workspace, EmulatedTmul::new) };
        for (at, got) in c.iter().enumerate() {
            let (i, j) = (at / ldc, at % ldc);
            if j >= n {
                assert_eq!(*got, before[at], "beyond the columns of {m} x {n} x {k}");
                continue;
            }
            let terms = (0..k).map(|t| f64::from(a[i * lda + t]) * f64::from(b[t * n + j]));
            let size: f64 = terms.clone().map(f64::abs).sum();
            let sum: f64 = terms.sum();
            let (sum, scale) =
                if interleaved { (sum, 1.0) } else { (f64::from(before[at]) + sum, f64::from(scale[j])) };
            let want = scale * (sum + f64::from(bias[j])).max(0.0) + f64::from(residual[at]);
            let unit = f64::from(f32::EPSILON);
            // A k step rounds the sum six times, and roundings add up as a random walk. A missing product of two parts
            // would be a hundred times as large.
            let roundings = 1.0 + (1.5 * k.div_ceil(K_STEP) as f64).sqrt();
            let allowed = unit * (scale.abs() * (roundings * size + 100.0) + want.abs() + 30.0);
            let off = (f64::from(*got) - want).abs();
            assert!(off <= allowed, "{m} x {n} x {k}, interleaved {interleaved}: {got} for {want} at {i}, {j}");
        }
    }

    #[test]
    fn products_in_bf16x3_match_f64() {
        if !Isa::Avx512.is_available() {
            eprintln!("skipped: this machine has no avx512");
            return;
        }
        for interleaved in [false, true] {
            // Full and partial accumulators, one term and a few more than a k step, a remainder of rows in either tile.
            for shape in [[24, 1, 1], [32, 32, 32], [33, 48, 33], [49, 100, 65], [64, 97, 31]] {
                check(1, shape, interleaved);
                check(3, shape, interleaved);
            }
        }
        // Several kc blocks; several blocks of B with A split first; many rows for each thread.
        for (shape, split_a_first) in [([40, 96, 1600], false), ([70, 600, 800], true), ([1600, 40, 40], false)] {
            let [m, n, k] = shape;
            assert_eq!(AmxPartition::new(2, m, n, k).split_a_first, split_a_first);
            check(2, shape, true);
            check(2, shape, false);
        }
    }
}
