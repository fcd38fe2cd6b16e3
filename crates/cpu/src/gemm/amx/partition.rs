//! How a product is divided for the matrix unit, and the room that this takes.

use super::super::matmul::ALIGN;
use super::super::{Division, Grid};
use super::{COLUMNS, HELD};
use crate::amx::{PIECES, SIDE, STEP};

/// The most terms that are summed in the tiles before they go to C.
const BLOCK_TERMS: usize = 768;
/// Numbers of B that fit into the second-level cache in pieces, and leave room for those of A.
const BLOCK_OF_B: usize = 150 << 10;
/// Rows of C that a block of B should be used for.
const ROWS: usize = 384;
/// Tasks per thread that even out what other processes take away.
const TASKS_PER_THREAD: usize = 3;
/// Blocks of B that it is not worth taking to pieces for each thread.
const MANY_BLOCKS: usize = 3;
/// Numbers of A up to which there is room for all of them in pieces.
const SHARED: usize = 5 << 20;
/// Bytes of the pieces of a number.
pub(super) const BYTES: usize = 2 * PIECES;

/// The number of terms summed at a time, decided by `k` alone.
pub(super) fn terms(k: usize) -> usize {
    k.div_ceil(k.div_ceil(BLOCK_TERMS).max(1)).next_multiple_of(STEP)
}

/// f32 that take as much room as the pieces of `n` numbers.
pub(super) fn in_pieces(n: usize) -> usize {
    n * BYTES / 4
}

/// How a product is divided.
pub(super) struct Plan {
    pub grid: Grid,
    /// Whether A is in pieces before the tasks begin.
    pub shared: bool,
}

impl Plan {
    /// Wide blocks of C, as long as there are enough.
    pub fn new(threads: usize, m: usize, n: usize, k: usize) -> Plan {
        let units = n.div_ceil(COLUMNS).max(1);
        let least = units.div_ceil((BLOCK_OF_B / (terms(k) * COLUMNS)).max(1));
        let wanted = if threads > 1 { threads * TASKS_PER_THREAD } else { 1 };
        if m >= threads * ROWS && least < MANY_BLOCKS {
            // Threads with many rows have them to themselves. A block of B stays where it is from one task to the next if it
            // has all the terms.
            let parts = if k <= BLOCK_TERMS { (m / threads / ROWS).clamp(1, TASKS_PER_THREAD) } else { 1 };
            let rows = Division::new(m, SIDE, parts * threads, threads);
            return Plan { grid: Grid { rows, columns: Division::new(n, COLUMNS, least, 1) }, shared: false };
        }
        // Others share B, and A in pieces.
        let goal = wanted.min(units).max(least);
        let columns = (least..=goal).rev().find(|c| units.is_multiple_of(*c)).unwrap_or(goal);
        let rows = Division::new(m, SIDE, threads.div_ceil(columns), 1);
        let shared = columns > 1 && m * k <= SHARED;
        Plan { grid: Grid { rows, columns: Division::new(n, COLUMNS, columns, 1) }, shared }
    }

    /// How many numbers of scratch a thread wants.
    pub fn scratch(&self, k: usize) -> usize {
        HELD + 2 * SIDE * SIDE + in_pieces((2 * SIDE + self.grid.columns.longest()) * terms(k)) + ALIGN
    }

    /// How many numbers the threads have together.
    pub fn shared(&self, m: usize, k: usize) -> usize {
        if self.shared { in_pieces(m.next_multiple_of(SIDE) * k.next_multiple_of(STEP)) + ALIGN } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_plan_cover_the_result() {
        for threads in [1, 2, 3, 16, 64] {
            for [m, n, k] in [[24, 1, 1], [197, 768, 768], [197, 3072, 768], [1576, 192, 768], [12608, 3072, 768]] {
                let Grid { rows, columns } = Plan::new(threads, m, n, k).grid;
                for (division, length) in [(rows, m), (columns, n)] {
                    let mut end = 0;
                    for i in 0..division.parts {
                        let (start, part) = division.part(i);
                        assert_eq!(start, end, "{threads} threads, {m} x {n} x {k}");
                        assert!(part <= division.longest());
                        end = start + part;
                    }
                    assert_eq!(end, length);
                }
            }
        }
    }
}
