//! The model of a command: its arguments, and how it is opened.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::error::ErrorKind;
use vit_models::run::model_of;
use vit_models::{Changes, Checkpoint, ModelError, OpenOptions};

use crate::hints::unsuitable_size;
use crate::terminal;

/// The model of a command about one model: its first argument, or `--model` as in every other command.
#[derive(Args)]
#[group(multiple = false)]
pub struct ModelArgument {
    /// The model: a checkpoint folder, a weights file, a run's folder (its best
    /// model), or cifar10 for the built-in one
    #[arg(value_name = "MODEL")]
    named: Option<PathBuf>,
    /// The same as MODEL, as other commands take it
    #[arg(long, short, value_name = "MODEL")]
    model: Option<PathBuf>,
}

impl ModelArgument {
    /// The model given by an argument or by the environment.
    pub fn path(&self) -> PathBuf {
        given(&self.named, &self.model).unwrap_or_else(|| missing())
    }
}

/// The model of a command that needs no weights.
#[derive(Args)]
#[group(multiple = false)]
pub struct ArchitectureArgument {
    /// The model: a name (`vit models` lists them), a checkpoint folder, a weights
    /// file, a run's folder, or cifar10 for the built-in one
    #[arg(value_name = "MODEL")]
    named: Option<PathBuf>,
    /// The same as MODEL, as other commands take it
    #[arg(long, short, value_name = "MODEL")]
    model: Option<PathBuf>,
}

impl ArchitectureArgument {
    /// The model given by an argument or by the environment.
    pub fn name(&self) -> String {
        self.name_or(None).unwrap_or_else(|| missing())
    }

    /// The same with a default.
    pub fn name_or(&self, default: Option<&str>) -> Option<String> {
        given(&self.named, &self.model)
            .map(|name| name.to_string_lossy().into_owned())
            .or_else(|| default.map(str::to_string))
    }
}

fn given(named: &Option<PathBuf>, option: &Option<PathBuf>) -> Option<PathBuf> {
    let environment = || std::env::var_os("VIT_MODEL").filter(|name| !name.is_empty()).map(PathBuf::from);
    named.clone().or_else(|| option.clone()).or_else(environment)
}

/// Ends the program as clap does if an argument is missing.
fn missing() -> ! {
    let what = "the following required argument was not provided:\n  <MODEL>, or --model <MODEL>\n\n\
                For more information, try '--help'.\n";
    clap::Error::raw(ErrorKind::MissingRequiredArgument, what).exit()
}

/// Opens a checkpoint folder, a weights file, or the best model of a run's folder.
pub fn open(path: &Path, allow_unmatched: bool) -> anyhow::Result<Checkpoint> {
    exists(path)?;
    let path = &*model_of(path);
    let _busy = terminal::busy(format!("reading {}", path.display()));
    let options = OpenOptions { allow_unmatched, ..OpenOptions::default() };
    Checkpoint::open(&folder_of_config(path), options).map_err(|error| named(path, error))
}

/// An error of a checkpoint, with its path where the error does not name one.
pub fn named(path: &Path, error: ModelError) -> anyhow::Error {
    match error {
        ModelError::Unmatched(_) => anyhow::Error::new(error).context(path.display().to_string()),
        other => other.into(),
    }
}

/// The folder of a `config.json`; any other path itself.
pub fn folder_of_config(path: &Path) -> Cow<'_, Path> {
    match (path.file_name(), path.parent()) {
        (Some(name), Some(folder)) if name == "config.json" && path.is_file() => {
            if folder.as_os_str().is_empty() {
                Path::new(".").into()
            } else {
                folder.into()
            }
        }
        _ => path.into(),
    }
}

/// Fails if there is no such model, or if the name is that of an architecture without weights.
pub fn exists(path: &Path) -> anyhow::Result<()> {
    Ok(vit::ensure_exists(path)?)
}

/// Applies the changes that options ask for.
pub fn change(checkpoint: &mut Checkpoint, changes: Changes) -> anyhow::Result<()> {
    checkpoint.change(changes).map_err(|error| match error {
        ModelError::Graph(error) => unsuitable_size(error),
        other => other.into(),
    })
}

/// Prints what was changed to adapt the weights.
pub fn report_changes(path: &Path, report: &[String]) {
    for line in report {
        terminal::note(format_args!("{}: {line}", path.display()));
    }
}
