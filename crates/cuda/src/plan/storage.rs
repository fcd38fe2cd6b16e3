//! The storage type of every value.
//!
//! In a 16-bit precision, a value that is computed in every run is stored in 16 bits, unless it is an integer, an
//! output or an update of the graph, a statistic, or an input of an operation that needs f32 (losses, optimisers,
//! gradient norms, weights of norms). Inputs are f32 or integers. So are parameters and constants, except that those
//! which matrix products read in 16 bits have a 16-bit copy, updated with the parameter, and no f32 form unless
//! something reads that. Elements are converted to f32 or f64 for all arithmetic but matrix products, which accumulate
//! in f32. With [`Precision::Fp8`], values whose consumers are all fp8 layers are stored in e4m3 if their producer can
//! write it ([`Fp8Layers`]).

use std::collections::HashSet;

use vit_graph::memory::root_of;
use vit_graph::ops::{InputPrecision, Operation};
use vit_graph::{DType, Graph, NodeId, Value};

use crate::Precision;
use crate::plan::fp8::Fp8Layers;

/// The storage type of an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Storage {
    /// 32 bits, float or integer.
    F32,
    /// The upper half of an f32.
    Bf16,
    /// IEEE half precision.
    F16,
    /// fp8 with three mantissa bits, and a quantisation scale per tensor.
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
    /// The layers in fp8.
    pub fp8: Fp8Layers,
    precision: Precision,
}

impl Storages {
    /// `constant`: the nodes that depend only on constants and on parameters that runs do not update; they are f32.
    pub fn new(graph: &Graph, precision: Precision, constant: &[bool]) -> Self {
        let mut values: Vec<Vec<Storage>> = graph.nodes().iter().map(|n| vec![Storage::F32; n.outputs.len()]).collect();
        let mut fp8 = Fp8Layers::default();
        if let Some(half) = Storage::half(precision) {
            let f32 = stored_in_f32(graph);
            for (id, node) in graph.nodes().iter().enumerate() {
                for (output, ty) in node.outputs.iter().enumerate() {
                    let may_be_half =
                        node.op.computes() && !constant[id] && ty.dtype != DType::I32 && !node.op.is_f32_output(output);
                    if may_be_half && !f32.contains(&Value { node: id, output }) {
                        values[id][output] = half;
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

    /// The storage type of a value; a reshape shares the storage of its input.
    pub fn of(&self, graph: &Graph, value: Value) -> Storage {
        let root = root_of(graph, value);
        self.values[root.node][root.output]
    }

    /// The storage type of the operands of matrix products.
    pub fn operand(&self) -> Storage {
        Storage::half(self.precision).unwrap_or(Storage::F32)
    }

    /// The storage type in which a node reads an input.
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
            // What is read in f32 is stored in f32 (`stored_in_f32`).
            InputPrecision::AsStored | InputPrecision::F32 => stored,
        }
    }
}

/// Outputs, updates, and values with a consumer that needs f32.
fn stored_in_f32(graph: &Graph) -> HashSet<Value> {
    let named = graph.outputs().iter().map(|(_, v)| *v).chain(graph.updates().iter().map(|(_, v)| *v));
    let mut exact: HashSet<Value> = named.map(|v| root_of(graph, v)).collect();
    for node in graph.nodes() {
        for (i, &input) in node.inputs.iter().enumerate() {
            if node.op.input_precision(i) == InputPrecision::F32 {
                exact.insert(root_of(graph, input));
            }
        }
    }
    exact
}
