//! A graph on the GPU: all memory in two buffers, every node a list of launches with fixed addresses, all of them
//! captured as one CUDA graph.

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::sys as cu;
use half::{bf16, f16};
use vit_graph::device::{Elements, Executable, Parameters, StepInfo};
use vit_graph::memory::storage;
use vit_graph::ops::{Data, Op};
use vit_graph::{GraphError, NodeId, Type, Value};

use crate::compiler;
use crate::compiler::Variant;
use crate::driver::{Gpu, check, error};
use crate::eight;
use crate::failure;
use crate::fields::Arguments;
use crate::launch::{Kernel, Launch, Request};
use crate::memory::{ALIGNMENT, DeviceBuffer, PinnedBuffer, download, upload};
use crate::prepare::{Bases, Prepared};
use crate::storage::Storage;
use crate::tuning::Event;

/// One node, or a group of nodes.
struct Step {
    info: StepInfo,
    launches: Vec<Launch>,
}

/// An input: its place on the GPU and in the host's buffer, and when the last copy between them is done.
struct Input {
    ty: Type,
    address: u64,
    staged_at: usize,
    copied: Event,
}

/// How far an executable has come.
enum State {
    /// Nothing has run: the first run launches every kernel by itself, so that the libraries load what they need.
    Fresh,
    /// Everything has run once; the next run is captured.
    Warm,
    /// One graph holds the whole run.
    Captured(CapturedGraph),
}

/// A graph that is on the GPU, ready to be started.
struct CapturedGraph(cu::CUgraphExec);

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        // SAFETY: the graph was made and no run of it is under way: its owner waited for the stream.
        unsafe { cu::cuGraphExecDestroy(self.0) };
    }
}

/// The order in which an executable's work is done.
struct Stream(cu::CUstream);

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream was made here and everything in it is done.
        unsafe { cu::cuStreamDestroy_v2(self.0) };
    }
}

/// A graph that is ready to run on a GPU.
pub(crate) struct CudaExecutable {
    // Dropped in this order, after waiting for the stream.
    state: State,
    steps: Vec<Step>,
    /// After all steps: new values of parameters that no kernel wrote in place, and copies of them in 16 bits.
    updates: Vec<Launch>,
    inputs: HashMap<String, Input>,
    outputs: HashMap<String, (Type, u64)>,
    parameters: HashMap<String, (Type, u64)>,
    staging: PinnedBuffer,
    arena: DeviceBuffer,
    stored: DeviceBuffer,
    stream: Stream,
    gpu: Arc<Gpu>,
}

// SAFETY: streams, graphs and buffers of the driver may be used from any thread; every method makes the context current.
unsafe impl Send for CudaExecutable {}

impl CudaExecutable {
    pub fn new(gpu: Arc<Gpu>, prepared: Prepared, parameters: &mut dyn Parameters) -> Result<Self, GraphError> {
        let p = &prepared;
        gpu.enter()?;
        let there = gpu.memory()?;
        if p.stored_bytes + p.plan.arena_bytes + p.constant_scratch > there.0 {
            return Err(failure::too_large(p.memory(), there, p.training()));
        }
        let stored = DeviceBuffer::new(&gpu, p.stored_bytes, "weights")?;
        let arena = DeviceBuffer::new(&gpu, p.plan.arena_bytes, "activations")?;
        let bases = Bases { arena: arena.address, stored: stored.address };
        let mut stream = Stream(std::ptr::null_mut());
        let flag = cu::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current, the pointer is to a live variable.
        check(unsafe { cu::cuStreamCreate(&mut stream.0, flag) }, "creating a stream")?;
        store_sources(&gpu, p, bases.stored, parameters)?;

        // Everything that the graph asks for, so that all kernels can be compiled at once.
        let spare = DeviceBuffer::new(&gpu, p.constant_scratch, "values that are computed once")?;
        let (mut once, mut every_time) = (Vec::new(), Vec::new());
        for id in 0..p.graph.nodes().len() {
            let scratch = if p.constant[id] {
                spare.address
            } else {
                p.plan.workspace(id).map_or(0, |block| bases.arena + block.offset as u64)
            };
            let Some(emitter) = p.emit(id, Some((&bases, scratch)))? else { continue };
            for (address, content) in &emitter.contents {
                upload(&gpu, *address, content)?;
            }
            let info = p.info(id, &emitter);
            if p.constant[id] {
                once.extend(emitter.requests);
                once.extend(copies_of_results(p, id, bases.stored));
            } else {
                every_time.push((info, emitter.requests));
            }
        }
        once.extend(p.factor_requests(&bases, spare.address));
        let updates = updates(p, &bases);
        let kernels = every_time.iter().flat_map(|(_, requests)| requests).chain(&once).chain(&updates);
        let mut variants: Vec<Variant> = Vec::new();
        kernels.for_each(|request| variants.extend(request.variants()));
        gpu.load(&variants)?;

        let resolve = |requests: Vec<Request>| resolved(requests, &gpu, stream.0);
        // Algorithms are timed on numbers that look like a run's.
        fill_with_noise(&gpu, stream.0, &arena)?;
        for launch in resolve(once)? {
            launch.enqueue(&gpu, stream.0)?;
        }
        let mut steps = Vec::with_capacity(every_time.len());
        for (info, requests) in every_time {
            steps.push(Step { info, launches: resolve(requests)? });
        }
        let updates = resolve(updates)?;
        if arena.bytes > 0 {
            Launch::Clear { to: arena.address, bytes: arena.bytes }.enqueue(&gpu, stream.0)?;
        }
        wait(&gpu, stream.0)?;

        let (inputs, staged) = inputs(p, &bases)?;
        let named = |value: Value| (p.graph.ty(value).clone(), p.operand(value, Some(&bases)).address);
        let outputs = p.graph.outputs().iter().map(|(name, value)| (name.clone(), named(*value))).collect();
        let parameters = (p.graph.parameters())
            .map(|(node, parameter)| (parameter.name.clone(), named(Value { node, output: 0 })))
            .filter(|(_, (_, address))| *address != 0)
            .collect();
        let staging = PinnedBuffer::new(&gpu, staged)?;
        let state = State::Fresh;
        Ok(CudaExecutable { state, steps, updates, inputs, outputs, parameters, staging, arena, stored, stream, gpu })
    }

    fn launches(&self) -> impl Iterator<Item = &Launch> {
        self.steps.iter().flat_map(|step| &step.launches).chain(&self.updates)
    }

    fn enqueue_all(&self) -> Result<(), GraphError> {
        self.launches().try_for_each(|launch| launch.enqueue(&self.gpu, self.stream.0))
    }

    /// Records the whole run as a graph.
    fn capture(&self) -> Result<CapturedGraph, GraphError> {
        let mode = cu::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is live.
        check(unsafe { cu::cuStreamBeginCapture_v2(self.stream.0, mode) }, "capturing")?;
        let enqueued = self.enqueue_all();
        let (mut graph, mut executable) = (std::ptr::null_mut(), std::ptr::null_mut());
        // The capture must end whatever happened in it.
        // SAFETY: the stream is live, the pointers are to live variables.
        let ended = check(unsafe { cu::cuStreamEndCapture(self.stream.0, &mut graph) }, "capturing");
        enqueued?;
        ended?;
        // SAFETY: the graph was just made.
        let made = check(unsafe { cu::cuGraphInstantiateWithFlags(&mut executable, graph, 0) }, "preparing the run");
        // SAFETY: what can be started is a copy of its own.
        unsafe { cu::cuGraphDestroy(graph) };
        made?;
        Ok(CapturedGraph(executable))
    }
}

/// Waits until everything in a stream is done.
fn wait(gpu: &Gpu, stream: cu::CUstream) -> Result<(), GraphError> {
    gpu.enter()?;
    // SAFETY: the stream is live.
    check(unsafe { cu::cuStreamSynchronize(stream) }, "running")
}

fn resolved(requests: Vec<Request>, gpu: &Gpu, stream: cu::CUstream) -> Result<Vec<Launch>, GraphError> {
    let mut launches = Vec::with_capacity(requests.len());
    for request in requests {
        match request {
            Request::Kernel(kernel) => launches.push(kernel.resolve(gpu)?),
            Request::Product(product) => launches.push(product.resolve(gpu, stream)?),
            Request::Fused(product, parts) => match product.algorithm(gpu, stream)? {
                Some(gemm) => launches.push(Launch::Gemm(gemm)),
                None => launches.extend(resolved(parts, gpu, stream)?),
            },
            Request::Clear { to, bytes } => launches.push(Launch::Clear { to, bytes }),
            Request::Copy { to, from, bytes } => launches.push(Launch::Copy { to, from, bytes }),
        }
    }
    Ok(launches)
}

/// Brings parameters and constants onto the GPU, in the forms that somebody reads.
fn store_sources(gpu: &Gpu, p: &Prepared, base: u64, parameters: &mut dyn Parameters) -> Result<(), GraphError> {
    for (id, node) in p.graph.nodes().iter().enumerate() {
        let value = Value { node: id, output: 0 };
        let Some(forms) = p.stored.get(&value).copied() else { continue };
        let count = node.outputs[0].shape.elements();
        let store = |bytes: &[u8], floats: Option<&[f32]>| {
            if let Some(offset) = forms.f32 {
                upload(gpu, base + offset as u64, bytes)?;
            }
            if let (Some(offset), Some(floats)) = (forms.short, floats) {
                let halves: Vec<u16> = match p.profile.precision.short() {
                    Some(Storage::F16) => floats.iter().map(|&v| f16::from_f32(v).to_bits()).collect(),
                    _ => floats.iter().map(|&v| bf16::from_f32(v).to_bits()).collect(),
                };
                upload(gpu, base + offset as u64, bytemuck::cast_slice(&halves))?;
            }
            if let (Some(offset), Some(floats)) = (forms.e4m3, floats) {
                let (bytes, factor) = eight::quantised(floats);
                upload(gpu, base + offset as u64, &bytes)?;
                let factors = p.factors.get(&value).map(|&at| base + at as u64);
                factors.map_or(Ok(()), |at| upload(gpu, at, bytemuck::cast_slice(&[factor, 1.0 / factor])))?;
            }
            Ok::<(), GraphError>(())
        };
        match &node.op {
            Op::Parameter(parameter) => {
                let elements = parameters.take(parameter).ok_or_else(|| {
                    error(format!("no weights for the parameter `{}` {}", parameter.name, parameter.shape))
                })?;
                Elements::F32(&elements).check(&parameter.name, &node.outputs[0])?;
                store(bytemuck::cast_slice(&elements), Some(&elements))?;
            }
            Op::Constant(constant) => match &constant.data {
                Data::F32(data) if data.len() == count => store(bytemuck::cast_slice(data), Some(data))?,
                Data::F32(data) => {
                    let all = vec![data[0]; count];
                    store(bytemuck::cast_slice(&all), Some(&all))?;
                }
                Data::I32(data) if data.len() == count => store(bytemuck::cast_slice(data), None)?,
                Data::I32(data) => store(bytemuck::cast_slice(&vec![data[0]; count]), None)?,
            },
            _ => {}
        }
    }
    Ok(())
}

/// A conversion of a value's f32 form to another.
fn conversion(from: u64, to: u64, storage: Storage, count: usize) -> Request {
    Request::Kernel(Kernel {
        variant: Variant::new(&compiler::ARITHMETIC).with("A", "float").with("Y", storage.name()),
        name: "scale",
        grid: [count.div_ceil(8 * 256).max(1), 1, 1],
        threads: 256,
        shared: 0,
        maps: Vec::new(),
        arguments: Arguments::new().pointer(from).pointer(to).f32(1.0).u64(count),
    })
}

/// The forms in 16 bits of what a node computes once.
fn copies_of_results(p: &Prepared, node: NodeId, base: u64) -> Vec<Request> {
    let outputs = p.graph.node(node).outputs.iter().enumerate();
    outputs
        .filter_map(|(output, ty)| {
            let forms = p.stored.get(&Value { node, output })?;
            let short = p.profile.precision.short()?;
            Some(conversion(base + forms.f32? as u64, base + forms.short? as u64, short, ty.shape.elements()))
        })
        .collect()
}

/// What follows all kernels: new values of parameters that were not written in place.
fn updates(p: &Prepared, bases: &Bases) -> Vec<Request> {
    let mut requests = Vec::new();
    for (parameter, new) in p.graph.updates() {
        let (to, from) = (p.operand(*parameter, Some(bases)), p.operand(*new, Some(bases)));
        let count = to.shape.elements();
        if to.address != from.address && count > 0 {
            requests.push(Request::Copy { to: to.address, from: from.address, bytes: 4 * count });
            if to.copy != 0 {
                requests.push(conversion(from.address, to.copy, p.storages.operand(), count));
            }
        }
    }
    requests
}

/// The graph's inputs, and the bytes that they take in the host's buffer.
fn inputs(p: &Prepared, bases: &Bases) -> Result<(HashMap<String, Input>, usize), GraphError> {
    let (mut inputs, mut staged) = (HashMap::new(), 0);
    for (node, input) in p.graph.inputs() {
        let value = Value { node, output: 0 };
        debug_assert_eq!(storage(&p.graph, value), value);
        let address = p.operand(value, Some(bases)).address;
        let ty = input.ty.clone();
        let bytes = ty.bytes();
        inputs.insert(input.name.clone(), Input { ty, address, staged_at: staged, copied: Event::new()? });
        staged += bytes.next_multiple_of(ALIGNMENT);
    }
    Ok((inputs, staged))
}

fn fill_with_noise(gpu: &Gpu, stream: cu::CUstream, buffer: &DeviceBuffer) -> Result<(), GraphError> {
    let count = buffer.bytes / 16;
    if count == 0 {
        return Ok(());
    }
    let kernel = Kernel {
        variant: Variant::new(&compiler::ARITHMETIC),
        name: "noise",
        grid: [count.div_ceil(256), 1, 1],
        threads: 256,
        shared: 0,
        maps: Vec::new(),
        arguments: Arguments::new().pointer(buffer.address).u64(count),
    };
    kernel.resolve(gpu)?.enqueue(gpu, stream)
}

impl Drop for CudaExecutable {
    fn drop(&mut self) {
        // Memory must not go while a kernel or a copy still uses it; there is nobody left to tell of an error.
        wait(&self.gpu, self.stream.0).ok();
    }
}

impl Executable for CudaExecutable {
    fn write(&mut self, input: &str, elements: Elements) -> Result<(), GraphError> {
        let Some(place) = self.inputs.get(input) else {
            return Err(unknown("input", input, self.inputs.keys()));
        };
        elements.check(input, &place.ty)?;
        let bytes: &[u8] = match elements {
            Elements::F32(data) => bytemuck::cast_slice(data),
            Elements::I32(data) => bytemuck::cast_slice(data),
        };
        if bytes.is_empty() {
            return Ok(());
        }
        self.gpu.enter()?;
        // The copy before this one may still be reading the buffer.
        place.copied.wait()?;
        let from = self.staging.write(place.staged_at, bytes);
        // SAFETY: the buffer outlives the copy (`drop` waits), nobody writes to it before the copy is done (the event
        // above), and the input's block has the length of its type.
        let result = unsafe { cu::cuMemcpyHtoDAsync_v2(place.address, from, bytes.len(), self.stream.0) };
        check(result, "copying an input")?;
        place.copied.record(self.stream.0)
    }

    fn run(&mut self) -> Result<(), GraphError> {
        self.gpu.enter()?;
        match &self.state {
            State::Fresh => {
                self.enqueue_all()?;
                self.state = State::Warm;
                return Ok(());
            }
            State::Warm => self.state = State::Captured(self.capture()?),
            State::Captured(_) => {}
        }
        if let State::Captured(graph) = &self.state {
            // SAFETY: the graph and the stream are live.
            check(unsafe { cu::cuGraphLaunch(graph.0, self.stream.0) }, "starting a run")?;
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<(), GraphError> {
        wait(&self.gpu, self.stream.0)
    }

    fn steps(&self) -> Vec<StepInfo> {
        self.steps.iter().map(|step| step.info.clone()).collect()
    }

    fn run_timed(&mut self, seconds: &mut [f64]) -> Result<(), GraphError> {
        self.gpu.enter()?;
        let mut points = vec![Event::new()?];
        points[0].record(self.stream.0)?;
        for step in &self.steps {
            step.launches.iter().try_for_each(|launch| launch.enqueue(&self.gpu, self.stream.0))?;
            let point = Event::new()?;
            point.record(self.stream.0)?;
            points.push(point);
        }
        self.updates.iter().try_for_each(|launch| launch.enqueue(&self.gpu, self.stream.0))?;
        wait(&self.gpu, self.stream.0)?;
        for (seconds, pair) in seconds.iter_mut().zip(points.windows(2)) {
            *seconds = f64::from(pair[1].milliseconds_since(&pair[0])?) / 1e3;
        }
        Ok(())
    }

    fn read(&self, output: &str, into: &mut [f32]) -> Result<(), GraphError> {
        self.copy_named(&self.outputs, "output", output, into)
    }

    fn read_parameter(&self, name: &str, into: &mut [f32]) -> Result<(), GraphError> {
        self.copy_named(&self.parameters, "parameter in its original form", name, into)
    }

    fn memory_bytes(&self) -> usize {
        self.arena.bytes + self.stored.bytes
    }
}

impl CudaExecutable {
    /// Copies one of the values that are known by name, all of which are stored as f32.
    fn copy_named(
        &self,
        values: &HashMap<String, (Type, u64)>,
        kind: &'static str,
        name: &str,
        into: &mut [f32],
    ) -> Result<(), GraphError> {
        let Some((ty, address)) = values.get(name) else { return Err(unknown(kind, name, values.keys())) };
        Elements::F32(into).check(name, ty)?;
        wait(&self.gpu, self.stream.0)?;
        download(&self.gpu, *address, bytemuck::cast_slice_mut(into))
    }
}

fn unknown<'a>(kind: &'static str, name: &str, known: impl Iterator<Item = &'a String>) -> GraphError {
    let mut known: Vec<&str> = known.map(String::as_str).collect();
    known.sort_unstable();
    GraphError::UnknownName { kind, name: name.into(), known: known.join(", ") }
}
