//! `vit verify`: a checkpoint's outputs compared with recorded ones.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::json;
use vit::{Comparison, VerifyOptions};
use vit_models::builtin;
use vit_models::run::model_of;
use vit_train::finite_json;

use crate::Outcome;
use crate::checkpoints::{ModelArgument, folder_of_config, named};
use crate::device_options::DeviceArguments;
use crate::table::{Align, Table, difference};
use crate::terminal::{self, Meaning, styled};

/// Prove that a checkpoint gives its recorded outputs
#[derive(Args)]
#[command(after_help = "\
Example:
  vit verify crates/models/builtin/cifar10

The folder holds the weights, config.json (timm's, Hugging Face's, or the
`class` and `args` of a constructor) and io.safetensors: `input` [batch,
channels, height, width] and any of `logits`, `features`, `tokens`,
`attention_0`, and so on. Every recorded array is compared; the exit status is 1
if any differs by more than its tolerance.

With `images` [steps, batch, channels, height, width] and `labels` in place of
`input` it is a training run: config.json says how (`optimizer`, `grad_clip`,
`label_smoothing`), and each step's `loss` and `grad_norm`, the first step's
gradients `grad.NAME` and the weights in final.safetensors are compared. One
batch of `images` with `mixup_images` or `cutmix_images` is mixed again.")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArgument,
    /// The weights file, where the folder has several
    #[arg(long, value_name = "FILE")]
    weights: Option<PathBuf>,
    #[command(flatten)]
    device: DeviceArguments,
    /// Largest absolute difference allowed [default: 2e-5; tokens 5e-5, attention
    /// 5e-6; training: loss and gradients 1e-5, their norm 1e-4, final weights 1e-5,
    /// 1e-4 with Adam; 500 times that in tf32, 4000 times in bf16 and int8]
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = tolerance)]
    tolerance: Option<f64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn tolerance(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|t: &f64| t.is_finite() && *t >= 0.0)
        .ok_or_else(|| "should be a number like 1e-4, not negative".into())
}

/// A file of the folder if there is one of this name, else the path itself.
fn beside(folder: &Path, file: PathBuf) -> PathBuf {
    let inside = folder.join(&file);
    if !file.exists() && inside.exists() { inside } else { file }
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let model = arguments.model.path();
    let model = folder_of_config(&model);
    let given = model_of(&model);
    // A weights file is verified with the recording of its folder.
    let is_weights = given.is_file() && arguments.weights.is_none();
    let folder = match given.parent().filter(|_| is_weights) {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => &*given,
    };
    let options = VerifyOptions {
        device: arguments.device.inference(),
        tolerance: arguments.tolerance,
        weights: match arguments.weights {
            Some(file) => Some(beside(folder, file)),
            None => is_weights.then(|| given.to_path_buf()),
        },
    };
    anyhow::ensure!(
        !builtin::is_meant(folder),
        "the built-in model has no recorded outputs beside it; give a folder with weights, config.json and io.safetensors"
    );
    anyhow::ensure!(folder.exists(), "{}: no such file or folder", folder.display());
    anyhow::ensure!(
        folder.is_dir(),
        "{}: this is a file; give the folder that it is in, or only one weights file",
        folder.display()
    );
    let verification = {
        let _busy = terminal::busy(format!("verifying {}", folder.display()));
        vit::verify(folder, &options).map_err(|error| match error {
            vit::Error::Model(error) => named(folder, error),
            other => other.into(),
        })?
    };
    let mut out = std::io::stdout().lock();
    let passes = verification.passes();
    if arguments.json {
        let array = |a: &Comparison| {
            let mut array = json!({ "name": a.name, "shape": a.shape, "tolerance": a.tolerance, "passes": a.passes() });
            if let Some(difference) = a.difference {
                array["difference"] = json!(difference);
            }
            if let Some(note) = &a.note {
                array["note"] = json!(note);
            }
            finite_json(array)
        };
        let arrays: Vec<_> = verification.arrays.iter().map(array).collect();
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
            let difference = a.difference.map_or("-".into(), difference);
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
