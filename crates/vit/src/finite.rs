//! Outputs that are NaN or infinite, and their cause: the weights, or a single image.

use std::path::Path;

use vit_models::{Checkpoint, OpenOptions};

use crate::Error;

/// Whether all elements are finite.
pub(crate) fn is_finite(values: &[f32]) -> bool {
    values.iter().all(|value| value.is_finite())
}

/// Finds the cause of an output that is not finite: an error if it is the weights or an overflow inside the model for any
/// image, `Ok` if it is single images. The weights are read again, since a device keeps them in its own form; a model with
/// finite outputs never pays for it. `blank_is_finite` tells whether a blank image gives finite outputs.
pub(crate) fn blame_weights(
    weights: &Path,
    output: &str,
    blank_is_finite: impl FnOnce() -> Result<bool, Error>,
) -> Result<(), Error> {
    // A checkpoint that was made in memory has no file; then the blank image alone decides.
    if let Ok(checkpoint) = Checkpoint::open(weights, OpenOptions { allow_unmatched: true, ..OpenOptions::default() }) {
        checkpoint.check_finite()?;
    }
    match blank_is_finite()? {
        true => Ok(()),
        false => Err(Error::Overflow { path: weights.into(), output: output.into() }),
    }
}
