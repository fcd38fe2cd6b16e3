//! `vit study`: models compared over dataset sizes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::ensure;
use clap::Args;
use vit_data::loader::UnreadableLimit;
use vit_train::{BegunRun, Clock, Processes, RunSettings, Study, StudyPlan, StudyResult, StudyRun, StudyTable, train};

use crate::device_options::PrecisionArgument;
use crate::interrupt::Interrupt;
use crate::table::{Align, Table};
use crate::train::{MachineArguments, absolute_validation, parse_share, read_recipe};
use crate::training_view::View;
use crate::{Outcome, terminal};

/// Compare models on more and more data: a table and a plot
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit study --data cifar10.tar.zst --out studies/cifar10
  vit study --data photos --models resnet50,B/16 --fractions 0.01,0.1,1
  vit study --data cifar10.tar.zst --set length='1000 steps' \\
            --set resnet18_cifar:schedule.rate=3e-3

Every model is trained on every share of the training images, from scratch,
with the same recipe and the same number of steps, and evaluated once, at the
end. Smaller shares are subsets of larger ones. Models with a distillation head
follow the largest convolutional model of the study, trained on the same share.

Ctrl-C saves and stops; the same command continues. Finished runs are kept, so
models and shares can be added later. The folder gets results.csv,
results.md, results.svg and results.png, and a run folder for each run.")]
pub struct Arguments {
    /// The dataset, in any format that `vit train` takes
    #[arg(long, value_name = "PATH")]
    data: PathBuf,
    /// The models, by name [default: LeNet-5, ResNet-18, a hybrid, ViT and DeiT for
    /// images of 32 pixels]
    #[arg(long, short, value_name = "NAMES", value_delimiter = ',', hide_default_value = true, default_values = MODELS)]
    models: Vec<String>,
    /// Shares of the training images, of each class
    #[arg(long, value_name = "SHARES", value_delimiter = ',', default_value = "0.1,0.3,1")]
    fractions: Vec<f64>,
    /// Where the study is kept [default: studies/NAME]
    #[arg(long, short, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// What to evaluate on: another dataset, or a split of this one (val, test)
    #[arg(long, value_name = "PATH|SPLIT")]
    validation: Option<PathBuf>,
    /// The share of each class to evaluate on if there is no split for it
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    validation_fraction: f64,
    /// Stop if more than this share of the training or validation images cannot be
    /// read, as 5% or 0.05 [default: 5%]
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    max_unreadable: Option<f64>,
    /// A recipe's name (see `vit recipes`) or a TOML file
    #[arg(long, value_name = "NAME|FILE", default_value = "study", help_heading = "How to train")]
    recipe: String,
    /// Change a setting of the recipe, for all models or for one:
    /// --set schedule.rate=3e-4, --set resnet18_cifar:schedule.rate=3e-3
    #[arg(long = "set", value_name = "[MODEL:]KEY=VALUE", help_heading = "How to train")]
    settings: Vec<String>,
    /// The model of the study that distilled ones follow [default: the largest
    /// convolutional one]
    #[arg(long, value_name = "NAME", help_heading = "How to train")]
    teacher: Option<String>,
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
    let (own, all): (Vec<&String>, Vec<&String>) = arguments.settings.iter().partition(|s| for_one_model(s).is_some());
    let mut recipe = read_recipe(&arguments.recipe)?;
    recipe.set_all(all.into_iter().map(String::as_str))?;
    let own = own.into_iter().filter_map(|setting| for_one_model(setting));
    let (device, precision) = arguments.precision.for_training()?.open(arguments.machine.placement, None)?;
    let plan = StudyPlan {
        models: arguments.models,
        fractions: arguments.fractions,
        teacher: arguments.teacher,
        settings: RunSettings {
            model: String::new(),
            data: vit_data::dataset::absolute(&arguments.data)?,
            validation: arguments.validation.as_deref().map(absolute_validation).transpose()?,
            template: None,
            validation_fraction: arguments.validation_fraction,
            fraction: 1.0,
            max_unreadable: arguments.max_unreadable.unwrap_or(UnreadableLimit::default().share),
            skip_non_finite: false,
            precision: precision.to_string(),
        },
        recipe,
        own: own.map(|(model, setting)| (model.into(), setting.into())).collect(),
        launch: arguments.machine.launch(device.as_ref()),
    };
    ensure!(arguments.data.exists() || is_pattern(&arguments.data), "{}: no such dataset", arguments.data.display());
    let out = arguments.out.unwrap_or_else(|| usual_folder(&arguments.data));
    let study = Study::open(&out, plan)?;
    terminal::note(format_args!("training on {} in {precision}", device.description()));
    let interrupt = Interrupt::listen()?;
    let count = study.runs().len();
    for (number, run) in study.runs().iter().enumerate() {
        let name = format!("{}/{count}  {} on {}", number + 1, run.model, percent(run.fraction));
        if let Some(result) = study.result(run)? {
            terminal::note(format_args!("{name}: {}, done before", score(&result)));
            continue;
        }
        let mut begun = {
            let _busy = terminal::busy(&name);
            study.begin(run)?
        };
        announce(&name, run, &begun);
        let mut view = View::brief();
        let BegunRun { setup, folder, from } = &mut begun;
        let options = arguments.machine.options(&Processes::default());
        let finished = train(device.as_ref(), setup, folder, from.take(), &options, &mut view, &interrupt.stop);
        view.close();
        let finished = finished?;
        if !finished.complete {
            terminal::note("stopped and saved; the same command continues");
            return Ok(interrupt.outcome());
        }
        let result = study.finish(run, &begun, &finished)?;
        let seconds = Duration::try_from_secs_f64(result.seconds).unwrap_or_default();
        terminal::note(format_args!("{name}: {} in {}", score(&result), Clock(seconds)));
        study.report()?;
    }
    let (files, table) = study.report()?;
    print(&table)?;
    terminal::note(format_args!("{}: {}", out.display(), files.join(", ")));
    Ok(Outcome::Fine)
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

fn usual_folder(data: &Path) -> PathBuf {
    let name = data.file_name().map_or_else(|| "study".into(), |name| name.to_string_lossy().into_owned());
    Path::new("studies").join(name.split('.').next().filter(|stem| !stem.is_empty()).unwrap_or("study"))
}

fn percent(share: f64) -> String {
    format!("{}%", (share * 1e10).round() / 1e8)
}

fn score(result: &StudyResult) -> String {
    format!("{} {:.2}%", result.metric_name(), 100.0 * result.score)
}

fn announce(name: &str, run: &StudyRun, begun: &BegunRun) {
    let images = begun.setup.data_report.samples.train;
    let teacher = run.teacher.as_ref().map_or(String::new(), |teacher| format!(", following {teacher}"));
    terminal::note(format_args!("{name}: {images} images{teacher}"));
    run.left_out.iter().chain(&begun.setup.report).for_each(terminal::note);
}

fn print(table: &StudyTable) -> std::io::Result<()> {
    let align = |index: usize| if index == 0 { Align::Left } else { Align::Right };
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
