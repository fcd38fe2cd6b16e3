//! `vit eval`: the metrics of a model on a dataset, and its mistakes.

mod suite;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{anyhow, bail, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use vit::ModelOptions;
use vit_data::Samples;
use vit_data::dataset::{Dataset, Split};
use vit_data::loader::Unreadable;
use vit_models::{Changes, Checkpoint, ProblemType};
use vit_train::{
    EvaluatedSplit, EvaluationOptions, RealAccuracy, RealLabels, RunFolder, TaskEvaluation, evaluate, evaluation_json,
    finite_json, open_for_evaluation, wilson_interval, write_evaluation,
};

use crate::checkpoints::ModelArgument;
use crate::device_options::DeviceArguments;
use crate::images::{parse_size, report_failures};
use crate::table::{Align, Table};
use crate::words::TemplateArguments;
use crate::{Outcome, checkpoints, terminal};

/// Evaluate a model on a dataset, and see where it is wrong
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit eval cifar10 --data cifar10.tar.zst
  vit eval runs/photos-1 --data photos --out report
  vit eval -m vit_base --data imagenet --split val --json
  vit eval -m clip --data flowers --template 'a photo of a {}'
  vit eval -m vit_base --data imagenet --split val --real real.json
  vit eval -m vit_base --suite vtab.toml --out suites/vit_base

With a run's folder or checkpoint and the data that it was trained on, the
model is evaluated on the images that the run held out, unless the data has a
validation or a test split; --split all adds the training images.

An image-text model (CLIP, SigLIP) is evaluated zero-shot: it chooses among the
names of the dataset's classes, put into --template.

A model that was trained on images with several labels is evaluated by mean
average precision, and a class counts as present above a probability of 0.5.

--real takes the labels of ImageNet-ReaL: a JSON list with a list of acceptable
classes for each validation image, in the order of file names. Images without
any are left out. Class folders that are numbers (ImageNet-V2) are the indices
of classes, unless the model has classes of these names.

The interval of top-1 is Wilson's at 95%: what other test images would change.

With --out, the folder gets the figures as JSON and CSV, the confusion matrix
and the calibration as plots, and a sheet of the most confident mistakes.")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArgument,
    /// The dataset, in any format that `vit train` takes
    #[arg(long, value_name = "PATH", required_unless_present = "suite")]
    data: Option<PathBuf>,
    /// A file of many datasets in groups: the model is fine-tuned on each, or
    /// probed, and measured on its test images
    #[arg(long, value_name = "FILE", conflicts_with_all = ["data", "split", "real", "image_size"])]
    suite: Option<PathBuf>,
    /// The split: train, val, test or all [default: val, else test, else what the
    /// run held out, else all]
    #[arg(long, value_name = "SPLIT")]
    split: Option<String>,
    /// Write metrics and plots into this folder; of a suite where it is kept, and
    /// goes on after an interruption [default: none; suites/NAME]
    #[arg(long, short, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Also the accuracy by the labels of ImageNet-ReaL
    #[arg(long, value_name = "FILE")]
    real: Option<PathBuf>,
    /// How many of the most confident mistakes to keep
    #[arg(long, value_name = "N", default_value_t = 24)]
    worst: usize,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Another image size than the model's: N, or HEIGHTxWIDTH
    #[arg(long, value_name = "SIZE", help_heading = "How to run", value_parser = parse_size)]
    image_size: Option<[usize; 2]>,
    /// Images in one run of the model
    #[arg(long, value_name = "N", help_heading = "How to run", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: u32,
    #[command(flatten)]
    templates: TemplateArguments,
    #[command(flatten)]
    device: DeviceArguments,
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    if let Some(path) = &arguments.suite {
        return suite::run(&arguments, path);
    }
    let Some(data) = &arguments.data else { bail!("--data is missing") };
    let model = arguments.model.path();
    let mut checkpoint = checkpoints::open(&model, false)?;
    checkpoints::change(&mut checkpoint, Changes { image_size: arguments.image_size, ..Changes::default() })?;
    checkpoints::report_changes(&model, &checkpoint.report);
    ensure!(
        checkpoint.has_text_tower() || !arguments.templates.are_given(),
        "--template and --templates need a model with a text tower, such as CLIP"
    );
    let real = arguments.real.as_deref().map(RealLabels::read).transpose()?;
    let samples = arguments.open_data(data, &model, &checkpoint)?;
    if checkpoint.has_text_tower() {
        let options = ModelOptions::new().device(arguments.device.inference());
        checkpoint = arguments.templates.classifier(checkpoint, samples.classes(), &options)?;
    }

    let device = arguments.device.inference().open()?;
    let options = EvaluationOptions {
        batch: arguments.batch as usize,
        threads: arguments.device.placement.threads(),
        worst: arguments.worst,
    };
    let bar = progress(samples.len());
    let watch = |done: usize, _: usize| {
        bar.set_position(done as u64);
        true
    };
    let outcome =
        evaluate(device.as_ref(), &checkpoint.config, &mut checkpoint.weights, samples.as_ref(), &options, watch)?;
    bar.finish_and_clear();
    let Some(outcome) = outcome else { bail!("the evaluation was stopped") };
    for Unreadable { name, reason, .. } in &outcome.unreadable {
        terminal::error(format_args!("{name}: {reason}"));
    }
    if outcome.unreadable.len() == samples.len() {
        bail!("{}: no image could be read, so there is nothing to measure", data.display());
    }
    if !outcome.non_finite.is_empty() {
        return Err(non_finite(&model, &outcome));
    }
    let real = real.map(|real| {
        let outputs = checkpoint.config.architecture.classes().max(samples.classes().len());
        real.accuracy(samples.as_ref(), outputs, &outcome.predictions)
    });
    let real = real.transpose()?;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let mut json = evaluation_json(&outcome, samples.as_ref());
        if let Some(real) = real {
            json["real"] = finite_json(json!({
                "accuracy": real.accuracy, "images": real.images, "left_out": real.left_out,
                "interval": wilson_interval(real.accuracy, real.images),
            }));
        }
        writeln!(out, "{json}")?;
    } else {
        print(&mut out, &outcome.evaluation, real, samples.classes())?;
    }
    if let Some(folder) = &arguments.out {
        let title = format!("{} on {}", model.display(), data.display());
        let files = write_evaluation(folder, &title, &outcome, samples.as_ref())?;
        terminal::note(format_args!("{}: {}", folder.display(), files.join(", ")));
    }
    Ok(report_failures(outcome.unreadable.len(), samples.len()))
}

impl Arguments {
    /// The samples to evaluate on, if the model can be.
    fn open_data(&self, data: &Path, model: &Path, checkpoint: &Checkpoint) -> anyhow::Result<Arc<Dataset>> {
        let config = &checkpoint.config;
        let split = match self.split.as_deref() {
            None => EvaluatedSplit::Usual,
            Some("all") => EvaluatedSplit::All,
            Some(name) => match Split::from_name(name) {
                Some(split) => EvaluatedSplit::Split(split),
                None => bail!("--split {name}: should be train, val, test or all"),
            },
        };
        let classes = Some(config.labels.as_slice()).filter(|labels| !labels.is_empty());
        let run = RunFolder::of_model(model);
        let path = data.display();
        let data = open_for_evaluation(data, split, run.as_ref(), classes)?;
        let samples = data.samples;
        let (found, known) = (samples.classes().len(), config.architecture.classes());
        ensure!(
            found <= known || checkpoint.has_text_tower(),
            "{path}: the dataset has {found} classes, the model only {known}"
        );
        ensure!(
            !samples.is_multi_label() || config.problem_type == ProblemType::MultiLabel,
            "{path}: images have several labels, and {} was trained to give each one. If it was trained on several, write \
             \"problem_type\": \"{}\" into its config.json",
            model.display(),
            ProblemType::MultiLabel.name()
        );
        terminal::note(format_args!("{path}: {}, {} images: {}", data.format, samples.len(), data.which));
        if data.numbered {
            terminal::note("class folders are numbers: each is the index of a class, 10 after 9 and not after 1");
        }
        Ok(samples)
    }
}

/// Why logits are NaN or infinite: the weights, or an overflow inside the model.
fn non_finite(model: &Path, outcome: &vit_train::EvaluationOutcome) -> anyhow::Error {
    // The weights were given away to the device, so they are read again.
    if let Ok(Err(error)) = checkpoints::open(model, false).map(|checkpoint| checkpoint.check_finite()) {
        return error.into();
    }
    let (count, all) = (outcome.non_finite.len(), outcome.evaluation.samples());
    anyhow!(
        "the model's logits are NaN or infinite for {count} of {all} images, the first {}, although its weights are \
         finite: values overflow inside the model; use --precision f32, or another checkpoint",
        outcome.non_finite[0]
    )
}

fn print(
    out: &mut impl Write,
    evaluation: &TaskEvaluation,
    real: Option<RealAccuracy>,
    names: &[String],
) -> std::io::Result<()> {
    let percent = |share: f64| if share.is_finite() { format!("{:.2}%", 100.0 * share) } else { "unknown".into() };
    let mut intervals: Vec<(&str, [f64; 2])> = Vec::new();
    let mut figures = match evaluation {
        TaskEvaluation::Single(evaluation) | TaskEvaluation::Neighbours(evaluation) => {
            let m = evaluation.metrics();
            intervals.extend(wilson_interval(m.top1, m.samples).map(|interval| ("top-1", interval)));
            vec![
                ("top-1", percent(m.top1)),
                ("top-5", percent(m.top5)),
                ("mean recall", percent(m.balanced_accuracy)),
                ("mean F1", percent(m.macro_f1)),
                ("calibration error", percent(m.ece)),
                ("loss", format!("{:.4}", m.loss)),
                ("samples", m.samples.to_string()),
            ]
        }
        TaskEvaluation::Multi(evaluation) => {
            let m = evaluation.metrics();
            vec![
                ("mean average precision", percent(m.mean_average_precision)),
                ("micro F1", percent(m.micro_f1)),
                ("mean F1", percent(m.macro_f1)),
                ("loss", format!("{:.4}", m.loss)),
                ("samples", m.samples.to_string()),
            ]
        }
        TaskEvaluation::Pairs(evaluation) => {
            let m = evaluation.metrics();
            vec![
                ("image to text R@1", percent(m.image_to_text_r1)),
                ("image to text R@5", percent(m.image_to_text_r5)),
                ("text to image R@1", percent(m.text_to_image_r1)),
                ("text to image R@5", percent(m.text_to_image_r5)),
                ("loss", format!("{:.4}", m.loss)),
                ("samples", m.samples.to_string()),
            ]
        }
    };
    if let Some(RealAccuracy { accuracy, images, left_out }) = real {
        intervals.extend(wilson_interval(accuracy, images).map(|interval| ("ReaL accuracy", interval)));
        figures.extend([("ReaL accuracy", percent(accuracy)), ("ReaL samples", images.to_string())]);
        figures.push(("left out by ReaL", left_out.to_string()));
    }
    let multi = matches!(evaluation, TaskEvaluation::Multi(_));
    let mut columns = vec![
        ("class", Align::Left),
        ("precision", Align::Right),
        ("recall", Align::Right),
        ("F1", Align::Right),
        ("AP", Align::Right),
        ("samples", Align::Right),
    ];
    columns.retain(|(name, _)| multi || *name != "AP");
    let mut table = Table::new(&columns);
    for (name, (m, average_precision)) in names.iter().zip(&evaluation.per_class()).filter(|(_, (m, _))| m.support > 0)
    {
        let name = terminal::printable(name).into_owned();
        let mut row = vec![name, percent(m.precision), percent(m.recall), percent(m.f1)];
        row.extend(average_precision.map(percent));
        row.push(m.support.to_string());
        table.row(row);
    }
    table.print(out, |_| None)?;
    writeln!(out)?;
    figures.iter().try_for_each(|(name, value)| {
        let interval = intervals.iter().find(|(known, _)| known == name);
        let interval = interval.map(|(_, ends)| format!("  95% interval {} to {}", percent(ends[0]), percent(ends[1])));
        writeln!(out, "{name:<24}{value:>9}{}", interval.unwrap_or_default())
    })
}

pub fn progress(samples: usize) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:32} {pos}/{len} images  {eta} left");
    ProgressBar::new(samples as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}
