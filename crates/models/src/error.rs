//! Errors of models, configurations and checkpoints.

use std::path::PathBuf;

use vit_graph::GraphError;

use crate::weights::WeightsError;

/// An error with a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A name that no variant has.
    #[error("there is no model named `{name}`{}", hint(.suggestions))]
    UnknownModel {
        /// The name.
        name: String,
        /// Names that are close.
        suggestions: Vec<String>,
    },
    /// A configuration that cannot be understood.
    #[error("{}: {what}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A file that cannot be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
    /// A checkpoint folder without something it needs.
    #[error("{}: {what}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What is missing.
        what: String,
    },
    /// An image size that the model cannot have.
    #[error("{0}")]
    ImageSize(String),
    /// A patch size that the model cannot have.
    #[error("{0}")]
    PatchSize(String),
    /// Weights that do not match the model: one line for each tensor.
    #[error("the weights do not match the model:{0}")]
    Unmatched(String),
    /// Weights with NaN or infinity among them.
    #[error(
        "{}: {elements} of {of} elements of the parameter `{name}` are NaN or infinite; the file is damaged or its \
         training diverged, use another checkpoint",
        path.display()
    )]
    NonFinite {
        /// The weights file.
        path: PathBuf,
        /// The first parameter with such elements.
        name: String,
        /// How many of its elements are not finite.
        elements: usize,
        /// How many it has.
        of: usize,
    },
    /// A weights file that cannot be read or written.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A graph that cannot be built.
    #[error(transparent)]
    Graph(#[from] GraphError),
}

impl ModelError {
    /// The first lines about weights that do not match, and their number if there are more.
    pub(crate) fn unmatched(lines: &[String]) -> Self {
        let mut text = String::new();
        for line in lines.iter().take(12) {
            text.push_str("\n  ");
            text.push_str(line);
        }
        if lines.len() > 12 {
            text.push_str(&format!("\n  … {} in all", lines.len()));
        }
        ModelError::Unmatched(text)
    }
}

fn hint(suggestions: &[String]) -> String {
    if suggestions.is_empty() { String::new() } else { format!(" (did you mean {}?)", suggestions.join(", ")) }
}
