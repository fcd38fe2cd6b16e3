//! In how many bits each value is stored.
//!
//! One rule: in a precision with 16 bits, a value that a kernel computes in a run is stored in those unless somebody needs
//! more: it is an output or an update of the graph, a statistic, or read by an operation that wants f32 (losses,
//! optimisers, the norms of gradients, the weights of norms). Inputs, parameters and constants are f32; those that
//! matrix products read have a copy in 16 bits beside them, which the optimiser writes along with the parameter. Everything
//! is computed in f32 whatever it is stored in, and sums of matrix products are f32. With [`Precision::Fp8`], what only
//! eight-bit linear layers read is stored in eight bits ([`Fp8Layers`]).

use std::collections::HashSet;

use vit_graph::memory::storage;
use vit_graph::ops::{InputPrecision, Operation};
use vit_graph::{DType, Graph, NodeId, Value};

use crate::Precision;
use crate::plan::fp8::Fp8Layers;

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
    pub fp8: Fp8Layers,
    precision: Precision,
}

impl Storages {
    /// Applies the rule; `constant` says which nodes are computed once, when compiling.
    pub fn new(graph: &Graph, precision: Precision, constant: &[bool]) -> Self {
        let mut values: Vec<Vec<Storage>> = graph.nodes().iter().map(|n| vec![Storage::F32; n.outputs.len()]).collect();
        let mut fp8 = Fp8Layers::default();
        if let Some(short) = Storage::half(precision) {
            let exact = read_exactly(graph);
            for (id, node) in graph.nodes().iter().enumerate() {
                for (output, ty) in node.outputs.iter().enumerate() {
                    let free =
                        node.op.computes() && !constant[id] && ty.dtype != DType::I32 && !node.op.is_f32_output(output);
                    if free && !exact.contains(&Value { node: id, output }) {
                        values[id][output] = short;
                    }
                }
            }
        }
        if precision == Precision::Fp8 {
            fp8 = Fp8Layers::new(graph, constant);
            fp8.stored.iter().for_each(|v| values[v.node][v.output] = Storage::E4m3);
        }
        Storages { values, fp8, precision }
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
        match graph.node(node).op.input_precision(input) {
            InputPrecision::Operand if self.fp8.linears.contains(&node) => Storage::E4m3,
            InputPrecision::Operand => self.operand(),
            InputPrecision::Addend => result(),
            InputPrecision::AsStored | InputPrecision::F32 => stored,
        }
    }
}

/// Values that are stored in f32 for the sake of a consumer.
fn read_exactly(graph: &Graph) -> HashSet<Value> {
    let named = graph.outputs().iter().map(|(_, v)| *v).chain(graph.updates().iter().map(|(_, v)| *v));
    let mut exact: HashSet<Value> = named.map(|v| storage(graph, v)).collect();
    for node in graph.nodes() {
        for (i, &input) in node.inputs.iter().enumerate() {
            if node.op.input_precision(i) == InputPrecision::F32 {
                exact.insert(storage(graph, input));
            }
        }
    }
    exact
}
