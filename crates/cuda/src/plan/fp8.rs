//! The linear layers that are computed in fp8 (e4m3), and their quantisation scales.
//!
//! e4m3 has three mantissa bits over fifteen powers of two, so one scale per tensor need not fit its elements closely:
//! it must only keep the largest at 448 or below. Bounds of the elements follow from the weights alone. A row of a
//! layer norm is `gamma ∘ u + beta` (`∘` is elementwise) with `‖u‖ ≤ √columns`. So no element of a linear layer after
//! it exceeds `√columns · ‖w ∘ gamma‖ + |w · beta + bias|` for its row `w` of the weights. Activations with `|f(x)| ≤
//! |x|` and attention, which averages values, do not increase a bound. So scales are known before the first image,
//! without calibration, and the result of an image does not depend on the other images of its batch.
//!
//! A linear layer whose input has no such bound stays in bf16, such as the first, which reads the image; and so does
//! one whose result is an output of the graph, such as the head.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use vit_graph::memory::root_of;
use vit_graph::ops::{Activation, Attention, Linear, Op, Operation};
use vit_graph::{Graph, NodeId, Value};

use crate::compile::{self, KernelVariant};
use crate::lower::Operand;
use crate::plan::storage::Storage;
use crate::run::arguments::KernelArguments;
use crate::run::launch::{KernelLaunch, Request};

/// The distance of a scale's inverse from the scale in bytes: cuBLASLt requires multiples of 16.
pub(crate) const INVERSE: u64 = 16;

/// Both extents of fp8 weights are multiples of this, so that rows of operands and results are multiples of 16 bytes,
/// as cuBLASLt requires.
const EXTENT_STEP: usize = 16;

/// `THREADS` of `fp8.cu`.
const THREADS: usize = 256;

/// The weights that bound the elements of a value: those of a layer norm, and of the linear layer after it, if any.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ElementBound {
    gamma: Value,
    beta: Value,
    linear: Option<LinearRows>,
}

/// The rows of a linear layer's weights from `first` on.
#[derive(Debug, Clone, Copy, PartialEq)]
struct LinearRows {
    weight: Value,
    bias: Option<Value>,
    first: usize,
}

/// The part of a graph that is computed in fp8.
#[derive(Debug, Default)]
pub(crate) struct Fp8Layers {
    /// Linear layers with fp8 operands.
    pub linears: HashSet<NodeId>,
    /// Their inputs, each with its bound.
    pub bounds: BTreeMap<Value, ElementBound>,
    /// The inputs that are stored only in e4m3: their producer can write it, and all their consumers are such layers.
    pub stored: HashSet<Value>,
    /// The weights of the layers.
    pub weights: BTreeSet<Value>,
}

impl Fp8Layers {
    /// `constant`: the nodes that depend only on constants and on parameters that runs do not update.
    pub fn new(graph: &Graph, constant: &[bool]) -> Self {
        let mut fp8 = Fp8Layers::default();
        let outputs: HashSet<Value> = graph.outputs().iter().map(|(_, v)| root_of(graph, *v)).collect();
        for (id, node) in graph.nodes().iter().enumerate() {
            let Op::Linear(_) = node.op else { continue };
            let (x, weight) = (root_of(graph, node.inputs[0]), root_of(graph, node.inputs[1]));
            let shape = graph.shape(node.inputs[1]);
            let supported = matches!(graph.node(weight.node).op, Op::Parameter(_))
                && constant[weight.node]
                && shape.iter().all(|extent| extent.is_multiple_of(EXTENT_STEP))
                && !outputs.contains(&Value { node: id, output: 0 });
            let Some(bound) = fp8.bound(graph, x).filter(|bound| supported && bound.is_constant(constant)) else {
                continue;
            };
            fp8.linears.insert(id);
            fp8.bounds.insert(x, bound);
            fp8.weights.insert(weight);
        }
        let kernel_writes_e4m3 = |value: &Value| match graph.node(value.node).op {
            Op::LayerNorm(_) | Op::AddLayerNorm(_) | Op::Attention(_) => value.output == 0,
            Op::Linear(op) => !op.scale && !op.residual,
            _ => false,
        };
        fp8.stored = fp8.bounds.keys().copied().filter(|v| kernel_writes_e4m3(v) && !outputs.contains(v)).collect();
        for (id, node) in graph.nodes().iter().enumerate().filter(|(_, node)| !matches!(node.op, Op::Reshape(_))) {
            for (i, &input) in node.inputs.iter().enumerate() {
                if i > 0 || !fp8.linears.contains(&id) {
                    fp8.stored.remove(&root_of(graph, input));
                }
            }
        }
        fp8
    }

    /// The bound of a value's elements, if it is known.
    fn bound(&self, graph: &Graph, value: Value) -> Option<ElementBound> {
        let node = graph.node(value.node);
        match &node.op {
            Op::LayerNorm(_) | Op::AddLayerNorm(_) => {
                let (gamma, beta) = norm(graph, value)?;
                Some(ElementBound { gamma, beta, linear: None })
            }
            Op::Activation(activation) if is_bounded_by_input(*activation) => self.bound(graph, node.inputs[0]),
            Op::Linear(op) => self.bound_of_linear(graph, value.node, op, 0),
            Op::Attention(op) if value.output == 0 => self.bound_of_attention(graph, op, &node.inputs),
            // The downsampling layers of ConvNeXt stay in bf16: their accuracy in fp8 has not been measured.
            Op::Patchify(_) => None,
            op if op.moves_elements() => self.bound(graph, node.inputs[0]),
            _ => None,
        }
    }

    /// The bound of the result's columns from `first` on. It is computed from the weights in e4m3, which only layers in
    /// fp8 have.
    fn bound_of_linear(&self, graph: &Graph, id: NodeId, op: &Linear, first: usize) -> Option<ElementBound> {
        if op.scale || op.residual || !op.activation.is_none_or(is_bounded_by_input) || !self.linears.contains(&id) {
            return None;
        }
        let inputs = &graph.node(id).inputs;
        let (gamma, beta) = norm(graph, inputs[0])?;
        let weight = root_of(graph, inputs[1]);
        if graph.shape(weight)[0] != graph.shape(inputs[1])[0] {
            return None;
        }
        let bias = op.optional_inputs()[0].map(|i| root_of(graph, inputs[i]));
        Some(ElementBound { gamma, beta, linear: Some(LinearRows { weight, bias, first }) })
    }

    /// A row of the result is an average of values, which are the last third of a packed input.
    fn bound_of_attention(&self, graph: &Graph, op: &Attention, inputs: &[Value]) -> Option<ElementBound> {
        let values = inputs[op.operands() - 1];
        let root = root_of(graph, values);
        match (&graph.node(root.node).op, op.dropout) {
            (_, Some(_)) => None,
            // A reshape that divides rows would mix the thirds.
            (Op::Linear(linear), None) if op.packed && graph.shape(root).last() == graph.shape(values).last() => {
                self.bound_of_linear(graph, root.node, linear, graph.shape(values).last() / 3 * 2)
            }
            _ => self.bound(graph, values),
        }
    }

    /// The scratch memory that [`Fp8Layers::requests`] needs.
    pub fn scratch_bytes(&self, graph: &Graph) -> usize {
        self.bounds.values().map(|bound| 4 * bound.count(graph)).max().unwrap_or(0)
    }

    /// The requests that compute the scales of all activations from the uploaded weights. `operand` has the addresses
    /// of values, `scales` those of their scales; all requests use the same scratch memory, one after another.
    pub fn requests(
        &self,
        graph: &Graph,
        operand: impl Fn(Value) -> Operand,
        scales: &HashMap<Value, u64>,
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
                        count.div_ceil(THREADS),
                        arguments,
                    ));
                }
                Some(rows) => {
                    let weight = operand(rows.weight);
                    let bias = rows.bias.map(&operand).map_or((0, Storage::F32), |b| match b.address {
                        0 => (b.half, Storage::Bf16),
                        address => (address, b.storage),
                    });
                    let first_row = |start: u64, row_bytes: usize| {
                        if start == 0 { 0 } else { start + (rows.first * row_bytes) as u64 }
                    };
                    let arguments = KernelArguments::new()
                        .pointers(&[first_row(weight.e4m3, columns), weight.scales, gamma, beta])
                        .pointers(&[first_row(bias.0, bias.1.bytes()), scratch])
                        .u32(count)
                        .u32(columns);
                    let variant = KernelVariant::new(&compile::FP8).with("B", bias.1.name());
                    // A warp computes the bound of a row.
                    requests.push(kernel(variant, "linear_bounds", count.div_ceil(THREADS / 32), arguments));
                }
            }
            let arguments = KernelArguments::new().pointer(scratch).u32(count).pointer(scales[value]);
            requests.push(kernel(KernelVariant::new(&compile::FP8), "choose_scale", 1, arguments));
        }
        requests
    }
}

impl ElementBound {
    /// The number of columns with a bound each; their maximum is the bound of the value.
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
        threads: THREADS,
        shared: 0,
        maps: Vec::new(),
        arguments,
    })
}

/// `gamma` and `beta` of the layer norm whose whole rows this value consists of.
fn norm(graph: &Graph, value: Value) -> Option<(Value, Value)> {
    let node = graph.node(value.node);
    let rows_stay = |input: Value| graph.shape(input).last() == graph.shape(value).last();
    match &node.op {
        Op::LayerNorm(_) if value.output == 0 => Some((root_of(graph, node.inputs[1]), root_of(graph, node.inputs[2]))),
        Op::AddLayerNorm(_) if value.output == 0 => {
            Some((root_of(graph, node.inputs[2]), root_of(graph, node.inputs[3])))
        }
        Op::Reshape(_) if rows_stay(node.inputs[0]) => norm(graph, node.inputs[0]),
        Op::Slice(slice) if slice.axis + 1 < graph.shape(value).len() => norm(graph, node.inputs[0]),
        // Without padding, which would add rows of zeros that the norm did not produce.
        Op::Windows(_) if graph.shape(value).elements() == graph.shape(node.inputs[0]).elements() => {
            norm(graph, node.inputs[0])
        }
        _ => None,
    }
}

/// Whether `|activation(x)| ≤ |x|`.
fn is_bounded_by_input(activation: Activation) -> bool {
    match activation {
        Activation::Gelu
        | Activation::GeluTanh
        | Activation::QuickGelu
        | Activation::Relu
        | Activation::Silu
        | Activation::Tanh => true,
        Activation::Sigmoid => false,
    }
}

/// Weights in e4m3 and their scale: the largest power of two that keeps all at 448 or below. It is NaN if a weight is
/// not finite, and so are all results then.
pub(crate) fn quantised(weights: &[f32]) -> (Vec<u8>, f32) {
    let largest = weights.iter().fold(0.0, |largest: f32, w| largest.max(w.abs()));
    if !weights.iter().all(|w| w.is_finite()) {
        return (vec![0; weights.len()], f32::NAN);
    }
    // The clamp keeps the scale and its inverse normal, also if all weights are 0. The mask drops the mantissa.
    let exact = (448.0 / largest).clamp(2f32.powi(-100), 2f32.powi(100));
    let scale = f32::from_bits(exact.to_bits() & 0x7f80_0000);
    (weights.iter().map(|w| to_e4m3(w * scale)).collect(), scale)
}

/// The nearest e4m3, ties to even; saturates at 448.
fn to_e4m3(value: f32) -> u8 {
    let bits = value.to_bits();
    let (sign, magnitude) = ((bits >> 24 & 0x80) as u8, bits & 0x7fff_ffff);
    let rounded = match magnitude {
        0x7f80_0001.. => 0x7f,
        0x43e0_0000.. => 0x7e,
        // Subnormals are multiples of 2^-9, the unit in the last place of floats from 2^14 on.
        ..0x3c80_0000 => (f32::from_bits(magnitude) + 16384.0).to_bits() - 16384f32.to_bits(),
        // Rounds to 3 of 23 mantissa bits; the exponent bias is 127 in f32 and 7 in e4m3.
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
    use crate::plan::prepare::{LoweringTarget, Prepared};

    fn from_e4m3(bits: u8) -> f32 {
        let size = f32::from_bits(u32::from(bits & 0x7f) << 20) * 2f32.powi(120);
        if bits & 0x80 == 0 { size } else { -size }
    }

    #[test]
    fn rounding_is_to_nearest_even() {
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
    fn weights_fill_the_range_and_nan_stays_nan() {
        let (bytes, scale) = quantised(&[0.5, -0.25, 0.0]);
        assert_eq!((scale, bytes.as_slice()), (512.0, &[to_e4m3(256.0), to_e4m3(-128.0), 0][..]));
        assert!(quantised(&[f32::NAN, 1.0]).1.is_nan());
        assert!(quantised(&[0.0]).1.is_finite());
    }

    fn prepared(model: &str, precision: Precision) -> Prepared {
        let mut graph = variant(model).unwrap().architecture.build(4, Mode::Inference).unwrap();
        graph.retain_outputs(|name| name == "logits");
        let graph =
            rewrite::fuse_linear(&rewrite::patchify(&rewrite::eliminate_dead_code(&graph).unwrap()).unwrap()).unwrap();
        Prepared::new(graph, LoweringTarget { precision, multiprocessors: 132, hopper: true }).unwrap()
    }

    #[test]
    fn all_but_the_first_and_the_last_layer_of_a_vit_are_in_fp8() {
        let fp8 = prepared("vit_tiny_patch16_224", Precision::Fp8);
        let found = &fp8.storages.fp8;
        assert_eq!((found.linears.len(), found.bounds.len(), found.stored.len()), (48, 48, 48));
        let bf16 = prepared("vit_tiny_patch16_224", Precision::Bf16);
        assert!(bf16.storages.fp8.linears.is_empty());
        assert!(fp8.memory().stored_bytes < bf16.memory().stored_bytes);
    }

    #[test]
    fn values_that_are_moved_before_a_layer_are_quantised_there() {
        let fp8 = prepared("swin_tiny_patch4_window7_224", Precision::Fp8);
        let found = &fp8.storages.fp8;
        // Four layers in each of 12 blocks, and three that merge patches, each after a norm.
        assert_eq!(found.linears.len(), 51);
        assert!(found.stored.len() < found.bounds.len());
    }
}
