//! A graph made ready for the CPU: every node a kernel with its operands' addresses, all memory in one arena.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use vit_graph::analysis::{computed_nodes, constant_nodes, in_place_updates};
use vit_graph::device::{Elements, Executable, Memory, Parameters, StepInfo};
use vit_graph::memory::{ArenaRange, MemoryPlan, storage};
use vit_graph::ops::{Data, Op, Operation, Parameter};
use vit_graph::{Graph, GraphError, NodeId, Type, Value};

use crate::buffer::Buffer;
use crate::device::Processor;
use crate::isa::Isa;
use crate::lower::{Kernel, Lowered, Packing, lower};

const DEVICE: &str = "cpu";
/// From how many bytes on a value keeps to places of its own length, so that its parts stay with their cores, if that
/// takes no more than a tenth more memory.
const LARGE: usize = 1 << 20;

/// One kernel and where its operands lie. The addresses stay valid for the life of the executable, because the arena
/// and the stored values never move.
struct Step {
    kernel: Kernel,
    inputs: Vec<*const [f32]>,
    outputs: Vec<*mut [f32]>,
    workspace: *mut [f32],
    info: StepInfo,
    /// Copied before the kernel runs: inputs that it changes in place and that somebody else still needs.
    copies: Vec<(*const [f32], *mut [f32])>,
}

impl Step {
    fn run(&mut self, processor: &Processor) {
        for &(from, to) in &self.copies {
            // SAFETY: both are blocks of the arena or stored values, of one length, and do not overlap.
            unsafe { (*to).copy_from_slice(&*from) };
        }
        let inputs = &raw const *self.inputs as *const [&[f32]];
        let outputs = &raw mut *self.outputs as *mut [&mut [f32]];
        // SAFETY: a reference and a raw pointer to a slice have one layout. The memory plan gives every value that is
        // alive during a step its own block (`assert_disjoint` checked it, for stored values too), and `run` holds the
        // executable exclusively.
        let (inputs, outputs, workspace) = unsafe { (&*inputs, &mut *outputs, &mut *self.workspace) };
        (self.kernel)(processor, inputs, outputs, workspace);
    }
}

/// A graph that is ready to run on the CPU.
pub(crate) struct CpuExecutable {
    processor: Arc<Processor>,
    steps: Vec<Step>,
    arena: Buffer,
    constants: Constants,
    stored: Stored,
    /// Outputs without a consumer that their kernel needs to work in.
    spares: Vec<Buffer>,
    inputs: HashMap<String, (Type, *mut [f32])>,
    outputs: HashMap<String, (Type, *const [f32])>,
    /// Parameters that are kept as they are.
    parameters: HashMap<String, (Type, *const [f32])>,
    /// New values of parameters that no kernel writes in place: copied when all kernels have run.
    updates: Vec<(*const [f32], *mut [f32])>,
    /// Numbers that were asked for and not taken yet.
    answers: VecDeque<f32>,
}

// SAFETY: the raw pointers point into buffers that this value owns.
unsafe impl Send for CpuExecutable {}

/// A graph with its kernels chosen and its memory planned, before any parameter is there.
pub(crate) struct Prepared {
    graph: Graph,
    lowered: Vec<Option<Lowered>>,
    constant: Vec<bool>,
    plan: MemoryPlan,
}

impl Prepared {
    pub fn new(processor: &Processor, graph: Graph) -> Result<Self, GraphError> {
        let lowered = lower_all(processor, &graph)?;
        let constant = constant_nodes(&graph);
        let in_place = in_place_updates(&graph, |id| lowered[id].as_ref().is_some_and(|l| l.in_place));
        let workspace = |id: NodeId| lowered[id].as_ref().filter(|_| !constant[id]).map_or(0, |l| 4 * l.workspace);
        let outside = |v: Value| constant[v.node] || in_place.contains_key(&v);
        let tight = MemoryPlan::new(&graph, workspace, outside);
        let apart = MemoryPlan::with_exact_fit(&graph, workspace, outside, LARGE);
        let plan = if apart.arena_bytes <= tight.arena_bytes / 10 * 11 { apart } else { tight };
        Ok(Prepared { graph, lowered, constant, plan })
    }

    /// What the executable will hold: values that are read as they are, and the packed form of weights.
    pub fn memory(&self, isa: Isa) -> Memory {
        let mut stored = 0;
        for (value, _) in raw_uses(&self.graph, &self.lowered, &self.constant) {
            if self.constant[value.node] {
                stored += 4 * self.graph.shape(value).elements();
            }
        }
        stored += self.graph.updates().iter().map(|(p, _)| self.graph.ty(*p).bytes()).sum::<usize>();
        for (id, lowered) in self.lowered.iter().enumerate() {
            if let Some(Packing { input, form }) = lowered.as_ref().and_then(|l| l.packing) {
                let shape = self.graph.shape(self.graph.node(id).inputs[input]);
                stored += 4 * form.len(isa, shape[1], shape[0]);
            }
        }
        Memory { stored_bytes: stored, arena_bytes: self.plan.arena_bytes }
    }
}

impl CpuExecutable {
    pub fn new(
        processor: Arc<Processor>,
        prepared: Prepared,
        parameters: &mut dyn Parameters,
    ) -> Result<Self, GraphError> {
        let Prepared { graph, mut lowered, constant, plan } = prepared;
        let packing = |(id, lowered): (NodeId, &Option<Lowered>)| Some((id, lowered.as_ref()?.packing?));
        let packings: Vec<(NodeId, Packing)> = lowered.iter().enumerate().filter_map(packing).collect();
        let uses = raw_uses(&graph, &lowered, &vec![false; graph.nodes().len()]);
        let in_place_updates = in_place_updates(&graph, |id| lowered[id].as_ref().is_some_and(|l| l.in_place));
        let updated: HashSet<NodeId> = graph.updates().iter().map(|(parameter, _)| parameter.node).collect();
        let nodes = (0..graph.nodes().len()).filter(|id| constant[*id] || updated.contains(id));
        let nodes = nodes.map(|id| (id, lowered[id].take())).collect();
        let constants = Constants { graph, nodes, packings, uses };
        // First, since steps are made with the final addresses of what they read.
        let mut stored = Stored::default();
        constants.compute(&processor, parameters, &mut stored)?;
        let graph = &constants.graph;
        let mut arena = Buffer::new(plan.arena_bytes / 4)?;
        let base = arena.as_mut_slice().as_mut_ptr();
        let place = |block: Option<ArenaRange>| match block {
            // SAFETY: the plan keeps every block inside the arena.
            Some(block) => unsafe { std::ptr::slice_from_raw_parts_mut(base.add(block.offset / 4), block.bytes / 4) },
            None => empty(),
        };
        let mut fixed: HashMap<Value, *mut [f32]> =
            stored.values.iter().map(|(value, buffer)| (*value, buffer.as_raw_slice())).collect();
        for (new, parameter) in in_place_updates {
            fixed.insert(new, fixed[&parameter]);
        }
        let address = |value: Value| {
            let root = storage(graph, value);
            fixed.get(&root).copied().unwrap_or_else(|| place(plan.range(graph, root)))
        };
        let (mut steps, mut spares) = (Vec::new(), Vec::new());
        for (id, node) in graph.nodes().iter().enumerate() {
            let Some(Lowered { kernel, packing, in_place, .. }) = lowered[id].take() else { continue };
            let mut inputs: Vec<*const [f32]> = node.inputs.iter().map(|&v| address(v).cast_const()).collect();
            if let Some(Packing { input, .. }) = packing
                && let Some(buffer) = stored.packed.get(&(id, input))
            {
                inputs[input] = buffer.as_raw_slice().cast_const();
            }
            let mut outputs: Vec<*mut [f32]> =
                (0..node.outputs.len()).map(|output| address(Value { node: id, output })).collect();
            let mut copies = Vec::new();
            let updated = if in_place { node.op.in_place() } else { &[] };
            for &(input, output) in updated {
                if outputs[output].is_empty() {
                    // Nobody wants this output, but the kernel needs a place to work in.
                    spares.push(Buffer::new(node.outputs[output].shape.elements())?);
                    outputs[output] =
                        spares.last_mut().map_or(empty(), |spare| std::ptr::from_mut(spare.as_mut_slice()));
                }
                let (from, to) = (std::mem::replace(&mut inputs[input], empty()), outputs[output]);
                if from.cast::<f32>() != to.cast_const().cast::<f32>() {
                    copies.push((from, to));
                }
            }
            let workspace = place(plan.workspace(id));
            assert_disjoint(&inputs, &outputs, workspace);
            steps.push(Step { kernel, inputs, outputs, workspace, copies, info: info(graph, id) });
        }
        let mut updates = Vec::new();
        for (parameter, new) in graph.updates() {
            let (to, from) = (address(*parameter), address(*new).cast_const());
            if from.cast::<f32>() != to.cast_const().cast::<f32>() {
                updates.push((from, to));
            }
        }
        let named = |value: Value| (graph.ty(value).clone(), address(value));
        let inputs =
            graph.inputs().map(|(node, input)| (input.name.clone(), named(Value { node, output: 0 }))).collect();
        let read = |value: Value| (graph.ty(value).clone(), address(value).cast_const());
        let outputs = graph.outputs().iter().map(|(name, value)| (name.clone(), read(*value))).collect();
        let parameters = graph
            .parameters()
            .map(|(node, parameter)| (parameter.name.clone(), Value { node, output: 0 }))
            .filter(|(_, value)| fixed.contains_key(value))
            .map(|(name, value)| (name, read(value)))
            .collect();
        let answers = VecDeque::new();
        Ok(CpuExecutable {
            processor,
            steps,
            arena,
            constants,
            stored,
            spares,
            inputs,
            outputs,
            parameters,
            updates,
            answers,
        })
    }
}

/// What a node does, for people who look for what takes time.
fn info(graph: &Graph, id: NodeId) -> StepInfo {
    let node = graph.node(id);
    let inputs: Vec<Type> = node.inputs.iter().map(|&v| graph.ty(v).clone()).collect();
    let mut op = node.op.name().to_string();
    if let Op::Linear(linear) = &node.op {
        op.extend(linear.activation.map(|a| format!("+{}", a.name())));
        op.extend(linear.scale.then_some("+scale"));
        op.extend(linear.residual.then_some("+residual"));
    }
    if let Op::FusedConv2d(conv) = &node.op {
        op.extend(conv.depthwise().then_some(" depthwise"));
        op.extend(conv.activation.map(|a| format!("+{}", a.name())));
        op.extend(conv.residual.map(|_| "+residual"));
    }
    let shapes: Vec<String> = inputs.iter().take(2).map(|t| t.shape.to_string()).collect();
    StepInfo {
        op,
        shapes: shapes.join(" "),
        scope: node.path(),
        flops: node.op.flops(&inputs, &node.outputs),
        bytes: inputs.iter().chain(&node.outputs[..1]).map(|t| t.bytes() as u64).sum(),
    }
}

fn empty() -> *mut [f32] {
    std::ptr::slice_from_raw_parts_mut(std::ptr::NonNull::dangling().as_ptr(), 0)
}

/// A kernel for every node that computes something.
fn lower_all(processor: &Processor, graph: &Graph) -> Result<Vec<Option<Lowered>>, GraphError> {
    let (computed, constant) = (computed_nodes(graph), constant_nodes(graph));
    let lower_one = |(id, node): (NodeId, &vit_graph::Node)| {
        if !computed[id] {
            return Ok(None);
        }
        let inputs: Vec<Type> = node.inputs.iter().map(|&v| graph.ty(v).clone()).collect();
        let fixed: Vec<bool> = node.inputs.iter().map(|&v| !constant[id] && constant[storage(graph, v).node]).collect();
        let lowered = lower(processor, &node.op, &inputs, &node.outputs, &fixed);
        lowered
            .map(Some)
            .map_err(|reason| GraphError::device(DEVICE, format!("{} in {}: {reason}", node.op.name(), node.path())))
    };
    graph.nodes().iter().enumerate().map(lower_one).collect()
}

/// How often each value is read in its own form, by kernels and outputs; packed readers do not count, nor do nodes that
/// are left out.
fn raw_uses(graph: &Graph, lowered: &[Option<Lowered>], left_out: &[bool]) -> HashMap<Value, usize> {
    let mut uses = HashMap::new();
    for (id, node) in graph.nodes().iter().enumerate().filter(|(id, _)| !left_out[*id]) {
        let Some(lowered) = &lowered[id] else { continue };
        for (i, &input) in node.inputs.iter().enumerate() {
            if lowered.packing.as_ref().is_none_or(|p| p.input != i) {
                *uses.entry(storage(graph, input)).or_default() += 1;
            }
        }
    }
    let updates = graph.updates().iter().flat_map(|(parameter, new)| [parameter, new]);
    for value in graph.outputs().iter().map(|(_, value)| value).chain(updates) {
        *uses.entry(storage(graph, *value)).or_default() += 1;
    }
    uses
}

/// Parameters, constants and values that follow from them alone, as long as runs do not change them. A buffer that steps
/// read is allocated once and never moves.
#[derive(Default)]
struct Stored {
    values: HashMap<Value, Buffer>,
    /// Weights of matrix products, by the node that reads them and which of its inputs they are.
    packed: HashMap<(NodeId, usize), Buffer>,
}

/// How everything in [`Stored`] is computed from parameters.
struct Constants {
    graph: Graph,
    /// Nodes with a stored value, in topological order; those that compute something with their kernel.
    nodes: Vec<(NodeId, Option<Lowered>)>,
    /// Every node that takes an input in packed form.
    packings: Vec<(NodeId, Packing)>,
    /// How many kernels and outputs read each value unpacked.
    uses: HashMap<Value, usize>,
}

impl Constants {
    /// Fills the buffers; values that no step reads unpacked are dropped after their last consumer in here.
    fn compute(
        &self,
        processor: &Processor,
        parameters: &mut dyn Parameters,
        stored: &mut Stored,
    ) -> Result<(), GraphError> {
        let mut remaining = self.uses.clone();
        for (id, lowered) in &self.nodes {
            let node = self.graph.node(*id);
            let value = Value { node: *id, output: 0 };
            match &node.op {
                Op::Parameter(parameter) => {
                    let elements = parameters.take(parameter).ok_or_else(|| {
                        let Parameter { name, shape, .. } = parameter;
                        GraphError::device(DEVICE, format!("no weights for the parameter `{name}` {shape}"))
                    })?;
                    Elements::F32(&elements).check(&parameter.name, &node.outputs[0])?;
                    self.store(processor, value, &elements, &remaining, stored)?;
                }
                Op::Constant(constant) => {
                    let count = constant.shape.elements();
                    let elements: Vec<f32> = match &constant.data {
                        Data::F32(data) if data.len() == count => data.to_vec(),
                        Data::F32(data) => vec![data[0]; count],
                        Data::I32(data) if data.len() == count => bytemuck::cast_slice(data).to_vec(),
                        Data::I32(data) => vec![f32::from_bits(data[0] as u32); count],
                    };
                    self.store(processor, value, &elements, &remaining, stored)?;
                }
                _ => {
                    let Some(lowered) = lowered else { continue };
                    let results = self.run(processor, *id, lowered, stored)?;
                    for root in node.inputs.iter().map(|&input| storage(&self.graph, input)) {
                        let Some(left) = remaining.get_mut(&root) else { continue };
                        *left = left.saturating_sub(1);
                        if *left == 0 {
                            stored.values.remove(&root);
                        }
                    }
                    for (output, result) in results.iter().enumerate() {
                        self.store(processor, Value { node: *id, output }, result.as_slice(), &remaining, stored)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn run(
        &self,
        processor: &Processor,
        id: NodeId,
        Lowered { kernel, workspace, in_place, .. }: &Lowered,
        stored: &Stored,
    ) -> Result<Vec<Buffer>, GraphError> {
        let node = self.graph.node(id);
        let sizes = node.outputs.iter().map(|ty| ty.shape.elements());
        let mut results = sizes.map(Buffer::new).collect::<Result<Vec<Buffer>, GraphError>>()?;
        let input = |&value: &Value| stored.values[&storage(&self.graph, value)].as_slice();
        let inputs: Vec<&[f32]> = node.inputs.iter().map(input).collect();
        let mut outputs: Vec<&mut [f32]> = results.iter_mut().map(Buffer::as_mut_slice).collect();
        let updated = if *in_place { node.op.in_place() } else { &[] };
        updated.iter().for_each(|&(input, output)| outputs[output].copy_from_slice(inputs[input]));
        kernel(processor, &inputs, &mut outputs, Buffer::new(*workspace)?.as_mut_slice());
        Ok(results)
    }

    /// Packs a value for the matrix products that read it packed, and keeps it unpacked for all other consumers.
    fn store(
        &self,
        processor: &Processor,
        value: Value,
        elements: &[f32],
        remaining: &HashMap<Value, usize>,
        stored: &mut Stored,
    ) -> Result<(), GraphError> {
        for (id, Packing { input, form }) in &self.packings {
            let weight = self.graph.node(*id).inputs[*input];
            if storage(&self.graph, weight) == value {
                let (n, k) = (self.graph.shape(weight)[0], self.graph.shape(weight)[1]);
                let buffer = match stored.packed.entry((*id, *input)) {
                    Entry::Occupied(entry) => entry.into_mut(),
                    Entry::Vacant(entry) => entry.insert(Buffer::new(form.len(processor.isa, k, n))?),
                };
                form.pack(processor, elements, k, n, buffer.as_mut_slice());
            }
        }
        if remaining.get(&value).is_some_and(|&uses| uses > 0) {
            match stored.values.entry(value) {
                Entry::Occupied(mut entry) => entry.get_mut().as_mut_slice().copy_from_slice(elements),
                Entry::Vacant(entry) => _ = entry.insert(Buffer::from(elements)?),
            }
        }
        Ok(())
    }
}

/// The promise that makes running sound: nothing that a step writes is also read or written elsewhere in it.
fn assert_disjoint(inputs: &[*const [f32]], outputs: &[*mut [f32]], workspace: *mut [f32]) {
    let range = |slice: *const [f32]| {
        let start = slice.cast::<f32>() as usize;
        start..start + 4 * slice.len()
    };
    let written: Vec<_> = outputs.iter().map(|s| range(s.cast_const())).chain([range(workspace)]).collect();
    let overlap = |a: &std::ops::Range<usize>, b: &std::ops::Range<usize>| a.start < b.end && b.start < a.end;
    for (i, block) in written.iter().enumerate() {
        assert!(!written[i + 1..].iter().any(|other| overlap(block, other)), "outputs of a kernel overlap");
        assert!(!inputs.iter().any(|input| overlap(block, &range(*input))), "a kernel would write its own input");
    }
}

impl CpuExecutable {
    fn apply_updates(&mut self) {
        for &(from, to) in &self.updates {
            // SAFETY: a value and the parameter that it becomes have one type and different places.
            unsafe { (*to).copy_from_slice(&*from) };
        }
    }
}

impl Executable for CpuExecutable {
    fn write(&mut self, input: &str, elements: Elements) -> Result<(), GraphError> {
        let Some((ty, place)) = self.inputs.get(input) else {
            let mut known: Vec<&str> = self.inputs.keys().map(String::as_str).collect();
            known.sort_unstable();
            return Err(GraphError::UnknownName { kind: "input", name: input.into(), known: known.join(", ") });
        };
        elements.check(input, ty)?;
        // SAFETY: the pointer is to the input's block of the arena, and `self` is borrowed exclusively.
        let place = unsafe { &mut **place };
        match elements {
            Elements::F32(data) => place.copy_from_slice(data),
            Elements::I32(data) => place.copy_from_slice(bytemuck::cast_slice(data)),
        }
        Ok(())
    }

    fn run(&mut self) -> Result<(), GraphError> {
        for step in &mut self.steps {
            step.run(&self.processor);
        }
        self.apply_updates();
        Ok(())
    }

    fn steps(&self) -> Vec<StepInfo> {
        self.steps.iter().map(|step| step.info.clone()).collect()
    }

    fn run_timed(&mut self, seconds: &mut [f64]) -> Result<(), GraphError> {
        for (step, seconds) in self.steps.iter_mut().zip(seconds) {
            let start = Instant::now();
            step.run(&self.processor);
            *seconds = start.elapsed().as_secs_f64();
        }
        self.apply_updates();
        Ok(())
    }

    fn read(&self, output: &str, into: &mut [f32]) -> Result<(), GraphError> {
        copy_named(&self.outputs, "output", output, into)
    }

    fn read_async(&mut self, outputs: &[&str]) -> Result<(), GraphError> {
        for output in outputs {
            let mut number = [0.0];
            self.read(output, &mut number)?;
            self.answers.push_back(number[0]);
        }
        Ok(())
    }

    fn poll(&mut self, into: &mut [f32]) -> Result<(), GraphError> {
        if self.answers.len() < into.len() {
            let reason = format!("{} values were read back, but {} were requested", into.len(), self.answers.len());
            return Err(GraphError::device(DEVICE, reason));
        }
        let count = into.len();
        into.iter_mut().zip(self.answers.drain(..count)).for_each(|(to, number)| *to = number);
        Ok(())
    }

    fn set_parameters(&mut self, parameters: &mut dyn Parameters) -> Result<(), GraphError> {
        self.constants.compute(&self.processor, parameters, &mut self.stored)
    }

    fn read_parameter(&self, name: &str, into: &mut [f32]) -> Result<(), GraphError> {
        copy_named(&self.parameters, "parameter in its original form", name, into)
    }

    fn memory_bytes(&self) -> usize {
        let buffers = self.stored.values.values().chain(self.stored.packed.values()).chain(&self.spares);
        self.arena.bytes() + buffers.map(Buffer::bytes).sum::<usize>()
    }
}

/// Copies one of the values that an executable knows by name.
fn copy_named(
    values: &HashMap<String, (Type, *const [f32])>,
    kind: &'static str,
    name: &str,
    into: &mut [f32],
) -> Result<(), GraphError> {
    let Some((ty, place)) = values.get(name) else {
        let mut known: Vec<&str> = values.keys().map(String::as_str).collect();
        known.sort_unstable();
        return Err(GraphError::UnknownName { kind, name: name.into(), known: known.join(", ") });
    };
    Elements::F32(into).check(name, ty)?;
    // SAFETY: the pointer is to a block that the executable owns and that nothing writes while it is borrowed.
    into.copy_from_slice(unsafe { &**place });
    Ok(())
}
