//! `vit label`: a model says what is in pictures without labels, and another can learn from it.

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
use crate::pictures::{PictureArguments, Source, report_failures};
use crate::terminal;
use crate::{Outcome, classify};

/// Label pictures with a model, for another to learn from
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
    pictures: PictureArguments,
    /// The file to write: .csv or .jsonl
    #[arg(long, short, value_name = "FILE")]
    out: PathBuf,
    /// Leave out images that the model is less sure of; where it gives several
    /// labels, images with a class that it is less sure of, present or absent
    #[arg(long, value_name = "P", default_value_t = 0.3, value_parser = probability)]
    min_confidence: f32,
    /// Where the model gives several labels per image: the classes with a
    /// probability above this [default: 0.5]
    #[arg(long, value_name = "P", value_parser = probability)]
    threshold: Option<f32>,
    /// As many pictures of each class: the surest; where there are fewer, they are
    /// repeated
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    per_class: Option<u32>,
    /// Write the probabilities of all classes instead of the likeliest class
    #[arg(long)]
    soft: bool,
    /// A labelled data set to write down with them: its training pictures beside the
    /// new ones, its others for validation and testing
    #[arg(long, value_name = "DATA")]
    with: Option<PathBuf>,
}

/// Below this, a class is no part of a soft label.
const LEAST_SHARE: f32 = 1e-4;

/// A line of the manifest.
struct Line {
    path: PathBuf,
    label: Value,
    /// How sure the model is; nothing where people labelled the picture.
    confidence: Option<f32>,
    split: Option<&'static str>,
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let format = Format::of(&arguments.out)?;
    let pictures = &arguments.pictures;
    let sources = pictures.sources()?;
    let options = pictures.options(sources.len());
    let checkpoint = pictures.checkpoint()?;
    let mut model = Model::new(checkpoint, options.device.open()?.as_ref(), &options)?;
    report_changes(&pictures.model, model.report());
    let names = class_names(&model.config().labels, model.config().architecture.classes());

    let threshold = arguments.threshold(model.config().problem_type)?;

    let (preprocess, batch) = (model.preprocess().clone(), model.batch());
    let (mut labels, mut values, mut paths, mut failed) = (Vec::new(), Vec::new(), Vec::new(), 0);
    pictures.how.for_each_batch(&sources, &preprocess, batch, |group, progress| {
        let (mut ready, mut found) = (Vec::new(), Vec::new());
        for (source, prepared) in group {
            match (prepared, source) {
                (Ok(prepared), Source::File(path)) => {
                    ready.push(prepared);
                    found.push(path.clone());
                }
                (Ok(_), _) => bail!("only pictures that are files can be listed in {}", arguments.out.display()),
                (Err(error), _) => {
                    failed += 1;
                    progress.suspend(|| terminal::error(describe(&error)));
                }
            }
        }
        let answers = if ready.is_empty() { Vec::new() } else { model.classify_prepared(&ready)? };
        for (path, answer) in found.into_iter().zip(answers) {
            let answer = match answer {
                Ok(answer) => answer,
                Err(error) => {
                    failed += 1;
                    progress.suspend(|| terminal::error(format_args!("{}: {error}", path.display())));
                    continue;
                }
            };
            let Some(top) = answer.first() else { continue };
            let confidence = match threshold {
                None => top.probability,
                Some(_) => answer.iter().map(|p| p.probability.max(1.0 - p.probability)).fold(1.0, f32::min),
            };
            labels.push(PseudoLabel { image: paths.len(), class: top.class, confidence });
            values.push(match threshold {
                Some(threshold) => several(&answer, &names, threshold),
                None if arguments.soft => soft(&answer, &names),
                None => json!(names[top.class]),
            });
            paths.push(path);
        }
        Ok(())
    })?;
    let per_class = arguments.per_class.map(|count| count as usize);
    let choice = PseudoLabelChoice { min_confidence: arguments.min_confidence, per_class };
    let chosen = choice.of(&labels);
    let different: BTreeSet<usize> = chosen.iter().copied().collect();
    terminal::note(format_args!(
        "{} of {} pictures are labelled with a confidence of at least {}{}",
        different.len(),
        labels.len(),
        arguments.min_confidence,
        per_class.map_or(String::new(), |count| format!(" and among the {count} surest of their class")),
    ));
    ensure!(!chosen.is_empty(), "no picture is left; a lower --min-confidence keeps more");
    if let Some(threshold) = threshold {
        let empty = different.iter().filter(|place| values[**place].as_array().is_some_and(Vec::is_empty)).count();
        ensure!(empty < different.len(), "no image has a class above {threshold}; a lower --threshold finds more");
        if empty > 0 {
            terminal::note(format_args!(
                "{empty} of them have no class above {threshold}: their list of labels is empty"
            ));
        }
    }
    let split = arguments.with.as_ref().map(|_| "train");
    let line = |place: usize| Line {
        path: paths[place].clone(),
        label: values[place].clone(),
        confidence: Some(labels[place].confidence),
        split,
    };
    let mut lines: Vec<Line> = chosen.into_iter().map(line).collect();
    if let Some(with) = &arguments.with {
        let run = RunFolder::of_model(&pictures.model);
        lines.extend(labelled(with, &names, threshold.is_some(), run.as_ref())?);
    }
    format.write(&arguments.out, &lines).with_context(|| arguments.out.display().to_string())?;
    terminal::note(format_args!("{}: {} lines", arguments.out.display(), lines.len()));
    Ok(report_failures(failed, sources.len()))
}

impl Arguments {
    /// Above which probability a class is a label, for models that give several.
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

/// All classes above the threshold, in their order.
fn several(answer: &[Prediction], names: &[String], threshold: f32) -> Value {
    let above: BTreeSet<usize> = answer.iter().filter(|p| p.probability > threshold).map(|p| p.class).collect();
    above.into_iter().map(|class| names[class].as_str()).collect()
}

/// The classes by name where that says which is meant, else by number.
fn class_names(labels: &[String], classes: usize) -> Vec<String> {
    let distinct: BTreeSet<&String> = labels.iter().collect();
    let named = labels.len() == classes && distinct.len() == classes;
    if named { labels.to_vec() } else { (0..classes).map(|class| class.to_string()).collect() }
}

/// The classes and how likely they are.
fn soft(answer: &[Prediction], names: &[String]) -> Value {
    let shares = answer.iter().filter(|p| p.probability >= LEAST_SHARE);
    let rounded = |p: f32| (f64::from(p) * 1e5).round() / 1e5;
    Value::Object(shares.map(|p| (names[p.class].clone(), json!(rounded(p.probability)))).collect::<Map<_, _>>())
}

/// All pictures of a data set that people labelled. What it has no validation split for is carved off here, so that no
/// model's label is ever measured against.
///
/// The data that the model was trained on is divided as its run divided it: what the model learned from is nothing to measure
/// those on that learn from it.
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
        format!("{}: a manifest lists files, and this picture is inside of one; unpack the data set", part.name(index))
    })
}

fn labels(part: &Dataset, index: usize) -> impl Iterator<Item = &str> {
    part.labels(index).iter().filter_map(|label| part.classes().get(*label as usize)).map(String::as_str)
}

#[derive(Clone, Copy)]
enum Format {
    Csv,
    Jsonl,
}

impl Format {
    fn of(path: &Path) -> anyhow::Result<Format> {
        match path.extension().and_then(|ending| ending.to_str()) {
            Some("csv") => Ok(Format::Csv),
            Some("jsonl") => Ok(Format::Jsonl),
            _ => bail!("--out {}: should end in .csv or .jsonl", path.display()),
        }
    }

    fn write(self, path: &Path, lines: &[Line]) -> anyhow::Result<()> {
        let folder = std::path::absolute(path)?.parent().unwrap_or(Path::new("")).to_path_buf();
        atomic_file::write_with(path, |out| self.write_to(out, &folder, lines))
    }

    fn write_to(self, out: &mut impl Write, folder: &Path, lines: &[Line]) -> anyhow::Result<()> {
        if let Format::Csv = self {
            writeln!(out, "path,label,confidence,split")?;
        }
        for line in lines {
            let path = relative(&line.path, folder)?;
            let split = line.split.unwrap_or_default();
            match self {
                Format::Csv => {
                    let label = match &line.label {
                        Value::String(name) => name.clone(),
                        // Shares of classes, or a list of them, as JSON.
                        other => other.to_string(),
                    };
                    let confidence = line.confidence.map_or(String::new(), |c| c.to_string());
                    out.write_all(csv_line([path.as_str(), &label, &confidence, split]).as_bytes())?;
                }
                Format::Jsonl => {
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

/// A picture's path as the manifest's reader understands it: from the manifest's folder on, or from the root.
fn relative(picture: &Path, folder: &Path) -> anyhow::Result<String> {
    let picture = std::path::absolute(picture)?;
    let path = picture.strip_prefix(folder).unwrap_or(&picture);
    path.to_str().map(str::to_string).with_context(|| format!("{}: the path is not text", picture.display()))
}
