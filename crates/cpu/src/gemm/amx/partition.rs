//! How a product on AMX is divided into tasks, and the memory that this takes.

use super::super::matmul::ALIGN;
use super::super::tasks::{Division, TaskGrid};
use super::{COLUMN_UNIT, TAG};
use crate::amx::{ACC_SIDE, K_STEP, SPLITS};

/// The most terms that are summed in tile registers before the sums go to C.
const MAX_KC: usize = 768;
/// The most elements of a block of B: 900 KiB as bf16x3, of the 2 MiB of second-level cache of CPUs with AMX; the rest
/// is for rows of A and C.
const MAX_B_BLOCK: usize = 150 << 10;
/// Rows of C for each thread that make it worthwhile for the thread to split a block of B of its own.
const MIN_ROWS: usize = 384;
/// More tasks than threads balance the load when other processes take time from some of them.
const TASKS_PER_THREAD: usize = 3;
/// From this many blocks of B on, threads have disjoint columns: with disjoint rows, each would split all of B.
const MANY_B_BLOCKS: usize = 3;
/// The most elements of A that are split as a whole before the tasks begin: 30 MiB as bf16x3, which stay in the shared
/// cache.
const MAX_SPLIT_A: usize = 5 << 20;
/// Bytes of an f32 as bf16x3.
pub(super) const BF16X3_BYTES: usize = 2 * SPLITS;

/// KC: the terms of a kc block, which `k` alone decides.
pub(super) fn amx_kc(k: usize) -> usize {
    k.div_ceil(k.div_ceil(MAX_KC).max(1)).next_multiple_of(K_STEP)
}

/// The length, in f32, of `n` elements as bf16x3.
pub(super) fn bf16x3_len(n: usize) -> usize {
    n * BF16X3_BYTES / 4
}

/// The tasks of a product.
pub(super) struct AmxPartition {
    pub grid: TaskGrid,
    /// Whether A is split before the tasks begin, since several column blocks use it.
    pub split_a_first: bool,
}

impl AmxPartition {
    /// Blocks of C as wide as possible while there are enough of them.
    pub fn new(threads: usize, m: usize, n: usize, k: usize) -> AmxPartition {
        let units = n.div_ceil(COLUMN_UNIT).max(1);
        let min_blocks = units.div_ceil((MAX_B_BLOCK / (amx_kc(k) * COLUMN_UNIT)).max(1));
        let tasks = if threads > 1 { threads * TASKS_PER_THREAD } else { 1 };
        if m >= threads * MIN_ROWS && min_blocks < MANY_B_BLOCKS {
            // Threads have disjoint rows. With a single kc block, a thread reuses its split block of B in the next
            // task.
            let blocks_per_thread = if k <= MAX_KC { (m / threads / MIN_ROWS).clamp(1, TASKS_PER_THREAD) } else { 1 };
            let rows = Division::new(m, ACC_SIDE, blocks_per_thread * threads, threads);
            let columns = Division::new(n, COLUMN_UNIT, min_blocks, 1);
            return AmxPartition { grid: TaskGrid { rows, columns }, split_a_first: false };
        }
        // Blocks of equal width if possible.
        let max_blocks = tasks.min(units).max(min_blocks);
        let blocks = (min_blocks..=max_blocks).rev().find(|c| units.is_multiple_of(*c)).unwrap_or(max_blocks);
        let rows = Division::new(m, ACC_SIDE, threads.div_ceil(blocks), 1);
        let columns = Division::new(n, COLUMN_UNIT, blocks, 1);
        AmxPartition { grid: TaskGrid { rows, columns }, split_a_first: blocks > 1 && m * k <= MAX_SPLIT_A }
    }

    /// Elements of scratch of a thread, laid out as `run_block` divides it.
    pub fn scratch(&self, k: usize) -> usize {
        let columns = self.grid.columns.longest();
        TAG + 2 * ACC_SIDE * ACC_SIDE + bf16x3_len((2 * ACC_SIDE + columns) * amx_kc(k)) + ALIGN
    }

    /// Elements of the split A that all threads share.
    pub fn split_a_len(&self, m: usize, k: usize) -> usize {
        let elements = m.next_multiple_of(ACC_SIDE) * k.next_multiple_of(K_STEP);
        if self.split_a_first { bf16x3_len(elements) + ALIGN } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_cover_the_result() {
        for threads in [1, 2, 3, 16, 64] {
            for [m, n, k] in [[24, 1, 1], [197, 768, 768], [197, 3072, 768], [1576, 192, 768], [12608, 3072, 768]] {
                let TaskGrid { rows, columns } = AmxPartition::new(threads, m, n, k).grid;
                for (division, length) in [(rows, m), (columns, n)] {
                    let mut end = 0;
                    for i in 0..division.blocks {
                        let (start, length) = division.block(i);
                        assert_eq!(start, end, "{threads} threads, {m} x {n} x {k}");
                        assert!(length <= division.longest());
                        end = start + length;
                    }
                    assert_eq!(end, length);
                }
            }
        }
    }
}
