//! `vit devices`: the devices of this machine.

use std::io::Write;

use clap::Args;
use serde_json::json;
use vit_cpu::Cpu;

use crate::Outcome;
use crate::table::{Align, Table, bytes};

/// Show the devices that models can run on
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit devices
  vit classify --device cuda:1 --precision bf16 cat.jpg")]
pub struct Arguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let cpu = Cpu::new(None);
    let gpus = vit_cuda::devices();
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let listed: Vec<_> = gpus
            .iter()
            .flatten()
            .map(|gpu| {
                let (major, minor) = gpu.compute_capability;
                json!({
                    "device": format!("cuda:{}", gpu.ordinal), "name": gpu.name, "memory_bytes": gpu.memory_bytes,
                    "compute_capability": format!("{major}.{minor}"), "multiprocessors": gpu.multiprocessors,
                    "driver": gpu.driver, "cublas": gpu.cublas, "nvrtc": gpu.nvrtc,
                })
            })
            .collect();
        let reason = gpus.as_ref().err().map(ToString::to_string);
        let cpu = json!({ "instructions": cpu.isa().to_string(), "threads": cpu.threads() });
        writeln!(out, "{:#}", json!({ "cpu": cpu, "gpus": listed, "no_gpu_because": reason }))?;
        return Ok(Outcome::Fine);
    }
    let mut table = Table::new(&[
        ("DEVICE", Align::Left),
        ("NAME", Align::Left),
        ("MEMORY", Align::Right),
        ("DETAILS", Align::Left),
    ]);
    let details = format!("{} threads", cpu.threads());
    table.row(vec!["cpu".into(), cpu.isa().to_string(), String::new(), details]);
    for gpu in gpus.iter().flatten() {
        let (major, minor) = gpu.compute_capability;
        table.row(vec![
            format!("cuda:{}", gpu.ordinal),
            gpu.name.clone(),
            bytes(gpu.memory_bytes as u64),
            format!(
                "compute capability {major}.{minor}, driver for CUDA {}, cuBLASLt {}, NVRTC {}",
                gpu.driver, gpu.cublas, gpu.nvrtc
            ),
        ]);
    }
    table.print(&mut out, |_| None)?;
    if let Err(reason) = gpus {
        writeln!(out, "no GPU can be used: {reason}")?;
    }
    Ok(Outcome::Fine)
}
