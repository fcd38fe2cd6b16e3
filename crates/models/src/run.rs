//! The folder of a training run, as far as opening its model needs it.

use std::borrow::Cow;
use std::path::Path;

/// The file that makes a folder a run's: its resolved configuration.
pub const CONFIG: &str = "config.toml";

/// The folder of a run's checkpoints, `best` and `last`.
pub const CHECKPOINTS: &str = "checkpoints";

/// The optimiser's state in a checkpoint, which a model does not need.
pub const OPTIMISER: &str = "optimiser.safetensors";

/// Those of a folder's files that opening its model reads: of a run, the checkpoint that [`model_of`] chooses.
pub fn files_of_model(names: &[&str]) -> Vec<String> {
    let slots = ["best", "last"].map(|slot| format!("{CHECKPOINTS}/{slot}/"));
    let slot = slots.iter().find(|slot| names.iter().any(|name| name.starts_with(slot.as_str())));
    let is_read = |name: &str| match slot.filter(|_| names.contains(&CONFIG)) {
        Some(slot) => name == CONFIG || name.starts_with(slot.as_str()),
        None => true,
    };
    names.iter().filter(|name| is_read(name) && !name.ends_with(OPTIMISER)).map(|name| name.to_string()).collect()
}

/// The checkpoint that a path means: in a run's folder the best model, or the last if none was evaluated; otherwise the
/// path itself.
pub fn model_of(path: &Path) -> Cow<'_, Path> {
    if !path.join(CONFIG).is_file() {
        return path.into();
    }
    let slots = ["best", "last"].map(|slot| path.join(CHECKPOINTS).join(slot));
    slots.into_iter().find(|folder| folder.is_dir()).map_or(path.into(), Cow::Owned)
}
