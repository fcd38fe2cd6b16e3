//! Errors, with their place in the model.

use crate::hint::{Hint, Hints};

/// An error in building, transforming or running a graph.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GraphError {
    /// The inputs of an operation do not fit it.
    #[error("{op} in {scope}: {reason} (inputs {inputs})")]
    Shape {
        /// The operation, e.g. `linear`.
        op: &'static str,
        /// Where in the model, e.g. `blocks.3.attn`.
        scope: String,
        /// The shapes of the inputs.
        inputs: String,
        /// What does not fit.
        reason: String,
    },
    /// An operation that cannot be differentiated was on the way from a loss to a parameter.
    #[error("no gradient through {op} in {scope}: {reason}")]
    Gradient {
        /// The operation.
        op: &'static str,
        /// Where in the model.
        scope: String,
        /// Why there is none.
        reason: String,
    },
    /// Two inputs, parameters or outputs share one name.
    #[error("the name `{0}` is used twice in one graph")]
    DuplicateName(String),
    /// A name that the graph does not have.
    #[error("the graph has no {kind} named `{name}`; it has: {known}")]
    UnknownName {
        /// `input`, `parameter`, `output` or `value`.
        kind: &'static str,
        /// The unknown name.
        name: String,
        /// The known names.
        known: String,
    },
    /// A value handed to a graph does not have the type that the graph declares.
    #[error("`{name}` should be {expected} but {found} was given")]
    Mismatch {
        /// The name of the input or parameter.
        name: String,
        /// The declared type.
        expected: String,
        /// What was given.
        found: String,
    },
    /// A device cannot run this graph.
    #[error("{device}: {reason}{}", Hints(hints))]
    Device {
        /// The device's name.
        device: &'static str,
        /// Why not.
        reason: String,
        /// What can be done about it.
        hints: Vec<Hint>,
    },
    /// A graph takes more memory than there is.
    #[error("{device}: {what}{}", Hints(hints))]
    Memory {
        /// The device's name.
        device: &'static str,
        /// How much is needed for what, and how much there is.
        what: String,
        /// What takes less.
        hints: Vec<Hint>,
    },
}

impl GraphError {
    /// A device's failure without a hint.
    pub fn device(device: &'static str, reason: impl Into<String>) -> Self {
        GraphError::Device { device, reason: reason.into(), hints: Vec::new() }
    }

    /// What can be done about the error, as far as it is known.
    pub fn hints(&self) -> &[Hint] {
        match self {
            GraphError::Device { hints, .. } | GraphError::Memory { hints, .. } => hints,
            _ => &[],
        }
    }
}
