//! `vit info`: a model's size and cost.

use std::io::Write;
use std::path::Path;

use clap::Args;
use serde_json::json;
use vit::{DeviceOptions, Precision, config_of};
use vit_graph::cost::Cost;
use vit_models::{Config, Mode, ProblemType};
use vit_train::ShardedState;

use crate::checkpoints::{ArchitectureArgument, folder_of_config};
use crate::hints::unsuitable_size;
use crate::images::parse_size;
use crate::table::{Align, Table, bytes, short, thousands};
use crate::train::ShardChoice;
use crate::{Outcome, memory};

/// Show parameters, FLOPs and memory of a model
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit info vit_base_patch16_224
  vit info B/16 --batch 8 --layers
  vit info B/16 --batch 64 --train
  vit info H/14 --batch 256 --gpus 8 --shard all
  vit info cifar10 --json")]
pub struct Arguments {
    #[command(flatten)]
    model: ArchitectureArgument,
    /// Images in one run, for the memory [default: 1, or one for each of the GPUs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    batch: Option<u32>,
    /// Another image size: N, or HEIGHTxWIDTH
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    image_size: Option<[usize; 2]>,
    /// Show the memory for training with this batch, with the recipe of `vit train`
    #[arg(long)]
    train: bool,
    /// Show the memory of each GPU for training on N of them (H100 or H200, bf16),
    /// which share the batch
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    gpus: Option<u32>,
    /// With --gpus: the state that they divide among them
    #[arg(long, value_name = "STATE", requires = "gpus")]
    shard: Option<ShardChoice>,
    /// Show every layer
    #[arg(long)]
    layers: bool,
    /// Print one JSON object; `flops` is for one image
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let name = arguments.model.name();
    let mut config = config_of(&folder_of_config(Path::new(&name)).to_string_lossy())?;
    if let Some(size) = arguments.image_size {
        config.architecture.set_image_size(size);
        config.preprocessing.image_size = size;
    }
    let gpus = arguments.gpus.map(|gpus| gpus as usize);
    let batch = arguments.batch.map_or(gpus.unwrap_or(1), |batch| batch as usize);
    let cost = Cost::of(&config.architecture.build(1, Mode::Inference).map_err(unsuitable_size)?);
    let device = DeviceOptions::new().open()?;
    let inference = device.plan(&config.architecture.build(batch, Mode::Inference)?)?;
    let training = match gpus {
        Some(gpus) => {
            let sharded = arguments.shard.map_or(ShardedState::None, ShardedState::from);
            Some(memory::of_training_on_gpus(&config, batch, gpus, sharded, Precision::Bf16)?)
        }
        None if arguments.train => Some(memory::of_training(&config, batch, device.as_ref())?),
        None => None,
    };
    let [height, width] = config.architecture.image_size();
    let mut out = std::io::stdout().lock();
    let parts: Vec<_> = cost.by_scope(4).into_iter().filter(|p| p.flops + p.parameters > 0).collect();
    if arguments.json {
        let mut object = json!({
            "model": config.name.as_deref().unwrap_or(&name),
            "image_size": [height, width],
            "channels": config.architecture.channels(),
            "classes": config.architecture.classes(),
            "problem_type": config.problem_type.name(),
            "parameters": cost.parameters(),
            "flops": cost.flops(),
            "batch": batch,
            "weight_bytes": inference.stored_bytes,
            "activation_bytes": inference.arena_bytes,
        });
        if let Some(training) = &training {
            object["training"] = memory::json(training);
        }
        if arguments.layers {
            let layers = parts.iter().map(|p| {
                let (parameters, flops, written) = (p.parameters, p.flops, p.activation_bytes);
                json!({ "name": p.scope, "parameters": parameters, "flops": flops, "activation_bytes": written })
            });
            object["layers"] = layers.collect();
        }
        writeln!(out, "{object:#}")?;
        return Ok(Outcome::Fine);
    }
    let p = &config.preprocessing;
    let mut lines = vec![
        ("model", config.name.clone().unwrap_or_else(|| name.clone())),
        ("parameters", thousands(cost.parameters())),
        ("FLOP per image", format!("{}FLOP (2 per multiply-add)", short(cost.flops()))),
        ("input", format!("{height}x{width}, {} channels", config.architecture.channels())),
        ("classes", classes(&config)),
        ("preprocessing", format!("{} {}, crop {} ({})", p.interpolation, size(p.image_size), p.crop_pct, p.crop_mode)),
        ("", format!("mean {:?}, std {:?}", p.mean, p.std)),
    ];
    lines.push((
        "memory",
        format!(
            "{} weights + {} for a batch of {batch}",
            bytes(inference.stored_bytes as u64),
            bytes(inference.arena_bytes as u64)
        ),
    ));
    for (name, value) in lines {
        writeln!(out, "{name:<18}{value}")?;
    }
    if let Some(training) = &training {
        let on = gpus.map_or(String::new(), |gpus| format!(" on {gpus} GPUs, for each of them"));
        writeln!(out, "\ntraining with a batch of {batch}{on}")?;
        memory::lines(training, device.free_memory()).iter().try_for_each(|line| writeln!(out, "{line}"))?;
    }
    if arguments.layers {
        let columns =
            [("PART", Align::Left), ("PARAMETERS", Align::Right), ("FLOP", Align::Right), ("WRITES", Align::Right)];
        let mut table = Table::new(&columns);
        for part in parts {
            let name = if part.scope.is_empty() { "tokens and positions".into() } else { part.scope };
            table.row(vec![name, thousands(part.parameters), short(part.flops), bytes(part.activation_bytes)]);
        }
        writeln!(out)?;
        table.print(&mut out, |_| None)?;
    }
    Ok(Outcome::Fine)
}

fn size([height, width]: [usize; 2]) -> String {
    format!("{height}x{width}")
}

fn classes(config: &Config) -> String {
    let several = match config.problem_type {
        ProblemType::SingleLabel => "",
        ProblemType::MultiLabel => ", any number of them per image",
    };
    match (config.architecture.classes(), config.labels.as_slice()) {
        (0, _) => "none: it gives features".into(),
        (n, []) => format!("{n}, without names{several}"),
        (n, labels) => {
            let first: Vec<&str> = labels.iter().take(5).map(String::as_str).collect();
            format!("{n}{several}: {}{}", first.join(", "), if n > 5 { ", …" } else { "" })
        }
    }
}
