//! Benchmarks of the forward pass and of the training step.

use vit_cpu::Cpu;
use vit_graph::batch_size::suggest_batch;
use vit_graph::device::{Elements, Executable, Initial};
use vit_graph::rewrite::eliminate_dead_code;
use vit_graph::{Graph, GraphError, Init};
use vit_models::Mode;
use vit_models::clip::{Clip, PairExtents};
use vit_system::host::{self, FreeMemory, MemoryLimit};
use vit_train::{StepOptions, TrainingStep};

use super::{BenchOptions, quantile, repeat};
use crate::Error;
use crate::device::quantised;

/// The times, rates and memory of a benchmark.
#[derive(Debug, Clone, PartialEq)]
pub struct Measurement {
    /// The device: `cpu (avx512)`.
    pub device: String,
    /// Threads used, on a CPU.
    pub threads: Option<usize>,
    /// Runs measured.
    pub runs: usize,
    /// The median time of a run in milliseconds.
    pub median_ms: f64,
    /// The 10th percentile in milliseconds.
    pub p10_ms: f64,
    /// The 90th percentile in milliseconds.
    pub p90_ms: f64,
    /// Images per second, at the median.
    pub images_per_s: f64,
    /// GFLOP/s, at the median.
    pub gflops: f64,
    /// The measured peak of the machine in GFLOP/s.
    pub peak_gflops: f64,
    /// The share of the peak that was reached.
    pub peak_share: f64,
    /// The peak memory of the process; on a GPU, all of its memory in use, by other processes too.
    pub peak_memory_bytes: u64,
    /// The memory planned before anything was allocated.
    pub planned_memory_bytes: u64,
}

/// The forward pass to the logits, or to the features of a model without a head.
pub fn infer(options: &BenchOptions) -> Result<Measurement, Error> {
    measure(options, |batch| inference_graph(&BenchOptions { batch, ..options.clone() }))
}

/// A step with AdamW: forward, backward, clipping, update.
pub fn train(options: &BenchOptions) -> Result<Measurement, Error> {
    measure(options, |batch| training_graph(&BenchOptions { batch, ..options.clone() }))
}

/// A model without a head gets one of 1,000 classes, unless it is pre-trained without labels.
pub(super) fn training_graph(options: &BenchOptions) -> Result<Graph, Error> {
    let mut config = options.config()?;
    if config.architecture.classes() == 0 {
        config.architecture.set_classes(1000);
    }
    let how = match &options.recipe {
        Some(recipe) => recipe.step_of(&mut config)?,
        None => StepOptions::default(),
    };
    let how = StepOptions { recompute: options.recompute, exchange: options.nccl, ..how };
    Ok(TrainingStep::new(&config.architecture, options.batch, how)?.graph)
}

pub(super) fn inference_graph(options: &BenchOptions) -> Result<Graph, Error> {
    let architecture = options.architecture()?;
    let (mut graph, wanted) = match options.text {
        true => {
            let clip: &Clip = architecture.downcast_ref().ok_or(Error::NoTextTower)?;
            let extents = PairExtents { images: 1, texts: options.batch, masked: false };
            (clip.build_pairs(extents, Mode::Inference)?, "text_features")
        }
        false => {
            let wanted = if architecture.classes() > 0 { "logits" } else { "features" };
            (architecture.build(options.batch, Mode::Inference)?, wanted)
        }
    };
    graph.retain_outputs(|name| name == wanted);
    Ok(quantised(eliminate_dead_code(&graph)?, options.device.precision)?)
}

/// Host memory besides the model's: buffers for measuring the peak, stacks, code pages.
const OVERHEAD: u64 = 8 << 20;
/// GPU memory besides the model's: kernels, cuBLASLt, the driver, buffers for measuring the peak.
const GPU_OVERHEAD: u64 = 96 << 20;

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
    // Before the first run, the process holds the largest input twice: as drawn, and its copy in the arena.
    let input = graph.inputs().map(|(_, input)| input.ty.bytes() as u64).max().unwrap_or(0);
    let planned = match before {
        Some(taken) => taken + memory.bytes() + GPU_OVERHEAD,
        None => resident + memory.stored_bytes as u64 + (memory.arena_bytes as u64).max(2 * input) + OVERHEAD,
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
    // The FLOPs that the device computes, which may be fewer than those of the model's graph.
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

/// Random values drawn for an input; longer ones repeat them, since drawing takes longer than a run.
const MAX_DRAWN: usize = (1 << 22) - 1;

/// Fills inputs with noise, and those of a training step with values that keep it finite.
pub(super) fn fill_inputs(graph: &Graph, executable: &mut dyn Executable) -> Result<(), Error> {
    for (_, input) in graph.inputs() {
        let count = input.ty.shape.elements();
        match input.name.as_str() {
            "seed" => executable.write("seed", Elements::I32(&[0; 4]))?,
            "ids" | "ends" => executable.write(&input.name, Elements::I32(&(0..count as i32).collect::<Vec<_>>()))?,
            "rate" => executable.write("rate", Elements::F32(&[1e-4]))?,
            "step" => executable.write("step", Elements::F32(&[1.0]))?,
            "targets" => {
                let classes = input.ty.shape.last();
                let one_hot: Vec<f32> = (0..count).map(|i| f32::from(u8::from(i % classes == 0))).collect();
                executable.write("targets", Elements::F32(&one_hot))?;
            }
            name => {
                let mut noise = vec![0.0; count.min(MAX_DRAWN)];
                Init::Normal { std: 1.0 }.fill(0, name, &mut noise);
                let noise: Vec<f32> = noise.into_iter().cycle().take(count).collect();
                executable.write(name, Elements::F32(&noise))?;
            }
        }
    }
    Ok(())
}
