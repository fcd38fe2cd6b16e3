//! Parameters and constants on the GPU, and the values that follow from them alone.

use half::{bf16, f16};
use vit_graph::device::{Elements, Parameters};
use vit_graph::ops::{Data, Op};
use vit_graph::{GraphError, NodeId, Value};

use crate::driver::error;
use crate::driver::memory::DeviceBuffer;
use crate::lower::conversion;
use crate::plan::fp8;
use crate::plan::prepare::{Bases, Prepared};
use crate::plan::storage::Storage;
use crate::run::launch::Request;

/// Uploads parameters and constants in every form that a node reads.
pub(super) fn upload(p: &Prepared, stored: &DeviceBuffer, parameters: &mut dyn Parameters) -> Result<(), GraphError> {
    for (id, node) in p.graph.nodes().iter().enumerate() {
        let value = Value { node: id, output: 0 };
        if !p.stored.contains_key(&value) {
            continue;
        }
        let count = node.outputs[0].shape.elements();
        match &node.op {
            Op::Parameter(parameter) => {
                let elements = parameters.take(parameter).ok_or_else(|| {
                    error(format!("no weights for the parameter `{}` {}", parameter.name, parameter.shape))
                })?;
                Elements::F32(&elements).check(&parameter.name, &node.outputs[0])?;
                upload_floats(p, stored, value, &elements)?;
            }
            // A single element fills the whole constant.
            Op::Constant(constant) => match &constant.data {
                Data::F32(data) if data.len() == count => upload_floats(p, stored, value, data)?,
                Data::F32(data) => upload_floats(p, stored, value, &vec![data[0]; count])?,
                Data::I32(data) if data.len() == count => upload_words(p, stored, value, bytemuck::cast_slice(data))?,
                Data::I32(data) => upload_words(p, stored, value, bytemuck::cast_slice(&vec![data[0]; count]))?,
            },
            _ => {}
        }
    }
    Ok(())
}

/// The 32-bit form, where a node reads it.
fn upload_words(p: &Prepared, stored: &DeviceBuffer, value: Value, bytes: &[u8]) -> Result<(), GraphError> {
    match p.stored[&value].f32 {
        Some(offset) => stored.upload(stored.address + offset as u64, bytes),
        None => Ok(()),
    }
}

/// All forms of f32 elements: 32 bits, 16 bits, and e4m3 with its quantisation scale.
fn upload_floats(p: &Prepared, stored: &DeviceBuffer, value: Value, elements: &[f32]) -> Result<(), GraphError> {
    let (forms, base) = (p.stored[&value], stored.address);
    upload_words(p, stored, value, bytemuck::cast_slice(elements))?;
    if let Some(offset) = forms.half {
        let halves: Vec<u16> = match Storage::half(p.target.precision) {
            Some(Storage::F16) => elements.iter().map(|&v| f16::from_f32(v).to_bits()).collect(),
            _ => elements.iter().map(|&v| bf16::from_f32(v).to_bits()).collect(),
        };
        stored.upload(base + offset as u64, bytemuck::cast_slice(&halves))?;
    }
    if let Some(offset) = forms.e4m3 {
        let (bytes, scale) = fp8::quantised(elements);
        stored.upload(base + offset as u64, &bytes)?;
        let scales = base + p.scales[&value] as u64;
        stored.upload(scales, bytemuck::bytes_of(&scale))?;
        stored.upload(scales + fp8::INVERSE, bytemuck::bytes_of(&(1.0 / scale)))?;
    }
    Ok(())
}

/// The requests that compute what follows from parameters and constants alone, all with the scratch memory at
/// `scratch`; uploads the tables that they read. Called when a graph is compiled and whenever its parameters are
/// replaced.
pub(super) fn constants(
    p: &Prepared,
    stored: &DeviceBuffer,
    bases: &Bases,
    scratch: u64,
) -> Result<Vec<Request>, GraphError> {
    let mut requests = Vec::new();
    for id in (0..p.graph.nodes().len()).filter(|id| p.constant[*id]) {
        let Some(emitter) = p.emit(id, Some((bases, scratch)))? else { continue };
        for (address, content) in &emitter.table_contents {
            stored.upload(*address, content)?;
        }
        requests.extend(emitter.requests);
        requests.extend(half_copies(p, id, stored.address));
    }
    requests.extend(p.scale_requests(bases, scratch));
    Ok(requests)
}

/// Conversions of a constant node's results to 16 bits.
fn half_copies(p: &Prepared, node: NodeId, base: u64) -> Vec<Request> {
    let outputs = p.graph.node(node).outputs.iter().enumerate();
    outputs
        .filter_map(|(output, ty)| {
            let forms = p.stored.get(&Value { node, output })?;
            let half = Storage::half(p.target.precision)?;
            let (from, to) = (base + forms.f32? as u64, base + forms.half? as u64);
            Some(Request::Kernel(conversion((from, Storage::F32), (to, half), ty.shape.elements())))
        })
        .collect()
}

/// The requests that follow the last step of a run: copies of parameters' new values that were not written in place,
/// also to 16 bits where nodes read the parameter so.
pub(super) fn updates(p: &Prepared, bases: &Bases) -> Vec<Request> {
    let mut requests = Vec::new();
    for (parameter, new) in p.graph.updates() {
        let (to, from) = (p.operand(*parameter, Some(bases)), p.operand(*new, Some(bases)));
        let count = to.shape.elements();
        if to.address != from.address && count > 0 {
            requests.push(Request::Copy { to: to.address, from: from.address, bytes: 4 * count });
            if to.half != 0 {
                let half = (to.half, p.storages.operand());
                requests.push(Request::Kernel(conversion((from.address, Storage::F32), half, count)));
            }
        }
    }
    requests
}
