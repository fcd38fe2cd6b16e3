//! A graph on the GPU: all memory in two buffers, every node a list of launches with fixed addresses, all of them
//! captured as one CUDA graph, or as a few where large inputs are copied while a run goes on.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use cudarc::driver::sys as cu;
use half::{bf16, f16};
use vit_graph::device::{Elements, Executable, Parameters, StepInfo};
use vit_graph::ops::{Data, Op};
use vit_graph::{GraphError, NodeId, Type, Value};

use crate::compile::{self, KernelVariant};
use crate::driver::failure;
use crate::driver::memory::{DeviceBuffer, PinnedBuffer, download, upload};
use crate::driver::{Gpu, check, error};
use crate::gemm::tuning::Event;
use crate::lower::conversion;
use crate::plan::fp8;
use crate::plan::prepare::{Bases, Prepared};
use crate::plan::storage::Storage;
use crate::run::arguments::KernelArguments;
use crate::run::inputs::{DeviceInput, inputs};
use crate::run::launch::{KernelLaunch, ReadyLaunch, Request};
use crate::run::read_back::ReadBack;

/// One node, or a group of nodes.
struct LaunchStep {
    info: StepInfo,
    launches: Vec<ReadyLaunch>,
}

/// How far an executable has come.
enum CaptureState {
    /// Nothing has run: the first run launches every kernel by itself, so that the libraries load what they need.
    Fresh,
    /// Everything has run once; the next run is captured.
    Warm,
    /// Graphs hold the whole run.
    Captured(Vec<CapturedSegment>),
}

/// A stretch of a run, up to a step after which an input may be written again or to the end.
struct CapturedSegment {
    graph: CapturedGraph,
    last: usize,
}

/// A graph that is on the GPU, ready to be started.
struct CapturedGraph(cu::CUgraphExec);

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        // SAFETY: the graph was made and no run of it is under way: its owner waited for the stream.
        unsafe { cu::cuGraphExecDestroy(self.0) };
    }
}

/// An order in which work is done.
struct Stream(cu::CUstream);

impl Stream {
    fn new() -> Result<Self, GraphError> {
        let mut stream = std::ptr::null_mut();
        let flag = cu::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current, the pointer is to a live variable.
        check(unsafe { cu::cuStreamCreate(&mut stream, flag) }, "creating a stream")?;
        Ok(Stream(stream))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: the stream was made here and everything in it is done.
        unsafe { cu::cuStreamDestroy_v2(self.0) };
    }
}

/// A graph that is ready to run on a GPU.
pub(crate) struct CudaExecutable {
    // Dropped in this order, after waiting for the stream.
    state: CaptureState,
    steps: Vec<LaunchStep>,
    /// After all steps: new values of parameters that no kernel wrote in place, and copies of them in 16 bits.
    updates: Vec<ReadyLaunch>,
    inputs: HashMap<String, DeviceInput>,
    outputs: HashMap<String, (Type, u64)>,
    parameters: HashMap<String, (Type, u64)>,
    staging: PinnedBuffer,
    answers: ReadBack,
    arena: DeviceBuffer,
    stored: DeviceBuffer,
    prepared: Prepared,
    stream: Stream,
    /// Where inputs are copied, while an earlier run is under way.
    copies: Stream,
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
        let (stream, copies) = (Stream::new()?, Stream::new()?);
        store_sources(&gpu, p, bases.stored, parameters)?;

        // Everything that the graph asks for, so that all kernels can be compiled at once.
        let spare = DeviceBuffer::new(&gpu, p.constant_scratch, "values that are computed once")?;
        let once = constants(&gpu, p, &bases, spare.address)?;
        let mut every_time = Vec::new();
        for id in (0..p.graph.nodes().len()).filter(|id| !p.constant[*id]) {
            let scratch = p.plan.workspace(id).map_or(0, |block| bases.arena + block.offset as u64);
            let Some(emitter) = p.emit(id, Some((&bases, scratch)))? else { continue };
            for (address, content) in &emitter.contents {
                upload(&gpu, *address, content)?;
            }
            every_time.push((id, p.info(id, &emitter), emitter.requests));
        }
        let updates = updates(p, &bases);
        let kernels = every_time.iter().flat_map(|(_, _, requests)| requests).chain(&once).chain(&updates);
        let variants: Vec<KernelVariant> = kernels.flat_map(Request::variants).collect();
        gpu.load(&variants)?;

        let resolve = |requests: Vec<Request>| resolved(requests, &gpu, stream.0);
        // Algorithms are timed on numbers that look like a run's.
        fill_with_noise(&gpu, stream.0, &arena)?;
        for launch in resolve(once)? {
            launch.enqueue(&gpu, stream.0)?;
        }
        let order: Vec<NodeId> = every_time.iter().map(|(node, ..)| *node).collect();
        let mut steps = Vec::with_capacity(every_time.len());
        for (_, info, requests) in every_time {
            steps.push(LaunchStep { info, launches: resolve(requests)? });
        }
        let updates = resolve(updates)?;
        if arena.bytes > 0 {
            ReadyLaunch::Clear { to: arena.address, bytes: arena.bytes }.enqueue(&gpu, stream.0)?;
        }
        wait(&gpu, stream.0)?;

        let (inputs, staged) = inputs(p, &bases, &order)?;
        let named = |value: Value| (p.graph.ty(value).clone(), p.operand(value, Some(&bases)).address);
        let outputs = p.graph.outputs().iter().map(|(name, value)| (name.clone(), named(*value))).collect();
        let parameters = (p.graph.parameters())
            .map(|(node, parameter)| (parameter.name.clone(), named(Value { node, output: 0 })))
            .filter(|(_, (_, address))| *address != 0)
            .collect();
        let staging = PinnedBuffer::new(&gpu, staged)?;
        let answers = ReadBack::new(&gpu, p.graph.outputs().len())?;
        let state = CaptureState::Fresh;
        Ok(CudaExecutable {
            state,
            steps,
            updates,
            inputs,
            outputs,
            parameters,
            staging,
            answers,
            arena,
            stored,
            prepared,
            stream,
            copies,
            gpu,
        })
    }

    /// Puts one step into the stream, or what follows the last one.
    fn enqueue(&self, step: usize) -> Result<(), GraphError> {
        let launches = self.steps.get(step).map_or(&self.updates, |step| &step.launches);
        launches.iter().try_for_each(|launch| launch.enqueue(&self.gpu, self.stream.0))
    }

    /// Marks the inputs that nobody reads after a step.
    fn mark(&self, step: usize) -> Result<(), GraphError> {
        let free = self.inputs.values().filter_map(|input| input.free.as_ref());
        free.filter(|free| free.after == step).try_for_each(|free| free.reached.record(self.stream.0))
    }

    /// Lets what follows in the stream wait for inputs that are still being copied.
    fn await_inputs(&mut self) -> Result<(), GraphError> {
        for input in self.inputs.values_mut().filter(|input| input.pending) {
            input.copied.hold(self.stream.0)?;
            input.pending = false;
        }
        Ok(())
    }

    /// Records the whole run, in as many graphs as have marks between them.
    fn capture(&self) -> Result<Vec<CapturedSegment>, GraphError> {
        let mut ends: Vec<usize> = self.inputs.values().filter_map(|input| Some(input.free.as_ref()?.after)).collect();
        ends.push(self.steps.len());
        ends.sort_unstable();
        ends.dedup();
        let mut first = 0;
        let mut segments = Vec::with_capacity(ends.len());
        for last in ends {
            segments.push(CapturedSegment { graph: self.capture_steps(first..=last)?, last });
            first = last + 1;
        }
        Ok(segments)
    }

    fn capture_steps(&self, mut steps: RangeInclusive<usize>) -> Result<CapturedGraph, GraphError> {
        let mode = cu::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is live.
        check(unsafe { cu::cuStreamBeginCapture_v2(self.stream.0, mode) }, "capturing")?;
        let enqueued = steps.try_for_each(|step| self.enqueue(step));
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

fn resolved(requests: Vec<Request>, gpu: &Gpu, stream: cu::CUstream) -> Result<Vec<ReadyLaunch>, GraphError> {
    let mut launches = Vec::with_capacity(requests.len());
    for request in requests {
        match request {
            Request::Kernel(kernel) => launches.push(kernel.resolve(gpu)?),
            Request::Product(product) => launches.push(product.resolve(gpu, stream)?),
            Request::Fused(product, parts) => match product.algorithm(gpu, stream)? {
                Some(gemm) => launches.push(ReadyLaunch::Matmul(gemm)),
                None => launches.extend(resolved(parts, gpu, stream)?),
            },
            Request::Clear { to, bytes } => launches.push(ReadyLaunch::Clear { to, bytes }),
            Request::Copy { to, from, bytes } => launches.push(ReadyLaunch::Copy { to, from, bytes }),
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
                let halves: Vec<u16> = match Storage::half(p.profile.precision) {
                    Some(Storage::F16) => floats.iter().map(|&v| f16::from_f32(v).to_bits()).collect(),
                    _ => floats.iter().map(|&v| bf16::from_f32(v).to_bits()).collect(),
                };
                upload(gpu, base + offset as u64, bytemuck::cast_slice(&halves))?;
            }
            if let (Some(offset), Some(floats)) = (forms.e4m3, floats) {
                let (bytes, factor) = fp8::quantised(floats);
                upload(gpu, base + offset as u64, &bytes)?;
                let factors = p.factors.get(&value).map(|&at| base + at as u64);
                if let Some(at) = factors {
                    upload(gpu, at, bytemuck::bytes_of(&factor))?;
                    upload(gpu, at + fp8::INVERSE, bytemuck::bytes_of(&(1.0 / factor)))?;
                }
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

/// Everything that follows from parameters and constants alone.
fn constants(gpu: &Gpu, p: &Prepared, bases: &Bases, scratch: u64) -> Result<Vec<Request>, GraphError> {
    let mut requests = Vec::new();
    for id in (0..p.graph.nodes().len()).filter(|id| p.constant[*id]) {
        let Some(emitter) = p.emit(id, Some((bases, scratch)))? else { continue };
        for (address, content) in &emitter.contents {
            upload(gpu, *address, content)?;
        }
        requests.extend(emitter.requests);
        requests.extend(copies_of_results(p, id, bases.stored));
    }
    requests.extend(p.factor_requests(bases, scratch));
    Ok(requests)
}

/// The forms in 16 bits of what a node computes once.
fn copies_of_results(p: &Prepared, node: NodeId, base: u64) -> Vec<Request> {
    let outputs = p.graph.node(node).outputs.iter().enumerate();
    outputs
        .filter_map(|(output, ty)| {
            let forms = p.stored.get(&Value { node, output })?;
            let short = Storage::half(p.profile.precision)?;
            let (from, to) = (base + forms.f32? as u64, base + forms.short? as u64);
            Some(Request::Kernel(conversion((from, Storage::F32), (to, short), ty.shape.elements())))
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
                let copy = (to.copy, p.storages.operand());
                requests.push(Request::Kernel(conversion((from.address, Storage::F32), copy, count)));
            }
        }
    }
    requests
}

fn fill_with_noise(gpu: &Gpu, stream: cu::CUstream, buffer: &DeviceBuffer) -> Result<(), GraphError> {
    let count = buffer.bytes / 16;
    if count == 0 {
        return Ok(());
    }
    let kernel = KernelLaunch {
        variant: KernelVariant::new(&compile::ARITHMETIC),
        name: "noise",
        grid: [count.div_ceil(256), 1, 1],
        threads: 256,
        shared: 0,
        maps: Vec::new(),
        arguments: KernelArguments::new().pointer(buffer.address).u64(count),
    };
    kernel.resolve(gpu)?.enqueue(gpu, stream)
}

impl Drop for CudaExecutable {
    fn drop(&mut self) {
        // Memory must not go while a kernel or a copy still uses it; there is nobody left to tell of an error.
        wait(&self.gpu, self.copies.0).ok();
        wait(&self.gpu, self.stream.0).ok();
    }
}

impl Executable for CudaExecutable {
    fn write(&mut self, input: &str, elements: Elements) -> Result<(), GraphError> {
        let Some(place) = self.inputs.get_mut(input) else {
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
        let stream = match &place.free {
            Some(free) => {
                // The run before may still be reading the input.
                free.reached.hold(self.copies.0)?;
                place.pending = true;
                self.copies.0
            }
            None => self.stream.0,
        };
        // SAFETY: the buffer outlives the copy (`drop` waits), nobody writes to it before the copy is done (the event
        // above), and the input's block has the length of its type.
        let result = unsafe { cu::cuMemcpyHtoDAsync_v2(place.address, from, bytes.len(), stream) };
        check(result, "copying an input")?;
        place.copied.record(stream)
    }

    fn run(&mut self) -> Result<(), GraphError> {
        self.gpu.enter()?;
        self.await_inputs()?;
        match &self.state {
            CaptureState::Fresh => {
                for step in 0..=self.steps.len() {
                    self.enqueue(step)?;
                    self.mark(step)?;
                }
                self.state = CaptureState::Warm;
                return Ok(());
            }
            CaptureState::Warm => self.state = CaptureState::Captured(self.capture()?),
            CaptureState::Captured(_) => {}
        }
        if let CaptureState::Captured(segments) = &self.state {
            for segment in segments {
                // SAFETY: the graph and the stream are live.
                check(unsafe { cu::cuGraphLaunch(segment.graph.0, self.stream.0) }, "starting a run")?;
                self.mark(segment.last)?;
            }
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<(), GraphError> {
        wait(&self.gpu, self.copies.0)?;
        wait(&self.gpu, self.stream.0)
    }

    fn steps(&self) -> Vec<StepInfo> {
        self.steps.iter().map(|step| step.info.clone()).collect()
    }

    fn run_timed(&mut self, seconds: &mut [f64]) -> Result<(), GraphError> {
        self.gpu.enter()?;
        self.await_inputs()?;
        let mut points = vec![Event::new()?];
        points[0].record(self.stream.0)?;
        for step in 0..self.steps.len() {
            self.enqueue(step)?;
            self.mark(step)?;
            let point = Event::new()?;
            point.record(self.stream.0)?;
            points.push(point);
        }
        self.enqueue(self.steps.len())?;
        self.mark(self.steps.len())?;
        wait(&self.gpu, self.stream.0)?;
        for (seconds, pair) in seconds.iter_mut().zip(points.windows(2)) {
            *seconds = f64::from(pair[1].milliseconds_since(&pair[0])?) / 1e3;
        }
        Ok(())
    }

    fn read(&self, output: &str, into: &mut [f32]) -> Result<(), GraphError> {
        self.copy_named(&self.outputs, "output", output, into)
    }

    fn is_async(&self) -> bool {
        true
    }

    fn read_async(&mut self, outputs: &[&str]) -> Result<(), GraphError> {
        self.gpu.enter()?;
        let address = |name: &&str| {
            let Some((ty, address)) = self.outputs.get(*name) else {
                return Err(unknown("output", name, self.outputs.keys()));
            };
            Elements::F32(&[0.0]).check(name, ty)?;
            Ok(*address)
        };
        let addresses = outputs.iter().map(address).collect::<Result<Vec<u64>, GraphError>>()?;
        self.answers.ask(&addresses, self.stream.0)
    }

    fn poll(&mut self, into: &mut [f32]) -> Result<(), GraphError> {
        self.gpu.enter()?;
        self.answers.take(into)
    }

    fn set_parameters(&mut self, parameters: &mut dyn Parameters) -> Result<(), GraphError> {
        self.wait()?;
        let (gpu, p) = (&self.gpu, &self.prepared);
        let bases = Bases { arena: self.arena.address, stored: self.stored.address };
        store_sources(gpu, p, bases.stored, parameters)?;
        let scratch = DeviceBuffer::new(gpu, p.constant_scratch, "values that are computed once")?;
        // Their kernels were loaded when the graph was compiled.
        for launch in resolved(constants(gpu, p, &bases, scratch.address)?, gpu, self.stream.0)? {
            launch.enqueue(gpu, self.stream.0)?;
        }
        wait(gpu, self.stream.0)
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
