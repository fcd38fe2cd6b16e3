//! From what a person gives as a model to an open checkpoint, with errors that name the option that helps.

use std::borrow::Cow;
use std::path::Path;

use anyhow::anyhow;
use vit::graph::GraphError;
use vit::models::{Changes, Checkpoint, ModelError, OpenOptions, builtin, variant};

use crate::terminal;

/// What a model may be, for messages.
const FORMS: &str = "a checkpoint folder, a weights file (.safetensors, .npz, .pt, .pth, .bin), or \
                     cifar10 for the built-in model";

/// Opens a checkpoint folder, a weights file, or the best model of a run's folder.
pub fn open(path: &Path, allow_unmatched: bool) -> anyhow::Result<Checkpoint> {
    exists(path)?;
    let best = path.join("checkpoints").join("best");
    let path = if best.is_dir() { &best } else { path };
    let _busy = terminal::busy(format!("reading {}", path.display()));
    let options = OpenOptions { weights: None, allow_unmatched };
    Checkpoint::open(&folder_of_config(path), options).map_err(|error| match error {
        ModelError::Unmatched(_) => {
            anyhow!(
                "{}\n--allow-unmatched starts anew what is missing and drops what is left over",
                unmatched(path, error)
            )
        }
        other => other.into(),
    })
}

/// Says which file the weights that do not fit are in.
pub fn unmatched(path: &Path, error: impl ToString) -> anyhow::Error {
    anyhow!("{}: {}", path.display(), error.to_string().replace(": \n", ":\n"))
}

/// Who gives the `config.json` means the folder that it is in.
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

/// Explains a model that is not there, or a name where a path is needed.
pub fn exists(path: &Path) -> anyhow::Result<()> {
    if path.exists() || builtin::is_meant(path) {
        return Ok(());
    }
    let name = path.to_string_lossy();
    match variant(&name) {
        Some(_) => Err(anyhow!("`{name}` is an architecture without weights; give {FORMS}")),
        None => Err(anyhow!("{name}: no such file or folder; give {FORMS}")),
    }
}

/// Changes a checkpoint as options ask.
pub fn change(checkpoint: &mut Checkpoint, changes: Changes) -> anyhow::Result<()> {
    checkpoint.change(changes).map_err(|error| match error {
        ModelError::Graph(error) => unsuitable_size(error),
        other => other.into(),
    })
}

/// A graph that cannot be built for the image size that was asked for.
pub fn unsuitable_size(error: GraphError) -> anyhow::Error {
    match error {
        GraphError::Shape { reason, .. } => anyhow!("{reason}; choose another --image-size"),
        other => other.into(),
    }
}

/// Says what was changed about the weights.
pub fn report_changes(path: &Path, report: &[String]) {
    for line in report {
        terminal::note(format_args!("{}: {line}", path.display()));
    }
}
