//! Errors as Python's exceptions, with the same sentences.

use std::io::ErrorKind;

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyFileExistsError, PyFileNotFoundError, PyPermissionError, PyValueError};
use pyo3::prelude::*;
use vit::Error as VitError;
use vit::models::ModelError;

create_exception!(vit, Error, PyException, "What the library could not do, in one sentence.");

/// An error of the library as the exception that a Python programmer expects.
pub fn exception(error: VitError) -> PyErr {
    exception_of(&error)
}

/// The same of an error that is raised more than once.
pub fn exception_of(error: &VitError) -> PyErr {
    let text = error.to_string();
    match (error, error.io_kind()) {
        (_, Some(ErrorKind::NotFound)) => PyFileNotFoundError::new_err(text),
        (_, Some(ErrorKind::PermissionDenied)) => PyPermissionError::new_err(text),
        (_, Some(ErrorKind::AlreadyExists)) => PyFileExistsError::new_err(text),
        (VitError::UnknownOutput { .. } | VitError::Length { .. } | VitError::NoWeights { .. }, _)
        | (VitError::Model(ModelError::UnknownModel { .. } | ModelError::ImageSize(_)), _) => {
            PyValueError::new_err(text)
        }
        _ => Error::new_err(text),
    }
}

/// An error of the library, of one image, or of Python, as KeyboardInterrupt.
pub enum Failure {
    Library(VitError),
    /// The image's name and its error.
    Image(String, VitError),
    Python(PyErr),
}

impl From<VitError> for Failure {
    fn from(error: VitError) -> Self {
        Failure::Library(error)
    }
}

impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Failure::Python(error)
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Library(error) => exception(error),
            Failure::Image(name, error) => Error::new_err(format!("{name}: {error}")),
            Failure::Python(error) => error,
        }
    }
}

/// Leaves panics of decoders, which become errors about their images, without a message of their own.
pub fn report_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !vit::data::catches_panics() {
            usual(panic);
        }
    }));
}
