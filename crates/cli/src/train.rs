//! `vit train`, `vit finetune` and `vit resume`: from a data set to a trained model.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow, bail, ensure};
use clap::Args;
use serde_json::json;
use vit::data::dataset::Validation;
use vit::data::loader::{LoaderError, UnreadableLimit};
use vit::graph::GraphError;
use vit::graph::device::Parameters;
use vit::models::{builtin, variant};
use vit::train::{
    ChangedData, Clock, Existing, Finished, Launch, ModelChoice, Recipe, RunConfig, RunError, RunFolder, RunSettings,
    Setup, Snapshot, Teaching, TrainError, TrainerOptions, estimate, train,
};
use vit::{DeviceChoice, Precision, Processor};
use vit_system::host;

use crate::checkpoints::ModelArgument;
use crate::interrupt::Interrupt;
use crate::memory::{self, Planned};
use crate::pictures::parse_size;
use crate::table::bytes;
use crate::training_view::{Reporting, View};
use crate::{Outcome, checkpoints, shell, terminal};

/// Train a model on your own pictures
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit train --data photos
  vit train --data cifar10.tar.zst --out runs/cifar10
  vit train --data photos --model Ti/16 --recipe deit --set batch=64
  vit train --data photos --model deit_tiny_distilled_patch16_224 \\
            --recipe deit --teacher runs/resnet
  vit train --data photos --dry-run

--data takes a folder with a folder of pictures for each class (and, if there
is one, a level of train, val and test above them), tar shards, Parquet files
of Hugging Face, a CSV, TSV or JSONL manifest of paths and labels, CIFAR
binaries or MNIST files. Ctrl-C (or SIGTERM) saves and stops with the status 130
(or 143); `vit resume` goes on.")]
pub struct Arguments {
    /// The model, by name or in a form like Ti/4@32 [default: one that suits the
    /// size of the pictures]
    #[arg(long, short, value_name = "NAME")]
    model: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// Train a published or own checkpoint further, on other pictures
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit finetune cifar10 --data photos
  vit finetune vit_base --data flowers --image-size 384
  vit finetune vit_base --data flowers --freeze backbone
  vit finetune runs/photos-1 --data more_photos

The head is replaced by one for the new classes, starting from zero; position
embeddings are resampled for another --image-size. What was changed is said
before training begins.")]
pub struct FinetuneArguments {
    #[command(flatten)]
    model: ModelArgument,
    /// Leave parameters as they are: `backbone` for all but the head, or the
    /// number of first blocks
    #[arg(long, value_name = "WHAT")]
    freeze: Option<String>,
    #[command(flatten)]
    common: Common,
}

/// What both take.
#[derive(Args)]
struct Common {
    /// The data set: a folder, a file or a pattern
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
    /// What to evaluate on: another data set, or a split of this one (val, test)
    #[arg(long, value_name = "PATH|SPLIT")]
    validation: Option<PathBuf>,
    /// The share of each class to evaluate on, where there is no split for it
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    validation_fraction: f64,
    /// Train on this share of the training pictures, of each class
    #[arg(long, value_name = "SHARE", default_value_t = 1.0)]
    fraction: f64,
    /// Stop if more than this share of the training or validation images cannot be
    /// read, as 5% or 0.05 [default: 5%]
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    max_unreadable: Option<f64>,
    /// Where the run is kept [default: the first free runs/NAME-N]
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
    /// A checkpoint or run to learn from, too; hard distillation unless the recipe
    /// says soft
    #[arg(long, value_name = "PATH", help_heading = "How to train")]
    teacher: Option<PathBuf>,
    /// How long to train, in epochs; short for --set length=
    #[arg(long, value_name = "N", help_heading = "How to train")]
    epochs: Option<f64>,
    /// Pictures in a step; short for --set batch=
    #[arg(long, value_name = "N", help_heading = "How to train")]
    batch: Option<usize>,
    /// What all random choices depend on; short for --set seed=
    #[arg(long, value_name = "N", help_heading = "How to train")]
    seed: Option<u64>,
    /// Go on past steps whose loss is not a finite number
    #[arg(long, help_heading = "How to train")]
    skip_non_finite: bool,
    /// Only say what would happen: data, weights, memory, time
    #[arg(long)]
    dry_run: bool,
    /// How precisely: f32, tf32 or bf16 [default: bf16 on a GPU, f32 on the CPU]
    #[arg(long, help_heading = "How to run")]
    precision: Option<Precision>,
    #[command(flatten)]
    reporting: Reporting,
    #[command(flatten)]
    machine: Machine,
}

/// Where and how a run is carried out; nothing here changes its result on the same kind of device.
#[derive(Args)]
pub struct Machine {
    /// Where to run: auto, cpu, cuda or cuda:N [default: auto; a resumed run goes on
    /// where it was begun]
    #[arg(long, help_heading = "How to run")]
    device: Option<DeviceChoice>,
    /// CPU threads [default: all cores]
    #[arg(long, value_name = "N", help_heading = "How to run", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Memory for decoded images, in megabytes [default: 2048]
    #[arg(long, value_name = "MB", help_heading = "How to run")]
    cache: Option<u64>,
    /// The longest time between two saves, in minutes [default: 5]
    #[arg(long, value_name = "MINUTES", help_heading = "How to run")]
    save_every: Option<f64>,
    /// Compute activations again in the backward pass instead of keeping them:
    /// much less memory, about a third more time, the same result
    #[arg(long, help_heading = "How to run")]
    recompute: bool,
}

impl Machine {
    fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
        self.threads.map_or_else(cores, |n| n as usize)
    }

    /// Opens the processor and says how precisely it computes: as asked, else bf16 on a GPU and f32 on the CPU.
    pub fn open(&self, asked: Option<Precision>) -> Result<(Processor, Precision), vit::Error> {
        let device = self.device.unwrap_or_default();
        let open = |precision| {
            let processor = Processor::open(device, precision, self.threads.map(|n| n as usize))?;
            Ok((processor, precision))
        };
        match (asked, device) {
            (Some(precision), _) => open(precision),
            (None, DeviceChoice::Cpu) => open(Precision::F32),
            (None, DeviceChoice::Cuda(_)) => open(Precision::Bf16),
            (None, DeviceChoice::Auto) => open(Precision::Bf16).or_else(|_| open(Precision::F32)),
        }
    }

    pub fn options(&self) -> TrainerOptions {
        TrainerOptions {
            threads: self.threads(),
            cache_bytes: self.cache.unwrap_or(2048) << 20,
            save_every: Duration::try_from_secs_f64(60.0 * self.save_every.unwrap_or(5.0)).unwrap_or(Duration::MAX),
            recompute: self.recompute,
        }
    }

    /// What a run's folder keeps of how it was started.
    pub fn launch(&self, processor: &Processor) -> Launch {
        Launch {
            command: shell::this_command(),
            folder: std::env::current_dir().unwrap_or_default(),
            device: processor.name(),
            threads: self.threads,
            cache: self.cache,
            save_every: self.save_every,
            recompute: self.recompute,
        }
    }

    /// With what was not asked for as it was when the run was begun.
    fn or_as_begun(self, launch: &Launch) -> anyhow::Result<Machine> {
        let begun_on = match launch.device.as_str() {
            "" => None,
            device => Some(device.parse::<DeviceChoice>().map_err(anyhow::Error::msg)?),
        };
        Ok(Machine {
            device: self.device.or(begun_on),
            threads: self.threads.or(launch.threads),
            cache: self.cache.or(launch.cache),
            save_every: self.save_every.or(launch.save_every),
            recompute: self.recompute || launch.recompute,
        })
    }
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let Arguments { model, common } = arguments;
    if let Some(path) = model.as_ref().filter(|name| variant(name).is_none() && Path::new(name).exists()) {
        bail!("--model {path}: this is a path; `vit finetune {path}` trains a checkpoint or a run's model further");
    }
    let recipe = common.recipe("small", &[])?;
    let choice = model.as_deref().map_or(ModelChoice::Usual, ModelChoice::Named);
    common.begin(choice, model.clone().unwrap_or_default(), recipe)
}

pub fn finetune(arguments: FinetuneArguments) -> anyhow::Result<Outcome> {
    let FinetuneArguments { model, freeze, common } = arguments;
    let checkpoint = model.path();
    checkpoints::exists(&checkpoint)?;
    let freeze = freeze.map(|what| frozen(&what)).transpose()?;
    let recipe = common.recipe("finetune", freeze.as_slice())?;
    let checkpoint = anywhere(&checkpoints::folder_of_config(&checkpoint))?;
    common.begin(ModelChoice::Checkpoint(&checkpoint), checkpoint.display().to_string(), recipe)
}

/// A model's path as it can be opened from every folder; the built-in model has none.
fn anywhere(model: &Path) -> std::io::Result<PathBuf> {
    if builtin::is_meant(model) { Ok(model.into()) } else { std::path::absolute(model) }
}

/// What `--validation` names, as it can be opened from every folder: a path, or a split.
pub fn validation_anywhere(given: &Path) -> std::io::Result<PathBuf> {
    match Validation::from_argument(given) {
        Validation::Path(path) => std::path::absolute(path),
        _ => Ok(given.into()),
    }
}

/// The setting that freezes what `--freeze` says.
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

impl Common {
    /// The recipe with everything that the options change about it.
    fn recipe(&self, usual: &str, more: &[String]) -> anyhow::Result<Recipe> {
        let mut recipe = read_recipe(self.recipe.as_deref().unwrap_or(usual))?;
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
            recipe.objective.teacher = anywhere(Path::new(&recipe.objective.teacher))?.display().to_string();
        }
        Ok(recipe)
    }

    fn begin(&self, choice: ModelChoice, model: String, recipe: Recipe) -> anyhow::Result<Outcome> {
        self.reporting.apply();
        let settings = RunSettings {
            model,
            data: std::path::absolute(&self.data)?,
            validation: self.validation.as_deref().map(validation_anywhere).transpose()?,
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
        describe(&setup)?;
        ensure_trains(self.precision)?;
        let opened = self.machine.open(self.precision);
        if self.dry_run {
            return self.only_say(&mut setup, opened);
        }
        let (processor, precision) = opened?;
        setup.settings.precision = precision.to_string();
        let out = match &self.out {
            Some(out) => out.clone(),
            None => free_folder(&self.data),
        };
        let planned = Planned::new(&processor, &setup, &self.machine.options(), 0)?;
        planned.ensure_fits()?;
        memory::announce(&planned.memory);
        memory::ensure_disk(&planned.memory, &setup, &out)?;
        let existing = if self.overwrite { Existing::Replace } else { Existing::Refuse };
        let launch = self.machine.launch(&processor);
        let run = create(&out, &setup.to_toml(&launch), existing)?;
        carry_out(&planned, &mut setup, &run, None, &self.machine, self.reporting, &launch)
    }

    /// What a run would take. Memory is known from the plan, also where there is no GPU; time is measured.
    fn only_say(
        &self,
        setup: &mut Setup,
        opened: Result<(Processor, Precision), vit::Error>,
    ) -> anyhow::Result<Outcome> {
        let options = self.machine.options();
        let out = self.out.clone().unwrap_or_else(|| free_folder(&self.data));
        let (processor, precision) = match opened {
            Ok(opened) => opened,
            Err(reason) => {
                let precision = self.precision.unwrap_or(Precision::Bf16);
                let Some(DeviceChoice::Cuda(_)) = self.machine.device else { return Err(reason.into()) };
                let Some(memory) = memory::without_gpu(setup, &options, precision)? else { return Err(reason.into()) };
                memory::show(&memory, &format!("an H100 or H200 in {precision}"), None);
                memory::ensure_disk(&memory, setup, &out)?;
                terminal::note(format_args!("time: not measured, because {reason}"));
                return Ok(Outcome::Fine);
            }
        };
        let planned = Planned::new(&processor, setup, &options, 0)?;
        memory::show(
            &planned.memory,
            &format!("{} in {precision}", processor.description()),
            processor.device().free_memory(),
        );
        memory::ensure_disk(&planned.memory, setup, &out)?;
        planned.ensure_fits()?;
        let estimate = estimate(processor.device(), setup, &options)?;
        terminal::note(format_args!(
            "{} steps of {} pictures per epoch, {} steps in all",
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

/// Refuses what is for inference alone.
pub fn ensure_trains(precision: Option<Precision>) -> anyhow::Result<()> {
    if let Some(precision @ (Precision::F16 | Precision::Fp8 | Precision::Int8)) = precision {
        bail!("--precision {precision} is for inference; train in f32, tf32 or bf16");
    }
    Ok(())
}

/// Begins a run's folder.
fn create(out: &Path, config: &str, existing: Existing) -> anyhow::Result<RunFolder> {
    RunFolder::create(out, config, existing).map_err(|error| match error {
        RunError::Exists { path } => {
            let run = shell::quoted(path.as_os_str());
            anyhow!("{run} already holds a run: `vit resume {run}` goes on with it, --overwrite replaces it, another --out keeps it")
        }
        other => other.into(),
    })
}

/// The first of `runs/NAME-1`, `runs/NAME-2` … that is not there yet.
fn free_folder(data: &Path) -> PathBuf {
    let name = data.file_name().map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned());
    let name = name.split('.').next().filter(|stem| !stem.is_empty()).unwrap_or("run").to_string();
    let numbered = |n: u32| Path::new("runs").join(format!("{name}-{n}"));
    (1..).map(numbered).find(|folder| !folder.exists()).unwrap_or_else(|| numbered(0))
}

/// Says what will be trained, on what.
fn describe(setup: &Setup) -> anyhow::Result<()> {
    terminal::note(format_args!("{}: {}", setup.settings.data.display(), setup.data_report));
    setup.report.iter().for_each(terminal::note);
    let (trained, all) = setup.trained_parameters()?;
    if trained < all {
        terminal::note(format_args!("training {trained} of {all} parameter tensors, the others stay as they are"));
    }
    Ok(())
}

/// Continue a run that was interrupted
#[derive(Args)]
#[command(after_help = "\
Example:
  vit resume runs/photos-1

The run goes on from its last checkpoint, on the device on which it was begun,
and ends with the same weights, bit for bit, as if it had never been
interrupted. If images were added, removed, replaced or relabelled since, it
says so and stops.")]
pub struct ResumeArguments {
    /// The run's folder
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Go on although the data changed, with the split kept: what was held out stays
    /// so, new images are trained on
    #[arg(long)]
    accept_changed_data: bool,
    /// Stop if more than this share of the training or validation images cannot be
    /// read, as 5% or 0.05 [default: as begun]
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    max_unreadable: Option<f64>,
    #[command(flatten)]
    reporting: Reporting,
    #[command(flatten)]
    machine: Machine,
}

pub fn resume(arguments: ResumeArguments) -> anyhow::Result<Outcome> {
    let ResumeArguments { run, accept_changed_data, max_unreadable, reporting, machine } = arguments;
    reporting.apply();
    let run = RunFolder::resume(&run)?;
    let launch = RunConfig::of(&run)?.launch;
    if run.last().is_empty() {
        bail!(
            "{}: this run was stopped before its first checkpoint; begin it again with `vit train` and --overwrite",
            run.path().display()
        );
    }
    let opened = run.last().open()?;
    opened.notes.iter().for_each(terminal::note);
    let snapshot = opened.snapshot;
    let changed = if accept_changed_data { ChangedData::Accept } else { ChangedData::Refuse };
    let mut setup = {
        let _busy = terminal::busy(format!("opening the data of {}", run.path().display()));
        Setup::resume(&run, snapshot.config.clone(), changed)
    }
    .map_err(|error| match error {
        TrainError::ChangedData { .. } => anyhow!(
            "{error}. Put the data back, or go on with --accept-changed-data: the images that were held out stay so, and \
             new ones are trained on"
        ),
        other => other.into(),
    })?;
    setup.settings.max_unreadable = max_unreadable.unwrap_or(setup.settings.max_unreadable);
    setup.report.iter().for_each(terminal::note);
    let precision: Precision = setup.settings.precision.parse().map_err(anyhow::Error::msg)?;
    let chosen = machine.device.is_some();
    let machine = machine.or_as_begun(&launch)?;
    let (processor, _) = machine.open(Some(precision)).map_err(|error| match chosen || launch.device.is_empty() {
        true => anyhow!("{error}"),
        false => anyhow!(
            "{}: the run was begun on {} in {precision}, and that cannot be had here: {error}. Resume it where there is \
             such a device, or name another with --device",
            run.path().display(),
            launch.device
        ),
    })?;
    let held = snapshot.weights.held_bytes() + snapshot.optimiser.held_bytes();
    let planned = Planned::new(&processor, &setup, &machine.options(), held)?;
    planned.ensure_fits()?;
    memory::announce(&planned.memory);
    carry_out(&planned, &mut setup, &run, Some(snapshot), &machine, reporting, &launch)
}

fn carry_out(
    planned: &Planned,
    setup: &mut Setup,
    run: &RunFolder,
    from: Option<Snapshot>,
    machine: &Machine,
    reporting: Reporting,
    launch: &Launch,
) -> anyhow::Result<Outcome> {
    let processor = planned.processor;
    terminal::note(format_args!("training on {} in {}", processor.description(), setup.settings.precision));
    let command = format!("vit resume {}", shell::quoted(run.path().as_os_str()));
    run.write_command(&commands(run.path(), launch)?)?;
    let interrupt = Interrupt::listen()?;
    let mut view = View::new(reporting);
    let finished = train(processor.device(), setup, run, from, &machine.options(), &mut view, &interrupt.stop);
    view.close();
    let Finished { complete, early, position, waiting, seconds } = match finished {
        // The device failed, not the run: it can go on where the device works again.
        Err(error @ TrainError::Graph(GraphError::Device { .. } | GraphError::Memory { .. }))
            if !run.last().is_empty() =>
        {
            bail!("{error}. The run is kept: `{command}` goes on from its last checkpoint");
        }
        Err(error) => return Err(name_the_option(error)),
        Ok(finished) => finished,
    };
    let (memory, disk) = (host::peak(), run.bytes_on_disk()?);
    reporting.event(&json!({
        "event": "end", "complete": complete, "early": early, "step": position.step, "run": run.path(),
        "best": position.best, "seconds": seconds, "waiting": waiting, "peak_memory": memory,
        "planned_memory": planned.memory.host(), "disk": disk,
    }));
    let memory = memory.map_or(String::new(), |most| memory::compared(most, &planned.memory));
    let taken = format!("{memory}{} on disk in {}", bytes(disk), run.path().display());
    if !complete {
        terminal::note(format_args!("stopped and saved after step {}; `{command}` goes on", position.step));
        terminal::note(taken);
        return Ok(interrupt.outcome());
    }
    if early {
        terminal::note(format_args!(
            "stopped early after step {}: {} evaluations in a row gave no new best",
            position.step, setup.recipe.patience
        ));
    }
    let seconds = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    terminal::note(format_args!("done in {}, {:.1}% of it waiting for data", Clock(seconds), 100.0 * waiting));
    terminal::note(taken);
    match &position.best {
        Some(best) => terminal::note(format_args!(
            "best {} {:.2}% after step {}: {}",
            best.metric,
            100.0 * best.value,
            best.step,
            run.best().path().display()
        )),
        None => terminal::note(format_args!("the model: {}", run.last().path().display())),
    }
    ensure!(position.step > 0, "the recipe has no steps; check `length`");
    Ok(Outcome::Fine)
}

/// An error of a run, with the option that helps where there is one.
pub fn name_the_option(error: TrainError) -> anyhow::Error {
    let (found, of) = match &error {
        TrainError::Loader(LoaderError::TooManyUnreadable { found, seen, .. }) => (*found, *seen),
        TrainError::UnreadableValidation { found, of, .. } => (*found, *of),
        _ => return error.into(),
    };
    anyhow!("{error} with --max-unreadable {}%", (100 * found).div_ceil(of.max(1)))
}

/// A share: `5%` or `0.05`.
pub fn parse_share(text: &str) -> Result<f64, String> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().map(|percent| percent / 100.0),
        None => text.parse(),
    };
    share.ok().filter(|share| (0.0..=1.0).contains(share)).ok_or_else(|| "should be a share such as 5% or 0.05".into())
}

/// The script that is kept with a run: the command that began it, and the one that goes on.
fn commands(run: &Path, launch: &Launch) -> anyhow::Result<String> {
    let resume = format!("vit resume {}", shell::quoted(std::path::absolute(run)?.as_os_str()));
    if launch.command.is_empty() {
        return Ok(resume);
    }
    let folder = shell::quoted(launch.folder.as_os_str());
    Ok(format!("# Begun in {folder} with:\n# {}\n# Goes on with:\n{resume}", launch.command))
}
