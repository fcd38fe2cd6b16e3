//! The folder of a training run, as far as opening its model needs it.

use std::borrow::Cow;
use std::path::Path;

/// The file that makes a folder a run's: its resolved configuration.
pub const CONFIG: &str = "config.toml";

/// The folder of a run's checkpoints, `best` and `last`.
pub const CHECKPOINTS: &str = "checkpoints";

/// The checkpoint that a path means: in a run's folder the best model, or the last if none was evaluated; otherwise the
/// path itself.
pub fn model_of(path: &Path) -> Cow<'_, Path> {
    if !path.join(CONFIG).is_file() {
        return path.into();
    }
    let slots = ["best", "last"].map(|slot| path.join(CHECKPOINTS).join(slot));
    slots.into_iter().find(|folder| folder.is_dir()).map_or(path.into(), Cow::Owned)
}
