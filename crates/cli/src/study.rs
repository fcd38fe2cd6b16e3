//! `vit study`: a grid of runs, from a file, by name or from options.

mod jobs;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::Args;
use toml::Table as TomlTable;
use vit_data::dataset;
use vit_data::loader::UnreadableLimit;
use vit_train::{
    Begun, BegunRun, Clock, OneOrMany, Processes, RunEstimate, Stage, Study, StudyFile, StudyMachine, StudyResult,
    StudyRun, StudyTable, TrainError, TrainerOptions, train,
};

use crate::device_options::PrecisionArgument;
use crate::interrupt::Interrupt;
use crate::memory::{self, Planned};
use crate::table::{Align, Table, short, thousands};
use crate::train::{MachineArguments, parse_share, read_recipe};
use crate::training_view::View;
use crate::{Outcome, terminal};
use jobs::Job;
use vit_graph::device::Device;

/// Train many models, and compare them: a table, figures and a page
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit study --data cifar10.tar.zst --out studies/cifar10
  vit study positions --data cifar10.tar.zst --seeds 0,1,2 --dry-run
  vit study mine.toml --jobs 2
  vit study --data photos --models resnet50,B/16 --fractions 0.01,0.1,1
  vit study --data cifar10.tar.zst --set length='1000 steps' \\
            --set resnet18_cifar:schedule.rate=3e-3
  vit study positions --print > mine.toml

A study is a grid: models, datasets, amounts of data, seeds, settings of the
recipe and of models. STUDY is a TOML file or a name; options change it. Without
one, models are trained on shares of a dataset, with one recipe and the same
number of steps. Smaller shares are subsets of larger ones. Models with a
distillation head follow the largest convolutional model of the study, trained
on the same share.

Test images choose nothing: the last weights of a run are measured on the test
split once. Validation images are held out of training.

Ctrl-C saves and stops; the same command continues. Finished runs are kept, so
models, sizes, seeds and values can be added later. The folder gets results.csv,
results.md, index.html and figures, and a run folder for each run.")]
pub struct Arguments {
    /// A study's name (see --list) or a TOML file
    #[arg(value_name = "STUDY")]
    study: Option<String>,
    /// List the studies by name
    #[arg(long)]
    list: bool,
    /// Print the study as TOML
    #[arg(long, requires = "study")]
    print: bool,
    /// Only list the runs, with images, FLOPs and memory
    #[arg(long)]
    dry_run: bool,
    /// The dataset, in any format that `vit train` takes
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// The models, by name [default: LeNet-5, ResNet-18, a hybrid, ViT and DeiT for
    /// images of 32 pixels]
    #[arg(long, short, value_name = "NAMES", value_delimiter = ',')]
    models: Vec<String>,
    /// Shares of the training images, of each class [default: 0.1,0.3,1]
    #[arg(long, value_name = "SHARES", value_delimiter = ',')]
    fractions: Vec<f64>,
    /// Seeds: each combination is trained once with each [default: 0]
    #[arg(long, value_name = "SEEDS", value_delimiter = ',')]
    seeds: Vec<u64>,
    /// Where the study is kept [default: studies/NAME]
    #[arg(long, short, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// What accuracy is measured on: a split of the dataset or another dataset
    /// [default: test, else val, else images held out of training]
    #[arg(long, value_name = "PATH|SPLIT")]
    test: Option<PathBuf>,
    /// What runs are evaluated on while they train: a split, another dataset, or
    /// held-out [default: val, else held-out]
    #[arg(long, value_name = "PATH|SPLIT")]
    validation: Option<PathBuf>,
    /// The share of each class that is held out for validation [default: 0.1]
    #[arg(long, value_name = "SHARE")]
    validation_fraction: Option<f64>,
    /// Stop if more than this share of the training or validation images cannot be
    /// read, as 5% or 0.05 [default: 5%]
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    max_unreadable: Option<f64>,
    /// A recipe's name (see `vit recipes`) or a TOML file [default: study]
    #[arg(long, value_name = "NAME|FILE", help_heading = "How to train")]
    recipe: Option<String>,
    /// Change a setting of the recipe, for all models or for one:
    /// --set schedule.rate=3e-4, --set resnet18_cifar:schedule.rate=3e-3
    #[arg(long = "set", value_name = "[MODEL:]KEY=VALUE", help_heading = "How to train")]
    settings: Vec<String>,
    /// The model of the study that distilled ones follow [default: the largest
    /// convolutional one]
    #[arg(long, value_name = "NAME", help_heading = "How to train")]
    teacher: Option<String>,
    /// Runs at a time, each in a process of its own with a share of the cores and of
    /// the GPUs
    #[arg(long, value_name = "N", help_heading = "How to run", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    jobs: u32,
    #[command(flatten)]
    precision: PrecisionArgument,
    #[command(flatten)]
    machine: MachineArguments,
}

/// The default models, from LeNet-5 to DeiT, for images of 32 pixels.
const MODELS: [&str; 5] = [
    "lenet5_relu_cifar",
    "resnet18_cifar",
    "vit_lite_r20_s4_32",
    "vit_lite_patch4_32",
    "deit_lite_distilled_patch4_32",
];

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    if arguments.list {
        return list();
    }
    let file = arguments.file()?;
    if arguments.print {
        let given = arguments.study.as_deref().filter(|name| !is_file(name));
        let text = given.map(StudyFile::text_of).transpose()?.map_or_else(|| file.to_toml(), str::to_string);
        write!(std::io::stdout().lock(), "{text}")?;
        return Ok(Outcome::Fine);
    }
    for path in file.data.paths() {
        let there = path.exists() || is_pattern(path) || dataset::is_formula(path) || vit_storage::is_url(path);
        ensure!(there, "{}: no such dataset", path.display());
    }
    ensure!(!file.data.paths().is_empty(), "the study names no dataset; give one with --data");
    let job = Job::of_this_process(arguments.jobs)?;
    let placement = job.placement(arguments.machine.placement);
    let machine = arguments.machine.at(placement);
    let (device, precision) = arguments.precision.for_training()?.open(placement, None)?;
    let out = arguments.out.clone().unwrap_or_else(|| usual_folder(&file));
    let own = arguments.settings.iter().filter_map(|setting| for_one_model(setting));
    let settings = StudyMachine {
        own: own.map(|(model, setting)| (model.into(), setting.into())).collect(),
        max_unreadable: arguments.max_unreadable.unwrap_or(UnreadableLimit::default().share),
        precision: precision.to_string(),
        launch: machine.launch(device.as_ref()),
    };
    let study = {
        let _busy = terminal::busy("planning the study");
        Study::open(&out, file, settings, &read_recipe)?
    };
    let options = machine.options(&Processes::default());
    if arguments.dry_run {
        return dry_run(&study, device.as_ref(), &options);
    }
    if job.starts_others() {
        drop(device);
        let outcome = job.start()?;
        return if outcome == Outcome::Fine { report(&study, &out) } else { Ok(outcome) };
    }
    if job.is_first() {
        terminal::note(format_args!("training on {} in {precision}", device.description()));
    }
    let interrupt = Interrupt::listen()?;
    let work = Work { study: &study, device: device.as_ref(), options: &options, interrupt: &interrupt };
    match work.carry_out()? {
        Outcome::Fine if job.is_alone() => report(&study, &out),
        outcome => Ok(outcome),
    }
}

/// Prints the studies by name.
fn list() -> anyhow::Result<Outcome> {
    let mut table = Table::new(&[("study", Align::Left), ("compares", Align::Left)]);
    for name in StudyFile::names() {
        table.row(vec![name.into(), StudyFile::parse(StudyFile::text_of(name)?)?.about]);
    }
    table.print(&mut std::io::stdout().lock(), |_| None)?;
    Ok(Outcome::Fine)
}

/// Writes tables, figures and the page, and prints the table.
fn report(study: &Study, out: &Path) -> anyhow::Result<Outcome> {
    let (files, table) = study.report()?;
    print(&table)?;
    terminal::note(format_args!("{}: {}", out.display(), files.join(", ")));
    Ok(Outcome::Fine)
}

impl Arguments {
    /// The study of a file, by name, or of the options alone, with what options change.
    fn file(&self) -> anyhow::Result<StudyFile> {
        let mut file = match &self.study {
            Some(name) if is_file(name) => {
                let text = vit_system::regular_file::read_to_string(name.as_ref());
                let text = text.with_context(|| format!("the study {name} cannot be read"))?;
                let file = StudyFile::parse(&text).with_context(|| name.to_string())?;
                let stem = Path::new(name).file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into());
                StudyFile { name: if file.name.is_empty() { stem } else { file.name.clone() }, ..file }
            }
            Some(name) => StudyFile::parse(StudyFile::text_of(name)?)?,
            None => StudyFile {
                models: MODELS.map(String::from).to_vec(),
                fractions: vec![0.1, 0.3, 1.0],
                ..StudyFile::default()
            },
        };
        if let Some(data) = &self.data {
            file.data = OneOrMany::One(data.clone());
        }
        if !self.models.is_empty() {
            (file.models, file.model) = (self.models.clone(), Vec::new());
        }
        if !self.fractions.is_empty() {
            (file.fractions, file.images) = (self.fractions.clone(), Vec::new());
        }
        if !self.seeds.is_empty() {
            file.seeds = self.seeds.clone();
        }
        file.test = self.test.clone().or(file.test);
        file.validation = self.validation.clone().or(file.validation);
        file.validation_fraction = self.validation_fraction.unwrap_or(file.validation_fraction);
        file.recipe = self.recipe.clone().unwrap_or(file.recipe);
        file.teacher = self.teacher.clone().or(file.teacher);
        for setting in self.settings.iter().filter(|setting| for_one_model(setting).is_none()) {
            let Some((key, value)) = setting.split_once('=') else {
                bail!("--set {setting}: should be KEY=VALUE, like schedule.rate=1e-3")
            };
            set(&mut file.set, key.trim(), value.trim());
        }
        Ok(file)
    }
}

/// Sets `section.key` of a table to a TOML value, or else to text.
fn set(table: &mut TomlTable, key: &str, text: &str) {
    let parsed = toml::from_str::<TomlTable>(&format!("value = {text}")).ok().and_then(|mut t| t.remove("value"));
    // Keys may be nested in the file and whole here.
    if let Some((section, leaf)) = key.split_once('.')
        && let Some(toml::Value::Table(inner)) = table.get_mut(section)
    {
        return set(inner, leaf, text);
    }
    table.insert(key.into(), parsed.unwrap_or_else(|| text.into()));
}

fn is_file(name: &str) -> bool {
    name.ends_with(".toml") || name.contains(std::path::MAIN_SEPARATOR)
}

/// The runs of a study, which processes share.
pub struct Work<'a> {
    pub study: &'a Study,
    pub device: &'a dyn Device,
    pub options: &'a TrainerOptions,
    pub interrupt: &'a Interrupt,
}

impl Work<'_> {
    /// Carries out all runs that no other process is at. Ends when all are finished.
    pub fn carry_out(&self) -> anyhow::Result<Outcome> {
        let count = self.study.runs().len();
        let mut open: Vec<usize> = (0..count).collect();
        while !open.is_empty() {
            let before = open.len();
            let mut left = Vec::new();
            for index in open {
                let run = &self.study.runs()[index];
                let name = format!("{}/{count}  {}", index + 1, run.name);
                if let Some(result) = self.study.result(run)? {
                    terminal::note(format_args!("{name}: {}, done before", score(&result)));
                    continue;
                }
                if !self.study.is_ready(run)? {
                    left.push(index);
                    continue;
                }
                match self.carry_out_run(run, &name)? {
                    RunOutcome::Finished => {}
                    RunOutcome::Elsewhere => left.push(index),
                    RunOutcome::Stopped => {
                        terminal::note("stopped and saved; the same command continues");
                        return Ok(self.interrupt.outcome());
                    }
                }
            }
            open = left;
            if open.len() == before {
                // Other processes are at what is left.
                std::thread::sleep(Duration::from_millis(300));
                if self.interrupt.stop.load(std::sync::atomic::Ordering::Relaxed) {
                    return Ok(self.interrupt.outcome());
                }
            }
        }
        Ok(Outcome::Fine)
    }

    fn carry_out_run(&self, run: &StudyRun, name: &str) -> anyhow::Result<RunOutcome> {
        let begun = {
            let _busy = terminal::busy(name);
            self.study.begin(run).with_context(|| run.name.clone())?
        };
        let mut begun = match begun {
            Begun::Here(begun) => begun,
            Begun::Elsewhere => return Ok(RunOutcome::Elsewhere),
            Begun::Finished => return Ok(RunOutcome::Finished),
        };
        announce(name, run, &begun);
        let held = begun.from.as_ref().map_or(0, |from| {
            vit_graph::device::Parameters::held_bytes(&from.weights)
                + vit_graph::device::Parameters::held_bytes(&from.optimiser)
        });
        Planned::new(self.device, &begun.setup, self.options, held)?.ensure_fits()?;
        let mut view = View::brief();
        let BegunRun { setup, folder, from } = &mut *begun;
        let finished = train(self.device, setup, folder, from.take(), self.options, &mut view, &self.interrupt.stop);
        view.close();
        let result = match finished {
            Err(TrainError::NonFinite { step, .. }) => self.study.diverged(run, &begun, self.options, step)?,
            Err(error) => return Err(anyhow::Error::from(error).context(run.name.clone())),
            Ok(finished) if !finished.complete => return Ok(RunOutcome::Stopped),
            Ok(finished) => {
                let _busy = terminal::busy(format_args!("{name}: measuring"));
                self.study.finish(run, &begun, &finished, self.device, self.options)?
            }
        };
        let seconds = Duration::try_from_secs_f64(result.seconds).unwrap_or_default();
        terminal::note(format_args!("{name}: {} in {}", score(&result), Clock(seconds)));
        self.study.report()?;
        Ok(RunOutcome::Finished)
    }
}

enum RunOutcome {
    Finished,
    Elsewhere,
    Stopped,
}

/// Prints what the study would take.
fn dry_run(study: &Study, device: &dyn Device, options: &TrainerOptions) -> anyhow::Result<Outcome> {
    let estimates = {
        let _busy = terminal::busy("counting FLOPs");
        study.estimates(options)?
    };
    let mut table = Table::new(&[
        ("run", Align::Left),
        ("images", Align::Right),
        ("steps", Align::Right),
        ("seen", Align::Right),
        ("FLOPs", Align::Right),
        ("", Align::Left),
    ]);
    let mut finished = 0;
    for (run, estimate) in study.runs().iter().zip(&estimates) {
        let done = study.result(run)?;
        finished += usize::from(done.is_some());
        table.row(vec![
            run.name.clone(),
            estimate.images.to_string(),
            estimate.steps.to_string(),
            thousands(estimate.seen),
            format!("{:.2e}", estimate.flops),
            done.map_or(String::new(), |result| score(&result)),
        ]);
    }
    let mut out = std::io::stdout().lock();
    table.print(&mut out, |_| None)?;
    let seen: u64 = estimates.iter().map(|estimate| estimate.seen).sum();
    let flops: f64 = estimates.iter().map(|estimate| estimate.flops).sum();
    let pretraining = study.runs().iter().filter(|run| run.stage == Stage::Pretraining).count();
    let stages = if pretraining > 0 { format!(", {pretraining} of them pre-training") } else { String::new() };
    writeln!(
        out,
        "\n{} runs{stages}, {finished} finished; {} images seen, {flops:.2e} FLOPs",
        estimates.len(),
        short(seen)
    )?;
    out.flush()?;
    let heaviest = estimates.iter().max_by(|a, b| weight(a).total_cmp(&weight(b)));
    if let Some(heaviest) = heaviest {
        terminal::note(format_args!("the largest run: {}", memory::of_workload(device, &heaviest.workload)?));
    }
    Ok(Outcome::Fine)
}

/// What memory grows with.
fn weight(estimate: &RunEstimate) -> f64 {
    estimate.flops / estimate.steps.max(1) as f64
}

/// The model and the setting of `MODEL:KEY=VALUE`.
fn for_one_model(setting: &str) -> Option<(&str, &str)> {
    let (key, _) = setting.split_once('=')?;
    let (model, _) = key.split_once(':')?;
    Some((model, &setting[model.len() + 1..]))
}

fn is_pattern(path: &Path) -> bool {
    path.to_string_lossy().contains(['*', '?', '['])
}

fn usual_folder(file: &StudyFile) -> PathBuf {
    let data = || file.data.paths()[0].file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    let name = if file.name.is_empty() { data() } else { file.name.clone() };
    Path::new("studies").join(name.split('.').next().filter(|stem| !stem.is_empty()).unwrap_or("study"))
}

fn score(result: &StudyResult) -> String {
    let few_shot = result.few_shot.iter().map(|(shots, top1)| format!("{shots}-shot {:.2}%", 100.0 * top1));
    let test = result.score.map(|score| format!("{} {:.2}%", result.metric_name(), 100.0 * score));
    let parts: Vec<String> = test.into_iter().chain(few_shot).collect();
    match (result.diverged, parts.is_empty()) {
        (true, _) => "diverged: the loss is not finite".into(),
        (_, true) => "trained".into(),
        _ => parts.join(", "),
    }
}

fn announce(name: &str, run: &StudyRun, begun: &BegunRun) {
    let images = begun.setup.data_report.samples.train;
    let teacher = run.teacher.as_ref().map_or(String::new(), |teacher| format!(", following {teacher}"));
    terminal::note(format_args!("{name}: {images} images{teacher}"));
    run.left_out.iter().chain(&begun.setup.report).for_each(terminal::note);
}

/// Prints a table.
pub fn print(table: &StudyTable) -> std::io::Result<()> {
    let align = |index: usize| if index < table.names { Align::Left } else { Align::Right };
    let headings: Vec<(&String, Align)> = table.headings.iter().enumerate().map(|(i, h)| (h, align(i))).collect();
    let mut printed = Table::new(&headings);
    table.rows.iter().for_each(|row| printed.row(row.clone()));
    let mut out = std::io::stdout().lock();
    printed.print(&mut out, |_| None)?;
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_one_model_are_told_from_those_of_all() {
        assert_eq!(for_one_model("Lite/4@32:schedule.rate=1e-3"), Some(("Lite/4@32", "schedule.rate=1e-3")));
        assert_eq!(for_one_model("objective.teacher=c:/x"), None);
    }
}
