//! `vit verify`: proof that a checkpoint runs right.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use vit::{DeviceChoice, VerifyOptions};

use crate::Outcome;
use crate::table::{Align, Table};
use crate::terminal::{Meaning, styled};

/// Prove that a checkpoint gives the outputs that were recorded for it
#[derive(Args)]
#[command(
    after_help = "Example:\n  vit verify checkpoints/cifar10\n\nThe folder holds the weights, config.json (timm's, Hugging Face's, or `class` and `args` of a constructor) and\nio.safetensors with an `input` [batch, channels, height, width] and any of `logits`, `features`, `tokens`,\n`attention_0`, …. Every recorded array is compared; the exit status is 1 if any differs by more than its tolerance."
)]
pub struct Arguments {
    /// The folder
    folder: PathBuf,
    /// The weights file, where the folder has several
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    /// Where to run: auto or cpu
    #[arg(long, default_value = "auto")]
    device: DeviceChoice,
    /// Threads of the CPU; by default all cores
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// The largest absolute difference allowed, for all arrays [default: 2e-5, for tokens 5e-5, for attention 5e-6]
    #[arg(long, value_parser = tolerance)]
    tolerance: Option<f64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn tolerance(text: &str) -> Result<f64, String> {
    text.parse().ok().filter(|t: &f64| t.is_finite() && *t >= 0.0).ok_or_else(|| "should be a number like 1e-4".into())
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let options = VerifyOptions {
        device: arguments.device,
        threads: arguments.threads.map(|t| t as usize),
        tolerance: arguments.tolerance,
        weights: arguments.weights,
    };
    let verification = vit::verify(&arguments.folder, &options)?;
    let mut out = std::io::stdout().lock();
    let passes = verification.passes();
    if arguments.json {
        let arrays: Vec<_> = verification
            .arrays
            .iter()
            .map(|a| json!({ "name": a.name, "shape": a.shape, "difference": a.difference, "tolerance": a.tolerance, "passes": a.passes(), "note": a.note }))
            .collect();
        writeln!(out, "{:#}", json!({ "weights": verification.weights, "passes": passes, "arrays": arrays }))?;
    } else {
        let mut table = Table::new(&[
            ("ARRAY", Align::Left),
            ("SHAPE", Align::Left),
            ("LARGEST DIFFERENCE", Align::Right),
            ("TOLERANCE", Align::Right),
            ("", Align::Left),
        ]);
        for a in &verification.arrays {
            let difference = a.difference.map_or("-".into(), |d| format!("{d:.1e}"));
            let verdict = if a.passes() { "ok".into() } else { a.note.clone().unwrap_or_else(|| "too large".into()) };
            table.row(vec![
                a.name.clone(),
                format!("{:?}", a.shape),
                difference,
                format!("{:.0e}", a.tolerance),
                verdict,
            ]);
        }
        table.print(&mut out, |i| (!verification.arrays[i].passes()).then_some(Meaning::Bad))?;
        let (count, wrong) = (verification.arrays.len(), verification.arrays.iter().filter(|a| !a.passes()).count());
        let summary = match wrong {
            0 => styled(&format!("all {count} arrays agree"), Meaning::Good),
            n => styled(&format!("{n} of {count} arrays do not agree"), Meaning::Bad),
        };
        writeln!(out, "{summary}")?;
    }
    Ok(if passes { Outcome::Fine } else { Outcome::Failed })
}
