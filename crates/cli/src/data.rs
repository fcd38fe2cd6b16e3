//! `vit data`: what is in a dataset.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use clap::{Args, Subcommand};
use vit_data::dataset::{Dataset, ReadOptions, open_all};
use vit_data::{Image, Samples};
use vit_train::plots::{SampleRow, sample_sheet};

use crate::{Outcome, terminal};

/// Look at the images of a dataset
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit data preview fractals:1000 -o sheet.png
  vit data preview photos --classes 20 --images 6 -o sheet.png")]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Draw a contact sheet: a row for each class
    Preview(PreviewArguments),
}

#[derive(Args)]
struct PreviewArguments {
    /// The dataset, in any format that `vit train` takes
    #[arg(value_name = "DATA")]
    data: PathBuf,
    /// The PNG or SVG file to write
    #[arg(long, short, value_name = "FILE")]
    out: PathBuf,
    /// Classes at most, evenly spaced among all
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=200))]
    classes: u32,
    /// Images of each class
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    images: u32,
    /// Pixels of an image on the sheet
    #[arg(long, value_name = "N", default_value_t = 96, value_parser = clap::value_parser!(u32).range(8..=1024))]
    image_size: u32,
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    match arguments.command {
        Command::Preview(arguments) => preview(&arguments),
    }
}

fn preview(arguments: &PreviewArguments) -> anyhow::Result<Outcome> {
    let PreviewArguments { data, out, .. } = arguments;
    let svg = match out.extension().and_then(|ending| ending.to_str()) {
        Some("png") => false,
        Some("svg") => true,
        _ => bail!("{}: the ending should be .png or .svg", out.display()),
    };
    let samples = open_all(data, None, &ReadOptions::default())?.samples;
    let chosen = arguments.choose(&samples);
    let mut rows = Vec::new();
    for (class, indices) in chosen {
        let mut images: Vec<Image> = Vec::new();
        for index in indices {
            match samples.image_for(index, arguments.image_size as usize) {
                Ok(image) => images.push(image),
                Err(error) => terminal::error(error),
            }
        }
        rows.push(SampleRow { class: samples.classes()[class].clone(), images });
    }
    ensure!(rows.iter().any(|row| !row.images.is_empty()), "{}: no image could be read", data.display());
    let scene = sample_sheet(&rows, arguments.image_size as f32);
    let bytes = if svg { scene.svg().into_bytes() } else { scene.png(1.0)? };
    write(out, &bytes)?;
    let (images, all) = (rows.iter().map(|row| row.images.len()).sum::<usize>(), samples.len());
    terminal::note(format_args!("{}: {images} of {all} images of {}", out.display(), data.display()));
    Ok(Outcome::Fine)
}

impl PreviewArguments {
    /// The chosen classes, and the first images of each.
    fn choose(&self, samples: &Dataset) -> Vec<(usize, Vec<usize>)> {
        let all = samples.classes().len();
        let count = all.min(self.classes as usize);
        let mut place = vec![None; all];
        let mut chosen: Vec<(usize, Vec<usize>)> = (0..count).map(|row| (row * all / count, Vec::new())).collect();
        for (row, (class, _)) in chosen.iter().enumerate() {
            place[*class] = Some(row);
        }
        for index in 0..samples.len() {
            for label in samples.labels(index) {
                if let Some(row) = place[*label as usize]
                    && chosen[row].1.len() < self.images as usize
                {
                    chosen[row].1.push(index);
                }
            }
        }
        chosen
    }
}

fn write(out: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let written = std::fs::File::create(out).and_then(|mut file| file.write_all(bytes));
    written.map_err(|error| anyhow::anyhow!("{}: cannot be written ({error}); choose another --out", out.display()))
}
