//! The checkpoint of a model that is served, for what is compiled on demand.

use std::path::PathBuf;

use vit::models::{Checkpoint, OpenOptions};

use super::WorkError;

/// Digits of a model's version.
const VERSION_DIGITS: usize = 12;

/// The first digits of a hash of weights and configuration.
pub(super) fn version(checkpoint: &Checkpoint) -> String {
    checkpoint.fingerprint()[..VERSION_DIGITS].into()
}

/// Reads a model's files again: a device keeps weights in its own form alone.
#[derive(Debug, Clone)]
pub(super) struct Reopen {
    pub path: PathBuf,
    pub version: String,
}

impl Reopen {
    /// The checkpoint of the version that is served.
    pub fn checkpoint(&self) -> Result<Checkpoint, WorkError> {
        let opened = Checkpoint::open_image_model(&self.path, OpenOptions::default());
        match opened {
            Ok(checkpoint) if version(&checkpoint) == self.version => Ok(checkpoint),
            Ok(_) => Err(WorkError::Unsuitable("the model's files have changed; reload the model first".into())),
            Err(error) => Err(WorkError::Internal(error.to_string())),
        }
    }
}
