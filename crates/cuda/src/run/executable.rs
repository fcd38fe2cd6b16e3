//! A graph on the GPU: all memory in two buffers (values of a run, and values that persist between runs), every node or
//! fused group a list of launches with fixed addresses.
//!
//! The first run enqueues every launch, so that the libraries load what they need. The second captures the launches as
//! a CUDA graph, or as a few where large inputs are copied while a run goes on; it and later runs launch the graphs.

use std::collections::HashMap;
use std::sync::Arc;

use cudarc::driver::sys as cu;
use vit_graph::device::{Elements, Executable, Parameters, StepInfo, check_rows};
use vit_graph::{GraphError, NodeId, Type, Value};

use crate::compile::{self, KernelVariant};
use crate::driver::memory::{DeviceBuffer, PinnedBuffer};
use crate::driver::{Event, Gpu, Stream, check, failure};
use crate::plan::prepare::{Bases, Prepared};
use crate::run::arguments::KernelArguments;
use crate::run::capture::CapturedGraph;
use crate::run::exchange::{CollectiveStream, ProcessGroup};
use crate::run::inputs::{DeviceInput, inputs};
use crate::run::launch::{KernelLaunch, ReadyLaunch, Request, resolve_all};
use crate::run::read_back::ReadBack;
use crate::run::weights;

/// The launches of one node or fused group.
struct LaunchStep {
    info: StepInfo,
    /// The addresses of the inputs of the node or group.
    reads: Vec<u64>,
    launches: Vec<ReadyLaunch>,
}

enum CaptureState {
    /// `run` was not called yet.
    Fresh,
    /// One run was enqueued launch by launch; the next is captured.
    Warm,
    Captured(Vec<CapturedSegment>),
}

/// The steps that follow the previous segment, up to one after which an input may be overwritten or to the end.
struct CapturedSegment {
    graph: CapturedGraph,
    /// The last step; one past the last step of the run stands for the updates.
    last: usize,
}

/// A graph that is ready to run on a GPU.
///
/// Invariant: every launch was lowered with addresses in `arena` and `stored`, which have the sizes that [`Prepared`]
/// planned.
pub(crate) struct CudaExecutable {
    // Dropped in this order, after the streams were synchronised.
    state: CaptureState,
    steps: Vec<LaunchStep>,
    /// Enqueued after all steps ([`weights::updates`]).
    updates: Vec<ReadyLaunch>,
    /// The graph's collectives, if it has any and this is one of several processes.
    collectives: Option<CollectiveStream>,
    inputs: HashMap<String, DeviceInput>,
    /// Types and device addresses.
    outputs: HashMap<String, (Type, u64)>,
    /// Likewise, of parameters that are stored in f32.
    parameters: HashMap<String, (Type, u64)>,
    /// Host memory from which inputs are copied, a range for each.
    staging: PinnedBuffer,
    read_back: ReadBack,
    arena: DeviceBuffer,
    stored: DeviceBuffer,
    prepared: Prepared,
    stream: Stream,
    /// For copies of large inputs while an earlier run is under way.
    copy_stream: Stream,
    gpu: Arc<Gpu>,
}

// SAFETY: streams, graphs and buffers of the driver may be used from any thread, and every public method that calls the
// driver makes the context current. The other pointers are to memory that `self` owns.
unsafe impl Send for CudaExecutable {}

impl CudaExecutable {
    pub fn new(
        gpu: Arc<Gpu>,
        prepared: Prepared,
        parameters: &mut dyn Parameters,
        group: Option<&ProcessGroup>,
    ) -> Result<Self, GraphError> {
        let p = &prepared;
        gpu.enter()?;
        let (free, total) = gpu.memory()?;
        if p.stored_bytes + p.plan.arena_bytes + p.constant_scratch > free {
            return Err(failure::too_large(p.memory(), (free, total), p.training()));
        }
        let stored = DeviceBuffer::new(&gpu, p.stored_bytes, "weights")?;
        let arena = DeviceBuffer::new(&gpu, p.plan.arena_bytes, "activations")?;
        let bases = Bases { arena: arena.address, stored: stored.address };
        let (stream, copy_stream) = (Stream::new()?, Stream::new()?);
        weights::upload(p, &stored, parameters)?;

        // All requests come first, so that all kernels are compiled at once.
        let scratch = DeviceBuffer::new(&gpu, p.constant_scratch, "values that are computed once")?;
        let constants = weights::constants(p, &stored, &bases, scratch.address)?;
        let lowered = lowered(p, &stored, &bases)?;
        let updates = weights::updates(p, &bases);
        let all = lowered.iter().flat_map(|step| &step.requests).chain(&constants).chain(&updates);
        let variants: Vec<KernelVariant> = all.flat_map(Request::variants).collect();
        gpu.load(&variants)?;

        let order: Vec<NodeId> = lowered.iter().map(|step| step.node).collect();
        // SAFETY: the context is current; all requests were lowered for addresses in `arena`, `stored` and `scratch`,
        // which live until the stream is synchronised.
        let (steps, updates) = unsafe {
            // Algorithms are timed on values like those of a run: products of zeros are faster.
            fill_with_noise(&gpu, &stream, &arena)?;
            for launch in resolve_all(constants, &gpu, &stream)? {
                launch.enqueue(&gpu, &stream)?;
            }
            let mut steps = Vec::with_capacity(lowered.len());
            for LoweredStep { info, reads, requests, .. } in lowered {
                steps.push(LaunchStep { info, reads, launches: resolve_all(requests, &gpu, &stream)? });
            }
            let updates = resolve_all(updates, &gpu, &stream)?;
            // An input is zero until it is written, as on the CPU.
            if arena.bytes > 0 {
                ReadyLaunch::Clear { to: arena.address, bytes: arena.bytes }.enqueue(&gpu, &stream)?;
            }
            (steps, updates)
        };
        stream.synchronize()?;

        let collectives = match group {
            Some(group) => CollectiveStream::new(&gpu, p, &bases, &order, group)?,
            None => None,
        };
        let (inputs, staging_bytes) = inputs(p, &bases, &order)?;
        let named = |value: Value| (p.graph.ty(value).clone(), p.operand(value, Some(&bases)).address);
        let outputs = p.graph.outputs().iter().map(|(name, value)| (name.clone(), named(*value))).collect();
        let parameters = (p.graph.parameters())
            .map(|(node, parameter)| (parameter.name.clone(), named(Value { node, output: 0 })))
            // 0: stored only in another form than f32.
            .filter(|(_, (_, address))| *address != 0)
            .collect();
        let staging = PinnedBuffer::new(&gpu, staging_bytes)?;
        let read_back = ReadBack::new(&gpu, p.graph.outputs().len())?;
        let state = CaptureState::Fresh;
        Ok(CudaExecutable {
            state,
            steps,
            updates,
            collectives,
            inputs,
            outputs,
            parameters,
            staging,
            read_back,
            arena,
            stored,
            prepared,
            stream,
            copy_stream,
            gpu,
        })
    }

    fn input(&self, name: &str) -> Result<&DeviceInput, GraphError> {
        self.inputs.get(name).ok_or_else(|| unknown("input", name, self.inputs.keys()))
    }

    /// Copies parts, one after the other, to the beginning of an input, and zeros to its end.
    fn upload(&mut self, input: &str, parts: &[&[u8]]) -> Result<(), GraphError> {
        let Some(target) = self.inputs.get_mut(input) else {
            return Err(unknown("input", input, self.inputs.keys()));
        };
        let bytes = target.ty.bytes();
        if bytes == 0 {
            return Ok(());
        }
        self.gpu.enter()?;
        // The previous copy of this input may still read the staging buffer.
        target.copied.synchronize()?;
        let from = self.staging.write(target.staging_offset, parts, bytes);
        let stream = match &target.last_read {
            Some(last_read) => {
                // The previous run may still read the input.
                self.copy_stream.wait_event(&last_read.done)?;
                target.pending = true;
                &self.copy_stream
            }
            None => &self.stream,
        };
        // SAFETY: the staging buffer outlives the copy (`drop` synchronises) and is not written to before the copy is
        // done (the event above); the input's memory has the length of its type.
        let result = unsafe { cu::cuMemcpyHtoDAsync_v2(target.address, from, bytes, stream.raw()) };
        check(result, "copying an input")?;
        target.copied.record(stream)
    }

    /// Enqueues one step; one past the last step stands for the updates.
    fn enqueue(&self, step: usize) -> Result<(), GraphError> {
        let (launches, reads) = match self.steps.get(step) {
            Some(step) => (&step.launches, &step.reads[..]),
            None => (&self.updates, &[][..]),
        };
        if let Some(collectives) = &self.collectives {
            collectives.before(step, reads, &self.stream)?;
            // The updates read whatever the run has computed.
            if step == self.steps.len() {
                collectives.join_all(&self.stream)?;
            }
        }
        // SAFETY: callers have made the context current; the invariant of `self` covers the addresses, and `drop`
        // synchronises the streams before the buffers are freed.
        unsafe {
            launches.iter().try_for_each(|launch| launch.enqueue(&self.gpu, &self.stream))?;
            self.collectives.as_ref().map_or(Ok(()), |collectives| collectives.after(step, &self.stream))
        }
    }

    /// Enqueues a step, and after the last one of a segment waits for the collectives: a capture may only end when all
    /// streams have joined the one that it began in.
    fn enqueue_in_segment(&self, step: usize, last: usize) -> Result<(), GraphError> {
        self.enqueue(step)?;
        let collectives = self.collectives.as_ref().filter(|_| step == last);
        collectives.map_or(Ok(()), |collectives| collectives.join_all(&self.stream))
    }

    /// An error if an exchange with other processes has failed.
    fn check_exchanges(&self) -> Result<(), GraphError> {
        self.collectives.as_ref().map_or(Ok(()), CollectiveStream::failure)
    }

    /// Records the events of the inputs that this step is the last to read.
    fn record_last_reads(&self, step: usize) -> Result<(), GraphError> {
        let last_reads = self.inputs.values().filter_map(|input| input.last_read.as_ref());
        last_reads.filter(|last| last.step == step).try_for_each(|last| last.done.record(&self.stream))
    }

    /// Makes the stream wait for inputs that are still being copied.
    fn await_inputs(&mut self) -> Result<(), GraphError> {
        for input in self.inputs.values_mut().filter(|input| input.pending) {
            self.stream.wait_event(&input.copied)?;
            input.pending = false;
        }
        Ok(())
    }

    /// Captures the run: a graph up to each step after which `record_last_reads` records an event, and one to the end.
    fn capture(&self) -> Result<Vec<CapturedSegment>, GraphError> {
        let mut ends: Vec<usize> =
            self.inputs.values().filter_map(|input| Some(input.last_read.as_ref()?.step)).collect();
        ends.push(self.steps.len());
        ends.sort_unstable();
        ends.dedup();
        let mut first = 0;
        let mut segments = Vec::with_capacity(ends.len());
        for last in ends {
            let graph = CapturedGraph::new(&self.stream, first..=last, |step| self.enqueue_in_segment(step, last))?;
            segments.push(CapturedSegment { graph, last });
            first = last + 1;
        }
        Ok(segments)
    }

    /// Copies one of the outputs or parameters, which are stored as f32, when all runs are complete.
    fn read_named(
        &self,
        values: &HashMap<String, (Type, u64)>,
        kind: &'static str,
        name: &str,
        into: &mut [f32],
    ) -> Result<(), GraphError> {
        let Some((ty, address)) = values.get(name) else { return Err(unknown(kind, name, values.keys())) };
        Elements::F32(into).check(name, ty)?;
        self.gpu.enter()?;
        self.stream.synchronize()?;
        let buffer = if self.arena.contains(*address, 4 * into.len()) { &self.arena } else { &self.stored };
        buffer.download(*address, bytemuck::cast_slice_mut(into))
    }
}

/// A node or fused group with its requests.
struct LoweredStep {
    node: NodeId,
    info: StepInfo,
    reads: Vec<u64>,
    requests: Vec<Request>,
}

/// The requests of every node that runs each time; uploads the tables that they read to `stored`.
fn lowered(p: &Prepared, stored: &DeviceBuffer, bases: &Bases) -> Result<Vec<LoweredStep>, GraphError> {
    let mut lowered = Vec::new();
    for id in (0..p.graph.nodes().len()).filter(|id| !p.constant[*id]) {
        let scratch = p.plan.workspace(id).map_or(0, |range| bases.arena + range.offset as u64);
        let Some(emitter) = p.emit(id, Some((bases, scratch)))? else { continue };
        for (address, content) in &emitter.table_contents {
            stored.upload(*address, content)?;
        }
        let reads = emitter.inputs.iter().map(|operand| operand.address).collect();
        lowered.push(LoweredStep { node: id, info: p.info(id, &emitter), reads, requests: emitter.requests });
    }
    Ok(lowered)
}

/// Fills a buffer with finite values of either sign.
///
/// # Safety
///
/// The context must be current, and the buffer must live until the stream is synchronised.
unsafe fn fill_with_noise(gpu: &Gpu, stream: &Stream, buffer: &DeviceBuffer) -> Result<(), GraphError> {
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
    // SAFETY: the kernel writes `count` times 16 bytes to the buffer; the caller guarantees the rest.
    unsafe { kernel.resolve(gpu)?.enqueue(gpu, stream) }
}

impl Drop for CudaExecutable {
    fn drop(&mut self) {
        // Memory must not be freed while a kernel or a copy uses it. An error cannot be returned from here.
        self.wait().ok();
    }
}

impl Executable for CudaExecutable {
    fn write(&mut self, input: &str, elements: Elements) -> Result<(), GraphError> {
        elements.check(input, &self.input(input)?.ty)?;
        let bytes: &[u8] = match elements {
            Elements::F32(data) => bytemuck::cast_slice(data),
            Elements::I32(data) => bytemuck::cast_slice(data),
        };
        self.upload(input, &[bytes])
    }

    fn write_rows(&mut self, input: &str, rows: &[&[f32]]) -> Result<(), GraphError> {
        check_rows(input, &self.input(input)?.ty, rows)?;
        let rows: Vec<&[u8]> = rows.iter().map(|row| bytemuck::cast_slice(row)).collect();
        self.upload(input, &rows)
    }

    fn run(&mut self) -> Result<(), GraphError> {
        self.gpu.enter()?;
        self.await_inputs()?;
        match &self.state {
            CaptureState::Fresh => {
                for step in 0..=self.steps.len() {
                    self.enqueue(step)?;
                    self.record_last_reads(step)?;
                }
                self.state = CaptureState::Warm;
                return Ok(());
            }
            CaptureState::Warm => self.state = CaptureState::Captured(self.capture()?),
            CaptureState::Captured(_) => {}
        }
        if let CaptureState::Captured(segments) = &self.state {
            for segment in segments {
                // SAFETY: as in `enqueue`.
                unsafe { segment.graph.launch(&self.stream) }?;
                self.record_last_reads(segment.last)?;
            }
        }
        Ok(())
    }

    fn wait(&mut self) -> Result<(), GraphError> {
        self.gpu.enter()?;
        let copies = self.copy_stream.synchronize();
        let exchanged = self.collectives.as_ref().map_or(Ok(()), CollectiveStream::synchronize);
        self.stream.synchronize()?;
        copies.and(exchanged).and(self.check_exchanges())
    }

    fn steps(&self) -> Vec<StepInfo> {
        self.steps.iter().map(|step| step.info.clone()).collect()
    }

    fn run_timed(&mut self, seconds: &mut [f64]) -> Result<(), GraphError> {
        self.gpu.enter()?;
        self.await_inputs()?;
        let mut points = vec![Event::new()?];
        points[0].record(&self.stream)?;
        for step in 0..self.steps.len() {
            self.enqueue(step)?;
            self.record_last_reads(step)?;
            let point = Event::new()?;
            point.record(&self.stream)?;
            points.push(point);
        }
        self.enqueue(self.steps.len())?;
        self.record_last_reads(self.steps.len())?;
        self.stream.synchronize()?;
        for (seconds, pair) in seconds.iter_mut().zip(points.windows(2)) {
            *seconds = f64::from(pair[1].milliseconds_since(&pair[0])?) / 1e3;
        }
        Ok(())
    }

    fn read(&self, output: &str, into: &mut [f32]) -> Result<(), GraphError> {
        self.read_named(&self.outputs, "output", output, into)
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
        // SAFETY: outputs are f32 in `arena` or `stored`, which live, as `read_back` does, until `drop` has
        // synchronised the stream.
        unsafe { self.read_back.read_async(&addresses, &self.stream) }
    }

    fn collect(&mut self, into: &mut [f32]) -> Result<(), GraphError> {
        self.gpu.enter()?;
        self.read_back.collect(into)?;
        self.check_exchanges()
    }

    fn set_parameters(&mut self, parameters: &mut dyn Parameters) -> Result<(), GraphError> {
        self.wait()?;
        let (gpu, p) = (&self.gpu, &self.prepared);
        let bases = Bases { arena: self.arena.address, stored: self.stored.address };
        weights::upload(p, &self.stored, parameters)?;
        let scratch = DeviceBuffer::new(gpu, p.constant_scratch, "values that are computed once")?;
        let constants = weights::constants(p, &self.stored, &bases, scratch.address)?;
        // SAFETY: the context is current; the requests use `stored` and `scratch`, which live until the stream is
        // synchronised. Their kernels were loaded when the graph was compiled.
        unsafe {
            for launch in resolve_all(constants, gpu, &self.stream)? {
                launch.enqueue(gpu, &self.stream)?;
            }
        }
        self.stream.synchronize()
    }

    fn read_parameter(&self, name: &str, into: &mut [f32]) -> Result<(), GraphError> {
        self.read_named(&self.parameters, "parameter in its original form", name, into)
    }

    fn memory_bytes(&self) -> usize {
        self.arena.bytes + self.stored.bytes
    }
}

fn unknown<'a>(kind: &'static str, name: &str, known: impl Iterator<Item = &'a String>) -> GraphError {
    let mut known: Vec<&str> = known.map(String::as_str).collect();
    known.sort_unstable();
    GraphError::UnknownName { kind, name: name.into(), known: known.join(", ") }
}
