//! `vit train`, `vit finetune` and `vit resume`: from a data set to a trained model.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde_json::json;
use vit::graph::GraphError;
use vit::graph::device::Memory;
use vit::train::{
    Clock, Existing, Finished, ModelChoice, Recipe, RunFolder, RunSettings, Setup, Snapshot, Teaching, TrainError,
    TrainerOptions, estimate, train, training_step,
};
use vit::{DeviceChoice, Precision, Processor, plan_without_gpu};

use crate::interrupt::Interrupt;
use crate::pictures::parse_size;
use crate::table::{bytes, thousands};
use crate::training_view::{Reporting, View};
use crate::{Outcome, checkpoints, terminal};

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

The head is replaced by one for the new classes, starting from zero; position
embeddings are resampled for another --image-size. What was changed is said
before training begins.")]
pub struct FinetuneArguments {
    /// The checkpoint folder or weights file to start from
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: PathBuf,
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
    /// Where to run: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", help_heading = "How to run")]
    device: DeviceChoice,
    /// CPU threads [default: all cores]
    #[arg(long, value_name = "N", help_heading = "How to run", value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Memory for decoded pictures, in megabytes
    #[arg(long, value_name = "MB", help_heading = "How to run", default_value_t = 2048)]
    cache: u64,
    /// The longest time between two saves, in minutes
    #[arg(long, value_name = "MINUTES", help_heading = "How to run", default_value_t = 5.0)]
    save_every: f64,
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
        let open = |precision| {
            let processor = Processor::open(self.device, precision, self.threads.map(|n| n as usize))?;
            Ok((processor, precision))
        };
        match (asked, self.device) {
            (Some(precision), _) => open(precision),
            (None, DeviceChoice::Cpu) => open(Precision::F32),
            (None, DeviceChoice::Cuda(_)) => open(Precision::Bf16),
            (None, DeviceChoice::Auto) => open(Precision::Bf16).or_else(|_| open(Precision::F32)),
        }
    }

    pub fn options(&self) -> TrainerOptions {
        TrainerOptions {
            threads: self.threads(),
            cache_bytes: self.cache << 20,
            save_every: Duration::try_from_secs_f64(60.0 * self.save_every).unwrap_or(Duration::MAX),
            recompute: self.recompute,
        }
    }
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let Arguments { model, common } = arguments;
    let recipe = common.recipe("small", &[])?;
    let choice = model.as_deref().map_or(ModelChoice::Usual, ModelChoice::Named);
    common.begin(choice, model.clone().unwrap_or_default(), recipe)
}

pub fn finetune(arguments: FinetuneArguments) -> anyhow::Result<Outcome> {
    let FinetuneArguments { checkpoint, freeze, common } = arguments;
    checkpoints::exists(&checkpoint)?;
    let freeze = freeze.map(|what| frozen(&what)).transpose()?;
    let recipe = common.recipe("finetune", freeze.as_slice())?;
    let checkpoint = checkpoints::folder_of_config(&checkpoint).into_owned();
    common.begin(ModelChoice::Checkpoint(&checkpoint), checkpoint.display().to_string(), recipe)
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
    let text = std::fs::read_to_string(name).with_context(|| name.to_string())?;
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
            // A run may be resumed from another folder.
            recipe.objective.teacher = std::path::absolute(teacher)?.display().to_string();
            if recipe.objective.distillation == Teaching::None {
                recipe.objective.distillation = Teaching::Hard;
            }
        }
        let all = more.iter().chain(short.iter().flatten()).chain(&self.settings);
        recipe.set_all(all.map(String::as_str))?;
        Ok(recipe)
    }

    fn begin(&self, choice: ModelChoice, model: String, recipe: Recipe) -> anyhow::Result<Outcome> {
        self.reporting.apply();
        let data = std::path::absolute(&self.data).unwrap_or_else(|_| self.data.clone());
        let settings = RunSettings {
            model,
            data,
            validation: self.validation.clone(),
            validation_fraction: self.validation_fraction,
            fraction: self.fraction,
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
        let existing = if self.overwrite { Existing::Replace } else { Existing::Refuse };
        let run = RunFolder::create(&out, &setup.to_toml(), existing)?;
        carry_out(&processor, &mut setup, &run, None, &self.machine, self.reporting)
    }

    /// What a run would take. Memory is known from the plan, also where there is no GPU; time is measured.
    fn only_say(
        &self,
        setup: &mut Setup,
        opened: Result<(Processor, Precision), vit::Error>,
    ) -> anyhow::Result<Outcome> {
        let options = self.machine.options();
        let graph = training_step(setup, &options)?.graph;
        let say = |memory: Memory, place: &str, precision: Precision| {
            terminal::note(format_args!(
                "memory: {} on {place} in {precision}: {} for weights and optimiser, an arena of {} bytes for the rest",
                bytes((memory.stored_bytes + memory.arena_bytes) as u64),
                bytes(memory.stored_bytes as u64),
                thousands(memory.arena_bytes as u64),
            ));
        };
        let (processor, precision) = match opened {
            Ok(opened) => opened,
            Err(reason) => {
                let precision = self.precision.unwrap_or(Precision::Bf16);
                let memory = match self.machine.device {
                    DeviceChoice::Cuda(_) => plan_without_gpu(&graph, precision)?,
                    _ => None,
                };
                let Some(memory) = memory else { return Err(reason.into()) };
                say(memory, "an H100 or H200", precision);
                terminal::note(format_args!("time: not measured, because {reason}"));
                return Ok(Outcome::Fine);
            }
        };
        say(processor.device().plan(&graph)?, &processor.description(), precision);
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

The run goes on from its last checkpoint and ends with the same weights, bit
for bit, as if it had never been interrupted.")]
pub struct ResumeArguments {
    /// The run's folder
    #[arg(value_name = "RUN")]
    run: PathBuf,
    #[command(flatten)]
    reporting: Reporting,
    #[command(flatten)]
    machine: Machine,
}

pub fn resume(arguments: ResumeArguments) -> anyhow::Result<Outcome> {
    let ResumeArguments { run, reporting, machine } = arguments;
    reporting.apply();
    let run = RunFolder::resume(&run)?;
    let (settings, recipe) = Setup::parse_toml(&run.config()?, &run.path().join("config.toml"))?;
    if run.last().is_empty() {
        bail!(
            "{}: this run was stopped before its first checkpoint; begin it again with `vit train` and --overwrite",
            run.path().display()
        );
    }
    let opened = run.last().open()?;
    opened.notes.iter().for_each(terminal::note);
    let snapshot = opened.snapshot;
    let mut setup = Setup::resume(settings, recipe, snapshot.config.clone())?;
    terminal::note(format_args!("{}: going on after step {}", run.path().display(), snapshot.position.step));
    let precision: Precision = setup.settings.precision.parse().map_err(anyhow::Error::msg)?;
    let (processor, _) = machine.open(Some(precision))?;
    carry_out(&processor, &mut setup, &run, Some(snapshot), &machine, reporting)
}

fn carry_out(
    processor: &Processor,
    setup: &mut Setup,
    run: &RunFolder,
    from: Option<Snapshot>,
    machine: &Machine,
    reporting: Reporting,
) -> anyhow::Result<Outcome> {
    terminal::note(format_args!("training on {} in {}", processor.description(), setup.settings.precision));
    let command = format!("vit resume {}{}", quoted(run.path()), if machine.recompute { " --recompute" } else { "" });
    run.write_command(&command)?;
    let interrupt = Interrupt::listen()?;
    let mut view = View::new(reporting);
    let finished = train(processor.device(), setup, run, from, &machine.options(), &mut view, &interrupt.stop);
    view.close();
    let Finished { complete, early, position, waiting, seconds } = match finished {
        // The device failed, not the run: it can go on where the device works again.
        Err(error @ TrainError::Graph(GraphError::Device { .. })) if !run.last().is_empty() => {
            bail!("{error}. The run is kept: `{command}` goes on from its last checkpoint");
        }
        finished => finished?,
    };
    let (memory, disk) = (peak_memory(), run.bytes_on_disk()?);
    reporting.event(&json!({
        "event": "end", "complete": complete, "early": early, "step": position.step, "run": run.path(),
        "best": position.best, "seconds": seconds, "waiting": waiting, "peak_memory": memory, "disk": disk,
    }));
    let memory = memory.map_or(String::new(), |most| format!("{} of memory at most; ", bytes(most)));
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

/// The most memory that the process has had, where the system says it.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = text.chars().all(|c| c.is_alphanumeric() || "/._-".contains(c));
    if plain { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}
