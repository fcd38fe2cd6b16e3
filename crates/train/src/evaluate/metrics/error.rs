//! Errors of metrics.

/// An invalid batch, or evaluations that cannot be merged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MetricsError {
    /// The number of logits is not samples times classes.
    #[error("{samples} samples of {classes} classes have {} logits, {found} were given", samples * classes)]
    Logits {
        /// Labels given.
        samples: usize,
        /// Classes of the model.
        classes: usize,
        /// Logits given.
        found: usize,
    },
    /// The number of sample indices is not the number of labels.
    #[error("{labels} labels came with {indices} sample indices")]
    Indices {
        /// Labels given.
        labels: usize,
        /// Indices given.
        indices: usize,
    },
    /// A label that the model does not have.
    #[error("label {label} is not one of the model's {classes} classes")]
    Label {
        /// The label.
        label: u32,
        /// Classes of the model.
        classes: usize,
    },
    /// Evaluations with different numbers of classes.
    #[error("an evaluation of {other} classes cannot be added to one of {classes}")]
    Classes {
        /// Classes here.
        classes: usize,
        /// Classes there.
        other: usize,
    },
}
