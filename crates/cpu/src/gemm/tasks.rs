//! The tasks of a product: blocks of C, which are the iterations of BLIS's ic and jc loops. Here ic is the outer one, and NC
//! follows from the number of tasks, since B is packed before.

use crate::isa::Isa;
use crate::simd::TileShape;

/// MC: rows of A that a block keeps in the second-level cache, a multiple of every register tile's rows (4, 6 or 8).
/// With KC of at most 768 they are 288 KiB.
pub(crate) const MC: usize = 96;
/// More tasks than threads balance the load when other processes take time from some of them.
const TASKS_PER_THREAD: usize = 6;

/// The blocks of C, row blocks by column blocks.
pub(crate) struct TaskGrid {
    pub rows: Division,
    pub columns: Division,
}

impl TaskGrid {
    /// Blocks for the microkernel of the instruction set. `one_row_block` is for a B that is not prepacked:
    /// the tasks of every row block would pack its panels again.
    pub fn new(isa: Isa, threads: usize, m: usize, n: usize, one_row_block: bool) -> TaskGrid {
        let (mr, nr) = isa.dispatch(TileShape);
        TaskGrid::with_tile(threads, [m, n], [mr, nr], if one_row_block { m } else { MC })
    }

    /// Blocks of at most `mc` rows, rounded up to a multiple of `mr`. With at least as many row blocks as threads, the
    /// rows are first divided into equal shares, one for each thread, so that a thread has the same rows in every
    /// operation and finds them in its cache. All blocks of a share but the last are whole tiles of `[mr, nr]`.
    pub fn with_tile(threads: usize, [m, n]: [usize; 2], [mr, nr]: [usize; 2], mc: usize) -> TaskGrid {
        let min_row_blocks = m.div_ceil(mc.max(1)).max(1);
        let shares = if min_row_blocks >= threads { threads } else { 1 };
        TaskGrid::with_shares(threads, [m, n], [mr, nr], min_row_blocks, shares)
    }

    /// As few register tiles as possible: without equal shares, only the last row block ends in a partial tile. For
    /// convolutions: a thread reads rows that other threads have written anyway (neighbouring pixels, other strides).
    pub fn fewest_tiles(isa: Isa, threads: usize, m: usize, n: usize) -> TaskGrid {
        let (mr, nr) = isa.dispatch(TileShape);
        TaskGrid::with_shares(threads, [m, n], [mr, nr], m.div_ceil(MC).max(1), 1)
    }

    fn with_shares(
        threads: usize,
        [m, n]: [usize; 2],
        [mr, nr]: [usize; 2],
        min_row_blocks: usize,
        shares: usize,
    ) -> TaskGrid {
        let row_blocks = min_row_blocks.next_multiple_of(shares);
        let tasks = if threads > 1 { threads * TASKS_PER_THREAD } else { 1 };
        let column_blocks = tasks.div_ceil(row_blocks);
        TaskGrid { rows: Division::new(m, mr, row_blocks, shares), columns: Division::new(n, nr, column_blocks, 1) }
    }
}

/// The rows or columns of C, divided into shares whose lengths differ by at most one, and each share into about equal
/// blocks; all blocks of a share but the last are multiples of a unit.
pub(crate) struct Division {
    length: usize,
    unit: usize,
    /// The blocks of all shares.
    pub blocks: usize,
    pub shares: usize,
}

impl Division {
    /// `blocks` blocks, a multiple of `shares`; fewer if a share has not as many units.
    pub fn new(length: usize, unit: usize, blocks: usize, shares: usize) -> Division {
        let max_blocks = (length / shares).div_ceil(unit);
        if max_blocks == 0 {
            return Division { length, unit, blocks: 1, shares: 1 };
        }
        Division { length, unit, blocks: (blocks / shares).clamp(1, max_blocks) * shares, shares }
    }

    /// The start and the length of a block.
    pub fn block(&self, i: usize) -> (usize, usize) {
        let blocks_per_share = self.blocks / self.shares;
        let share_start = |i: usize| i * self.length / self.shares;
        let (start, end) = (share_start(i / blocks_per_share), share_start(i / blocks_per_share + 1));
        let units = (end - start).div_ceil(self.unit);
        let bound = |i: usize| (start + i * units / blocks_per_share * self.unit).min(end);
        let i = i % blocks_per_share;
        (bound(i), bound(i + 1) - bound(i))
    }

    /// At least the length of every block.
    pub fn longest(&self) -> usize {
        let units = self.length.div_ceil(self.shares).div_ceil(self.unit);
        units.div_ceil(self.blocks / self.shares) * self.unit
    }
}
