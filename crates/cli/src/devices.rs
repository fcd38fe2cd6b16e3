//! `vit devices`: the devices of this machine, the libraries that connect processes, and this process's place in its run.

use std::io::Write;

use clap::Args;
use serde_json::json;
use vit_cluster::Membership;
use vit_cpu::Cpu;

use crate::Outcome;
use crate::table::{Align, Table, bytes};

/// Show the devices that models can run on, and what connects processes
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
    let mpi = vit_cluster::mpi_library();
    let nccl = vit_cuda::nccl::version();
    let membership = Membership::from_environment();
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
        let process = match &membership {
            Ok(Membership { rank, size, local_rank, local_size, .. }) => {
                json!({ "rank": rank, "size": size, "local_rank": local_rank, "local_size": local_size })
            }
            Err(error) => json!({ "error": error.to_string() }),
        };
        let document = json!({
            "cpu": cpu, "gpus": listed, "no_gpu_because": reason, "mpi": mpi.ok(), "nccl": nccl.ok(), "process": process,
        });
        writeln!(out, "{document:#}")?;
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
    writeln!(out, "MPI: {}", mpi.unwrap_or_else(|error| error.to_string()))?;
    writeln!(out, "NCCL: {}", nccl.unwrap_or_else(|error| error.to_string()))?;
    writeln!(out, "this process: {}", membership.map_or_else(|error| error.to_string(), |place| place.to_string()))?;
    Ok(Outcome::Fine)
}
