//! `vit export`: a model as an ONNX file.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde_json::json;
use vit::data::ApplyPreprocess;
use vit::export::{
    CheckInput, ExportOptions, ExportPrecision, ExportTower, Exported, RuntimeResult, compare_runtimes, export,
};
use vit_models::{Changes, Checkpoint};
use vit_train::finite_json;

use crate::Outcome;
use crate::checkpoints;
use crate::images::parse_size;
use crate::table::{Align, Table, difference};
use crate::terminal::{self, Meaning};

/// Export a model to ONNX, for ONNX Runtime, OpenVINO and others
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit export cifar10 cifar10.onnx
  vit export cifar10 cifar10_f16.onnx --precision f16 --preprocess

The file has opset 17, a batch of any size, and the input `pixel_values` [batch,
channels, height, width] of images that are resized, cropped and normalised. The
output is `logits`, or `embedding` of a model without classes. Class names and
preprocessing are in the metadata. With --check the outputs are compared in other
runtimes.")]
pub struct Arguments {
    /// The model: a checkpoint folder, a weights file, a run's folder (its best
    /// model), or cifar10 for the built-in one
    #[arg(value_name = "MODEL")]
    source: PathBuf,
    /// The file to write
    #[arg(required_unless_present = "model", conflicts_with = "model")]
    file: Option<PathBuf>,
    /// The same as MODEL, as other commands take it: vit export -m MODEL FILE
    #[arg(long, short, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Precision of weights and activations: f32 or f16
    #[arg(long, value_enum, default_value_t = PrecisionName::F32, hide_possible_values = true)]
    precision: PrecisionName,
    /// Take bytes, `pixels` [batch, height, width, channels], and normalise them in
    /// the graph
    #[arg(long)]
    preprocess: bool,
    /// Export the text tower of an image-text model, which takes `input_ids` [batch,
    /// context], instead of its image tower
    #[arg(long, conflicts_with_all = ["preprocess", "image_size", "image"])]
    text: bool,
    /// Another image size: N, or HEIGHTxWIDTH; positions are resampled
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    image_size: Option<[usize; 2]>,
    /// Run the file in ONNX Runtime and OpenVINO, where python3 has them, and compare
    /// the outputs with the model's
    #[arg(long)]
    check: bool,
    /// The image to check with, instead of noise
    #[arg(long, value_name = "FILE", requires = "check")]
    image: Option<PathBuf>,
    /// Initialise parameters that the weights lack, and drop those the model lacks
    #[arg(long)]
    allow_unmatched: bool,
    /// Replace the file if it is there already
    #[arg(long)]
    overwrite: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum PrecisionName {
    F32,
    F16,
}

/// The largest relative difference that rounding explains.
fn tolerance(precision: ExportPrecision) -> f64 {
    match precision {
        ExportPrecision::F32 => 1e-4,
        ExportPrecision::F16 => 5e-2,
    }
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let precision = match arguments.precision {
        PrecisionName::F32 => ExportPrecision::F32,
        PrecisionName::F16 => ExportPrecision::F16,
    };
    let tower = if arguments.text { ExportTower::Text } else { ExportTower::Image };
    let options = ExportOptions { precision, preprocess: arguments.preprocess, tower };
    // With --model, the only positional argument is the file.
    let (source, file) = match (&arguments.model, &arguments.file) {
        (None, Some(file)) => (&arguments.source, file),
        (Some(model), _) => (model, &arguments.source),
        (None, None) => anyhow::bail!("give the file to write after the model"),
    };
    let mut checkpoint = checkpoints::open(source, arguments.allow_unmatched)?;
    check_file(file, &checkpoint.source, arguments.overwrite)?;
    checkpoints::change(&mut checkpoint, Changes { image_size: arguments.image_size, ..Changes::default() })?;
    let report = std::mem::take(&mut checkpoint.report);
    checkpoints::report_changes(file, &report);
    let source = checkpoint.source.clone();
    let (exported, results) = match arguments.check {
        false => (written(checkpoint, file, options)?, None),
        true => {
            let input = check_input(&checkpoint, arguments.image.as_deref())?;
            let exported = written(checkpoint.clone(), file, options)?;
            let _busy = terminal::busy(format!("running {}", file.display()));
            let results = compare_runtimes(&checkpoint, file, &exported, options, &input)?;
            (exported, Some(results))
        }
    };
    let agrees = |result: &RuntimeResult| matches!(result.difference, Ok(d) if d <= tolerance(precision));
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let mut object = json!({
            "source": source.display().to_string(),
            "file": file.display().to_string(),
            "input": exported.input,
            "output": exported.output,
            "opset": exported.opset,
            "nodes": exported.nodes,
            "report": report,
        });
        if let Some(beside) = &exported.beside {
            object["data"] = json!(beside.display().to_string());
        }
        if let Some(results) = &results {
            object["check"] = results.iter().map(|result| line(result, agrees(result))).collect();
        }
        writeln!(out, "{:#}", finite_json(object))?;
    } else {
        let Exported { input, output, opset, nodes, beside, .. } = &exported;
        let (from, to) = (source.display(), file.display());
        writeln!(out, "{from} -> {to} (opset {opset}, {nodes} nodes, {input} -> {output})")?;
        if let Some(beside) = beside {
            writeln!(out, "the tensors are in {}, which belongs beside it", beside.display())?;
        }
        if let Some(results) = &results {
            print_table(results, agrees, &mut out)?;
        }
    }
    let fine = results.is_none_or(|results| results.iter().all(agrees));
    Ok(if fine { Outcome::Fine } else { Outcome::Failed })
}

fn written(checkpoint: Checkpoint, file: &Path, options: ExportOptions) -> anyhow::Result<Exported> {
    let _busy = terminal::busy(format!("writing {}", file.display()));
    Ok(export(checkpoint, file, options)?)
}

/// The images of a check.
fn check_input(checkpoint: &Checkpoint, image: Option<&Path>) -> anyhow::Result<CheckInput> {
    let Some(path) = image else { return Ok(CheckInput::Noise) };
    let image = vit::Image::open(path)?;
    Ok(CheckInput::Prepared(checkpoint.config.preprocessing.apply(&image)?))
}

fn line(result: &RuntimeResult, agrees: bool) -> serde_json::Value {
    let mut line = json!({
        "runtime": result.runtime, "version": result.version, "batch": result.batch, "agrees": agrees,
    });
    match &result.difference {
        Ok(difference) => line["relative_difference"] = json!(difference),
        Err(why) => line["error"] = json!(why),
    }
    line
}

fn print_table(
    results: &[RuntimeResult],
    agrees: impl Fn(&RuntimeResult) -> bool,
    out: &mut impl Write,
) -> std::io::Result<()> {
    let columns = [("RUNTIME", Align::Left), ("VERSION", Align::Left), ("BATCH", Align::Right)];
    let mut table = Table::new(&[&columns[..], &[("RELATIVE DIFFERENCE", Align::Right), ("", Align::Left)]].concat());
    for result in results {
        let (found, verdict) = match &result.difference {
            Ok(found) if agrees(result) => (difference(*found), "ok".to_string()),
            Ok(found) => (difference(*found), "too large".into()),
            Err(why) => ("-".into(), why.clone()),
        };
        table.row(vec![result.runtime.clone(), result.version.clone(), result.batch.to_string(), found, verdict]);
    }
    table.print(out, |i| (!agrees(&results[i])).then_some(Meaning::Bad))
}

/// Refuses to replace a file by accident, the weights in any case.
fn check_file(file: &Path, source: &Path, overwrite: bool) -> anyhow::Result<()> {
    let place = file.display();
    anyhow::ensure!(!file.is_dir(), "{place}: this is a folder; give a file to write, such as model.onnx in it");
    let real = |path: &Path| path.canonicalize().ok();
    anyhow::ensure!(
        real(file).is_none() || real(file) != real(source),
        "{place}: the weights come from this file; give another"
    );
    // Devices such as /dev/stdout are written to.
    anyhow::ensure!(overwrite || !file.is_file(), "{place}: this file is there already; give another, or --overwrite");
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder.filter(|folder| !folder.is_dir()) {
        anyhow::bail!("{place}: there is no folder {}; make it first", folder.display());
    }
    Ok(())
}
