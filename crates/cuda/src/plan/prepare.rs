//! A graph planned for the GPU before any memory is allocated: storage types, fusion, offsets, and the memory it
//! needs.

use std::collections::{HashMap, HashSet};

use vit_graph::analysis::{computed_nodes, constant_nodes, in_place_updates};
use vit_graph::device::{Memory, StepInfo};
use vit_graph::memory::{MemoryPlan, MemoryRequirements, root_of};
use vit_graph::ops::{Op, Operation};
use vit_graph::{Graph, GraphError, NodeId, Phase, Type, Value};

use crate::Precision;
use crate::driver::error_with_hints;
use crate::driver::failure::Training;
use crate::driver::memory::ALIGNMENT;
use crate::lower::{self, Emitter, Operand};
use crate::plan::fusion::FusionGroups;
use crate::plan::group::FusionGroup;
use crate::plan::storage::{Storage, Storages};
use crate::run::launch::Request;

/// The precision and the properties of a GPU that lowering depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoweringTarget {
    pub precision: Precision,
    pub multiprocessors: usize,
    /// Whether kernels with wgmma and TMA can run.
    pub hopper: bool,
}

/// A placeholder address, for lowering before memory is allocated: not 0, which means no operand, and as aligned as any
/// allocation.
const PLACEHOLDER: u64 = 1 << 40;

/// The addresses of the arena, which holds the values of one run, and of the buffer of stored values, which persist
/// between runs: parameters, constants, values computed once, quantisation scales, tables.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bases {
    pub arena: u64,
    pub stored: u64,
}

/// The offsets of a value in the buffer of stored values, in each storage type in which it is read.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct StoredForms {
    pub f32: Option<usize>,
    /// In the 16-bit type of the precision, bf16 or f16.
    pub half: Option<usize>,
    pub e4m3: Option<usize>,
}

/// A graph with its memory planned.
pub(crate) struct Prepared {
    pub graph: Graph,
    pub target: LoweringTarget,
    pub storages: Storages,
    pub groups: FusionGroups,
    /// The nodes that depend only on constants and on parameters that runs do not update, so they are computed once.
    pub constant: Vec<bool>,
    /// [`computed_nodes`].
    computes: Vec<bool>,
    /// The number of uses of each value ([`Graph::uses`]).
    uses: Vec<Vec<usize>>,
    /// New values that overwrite the parameter that they update, each mapped to that parameter.
    pub in_place: HashMap<Value, Value>,
    /// Parameters, constants, and the outputs of constant nodes.
    pub stored: HashMap<Value, StoredForms>,
    /// The offsets, in the buffer of stored values, of the quantisation scales of values that are read in e4m3;
    /// [`crate::plan::fp8::INVERSE`] bytes further is the inverse.
    pub scales: HashMap<Value, usize>,
    /// The offset, in the buffer of stored values, of the constant tables that a node's kernels read, uploaded in
    /// advance.
    tables: HashMap<NodeId, usize>,
    /// Of the arena.
    pub plan: MemoryPlan,
    /// The size of the buffer of stored values.
    pub stored_bytes: usize,
    /// The most scratch memory of a constant node, or of the computation of quantisation scales.
    pub constant_scratch: usize,
}

impl Prepared {
    pub fn new(graph: Graph, target: LoweringTarget) -> Result<Self, GraphError> {
        let uses = graph.uses();
        let computes = computed_nodes(&graph);
        let constant = constant_nodes(&graph);
        let storages = Storages::new(&graph, target.precision, &constant);
        let in_place = in_place_updates(&graph, |_| true);
        let runs: Vec<bool> = computes.iter().zip(&constant).map(|(c, k)| *c && !k).collect();
        let groups = FusionGroups::new(&graph, &runs, &in_place);
        let mut prepared = Prepared {
            // Replaced below, when the scratch memory of all nodes is known.
            plan: MemoryPlan::new(&Graph::new(), |_| 0, |_| false),
            graph,
            target,
            storages,
            groups,
            constant,
            computes,
            uses,
            in_place,
            stored: HashMap::new(),
            scales: HashMap::new(),
            tables: HashMap::new(),
            stored_bytes: 0,
            constant_scratch: 0,
        };
        prepared.place_stored();
        prepared.constant_scratch = prepared.storages.fp8.scratch_bytes(&prepared.graph);
        let mut scratch = HashMap::new();
        for id in 0..prepared.graph.nodes().len() {
            let Some(emitter) = prepared.emit(id, None)? else { continue };
            if emitter.table_bytes() > 0 {
                prepared.tables.insert(id, prepared.stored_bytes);
                prepared.stored_bytes += emitter.table_bytes();
            }
            if prepared.constant[id] {
                prepared.constant_scratch = prepared.constant_scratch.max(emitter.scratch_bytes());
            } else {
                scratch.insert(id, emitter.scratch_bytes());
            }
        }
        let p = &prepared;
        let requirements = MemoryRequirements {
            bytes: &|value| {
                let elements = p.graph.shape(value).elements();
                (elements * p.storages.of(&p.graph, value).bytes()).next_multiple_of(ALIGNMENT)
            },
            workspace: &|node| scratch.get(&node).copied().unwrap_or(0),
            outside: &|v| p.constant[v.node] || p.in_place.contains_key(&v) || p.groups.unwritten.contains(&v),
            // Every kernel can update in place what its operation allows.
            in_place: &|_| true,
            runs_with: &|node| p.groups.runs_with(node),
            // No buffer is that large: exact fits cost memory and help only the private caches of CPU cores.
            exact_fit_from: usize::MAX,
        };
        prepared.plan = MemoryPlan::with_requirements(&prepared.graph, requirements);
        Ok(prepared)
    }

    /// The memory that the executable keeps; while it is created, `constant_scratch` comes on top.
    pub fn memory(&self) -> Memory {
        Memory { stored_bytes: self.stored_bytes, arena_bytes: self.plan.arena_bytes }
    }

    /// Whether a training step recomputes activations, for the hint of an out-of-memory error; `None` for inference.
    pub fn training(&self) -> Option<Training> {
        let recomputes = self.graph.nodes().iter().any(|node| node.phase == Phase::Recompute);
        (!self.graph.updates().is_empty()).then_some(Training { recomputes })
    }

    /// Whether the outputs of a node are in the buffer of stored values. Those of a reshape share its input's place.
    fn stores_outputs(&self, id: NodeId) -> bool {
        match self.graph.node(id).op {
            Op::Parameter(_) => true,
            Op::Reshape(_) => false,
            _ => self.constant[id],
        }
    }

    /// Assigns offsets to stored values, in the forms that have consumers.
    fn place_stored(&mut self) {
        let graph = &self.graph;
        let mut read: HashSet<(Value, Storage)> = HashSet::new();
        for (id, node) in graph.nodes().iter().enumerate().filter(|(id, _)| self.computes[*id]) {
            for (i, &input) in node.inputs.iter().enumerate() {
                read.insert((root_of(graph, input), self.storages.read_as(graph, id, i)));
            }
            // Constant nodes read and write f32; products among them also read the forms above.
            if self.constant[id] {
                read.extend((0..node.outputs.len()).map(|output| (Value { node: id, output }, Storage::F32)));
                read.extend(node.inputs.iter().map(|&input| (root_of(graph, input), Storage::F32)));
            }
        }
        let updates = graph.updates().iter().flat_map(|(parameter, new)| [*parameter, *new]);
        read.extend(graph.outputs().iter().map(|(_, v)| *v).chain(updates).map(|v| (root_of(graph, v), Storage::F32)));
        for (id, node) in graph.nodes().iter().enumerate() {
            if !self.stores_outputs(id) {
                continue;
            }
            for (output, ty) in node.outputs.iter().enumerate() {
                let value = Value { node: id, output };
                let mut forms = StoredForms::default();
                let offsets = [
                    (Some(Storage::F32), &mut forms.f32),
                    (Storage::half(self.target.precision), &mut forms.half),
                    (Some(Storage::E4m3), &mut forms.e4m3),
                ];
                for (form, offset) in offsets {
                    let Some(form) = form else { continue };
                    if read.contains(&(value, form)) {
                        *offset = Some(self.stored_bytes);
                        let bytes = ty.shape.elements() * form.bytes();
                        self.stored_bytes += bytes.next_multiple_of(ALIGNMENT);
                    }
                }
                self.stored.insert(value, forms);
            }
        }
        let fp8 = &self.storages.fp8;
        for &value in fp8.bounds.keys().chain(&fp8.weights) {
            self.scales.insert(value, self.stored_bytes);
            self.stored_bytes += ALIGNMENT;
        }
    }

    /// A value as an operand of kernels; without bases, at placeholder addresses.
    pub fn operand(&self, value: Value, bases: Option<&Bases>) -> Operand {
        let root = root_of(&self.graph, value);
        // A new value that overwrites its parameter is where the parameter is.
        let place = self.in_place.get(&root).copied().unwrap_or(root);
        let base = bases.map_or(PLACEHOLDER, |bases| bases.stored);
        let at = |offset: Option<usize>| offset.map_or(0, |offset| base + offset as u64);
        let (address, half, e4m3) = match (self.stored.get(&place), bases) {
            (Some(forms), _) => (at(forms.f32), at(forms.half), at(forms.e4m3)),
            (None, Some(bases)) => {
                let range = self.plan.range(&self.graph, root);
                (range.map_or(0, |range| bases.arena + range.offset as u64), 0, 0)
            }
            (None, None) => {
                // Before there is a plan, outputs without uses have no address. The plan may give one to the first
                // output (`always_writes_first_output`); the scratch memory that is counted for it here then stays
                // unused.
                let input = matches!(self.graph.node(root.node).op, Op::Input(_));
                let used = input || self.uses[root.node][root.output] > 0;
                (if used && !self.groups.unwritten.contains(&root) { PLACEHOLDER } else { 0 }, 0, 0)
            }
        };
        Operand {
            address,
            half,
            e4m3,
            scales: at(self.scales.get(&place).copied()),
            storage: self.storages.of(&self.graph, value),
            shape: self.graph.shape(value).clone(),
        }
    }

    /// The requests of a node, or of the group that it leads; `None` if it computes nothing or is in another node's
    /// group. `bases` come with the address of the node's scratch memory; without them, addresses are placeholders.
    pub fn emit(&self, id: NodeId, bases: Option<(&Bases, u64)>) -> Result<Option<Emitter>, GraphError> {
        if !self.computes[id] || self.groups.runs_with(id) != id {
            return Ok(None);
        }
        let node = self.graph.node(id);
        let group = self.groups.by_leader.get(&id);
        let (inputs, outputs) = match group {
            Some(group) => group.operands(&self.graph, id),
            None => {
                let outputs = (0..node.outputs.len()).map(|output| Value { node: id, output });
                (node.inputs.clone(), outputs.collect())
            }
        };
        let operands = |values: &[Value]| {
            values.iter().map(|&v| self.operand(v, bases.map(|(bases, _)| bases))).collect::<Vec<_>>()
        };
        let table = self.tables.get(&id).copied().unwrap_or(0) as u64;
        let scratch_and_tables = bases.map_or([PLACEHOLDER; 2], |(bases, scratch)| [scratch, bases.stored + table]);
        let mut emitter = Emitter::new(operands(&inputs), operands(&outputs), self.target, scratch_and_tables);
        emitter.training = !self.graph.updates().is_empty();
        let lowered = lower::check_extents(&emitter).and_then(|()| match group {
            Some(group) => {
                group.lower(&self.graph, &mut emitter);
                Ok(())
            }
            None => lower::node(&node.op, &mut emitter),
        });
        lowered.and_then(|()| lower::check_arguments(&emitter)).map_err(|unsupported| {
            let reason = format!("{} in {}: {}", node.op.name(), node.path(), unsupported.reason);
            error_with_hints(reason, unsupported.hint.as_slice())
        })?;
        Ok(Some(emitter))
    }

    /// The requests that compute the quantisation scales of activations; they must run after the constant nodes. Those
    /// of weights were uploaded with the weights.
    pub fn scale_requests(&self, bases: &Bases, scratch: u64) -> Vec<Request> {
        let addresses = self.scales.iter().map(|(value, &at)| (*value, bases.stored + at as u64)).collect();
        self.storages.fp8.requests(&self.graph, |v| self.operand(v, Some(bases)), &addresses, scratch)
    }

    /// A description of a node's launches, for profiles.
    pub fn info(&self, id: NodeId, emitter: &Emitter) -> StepInfo {
        let node = self.graph.node(id);
        let inputs: Vec<Type> = node.inputs.iter().map(|&v| self.graph.ty(v).clone()).collect();
        let mut op = node.op.label();
        op.extend(self.storages.fp8.linears.contains(&id).then_some(" in fp8"));
        let tensor_cores = |request: &Request| match request {
            Request::Kernel(kernel) if kernel.variant.source.is_hopper() => Some("+wgmma"),
            Request::Kernel(kernel) if kernel.variant.source.name.starts_with("mma_") => Some("+mma"),
            _ => None,
        };
        op.extend(emitter.requests.iter().find_map(tensor_cores));
        let mut shapes: Vec<String> = inputs.iter().take(2).map(|t| t.shape.to_string()).collect();
        if let Some(group) = self.groups.by_leader.get(&id) {
            op = group.name(op);
            if let FusionGroup::Updates(nodes) = group {
                shapes = vec![format!("{} parameters", nodes.len())];
            }
        }
        let bytes = |operand: &Operand| (operand.shape.elements() * operand.storage.bytes()) as u64;
        StepInfo {
            op,
            shapes: shapes.join(" "),
            scope: node.path(),
            flops: node.op.flops(&inputs, &node.outputs),
            bytes: emitter.inputs.iter().chain(emitter.outputs.iter().filter(|o| o.is_written())).map(bytes).sum(),
        }
    }
}
