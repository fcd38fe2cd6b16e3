//! A graph made ready for the GPU before any memory is there: what is stored how and where, what runs with what, and how
//! much memory it all takes.

use std::collections::{HashMap, HashSet};

use vit_graph::analysis::{computed_nodes, constant_nodes, in_place_updates};
use vit_graph::device::{Memory, StepInfo};
use vit_graph::memory::{MemoryPlan, MemoryRequirements, storage};
use vit_graph::ops::{Op, Operation};
use vit_graph::{Graph, GraphError, NodeId, Phase, Type, Value};

use crate::Precision;
use crate::driver::error_with_hints;
use crate::driver::failure::Training;
use crate::driver::memory::ALIGNMENT;
use crate::lower::{self, Emitter, NormGradFusion, Operand};
use crate::plan::fusion::{Gate, Group, Groups, drops_samples};
use crate::plan::storage::{Storage, Storages};
use crate::run::launch::Request;

/// What a GPU is to the lowering of a graph.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Profile {
    pub precision: Precision,
    pub multiprocessors: usize,
    /// Whether kernels for Hopper alone can run.
    pub hopper: bool,
}

/// An address that nothing lies at, for learning what a node asks for.
const NOWHERE: u64 = 1 << 40;

/// Where memory of each kind starts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bases {
    pub arena: u64,
    pub stored: u64,
}

/// The forms in which a value outside the arena is kept, as offsets.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Forms {
    pub f32: Option<usize>,
    /// In 16 bits.
    pub short: Option<usize>,
    pub e4m3: Option<usize>,
}

/// A graph with its memory planned.
pub(crate) struct Prepared {
    pub graph: Graph,
    pub profile: Profile,
    pub storages: Storages,
    pub groups: Groups,
    /// Which nodes are computed once.
    pub constant: Vec<bool>,
    /// Which nodes have something to compute.
    computes: Vec<bool>,
    /// How often each value is used.
    uses: Vec<Vec<usize>>,
    /// New values that are written over the parameters that they update.
    pub in_place: HashMap<Value, Value>,
    /// Parameters, constants, and what follows from them alone.
    pub stored: HashMap<Value, Forms>,
    /// Where the factors of eight-bit values lie among what is stored: the factor, and at [`crate::plan::fp8::INVERSE`] its inverse.
    pub factors: HashMap<Value, usize>,
    /// Where each node's tables lie among what is stored.
    tables: HashMap<NodeId, usize>,
    pub plan: MemoryPlan,
    pub stored_bytes: usize,
    /// The most scratch memory that a node wants that is computed once.
    pub constant_scratch: usize,
}

impl Prepared {
    pub fn new(graph: Graph, profile: Profile) -> Result<Self, GraphError> {
        let uses = graph.uses();
        let computes = computed_nodes(&graph);
        let constant = constant_nodes(&graph);
        let storages = Storages::new(&graph, profile.precision, &constant);
        let in_place = in_place_updates(&graph, |_| true);
        let runs: Vec<bool> = computes.iter().zip(&constant).map(|(c, k)| *c && !k).collect();
        let groups = Groups::new(&graph, &runs, &in_place);
        let mut prepared = Prepared {
            plan: MemoryPlan::new(&Graph::new(), |_| 0, |_| false),
            graph,
            profile,
            storages,
            groups,
            constant,
            computes,
            uses,
            in_place,
            stored: HashMap::new(),
            factors: HashMap::new(),
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
        let needs = MemoryRequirements {
            bytes: &|value| {
                let elements = p.graph.shape(value).elements();
                (elements * p.storages.of(&p.graph, value).bytes()).next_multiple_of(ALIGNMENT)
            },
            workspace: &|node| scratch.get(&node).copied().unwrap_or(0),
            outside: &|v| p.constant[v.node] || p.in_place.contains_key(&v) || p.groups.unwritten.contains(&v),
            runs_with: &|node| p.groups.runs_with(node),
            exact_fit_from: usize::MAX,
        };
        prepared.plan = MemoryPlan::with_requirements(&prepared.graph, needs);
        Ok(prepared)
    }

    /// What the executable will hold.
    pub fn memory(&self) -> Memory {
        Memory { stored_bytes: self.stored_bytes, arena_bytes: self.plan.arena_bytes }
    }

    /// What is to be said of a training step that does not fit.
    pub fn training(&self) -> Option<Training> {
        let recomputes = self.graph.nodes().iter().any(|node| node.phase == Phase::Recompute);
        (!self.graph.updates().is_empty()).then_some(Training { recomputes })
    }

    /// Whether a value is kept outside the arena.
    fn is_stored(&self, root: Value) -> bool {
        self.constant[root.node] || matches!(self.graph.node(root.node).op, Op::Parameter(_))
    }

    /// Gives every stored value a place in the forms that somebody reads.
    fn place_stored(&mut self) {
        let graph = &self.graph;
        let mut wanted: HashSet<(Value, Storage)> = HashSet::new();
        for (id, node) in graph.nodes().iter().enumerate().filter(|(id, _)| self.computes[*id]) {
            for (i, &input) in node.inputs.iter().enumerate() {
                wanted.insert((storage(graph, input), self.storages.read_as(graph, id, i)));
            }
            // What is computed once is computed in f32 first.
            if self.constant[id] {
                wanted.extend((0..node.outputs.len()).map(|output| (Value { node: id, output }, Storage::F32)));
                wanted.extend(node.inputs.iter().map(|&input| (storage(graph, input), Storage::F32)));
            }
        }
        let updates = graph.updates().iter().flat_map(|(parameter, new)| [*parameter, *new]);
        wanted
            .extend(graph.outputs().iter().map(|(_, v)| *v).chain(updates).map(|v| (storage(graph, v), Storage::F32)));
        for (id, node) in graph.nodes().iter().enumerate() {
            for (output, ty) in node.outputs.iter().enumerate() {
                let value = Value { node: id, output };
                if !self.is_stored(value) || matches!(node.op, Op::Reshape(_)) {
                    continue;
                }
                let mut forms = Forms::default();
                let places = [
                    (Some(Storage::F32), &mut forms.f32),
                    (Storage::half(self.profile.precision), &mut forms.short),
                    (Some(Storage::E4m3), &mut forms.e4m3),
                ];
                for (form, place) in places {
                    let Some(form) = form else { continue };
                    if wanted.contains(&(value, form)) {
                        *place = Some(self.stored_bytes);
                        let bytes = ty.shape.elements() * form.bytes();
                        self.stored_bytes += bytes.next_multiple_of(ALIGNMENT);
                    }
                }
                self.stored.insert(value, forms);
            }
        }
        let fp8 = &self.storages.fp8;
        for &value in fp8.bounds.keys().chain(&fp8.weights) {
            self.factors.insert(value, self.stored_bytes);
            self.stored_bytes += ALIGNMENT;
        }
    }

    /// A value as kernels see it; without bases, at made-up addresses.
    pub fn operand(&self, value: Value, bases: Option<&Bases>) -> Operand {
        let root = storage(&self.graph, value);
        let target = self.in_place.get(&root).copied().unwrap_or(root);
        let base = bases.map_or(NOWHERE, |bases| bases.stored);
        let at = |offset: Option<usize>| offset.map_or(0, |offset| base + offset as u64);
        let (address, copy, eight) = match (self.stored.get(&target), bases) {
            (Some(forms), _) => (at(forms.f32), at(forms.short), at(forms.e4m3)),
            (None, Some(bases)) => {
                let block = self.plan.range(&self.graph, root);
                (block.map_or(0, |block| bases.arena + block.offset as u64), 0, 0)
            }
            (None, None) => {
                let input = matches!(self.graph.node(root.node).op, Op::Input(_));
                let used = input || self.uses[root.node][root.output] > 0;
                (if used && !self.groups.unwritten.contains(&root) { NOWHERE } else { 0 }, 0, 0)
            }
        };
        Operand {
            address,
            copy,
            e4m3: eight,
            scales: at(self.factors.get(&target).copied()),
            storage: self.storages.of(&self.graph, value),
            shape: self.graph.shape(value).clone(),
        }
    }

    /// What a node asks for, or the group that runs where it stands; `None` where there is nothing to do.
    pub fn emit(&self, id: NodeId, bases: Option<(&Bases, u64)>) -> Result<Option<Emitter>, GraphError> {
        if !self.computes[id] || self.groups.runs_with(id) != id {
            return Ok(None);
        }
        let node = self.graph.node(id);
        let outputs_of =
            |id: NodeId| (0..self.graph.node(id).outputs.len()).map(move |output| Value { node: id, output });
        let (inputs, outputs): (Vec<Value>, Vec<Value>) = match self.groups.at.get(&id) {
            None => (node.inputs.clone(), outputs_of(id).collect()),
            Some(Group::Updates(nodes)) => (
                nodes.iter().flat_map(|&n| self.graph.node(n).inputs.clone()).collect(),
                nodes.iter().flat_map(|&n| outputs_of(n)).collect(),
            ),
            Some(Group::NormGrad(group)) => {
                let norm = group.norm;
                let residual = group.residual.map(|(_, other)| other);
                let seed = group.drop.map(|drop| self.graph.node(drop).inputs[1]);
                let inputs = self.graph.node(norm).inputs.iter().copied().chain(residual).chain(seed);
                let [dgamma, dbeta] = [1, 2].map(|output| Value { node: norm, output });
                let more = [group.drop, group.sums].into_iter().flatten().map(|node| Value { node, output: 0 });
                (inputs.collect(), [group.result(), dgamma, dbeta].into_iter().chain(more).collect())
            }
            Some(Group::DroppedAddNorm(group)) => {
                let drop = &self.graph.node(group.drop).inputs;
                let inputs = [&[group.other, drop[0]], &node.inputs[2..], &[drop[1]]].concat();
                (inputs, outputs_of(id).collect())
            }
            Some(Group::ActivationGrad { grad, sums, .. }) => {
                (node.inputs.clone(), [*grad, *sums].map(|node| Value { node, output: 0 }).to_vec())
            }
            Some(Group::NormAndRelu { norm, relu, residual }) => {
                let inputs = self.graph.node(*norm).inputs.iter().copied().chain(*residual).collect();
                (inputs, outputs_of(*relu).chain(outputs_of(*norm).skip(1)).collect())
            }
            Some(Group::ReluGradAndNormGrad { relu, norm, gate }) => {
                let mut inputs = self.graph.node(*norm).inputs.clone();
                match gate {
                    Gate::Norm { beta } => {
                        inputs[0] = self.graph.node(*relu).inputs[1];
                        inputs.push(*beta);
                    }
                    Gate::Result { result, gradients } => {
                        inputs[0] = gradients[0];
                        inputs.extend([*result].into_iter().chain(gradients.get(1).copied()));
                    }
                }
                (inputs, outputs_of(*norm).chain(outputs_of(*relu)).collect())
            }
        };
        let operands = |values: &[Value]| {
            values.iter().map(|&v| self.operand(v, bases.map(|(bases, _)| bases))).collect::<Vec<_>>()
        };
        let table = self.tables.get(&id).copied().unwrap_or(0) as u64;
        let regions = bases.map_or([NOWHERE; 2], |(bases, scratch)| [scratch, bases.stored + table]);
        let mut emitter = Emitter::new(operands(&inputs), operands(&outputs), self.profile, regions);
        emitter.training = !self.graph.updates().is_empty();
        match self.groups.at.get(&id) {
            None => lower::node(&node.op, &mut emitter).map_err(|unsupported| {
                let reason = format!("{} in {}: {}", node.op.name(), node.path(), unsupported.reason);
                error_with_hints(reason, unsupported.hint.as_slice())
            })?,
            Some(Group::Updates(nodes)) => {
                let ops: Vec<&Op> = nodes.iter().map(|&n| &self.graph.node(n).op).collect();
                lower::updates(&ops, &mut emitter);
            }
            Some(Group::NormGrad(group)) => {
                let drop = group.drop.and_then(|drop| drops_samples(&self.graph.node(drop).op));
                let along = NormGradFusion { residual: group.residual.is_some(), drop, sums: group.sums.is_some() };
                lower::norm_grad(along, &mut emitter);
            }
            Some(Group::DroppedAddNorm(group)) => {
                let drop = drops_samples(&self.graph.node(group.drop).op);
                if let (Op::AddLayerNorm(op), Some(drop)) = (&node.op, drop) {
                    lower::dropped_add_norm(&op.0, drop, &mut emitter);
                }
            }
            Some(Group::ActivationGrad { activation, .. }) => {
                lower::activation_grad_and_sums(*activation, &mut emitter);
            }
            Some(Group::NormAndRelu { norm, .. }) => {
                if let Op::BatchNorm(op) = &self.graph.node(*norm).op {
                    lower::batch_norm_and_relu(op, &mut emitter);
                }
            }
            Some(Group::ReluGradAndNormGrad { gate, .. }) => match gate {
                Gate::Norm { .. } => lower::batch_norm_grad_of_relu(&mut emitter),
                Gate::Result { .. } => lower::batch_norm_grad_of_sum(&mut emitter),
            },
        }
        Ok(Some(emitter))
    }

    /// What works out the factors of eight-bit activations, once all constants are there.
    pub fn factor_requests(&self, bases: &Bases, scratch: u64) -> Vec<Request> {
        let addresses = self.factors.iter().map(|(value, &at)| (*value, bases.stored + at as u64)).collect();
        self.storages.fp8.requests(&self.graph, |v| self.operand(v, Some(bases)), &addresses, scratch)
    }

    /// What a node does, for people who look for what takes time.
    pub fn info(&self, id: NodeId, emitter: &Emitter) -> StepInfo {
        let node = self.graph.node(id);
        let inputs: Vec<Type> = node.inputs.iter().map(|&v| self.graph.ty(v).clone()).collect();
        let mut op = node.op.name().to_string();
        if let Op::Linear(linear) = &node.op {
            op.extend(linear.activation.map(|a| format!("+{}", a.name())));
            op.extend(linear.scale.then_some("+scale"));
            op.extend(linear.residual.then_some("+residual"));
            op.extend(self.storages.fp8.linears.contains(&id).then_some(" in eight bits"));
        }
        let tensor_cores = |request: &Request| match request {
            Request::Kernel(kernel) if kernel.variant.source.is_hopper() => Some("+wgmma"),
            Request::Kernel(kernel) if kernel.variant.source.name.starts_with("mma_") => Some("+mma"),
            _ => None,
        };
        op.extend(emitter.requests.iter().find_map(tensor_cores));
        let mut shapes: Vec<String> = inputs.iter().take(2).map(|t| t.shape.to_string()).collect();
        match self.groups.at.get(&id) {
            Some(Group::Updates(nodes)) => shapes = vec![format!("{} parameters", nodes.len())],
            Some(Group::NormGrad(group)) => {
                op = "layer_norm_grad".into();
                op.extend(group.residual.map(|_| "+add"));
                op.extend(group.drop.map(|_| "+drop_path"));
                op.extend(group.sums.map(|_| "+sums"));
            }
            Some(Group::DroppedAddNorm(_)) => op = "drop_path+add_layer_norm".into(),
            Some(Group::ActivationGrad { .. }) => op.push_str("+sums"),
            Some(Group::NormAndRelu { residual, .. }) => {
                op = if residual.is_some() { "batch_norm+add+relu" } else { "batch_norm+relu" }.into();
            }
            Some(Group::ReluGradAndNormGrad { .. }) => op = "relu_grad+batch_norm_grad".into(),
            None => {}
        }
        let bytes = |operand: &Operand| (operand.shape.elements() * operand.storage.bytes()) as u64;
        StepInfo {
            op,
            shapes: shapes.join(" "),
            scope: node.path(),
            flops: node.op.flops(&inputs, &node.outputs),
            bytes: emitter.inputs.iter().chain(emitter.outputs.iter().filter(|o| o.is_used())).map(bytes).sum(),
        }
    }
}
