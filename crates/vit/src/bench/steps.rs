//! Whole passes: inference, and training steps.

use vit_graph::device::{Elements, Executable, Initial};
use vit_graph::rewrite::dead_code;
use vit_graph::{Graph, Init};
use vit_models::{Architecture, Mode};
use vit_train::{StepOptions, TrainingStep};

use super::{BenchOptions, peak_memory, quantile, repeat};
use crate::{Error, Processor};

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
    /// Pictures per second, at the median.
    pub images_per_s: f64,
    /// 10^9 floating-point operations per second, at the median.
    pub gflops: f64,
    /// The machine's peak, measured before and after.
    pub peak_gflops: f64,
    /// The share of that peak.
    pub peak_share: f64,
    /// The most memory that the process held; on a GPU, what the model holds there.
    pub peak_memory_bytes: usize,
}

/// The forward pass to the logits, or to the features of a model without a head.
pub fn infer(options: &BenchOptions) -> Result<Measurement, Error> {
    let graph = inference_graph(options)?;
    measure(options, &graph)
}

/// A step with AdamW: forward, backward, clipping, update.
pub fn train(options: &BenchOptions) -> Result<Measurement, Error> {
    let mut architecture = options.architecture()?;
    if architecture.classes() == 0 {
        architecture.set_classes(1000);
    }
    measure(options, &training_graph(options, &architecture)?)
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
    options.precision.apply(dead_code(&graph)?)
}

fn measure(options: &BenchOptions, graph: &Graph) -> Result<Measurement, Error> {
    let processor = options.processor()?;
    let mut executable = processor.device().compile(graph, &mut Initial { seed: 0 })?;
    fill_inputs(graph, executable.as_mut())?;
    let (seconds, peak) = repeat(&processor, options.time, || {
        executable.run()?;
        Ok(executable.wait()?)
    })?;
    let median = quantile(&seconds, 0.5);
    // What is computed, which may be less than what the model says.
    let flops: u64 = executable.steps().iter().map(|step| step.flops).sum();
    let gflops = flops as f64 / median / 1e9;
    Ok(Measurement {
        device: processor.description(),
        threads: if let Processor::Cpu(cpu) = &processor { Some(cpu.threads()) } else { None },
        runs: seconds.len(),
        median_ms: 1e3 * median,
        p10_ms: 1e3 * quantile(&seconds, 0.1),
        p90_ms: 1e3 * quantile(&seconds, 0.9),
        images_per_s: options.batch as f64 / median,
        gflops,
        peak_gflops: peak / 1e9,
        peak_share: gflops * 1e9 / peak,
        peak_memory_bytes: match processor {
            Processor::Cpu(_) => peak_memory().unwrap_or_else(|| executable.memory_bytes()),
            Processor::Cuda(_) => executable.memory_bytes(),
        },
    })
}

/// Random numbers that are drawn for an input; more are the same ones again, since drawing takes longer than a run.
const ENOUGH: usize = (1 << 22) - 1;

/// Noise for pictures, and numbers that keep a training step finite.
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
