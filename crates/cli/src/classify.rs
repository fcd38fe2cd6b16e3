//! `vit classify`: what is in these pictures.

use std::io::Write;

use clap::{Args, ValueEnum};
use serde_json::json;
use vit::{Model, Prediction, device_for};

use crate::Outcome;
use crate::checkpoints::report_changes;
use crate::pictures::{PictureArguments, report_failures};
use crate::terminal::{self, Meaning, describe, printable, styled};

/// Say what is in pictures
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit classify examples/pictures
  vit classify 'examples/*/*.jpg' --top 1 --format csv
  find examples -name '*.jpg' | vit classify - --json

A picture that cannot be read is reported and the others go on; the exit status
is then 1.")]
pub struct Arguments {
    #[command(flatten)]
    pictures: PictureArguments,
    /// How many classes to show for each picture
    #[arg(long, short = 'k', value_name = "N", default_value = "5", value_parser = at_least_one)]
    top: usize,
    /// table for people, jsonl (an object per picture), or csv (a line per class)
    #[arg(long, value_enum, default_value_t = Format::Table, hide_possible_values = true)]
    format: Format,
    /// The same as --format jsonl
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Format {
    Table,
    Jsonl,
    Csv,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "should be 1 or more".into())
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let pictures = &arguments.pictures;
    let sources = pictures.sources()?;
    let format = if arguments.json { Format::Jsonl } else { arguments.format };
    let options = pictures.options(sources.len());
    let checkpoint = pictures.checkpoint()?;
    let device = device_for(options.device, options.precision, options.threads)?;
    let mut model = Model::new(checkpoint, device.as_ref(), &options)?;
    report_changes(&pictures.model, model.report());
    let mut out = std::io::stdout().lock();
    if format == Format::Csv {
        writeln!(out, "file,rank,class,label,probability")?;
    }
    let (preprocess, batch) = (model.preprocess().clone(), model.batch());
    let mut failed = 0;
    pictures.how.for_each_batch(&sources, &preprocess, batch, |group, progress| {
        let mut ready = Vec::new();
        let outcomes: Vec<_> = group.into_iter().map(|(source, p)| (source, p.map(|p| ready.push(p)))).collect();
        let mut results = if ready.is_empty() { Vec::new() } else { model.classify_prepared(&ready)? }.into_iter();
        progress.suspend(|| -> anyhow::Result<()> {
            for (source, outcome) in outcomes {
                let name = source.name();
                match outcome {
                    Ok(()) => {
                        let mut top = results.next().unwrap_or_default();
                        top.truncate(arguments.top);
                        print(&mut out, format, &name, &top)?;
                    }
                    Err(error) => {
                        failed += 1;
                        let error = describe(&error);
                        terminal::error(&error);
                        if format == Format::Jsonl {
                            writeln!(out, "{}", json!({ "file": name, "error": error }))?;
                        }
                    }
                }
            }
            Ok(())
        })
    })?;
    Ok(report_failures(failed, sources.len()))
}

fn print(out: &mut impl Write, format: Format, file: &str, top: &[Prediction]) -> std::io::Result<()> {
    match format {
        Format::Table => {
            writeln!(out, "{}", styled(&printable(file), Meaning::Heading))?;
            for p in top {
                let bar = "█".repeat((20.0 * p.probability).round() as usize);
                writeln!(out, "  {:5.1}%  {bar:<20}  {}", 100.0 * p.probability, printable(&p.label))?;
            }
            Ok(())
        }
        Format::Jsonl => {
            let predictions: Vec<_> = top
                .iter()
                .map(|p| json!({ "class": p.class, "label": p.label, "probability": shortest(p.probability) }))
                .collect();
            writeln!(out, "{}", json!({ "file": file, "predictions": predictions }))
        }
        Format::Csv => {
            for (i, p) in top.iter().enumerate() {
                writeln!(out, "{},{},{},{},{}", quoted(file), i + 1, p.class, quoted(&p.label), p.probability)?;
            }
            Ok(())
        }
    }
}

/// The shortest decimal that means this f32: 0.2 and not 0.20000000298023224.
pub fn shortest(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}

/// A CSV field.
pub fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.into() }
}

#[cfg(test)]
mod tests {
    #[test]
    fn csv_fields_are_quoted_where_they_must_be() {
        assert_eq!(super::quoted("cat"), "cat");
        assert_eq!(super::quoted("a, \"b\".jpg"), "\"a, \"\"b\"\".jpg\"");
    }

    #[test]
    fn probabilities_are_written_without_noise() {
        assert_eq!(super::shortest(0.2), 0.2);
    }
}
