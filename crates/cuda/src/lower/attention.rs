//! Attention. [`forward`] and [`backward`] choose the kernels from storage type, head size, lengths and options:
//! [`hopper`] on Hopper for 16 bits without bias and dropout (gradients only in bf16), [`mma`] for other attention in
//! bf16 over up to 256 tokens, and `attention.cu`, which supports everything, for the rest.

mod hopper;
mod mma;
mod tiling;

use vit_graph::Type;
use vit_graph::ops::Attention;

pub(crate) use hopper::hopper_variants;
pub(crate) use mma::mma_variants;

use super::rows::mask;
use super::{Emitter, Operand};
use crate::compile::{self, KernelVariant};
use crate::plan::storage::Storage;
use crate::run::arguments::{CStruct, KernelArguments};
use crate::run::launch::Request;

/// The largest head size that is supported, and that the tests cover. With it, the gradient in `attention.cu` needs 73
/// KiB of shared memory in a block; every GPU since Ampere has at least 99.
const MAX_HEAD_DIM: usize = 128;

/// `TILE` of `attention.cu`.
const TILE: usize = 32;
/// `THREADS` of `attention.cu` and `bias_gradient.cu`.
const THREADS: usize = 256;

/// An attention with the addresses of its operands.
struct AttentionCall {
    op: Attention,
    extents: Extents,
    /// Query, key and value, all in one storage type.
    operands: [u64; 3],
    /// From one token to the next, in elements.
    strides: [usize; 3],
    storage: Storage,
    /// `[groups, heads, queries, keys]`: sample `b` has the bias of group `b mod groups`.
    bias: Option<Operand>,
    groups: usize,
    /// The address of the seed of dropout; 0 without dropout.
    seed: u64,
}

#[derive(Debug, Clone, Copy)]
struct Extents {
    batch: usize,
    heads: usize,
    queries: usize,
    keys: usize,
    head_dim: usize,
}

impl Extents {
    fn width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// The number of tiles of [`TILE`] of so many tokens, in all heads of all samples.
    fn tiles(&self, tokens: usize) -> usize {
        tokens.div_ceil(TILE) * self.heads * self.batch
    }

    fn score_rows(&self) -> usize {
        self.batch * self.heads * self.queries
    }
}

/// The operands of attention's gradient kernels on tensor cores that [`AttentionCall`] does not have. Addresses are of
/// bf16, except that of `lse`, which is f32.
struct AttentionGradients {
    out: u64,
    dy: u64,
    /// The log-sum-exp of every row of scores.
    lse: u64,
    /// The gradients of query, key and value.
    results: [u64; 3],
    /// From one token to the next in each of the results, in elements.
    stride: usize,
    /// The gradient of the bias, if it has consumers.
    dbias: Option<Operand>,
}

impl AttentionCall {
    /// From the emitter's inputs, from number `first` on.
    fn new(op: &Attention, first: usize, e: &mut Emitter) -> Result<AttentionCall, String> {
        let types: Vec<Type> = e.inputs[first..].iter().map(|x| Type::f32(x.shape.clone())).collect();
        let x = op.extents(&types);
        let extents =
            Extents { batch: x.batch, heads: x.heads, queries: x.queries, keys: x.keys, head_dim: x.head_dim };
        if extents.head_dim > MAX_HEAD_DIM {
            return Err(format!("heads of {} are larger than {MAX_HEAD_DIM}", extents.head_dim));
        }
        let (width, storage) = (extents.width(), e.inputs[first].storage);
        let (operands, strides) = if op.packed {
            let start = e.input_as(first, storage);
            ([0, 1, 2].map(|part| start + (part * width * storage.bytes()) as u64), [3 * width; 3])
        } else {
            ([0, 1, 2].map(|part| e.input_as(first + part, storage)), [width; 3])
        };
        let next = first + op.operands();
        let bias = op.bias.then(|| e.inputs[next].clone());
        let groups = bias.as_ref().map_or(1, |b| b.shape[0]);
        let seed = op.dropout.map_or(0, |_| e.inputs[next + usize::from(op.bias)].address);
        Ok(AttentionCall { op: *op, extents, operands, strides, storage, bias, groups, seed })
    }

    fn variant(&self) -> KernelVariant {
        let bias = self.bias.as_ref().map_or(Storage::F32, |b| b.storage);
        KernelVariant::new(&compile::ATTENTION)
            .with("HEAD_DIM", self.extents.head_dim)
            .with("Q", self.storage.name())
            .with("B", bias.name())
    }

    /// `AttentionShape` of `attention.cu`; `gradients` are the strides of tokens in the operands' gradients.
    fn shape(&self, gradients: [usize; 3]) -> CStruct {
        let x = self.extents;
        CStruct::new()
            .u32s(&[x.heads, x.queries, x.keys, self.groups, x.batch])
            .f32(self.op.scale)
            .u64s(&self.strides)
            .u64(x.width() as u64)
            .u64s(&gradients)
    }

    fn mask(&self) -> CStruct {
        self.op.dropout.map_or_else(|| CStruct::new().u32s(&[0, 0]).f32(1.0), mask)
    }

    fn bias(&self) -> u64 {
        self.bias.as_ref().map_or(0, |b| b.address)
    }

    /// Bytes of shared memory: tiles of tokens, tiles of scores, statistics per row.
    fn shared(&self, token_tiles: usize, score_tiles: usize, statistics: usize) -> usize {
        let pitch = 16 * self.extents.head_dim.div_ceil(16) + 1;
        4 * (token_tiles * TILE * pitch + score_tiles * TILE * (TILE + 1) + statistics * TILE)
    }
}

pub(super) fn forward(op: &Attention, e: &mut Emitter) -> Result<(), String> {
    let call = AttentionCall::new(op, 0, e)?;
    let x = call.extents;
    let [out, lse, weights] = [0, 1, 2].map(|i| e.outputs[i].clone());
    if x.score_rows() == 0 {
        return Ok(());
    }
    // An output without consumers has address 0. The kernels then do not write the log-sum-exp, which
    // `attention_weights` needs; the result they write in any case.
    let lse = if lse.is_written() || !weights.is_written() { lse.address } else { e.scratch(4 * x.score_rows()) };
    let result = if out.is_written() { out.address } else { e.scratch(out.shape.elements() * out.storage.bytes()) };
    // Only the kernels for Hopper write e4m3; other results are quantised afterwards.
    let written = if out.storage == Storage::E4m3 { call.storage } else { out.storage };
    let variant = call.variant().with("O", written.name());
    let [q, k, v] = call.operands;
    if hopper::supports(&call, e) && (out.storage == call.storage || out.storage == Storage::E4m3) {
        hopper::forward(&call, result, &out, lse, e);
    } else {
        let count = out.shape.elements();
        let to = if written == out.storage { result } else { e.scratch(count * written.bytes()) };
        if mma::supports(&call, e) && written == Storage::Bf16 {
            mma::forward(&call, to, lse, e);
        } else {
            let arguments = KernelArguments::new()
                .pointers(&[q, k, v, call.bias(), call.seed, to, lse])
                .fields(call.shape([0; 3]))
                .fields(call.mask());
            let grid = [x.tiles(x.queries), 1, 1];
            e.kernel(variant.clone(), "attention_forward", grid, THREADS, call.shared(3, 1, 3), arguments);
        }
        if written != out.storage {
            e.quantise((to, written), result, out.scales, count);
        }
    }
    if weights.is_written() {
        let arguments =
            KernelArguments::new().pointers(&[q, k, call.bias(), lse, weights.address]).fields(call.shape([0; 3]));
        e.kernel(variant, "attention_weights", [x.score_rows(), 1, 1], THREADS, 0, arguments);
    }
    Ok(())
}

/// From `dy`, the result, the log-sum-exp of every row of scores and the attention's inputs to the gradients of operands
/// and bias.
pub(super) fn backward(op: &Attention, e: &mut Emitter) -> Result<(), String> {
    let call = AttentionCall::new(op, 3, e)?;
    let x = call.extents;
    if x.score_rows() == 0 {
        // Gradients of keys, values and a bias are sums over no queries.
        for d in e.outputs.iter().filter(|d| d.is_written() && d.shape.elements() > 0) {
            e.requests.push(Request::Clear { to: d.address, bytes: d.shape.elements() * d.storage.bytes() });
        }
        return Ok(());
    }
    let (dy, out, lse) = (e.inputs[0].clone(), e.inputs[1].clone(), e.inputs[2].address);
    let width = x.width();
    let (gradients, strides) = if op.packed {
        let d = &e.outputs[0];
        let part = |part: usize| if d.is_written() { d.address + (part * width * d.storage.bytes()) as u64 } else { 0 };
        ([0, 1, 2].map(|i| (part(i), d.storage)), [3 * width; 3])
    } else {
        ([0, 1, 2].map(|i| (e.outputs[i].address, e.outputs[i].storage)), [width; 3])
    };
    let dbias = e.outputs.get(op.operands()).filter(|d| d.is_written()).cloned();
    let all_bf16 =
        [dy.storage, out.storage].iter().chain(gradients.iter().map(|(_, s)| s)).all(|&s| s == Storage::Bf16);
    if all_bf16 && gradients.iter().all(|&(address, _)| address != 0) {
        let results = gradients.map(|(address, _)| address);
        let dbias = dbias.clone();
        let gradient = AttentionGradients { out: out.address, dy: dy.address, lse, results, stride: strides[0], dbias };
        if hopper::supports(&call, e) {
            hopper::backward(&call, &gradient, e);
            return Ok(());
        }
        if mma::supports(&call, e) {
            mma::backward(&call, &gradient, e);
            return Ok(());
        }
    }
    // delta = rowsum(dy · out), of which a warp computes a row.
    let delta = e.scratch(4 * x.score_rows());
    let variant = call.variant().with("DY", dy.storage.name()).with("O", out.storage.name());
    let arguments = KernelArguments::new()
        .pointers(&[out.address, dy.address, delta])
        .fields(call.shape(strides))
        .u64(x.score_rows());
    let grid = [x.score_rows().div_ceil(THREADS / 32), 1, 1];
    e.kernel(variant.clone(), "attention_delta", grid, THREADS, 0, arguments);

    let [q, k, v] = call.operands;
    let common = KernelArguments::new().pointers(&[q, k, v, call.bias(), call.seed, dy.address, lse, delta]);
    let [(dq, dq_storage), (dk, dk_storage), (dv, dv_storage)] = gradients;
    // One launch computes both gradients of keys and values if they have one storage type.
    let launches = if dk_storage == dv_storage {
        vec![(dk, dv, dk_storage)]
    } else {
        vec![(dk, 0, dk_storage), (0, dv, dv_storage)]
    };
    for (dk, dv, storage) in launches.into_iter().filter(|(dk, dv, _)| dk | dv != 0) {
        let arguments = common.clone().pointers(&[dk, dv]).fields(call.shape(strides)).fields(call.mask());
        let variant = variant.clone().with("DX", storage.name());
        let grid = [x.tiles(x.keys), 1, 1];
        e.kernel(variant, "attention_grad_keys", grid, THREADS, call.shared(4, 2, 0), arguments);
    }
    if dq != 0 {
        let arguments = common.clone().pointer(dq).fields(call.shape(strides)).fields(call.mask());
        let variant = variant.clone().with("DX", dq_storage.name());
        let grid = [x.tiles(x.queries), 1, 1];
        e.kernel(variant, "attention_grad_queries", grid, THREADS, call.shared(4, 1, 0), arguments);
    }
    if let Some(dbias) = dbias {
        let count = dbias.shape.elements();
        // The sum over samples is split among blocks, for about 16 per multiprocessor.
        let (blocks, samples) = (count.div_ceil(THREADS), x.batch / call.groups);
        let samples_per_split = samples.div_ceil((16 * e.multiprocessors).div_ceil(blocks)).max(1);
        let splits = samples.div_ceil(samples_per_split);
        let partials = e.scratch(4 * splits * count);
        let arguments =
            common.pointer(partials).fields(call.shape(strides)).fields(call.mask()).u32(samples_per_split).u64(count);
        e.kernel(variant, "attention_grad_bias", [blocks, splits, 1], THREADS, 0, arguments);
        sum_bias_splits(partials, splits, &dbias, e);
    }
    Ok(())
}

/// The gradient of a bias from its partial sums `[splits, elements]`.
fn sum_bias_splits(partials: u64, splits: usize, dbias: &Operand, e: &mut Emitter) {
    let count = dbias.shape.elements();
    let variant = KernelVariant::new(&compile::BIAS_GRADIENT).with("DX", dbias.storage.name());
    let arguments = KernelArguments::new().pointers(&[partials, dbias.address]).u32(splits).u64(count);
    // A block has 32 elements.
    e.kernel(variant, "bias_gradient", [count.div_ceil(32), 1, 1], THREADS, 0, arguments);
}

#[cfg(test)]
mod tests {
    use vit_graph::autodiff::gradients;
    use vit_graph::ops::{Attention, Input, Reduce};
    use vit_graph::{DType, Graph, Type};

    use crate::Precision;
    use crate::plan::prepare::{LoweringTarget, Prepared};
    use crate::run::launch::Request;

    #[test]
    fn without_queries_the_gradients_of_keys_and_values_are_zeros() {
        let mut graph = Graph::default();
        let mut input = |name: &str, tokens: usize| {
            let ty = Type::new(DType::F32, [2, tokens, 8]);
            graph.value(Input { name: name.into(), ty }, &[]).unwrap()
        };
        let [q, k, v] = [("q", 0), ("k", 3), ("v", 3)].map(|(name, tokens)| input(name, tokens));
        let op = Attention { heads: 2, scale: 0.5, packed: false, bias: false, dropout: None };
        let y = graph.value(op, &[q, k, v]).unwrap();
        let loss = graph.value(Reduce::sum([0, 1, 2]), &[y]).unwrap();
        for (name, d) in ["dk", "dv"].into_iter().zip(gradients(&mut graph, loss, &[k, v]).unwrap()) {
            graph.set_output(name, d).unwrap();
        }
        let target = LoweringTarget { precision: Precision::F32, multiprocessors: 132, hopper: false };
        let prepared = Prepared::new(graph, target).unwrap();
        let emitters = (0..prepared.graph.nodes().len()).filter_map(|id| prepared.emit(id, None).unwrap());
        let requests: Vec<Request> = emitters.flat_map(|emitter| emitter.requests).collect();
        let cleared = requests.iter().filter(|r| matches!(r, Request::Clear { bytes, .. } if *bytes == 2 * 3 * 8 * 4));
        assert_eq!(cleared.count(), 2);
    }
}
