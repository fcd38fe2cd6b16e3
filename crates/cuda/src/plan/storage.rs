//! In how many bits each value is stored.
//!
//! One rule: in a precision with 16 bits, a value that a kernel computes in a run is stored in those unless somebody needs
//! more: it is an output or an update of the graph, a statistic, or read by an operation that wants f32 (losses,
//! optimisers, the norms of gradients, the weights of norms). Inputs, parameters and constants are f32; those that
//! matrix products read have a copy in 16 bits beside them, which the optimiser writes along with the parameter. Everything
//! is computed in f32 whatever it is stored in, and sums of matrix products are f32. With [`Precision::Fp8`], what only
//! eight-bit linear layers read is stored in eight bits ([`EightBits`]).

use std::collections::HashSet;

use vit_graph::memory::storage;
use vit_graph::ops::Op;
use vit_graph::{DType, Graph, NodeId, Value};

use crate::Precision;
use crate::plan::fp8::EightBits;

/// How one element is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Storage {
    /// 32 bits, float or integer.
    F32,
    /// The upper half of an f32.
    Bf16,
    /// Half precision.
    F16,
    /// Eight bits, three of them mantissa, with a factor for the whole value.
    E4m3,
}

impl Storage {
    /// Bytes of one element.
    pub fn bytes(self) -> usize {
        match self {
            Storage::F32 => 4,
            Storage::Bf16 | Storage::F16 => 2,
            Storage::E4m3 => 1,
        }
    }

    /// The 16-bit type of activations and operands, in the precisions that have one.
    pub fn half(precision: Precision) -> Option<Storage> {
        match precision {
            Precision::F32 | Precision::Tf32 | Precision::Int8 => None,
            Precision::Bf16 | Precision::Fp8 => Some(Storage::Bf16),
            Precision::F16 => Some(Storage::F16),
        }
    }

    /// Its name in kernels.
    pub fn name(self) -> &'static str {
        match self {
            Storage::F32 => "float",
            Storage::Bf16 => "bf16",
            Storage::F16 => "f16",
            Storage::E4m3 => "e4m3",
        }
    }
}

/// The storage of every value of a graph.
pub(crate) struct Storages {
    values: Vec<Vec<Storage>>,
    /// What of it has eight bits.
    pub eight: EightBits,
    precision: Precision,
}

impl Storages {
    /// Applies the rule; `constant` says which nodes are computed once, when compiling.
    pub fn new(graph: &Graph, precision: Precision, constant: &[bool]) -> Self {
        let mut values: Vec<Vec<Storage>> = graph.nodes().iter().map(|n| vec![Storage::F32; n.outputs.len()]).collect();
        let mut eight = EightBits::default();
        if let Some(short) = Storage::half(precision) {
            let exact = read_exactly(graph);
            for (id, node) in graph.nodes().iter().enumerate() {
                let source = matches!(node.op, Op::Input(_) | Op::Parameter(_) | Op::Constant(_) | Op::Reshape(_));
                for (output, ty) in node.outputs.iter().enumerate() {
                    let free = !source && !constant[id] && ty.dtype != DType::I32 && !is_statistic(&node.op, output);
                    if free && !exact.contains(&Value { node: id, output }) {
                        values[id][output] = short;
                    }
                }
            }
        }
        if precision == Precision::Fp8 {
            eight = EightBits::new(graph, constant);
            eight.stored.iter().for_each(|v| values[v.node][v.output] = Storage::E4m3);
        }
        Storages { values, eight, precision }
    }

    /// How a value is stored; a reshape is stored as what it reshapes.
    pub fn of(&self, graph: &Graph, value: Value) -> Storage {
        let root = storage(graph, value);
        self.values[root.node][root.output]
    }

    /// What the operands of matrix products are stored in.
    pub fn operand(&self) -> Storage {
        Storage::half(self.precision).unwrap_or(Storage::F32)
    }

    /// In which form a node reads an input.
    pub fn read_as(&self, graph: &Graph, node: NodeId, input: usize) -> Storage {
        let stored = self.of(graph, graph.node(node).inputs[input]);
        let result = || match self.of(graph, Value { node, output: 0 }) {
            Storage::E4m3 => self.operand(),
            other => other,
        };
        match &graph.node(node).op {
            Op::MatMul(_) | Op::Conv2dGradInput(_) | Op::Conv2dGradWeight(_) => self.operand(),
            Op::Linear(_) if input < 2 && self.eight.linears.contains(&node) => Storage::E4m3,
            Op::Linear(_) | Op::Conv2d(_) if input < 2 => self.operand(),
            // Bias and residual are added by the product, in its result's type; a layer scale comes after it.
            Op::Linear(op) => match op.optional_inputs() {
                [_, scale, _] if scale == Some(input) => stored,
                [_, _, residual] if residual == Some(input) && (op.activation.is_some() || op.scale) => stored,
                _ => result(),
            },
            Op::Conv2d(_) => result(),
            _ => stored,
        }
    }
}

/// Values that somebody reads in f32.
fn read_exactly(graph: &Graph) -> HashSet<Value> {
    let named = graph.outputs().iter().map(|(_, v)| *v).chain(graph.updates().iter().map(|(_, v)| *v));
    let mut exact: HashSet<Value> = named.map(|v| storage(graph, v)).collect();
    for node in graph.nodes() {
        for (i, &input) in node.inputs.iter().enumerate() {
            if wants_f32(&node.op, i) {
                exact.insert(storage(graph, input));
            }
        }
    }
    exact
}

fn wants_f32(op: &Op, input: usize) -> bool {
    match op {
        Op::CrossEntropy(_) | Op::CrossEntropyGrad(_) | Op::SigmoidCrossEntropy(_) | Op::OneHotMax(_) => true,
        Op::GlobalNorm(_) | Op::OptimiserUpdate(_) | Op::MovingAverage(_) | Op::GuardedUpdate(_) => true,
        Op::BatchNorm(_) | Op::GroupNorm(_) => input > 0,
        Op::BatchNormGrad(_) | Op::GroupNormGrad(_) => input > 1,
        Op::LayerNorm(_) => input > 0,
        Op::AddLayerNorm(_) => input > 1,
        Op::LayerNormGrad(_) => input > 1,
        Op::AttentionGrad(_) => input == 2,
        Op::Linear(op) => op.optional_inputs()[1] == Some(input),
        _ => false,
    }
}

/// Outputs that are no activations: row statistics, losses, norms.
fn is_statistic(op: &Op, output: usize) -> bool {
    match op {
        Op::LayerNorm(_) | Op::AddLayerNorm(_) => output == 1 || output == 2,
        Op::LayerNormGrad(_) => output > 0,
        Op::Attention(_) => output > 0,
        Op::BatchNorm(_) | Op::BatchNormGrad(_) | Op::GroupNorm(_) | Op::GroupNormGrad(_) => output > 0,
        Op::CrossEntropy(_) | Op::SigmoidCrossEntropy(_) | Op::GlobalNorm(_) => true,
        Op::OptimiserUpdate(_) | Op::MovingAverage(_) | Op::GuardedUpdate(_) => true,
        _ => false,
    }
}
