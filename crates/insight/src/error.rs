//! What can go wrong while looking into a model.

use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why something could not be measured or shown.
#[derive(Debug, Error)]
pub enum InsightError {
    /// Numbers that do not have the shape claimed.
    #[error("{what}: {found} values, where {expected} are needed")]
    Length {
        /// What they should be.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there should be.
        expected: usize,
    },
    /// Something that this model or these numbers do not have.
    #[error("{0}")]
    Unsuitable(String),
    /// A graph or a device.
    #[error(transparent)]
    Graph(#[from] vit_graph::GraphError),
    /// A drawing.
    #[error(transparent)]
    Plot(#[from] vit_plot::PlotError),
    /// A picture's preparation.
    #[error("the model's preprocessing: {0}")]
    Preprocess(#[from] vit_data::PreprocessError),
    /// A file that could not be written.
    #[error("{path}: {error}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
}

impl InsightError {
    /// An error of the system about a file.
    pub(crate) fn of(path: &Path) -> impl FnOnce(std::io::Error) -> InsightError {
        |error| InsightError::File { path: path.into(), error }
    }
}
