//! Errors of explanations and inspections.

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::Method;

/// Why something could not be measured or shown.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum InsightError {
    /// An array whose length does not match its shape.
    #[error("{what}: {found} values, where {expected} are needed")]
    Length {
        /// What the array holds.
        what: &'static str,
        /// Its length.
        found: usize,
        /// The length that its shape requires.
        expected: usize,
    },
    /// A property that the model or the arrays lack.
    #[error("{0}")]
    Unsuitable(String),
    /// A method that cannot explain this model, and those that can.
    #[error("{method}: {reason}; use {instead}", instead = list(.instead))]
    Method {
        /// The method.
        method: Method,
        /// Why it cannot be used.
        reason: &'static str,
        /// Methods that suit the model.
        instead: &'static [Method],
    },
    /// Maps of chosen classes by a method that has none.
    #[error("{method} maps do not depend on the class; {instead} maps do", instead = list(.instead))]
    ClassIndependent {
        /// The method.
        method: Method,
        /// Methods that explain a class.
        instead: &'static [Method],
    },
    /// A graph or a device.
    #[error(transparent)]
    Graph(#[from] vit_graph::GraphError),
    /// A drawing.
    #[error(transparent)]
    Plot(#[from] vit_plot::PlotError),
    /// Preprocessing of an image.
    #[error("the model's preprocessing: {0}")]
    Preprocess(vit_data::PreprocessError),
    /// A file that could not be written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
}

impl From<vit_data::PreprocessError> for InsightError {
    fn from(error: vit_data::PreprocessError) -> Self {
        InsightError::Preprocess(error)
    }
}

impl InsightError {
    /// Adds the path to an I/O error.
    pub(crate) fn of(path: &Path) -> impl FnOnce(std::io::Error) -> InsightError {
        |error| InsightError::File { path: path.into(), error }
    }
}

/// `a, b or c`.
fn list(methods: &[Method]) -> String {
    let names: Vec<String> = methods.iter().map(Method::to_string).collect();
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, others)) => format!("{} or {last}", others.join(", ")),
        None => String::new(),
    }
}
