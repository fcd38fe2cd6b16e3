//! The values that stay from run to run: parameters, constants, and what depends on them alone, which is computed when
//! parameters are set, not in every run. Weights are packed where matrix products read them. Runs overwrite only the
//! parameters that they update.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::sync::Arc;

use vit_graph::device::{Elements, Parameters};
use vit_graph::memory::root_of;
use vit_graph::ops::{Data, Op, Operation, Parameter};
use vit_graph::{Graph, GraphError, NodeId, Value};

use super::DEVICE;
use super::lowered_graph::unpacked_uses;
use super::shared::SharedStorage;
use crate::buffer::Buffer;
use crate::device::Processor;
use crate::lower::{Lowered, WeightPacking};

/// The buffers of parameters, constants and the values that depend on them alone. A buffer that a
/// [`KernelStep`](super::step::KernelStep) uses is allocated once and never moves: the step holds its address.
#[derive(Default)]
pub(super) struct StoredBuffers {
    /// Unpacked values, none of which are views ([`root_of`]).
    pub values: HashMap<Value, Arc<Buffer>>,
    /// Packed weights, by the node that reads them and the index of its input.
    pub packed: HashMap<(NodeId, usize), Arc<Buffer>>,
    /// Given if other executables may have the same buffers, which then never change.
    pub shared: Option<SharedStorage>,
}

impl StoredBuffers {
    /// Bytes of all buffers; those of a buffer that several executables share are divided among them.
    pub fn bytes(&self) -> usize {
        let own_bytes = |buffer: &Arc<Buffer>| buffer.bytes().div_ceil(Arc::strong_count(buffer));
        self.values.values().chain(self.packed.values()).map(own_bytes).sum()
    }
}

/// Writes a buffer of `len` elements, a new one or, when parameters are set again, the old one in place.
fn write<K: Eq + Hash>(
    buffers: &mut HashMap<K, Arc<Buffer>>,
    shared: &mut Option<SharedStorage>,
    key: K,
    len: usize,
    fill: impl FnOnce(&mut [f32]),
) -> Result<(), GraphError> {
    match (buffers.entry(key), shared) {
        (Entry::Occupied(mut entry), _) => {
            let buffer = Arc::get_mut(entry.get_mut());
            fill(buffer.expect("parameters are set again only where no buffer is shared").as_mut_slice());
        }
        (Entry::Vacant(entry), shared) => {
            let mut buffer = Buffer::new(len)?;
            fill(buffer.as_mut_slice());
            entry.insert(match shared {
                Some(shared) => shared.store(buffer)?,
                None => Arc::new(buffer),
            });
        }
    }
    Ok(())
}

/// How everything in [`StoredBuffers`] is computed from parameters.
pub(super) struct Constants {
    pub graph: Graph,
    /// The constant nodes and the parameters that runs update, in topological order, with the kernels of those that
    /// compute something (views do not).
    nodes: Vec<(NodeId, Option<Lowered>)>,
    /// The nodes that read a packed input.
    packings: Vec<(NodeId, WeightPacking)>,
    /// How many kernels, outputs and updates use each value unpacked.
    uses: HashMap<Value, usize>,
}

impl Constants {
    /// Takes the kernels of constant nodes out of `kernels`: those that are left are the steps of a run.
    pub fn new(graph: Graph, kernels: &mut [Option<Lowered>], constant: &[bool]) -> Self {
        let packing = |(id, lowered): (NodeId, &Option<Lowered>)| Some((id, lowered.as_ref()?.packing?));
        let packings = kernels.iter().enumerate().filter_map(packing).collect();
        let uses = unpacked_uses(&graph, kernels, |_| true);
        let updated: HashSet<NodeId> = graph.updates().iter().map(|(parameter, _)| parameter.node).collect();
        let nodes = (0..graph.nodes().len()).filter(|id| constant[*id] || updated.contains(id));
        let nodes = nodes.map(|id| (id, kernels[id].take())).collect();
        Constants { graph, nodes, packings, uses }
    }

    /// Fills the buffers. A value that no [`KernelStep`](super::step::KernelStep), output or update uses unpacked is
    /// dropped after its last consumer among the constants.
    pub fn compute(
        &self,
        processor: &Processor,
        parameters: &mut dyn Parameters,
        stored: &mut StoredBuffers,
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
                    // A single element fills the whole constant; i32 are stored as their bits.
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
                    for root in node.inputs.iter().map(|&input| root_of(&self.graph, input)) {
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
        stored: &StoredBuffers,
    ) -> Result<Vec<Buffer>, GraphError> {
        let node = self.graph.node(id);
        let sizes = node.outputs.iter().map(|ty| ty.shape.elements());
        let mut results = sizes.map(Buffer::new).collect::<Result<Vec<Buffer>, GraphError>>()?;
        let input = |&value: &Value| stored.values[&root_of(&self.graph, value)].as_slice();
        let inputs: Vec<&[f32]> = node.inputs.iter().map(input).collect();
        let mut outputs: Vec<&mut [f32]> = results.iter_mut().map(Buffer::as_mut_slice).collect();
        // An in-place kernel finds the input in its output.
        let in_place = if *in_place { node.op.in_place() } else { &[] };
        in_place.iter().for_each(|&(input, output)| outputs[output].copy_from_slice(inputs[input]));
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
        stored: &mut StoredBuffers,
    ) -> Result<(), GraphError> {
        for (id, WeightPacking { input, form }) in &self.packings {
            let weight = self.graph.node(*id).inputs[*input];
            if root_of(&self.graph, weight) == value {
                let (n, k) = (self.graph.shape(weight)[0], self.graph.shape(weight)[1]);
                let len = form.len(processor.isa, k, n);
                let pack = |buffer: &mut [f32]| form.pack(processor, elements, k, n, buffer);
                write(&mut stored.packed, &mut stored.shared, (*id, *input), len, pack)?;
            }
        }
        if remaining.get(&value).is_some_and(|&uses| uses > 0) {
            let copy = |buffer: &mut [f32]| buffer.copy_from_slice(elements);
            write(&mut stored.values, &mut stored.shared, value, elements.len(), copy)?;
        }
        Ok(())
    }
}
