//! Whole passes: inference, and training steps.

use vit_cpu::Cpu;
use vit_graph::batch_size::suggest_batch;
use vit_graph::device::{Elements, Executable, Initial};
use vit_graph::rewrite::dead_code;
use vit_graph::{Graph, GraphError, Init};
use vit_models::{Architecture, Mode};
use vit_system::host::{self, FreeMemory, MemoryLimit};
use vit_train::{StepOptions, TrainingStep};

use super::{BenchOptions, quantile, repeat};
use crate::Error;
use crate::device::quantised;

/// How fast something ran.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    /// The device, e.g. `cpu (avx512)`.
    pub device: String,
    /// Threads used, on a CPU.
    pub threads: Option<usize>,
    /// Runs measured.
    pub runs: usize,
    /// Milliseconds: half of the runs took less.
    pub median_ms: f64,
    /// A tenth of the runs took less.
    pub p10_ms: f64,
    /// A tenth of the runs took more.
    pub p90_ms: f64,
    /// Images per second, at the median.
    pub images_per_s: f64,
    /// 10^9 floating-point operations per second, at the median.
    pub gflops: f64,
    /// The machine's peak, measured before and after.
    pub peak_gflops: f64,
    /// The share of that peak.
    pub peak_share: f64,
    /// The most memory that the process held; on a GPU, what is taken of its memory, by others too.
    pub peak_memory_bytes: u64,
    /// What was planned for that before anything was allocated.
    pub planned_memory_bytes: u64,
}

/// The forward pass to the logits, or to the features of a model without a head.
pub fn infer(options: &BenchOptions) -> Result<Measurement, Error> {
    measure(options, |batch| inference_graph(&BenchOptions { batch, ..options.clone() }))
}

/// A step with AdamW: forward, backward, clipping, update.
pub fn train(options: &BenchOptions) -> Result<Measurement, Error> {
    let mut architecture = options.architecture()?;
    if architecture.classes() == 0 {
        architecture.set_classes(1000);
    }
    measure(options, |batch| training_graph(&BenchOptions { batch, ..options.clone() }, &architecture))
}

pub(super) fn training_graph(options: &BenchOptions, architecture: &Architecture) -> Result<Graph, Error> {
    let how = StepOptions { recompute: options.recompute, ..StepOptions::default() };
    Ok(TrainingStep::new(architecture, options.batch, how)?.graph)
}

pub(super) fn inference_graph(options: &BenchOptions) -> Result<Graph, Error> {
    let architecture = options.architecture()?;
    let mut graph = architecture.build(options.batch, Mode::Inference)?;
    let wanted = if architecture.classes() > 0 { "logits" } else { "features" };
    graph.retain_outputs(|name| name == wanted);
    Ok(quantised(dead_code(&graph)?, options.device.precision)?)
}

/// Memory besides the model's: buffers of the measurement of the peak, stacks, code that is run for the first time.
const BESIDES: u64 = 8 << 20;
/// GPU memory for compiled kernels, for what cuBLASLt and the driver take, and for the measurement of the peak.
const BESIDES_ON_GPU: u64 = 96 << 20;

fn measure(options: &BenchOptions, graph: impl Fn(usize) -> Result<Graph, Error>) -> Result<Measurement, Error> {
    let opened = options.open()?;
    let device = opened.device.as_ref();
    let own = |room: &FreeMemory| room.limit == MemoryLimit::Gpu;
    let taken = |room: FreeMemory| room.total - room.free;
    let (before, resident) = (device.free_memory().filter(own).map(taken), host::resident().unwrap_or(0));
    let build = |batch: usize| {
        graph(batch).map_err(|error| match error {
            Error::Graph(error) => error,
            other => GraphError::device("cpu", other.to_string()),
        })
    };
    let graph = &graph(options.batch)?;
    let memory = device.plan(graph)?;
    // The largest input is drawn on the host and copied into the arena, of which no more is in use until the first run.
    let input = graph.inputs().map(|(_, input)| input.ty.bytes() as u64).max().unwrap_or(0);
    let planned = match before {
        Some(taken) => taken + memory.bytes() + BESIDES_ON_GPU,
        None => resident + memory.stored_bytes as u64 + (memory.arena_bytes as u64).max(2 * input) + BESIDES,
    };
    let mut executable = device
        .compile(graph, &mut Initial { seed: 0 })
        .map_err(|error| suggest_batch(error, device, options.batch, 0, build))?;
    fill_inputs(graph, executable.as_mut())?;
    let (seconds, peak) = repeat(&opened, options, || {
        executable.run()?;
        Ok(executable.wait()?)
    })?;
    let median = quantile(&seconds, 0.5);
    // What is computed, which may be less than what the model says.
    let flops: u64 = executable.steps().iter().map(|step| step.flops).sum();
    let gflops = flops as f64 / median / 1e9;
    Ok(Measurement {
        device: device.description(),
        threads: opened.cpu.as_ref().map(Cpu::threads),
        runs: seconds.len(),
        median_ms: 1e3 * median,
        p10_ms: 1e3 * quantile(&seconds, 0.1),
        p90_ms: 1e3 * quantile(&seconds, 0.9),
        images_per_s: options.batch as f64 / median,
        gflops,
        peak_gflops: peak / 1e9,
        peak_share: gflops * 1e9 / peak,
        peak_memory_bytes: match device.free_memory().filter(own) {
            Some(room) => taken(room),
            None => host::peak().unwrap_or_else(|| executable.memory_bytes() as u64),
        },
        planned_memory_bytes: planned,
    })
}

/// Random numbers that are drawn for an input; more are the same ones again, since drawing takes longer than a run.
const ENOUGH: usize = (1 << 22) - 1;

/// Noise for images, and numbers that keep a training step finite.
pub(super) fn fill_inputs(graph: &Graph, executable: &mut dyn Executable) -> Result<(), Error> {
    for (_, input) in graph.inputs() {
        let count = input.ty.shape.elements();
        match input.name.as_str() {
            "seed" => executable.write("seed", Elements::I32(&[0; 4]))?,
            "rate" => executable.write("rate", Elements::F32(&[1e-4]))?,
            "step" => executable.write("step", Elements::F32(&[1.0]))?,
            "targets" => {
                let classes = input.ty.shape.last();
                let one_hot: Vec<f32> = (0..count).map(|i| f32::from(u8::from(i % classes == 0))).collect();
                executable.write("targets", Elements::F32(&one_hot))?;
            }
            name => {
                let mut noise = vec![0.0; count.min(ENOUGH)];
                Init::Normal { std: 1.0 }.fill(0, name, &mut noise);
                let noise: Vec<f32> = noise.into_iter().cycle().take(count).collect();
                executable.write(name, Elements::F32(&noise))?;
            }
        }
    }
    Ok(())
}
