//! `vit classify`: what is in these pictures.

use std::io::Write;

use clap::{Args, ValueEnum};
use serde_json::json;
use vit::{Model, Prediction};

use crate::Outcome;
use crate::pictures::{PictureArguments, for_each_batch, report_changes, report_failures};
use crate::terminal::{self, Meaning, styled};

/// Say what is in pictures
#[derive(Args)]
#[command(
    after_help = "Examples:\n  vit classify --model checkpoints/cifar10 photos/\n  vit classify -m checkpoints/cifar10 'holiday/*.jpg' --top 1 --format csv > classes.csv\n  find . -name '*.png' | vit classify -m checkpoints/cifar10 -\n\nA picture that cannot be read is reported and the others go on; the exit status is then 1."
)]
pub struct Arguments {
    #[command(flatten)]
    pictures: PictureArguments,
    /// How many classes to show for each picture
    #[arg(long, short = 'k', default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    top: u32,
    /// How to print the result
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// The same as --format jsonl
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Format {
    /// For people
    Table,
    /// One JSON object per line
    Jsonl,
    /// One line per picture and class
    Csv,
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let pictures = &arguments.pictures;
    pictures.check_model()?;
    let sources = pictures.sources()?;
    let format = if arguments.json { Format::Jsonl } else { arguments.format };
    let mut model = Model::open_with(&pictures.model, &pictures.options(sources.len()))?;
    report_changes(&pictures.model, model.report());
    let mut out = std::io::stdout().lock();
    if format == Format::Csv {
        writeln!(out, "file,rank,class,label,probability")?;
    }
    let (preprocess, batch) = (model.preprocess().clone(), model.batch());
    let mut failed = 0;
    for_each_batch(&sources, &preprocess, &pictures.decode_options(), batch, |group| {
        let ready: Vec<Vec<f32>> = group.iter().filter_map(|(_, p)| p.as_ref().ok().cloned()).collect();
        let mut results = if ready.is_empty() { Vec::new() } else { model.classify_prepared(&ready)? }.into_iter();
        for (source, prepared) in group {
            let name = source.name();
            match prepared {
                Ok(_) => {
                    let top: Vec<Prediction> =
                        results.next().unwrap_or_default().into_iter().take(arguments.top as usize).collect();
                    print(&mut out, format, &name, &top)?;
                }
                Err(error) => {
                    failed += 1;
                    terminal::error(&format!("{error:#}"));
                    if format == Format::Jsonl {
                        writeln!(out, "{}", json!({ "file": name, "error": format!("{error:#}") }))?;
                    }
                }
            }
        }
        Ok(())
    })?;
    Ok(report_failures(failed, sources.len()))
}

fn print(out: &mut impl Write, format: Format, file: &str, top: &[Prediction]) -> std::io::Result<()> {
    match format {
        Format::Table => {
            writeln!(out, "{}", styled(file, Meaning::Heading))?;
            for p in top {
                let bar = "█".repeat((20.0 * p.probability).round() as usize);
                writeln!(out, "  {:5.1}%  {bar:<20}  {}", 100.0 * p.probability, p.label)?;
            }
            Ok(())
        }
        Format::Jsonl => {
            let predictions: Vec<_> = top
                .iter()
                .map(|p| json!({ "class": p.class, "label": p.label, "probability": p.probability }))
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

/// A CSV field.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.into() }
}

#[cfg(test)]
mod tests {
    #[test]
    fn csv_fields_are_quoted_where_they_must_be() {
        assert_eq!(super::quoted("cat"), "cat");
        assert_eq!(super::quoted("a, \"b\".jpg"), "\"a, \"\"b\"\".jpg\"");
    }
}
