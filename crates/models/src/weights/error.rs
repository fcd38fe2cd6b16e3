//! Errors of weights files. Every message names the tensor, shape or global at fault and, if there is one, the way out;
//! [`WeightsError::File`] adds the path.

use std::path::{Path, PathBuf};

use thiserror::Error;
use vit_system::host::FreeMemory;

/// Why weights could not be read, written or renamed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// An error and the file it is about.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: Box<WeightsError>,
    },
    /// The operating system refused.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The weights are larger than memory.
    #[error("its weights need {:.2} GB of memory, and {room}", *needed as f64 / 1e9)]
    Memory {
        /// Bytes that reading takes.
        needed: u64,
        /// Free memory.
        room: FreeMemory,
    },
    /// The content is none of the known formats.
    #[error("not a weights file: {guess}")]
    UnknownFormat {
        /// The likely format, and what to do.
        guess: &'static str,
    },
    /// The file violates its format.
    #[error("damaged or hostile {format} file: {what}")]
    Damaged {
        /// The format's name.
        format: &'static str,
        /// The violation, and where it is.
        what: String,
    },
    /// The file is valid but has an unsupported feature.
    #[error("{format}: {what}")]
    Unsupported {
        /// The format's name.
        format: &'static str,
        /// The unsupported feature, and the way out.
        what: String,
    },
    /// A pickle refers to a Python object that is not part of a tensor.
    #[error(
        "refused global `{global}`: nothing was executed. Only tensors are read from PyTorch checkpoints; in Python, \
         keep the state dict alone: torch.save(checkpoint['model'], 'weights.pt'), or write safetensors"
    )]
    RefusedGlobal {
        /// Module and name as the pickle gives them.
        global: String,
    },
    /// One tensor's values or element type cannot be used.
    #[error("tensor `{name}`: {what}")]
    Tensor {
        /// The tensor.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// A tensor has another shape than its name promises.
    #[error("tensor `{name}` has shape {found:?}, expected {expected}")]
    Shape {
        /// The tensor.
        name: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The expected shape.
        expected: String,
    },
    /// The number of values is not the product of the shape.
    #[error("{found} values do not fill shape {shape:?}")]
    Count {
        /// The shape.
        shape: Vec<usize>,
        /// How many values there are.
        found: usize,
    },
    /// A required tensor is missing.
    #[error("tensor `{name}` is missing")]
    Missing {
        /// Its name.
        name: String,
    },
    /// Two tensors claim the same name.
    #[error("two tensors are named `{name}`")]
    Duplicate {
        /// The name.
        name: String,
    },
}

impl WeightsError {
    /// The same error with the file named in front, once.
    pub(super) fn in_file(self, path: &Path) -> Self {
        match self {
            Self::File { .. } => self,
            error => Self::File { path: path.into(), error: Box::new(error) },
        }
    }

    pub(super) fn damaged(format: &'static str, what: impl Into<String>) -> Self {
        Self::Damaged { format, what: what.into() }
    }

    pub(crate) fn unsupported(format: &'static str, what: impl Into<String>) -> Self {
        Self::Unsupported { format, what: what.into() }
    }

    pub(crate) fn tensor(name: &str, what: impl Into<String>) -> Self {
        Self::Tensor { name: name.into(), what: what.into() }
    }

    pub(crate) fn shape(name: &str, found: &[usize], expected: impl Into<String>) -> Self {
        Self::Shape { name: name.into(), found: found.into(), expected: expected.into() }
    }
}
