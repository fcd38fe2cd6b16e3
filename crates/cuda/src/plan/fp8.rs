//! Which linear layers are computed in eight bits, and with what factors.
//!
//! An e4m3 number has three bits of mantissa over fifteen powers of two, so a factor for a whole tensor need not fit it
//! closely: it must only keep the largest elements inside. Bounds of them follow from the weights alone. A row of a layer
//! norm is `gamma · u + beta` with `|u| ≤ √columns`, and no element of a linear layer that follows can exceed
//! `√columns · |w · gamma| + |w · beta + bias|` for its row `w`. Activations and attention, which averages values, make
//! nothing larger. So factors are known before the first picture, nothing is calibrated or measured in a run, and a
//! picture's result does not depend on the others in its batch.
//!
//! A linear layer whose input has no such bound stays in bf16, and so do the first, which sees the picture, and the last.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use vit_graph::memory::storage;
use vit_graph::ops::{Activation, Attention, Linear, Op};
use vit_graph::{Graph, NodeId, Value};

use crate::compile::{self, KernelVariant};
use crate::lower::Operand;
use crate::plan::storage::Storage;
use crate::run::arguments::KernelArguments;
use crate::run::launch::{KernelLaunch, Request};

/// How far from a factor its inverse lies: cuBLASLt takes factors at multiples of 16 bytes only.
pub(crate) const INVERSE: u64 = 16;

/// Extents of eight-bit operands are multiples of this.
const STEP: usize = 16;

/// What bounds the elements of a value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Bound {
    gamma: Value,
    beta: Value,
    /// The linear layer after the norm.
    linear: Option<Rows>,
}

/// The rows of a linear layer, from the first that counts.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Rows {
    weight: Value,
    bias: Option<Value>,
    first: usize,
}

/// What of a graph is computed in eight bits.
#[derive(Debug, Default)]
pub(crate) struct EightBits {
    /// Linear layers with eight-bit operands.
    pub linears: HashSet<NodeId>,
    /// What they read, with its bound.
    pub bounds: BTreeMap<Value, Bound>,
    /// Those of them that are stored in eight bits, because nobody reads them otherwise.
    pub stored: HashSet<Value>,
    /// Their weights.
    pub weights: BTreeSet<Value>,
}

impl EightBits {
    /// Finds the layers; `constant` says which nodes are computed once.
    pub fn new(graph: &Graph, constant: &[bool]) -> Self {
        let mut eight = EightBits::default();
        let outputs: HashSet<Value> = graph.outputs().iter().map(|(_, v)| storage(graph, *v)).collect();
        for (id, node) in graph.nodes().iter().enumerate() {
            let Op::Linear(_) = node.op else { continue };
            let (x, weight) = (storage(graph, node.inputs[0]), storage(graph, node.inputs[1]));
            let shape = graph.shape(node.inputs[1]);
            let suits = matches!(graph.node(weight.node).op, Op::Parameter(_))
                && constant[weight.node]
                && shape.iter().all(|extent| extent.is_multiple_of(STEP))
                && !outputs.contains(&Value { node: id, output: 0 });
            let Some(bound) = eight.bound(graph, x).filter(|bound| suits && bound.is_constant(constant)) else {
                continue;
            };
            eight.linears.insert(id);
            eight.bounds.insert(x, bound);
            eight.weights.insert(weight);
        }
        let writable = |value: &Value| match graph.node(value.node).op {
            Op::LayerNorm(_) | Op::AddLayerNorm(_) | Op::Attention(_) => value.output == 0,
            Op::Linear(op) => !op.scale && !op.residual,
            _ => false,
        };
        eight.stored = eight.bounds.keys().copied().filter(|v| writable(v) && !outputs.contains(v)).collect();
        for (id, node) in graph.nodes().iter().enumerate().filter(|(_, node)| !matches!(node.op, Op::Reshape(_))) {
            for (i, &input) in node.inputs.iter().enumerate() {
                if i > 0 || !eight.linears.contains(&id) {
                    eight.stored.remove(&storage(graph, input));
                }
            }
        }
        eight
    }

    /// What bounds a value's elements, if anything does.
    fn bound(&self, graph: &Graph, value: Value) -> Option<Bound> {
        let node = graph.node(value.node);
        match &node.op {
            Op::LayerNorm(_) | Op::AddLayerNorm(_) => {
                let (gamma, beta) = norm(graph, value)?;
                Some(Bound { gamma, beta, linear: None })
            }
            Op::Reshape(_) | Op::Permute(_) | Op::Slice(_) | Op::Windows(_) | Op::Unwindows(_) => {
                self.bound(graph, node.inputs[0])
            }
            Op::Activation(activation) if shrinks(*activation) => self.bound(graph, node.inputs[0]),
            Op::Linear(op) => self.bound_of_linear(graph, value.node, op, 0),
            Op::Attention(op) if value.output == 0 => self.bound_of_attention(graph, op, &node.inputs),
            _ => None,
        }
    }

    fn bound_of_linear(&self, graph: &Graph, id: NodeId, op: &Linear, first: usize) -> Option<Bound> {
        if op.scale || op.residual || !op.activation.is_none_or(shrinks) || !self.linears.contains(&id) {
            return None;
        }
        let inputs = &graph.node(id).inputs;
        let (gamma, beta) = norm(graph, inputs[0])?;
        let bias = op.optional_inputs()[0].map(|i| storage(graph, inputs[i]));
        Some(Bound { gamma, beta, linear: Some(Rows { weight: storage(graph, inputs[1]), bias, first }) })
    }

    /// A row of the result is an average of values, which are the last third of what is packed.
    fn bound_of_attention(&self, graph: &Graph, op: &Attention, inputs: &[Value]) -> Option<Bound> {
        let values = inputs[op.operands() - 1];
        let packed = storage(graph, values);
        match (&graph.node(packed.node).op, op.dropout) {
            (_, Some(_)) => None,
            (Op::Linear(linear), None) if op.packed => {
                self.bound_of_linear(graph, packed.node, linear, graph.shape(values).last() / 3 * 2)
            }
            _ => self.bound(graph, values),
        }
    }

    /// The most scratch memory that working out the factors takes.
    pub fn scratch_bytes(&self, graph: &Graph) -> usize {
        self.bounds.values().map(|bound| 4 * bound.count(graph)).max().unwrap_or(0)
    }

    /// What works out the factors of all activations, once the weights are there. `operand` says where things lie,
    /// `factors` where a value's factors go, `scratch` where there is memory to use.
    pub fn requests(
        &self,
        graph: &Graph,
        operand: impl Fn(Value) -> Operand,
        factors: &HashMap<Value, u64>,
        scratch: u64,
    ) -> Vec<Request> {
        let mut requests = Vec::new();
        for (value, bound) in &self.bounds {
            let count = bound.count(graph);
            let (gamma, beta) = (operand(bound.gamma).address, operand(bound.beta).address);
            let columns = graph.shape(bound.gamma).elements();
            match &bound.linear {
                None => {
                    let arguments = KernelArguments::new().pointers(&[gamma, beta, scratch]).u32(columns);
                    requests.push(kernel(
                        KernelVariant::new(&compile::FP8),
                        "norm_bounds",
                        count.div_ceil(256),
                        arguments,
                    ));
                }
                Some(rows) => {
                    let weight = operand(rows.weight);
                    let bias = rows.bias.map(&operand).map_or((0, Storage::F32), |b| match b.address {
                        0 => (b.copy, Storage::Bf16),
                        address => (address, b.storage),
                    });
                    let first =
                        |start: u64, bytes: usize| if start == 0 { 0 } else { start + (rows.first * bytes) as u64 };
                    let arguments = KernelArguments::new()
                        .pointers(&[first(weight.e4m3, columns), weight.scales, gamma, beta])
                        .pointers(&[first(bias.0, bias.1.bytes()), scratch])
                        .u32(count)
                        .u32(columns);
                    let variant = KernelVariant::new(&compile::FP8).with("B", bias.1.name());
                    requests.push(kernel(variant, "linear_bounds", count.div_ceil(8), arguments));
                }
            }
            let to = factors.get(value).copied().unwrap_or_default();
            let arguments = KernelArguments::new().pointer(scratch).u32(count).pointer(to);
            requests.push(kernel(KernelVariant::new(&compile::FP8), "choose_scale", 1, arguments));
        }
        requests
    }
}

impl Bound {
    /// How many numbers the bound is the largest of.
    fn count(&self, graph: &Graph) -> usize {
        self.linear.map_or(graph.shape(self.gamma).elements(), |rows| graph.shape(rows.weight)[0] - rows.first)
    }

    fn is_constant(&self, constant: &[bool]) -> bool {
        let linear = self.linear.iter().flat_map(|rows| [Some(rows.weight), rows.bias]).flatten();
        [self.gamma, self.beta].into_iter().chain(linear).all(|v| constant[v.node])
    }
}

fn kernel(variant: KernelVariant, name: &'static str, blocks: usize, arguments: KernelArguments) -> Request {
    Request::Kernel(KernelLaunch {
        variant,
        name,
        grid: [blocks.max(1), 1, 1],
        threads: 256,
        shared: 0,
        maps: Vec::new(),
        arguments,
    })
}

/// The weights of the layer norm whose whole rows this value has.
fn norm(graph: &Graph, value: Value) -> Option<(Value, Value)> {
    let node = graph.node(value.node);
    let rows_stay = |input: Value| graph.shape(input).last() == graph.shape(value).last();
    match &node.op {
        Op::LayerNorm(_) if value.output == 0 => Some((storage(graph, node.inputs[1]), storage(graph, node.inputs[2]))),
        Op::AddLayerNorm(_) if value.output == 0 => {
            Some((storage(graph, node.inputs[2]), storage(graph, node.inputs[3])))
        }
        Op::Reshape(_) if rows_stay(node.inputs[0]) => norm(graph, node.inputs[0]),
        Op::Slice(slice) if slice.axis + 1 < graph.shape(value).len() => norm(graph, node.inputs[0]),
        // Windows without padding.
        Op::Windows(_) if graph.shape(value).elements() == graph.shape(node.inputs[0]).elements() => {
            norm(graph, node.inputs[0])
        }
        _ => None,
    }
}

/// Whether an activation makes no number larger.
fn shrinks(activation: Activation) -> bool {
    match activation {
        Activation::Gelu | Activation::GeluTanh | Activation::Relu | Activation::Silu | Activation::Tanh => true,
        Activation::Sigmoid => false,
    }
}

/// Weights in eight bits, and the factor that was on them: a power of two that brings the largest near the end of what
/// eight bits can hold.
pub(crate) fn quantised(weights: &[f32]) -> (Vec<u8>, f32) {
    let largest = weights.iter().fold(0.0, |largest: f32, w| largest.max(w.abs()));
    if !weights.iter().all(|w| w.is_finite()) {
        return (vec![0; weights.len()], f32::NAN);
    }
    let exact = (448.0 / largest).clamp(2f32.powi(-100), 2f32.powi(100));
    let factor = f32::from_bits(exact.to_bits() & 0x7f80_0000);
    (weights.iter().map(|w| to_e4m3(w * factor)).collect(), factor)
}

/// Rounds to the nearest e4m3, ties to even; beyond the largest, 448, it is that.
fn to_e4m3(value: f32) -> u8 {
    let bits = value.to_bits();
    let (sign, magnitude) = ((bits >> 24 & 0x80) as u8, bits & 0x7fff_ffff);
    let rounded = match magnitude {
        0x7f80_0001.. => 0x7f,
        0x43e0_0000.. => 0x7e,
        // Below 2^-6 steps are 2^-9: as the last bit of a number that large.
        ..0x3c80_0000 => (f32::from_bits(magnitude) + 16384.0).to_bits() - 16384f32.to_bits(),
        _ => (magnitude + 0x7ffff + (magnitude >> 20 & 1) - (120 << 23)) >> 20,
    };
    sign | rounded as u8
}

#[cfg(test)]
mod tests {
    use vit_graph::rewrite;
    use vit_models::{Mode, variant};

    use super::*;
    use crate::Precision;
    use crate::plan::prepare::{Prepared, Profile};

    fn from_e4m3(bits: u8) -> f32 {
        let size = f32::from_bits(u32::from(bits & 0x7f) << 20) * 2f32.powi(120);
        if bits & 0x80 == 0 { size } else { -size }
    }

    #[test]
    fn numbers_round_to_the_nearest_even() {
        for bits in (0..0x7f).chain(0x80..0xff) {
            assert_eq!(to_e4m3(from_e4m3(bits)), bits, "{bits:#x}");
        }
        for bits in 0..0x7eu8 {
            let (low, high) = (from_e4m3(bits), from_e4m3(bits + 1));
            let middle = (low + high) / 2.0;
            assert_eq!(to_e4m3(middle), bits + bits % 2, "{middle}");
            assert_eq!(to_e4m3(middle.next_down()), bits, "{middle}");
            assert_eq!(to_e4m3(-middle.next_up()), 0x80 | (bits + 1), "{middle}");
        }
        assert_eq!([to_e4m3(1e9), to_e4m3(f32::NEG_INFINITY), to_e4m3(f32::NAN) & 0x7f], [0x7e, 0xfe, 0x7f]);
    }

    #[test]
    fn weights_fill_the_range_and_errors_stay_visible() {
        let (bytes, factor) = quantised(&[0.5, -0.25, 0.0]);
        assert_eq!((factor, bytes.as_slice()), (512.0, &[to_e4m3(256.0), to_e4m3(-128.0), 0][..]));
        assert!(quantised(&[f32::NAN, 1.0]).1.is_nan());
        assert!(quantised(&[0.0]).1.is_finite());
    }

    fn prepared(model: &str, precision: Precision) -> Prepared {
        let mut graph = variant(model).unwrap().architecture.build(4, Mode::Inference).unwrap();
        graph.retain_outputs(|name| name == "logits");
        let graph = rewrite::fuse_linear(&rewrite::patchify(&rewrite::dead_code(&graph).unwrap()).unwrap()).unwrap();
        Prepared::new(graph, Profile { precision, multiprocessors: 132, hopper: true }).unwrap()
    }

    #[test]
    fn all_but_the_first_and_the_last_layer_of_a_vit_have_eight_bits() {
        let eight = prepared("vit_tiny_patch16_224", Precision::Fp8);
        let found = &eight.storages.eight;
        assert_eq!((found.linears.len(), found.bounds.len(), found.stored.len()), (48, 48, 48));
        let bf16 = prepared("vit_tiny_patch16_224", Precision::Bf16);
        assert!(bf16.storages.eight.linears.is_empty());
        assert!(eight.memory().stored_bytes < bf16.memory().stored_bytes);
    }

    #[test]
    fn values_that_are_moved_before_a_layer_reads_them_have_eight_bits_there() {
        let eight = prepared("swin_tiny_patch4_window7_224", Precision::Fp8);
        let found = &eight.storages.eight;
        // 12 blocks of four layers, and three that merge patches, which come after a norm of their own.
        assert_eq!(found.linears.len(), 51);
        assert!(found.stored.len() < found.bounds.len());
    }
}
