//! Weights that a program has in memory.

use pyo3::prelude::*;
use pyo3::types::PyAnyMethods;
use vit::models::{Checkpoint, OpenOptions, Tensor, Weights};

use crate::array::ArrayView;
use crate::error::exception;
use crate::model::Model;
use crate::options::{self, ImageSize};

/// A model by name with the weights of a state dict: tensors of PyTorch, NumPy arrays, or anything with DLPack, under the names
/// of timm, torchvision, Hugging Face or JAX. It has as many classes as the weights have.
///
/// ```python
/// >>> import timm
/// >>> theirs = timm.create_model("vit_tiny_patch16_224", pretrained=True)
/// >>> model = vit.from_state_dict("vit_tiny_patch16_224", theirs.state_dict())
/// >>> model.save("vit_tiny")
/// ```
///
/// labels: the names of the classes. The other arguments are those of vit.open.
#[pyfunction]
#[pyo3(signature = (model, state_dict, *, labels=None, device="auto", precision="f32", threads=None, batch=None, image_size=None, allow_unmatched=false))]
#[allow(clippy::too_many_arguments)]
pub fn from_state_dict(
    py: Python<'_>,
    model: &str,
    state_dict: &Bound<'_, PyAny>,
    labels: Option<Vec<String>>,
    device: &str,
    precision: &str,
    threads: Option<usize>,
    batch: Option<usize>,
    image_size: Option<ImageSize>,
    allow_unmatched: bool,
) -> PyResult<Model> {
    let device = options::device(device, options::precision(precision)?, threads)?;
    let mut weights = Weights::default();
    for item in state_dict.call_method0("items")?.try_iter()? {
        let (name, value): (String, Bound<'_, PyAny>) = item?.extract()?;
        let array = ArrayView::converted(&on_the_host(&value)?)?;
        let tensor = Tensor::new(array.shape.clone(), array.floats()?.to_vec());
        let inserted = tensor.and_then(|tensor| weights.insert(name, tensor));
        inserted.map_err(|error| exception(error.into()))?;
    }
    let options =
        OpenOptions { allow_unmatched, image_size: image_size.map(ImageSize::sides), ..OpenOptions::default() };
    py.detach(|| {
        let mut checkpoint =
            Checkpoint::from_weights(model, weights, options).map_err(|error| exception(error.into()))?;
        if let Some(labels) = labels {
            let classes = checkpoint.config.architecture.classes();
            if labels.len() != classes {
                return Err(pyo3::exceptions::PyValueError::new_err(format!(
                    "there are {} labels, and the weights have {classes} classes",
                    labels.len()
                )));
            }
            checkpoint.config.labels = labels;
        }
        Model::new(checkpoint, device, batch)
    })
}

/// A tensor of PyTorch as an array: NumPy has no bfloat16, and knows nothing of gradients and GPUs.
fn on_the_host<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if !value.hasattr("detach")? {
        return Ok(value.clone());
    }
    value.call_method0("detach")?.call_method0("cpu")?.call_method0("float")?.call_method0("numpy")
}
