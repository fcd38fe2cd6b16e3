//! Attention in bf16 with mma.sync, with or without bias and dropout, for windows and small images of up to 256 tokens.
//! The algorithm is described in `kernels/mma/tiles.cu`.

use super::{AttentionCall, AttentionGradients, Emitter, Extents, MAX_HEAD_DIM, sum_bias_splits};
use crate::compile::{self, KernelSource, KernelVariant};
use crate::plan::storage::Storage;
use crate::run::arguments::{CStruct, KernelArguments};

/// The most tokens: the biases of a tile of queries and all keys, and the sums of their gradients, are in shared
/// memory.
const MAX_TOKENS: usize = 256;

/// The most shared memory of a block in bytes: on Hopper, and on every GPU since Ampere. A multiprocessor of Hopper has
/// 1024 bytes more for all its blocks, and the driver adds 1024 to each block.
const SHARED_OF_HOPPER: usize = 232_448;
const SHARED: usize = 101_376;

/// The most rows of a tile.
const TILE: usize = 64;

/// The kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MmaKernel {
    Forward,
    /// The whole gradient, for tokens of one tile.
    Backward,
    /// The gradients of queries and bias.
    BackwardQueries,
    /// The gradients of keys and values.
    BackwardKeys,
}

impl MmaKernel {
    fn source(self) -> &'static KernelSource {
        match self {
            MmaKernel::Forward => &compile::MMA_FORWARD,
            MmaKernel::Backward => &compile::MMA_BACKWARD,
            MmaKernel::BackwardQueries => &compile::MMA_BACKWARD_QUERIES,
            MmaKernel::BackwardKeys => &compile::MMA_BACKWARD_KEYS,
        }
    }

    fn name(self) -> &'static str {
        match self {
            MmaKernel::Forward => "attention_forward",
            MmaKernel::Backward => "attention_backward",
            MmaKernel::BackwardQueries => "attention_backward_queries",
            MmaKernel::BackwardKeys => "attention_backward_keys",
        }
    }
}

/// The macros that a kernel is compiled with.
#[derive(Debug, Clone, Copy)]
struct MmaShape {
    queries: usize,
    keys: usize,
    head_dim: usize,
    bias: Option<Storage>,
    bias_gradient: bool,
    dropout: bool,
}

impl MmaShape {
    fn new(call: &AttentionCall, bias_gradient: bool) -> MmaShape {
        let Extents { queries, keys, head_dim, .. } = call.extents;
        let bias = call.bias.as_ref().map(|b| b.storage);
        MmaShape { queries, keys, head_dim, bias, bias_gradient, dropout: call.op.dropout.is_some() }
    }

    fn variant(&self, kernel: MmaKernel) -> KernelVariant {
        KernelVariant::new(kernel.source())
            .with("HEAD_DIM", self.head_dim)
            .with("QUERIES", self.queries)
            .with("KEYS", self.keys)
            .with("B", self.bias.unwrap_or(Storage::F32).name())
            .with("BIAS", u8::from(self.bias.is_some()))
            .with("DBIAS", u8::from(self.bias_gradient))
            .with("DROPOUT", u8::from(self.dropout))
    }

    /// Tokens of the resident and of the streamed operand.
    fn tokens(&self, kernel: MmaKernel) -> (usize, usize) {
        if kernel == MmaKernel::BackwardKeys { (self.keys, self.queries) } else { (self.queries, self.keys) }
    }

    /// The kernels of the gradient.
    fn backward(&self) -> &'static [MmaKernel] {
        if self.queries <= TILE && self.keys <= TILE {
            &[MmaKernel::Backward]
        } else {
            &[MmaKernel::BackwardQueries, MmaKernel::BackwardKeys]
        }
    }

    /// Bytes of shared memory: two pipeline stages of rows, in `Backward` weights and gradients of scores, in
    /// `BackwardKeys` statistics, then sums of the bias's gradient and the bias.
    fn shared(&self, kernel: MmaKernel) -> usize {
        let pitch = self.head_dim.next_multiple_of(16) * 2 + 16;
        let (resident, streamed) = self.tokens(kernel);
        // Scores are `[resident_rows, n]`; as an operand of the next product, `n` is padded to 16.
        let (resident_rows, n) = (rows(resident, 16), rows(streamed, 8));
        let streamed_rows = n.next_multiple_of(16);
        let scores = (resident_rows * n).max(if kernel == MmaKernel::Backward { streamed_rows * n } else { 0 })
            * tiles(streamed);
        let stages = match kernel {
            MmaKernel::Forward => 2 * (resident_rows + 2 * streamed_rows) * pitch,
            MmaKernel::Backward => {
                4 * (resident_rows + streamed_rows) * pitch + 2 * resident_rows * (2 * streamed_rows + 16)
            }
            MmaKernel::BackwardQueries => 4 * (resident_rows + streamed_rows) * pitch,
            MmaKernel::BackwardKeys => 4 * (resident_rows + streamed_rows) * pitch + 16 * streamed_rows,
        };
        let sums = if kernel == MmaKernel::BackwardQueries && self.bias_gradient { 4 * scores } else { 0 };
        stages + sums + self.bias.map_or(0, |storage| storage.bytes() * scores)
    }

    /// An estimate of a thread's registers: the scores of its rows, their gradients, and its rows of the results.
    fn registers(&self, kernel: MmaKernel) -> usize {
        let n = rows(self.tokens(kernel).1, 8);
        let padded_head_dim = self.head_dim.next_multiple_of(16);
        let several = 40 * usize::from(tiles(self.tokens(kernel).1) > 1);
        let registers = match kernel {
            MmaKernel::Forward => 20 + n / 2 + padded_head_dim / 2 + several,
            MmaKernel::Backward => 20 + 3 * n / 2 + padded_head_dim,
            MmaKernel::BackwardQueries => 24 + n + 7 * padded_head_dim / 4,
            MmaKernel::BackwardKeys => 24 + n + 5 * padded_head_dim / 2,
        };
        registers.next_multiple_of(8).min(255)
    }

    /// A warp for 16 rows of the resident operand, and in `Backward` of either.
    fn threads(&self, kernel: MmaKernel) -> usize {
        let (resident, streamed) = self.tokens(kernel);
        2 * if kernel == MmaKernel::Backward { rows(resident, 16).max(rows(streamed, 16)) } else { rows(resident, 16) }
    }
}

fn tiles(tokens: usize) -> usize {
    tokens.div_ceil(TILE)
}

/// Rows of a tile, padded to a multiple of `step`: tokens are divided evenly among tiles.
fn rows(tokens: usize, step: usize) -> usize {
    tokens.div_ceil(tiles(tokens)).next_multiple_of(step)
}

/// Whether the kernels support this: bf16 operands in rows of multiples of 16 bytes, up to 256 tokens, as far as they
/// fit a block's shared memory.
pub(super) fn supports(call: &AttentionCall, e: &Emitter) -> bool {
    let x = &call.extents;
    if call.storage != Storage::Bf16
        || !x.head_dim.is_multiple_of(8)
        || x.head_dim > MAX_HEAD_DIM
        || !(1..=MAX_TOKENS).contains(&x.queries)
        || !(1..=MAX_TOKENS).contains(&x.keys)
    {
        return false;
    }
    let shape = MmaShape::new(call, call.bias.is_some());
    let limit = if e.hopper { SHARED_OF_HOPPER } else { SHARED };
    shape.backward().iter().chain(&[MmaKernel::Forward]).all(|&kernel| shape.shared(kernel) <= limit)
}

/// The samples of a group divided among blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SampleSplits {
    samples_per_split: usize,
    splits: usize,
}

/// A block's prologue and epilogue, an estimate in the time of a sample.
const SETUP: usize = 1;

/// The splits with the shortest estimated time, if waves have as many blocks as are resident at a time on Hopper.
fn split_samples(
    shape: &MmaShape,
    kernel: MmaKernel,
    x: &Extents,
    groups: usize,
    multiprocessors: usize,
) -> SampleSplits {
    let by_registers = 65536 / (shape.registers(kernel) * shape.threads(kernel));
    let by_memory = (SHARED_OF_HOPPER + 1024) / (shape.shared(kernel) + 1024);
    let resident = multiprocessors * by_registers.min(by_memory).max(1);
    let (samples, blocks_per_split) = (x.batch / groups, x.heads * groups * tiles(shape.tokens(kernel).0));
    let max_splits = samples.min((4 * resident).div_ceil(blocks_per_split));
    let candidates = (1..=max_splits).map(|splits| samples.div_ceil(splits)).map(|samples_per_split| {
        let splits = samples.div_ceil(samples_per_split);
        (
            (blocks_per_split * splits).div_ceil(resident) * (samples_per_split + SETUP),
            SampleSplits { samples_per_split, splits },
        )
    });
    candidates
        .min_by_key(|(time, _)| *time)
        .map_or(SampleSplits { samples_per_split: samples, splits: 1 }, |(_, splits)| splits)
}

fn push(
    call: &AttentionCall,
    shape: &MmaShape,
    kernel: MmaKernel,
    gradient_stride: usize,
    operands: KernelArguments,
    e: &mut Emitter,
) {
    let x = &call.extents;
    let SampleSplits { samples_per_split, splits } = split_samples(shape, kernel, x, call.groups, e.multiprocessors);
    let fields = CStruct::new()
        .u32s(&[x.heads, call.groups, x.batch, samples_per_split])
        .f32(call.op.scale)
        .u64s(&call.strides)
        .u64(x.width() as u64)
        .u64s(&[gradient_stride; 3]);
    let blocks = x.heads * tiles(shape.tokens(kernel).0) * call.groups * splits;
    let arguments = operands.fields(fields).fields(call.mask());
    e.kernel(
        shape.variant(kernel),
        kernel.name(),
        [blocks, 1, 1],
        shape.threads(kernel),
        shape.shared(kernel),
        arguments,
    );
}

pub(super) fn forward(call: &AttentionCall, out: u64, lse: u64, e: &mut Emitter) {
    let shape = MmaShape::new(call, false);
    let operands = KernelArguments::new().pointers(&call.operands).pointers(&[call.bias(), call.seed, out, lse]);
    push(call, &shape, MmaKernel::Forward, 0, operands, e);
}

/// The gradients of query, key, value and, if it has consumers, bias.
pub(super) fn backward(call: &AttentionCall, g: &AttentionGradients, e: &mut Emitter) {
    let x = &call.extents;
    let shape = MmaShape::new(call, g.dbias.is_some());
    let kernels = shape.backward();
    let [dq, dk, dv] = g.results;
    let common = KernelArguments::new().pointers(&call.operands).pointers(&[call.bias(), call.seed]);
    let SampleSplits { splits, .. } = split_samples(&shape, kernels[0], x, call.groups, e.multiprocessors);
    let count = g.dbias.as_ref().map_or(0, |b| b.shape.elements());
    let partials = if count > 0 { e.scratch(4 * splits * count) } else { 0 };
    if kernels == [MmaKernel::Backward] {
        push(call, &shape, MmaKernel::Backward, g.stride, common.pointers(&[g.dy, g.lse, dq, dk, dv, partials]), e);
    } else {
        let delta = e.scratch(4 * x.score_rows());
        let queries = common.clone().pointers(&[g.out, g.dy, g.lse, delta, dq, partials]);
        push(call, &shape, MmaKernel::BackwardQueries, g.stride, queries, e);
        push(call, &shape, MmaKernel::BackwardKeys, g.stride, common.pointers(&[g.dy, g.lse, delta, dk, dv]), e);
    }
    if let Some(dbias) = &g.dbias {
        sum_bias_splits(partials, splits, dbias, e);
    }
}

/// Variants for shapes of every kind, for the test that compiles them.
pub(crate) fn mma_variants() -> Vec<KernelVariant> {
    let (f32, bf16) = (Some(Storage::F32), Some(Storage::Bf16));
    let shapes = [
        (49, 49, 32, bf16, true, false),
        (64, 64, 64, f32, true, true),
        (196, 196, 32, bf16, true, false),
        (144, 144, 128, f32, false, false),
        (7, 50, 24, None, false, true),
        (1, 256, 8, f32, true, true),
    ];
    let variants = shapes.into_iter().flat_map(|(queries, keys, head_dim, bias, bias_gradient, dropout)| {
        let shape = MmaShape { queries, keys, head_dim, bias, bias_gradient, dropout };
        shape
            .backward()
            .iter()
            .chain(&[MmaKernel::Forward])
            .map(move |&kernel| shape.variant(kernel))
            .collect::<Vec<_>>()
    });
    variants.collect()
}

#[cfg(test)]
mod tests {
    use vit_models::{Mode, variant};
    use vit_train::{Optimiser, TrainingStep};

    use super::*;
    use crate::Precision;
    use crate::plan::prepare::{LoweringTarget, Prepared};
    use crate::run::launch::Request;

    #[test]
    fn attention_in_windows_runs_on_tensor_cores() {
        for model in ["swin_tiny_patch4_window7_224", "coatnet_0_rw_224"] {
            let architecture = variant(model).unwrap().architecture;
            let step = TrainingStep::new(&architecture, 2, Optimiser::default()).unwrap();
            let target = LoweringTarget { precision: Precision::Bf16, multiprocessors: 132, hopper: true };
            let prepared = Prepared::new(step.graph, target).unwrap();
            let operations: Vec<String> = (0..prepared.graph.nodes().len())
                .filter_map(|id| prepared.emit(id, None).unwrap().map(|emitter| prepared.info(id, &emitter).op))
                .filter(|op| op.starts_with("attention"))
                .collect();
            assert!(!operations.is_empty() && operations.iter().all(|op| op.ends_with("+mma")), "{operations:?}");
        }
    }

    #[test]
    fn fp8_results_are_quantised_afterwards() {
        let mut graph = variant("vit_tiny_patch16_224").unwrap().architecture.build(2, Mode::Inference).unwrap();
        graph.retain_outputs(|name| name == "logits");
        let graph = crate::device::rewritten(&graph).unwrap();
        let kernels = |precision: Precision, source: &KernelSource| {
            let target = LoweringTarget { precision, multiprocessors: 132, hopper: false };
            let prepared = Prepared::new(graph.clone(), target).unwrap();
            let emitters = (0..prepared.graph.nodes().len()).filter_map(|id| prepared.emit(id, None).unwrap());
            let found =
                |request: &Request| matches!(request, Request::Kernel(k) if k.variant.source.name == source.name);
            emitters
                .filter(|e| e.requests.iter().any(|r| matches!(r, Request::Kernel(k) if k.name == "attention_forward")))
                .filter(|e| e.requests.iter().any(found))
                .count()
        };
        let [mma, fp8] = [&compile::MMA_FORWARD, &compile::FP8];
        // The last block has separate layers for queries, keys and values, which are not in fp8.
        assert_eq!((kernels(Precision::Fp8, mma), kernels(Precision::Fp8, fp8)), (12, 11));
        assert_eq!((kernels(Precision::Bf16, mma), kernels(Precision::Bf16, fp8)), (12, 0));
        assert_eq!((kernels(Precision::F16, mma), kernels(Precision::F16, &compile::ATTENTION)), (0, 12));
    }

    #[test]
    fn every_length_fits_into_the_shared_memory_of_hopper() {
        for tokens in 1..=MAX_TOKENS {
            for head_dim in [8, 24, 32, 64] {
                let bias = Some(Storage::F32);
                let shape =
                    MmaShape { queries: tokens, keys: tokens, head_dim, bias, bias_gradient: true, dropout: false };
                for &kernel in shape.backward().iter().chain(&[MmaKernel::Forward]) {
                    assert!(
                        shape.shared(kernel) <= SHARED_OF_HOPPER,
                        "{kernel:?} of {shape:?}: {}",
                        shape.shared(kernel)
                    );
                }
            }
        }
    }

    #[test]
    fn every_sample_belongs_to_one_split() {
        let shape = MmaShape { queries: 49, keys: 49, head_dim: 32, bias: None, bias_gradient: false, dropout: false };
        for (batch, groups) in [(8192, 64), (8192, 1), (1, 1), (64, 64), (384, 3), (7, 1)] {
            for kernel in [MmaKernel::Forward, MmaKernel::Backward] {
                let x = Extents { batch, heads: 3, queries: 49, keys: 49, head_dim: 32 };
                let SampleSplits { samples_per_split, splits } = split_samples(&shape, kernel, &x, groups, 132);
                let samples = batch / groups;
                assert!(
                    samples_per_split * splits >= samples && samples_per_split * (splits - 1) < samples,
                    "{batch} in {groups}: {samples_per_split}"
                );
            }
        }
    }
}
