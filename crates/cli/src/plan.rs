//! `vit plan`: what training on many GPUs would take.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use clap::Args;
use serde_json::json;
use vit::{Precision, config_of};
use vit_models::{Config, Mode};
use vit_train::plots::{ClusterLine, cluster};
use vit_train::scaling::{ClusterPrediction, ClusterRun, GpuModel, ModelCost, Network, PAPER_CORE_DAYS};
use vit_train::{Clock, ShardedState};

use crate::checkpoints::ArchitectureArgument;
use crate::table::{bytes, short, thousands};
use crate::{Outcome, memory};

/// Predict time, memory and energy of training on many GPUs
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit plan --model H/14 --data-size 300M --epochs 7 --gpus 64
  vit plan --model B/16 --data-size 1.28M --epochs 300 --gpus 8 --batch 1024
  vit plan --model L/16 --data-size 300M --epochs 7 --gpus 512 --network 200G

Nothing is run: the time of a step follows from the model's FLOPs and bytes and
from steps measured on an H200, that of communication from a model of the
network. docs/scaling.md states both and how far they were checked.")]
pub struct Arguments {
    #[command(flatten)]
    model: ArchitectureArgument,
    /// Images in the dataset: 50000, 1.28M
    #[arg(long, value_name = "N", value_parser = parse_count)]
    data_size: f64,
    /// How often each image is seen
    #[arg(long, value_name = "N")]
    epochs: f64,
    /// The number of GPUs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65536))]
    gpus: u32,
    /// The kind of GPU: a100, h100, h200, b200
    #[arg(long, value_name = "NAME", default_value = "h200")]
    gpu: String,
    /// The network between nodes, in bits per second and GPU
    #[arg(long, value_name = "BITS", default_value = "400G", value_parser = parse_count)]
    network: f64,
    /// The mini-batch, on all GPUs together
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1_048_576))]
    batch: u32,
    /// Draw the speed of 1 to 4,096 GPUs into this file (.svg or .png)
    #[arg(long, value_name = "FILE")]
    figure: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let name = arguments.model.name();
    let config = config_of(&name)?;
    let gpu = GpuModel::named(&arguments.gpu).ok_or_else(|| {
        anyhow!("--gpu {}: give one of {}", arguments.gpu, GpuModel::names().collect::<Vec<_>>().join(", "))
    })?;
    let batch = arguments.batch as usize;
    let gpus = arguments.gpus as usize;
    ensure!(gpus <= batch, "--gpus {gpus}: there are more GPUs than images in a mini-batch of {batch}; raise --batch");
    let (largest_batch, memory) = fitting(&config, batch.div_ceil(gpus), &gpu)?;
    let run = ClusterRun {
        model: ModelCost::of(&config.architecture.build(1, Mode::Inference)?),
        batch,
        samples: arguments.data_size,
        epochs: arguments.epochs,
        gpus,
        gpu,
        network: Network::with_gigabits(arguments.network / 1e9),
        largest_batch,
    };
    let predicted = run.predict().context("there are more GPUs than images in a mini-batch")?;
    if let Some(path) = &arguments.figure {
        draw(&run, &name, path)?;
    }
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{:#}", as_json(&name, &run, &predicted, memory))?;
        return Ok(Outcome::Fine);
    }
    for (name, value) in lines(&name, &run, &predicted, memory) {
        writeln!(out, "{name:<18}{value}")?;
    }
    Ok(Outcome::Fine)
}

/// The largest part of a GPU's mini-batch that fits into its memory, halved as often as needed, and the memory it takes. As
/// in the time, evaluations are not counted.
fn fitting(config: &Config, mut batch: usize, gpu: &GpuModel) -> anyhow::Result<(usize, u64)> {
    loop {
        let mut memory = memory::of_training_on_gpus(config, batch, 1, ShardedState::None, Precision::Bf16)?;
        memory.parts.retain(|part| part.name != "evaluation");
        let memory = memory.device();
        if memory <= gpu.memory {
            return Ok((batch, memory));
        }
        ensure!(batch > 1, "one image needs {} and a GPU of this kind has {}", bytes(memory), bytes(gpu.memory));
        batch = batch.div_ceil(2);
    }
}

fn lines(name: &str, run: &ClusterRun, predicted: &ClusterPrediction, memory: u64) -> Vec<(&'static str, String)> {
    let ClusterPrediction { step, compute, communication, steps, time, gpu_days, energy, .. } = predicted;
    let ms = |time: Duration| format!("{:.1} ms", 1e3 * time.as_secs_f64());
    let days = time.as_secs_f64() / 86400.0;
    let gpu = run.gpu.name.to_uppercase();
    let (per_gpu, micro) = (predicted.batch_per_gpu, predicted.micro_batches);
    let micro = if micro > 1 { format!(" in {micro} micro-batches") } else { String::new() };
    let mut lines = vec![
        (
            "model",
            format!("{name}, {} parameters, {}FLOP per image", thousands(run.model.parameters), short(run.model.flops)),
        ),
        ("hardware", format!("{} {gpu}, {:.0} Gbit/s between nodes for each", run.gpus, run.network.bandwidth * 8e-9)),
        ("mini-batch", format!("{}, {per_gpu} per GPU{micro}", run.batch)),
        ("memory", format!("{} of {} per GPU", bytes(memory), bytes(run.gpu.memory))),
        (
            "step",
            format!("{}: {} computing, {} waiting for gradients", ms(*step), ms(*compute), ms(communication.exposed)),
        ),
        ("communication", format!("{}, {:.0}% of it hidden", ms(communication.total), 100.0 * communication.hidden())),
        ("speed", format!("{} images/s", thousands(run.images_per_second(predicted).round() as u64))),
        ("time", format!("{} ({days:.2} days) for {} steps", Clock(*time), thousands(*steps as u64))),
        ("energy", format!("{} kWh with hosts, without cooling", thousands(energy.round() as u64))),
        (
            "work",
            format!(
                "{gpu_days:.1} GPU-days, by peak FLOPs as many as {:.0} TPUv3-core-days",
                run.tpu_core_days(*gpu_days)
            ),
        ),
    ];
    for (index, (model, days)) in PAPER_CORE_DAYS.iter().enumerate() {
        let label = if index == 0 { "in the paper" } else { "" };
        lines.push((label, format!("{model:<33}{:>7} TPUv3-core-days", thousands(*days as u64))));
    }
    lines
}

fn as_json(name: &str, run: &ClusterRun, predicted: &ClusterPrediction, memory: u64) -> serde_json::Value {
    let seconds = |time: Duration| time.as_secs_f64();
    json!({
        "model": name, "gpus": run.gpus, "gpu": run.gpu.name, "batch": run.batch,
        "batch_per_gpu": predicted.batch_per_gpu, "micro_batches": predicted.micro_batches, "memory_bytes": memory,
        "step_seconds": seconds(predicted.step), "compute_seconds": seconds(predicted.compute),
        "communication_seconds": seconds(predicted.communication.total),
        "communication_hidden": predicted.communication.hidden(),
        "images_per_second": run.images_per_second(predicted), "steps": predicted.steps,
        "days": seconds(predicted.time) / 86400.0, "gpu_days": predicted.gpu_days, "energy_kwh": predicted.energy,
        "tpu_v3_core_days": run.tpu_core_days(predicted.gpu_days),
    })
}

/// Images per second on one H200 (docs/scaling.md).
const MEASURED: [(&str, f64); 4] =
    [("Ti/16", 1024.0 / 29.49e-3), ("B/16", 256.0 / 52.65e-3), ("L/16", 128.0 / 88.99e-3), ("H/14", 64.0 / 128.58e-3)];

/// The speeds of the paper's models and of this one.
fn draw(run: &ClusterRun, name: &str, path: &std::path::Path) -> anyhow::Result<()> {
    let mut names = vec!["Ti/16", "B/16", "L/16", "H/14"];
    if !names.contains(&name) {
        names.push(name);
    }
    let mut all = Vec::new();
    for name in names {
        let config = config_of(name)?;
        let model = ModelCost::of(&config.architecture.build(1, Mode::Inference)?);
        let computed = (0..=12).filter_map(|power| {
            let run = ClusterRun { model, gpus: 1 << power, largest_batch: 256, ..run.clone() };
            Some((run.gpus, run.images_per_second(&run.predict()?)))
        });
        let is_measured = run.gpu.name == "h200";
        let measured = MEASURED.iter().filter(|(measured, _)| *measured == name && is_measured);
        all.push(ClusterLine {
            name: name.into(),
            computed: computed.collect(),
            measured: measured.map(|(_, speed)| (1, *speed)).collect(),
        });
    }
    let (gpu, gigabits) = (run.gpu.name.to_uppercase(), run.network.bandwidth * 8e-9);
    let title = format!("Training with a mini-batch of {}, {gpu}, {gigabits:.0} Gbit/s per GPU", run.batch);
    let scene = cluster(&title, &all);
    let is_png = path.extension().is_some_and(|extension| extension == "png");
    let content = if is_png { scene.png(2.0)? } else { scene.svg().into_bytes() };
    vit_system::atomic_file::write(path, content).with_context(|| path.display().to_string())
}

/// A number with an optional letter: `300M`, `1.28M`, `400G`.
fn parse_count(text: &str) -> Result<f64, String> {
    let (digits, factor) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1e3),
        Some((at, 'M')) => (&text[..at], 1e6),
        Some((at, 'G')) => (&text[..at], 1e9),
        _ => (text, 1.0),
    };
    let number: Option<f64> = digits.parse().ok();
    number.map(|number| number * factor).filter(|number| number.is_finite() && *number > 0.0).ok_or_else(|| {
        "should be a number above 0, with k, M or G for thousands, millions or thousand millions".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_letters() {
        assert_eq!(parse_count("300M"), Ok(3e8));
        assert_eq!(parse_count("1.28M"), Ok(1.28e6));
        assert_eq!(parse_count("50000"), Ok(5e4));
        assert!(parse_count("-1").is_err() && parse_count("many").is_err() && parse_count("").is_err());
    }
}
