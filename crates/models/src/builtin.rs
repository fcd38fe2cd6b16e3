//! The model that is part of the binary, for a first try without a download: a small Vision Transformer for CIFAR-10's ten
//! classes.

use std::path::{Path, PathBuf};

use crate::adapt::{Leniency, adapt};
use crate::checkpoint::Checkpoint;
use crate::config;
use crate::error::ModelError;
use crate::weights::{names, safetensors};

/// Its name, instead of a checkpoint's path.
pub const NAME: &str = "cifar10";

const CONFIG: &str = include_str!("../builtin/cifar10/config.json");
// As a constant it would be copied into each function that names it, and with those into the crate's metadata.
static WEIGHTS: &[u8] = include_bytes!("../builtin/cifar10/model.safetensors");

/// Whether a path means the built-in model: it is its name, and there is no such file.
pub fn is_meant(path: &Path) -> bool {
    path.as_os_str() == NAME && !path.exists()
}

/// The built-in model.
pub fn open() -> Result<Checkpoint, ModelError> {
    let source = PathBuf::from(NAME);
    let wrong = |what: String| ModelError::Config { path: source.clone(), what };
    let json = serde_json::from_str(CONFIG).map_err(|error| wrong(error.to_string()))?;
    let config = config::parse(&json, None).map_err(wrong)?;
    let (mut weights, scheme) = names::canonical(safetensors::from_bytes(WEIGHTS)?)?;
    let report = adapt(&mut weights, scheme, &config.architecture, &config.architecture, Leniency::default())?;
    Ok(Checkpoint { config, weights, scheme, source, report, tokenizer: None })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::OpenOptions;

    #[test]
    fn the_builtin_model_opens_by_its_name() {
        let checkpoint = Checkpoint::open(Path::new(NAME), OpenOptions::default()).unwrap();
        assert_eq!(checkpoint.config.labels.len(), 10);
        assert_eq!(checkpoint.config.architecture.classes(), 10);
        assert!(WEIGHTS.len() <= 8_000_000, "{} bytes", WEIGHTS.len());
    }
}
