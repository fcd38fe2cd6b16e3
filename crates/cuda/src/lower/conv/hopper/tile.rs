//! Block tiles and split-K of the implicit GEMM.

use crate::compile::{self, KernelVariant};
use crate::plan::storage::Storage;

/// Elements of the reduction in one step, and their bytes in bf16: a row of a tile.
pub(super) const STEP: usize = 64;
const ROW_BYTES: usize = 2 * STEP;

/// Room for the first stage to start at the alignment of the 128-byte swizzle.
const ALIGNMENT: usize = 1024;

/// The most scratch memory for the partial sums of split-K, unless a single block per tile needs more.
const MAX_SPLIT_BYTES: usize = 256 << 20;

/// The tile of a block and the stages of its software pipeline. Chosen by measurements on an H200.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct BlockTile {
    pub m: usize,
    pub n: usize,
    stages: usize,
    /// Resident blocks of a multiprocessor.
    pub blocks_per_sm: usize,
}

impl BlockTile {
    /// For output pixels by filters. Of the two heights, the one whose waves of blocks take less time in all.
    pub fn of_pixels(pixels: usize, filters: usize, multiprocessors: usize) -> Self {
        if filters <= 64 {
            return BlockTile { m: 128, n: 64, stages: 4, blocks_per_sm: 2 };
        }
        let time = |m: usize| (pixels.div_ceil(m) * filters.div_ceil(128)).div_ceil(multiprocessors) * m;
        let m = if time(192) < time(256) { 192 } else { 256 };
        BlockTile { m, n: 128, stages: 4, blocks_per_sm: 1 }
    }

    /// For the gradient of the filters, filters by columns. A narrow tile loads more per multiply-add, so it is chosen
    /// only if it has 20% fewer columns with their padding.
    pub fn of_filters(filters: usize, columns: usize) -> Self {
        let narrow = 5 * columns.next_multiple_of(128) < 4 * columns.next_multiple_of(192);
        match (filters <= 64, narrow) {
            (true, true) => BlockTile { m: 64, n: 128, stages: 4, blocks_per_sm: 2 },
            (true, false) => BlockTile { m: 64, n: 192, stages: 3, blocks_per_sm: 2 },
            (false, true) => BlockTile { m: 128, n: 128, stages: 3, blocks_per_sm: 2 },
            (false, false) => BlockTile { m: 128, n: 192, stages: 5, blocks_per_sm: 1 },
        }
    }

    /// Bytes of shared memory.
    pub fn shared(&self) -> usize {
        self.stages * (self.m + self.n) * ROW_BYTES + ALIGNMENT
    }

    pub fn warpgroups(&self) -> usize {
        self.m / 64
    }

    pub fn convolve(&self, channel_blocked: bool, y: Storage) -> KernelVariant {
        KernelVariant::new(&compile::HOPPER_CONVOLVE)
            .with("WARPGROUPS", self.warpgroups())
            .with("BLOCK_N", self.n)
            .with("STAGES", self.stages)
            .with("BLOCKS_PER_SM", self.blocks_per_sm)
            .with("CHANNEL_BLOCKED", usize::from(channel_blocked))
            .with("Y", y.name())
    }

    pub fn correlate(&self) -> KernelVariant {
        KernelVariant::new(&compile::HOPPER_CORRELATE)
            .with("BLOCK_M", self.m)
            .with("BLOCK_N", self.n)
            .with("STAGES", self.stages)
            .with("BLOCKS_PER_SM", self.blocks_per_sm)
    }
}

/// Split-K: the steps of one block, of `steps` for each of `tiles` block tiles, where `resident` blocks run at a time.
/// More splits fill the last wave better, but the `split_bytes` of each are written and read once more. Times are in
/// steps of a block.
pub(super) fn steps_per_block(steps: usize, tiles: usize, resident: usize, split_bytes: usize) -> usize {
    /// Estimates: prologue and epilogue of a block, and the bytes that are written and read in the time of a step.
    const OVERHEAD: f64 = 4.0;
    const BYTES_PER_STEP: f64 = 3e6;
    // Twice, since each of two warpgroups may write a separate split.
    let most = (MAX_SPLIT_BYTES / (2 * split_bytes)).clamp(1, steps);
    let time = |splits: usize| {
        let waves = (tiles * splits).div_ceil(resident) as f64;
        waves * (steps.div_ceil(splits) as f64 + OVERHEAD) + (splits * split_bytes) as f64 / BYTES_PER_STEP
    };
    let best = (1..=most.min(1024)).min_by(|&a, &b| time(a).total_cmp(&time(b))).unwrap_or(1);
    steps.div_ceil(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_keep_all_multiprocessors_busy() {
        // Filters' gradients of ResNet-50 at a batch of 256: filters, columns, steps.
        for (filters, columns, steps) in [(64, 576, 12544), (128, 1152, 3136), (256, 2304, 784), (512, 4608, 196)] {
            let block = BlockTile::of_filters(filters, columns);
            let (tiles, resident) = (filters.div_ceil(block.m) * columns.div_ceil(block.n), 132 * block.blocks_per_sm);
            let each = steps_per_block(steps, tiles, resident, 4 * filters * columns);
            let blocks = tiles * steps.div_ceil(each);
            let busy = blocks as f64 / (blocks.div_ceil(resident) * resident) as f64;
            assert!(busy > 0.85, "{filters} by {columns} in {steps} steps, {each} each: {busy}");
        }
    }

    #[test]
    fn blocks_fit_into_a_multiprocessor() {
        let of_pixels = [64, 128].map(|filters| BlockTile::of_pixels(1 << 20, filters, 132));
        let lower = BlockTile::of_pixels(12544, 512, 132);
        assert_eq!(lower.m, 192);
        let of_filters = [(64, 128), (64, 192), (128, 128), (128, 192)].map(|(m, n)| BlockTile::of_filters(m, n));
        for block in of_pixels.into_iter().chain([lower]).chain(of_filters) {
            // The driver reserves 1024 bytes for each block.
            assert!(block.blocks_per_sm * (block.shared() + 1024) <= 228 << 10, "{block:?}");
        }
    }
}
