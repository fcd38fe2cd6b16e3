//! The tiling of the attention kernels for Hopper: macros, grid and shared memory of a shape. `kernels/hopper/tiles.cu`
//! describes the macros, and the units, tiles and slots of which the kernels' work and shared memory consist.

use super::Extents;
use crate::compile::{self, KernelSource, KernelVariant};
use crate::run::tensor_map::box_columns;

/// On Hopper, the most shared memory of a block, and that of a multiprocessor for all its blocks, in bytes; the driver
/// adds 1024 to each block.
const SHARED_OF_BLOCK: usize = 232_448;
const SHARED_OF_MULTIPROCESSOR: usize = 233_472;

/// The most tokens of a slot for two warpgroups, which have more registers each for the scores of a tile than three
/// have.
pub(super) const MAX_SLOT_ROWS: usize = 320;

/// The most tokens of a slot for three warpgroups: the scores of a tile must fit the registers.
const MAX_SLOT_ROWS_OF_THREE: usize = 208;

/// The most rows of a box of TMA.
const MAX_BOX_ROWS: usize = 256;

/// Tokens of a tile: the rows of one wgmma.
const TILE: usize = 64;

/// The kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HopperKernel {
    Forward,
    /// The whole gradient, a head at a time.
    Backward,
    /// The gradient of the queries for any length.
    BackwardQueries,
    /// The gradients of keys and values for any length.
    BackwardKeys,
}

impl HopperKernel {
    pub fn source(self) -> &'static KernelSource {
        match self {
            HopperKernel::Forward => &compile::HOPPER_FORWARD,
            HopperKernel::Backward => &compile::HOPPER_BACKWARD,
            HopperKernel::BackwardQueries => &compile::HOPPER_BACKWARD_QUERIES,
            HopperKernel::BackwardKeys => &compile::HOPPER_BACKWARD_KEYS,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            HopperKernel::Forward => "attention_forward",
            HopperKernel::Backward => "attention_backward",
            HopperKernel::BackwardQueries => "attention_backward_q",
            HopperKernel::BackwardKeys => "attention_backward_kv",
        }
    }

    /// Slots that a unit fills if all streamed tokens fit one slot: q, k and v, and dout in the backward pass.
    fn slots_per_unit(self) -> usize {
        if self == HopperKernel::Forward { 3 } else { 4 }
    }

    /// Tokens of the resident and of the streamed operand.
    fn tokens(self, x: &Extents) -> (usize, usize) {
        if self == HopperKernel::BackwardKeys { (x.keys, x.queries) } else { (x.queries, x.keys) }
    }

    /// Work items of the warpgroups in a unit of `tiles` tiles: `Backward` has separate ones for keys and for queries.
    fn items(self, tiles: usize) -> usize {
        if self == HopperKernel::Backward { 2 * tiles } else { tiles }
    }

    /// Registers of a thread in consumer and producer warpgroups, in all at most those of a multiprocessor; 0 leaves
    /// them as compiled. A producer that also loads the rows' statistics needs more.
    fn registers(self, warpgroups: usize, blocks_per_sm: usize) -> [usize; 2] {
        let statistics = matches!(self, HopperKernel::Backward | HopperKernel::BackwardKeys);
        match (warpgroups, blocks_per_sm, statistics) {
            (1, ..) => [0, 0],
            (_, 2, _) => [104, 24],
            (2, _, true) => [224, 56],
            (2, _, false) => [240, 24],
            (_, _, true) => [152, 56],
            (_, _, false) => [160, 32],
        }
    }
}

/// How one kernel is compiled and launched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HopperTiling {
    kernel: HopperKernel,
    head_dim: usize,
    /// Tokens of a slot.
    pub rows: usize,
    /// Tiles of a unit.
    tiles: usize,
    /// Consumer warpgroups; every block also has one producer warpgroup.
    warpgroups: usize,
    slots: usize,
    /// Queries per step for dK and dV, and keys per step for dQ.
    step_q: usize,
    step_k: usize,
    blocks_per_sm: usize,
    registers: [usize; 2],
    /// Whether one slot holds all streamed tokens.
    single: bool,
    pub grid: usize,
}

impl HopperTiling {
    pub fn new(kernel: HopperKernel, x: &Extents, multiprocessors: usize) -> HopperTiling {
        let padded_head_dim = x.head_dim.next_multiple_of(16);
        let (resident, streamed) = kernel.tokens(x);
        // The registers of consumers bound slot rows, warpgroups and steps: accumulators grow with the head size,
        // scores with the rows of a slot or step.
        let max_head_dim = if kernel == HopperKernel::Forward { 128 } else { 96 };
        // One slot for all keys where it fits: on an H200, the forward kernel over 257 to 261 tokens takes 0.75 of the
        // time that it takes with two slots.
        let whole_rows = match kernel {
            HopperKernel::Forward | HopperKernel::Backward if padded_head_dim <= 64 => MAX_SLOT_ROWS,
            HopperKernel::Forward if padded_head_dim <= 80 => 272,
            _ => 0,
        };
        let max_rows = match padded_head_dim {
            _ if streamed <= whole_rows => whole_rows,
            _ if padded_head_dim <= max_head_dim => MAX_SLOT_ROWS_OF_THREE,
            _ => 128,
        };
        let several_slots = streamed > max_rows;
        // With several slots, the forward kernel has its accumulators in registers beside the scores of a whole slot.
        let wide = padded_head_dim > 64
            || (kernel == HopperKernel::Forward && several_slots)
            || (!several_slots && streamed > MAX_SLOT_ROWS_OF_THREE);
        let (rows, mut tiles, mut warpgroups, single) =
            slots_of(resident, streamed, max_rows, if wide { 2 } else { 3 });
        if kernel == HopperKernel::BackwardKeys {
            // The statistics of the queries have two stages, so warpgroups can be at most two units apart.
            warpgroups = warpgroups.min(2 * tiles);
        }
        // Less than half of the multiprocessors would have a unit: units of one tile make more.
        let few = x.batch * x.heads * resident.div_ceil(TILE * tiles) * 2 < multiprocessors;
        if few && kernel != HopperKernel::Backward && rows >= TILE {
            (tiles, warpgroups) = (1, 1);
        }
        let mut blocks_per_sm = 1;
        // Short rows leave registers and shared memory for two blocks, which hide each other's latency.
        if kernel == HopperKernel::Forward && single && rows <= 80 && padded_head_dim <= 64 && !few && warpgroups > 1 {
            (warpgroups, blocks_per_sm) = (2, 2);
        }
        let units = match kernel {
            HopperKernel::Backward => x.batch * x.heads,
            _ => x.batch * x.heads * resident.div_ceil(TILE).div_ceil(tiles),
        };
        let mut tiling = HopperTiling {
            kernel,
            head_dim: x.head_dim,
            rows,
            tiles,
            warpgroups,
            slots: 0,
            step_q: 0,
            step_k: 0,
            blocks_per_sm,
            registers: [0; 2],
            single,
            grid: units.min(multiprocessors * blocks_per_sm),
        };
        // As many as fit, at most 16.
        tiling.slots = ((tiling.shared_limit() - tiling.shared()) / (tiling.slot_bytes() + 16)).min(16);
        if single {
            // A warpgroup that skips units must not run more than one round of the slots ahead: it could not
            // distinguish two rounds by the parity of an mbarrier.
            tiling.warpgroups = warpgroups.min(kernel.items(tiles) * (tiling.slots / kernel.slots_per_unit()));
        }
        tiling.registers = kernel.registers(tiling.warpgroups, blocks_per_sm);
        tiling.step_q = match padded_head_dim {
            ..=64 if tiling.warpgroups < 3 => 64,
            ..=32 => 48,
            _ => 32,
        };
        tiling.step_k = if several_slots && tiling.warpgroups == 3 { 48 } else { 64 };
        tiling
    }

    fn shared_limit(&self) -> usize {
        match self.blocks_per_sm {
            1 => SHARED_OF_BLOCK,
            several => SHARED_OF_MULTIPROCESSOR / several - 1024,
        }
    }

    fn slot_bytes(&self) -> usize {
        self.rows * self.head_dim.next_multiple_of(16) * 2
    }

    /// Bytes of shared memory: the slots, aligned to 1024; what the last tile reads past its slot; two stages of two
    /// f32 statistics per row; two mbarriers of 8 bytes per slot, and those of the statistics.
    pub fn shared(&self) -> usize {
        let overread = (self.tiles * TILE).saturating_sub(self.rows) * box_columns(self.head_dim) * 2;
        1024 + self.slots * self.slot_bytes() + overread + 16 * self.rows + 16 * self.slots + 64
    }

    /// Rows of a box: a slot is filled by one, or by two.
    pub fn box_rows(&self) -> usize {
        self.rows / if self.rows > MAX_BOX_ROWS { 2 } else { 1 }
    }

    /// Threads of a block.
    pub fn threads(&self) -> usize {
        (self.warpgroups + 1) * 128
    }

    pub fn variant(&self) -> KernelVariant {
        let [consumer, producer] = self.registers;
        KernelVariant::new(self.kernel.source())
            .with("HEAD_DIM", self.head_dim)
            .with("ROWS", self.rows)
            .with("TILES", self.tiles)
            .with("WARPGROUPS", self.warpgroups)
            .with("SLOTS", self.slots)
            .with("STEP_Q", self.step_q)
            .with("STEP_K", self.step_k)
            .with("BLOCKS_PER_SM", self.blocks_per_sm)
            .with("CONSUMER_REGS", consumer)
            .with("PRODUCER_REGS", producer)
            .with("SINGLE", u8::from(self.single))
    }
}

/// For `resident` tokens in tiles and `streamed` tokens, at most `max_rows` of these in a slot: tokens of a slot, tiles
/// of a unit, warpgroups, and whether one slot holds all streamed tokens.
fn slots_of(resident: usize, streamed: usize, max_rows: usize, warpgroups: usize) -> (usize, usize, usize, bool) {
    if streamed <= max_rows {
        let rows = streamed.next_multiple_of(16);
        if resident <= rows {
            return (rows, resident.div_ceil(TILE), warpgroups, true);
        }
        if rows >= TILE {
            return (rows, rows / TILE, warpgroups, true);
        }
    }
    let least = if streamed > TILE { max_rows.min(128) } else { TILE };
    let rows = streamed.div_ceil(streamed.div_ceil(max_rows)).next_multiple_of(16).max(least);
    let tiles = warpgroups.min(rows / TILE);
    (rows, tiles, tiles, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The invariants of the kernels.
    fn check(kernel: HopperKernel, x: &Extents, multiprocessors: usize) {
        let p = HopperTiling::new(kernel, x, multiprocessors);
        let text = format!("{p:?} for {x:?}");
        assert!(
            p.rows.is_multiple_of(16)
                && p.rows <= MAX_SLOT_ROWS
                && p.box_rows() <= MAX_BOX_ROWS
                && p.tiles >= 1
                && p.tiles * 64 < p.rows + 64,
            "{text}"
        );
        assert!(p.shared() <= p.shared_limit() && p.shared() <= 227 << 10, "{text}");
        assert!((p.shared() + 1024) * p.blocks_per_sm <= SHARED_OF_MULTIPROCESSOR, "{text}");
        assert!(p.grid >= 1 && p.grid <= multiprocessors * p.blocks_per_sm, "{text}");

        // setmaxnreg, in steps of 8, redistributes the registers that the block was launched with.
        let share = (65536 / (p.threads() * p.blocks_per_sm) / 8 * 8).min(255);
        let [consumer, producer] = p.registers;
        assert!(p.warpgroups * consumer + producer <= share * (p.warpgroups + 1), "{text}");
        assert!(
            consumer.is_multiple_of(8) && producer.is_multiple_of(8) && (consumer == 0) == (producer == 0),
            "{text}"
        );

        let (resident, streamed) = kernel.tokens(x);
        let kept = if kernel == HopperKernel::Forward { 1 } else { 2 };
        if p.single {
            let (slots, items) = (kernel.slots_per_unit(), kernel.items(p.tiles));
            assert!(streamed <= p.rows && p.rows < streamed + 16, "{text}");
            assert!(p.slots >= slots, "{text}");
            assert!(p.warpgroups <= items || p.slots >= p.warpgroups.div_ceil(items) * slots, "{text}");
        } else {
            assert!(kernel != HopperKernel::Backward && p.warpgroups == p.tiles && p.slots >= kept + 2, "{text}");
        }
        match kernel {
            HopperKernel::Backward => assert!(p.single && resident <= p.tiles * 64, "{text}"),
            HopperKernel::BackwardKeys => assert!(p.warpgroups <= 2 * p.tiles, "{text}"),
            _ => {}
        }
    }

    #[test]
    fn every_length_has_a_valid_tiling() {
        let head_dims: Vec<usize> = (8..=128).step_by(8).collect();
        for tokens in 1..=4096 {
            for &head_dim in &head_dims {
                for batch in [1, 256] {
                    let x = Extents { batch, heads: 3, queries: tokens, keys: tokens, head_dim };
                    for kernel in [HopperKernel::Forward, HopperKernel::BackwardQueries, HopperKernel::BackwardKeys] {
                        check(kernel, &x, 132);
                    }
                    if tokens <= MAX_SLOT_ROWS && head_dim <= 64 {
                        check(HopperKernel::Backward, &x, 132);
                    }
                }
            }
        }
    }

    #[test]
    fn queries_and_keys_may_differ_in_number() {
        for queries in (1..=640).step_by(7) {
            for keys in (1..=640).step_by(5) {
                for head_dim in [8, 24, 64, 80, 96, 128] {
                    let x = Extents { batch: 40, heads: 4, queries, keys, head_dim };
                    for kernel in [HopperKernel::Forward, HopperKernel::BackwardQueries, HopperKernel::BackwardKeys] {
                        check(kernel, &x, 132);
                    }
                }
            }
        }
    }
}
