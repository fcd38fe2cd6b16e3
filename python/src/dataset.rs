//! Datasets as batches of arrays, for any training loop.

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use vit::Recipe;
use vit::data::{BatchOptions, Batches, EpochBatches, Preprocess, Samples, Split};

use crate::array;
use crate::error::exception;
use crate::options::ImageSize;

/// Opens a dataset as batches of images and labels: class folders, tar shards, WebDataset, Parquet, a table of paths, CIFAR or
/// MNIST files, "fractals:1000"; also in buckets.
///
/// ```python
/// >>> dataset = vit.load_dataset("shards/*.tar", batch=256, image_size=224, augment="deit")
/// >>> for images, labels in dataset:          # one epoch; the next one is shuffled anew
/// ...     loss = step(torch.from_numpy(images), torch.from_numpy(labels))
/// ```
///
/// images are float32 of shape [n, channels, height, width], labels int64 of shape [n]; of a dataset whose images have
/// several labels, float32 of shape [n, classes]. What is in a batch follows from the arguments, the epoch and the number of the
/// batch alone, whatever the number of threads. Images that cannot be read are replaced by others and listed in
/// dataset.unreadable; more than 5% of them are an error.
///
/// split: "train", "val" or "test"; by default the training split, if there are splits. model: a Model, whose size and
/// normalisation images get. image_size: by default the model's, or 224. augment: the name of a recipe, whose crops and colours
/// images get; by default the centre crop. epochs: in one iteration, None for no end. drop_last: leave out a last batch that is
/// smaller.
#[pyfunction]
#[pyo3(signature = (data, *, batch=32, split=None, model=None, image_size=None, augment=None, shuffle=true, seed=0, epochs=Some(1), drop_last=false, threads=None))]
#[allow(clippy::too_many_arguments)]
pub fn load_dataset(
    py: Python<'_>,
    data: PathBuf,
    batch: usize,
    split: Option<&str>,
    model: Option<&Bound<'_, crate::model::Model>>,
    image_size: Option<ImageSize>,
    augment: Option<&str>,
    shuffle: bool,
    seed: u64,
    epochs: Option<u64>,
    drop_last: bool,
    threads: Option<usize>,
) -> PyResult<Dataset> {
    let mut options = BatchOptions::new(batch);
    options.split = match split {
        None => None,
        Some(name) => Some(
            Split::from_name(name)
                .ok_or_else(|| PyValueError::new_err(format!("`{name}` is not a split; use train, val or test")))?,
        ),
    };
    options.preprocess = model.map_or_else(Preprocess::default, |model| model.get().preprocessing().clone());
    if let Some(size) = image_size {
        options.preprocess.image_size = size.sides();
    }
    if let Some(name) = augment {
        let recipe = Recipe::named(name).map_err(|error| PyValueError::new_err(error.to_string()))?;
        options.augmentation = recipe.augmentation();
    }
    (options.shuffle, options.seed, options.drop_last) = (shuffle, seed, drop_last);
    options.threads = threads.unwrap_or(0);
    if batch == 0 {
        return Err(PyValueError::new_err("batch is 0; give at least 1"));
    }
    let batches = py.detach(|| Batches::open(&data, &options)).map_err(exception)?;
    let name = data.display().to_string();
    Ok(Dataset { name, batches, batch, epochs, epoch: AtomicU64::new(0), unreadable: Mutex::default() })
}

/// A dataset as batches; made by vit.load_dataset.
#[pyclass(frozen, module = "vit")]
pub struct Dataset {
    name: String,
    batches: Batches,
    batch: usize,
    epochs: Option<u64>,
    /// Of the next iteration.
    epoch: AtomicU64,
    unreadable: Mutex<Vec<(String, String)>>,
}

#[pymethods]
impl Dataset {
    /// Batches of an epoch.
    fn __len__(&self) -> usize {
        self.batches.per_epoch() as usize
    }

    fn __iter__(slf: &Bound<'_, Self>) -> PyResult<DatasetIterator> {
        let (py, dataset) = (slf.py(), slf.get());
        let first = dataset.epoch.fetch_add(dataset.epochs.unwrap_or(1), Ordering::Relaxed);
        let batches = py.detach(|| dataset.batches.epochs(first, dataset.epochs)).map_err(exception)?;
        Ok(DatasetIterator { dataset: slf.clone().unbind(), batches: Mutex::new(batches) })
    }

    /// The epoch of the next iteration, from 0; set it to continue where another program stopped.
    #[getter]
    fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    #[setter]
    fn set_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Relaxed);
    }

    /// The names of the classes, which labels index.
    #[getter]
    fn labels(&self) -> Vec<String> {
        self.batches.samples().classes().to_vec()
    }

    /// The number of images.
    #[getter]
    fn images(&self) -> usize {
        self.batches.samples().len()
    }

    /// The images of the last iteration that could not be read, and why.
    #[getter]
    fn unreadable(&self) -> Vec<(String, String)> {
        self.unreadable.lock().map(|found| found.clone()).unwrap_or_default()
    }

    fn __repr__(&self) -> String {
        let (images, classes) = (self.images(), self.batches.samples().classes().len());
        let (batches, batch) = (self.batches.per_epoch(), self.batch);
        format!("Dataset({}: {images} images of {classes} classes, {batches} batches of {batch})", self.name)
    }
}

/// The batches of one iteration.
#[pyclass(frozen, module = "vit._vit")]
pub struct DatasetIterator {
    dataset: Py<Dataset>,
    batches: Mutex<EpochBatches>,
}

#[pymethods]
impl DatasetIterator {
    fn __iter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        py.check_signals()?;
        let dataset = self.dataset.get();
        let next = py.detach(|| {
            let mut batches = self.batches.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let next = batches.next();
            if let Ok(mut unreadable) = dataset.unreadable.lock() {
                *unreadable = batches.unreadable().map(|one| (one.name.clone(), one.reason.clone())).collect();
            }
            next
        });
        let Some(mut batch) = next.transpose().map_err(exception)? else { return Ok(None) };
        let (images, classes) = (batch.samples.len(), dataset.batches.samples().classes().len());
        let labels = match dataset.batches.has_single_labels() {
            true => array::integers(py, dataset.batches.labels(&batch))?,
            false => array::floats(py, vec![images, classes], std::mem::take(&mut batch.targets))?,
        };
        let Preprocess { image_size: [height, width], .. } = *dataset.batches.preprocess();
        let shape = vec![images, dataset.batches.preprocess().channels(), height, width];
        Ok(Some(PyTuple::new(py, [array::images(py, shape, batch)?, labels])?))
    }
}
