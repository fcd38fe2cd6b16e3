//! The first half of compilation: every node gets its kernel, every temporary its range in the arena.

use std::collections::HashMap;

use vit_graph::analysis::{computed_nodes, constant_nodes, in_place_updates};
use vit_graph::device::Memory;
use vit_graph::memory::{MemoryPlan, MemoryRequirements, root_of};
use vit_graph::ops::Operation;
use vit_graph::{Graph, GraphError, NodeId, Type, Value};

use super::DEVICE;
use crate::device::Processor;
use crate::isa::Isa;
use crate::lower::{Lowered, WeightPacking, lower};

/// From this many bytes on, values share arena ranges only with values of the same length, if the arena grows by at
/// most a tenth: every core then finds its rows at the same place of a range ([`MemoryRequirements::exact_fit_from`]).
const EXACT_FIT_FROM: usize = 1 << 20;

/// A graph with its kernels chosen and its memory planned, before any is allocated.
pub(crate) struct LoweredGraph {
    pub graph: Graph,
    /// By node; `None` for those that compute nothing.
    pub kernels: Vec<Option<Lowered>>,
    /// By node: whether it depends on constants and unchanged parameters alone.
    pub constant: Vec<bool>,
    /// The parameters that kernels overwrite, by the new value that takes their place.
    pub in_place: HashMap<Value, Value>,
    pub plan: MemoryPlan,
}

impl LoweredGraph {
    pub fn new(processor: &Processor, graph: Graph) -> Result<Self, GraphError> {
        let kernels = lower_all(processor, &graph)?;
        let constant = constant_nodes(&graph);
        let in_place = in_place_updates(&graph, |id| kernels[id].as_ref().is_some_and(|l| l.in_place));
        let workspace = |id: NodeId| kernels[id].as_ref().filter(|_| !constant[id]).map_or(0, |l| 4 * l.workspace);
        let outside = |v: Value| constant[v.node] || in_place.contains_key(&v);
        let planned = |exact_fit_from| {
            let requirements = MemoryRequirements {
                bytes: &|value| graph.ty(value).bytes(),
                workspace: &workspace,
                outside: &outside,
                in_place: &|id| kernels[id].as_ref().is_some_and(|l| l.in_place),
                runs_with: &|id| id,
                exact_fit_from,
            };
            MemoryPlan::with_requirements(&graph, requirements)
        };
        let (tight, exact) = (planned(usize::MAX), planned(EXACT_FIT_FROM));
        let plan = if exact.arena_bytes <= tight.arena_bytes / 10 * 11 { exact } else { tight };
        Ok(LoweredGraph { graph, kernels, constant, in_place, plan })
    }

    /// The memory of the executable, without values that exist only while constants are computed, and without the
    /// spares of outputs that nothing consumes.
    pub fn memory(&self, isa: Isa) -> Memory {
        let mut stored = 0;
        for (value, _) in unpacked_uses(&self.graph, &self.kernels, |id| !self.constant[id]) {
            if self.constant[value.node] {
                stored += 4 * self.graph.shape(value).elements();
            }
        }
        stored += self.graph.updates().iter().map(|(p, _)| self.graph.ty(*p).bytes()).sum::<usize>();
        for (id, lowered) in self.kernels.iter().enumerate() {
            if let Some(WeightPacking { input, form }) = lowered.as_ref().and_then(|l| l.packing) {
                let shape = self.graph.shape(self.graph.node(id).inputs[input]);
                stored += 4 * form.len(isa, shape[1], shape[0]);
            }
        }
        Memory { stored_bytes: stored, arena_bytes: self.plan.arena_bytes }
    }
}

fn lower_all(processor: &Processor, graph: &Graph) -> Result<Vec<Option<Lowered>>, GraphError> {
    let (computed, constant) = (computed_nodes(graph), constant_nodes(graph));
    let lower_one = |(id, node): (NodeId, &vit_graph::Node)| {
        if !computed[id] {
            return Ok(None);
        }
        let inputs: Vec<Type> = node.inputs.iter().map(|&v| graph.ty(v).clone()).collect();
        // A constant node runs only when parameters are set, as often as a weight is packed: packing would gain
        // nothing.
        let is_constant_weight = |&v: &Value| !constant[id] && constant[root_of(graph, v).node];
        let prepacked: Vec<bool> = node.inputs.iter().map(is_constant_weight).collect();
        let lowered = lower(processor, &node.op, &inputs, &node.outputs, &prepacked);
        lowered
            .map(Some)
            .map_err(|reason| GraphError::device(DEVICE, format!("{} in {}: {reason}", node.op.name(), node.path())))
    };
    graph.nodes().iter().enumerate().map(lower_one).collect()
}

/// How many kernels, outputs and updates use each value unpacked, of the kernels of those nodes for which `counts`
/// holds.
pub(super) fn unpacked_uses(
    graph: &Graph,
    kernels: &[Option<Lowered>],
    counts: impl Fn(NodeId) -> bool,
) -> HashMap<Value, usize> {
    let mut uses = HashMap::new();
    for (id, node) in graph.nodes().iter().enumerate().filter(|(id, _)| counts(*id)) {
        let Some(lowered) = &kernels[id] else { continue };
        for (i, &input) in node.inputs.iter().enumerate() {
            if lowered.packing.as_ref().is_none_or(|p| p.input != i) {
                *uses.entry(root_of(graph, input)).or_default() += 1;
            }
        }
    }
    let updates = graph.updates().iter().flat_map(|(parameter, new)| [parameter, new]);
    for value in graph.outputs().iter().map(|(_, value)| value).chain(updates) {
        *uses.entry(root_of(graph, *value)).or_default() += 1;
    }
    uses
}
