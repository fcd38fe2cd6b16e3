//! Checkpoints of a run. A checkpoint is a model folder with the optimiser's state, the position in the run, and a manifest
//! with the length and checksum of each file.
//!
//! A new checkpoint `last` is written as `last.partial`, flushed and renamed, while the previous one becomes
//! `last.previous`. Wherever a process is killed, at least one of the three is complete; opening finds the newest that is.

mod disk;
mod error;
mod manifest;
mod position;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use vit_models::config::timm_config;
use vit_models::run::OPTIMISER;
use vit_models::weights::safetensors::{self, Dtype};
use vit_models::weights::{Weights, WeightsError};
use vit_models::{Config, TokenizerFiles, read_config};
use vit_system::regular_file;

use disk::{Disk, LocalDisk};
pub use error::SaveError;
use manifest::{Hashed, Manifest};
pub use position::{Best, RunPosition};

const WEIGHTS: &str = "model.safetensors";
const CONFIG: &str = "config.json";
const STATE: &str = "state.json";

/// Everything that a run needs to continue bit for bit.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    /// The model's configuration, written as `config.json`.
    pub config: Config,
    /// How its texts become tokens, if it has a text tower and a tokeniser of its own.
    pub tokenizer: Option<TokenizerFiles>,
    /// The model's weights under canonical names.
    pub weights: Weights,
    /// The optimiser's state and the moving averages; empty in a checkpoint of the model alone.
    pub optimiser: Weights,
    /// The position in the run.
    pub position: RunPosition,
}

/// The content of a checkpoint. Its tensors may be read from a device when they are written, one file at a time, so that not
/// all of them are in host memory at once.
pub trait CheckpointSource {
    /// The model's configuration.
    fn config(&self) -> &Config;

    /// The files of its tokeniser, if it has one.
    fn tokenizer(&self) -> Option<&TokenizerFiles>;

    /// The position in the run.
    fn position(&self) -> &RunPosition;

    /// The model's weights.
    fn weights(&self) -> Result<Cow<'_, Weights>, SaveError>;

    /// The optimiser's state.
    fn optimiser(&self) -> Result<Cow<'_, Weights>, SaveError>;
}

impl CheckpointSource for Snapshot {
    fn config(&self) -> &Config {
        &self.config
    }

    fn tokenizer(&self) -> Option<&TokenizerFiles> {
        self.tokenizer.as_ref()
    }

    fn position(&self) -> &RunPosition {
        &self.position
    }

    fn weights(&self) -> Result<Cow<'_, Weights>, SaveError> {
        Ok(Cow::Borrowed(&self.weights))
    }

    fn optimiser(&self) -> Result<Cow<'_, Weights>, SaveError> {
        Ok(Cow::Borrowed(&self.optimiser))
    }
}

/// A checkpoint that was opened.
#[derive(Debug, Clone, PartialEq)]
pub struct Opened {
    /// Its content.
    pub snapshot: Snapshot,
    /// The folder that it was read from, which may be that of the previous checkpoint.
    pub folder: PathBuf,
    /// What is wrong with newer ones, one sentence each.
    pub notes: Vec<String>,
}

/// The place of a checkpoint, such as `RUN/checkpoints/last`, and of the previous one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slot {
    path: PathBuf,
}

impl Slot {
    /// The checkpoint at `path`, which need not exist.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The folder of the newest checkpoint, which is a model folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether no complete checkpoint was ever saved here.
    pub fn is_empty(&self) -> bool {
        !self.path.exists() && !self.previous().exists() && Manifest::verify(&self.partial()).is_err()
    }

    /// Writes a checkpoint. On an error, the previous one is unchanged and the incomplete one is removed. At most one process
    /// may save here at a time.
    pub fn save(&self, checkpoint: &impl CheckpointSource) -> Result<(), SaveError> {
        self.save_on(&LocalDisk, checkpoint)
    }

    /// Opens the newest complete checkpoint and verifies its checksums. Changes nothing on disk, so it may be called while
    /// another process trains.
    pub fn open(&self) -> Result<Opened, SaveError> {
        let mut notes = Vec::new();
        for folder in self.candidates() {
            // The other two need not exist.
            if folder != self.path && !folder.exists() {
                continue;
            }
            let read = Manifest::verify(&folder).and_then(|manifest| read(&folder, &manifest));
            match read {
                Ok(snapshot) => {
                    if !notes.is_empty() {
                        let (folder, step) = (folder.display(), snapshot.position.step);
                        notes.push(format!("continuing from {folder}, saved at step {step}"));
                    }
                    return Ok(Opened { snapshot, folder, notes });
                }
                Err(what) => notes.push(format!("{}: {what}", folder.display())),
            }
        }
        Err(SaveError::NoneWhole { path: self.path.clone(), notes })
    }

    fn beside(&self, ending: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(ending);
        name.into()
    }

    fn partial(&self) -> PathBuf {
        self.beside(".partial")
    }

    fn previous(&self) -> PathBuf {
        self.beside(".previous")
    }

    /// The folders that may hold the checkpoint, in order of preference. A complete partial one was about to be renamed; it is
    /// used only if the one that it should replace is damaged.
    fn candidates(&self) -> [PathBuf; 3] {
        [self.path.clone(), self.partial(), self.previous()]
    }

    fn save_on(&self, disk: &impl Disk, checkpoint: &impl CheckpointSource) -> Result<(), SaveError> {
        let parent = self.path.parent().unwrap_or(Path::new(""));
        disk.create_folder(parent).map_err(|error| SaveError::io(parent, error))?;
        self.settle(disk)?;
        let mut written = self.write_partial(disk, checkpoint);
        // If the disk has room for two, the oldest is removed, unless the newest is damaged.
        if written.as_ref().is_err_and(SaveError::is_full)
            && self.previous().exists()
            && Manifest::verify(&self.path).is_ok()
        {
            let previous = self.previous();
            disk.remove_folder(&previous).map_err(|error| SaveError::io(&previous, error))?;
            written = self.write_partial(disk, checkpoint);
        }
        written?;
        self.promote(disk)
    }

    fn write_partial(&self, disk: &impl Disk, checkpoint: &impl CheckpointSource) -> Result<(), SaveError> {
        let partial = self.partial();
        let written = write(disk, &partial, checkpoint);
        if written.is_err() {
            // The first error is reported.
            let _ = disk.remove_folder(&partial);
        }
        written
    }

    /// Handles the partial checkpoint of a killed process: renamed if it is the only complete one, removed otherwise.
    fn settle(&self, disk: &impl Disk) -> Result<(), SaveError> {
        let partial = self.partial();
        if !partial.exists() {
            Ok(())
        } else if Manifest::verify(&self.path).is_err() && Manifest::verify(&partial).is_ok() {
            self.promote(disk)
        } else {
            disk.remove_folder(&partial).map_err(|error| SaveError::io(&partial, error))
        }
    }

    /// Renames a complete partial checkpoint.
    fn promote(&self, disk: &impl Disk) -> Result<(), SaveError> {
        let (partial, previous) = (self.partial(), self.previous());
        if self.path.exists() {
            if previous.exists() {
                disk.remove_folder(&previous).map_err(|error| SaveError::io(&previous, error))?;
            }
            disk.rename(&self.path, &previous).map_err(|error| SaveError::io(&previous, error))?;
        }
        if let Err(error) = disk.rename(&partial, &self.path) {
            let _ = disk.rename(&previous, &self.path);
            return Err(SaveError::io(&self.path, error));
        }
        let parent = self.path.parent().unwrap_or(Path::new(""));
        disk.sync_folder(parent).map_err(|error| SaveError::io(parent, error))
    }
}

/// Writes and flushes every file, the manifest last, then the folder.
fn write(disk: &impl Disk, folder: &Path, checkpoint: &impl CheckpointSource) -> Result<(), SaveError> {
    let state = checkpoint.position().to_json().map_err(|what| SaveError::State { path: folder.join(STATE), what })?;
    disk.create_folder(folder).map_err(|error| SaveError::io(folder, error))?;
    let mut manifest = Manifest::default();
    let mut file = |name: &str, content: FileContent| {
        let path = folder.join(name);
        let hashed = write_file(disk, &path, content)?;
        manifest.add(name, hashed);
        Ok::<_, SaveError>(())
    };
    let timm_name = |name: &str| checkpoint.config().architecture.timm_name(name);
    file(WEIGHTS, FileContent::Tensors { tensors: &*checkpoint.weights()?, names: &timm_name })?;
    file(CONFIG, FileContent::Text(&format!("{:#}\n", timm_config(checkpoint.config()))))?;
    for (name, text) in checkpoint.tokenizer().into_iter().flat_map(TokenizerFiles::files) {
        file(name, FileContent::Text(&text))?;
    }
    let optimiser = checkpoint.optimiser()?;
    if !optimiser.tensors.is_empty() {
        file(OPTIMISER, FileContent::Tensors { tensors: &optimiser, names: &|_| None })?;
    }
    drop(optimiser);
    file(STATE, FileContent::Text(&state))?;
    write_file(disk, &folder.join(manifest::NAME), FileContent::Text(&manifest.to_json()))?;
    disk.sync_folder(folder).map_err(|error| SaveError::io(folder, error))
}

enum FileContent<'a> {
    Tensors { tensors: &'a Weights, names: &'a dyn Fn(&str) -> Option<String> },
    Text(&'a str),
}

fn write_file(disk: &impl Disk, path: &Path, content: FileContent) -> Result<manifest::FileDigest, SaveError> {
    let io = |error| SaveError::io(path, error);
    let file = disk.create(path).map_err(io)?;
    let mut out = Hashed::new(BufWriter::with_capacity(1 << 20, file));
    match content {
        FileContent::Text(text) => out.write_all(text.as_bytes()).map_err(io)?,
        FileContent::Tensors { tensors, names } => {
            let named = tensors.renamed(names);
            let each = named.iter().map(|(name, t)| (&**name, t.shape.as_slice(), t.data.as_slice()));
            safetensors::write_to(&mut out, each, Dtype::F32, &tensors.metadata).map_err(|error| match error {
                WeightsError::Io(error) => io(error),
                error => SaveError::Tensors { path: path.into(), error },
            })?;
        }
    }
    let (out, entry) = out.finish();
    let file = out.into_inner().map_err(|error| io(error.into_error()))?;
    disk.sync(file).map_err(io)?;
    Ok(entry)
}

/// Reads a folder whose manifest was verified.
fn read(folder: &Path, manifest: &Manifest) -> Result<Snapshot, String> {
    let weights = safetensors::read(&folder.join(WEIGHTS)).map_err(|error| error.to_string())?;
    let config = read_config(folder).map_err(|error| error.to_string())?;
    let config = config.ok_or_else(|| format!("{CONFIG} is missing"))?;
    let tokenizer = TokenizerFiles::read(folder).map_err(|error| error.to_string())?;
    let weights = config.architecture.own_names(weights).map_err(|error| error.to_string())?;
    let optimiser = if manifest.contains(OPTIMISER) {
        safetensors::read(&folder.join(OPTIMISER)).map_err(|error| error.to_string())?
    } else {
        Weights::default()
    };
    let state = regular_file::read_to_string(&folder.join(STATE)).map_err(|error| format!("{STATE}: {error}"))?;
    let position = serde_json::from_str(&state).map_err(|error| format!("{STATE}: {error}"))?;
    Ok(Snapshot { config, tokenizer, weights, optimiser, position })
}
