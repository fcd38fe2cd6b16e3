//! `vit train` and `vit finetune`: from a dataset to a trained model.

mod machine;
mod processes;
mod resume;
mod run;

pub use machine::{MachineArguments, ShardChoice};
pub use resume::{ResumeArguments, resume};

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use vit::train::free_folder;
use vit::{DeviceChoice, Precision};
use vit_data::dataset::{self, Validation};
use vit_data::loader::UnreadableLimit;
use vit_graph::device::Device;
use vit_models::clip::Clip;
use vit_models::{builtin, variant};
use vit_train::{
    Clock, Existing, ModelChoice, Recipe, RunFolder, RunSettings, Setup, Teaching, TrainerOptions, estimate,
};

use crate::checkpoints::ModelArgument;
use crate::device_options::{PrecisionArgument, TrainingPrecision};
use crate::images::parse_size;
use crate::memory::{self, Planned};
use crate::training_view::Reporting;
use crate::{Outcome, checkpoints, terminal};
use processes::{Member, ProcessArguments};
use run::PlannedRun;

/// Train a model on your own images
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit train --data photos
  vit train --data cifar10.tar.zst --out runs/cifar10
  vit train --data photos --model Ti/16 --recipe deit --set batch=64
  vit train --data photos --model deit_tiny_distilled_patch16_224 \\
            --recipe deit --teacher runs/resnet
  vit train --data captioned.tar --model ViT-B-32
  vit train --data photos --dry-run

--data takes a folder with a folder of images for each class (and, if there
is one, a level of train, val and test above them), tar shards, Parquet files
of Hugging Face, a CSV, TSV or JSONL manifest of paths and labels, CIFAR
binaries or MNIST files. Ctrl-C (or SIGTERM, SIGUSR1) saves and stops with the
status 130 (or 143, 138); `vit resume` continues. Under mpirun, srun or torchrun
all their processes train one model.")]
pub struct Arguments {
    /// The model, by name or in a form like Ti/4@32 [default: one that suits the
    /// size of the images]; a CLIP or SigLIP learns from pairs of image and text
    #[arg(long, short, value_name = "NAME")]
    model: Option<String>,
    #[command(flatten)]
    common: TrainingArguments,
}

/// Fine-tune a checkpoint or a run's model on other images
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit finetune cifar10 --data photos
  vit finetune vit_base --data flowers --image-size 384
  vit finetune vit_base --data flowers --freeze backbone
  vit finetune runs/photos-1 --data more_photos
  vit finetune clip --pairs --data captioned.tar
  vit finetune clip --pairs --data photos --template 'a photo of a {}' \\
               --freeze image

The head is replaced by one for the new classes, starting from zero; position
embeddings are resampled for another --image-size. Changes are reported before
training begins.")]
pub struct FinetuneArguments {
    #[command(flatten)]
    model: ModelArgument,
    /// Freeze parameters: `backbone` for all but the head, or the number of first
    /// blocks; with --pairs `image` for the image tower (LiT)
    #[arg(long, value_name = "WHAT")]
    freeze: Option<String>,
    /// Train an image-text model (CLIP, SigLIP) on pairs of image and text: labels
    /// are captions, or words for --template
    #[arg(long)]
    pairs: bool,
    #[command(flatten)]
    common: TrainingArguments,
}

/// The options of both.
#[derive(Args)]
struct TrainingArguments {
    /// The dataset: a folder, a file, a pattern, or a URL such as s3://bucket/photos
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
    /// What to evaluate on: another dataset, or a split of this one (val, test)
    #[arg(long, value_name = "PATH|SPLIT")]
    validation: Option<PathBuf>,
    /// The share of each class to evaluate on if there is no split for it
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    validation_fraction: f64,
    /// Train on this share of the training images, of each class
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    fraction: f64,
    /// Stop if more than this share of the training or validation images cannot be
    /// read, as 5% or 0.05 [default: 5%]
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    max_unreadable: Option<f64>,
    /// Of an image-text model: labels are words for this sentence with {} for the
    /// label, as in 'a photo of a {}', and no captions
    #[arg(long, value_name = "TEXT")]
    template: Option<String>,
    /// Where the run is kept, a folder or s3://bucket/name [default: the first free
    /// runs/NAME-N]
    #[arg(long, short, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Replace the run that is in --out
    #[arg(long)]
    overwrite: bool,
    /// A recipe's name (see `vit recipes`) or a TOML file
    #[arg(long, value_name = "NAME|FILE", help_heading = "How to train")]
    recipe: Option<String>,
    /// Change a setting of the recipe: --set schedule.rate=3e-4
    #[arg(long = "set", value_name = "KEY=VALUE", help_heading = "How to train")]
    settings: Vec<String>,
    /// Height and width of the model's input: N, or HEIGHTxWIDTH
    #[arg(long, value_name = "SIZE", help_heading = "How to train", value_parser = parse_size)]
    image_size: Option<[usize; 2]>,
    /// A checkpoint or run to distil from; hard distillation unless the recipe says
    /// soft
    #[arg(long, value_name = "PATH", help_heading = "How to train")]
    teacher: Option<PathBuf>,
    /// How long to train, in epochs; short for --set length=
    #[arg(long, value_name = "N", help_heading = "How to train")]
    epochs: Option<f64>,
    /// The mini-batch; short for --set batch=
    #[arg(long, value_name = "N", help_heading = "How to train")]
    batch: Option<usize>,
    /// The seed of all random numbers; short for --set seed=
    #[arg(long, value_name = "N", help_heading = "How to train")]
    seed: Option<u64>,
    /// Skip steps whose loss is not finite
    #[arg(long, help_heading = "How to train")]
    skip_non_finite: bool,
    /// Only print what would happen: data, weights, memory, time
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    precision: PrecisionArgument,
    #[command(flatten)]
    machine: MachineArguments,
    #[command(flatten)]
    processes: ProcessArguments,
    #[command(flatten)]
    reporting: Reporting,
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let Arguments { model, common } = arguments;
    if let Some(path) = model.as_ref().filter(|name| variant(name).is_none() && Path::new(name).exists()) {
        bail!("--model {path}: this is a path; `vit finetune {path}` trains a checkpoint or a run's model further");
    }
    let pairs = model.as_deref().and_then(variant).is_some_and(|v| v.architecture.downcast_ref::<Clip>().is_some());
    let recipe = common.recipe(if pairs { "clip-pretrain" } else { "small" }, &[])?;
    let choice = model.as_deref().map_or(ModelChoice::Usual, ModelChoice::Named);
    common.processes.run(|member| common.begin(choice, model.clone().unwrap_or_default(), recipe, member))
}

pub fn finetune(arguments: FinetuneArguments) -> anyhow::Result<Outcome> {
    let FinetuneArguments { model, freeze, pairs, common } = arguments;
    let checkpoint = model.path();
    checkpoints::exists(&checkpoint)?;
    if pairs {
        let freeze = match freeze.as_deref() {
            None => None,
            Some("image") => Some("model.freeze=[\"*\", \"!text.*\", \"!logit_*\"]".to_string()),
            Some(other) => bail!("--freeze {other}: with --pairs it should be `image`, for the image tower"),
        };
        let recipe = common.recipe("clip", freeze.as_slice())?;
        let checkpoint = absolute(&checkpoints::folder_of_config(&checkpoint))?;
        let choice = ModelChoice::ImageText(&checkpoint);
        return common.processes.run(|member| common.begin(choice, checkpoint.display().to_string(), recipe, member));
    }
    let freeze = freeze.map(|what| frozen(&what)).transpose()?;
    let recipe = common.recipe("finetune", freeze.as_slice())?;
    let checkpoint = absolute(&checkpoints::folder_of_config(&checkpoint))?;
    let choice = ModelChoice::Checkpoint(&checkpoint);
    common.processes.run(|member| common.begin(choice, checkpoint.display().to_string(), recipe, member))
}

/// A model's absolute path; the built-in model has none.
fn absolute(model: &Path) -> std::io::Result<PathBuf> {
    if builtin::is_meant(model) { Ok(model.into()) } else { vit_storage::absolute(model) }
}

/// The value of `--validation`, with a path made absolute.
pub fn absolute_validation(given: &Path) -> std::io::Result<PathBuf> {
    match Validation::from_argument(given) {
        Validation::Path(path) => dataset::absolute(&path),
        _ => Ok(given.into()),
    }
}

/// The setting for `--freeze`.
fn frozen(what: &str) -> anyhow::Result<String> {
    if what == "backbone" {
        return Ok("model.freeze=[\"backbone\"]".into());
    }
    let Ok(blocks) = what.parse::<usize>() else {
        bail!(
            "--freeze {what}: should be `backbone` or a number of blocks; single parameters are --set model.freeze=[…]"
        )
    };
    Ok(format!("model.freeze=[\"first {blocks} blocks\"]"))
}

/// A recipe by its name or from a file.
pub fn read_recipe(name: &str) -> anyhow::Result<Recipe> {
    if !name.ends_with(".toml") && !name.contains(std::path::MAIN_SEPARATOR) {
        return Ok(Recipe::named(name)?);
    }
    let text = vit_system::regular_file::read_to_string(name.as_ref())
        .map_err(|error| anyhow!("the recipe {name} cannot be read ({error}); `vit recipes` lists those by name"))?;
    Recipe::parse(&text).with_context(|| name.to_string())
}

impl TrainingArguments {
    /// The recipe with all changes by options.
    fn recipe(&self, default: &str, more: &[String]) -> anyhow::Result<Recipe> {
        let mut recipe = read_recipe(self.recipe.as_deref().unwrap_or(default))?;
        let short = [
            self.epochs.map(|n| format!("length={n} epochs")),
            self.batch.map(|n| format!("batch={n}")),
            self.seed.map(|n| format!("seed={n}")),
        ];
        if let Some(teacher) = &self.teacher {
            recipe.objective.teacher = teacher.display().to_string();
            if recipe.objective.distillation == Teaching::None {
                recipe.objective.distillation = Teaching::Hard;
            }
        }
        let all = more.iter().chain(short.iter().flatten()).chain(&self.settings);
        recipe.set_all(all.map(String::as_str))?;
        if !recipe.objective.teacher.is_empty() {
            recipe.objective.teacher = absolute(Path::new(&recipe.objective.teacher))?.display().to_string();
        }
        Ok(recipe)
    }

    /// Begins a run, or takes part in the one of rank 0.
    fn begin(&self, choice: ModelChoice, model: String, recipe: Recipe, member: &Member) -> anyhow::Result<Outcome> {
        let processes = &member.processes;
        self.reporting.apply();
        let settings = RunSettings {
            model,
            data: dataset::absolute(&self.data)?,
            validation: self.validation.as_deref().map(absolute_validation).transpose()?,
            template: self.template.clone(),
            validation_fraction: self.validation_fraction,
            fraction: self.fraction,
            max_unreadable: self.max_unreadable.unwrap_or(UnreadableLimit::default().share),
            skip_non_finite: self.skip_non_finite,
            precision: String::new(),
        };
        let mut setup = {
            let _busy = terminal::busy(format!("opening {}", self.data.display()));
            Setup::new(choice, self.image_size, settings, recipe)?
        };
        if setup.settings.model.is_empty() {
            setup.settings.model = setup.config.name.clone().unwrap_or_default();
        }
        setup.divide(processes)?;
        describe(&setup)?;
        let precision = self.precision.for_training()?;
        let placement = member.placement(self.machine.placement, None);
        let machine = &self.machine.at(placement);
        let opened = precision.open(placement, processes.exchange().as_ref());
        if self.dry_run {
            return self.estimate(&mut setup, precision, opened, &machine.options(processes));
        }
        let (device, precision) = opened?;
        setup.settings.precision = precision.to_string();
        let planned = Planned::new(device.as_ref(), &setup, &machine.options(processes), 0)?;
        planned.ensure_fits()?;
        if !processes.is_root() {
            return run::assist(device.as_ref(), &mut setup, None, &machine.options(processes));
        }
        let out = self.out.clone().unwrap_or_else(|| free_folder(&self.data));
        memory::announce(&planned.memory);
        memory::ensure_disk(&planned.memory, &setup, &out)?;
        let existing = if self.overwrite { Existing::Replace } else { Existing::Refuse };
        let launch = self.machine.launch(device.as_ref());
        let folder = &RunFolder::create(&out, &setup.to_toml(&launch), existing)?;
        PlannedRun { planned: &planned, folder, machine, member, reporting: self.reporting, launch: &launch }
            .train(&mut setup, None)
    }

    /// Prints the memory, disk and time that a run would take. Memory is planned, also for a GPU on a machine without one;
    /// time is measured.
    fn estimate(
        &self,
        setup: &mut Setup,
        precision: TrainingPrecision,
        opened: Result<(Arc<dyn Device>, Precision), vit::Error>,
        options: &TrainerOptions,
    ) -> anyhow::Result<Outcome> {
        let out = self.out.clone().unwrap_or_else(|| free_folder(&self.data));
        let (device, precision) = match opened {
            Ok(opened) => opened,
            Err(reason) => {
                let Some(DeviceChoice::Cuda(_)) = self.machine.placement.device else { return Err(reason.into()) };
                let precision = precision.on_gpu();
                let memory = memory::without_gpu(setup, options, precision)?;
                memory::show(&memory, &format!("an H100 or H200 in {precision}"), None);
                memory::ensure_disk(&memory, setup, &out)?;
                terminal::note(format_args!("time: not measured, because {reason}"));
                return Ok(Outcome::Fine);
            }
        };
        let planned = Planned::new(device.as_ref(), setup, options, 0)?;
        memory::show(&planned.memory, &format!("{} in {precision}", device.description()), device.free_memory());
        memory::ensure_disk(&planned.memory, setup, &out)?;
        planned.ensure_fits()?;
        let estimate = estimate(device.as_ref(), setup, options)?;
        terminal::note(format_args!(
            "{} steps of {} images per epoch, {} steps in all",
            estimate.steps_per_epoch, setup.recipe.batch, estimate.steps
        ));
        terminal::note(format_args!(
            "time: {:.0} ms a step, {} an epoch, {} in all, evaluation not counted",
            1e3 * estimate.step.as_secs_f64(),
            Clock(estimate.step.mul_f64(estimate.steps_per_epoch as f64)),
            Clock(estimate.step.mul_f64(estimate.steps as f64)),
        ));
        Ok(Outcome::Fine)
    }
}

/// Prints the dataset and the decisions about model and recipe.
fn describe(setup: &Setup) -> anyhow::Result<()> {
    terminal::note(format_args!("{}: {}", setup.settings.data.display(), setup.data_report));
    setup.report.iter().for_each(terminal::note);
    let (trained, all) = setup.trained_parameters()?;
    if trained < all {
        terminal::note(format_args!("training {trained} of {all} parameter tensors, the others stay as they are"));
    }
    Ok(())
}

/// A share: `5%` or `0.05`.
pub fn parse_share(text: &str) -> Result<f64, String> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
        None => text.parse(),
    };
    share.ok().filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| "should be a share such as 5% or 0.05".into())
}
