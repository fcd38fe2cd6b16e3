//! Attention in bf16 with bias and dropout by the tensor cores of every GPU since Ampere: for windows and small images, whose
//! tokens are few. What a block does is described in `kernels/mma/tiles.cu`.

use super::{AttentionCall, AttentionGradients, Emitter, Extents, LARGEST_HEAD, add_shares};
use crate::compile::{self, KernelSource, KernelVariant};
use crate::plan::storage::Storage;
use crate::run::arguments::{CStruct, KernelArguments};

/// The most tokens: biases of a tile and all others, and the sums of their gradients, have to fit into shared memory.
const MOST_TOKENS: usize = 256;

/// Bytes of shared memory that a block may have on Hopper, and on every GPU since Ampere; a multiprocessor has a little
/// more than the first for all its blocks, each of which takes 1024 more than it asks for.
const SHARED_OF_HOPPER: usize = 232_448;
const SHARED: usize = 101_376;

/// The most rows of a tile.
const TILE: usize = 64;

/// The kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MmaKernel {
    Forward,
    /// The whole gradient where all tokens are one tile.
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

/// What a kernel is compiled for.
#[derive(Debug, Clone, Copy)]
struct MmaShape {
    queries: usize,
    keys: usize,
    head: usize,
    bias: Option<Storage>,
    bias_gradient: bool,
    dropout: bool,
}

impl MmaShape {
    fn new(job: &AttentionCall, bias_gradient: bool) -> MmaShape {
        let Extents { queries, keys, head, .. } = job.extents;
        let bias = job.bias.as_ref().map(|b| b.storage);
        MmaShape { queries, keys, head, bias, bias_gradient, dropout: job.op.dropout.is_some() }
    }

    fn variant(&self, which: MmaKernel) -> KernelVariant {
        KernelVariant::new(which.source())
            .with("HEAD", self.head)
            .with("QUERIES", self.queries)
            .with("KEYS", self.keys)
            .with("B", self.bias.unwrap_or(Storage::F32).name())
            .with("BIAS", u8::from(self.bias.is_some()))
            .with("DBIAS", u8::from(self.bias_gradient))
            .with("DROPOUT", u8::from(self.dropout))
    }

    /// The tokens that a block has of its own, and those that pass by.
    fn tokens(&self, which: MmaKernel) -> (usize, usize) {
        if which == MmaKernel::BackwardKeys { (self.keys, self.queries) } else { (self.queries, self.keys) }
    }

    /// The kernels that the gradient takes.
    fn backward(&self) -> &'static [MmaKernel] {
        if self.queries <= TILE && self.keys <= TILE {
            &[MmaKernel::Backward]
        } else {
            &[MmaKernel::BackwardQueries, MmaKernel::BackwardKeys]
        }
    }

    /// Bytes of shared memory, as the kernels divide it.
    fn shared(&self, which: MmaKernel) -> usize {
        let pitch = self.head.next_multiple_of(16) * 2 + 16;
        let (own, passing) = self.tokens(which);
        let (own_rows, n) = (rows(own, 16), rows(passing, 8));
        let passing_rows = n.next_multiple_of(16);
        let scores =
            (own_rows * n).max(if which == MmaKernel::Backward { passing_rows * n } else { 0 }) * tiles(passing);
        let stages = match which {
            MmaKernel::Forward => 2 * (own_rows + 2 * passing_rows) * pitch,
            MmaKernel::Backward => 4 * (own_rows + passing_rows) * pitch + 2 * own_rows * (2 * passing_rows + 16),
            MmaKernel::BackwardQueries => 4 * (own_rows + passing_rows) * pitch,
            MmaKernel::BackwardKeys => 4 * (own_rows + passing_rows) * pitch + 16 * passing_rows,
        };
        let sums = if which == MmaKernel::BackwardQueries && self.bias_gradient { 4 * scores } else { 0 };
        stages + sums + self.bias.map_or(0, |storage| storage.bytes() * scores)
    }

    /// Registers of a thread, about: the scores of its rows, their gradients, and its rows of the results.
    fn registers(&self, which: MmaKernel) -> usize {
        let n = rows(self.tokens(which).1, 8);
        let head = self.head.next_multiple_of(16);
        let several = 40 * usize::from(tiles(self.tokens(which).1) > 1);
        let most = match which {
            MmaKernel::Forward => 20 + n / 2 + head / 2 + several,
            MmaKernel::Backward => 20 + 3 * n / 2 + head,
            MmaKernel::BackwardQueries => 24 + n + 7 * head / 4,
            MmaKernel::BackwardKeys => 24 + n + 5 * head / 2,
        };
        most.next_multiple_of(8).min(255)
    }

    fn threads(&self, which: MmaKernel) -> usize {
        let (own, passing) = self.tokens(which);
        2 * if which == MmaKernel::Backward { rows(own, 16).max(rows(passing, 16)) } else { rows(own, 16) }
    }
}

fn tiles(tokens: usize) -> usize {
    tokens.div_ceil(TILE)
}

/// Tokens of a tile, in steps of so many.
fn rows(tokens: usize, step: usize) -> usize {
    tokens.div_ceil(tiles(tokens)).next_multiple_of(step)
}

/// Whether the kernels can do this: bf16 operands in rows of whole 16 bytes, up to 256 of them.
pub(super) fn takes(job: &AttentionCall, e: &Emitter) -> bool {
    let x = &job.extents;
    if job.storage != Storage::Bf16
        || !x.head.is_multiple_of(8)
        || x.head > LARGEST_HEAD
        || !(1..=MOST_TOKENS).contains(&x.queries)
        || !(1..=MOST_TOKENS).contains(&x.keys)
    {
        return false;
    }
    let kind = MmaShape::new(job, job.bias.is_some());
    let limit = if e.hopper { SHARED_OF_HOPPER } else { SHARED };
    kind.backward().iter().chain(&[MmaKernel::Forward]).all(|&which| kind.shared(which) <= limit)
}

/// How the samples of a group are divided among blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SampleShares {
    /// Samples of a block.
    share: usize,
    shares: usize,
}

/// What a block does before its first sample and after its last, in samples.
const SETUP: usize = 1;

/// The division that is done first, if blocks run in waves of as many as fit onto the GPU at once.
fn divide(kind: &MmaShape, which: MmaKernel, x: &Extents, groups: usize, multiprocessors: usize) -> SampleShares {
    let by_registers = 65536 / (kind.registers(which) * kind.threads(which));
    let by_memory = (SHARED_OF_HOPPER + 1024) / (kind.shared(which) + 1024);
    let at_once = multiprocessors * by_registers.min(by_memory).max(1);
    let (samples, others) = (x.batch / groups, x.heads * groups * tiles(kind.tokens(which).0));
    let most = samples.min((4 * at_once).div_ceil(others));
    let divisions = (1..=most).map(|shares| samples.div_ceil(shares)).map(|share| {
        let shares = samples.div_ceil(share);
        ((others * shares).div_ceil(at_once) * (share + SETUP), SampleShares { share, shares })
    });
    divisions.min_by_key(|(time, _)| *time).map_or(SampleShares { share: samples, shares: 1 }, |(_, division)| division)
}

fn push(
    job: &AttentionCall,
    kind: &MmaShape,
    which: MmaKernel,
    row: usize,
    operands: KernelArguments,
    e: &mut Emitter,
) {
    let x = &job.extents;
    let SampleShares { share, shares } = divide(kind, which, x, job.groups, e.multiprocessors);
    let shape = CStruct::new()
        .u32s(&[x.heads, job.groups, x.batch, share])
        .f32(job.op.scale)
        .u64s(&job.rows)
        .u64(x.width() as u64)
        .u64s(&[row; 3]);
    let blocks = x.heads * tiles(kind.tokens(which).0) * job.groups * shares;
    let arguments = operands.fields(shape).fields(job.mask());
    e.kernel(kind.variant(which), which.name(), [blocks, 1, 1], kind.threads(which), kind.shared(which), arguments);
}

pub(super) fn forward(job: &AttentionCall, out: u64, lse: u64, e: &mut Emitter) {
    let kind = MmaShape::new(job, false);
    let operands = KernelArguments::new().pointers(&job.operands).pointers(&[job.bias(), job.seed, out, lse]);
    push(job, &kind, MmaKernel::Forward, 0, operands, e);
}

/// The gradients of query, key, value and, if it is wanted, bias.
pub(super) fn backward(job: &AttentionCall, g: &AttentionGradients, e: &mut Emitter) {
    let x = &job.extents;
    let kind = MmaShape::new(job, g.bias.is_some());
    let kernels = kind.backward();
    let [dq, dk, dv] = g.results;
    let common = KernelArguments::new().pointers(&job.operands).pointers(&[job.bias(), job.seed]);
    let SampleShares { shares, .. } = divide(&kind, kernels[0], x, job.groups, e.multiprocessors);
    let count = g.bias.as_ref().map_or(0, |b| b.shape.elements());
    let partial = if count > 0 { e.scratch(4 * shares * count) } else { 0 };
    if kernels == [MmaKernel::Backward] {
        push(job, &kind, MmaKernel::Backward, g.row, common.pointers(&[g.dy, g.lse, dq, dk, dv, partial]), e);
    } else {
        let delta = e.scratch(4 * x.score_rows());
        let queries = common.clone().pointers(&[g.out, g.dy, g.lse, delta, dq, partial]);
        push(job, &kind, MmaKernel::BackwardQueries, g.row, queries, e);
        push(job, &kind, MmaKernel::BackwardKeys, g.row, common.pointers(&[g.dy, g.lse, delta, dk, dv]), e);
    }
    if let Some(bias) = &g.bias {
        add_shares(partial, shares, bias, e);
    }
}

/// What is compiled for shapes of every kind, to see that it can be.
pub(crate) fn mma_variants() -> Vec<KernelVariant> {
    let (f32, bf16) = (Some(Storage::F32), Some(Storage::Bf16));
    let kinds = [
        (49, 49, 32, bf16, true, false),
        (64, 64, 64, f32, true, true),
        (196, 196, 32, bf16, true, false),
        (144, 144, 128, f32, false, false),
        (7, 50, 24, None, false, true),
        (1, 256, 8, f32, true, true),
    ];
    let variants = kinds.into_iter().flat_map(|(queries, keys, head, bias, bias_gradient, dropout)| {
        let kind = MmaShape { queries, keys, head, bias, bias_gradient, dropout };
        kind.backward().iter().chain(&[MmaKernel::Forward]).map(move |&which| kind.variant(which)).collect::<Vec<_>>()
    });
    variants.collect()
}

#[cfg(test)]
mod tests {
    use vit_models::{Mode, variant};
    use vit_train::{Optimiser, TrainingStep};

    use super::*;
    use crate::Precision;
    use crate::plan::prepare::{Prepared, Profile};
    use crate::run::launch::Request;

    #[test]
    fn windows_are_attended_to_by_tensor_cores() {
        for model in ["swin_tiny_patch4_window7_224", "coatnet_0_rw_224"] {
            let architecture = variant(model).unwrap().architecture;
            let step = TrainingStep::new(&architecture, 2, Optimiser::default()).unwrap();
            let profile = Profile { precision: Precision::Bf16, multiprocessors: 132, hopper: true };
            let prepared = Prepared::new(step.graph, profile).unwrap();
            let operations: Vec<String> = (0..prepared.graph.nodes().len())
                .filter_map(|id| prepared.emit(id, None).unwrap().map(|emitter| prepared.info(id, &emitter).op))
                .filter(|op| op.starts_with("attention"))
                .collect();
            assert!(!operations.is_empty() && operations.iter().all(|op| op.ends_with("+mma")), "{operations:?}");
        }
    }

    #[test]
    fn results_in_eight_bits_are_quantised_afterwards() {
        let mut graph = variant("vit_tiny_patch16_224").unwrap().architecture.build(2, Mode::Inference).unwrap();
        graph.retain_outputs(|name| name == "logits");
        let graph = crate::device::rewritten(&graph).unwrap();
        let kernels = |precision: Precision, source: &KernelSource| {
            let profile = Profile { precision, multiprocessors: 132, hopper: false };
            let prepared = Prepared::new(graph.clone(), profile).unwrap();
            let emitters = (0..prepared.graph.nodes().len()).filter_map(|id| prepared.emit(id, None).unwrap());
            let found =
                |request: &Request| matches!(request, Request::Kernel(k) if k.variant.source.name == source.name);
            emitters
                .filter(|e| e.requests.iter().any(|r| matches!(r, Request::Kernel(k) if k.name == "attention_forward")))
                .filter(|e| e.requests.iter().any(found))
                .count()
        };
        let [mma, eight] = [&compile::MMA_FORWARD, &compile::FP8];
        // The last block cuts its weights for queries, keys and values apart; such layers are not in eight bits.
        assert_eq!((kernels(Precision::Fp8, mma), kernels(Precision::Fp8, eight)), (12, 11));
        assert_eq!((kernels(Precision::Bf16, mma), kernels(Precision::Bf16, eight)), (12, 0));
        assert_eq!((kernels(Precision::F16, mma), kernels(Precision::F16, &compile::ATTENTION)), (0, 12));
    }

    #[test]
    fn every_length_fits_into_the_shared_memory_of_hopper() {
        for tokens in 1..=MOST_TOKENS {
            for head in [8, 24, 32, 64] {
                let bias = Some(Storage::F32);
                let kind = MmaShape { queries: tokens, keys: tokens, head, bias, bias_gradient: true, dropout: false };
                for &which in kind.backward().iter().chain(&[MmaKernel::Forward]) {
                    assert!(kind.shared(which) <= SHARED_OF_HOPPER, "{which:?} of {kind:?}: {}", kind.shared(which));
                }
            }
        }
    }

    #[test]
    fn every_sample_belongs_to_one_share() {
        let kind = MmaShape { queries: 49, keys: 49, head: 32, bias: None, bias_gradient: false, dropout: false };
        for (batch, groups) in [(8192, 64), (8192, 1), (1, 1), (64, 64), (384, 3), (7, 1)] {
            for which in [MmaKernel::Forward, MmaKernel::Backward] {
                let x = Extents { batch, heads: 3, queries: 49, keys: 49, head: 32 };
                let SampleShares { share, shares } = divide(&kind, which, &x, groups, 132);
                let samples = batch / groups;
                assert!(share * shares >= samples && share * (shares - 1) < samples, "{batch} in {groups}: {share}");
            }
        }
    }
}
