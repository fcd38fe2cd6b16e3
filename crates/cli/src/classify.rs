//! `vit classify`: the classes of images.

use std::fmt::Display;
use std::io::Write;

use clap::{Args, ValueEnum};
use serde_json::json;
use vit::{Model, Prediction};
use vit_models::ProblemType;
use vit_system::csv_line;

use crate::Outcome;
use crate::checkpoints::report_changes;
use crate::hints::describe;
use crate::images::{ImageArguments, report_failures};
use crate::terminal::{self, Meaning, printable, styled};
use crate::words::WordArguments;

/// Classify images
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit classify examples/images
  vit classify 'examples/*/*.jpg' --top 1 --format csv
  find examples -name '*.jpg' | vit classify - --json

An image-text model (CLIP, SigLIP) chooses among labels in words:
  vit classify photos -m clip --labels 'a cat, a dog' --template 'a photo of {}'

A model that was trained on images with several labels gives each class its own
probability, and the classes above --threshold are shown. If there are none, the
likeliest is named: in CSV with rank 0, in JSON lines as `likeliest`.

An image that cannot be read is reported and skipped; the exit status is then 1.")]
pub struct Arguments {
    #[command(flatten)]
    images: ImageArguments,
    /// How many classes to show for each image, at most
    #[arg(long, short = 'k', value_name = "N", default_value = "5", value_parser = at_least_one)]
    top: usize,
    /// Show only classes with a probability above this [default: 0.5 for models
    /// that give several labels per image, else none]
    #[arg(long, value_name = "P", value_parser = probability)]
    threshold: Option<f32>,
    /// table for people, jsonl (an object per image), or csv (a line per class)
    #[arg(long, value_enum, default_value_t = PredictionFormat::Table, hide_possible_values = true)]
    format: PredictionFormat,
    /// The same as --format jsonl
    #[arg(long, conflicts_with = "format")]
    json: bool,
    #[command(flatten)]
    words: WordArguments,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum PredictionFormat {
    Table,
    Jsonl,
    Csv,
}

/// The probability above which a class is one of an image's several labels.
pub const THRESHOLD: f32 = 0.5;

pub fn probability(text: &str) -> Result<f32, String> {
    text.parse().ok().filter(|p| (0.0..=1.0).contains(p)).ok_or_else(|| "should be from 0 to 1".into())
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "should be 1 or more".into())
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let images = &arguments.images;
    let sources = images.sources()?;
    let format = if arguments.json { PredictionFormat::Jsonl } else { arguments.format };
    let options = images.options(sources.len());
    let checkpoint = arguments.words.classifier(images.checkpoint()?, &options)?;
    let mut model = Model::new(checkpoint, options.device.open()?.as_ref(), &options)?;
    report_changes(&images.model, model.report());
    let mut out = std::io::stdout().lock();
    if format == PredictionFormat::Csv {
        writeln!(out, "file,rank,class,label,probability")?;
    }
    let (preprocess, batch) = (model.preprocess().clone(), model.batch());
    let threshold = match model.config().problem_type {
        ProblemType::SingleLabel => arguments.threshold,
        ProblemType::MultiLabel => Some(arguments.threshold.unwrap_or(THRESHOLD)),
    };
    let mut failed = 0;
    let classify = |images: &[Vec<f32>]| model.classify_prepared(images);
    images.how.run_model(&sources, &preprocess, batch, classify, |source, predictions| {
        let name = source.name();
        match predictions {
            Ok(all) => print(&mut out, format, &name, &TopClasses::new(&all, &arguments, threshold))?,
            Err(error) => {
                failed += 1;
                let error = describe(&error);
                terminal::error(&error);
                if format == PredictionFormat::Jsonl {
                    writeln!(out, "{}", json!({ "file": name, "error": error }))?;
                }
            }
        }
        Ok(())
    })?;
    Ok(report_failures(failed, sources.len()))
}

/// The classes of an image that are printed, the likeliest first.
struct TopClasses<'a> {
    classes: Vec<&'a Prediction>,
    threshold: Option<f32>,
    /// The likeliest class, if none is above the threshold.
    below: Option<&'a Prediction>,
    /// Whether JSON has the logits, too.
    with_logits: bool,
}

impl<'a> TopClasses<'a> {
    fn new(all: &'a [Prediction], arguments: &Arguments, threshold: Option<f32>) -> Self {
        let above = |p: &&Prediction| threshold.is_none_or(|threshold| p.probability > threshold);
        let classes: Vec<_> = all.iter().filter(above).take(arguments.top).collect();
        let with_logits = arguments.words.are_given();
        TopClasses { below: all.first().filter(|_| classes.is_empty()), classes, threshold, with_logits }
    }
}

fn print(out: &mut impl Write, format: PredictionFormat, file: &str, shown: &TopClasses) -> std::io::Result<()> {
    match format {
        PredictionFormat::Table => {
            writeln!(out, "{}", styled(&printable(file), Meaning::Heading))?;
            if let (Some(p), Some(threshold)) = (shown.below, shown.threshold) {
                let (percent, label) = (100.0 * p.probability, printable(&p.label));
                writeln!(out, "  none above {threshold}; the likeliest is {label} with {percent:.1}%")?;
            }
            for p in &shown.classes {
                let bar = "█".repeat((20.0 * p.probability).round() as usize);
                writeln!(out, "  {:5.1}%  {bar:<20}  {}", 100.0 * p.probability, printable(&p.label))?;
            }
            Ok(())
        }
        PredictionFormat::Jsonl => {
            let prediction = |p: &Prediction| {
                let mut object = json!({ "class": p.class, "label": p.label, "probability": shortest(p.probability) });
                if shown.with_logits {
                    object["logit"] = json!(shortest(p.logit));
                }
                object
            };
            let predictions: Vec<_> = shown.classes.iter().map(|p| prediction(p)).collect();
            let mut object = json!({ "file": file, "predictions": predictions });
            if let Some(threshold) = shown.threshold {
                object["threshold"] = json!(shortest(threshold));
            }
            if let Some(below) = shown.below {
                object["likeliest"] = prediction(below);
            }
            writeln!(out, "{object}")
        }
        PredictionFormat::Csv => {
            let below = shown.below.into_iter().map(|p| (0, p));
            for (rank, p) in below.chain((1..).zip(shown.classes.iter().copied())) {
                let fields: [&dyn Display; 5] = [&file, &rank, &p.class, &p.label, &p.probability];
                out.write_all(csv_line(fields).as_bytes())?;
            }
            Ok(())
        }
    }
}

/// The f64 whose shortest decimal is that of this f32: 0.2 and not 0.20000000298023224.
pub fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

#[cfg(test)]
mod tests {
    #[test]
    fn probabilities_are_written_without_noise() {
        assert_eq!(super::shortest(0.2), 0.2);
    }
}
