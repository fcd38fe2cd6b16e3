//! Errors, with the module of the model that they occurred in.

use crate::hint::{Hint, Hints};

/// An error in building, transforming or running a graph.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// An operation does not accept its inputs.
    #[error("{op} in {scope}: {reason} (inputs {inputs})")]
    Shape {
        /// The operation, e.g. `linear`.
        op: &'static str,
        /// Where in the model, e.g. `blocks.3.attn`.
        scope: String,
        /// The shapes of the inputs.
        inputs: String,
        /// What is wrong with them.
        reason: String,
    },
    /// The loss is no scalar, or depends on a parameter through an operation that cannot be differentiated.
    #[error("no gradient through {op} in {scope}: {reason}")]
    Gradient {
        /// The operation.
        op: &'static str,
        /// Where in the model.
        scope: String,
        /// Why it cannot.
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
    /// An input or parameter does not have the declared type.
    #[error("`{name}` should be {expected} but {found} was given")]
    Mismatch {
        /// The name of the input or parameter.
        name: String,
        /// The declared type.
        expected: String,
        /// The actual type.
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
    /// The exchange with other processes failed.
    #[error("{0}")]
    Exchange(String),
    /// A graph needs more memory than is free.
    #[error("{device}: {what}{}", Hints(hints))]
    Memory {
        /// The device's name.
        device: &'static str,
        /// How much is needed for what, and how much is free.
        what: String,
        /// Ways to need less.
        hints: Vec<Hint>,
    },
}

impl GraphError {
    /// A device error without hints.
    pub fn device(device: &'static str, reason: impl Into<String>) -> Self {
        GraphError::Device { device, reason: reason.into(), hints: Vec::new() }
    }

    /// What can be done about the error.
    pub fn hints(&self) -> &[Hint] {
        match self {
            GraphError::Device { hints, .. } | GraphError::Memory { hints, .. } => hints,
            _ => &[],
        }
    }
}
