//! The configuration of a model, without its weights.

use std::path::Path;

use vit_models::run::model_of;
use vit_models::{Checkpoint, Config, ModelError, OpenOptions, builtin, read_config, suggestions, variant};

use crate::Error;

/// The configuration of a checkpoint folder, a weights file, a run's folder or the built-in model if the path exists, else
/// of the named variant.
pub fn config_of(model: &str) -> Result<Config, Error> {
    let path = model_of(Path::new(model));
    if path.exists() || builtin::is_meant(&path) || vit_storage::is_url(&path) {
        // Weights are read only where the folder has no configuration.
        let described = if path.is_dir() { read_config(&path)? } else { None };
        return match described {
            Some(config) => Ok(config),
            None => Ok(Checkpoint::open(&path, OpenOptions::default())?.config),
        };
    }
    let Some(found) = variant(model) else {
        return Err(ModelError::UnknownModel { name: model.into(), suggestions: suggestions(model) }.into());
    };
    Ok(found.into())
}
