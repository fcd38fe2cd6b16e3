//! `vit label`: pseudo-labels of a model, for another to learn from.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde_json::{Map, Value, json};
use vit::{Model, Prediction};
use vit_data::Samples;
use vit_data::dataset::{self, Dataset, DatasetOptions};
use vit_models::ProblemType;
use vit_system::{atomic_file, csv_line};
use vit_train::{PseudoLabel, PseudoLabelChoice, RunFolder, splits_of_run};

use crate::checkpoints::report_changes;
use crate::classify::{THRESHOLD, probability};
use crate::hints::describe;
use crate::images::{ImageArguments, Source, report_failures};
use crate::terminal;
use crate::{Outcome, classify};

/// Label images with a model, for another to learn from
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit label examples/images --out labels.csv
  vit label examples/images --soft --out labels.jsonl

Noisy Student: a teacher's labels and the true ones together, a larger student,
and noise; then the student is the teacher.

  vit train --data photos --model efficientnet_b0 --out runs/teacher
  vit label more_photos -m runs/teacher --with photos --soft --out all.jsonl
  vit train --data all.jsonl --model efficientnet_b1 --recipe noisy-student

A model that was trained on images with several labels writes all classes above
--threshold, as a list that may be empty.

The file is a manifest that `vit train` and `vit eval` take as --data.")]
pub struct Arguments {
    #[command(flatten)]
    images: ImageArguments,
    /// The file to write: .csv or .jsonl
    #[arg(long, short, value_name = "FILE")]
    out: PathBuf,
    /// Leave out images with a lower confidence; with several labels per image,
    /// that is the confidence in the least certain class, present or absent
    #[arg(long, value_name = "P", default_value_t = 0.3, value_parser = probability)]
    min_confidence: f32,
    /// For models with several labels per image: the probability above which a
    /// class is a label [default: 0.5]
    #[arg(long, value_name = "P", value_parser = probability)]
    threshold: Option<f32>,
    /// So many images of each class, the surest; if there are fewer, they are
    /// repeated
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    per_class: Option<u32>,
    /// Write the probabilities of all classes instead of the likeliest class
    #[arg(long)]
    soft: bool,
    /// A labelled dataset to add: its training images beside the new ones, its
    /// other splits for validation and testing
    #[arg(long, value_name = "DATA")]
    with: Option<PathBuf>,
}

/// The least probability in a soft label.
const LEAST_SHARE: f32 = 1e-4;

/// A line of the manifest.
struct Line {
    path: PathBuf,
    label: Value,
    /// The model's confidence; `None` for a true label.
    confidence: Option<f32>,
    split: Option<&'static str>,
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let format = ManifestFormat::of(&arguments.out)?;
    let images = &arguments.images;
    let sources = images.sources()?;
    let options = images.options(sources.len());
    let checkpoint = images.checkpoint()?;
    let mut model = Model::new(checkpoint, options.device.open()?.as_ref(), &options)?;
    report_changes(&images.model, model.report());
    let threshold = arguments.threshold(model.config().problem_type)?;
    let labelling = Labelling {
        names: class_names(&model.config().labels, model.config().architecture.classes()),
        threshold,
        soft: arguments.soft,
    };

    let (preprocess, batch) = (model.preprocess().clone(), model.batch());
    let (mut found, mut failed) = (Vec::new(), 0);
    let classify = |images: &[Vec<f32>]| model.classify_prepared(images);
    images.how.run_model(&sources, &preprocess, batch, classify, |source, predictions| {
        match (predictions, source) {
            (Ok(predictions), Source::File(path)) => found.extend(labelling.label(path, &predictions)),
            (Ok(_), _) => bail!("only images that are files can be listed in {}", arguments.out.display()),
            (Err(error), _) => {
                failed += 1;
                terminal::error(describe(&error));
            }
        }
        Ok(())
    })?;
    let mut lines = arguments.choose(&found, threshold)?;
    if let Some(with) = &arguments.with {
        let run = RunFolder::of_model(&images.model);
        lines.extend(labelled(with, &labelling.names, threshold.is_some(), run.as_ref())?);
    }
    format.write(&arguments.out, &lines).with_context(|| arguments.out.display().to_string())?;
    terminal::note(format_args!("{}: {} lines", arguments.out.display(), lines.len()));
    Ok(report_failures(failed, sources.len()))
}

/// An image with the model's label.
struct LabelledImage {
    path: PathBuf,
    /// The likeliest class.
    class: usize,
    confidence: f32,
    /// The label as the manifest has it.
    label: Value,
}

/// How predictions become labels.
struct Labelling {
    names: Vec<String>,
    /// The probability above which a class is a label, for models that give several.
    threshold: Option<f32>,
    soft: bool,
}

impl Labelling {
    fn label(&self, path: &Path, predictions: &[Prediction]) -> Option<LabelledImage> {
        let top = predictions.first()?;
        // With several labels, the confidence is that of the least certain class, present or absent.
        let confidence = match self.threshold {
            None => top.probability,
            Some(_) => predictions.iter().map(|p| p.probability.max(1.0 - p.probability)).fold(1.0, f32::min),
        };
        let label = match self.threshold {
            Some(threshold) => several(predictions, &self.names, threshold),
            None if self.soft => soft(predictions, &self.names),
            None => json!(self.names[top.class]),
        };
        Some(LabelledImage { path: path.into(), class: top.class, confidence, label })
    }
}

impl Arguments {
    /// The images with a sufficient confidence, as many of each class as were asked for.
    fn choose(&self, found: &[LabelledImage], threshold: Option<f32>) -> anyhow::Result<Vec<Line>> {
        let per_class = self.per_class.map(|count| count as usize);
        let label = |(image, found): (usize, &LabelledImage)| PseudoLabel {
            image,
            class: found.class,
            confidence: found.confidence,
        };
        let labels: Vec<PseudoLabel> = found.iter().enumerate().map(label).collect();
        let chosen = PseudoLabelChoice { min_confidence: self.min_confidence, per_class }.of(&labels);
        let different: BTreeSet<usize> = chosen.iter().copied().collect();
        terminal::note(format_args!(
            "{} of {} images are labelled with a confidence of at least {}{}",
            different.len(),
            labels.len(),
            self.min_confidence,
            per_class.map_or(String::new(), |count| format!(" and among the {count} surest of their class")),
        ));
        ensure!(!chosen.is_empty(), "no image is left; a lower --min-confidence keeps more");
        if let Some(threshold) = threshold {
            let is_empty = |image: &&usize| found[**image].label.as_array().is_some_and(Vec::is_empty);
            let empty = different.iter().filter(is_empty).count();
            ensure!(empty < different.len(), "no image has a class above {threshold}; a lower --threshold finds more");
            if empty > 0 {
                terminal::note(format_args!(
                    "{empty} of them have no class above {threshold}: their list of labels is empty"
                ));
            }
        }
        let split = self.with.as_ref().map(|_| "train");
        let line = |image: usize| {
            let LabelledImage { path, label, confidence, .. } = &found[image];
            Line { path: path.clone(), label: label.clone(), confidence: Some(*confidence), split }
        };
        Ok(chosen.into_iter().map(line).collect())
    }

    /// The probability above which a class is a label, for models that give several.
    fn threshold(&self, problem_type: ProblemType) -> anyhow::Result<Option<f32>> {
        if problem_type == ProblemType::SingleLabel {
            ensure!(self.threshold.is_none(), "--threshold: this model gives each image one label; leave it out");
            return Ok(None);
        }
        let several = "this model gives images several labels";
        ensure!(!self.soft, "--soft: {several}, and a manifest cannot hold a probability for each; leave it out");
        ensure!(self.per_class.is_none(), "--per-class: {several}, so classes cannot be made equal; leave it out");
        Ok(Some(self.threshold.unwrap_or(THRESHOLD)))
    }
}

/// All classes above the threshold, in the model's order.
fn several(answer: &[Prediction], names: &[String], threshold: f32) -> Value {
    let above: BTreeSet<usize> = answer.iter().filter(|p| p.probability > threshold).map(|p| p.class).collect();
    above.into_iter().map(|class| names[class].as_str()).collect()
}

/// The classes by name if the names are distinct, else by number.
fn class_names(labels: &[String], classes: usize) -> Vec<String> {
    let distinct: BTreeSet<&String> = labels.iter().collect();
    let named = labels.len() == classes && distinct.len() == classes;
    if named { labels.to_vec() } else { (0..classes).map(|class| class.to_string()).collect() }
}

/// The classes and their probabilities.
fn soft(answer: &[Prediction], names: &[String]) -> Value {
    let shares = answer.iter().filter(|p| p.probability >= LEAST_SHARE);
    let rounded = |p: f32| (f64::from(p) * 1e5).round() / 1e5;
    Value::Object(shares.map(|p| (names[p.class].clone(), json!(rounded(p.probability)))).collect::<Map<_, _>>())
}

/// All images of a dataset with true labels. If it has no validation split, one is held out here, so that models are never
/// evaluated on pseudo-labels.
///
/// The dataset that the model was trained on is divided as its run divided it: a student must not be evaluated on images
/// that its teacher was trained on.
fn labelled(path: &Path, names: &[String], several: bool, run: Option<&RunFolder>) -> anyhow::Result<Vec<Line>> {
    let of_run = run.map(|run| splits_of_run(run, path, Some(names))).transpose()?.flatten();
    let splits = match of_run {
        Some(of_run) => {
            terminal::note(format_args!("{}: divided as the model's run divided it{}", path.display(), of_run.note));
            of_run.splits
        }
        None => dataset::open(path, &DatasetOptions { classes: Some(names.to_vec()), ..DatasetOptions::default() })?,
    };
    terminal::note(format_args!("{}: {}", path.display(), splits.report));
    match (splits.train.is_multi_label(), several) {
        (true, false) => bail!("{}: images have several labels, and the model gives each one", path.display()),
        (false, true) => bail!("{}: images have one label each, and the model gives several", path.display()),
        _ => {}
    }
    let test = splits.test.filter(|test| splits.validation.as_ref().is_none_or(|v| v.name(0) != test.name(0)));
    let parts = [
        (Some(splits.train), "train"),
        (Some(splits.unused), "train"),
        (splits.validation, "validation"),
        (test, "test"),
    ];
    let mut lines = Vec::new();
    for (part, split) in parts {
        let Some(part) = part else { continue };
        for index in 0..part.len() {
            lines.push(Line {
                path: file(&part, index)?,
                label: if several { labels(&part, index).collect() } else { json!(labels(&part, index).next()) },
                confidence: None,
                split: Some(split),
            });
        }
    }
    Ok(lines)
}

fn file(part: &Dataset, index: usize) -> anyhow::Result<PathBuf> {
    part.file(index).with_context(|| {
        format!("{}: a manifest lists files, and this image is inside an archive; unpack the dataset", part.name(index))
    })
}

fn labels(part: &Dataset, index: usize) -> impl Iterator<Item = &str> {
    part.labels(index).iter().filter_map(|label| part.classes().get(*label as usize)).map(String::as_str)
}

#[derive(Clone, Copy)]
enum ManifestFormat {
    Csv,
    Jsonl,
}

impl ManifestFormat {
    fn of(path: &Path) -> anyhow::Result<ManifestFormat> {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("csv") => Ok(ManifestFormat::Csv),
            Some("jsonl") => Ok(ManifestFormat::Jsonl),
            _ => bail!("--out {}: should end in .csv or .jsonl", path.display()),
        }
    }

    fn write(self, path: &Path, lines: &[Line]) -> anyhow::Result<()> {
        let folder = std::path::absolute(path)?.parent().unwrap_or(Path::new("")).to_path_buf();
        atomic_file::write_with(path, |out| self.write_to(out, &folder, lines))
    }

    fn write_to(self, out: &mut impl Write, folder: &Path, lines: &[Line]) -> anyhow::Result<()> {
        if let ManifestFormat::Csv = self {
            writeln!(out, "path,label,confidence,split")?;
        }
        for line in lines {
            let path = relative(&line.path, folder)?;
            let split = line.split.unwrap_or_default();
            match self {
                ManifestFormat::Csv => {
                    let label = match &line.label {
                        Value::String(name) => name.clone(),
                        // A soft label or a list, as JSON.
                        other => other.to_string(),
                    };
                    let confidence = line.confidence.map_or(String::new(), |c| c.to_string());
                    out.write_all(csv_line([path.as_str(), &label, &confidence, split]).as_bytes())?;
                }
                ManifestFormat::Jsonl => {
                    let mut object = json!({ "path": path, "label": line.label });
                    if let Some(confidence) = line.confidence {
                        object["confidence"] = json!(classify::shortest(confidence));
                    }
                    if !split.is_empty() {
                        object["split"] = json!(split);
                    }
                    writeln!(out, "{object}")?;
                }
            }
        }
        Ok(())
    }
}

/// An image's path relative to the manifest's folder if it is inside, else absolute.
fn relative(image: &Path, folder: &Path) -> anyhow::Result<String> {
    let image = std::path::absolute(image)?;
    let path = image.strip_prefix(folder).unwrap_or(&image);
    path.to_str().map(str::to_string).with_context(|| format!("{}: the path is not text", image.display()))
}
