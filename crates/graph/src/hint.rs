//! Hints on what to do about an error, as data.

use std::fmt;

/// What a user can do about an error. Texts name no command-line options; front ends add theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hint {
    /// Take a smaller batch; which one fits is unknown.
    SmallerBatch,
    /// The largest batch that fits.
    BatchThatFits {
        /// The batch that did not fit.
        requested: usize,
        /// The batch that does.
        fits: usize,
    },
    /// Accumulate the gradients of several micro-batches.
    MicroBatches,
    /// Recompute activations in the backward pass instead of keeping them.
    RecomputeActivations,
    /// Take a smaller model or image size.
    SmallerModel,
    /// Close other programs that use memory of the host.
    FreeHostMemory,
    /// Close other programs that use memory of the GPU.
    FreeDeviceMemory,
    /// Use this device instead.
    Device(&'static str),
    /// Compute in this precision instead.
    Precision(&'static str),
    /// Lower the learning rate.
    LowerLearningRate,
    /// Skip the steps whose loss or gradients are not finite.
    SkipNonFinite,
    /// Report a defect of this library.
    Report,
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hint::SmallerBatch => f.write_str("take a smaller batch"),
            Hint::BatchThatFits { requested, fits } => {
                write!(f, "a batch of {fits} instead of {requested} would fit")
            }
            Hint::MicroBatches => f.write_str("split the batch into micro-batches"),
            Hint::RecomputeActivations => f.write_str("recompute activations in the backward pass"),
            Hint::SmallerModel => f.write_str("take a smaller model or image size"),
            Hint::FreeHostMemory => f.write_str("close other programs"),
            Hint::FreeDeviceMemory => f.write_str("close other programs that use the GPU"),
            Hint::Device(name) => write!(f, "use the device {name}"),
            Hint::Precision(name) => write!(f, "compute in {name}"),
            Hint::LowerLearningRate => f.write_str("lower the learning rate"),
            Hint::SkipNonFinite => f.write_str("skip steps that are not finite"),
            Hint::Report => f.write_str("please report this"),
        }
    }
}

/// Hints as the end of an error's sentence: `; a, b, or c`; empty without hints.
pub struct Hints<'a>(pub &'a [Hint]);

impl fmt::Display for Hints<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, hint) in self.0.iter().enumerate() {
            let before = match i {
                0 => "; ",
                _ if i + 1 < self.0.len() => ", ",
                1 => " or ",
                _ => ", or ",
            };
            write!(f, "{before}{hint}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_end_a_sentence() {
        let text = |hints: &[Hint]| Hints(hints).to_string();
        assert_eq!(text(&[]), "");
        assert_eq!(text(&[Hint::SmallerBatch]), "; take a smaller batch");
        assert_eq!(text(&[Hint::Device("cpu"), Hint::Report]), "; use the device cpu or please report this");
        assert_eq!(
            text(&[Hint::SmallerBatch, Hint::MicroBatches, Hint::RecomputeActivations]),
            "; take a smaller batch, split the batch into micro-batches, or recompute activations in the backward pass"
        );
    }
}
