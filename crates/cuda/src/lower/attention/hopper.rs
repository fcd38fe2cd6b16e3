//! Attention in 16 bits with wgmma and TMA on Hopper.

use super::tiling::{HopperKernel, HopperTiling, MAX_SLOT_ROWS};
use super::{AttentionCall, AttentionGradients, Emitter, Extents, MAX_HEAD_DIM, Operand};
use crate::compile::KernelVariant;
use crate::plan::storage::Storage;
use crate::run::arguments::KernelArguments;
use crate::run::launch::{KernelLaunch, Request};
use crate::run::tensor_map::TensorMap;

/// Whether the kernels support this: 16-bit operands in rows of multiples of 16 bytes, without bias and dropout.
pub(super) fn supports(call: &AttentionCall, e: &Emitter) -> bool {
    let x = &call.extents;
    e.hopper
        && matches!(call.storage, Storage::Bf16 | Storage::F16)
        && call.bias.is_none()
        && call.op.dropout.is_none()
        // The kernel takes the maximum of the scores before scaling.
        && call.op.scale > 0.0
        && x.head_dim.is_multiple_of(8)
        && x.head_dim <= MAX_HEAD_DIM
        && x.keys > 0
}

impl AttentionCall {
    /// The tensor maps of query, key and value, with boxes of `rows` tokens.
    fn maps(&self, rows: usize) -> Vec<TensorMap> {
        let tokens = [self.extents.queries, self.extents.keys, self.extents.keys];
        let map = |i: usize| self.map(self.operands[i], tokens[i], self.strides[i], rows);
        vec![map(0), map(1), map(2)]
    }

    fn map(&self, address: u64, tokens: usize, stride: usize, rows: usize) -> TensorMap {
        let Extents { batch, heads, head_dim, .. } = self.extents;
        TensorMap { address, batch, tokens, heads, head_dim, token_stride: stride, rows }
    }

    fn with_sizes(&self, arguments: KernelArguments) -> KernelArguments {
        let x = &self.extents;
        arguments.u32(x.batch).u32(x.heads).u32(x.queries).u32(x.keys).f32(self.op.scale)
    }
}

fn push(
    e: &mut Emitter,
    kernel: HopperKernel,
    tiling: &HopperTiling,
    maps: Vec<TensorMap>,
    arguments: KernelArguments,
) {
    push_variant(e, kernel, tiling, tiling.variant(), maps, arguments);
}

fn push_variant(
    e: &mut Emitter,
    kernel: HopperKernel,
    tiling: &HopperTiling,
    variant: KernelVariant,
    maps: Vec<TensorMap>,
    arguments: KernelArguments,
) {
    e.requests.push(Request::Kernel(KernelLaunch {
        variant,
        name: kernel.name(),
        grid: [tiling.grid, 1, 1],
        threads: tiling.threads(),
        shared: tiling.shared(),
        maps,
        arguments,
    }));
}

/// Writes the result to `address` in the storage type of `out`, and the log-sum-exp of rows to `lse` unless that is 0.
pub(super) fn forward(call: &AttentionCall, address: u64, out: &Operand, lse: u64, e: &mut Emitter) {
    let tiling = HopperTiling::new(HopperKernel::Forward, &call.extents, e.multiprocessors);
    let scale = if out.storage == Storage::E4m3 { out.scales } else { 0 };
    let arguments = call.with_sizes(KernelArguments::new().pointers(&[address, lse, scale]));
    let variant = tiling.variant().with("ELEMENT", call.storage.name()).with("OUT", out.storage.name());
    push_variant(e, HopperKernel::Forward, &tiling, variant, call.maps(tiling.box_rows()), arguments);
}

/// The gradients of query, key and value.
pub(super) fn backward(call: &AttentionCall, g: &AttentionGradients, e: &mut Emitter) {
    let x = &call.extents;
    let [dq, dk, dv] = g.results;
    let with_dy = |rows: usize| {
        let mut maps = call.maps(rows);
        maps.push(call.map(g.dy, x.queries, x.width(), rows));
        maps
    };
    if whole_heads(x, e.multiprocessors) {
        let tiling = HopperTiling::new(HopperKernel::Backward, x, e.multiprocessors);
        let arguments = KernelArguments::new()
            .pointers(&[g.out, g.dy, g.lse, dq, dk, dv])
            .u64(g.stride)
            .u64(g.stride)
            .u32(x.batch)
            .u32(x.heads)
            .u32(x.queries)
            .f32(call.op.scale);
        return push(e, HopperKernel::Backward, &tiling, with_dy(tiling.box_rows()), arguments);
    }
    let delta = e.scratch(4 * x.score_rows());
    let tiling = HopperTiling::new(HopperKernel::BackwardQueries, x, e.multiprocessors);
    let arguments = call.with_sizes(KernelArguments::new().pointers(&[g.out, g.dy, g.lse, delta, dq]).u64(g.stride));
    push(e, HopperKernel::BackwardQueries, &tiling, with_dy(tiling.box_rows()), arguments);
    let tiling = HopperTiling::new(HopperKernel::BackwardKeys, x, e.multiprocessors);
    let arguments = call.with_sizes(KernelArguments::new().pointers(&[g.lse, delta, dk, dv]).u64(g.stride));
    push(e, HopperKernel::BackwardKeys, &tiling, with_dy(tiling.box_rows()), arguments);
}

/// Whether one kernel over whole heads is faster than two over tiles: the one reads everything once, but needs a head
/// for every multiprocessor. On an H200, over 261 tokens with heads of 64, the two took 1.54 times as long as the one;
/// with heads of at most 32 they were faster. Above 64, the tilings of the one are not tested.
fn whole_heads(x: &Extents, multiprocessors: usize) -> bool {
    x.queries == x.keys
        && x.keys <= MAX_SLOT_ROWS
        && (33..=64).contains(&x.head_dim)
        && x.batch * x.heads >= multiprocessors
}

/// Variants for shapes of every kind, for the test that compiles them.
pub(crate) fn hopper_variants() -> Vec<KernelVariant> {
    let shapes = [
        (256, 197, 197, 64),
        (1, 197, 197, 64),
        (70, 65, 65, 32),
        (40, 50, 50, 64),
        (128, 261, 261, 64),
        (1, 261, 261, 64),
        (64, 320, 320, 48),
        (64, 209, 209, 40),
        (2, 577, 577, 64),
        (2, 5, 5, 24),
        (1, 1, 1, 8),
        (64, 257, 257, 80),
        (64, 197, 197, 96),
        (2, 1025, 1025, 128),
        (40, 300, 40, 48),
    ];
    let mut variants = Vec::new();
    for (batch, queries, keys, head_dim) in shapes {
        let x = Extents { batch, heads: 12, queries, keys, head_dim };
        variants.extend(
            [HopperKernel::Forward, HopperKernel::BackwardQueries, HopperKernel::BackwardKeys]
                .map(|kernel| HopperTiling::new(kernel, &x, 132).variant()),
        );
        if whole_heads(&x, 132) {
            variants.push(HopperTiling::new(HopperKernel::Backward, &x, 132).variant());
        }
    }
    let x = Extents { batch: 256, heads: 12, queries: 197, keys: 197, head_dim: 64 };
    let forward = || HopperTiling::new(HopperKernel::Forward, &x, 132).variant();
    variants.push(forward().with("ELEMENT", "f16").with("OUT", "f16"));
    variants.push(forward().with("ELEMENT", "bf16").with("OUT", "e4m3"));
    variants
}

#[cfg(test)]
mod tests {
    use vit_models::variant;
    use vit_train::{Optimiser, TrainingStep};

    use crate::Precision;
    use crate::plan::prepare::{LoweringTarget, Prepared};

    /// How many attentions and gradients of attentions a training step has, and how many of these use wgmma.
    fn attentions(precision: Precision, hopper: bool) -> (usize, usize) {
        let architecture = variant("vit_tiny_patch16_224").unwrap().architecture;
        let step = TrainingStep::new(&architecture, 2, Optimiser::default()).unwrap();
        let prepared = Prepared::new(step.graph, LoweringTarget { precision, multiprocessors: 132, hopper }).unwrap();
        let operations: Vec<String> = (0..prepared.graph.nodes().len())
            .filter_map(|id| prepared.emit(id, None).unwrap().map(|emitter| prepared.info(id, &emitter).op))
            .filter(|op| op.starts_with("attention"))
            .collect();
        (operations.len(), operations.iter().filter(|op| op.ends_with("+wgmma")).count())
    }

    #[test]
    fn training_in_bf16_on_hopper_uses_wgmma() {
        assert_eq!(attentions(Precision::Bf16, true), (24, 24));
        assert_eq!(attentions(Precision::Bf16, false), (24, 0));
        assert_eq!(attentions(Precision::F32, true), (24, 0));
    }
}
