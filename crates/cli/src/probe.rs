//! `vit probe`: what the features of a model are worth on a dataset.

use std::io::Write;
use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use serde_json::json;
use vit_data::Samples;
use vit_data::dataset::Split;
use vit_data::loader::Unreadable;
use vit_models::Changes;
use vit_train::probe::{NearestNeighbours, ProbeImages, ProbeOptions, ProbeOutcome, open_for_probe, probe};
use vit_train::{RunFolder, finite_json};

use crate::checkpoints::ModelArgument;
use crate::device_options::DeviceArguments;
use crate::eval::progress;
use crate::images::{parse_size, report_failures};
use crate::table::{Align, Table};
use crate::{Outcome, checkpoints, terminal};

/// Measure what a model's features are worth, without training it
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit probe cifar10 --data cifar10.tar.zst
  vit probe runs/dino-1 --data photos --shots 1,5,10 --draws 20 --json

Three classifiers of the head's input: few-shot by ridge regression (mean and
standard deviation over several draws of so many training images per class),
nearest neighbours by cosine among all training images, and logistic regression
on all training images. The strength of regularisation is chosen on a tenth of
the training images; the test images are looked at once.")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArgument,
    /// The dataset, in any format that `vit train` takes
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
    /// The split for the figures: test or val [default: test, else val, else a
    /// tenth of the images]
    #[arg(long, value_name = "SPLIT")]
    split: Option<String>,
    /// Training images of each class in few-shot classification
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,5,10,25,100", value_parser = clap::value_parser!(u32).range(1..))]
    shots: Vec<u32>,
    /// How often these images are drawn
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    draws: u32,
    /// Nearest neighbours that vote
    #[arg(long, value_name = "K", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    neighbours: u32,
    /// The seed of the draws
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
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
    device: DeviceArguments,
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let model = arguments.model.path();
    let mut checkpoint = checkpoints::open(&model, false)?.into_image_tower()?;
    checkpoints::change(&mut checkpoint, Changes { image_size: arguments.image_size, ..Changes::default() })?;
    checkpoints::report_changes(&model, &checkpoint.report);
    let split = match arguments.split.as_deref() {
        None => None,
        Some(name) => match Split::from_name(name).filter(|split| *split != Split::Train) {
            Some(split) => Some(split),
            None => bail!("--split {name}: should be test or val"),
        },
    };
    let images = open_for_probe(&arguments.data, split, RunFolder::of_model(&model).as_ref())?;
    let (train, test) = (images.train.len(), images.test.len());
    let path = arguments.data.display();
    terminal::note(format_args!("{path}: {}, {train} training images, {test} {}", images.format, images.which));

    let device = arguments.device.inference().open()?;
    let options = ProbeOptions {
        batch: arguments.batch as usize,
        threads: arguments.device.placement.threads(),
        shots: arguments.shots.iter().map(|&shots| shots as usize).collect(),
        draws: arguments.draws as usize,
        seed: arguments.seed,
        nearest: NearestNeighbours { neighbours: arguments.neighbours as usize, ..NearestNeighbours::default() },
    };
    let bar = progress(train + test);
    let watch = |done: usize, all: usize| {
        bar.set_position(done as u64);
        if done == all {
            bar.finish_and_clear();
        }
        true
    };
    let outcome = probe(device.as_ref(), &checkpoint.config, &mut checkpoint.weights, &images, &options, watch)?;
    let Some(outcome) = outcome else { bail!("the probe was stopped") };
    for Unreadable { name, reason, .. } in &outcome.unreadable {
        terminal::error(format_args!("{name}: {reason}"));
    }
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{:#}", arguments.json(&model.display().to_string(), &images, &outcome))?;
    } else {
        print(&mut out, &outcome, &options.nearest)?;
    }
    Ok(report_failures(outcome.unreadable.len(), train + test))
}

impl Arguments {
    fn json(&self, model: &str, images: &ProbeImages, outcome: &ProbeOutcome) -> serde_json::Value {
        let few_shot = outcome.few_shot.iter().map(|few| {
            json!({ "shots": few.shots, "l2": few.l2, "top1": few.mean(), "deviation": few.deviation(), "draws": few.top1 })
        });
        finite_json(json!({
            "model": model, "data": self.data, "seed": self.seed, "classes": images.train.classes().len(),
            "train_images": outcome.train, "test_images": outcome.test, "test": images.which,
            "few_shot": few_shot.collect::<Vec<_>>(),
            "nearest_neighbours": { "neighbours": self.neighbours, "top1": outcome.nearest },
            "linear": { "l2": outcome.linear.l2, "top1": outcome.linear.top1, "converged": outcome.linear.converged },
        }))
    }
}

fn print(out: &mut impl Write, outcome: &ProbeOutcome, nearest: &NearestNeighbours) -> std::io::Result<()> {
    let percent = |share: f64| format!("{:.2}%", 100.0 * share);
    let images = outcome.train.to_string();
    let mut table = Table::new(&[
        ("probe", Align::Left),
        ("training images", Align::Right),
        ("top-1", Align::Right),
        ("±", Align::Right),
        ("L2", Align::Right),
    ]);
    for few in &outcome.few_shot {
        let name = format!("few-shot, {} draws", few.top1.len());
        let each = format!("{} per class", few.shots);
        table.row(match few.l2 {
            Some(l2) if few.top1.len() > 1 => {
                vec![name, each, percent(few.mean()), percent(few.deviation()), l2.to_string()]
            }
            Some(l2) => vec!["few-shot, 1 draw".into(), each, percent(few.mean()), String::new(), l2.to_string()],
            None => vec!["few-shot".into(), each, "too few images".into(), String::new(), String::new()],
        });
    }
    let name = format!("{} nearest neighbours", nearest.neighbours);
    table.row(vec![name, images.clone(), percent(outcome.nearest), String::new(), String::new()]);
    let linear = &outcome.linear;
    table.row(vec!["linear".into(), images, percent(linear.top1), String::new(), linear.l2.to_string()]);
    table.print(out, |_| None)?;
    if !linear.converged {
        terminal::note("the linear probe ended before it had converged");
    }
    writeln!(out, "\n{:<16}{:>9}", "test images", outcome.test)
}
