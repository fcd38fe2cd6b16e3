//! A model: classes, outputs and embeddings of images, explanations.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyList;
use vit::data::in_batches;
use vit::explain::{ExplainOptions, Method};
use vit::graph::Device;
use vit::models::{Checkpoint, Dtype, Layout, Preprocess};
use vit::{DeviceOptions, Explain, ModelOptions, Pool, PooledOutput, Prediction};

use crate::array;
use crate::error::{Failure, exception};
use crate::explanation::Explanation;
use crate::images::{Chunk, Images, Source};
use crate::options::{self, ImageSize};
use crate::progress::ImageProgress;

/// A model on a device.
///
/// It is opened by `vit.open`, `vit.from_state_dict` or `Run.model`. Images are paths, encoded bytes, Pillow's images, NumPy arrays of
/// uint8 in the order height, width, channels, or any buffer or tensor with DLPack like that; one, or any iterable of them.
/// Arrays of float32 in the order channels, height, width are taken as preprocessed already.
#[pyclass(frozen, module = "vit")]
pub struct Model {
    checkpoint: Checkpoint,
    device: Arc<dyn Device>,
    options: ModelOptions,
    /// Threads that decode images.
    threads: usize,
    compiled: Mutex<Compiled>,
}

/// What was compiled when it was first needed.
#[derive(Default)]
struct Compiled {
    by_output: HashMap<String, vit::Model>,
    explainer: Option<(Option<Method>, Explain)>,
}

/// Opens a model: a checkpoint folder, a weights file (.safetensors, .pt, .npz ...), the folder of a training run, or
/// "cifar10", the built-in model.
///
/// ```python
/// >>> model = vit.open("cifar10")
/// >>> model.classify("examples/images/dog.jpg")[0].label
/// 'dog'
/// >>> model = vit.open("vit_base", device="cuda", precision="bf16", batch=256)
/// ```
///
/// device: "auto" (a GPU if there is one), "cpu", "cuda" or "cuda:N". precision: "f32"; "tf32", "bf16", "f16" or "fp8" on a GPU,
/// "int8" on the CPU. threads: of the CPU, by default all cores. batch: images in one run, by default 8, on a GPU 64.
/// image_size: a number, or (height, width), if not the weights'. allow_unmatched: initialise what the weights lack.
#[pyfunction]
#[pyo3(signature = (model, *, device="auto", precision="f32", threads=None, batch=None, image_size=None, allow_unmatched=false))]
#[allow(clippy::too_many_arguments)]
pub fn open(
    py: Python<'_>,
    model: PathBuf,
    device: &str,
    precision: &str,
    threads: Option<usize>,
    batch: Option<usize>,
    image_size: Option<ImageSize>,
    allow_unmatched: bool,
) -> PyResult<Model> {
    let device = options::device(device, options::precision(precision)?, threads)?;
    let mut options = ModelOptions::new().device(device).allow_unmatched(allow_unmatched);
    options.image_size = image_size.map(ImageSize::sides);
    py.detach(|| {
        let checkpoint = vit::open_checkpoint(&model, &options).map_err(exception)?;
        let checkpoint = checkpoint.into_image_tower().map_err(|error| exception(error.into()))?;
        Model::new(checkpoint, device, batch)
    })
}

/// Images in one run of a model, if not chosen.
const BATCH: usize = 8;
const GPU_BATCH: usize = 64;

impl Model {
    pub fn new(checkpoint: Checkpoint, device: DeviceOptions, batch: Option<usize>) -> PyResult<Model> {
        let opened = device.open().map_err(exception)?;
        let batch = match batch {
            Some(0) => return Err(PyValueError::new_err("batch is 0; give at least 1")),
            Some(batch) => batch,
            None if opened.name() == "cpu" => BATCH,
            None => GPU_BATCH,
        };
        // A single image does not cost as much as a batch.
        let options = ModelOptions::new().device(device).batches([1, batch]);
        let (threads, compiled) = (options::threads(device.threads), Mutex::default());
        Ok(Model { checkpoint, device: opened, options, threads, compiled })
    }

    fn compiled(&self) -> MutexGuard<'_, Compiled> {
        // What is in there is complete or absent.
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model with one output.
    fn with_output<'a>(&self, compiled: &'a mut Compiled, output: &str) -> Result<&'a mut vit::Model, vit::Error> {
        match compiled.by_output.entry(output.into()) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(place) => {
                let options = self.options.clone().output(output);
                Ok(place.insert(vit::Model::of(&self.checkpoint, self.device.as_ref(), &options)?))
            }
        }
    }

    /// Gives the output of every image to `take`, in order, and returns whether there was one image alone.
    fn run(
        &self,
        images: &Bound<'_, PyAny>,
        output: &str,
        progress: Option<bool>,
        mut take: impl FnMut(Vec<f32>) + Send,
    ) -> PyResult<bool> {
        let py = images.py();
        let mut images = Images::of(images)?;
        let (one, mut progress) = (images.is_one(), ImageProgress::new(py, progress, images.total())?);
        let preprocess = self.preprocessing();
        let mut ended = Ok(());
        while let Some(chunk) = images.next()? {
            ended = py.detach(|| {
                let mut compiled = self.compiled();
                let model = self.with_output(&mut compiled, output)?;
                let batch = model.batch();
                let run = |images: &[&[f32]]| -> Result<(), Failure> {
                    for (number, values) in model.finite_outputs(output, images)?.into_iter().enumerate() {
                        let name = || format!("images[{}]", progress.done() + number);
                        take(values.map_err(|error| Failure::Image(name(), error))?);
                    }
                    Ok(Python::attach(|py| progress.add(py, images.len()))?)
                };
                self.each_batch(&chunk, preprocess, batch, run)
            });
            if ended.is_err() {
                break;
            }
        }
        progress.finish(py)?;
        ended?;
        Ok(one)
    }

    /// Prepares images on worker threads and gives them to `run`, a batch at a time.
    fn each_batch(
        &self,
        chunk: &Chunk,
        preprocess: &Preprocess,
        batch: usize,
        mut run: impl FnMut(&[&[f32]]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        match chunk {
            Chunk::Prepared(array) => {
                let each: usize = array.shape[1..].iter().product();
                self.check_input(&array.shape[1..])?;
                let rows: Vec<&[f32]> = array.floats()?.chunks_exact(each.max(1)).collect();
                rows.chunks(batch).try_for_each(run)
            }
            Chunk::Sources(sources) => {
                let prepare = |source: &Source| source.prepare(preprocess);
                in_batches(sources, batch, self.threads, prepare, |prepared| {
                    run(&prepared.iter().map(Vec::as_slice).collect::<Vec<_>>())
                })
            }
        }
    }

    /// Refuses a preprocessed batch of another shape than the model's input.
    fn check_input(&self, shape: &[usize]) -> Result<(), Failure> {
        let [height, width] = self.preprocessing().image_size;
        let expected = [self.preprocessing().channels(), height, width];
        match shape == expected {
            true => Ok(()),
            false => Err(Failure::Python(PyValueError::new_err(format!(
                "the images are float32 of shape {shape:?} each, and the model takes {expected:?}; to have images preprocessed, \
                 give uint8 of shape [height, width, 3]"
            )))),
        }
    }

    pub fn preprocessing(&self) -> &Preprocess {
        &self.checkpoint.config.preprocessing
    }

    /// An array of the values of all images, `[images, …]`, or of the one image, `[…]`.
    fn array<'py>(py: Python<'py>, one: bool, each: &[usize], values: Vec<f32>) -> PyResult<Bound<'py, PyAny>> {
        let count = values.len() / each.iter().product::<usize>().max(1);
        let shape = if one { each.to_vec() } else { [&[count], each].concat() };
        array::floats(py, shape, values)
    }

    /// The shape of one image's output.
    fn shape_of(&self, output: &str) -> Result<Vec<usize>, vit::Error> {
        let mut compiled = self.compiled();
        let model = self.with_output(&mut compiled, output)?;
        Ok(match model.outputs() {
            [(_, shape)] if shape.first() == Some(&model.batch()) => shape[1..].to_vec(),
            // Several rows of the first extent are one image's.
            [(_, shape), ..] => {
                let mut shape = shape.clone();
                shape[0] /= model.batch();
                shape
            }
            [] => Vec::new(),
        })
    }

    fn class(&self, class: &Bound<'_, PyAny>) -> PyResult<usize> {
        if let Ok(index) = class.extract::<usize>() {
            return Ok(index);
        }
        let name: String =
            class.extract().map_err(|_| PyTypeError::new_err("a class is given by its name or its index in labels"))?;
        let found = self.checkpoint.config.labels.iter().position(|label| *label == name);
        found.ok_or_else(|| {
            PyValueError::new_err(format!("the model has no class `{name}`; model.labels has their names"))
        })
    }
}

#[pymethods]
impl Model {
    /// The logits of images, float32 of shape [n, classes]; [classes] for one image that is not in a list.
    ///
    /// ```python
    /// >>> logits = model(["cat.jpg", "dog.jpg"])
    /// >>> logits.shape
    /// (2, 10)
    /// >>> model(batch, output="blocks.5.attn.weights").shape     # any named intermediate
    /// (2, 4, 64, 64)
    /// ```
    #[pyo3(signature = (images, *, output="logits", progress=None))]
    fn __call__<'py>(
        &self,
        images: &Bound<'py, PyAny>,
        output: &str,
        progress: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = images.py();
        let each = py.detach(|| self.shape_of(output)).map_err(exception)?;
        let mut values = Vec::new();
        let one = self.run(images, output, progress, |row| values.extend(row))?;
        Self::array(py, one, &each, values)
    }

    /// The likeliest classes, each a Prediction(label, probability, index): a list for one image, a list of lists for several.
    ///
    /// ```python
    /// >>> model.classify("dog.jpg", top=2)
    /// [Prediction(label='dog', probability=0.9998..., index=5), Prediction(label='cat', probability=0.0001..., index=3)]
    /// ```
    #[pyo3(signature = (images, top=5, *, progress=None))]
    fn classify<'py>(
        &self,
        images: &Bound<'py, PyAny>,
        top: usize,
        progress: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = images.py();
        let mut all = Vec::new();
        let config = &self.checkpoint.config;
        let one = self.run(images, "logits", progress, |row| all.push(Prediction::likeliest(config, &row, top)))?;
        let class = prediction_class(py)?;
        let of_image = |predictions: Vec<Prediction>| {
            let tuples = predictions.into_iter().map(|p| class.call1((p.label, p.probability, p.class)));
            PyList::new(py, tuples.collect::<PyResult<Vec<_>>>()?)
        };
        if one {
            let Some(predictions) = all.pop() else { return Ok(PyList::empty(py).into_any()) };
            return Ok(of_image(predictions)?.into_any());
        }
        let lists = all.into_iter().map(of_image).collect::<PyResult<Vec<_>>>()?;
        Ok(PyList::new(py, lists)?.into_any())
    }

    /// Embeddings of images, float32 of shape [n, dim]; [dim] for one image that is not in a list.
    ///
    /// ```python
    /// >>> vectors = model.embed(pathlib.Path("photos").glob("*.jpg"), normalise=True, progress=True)
    /// >>> similarities = vectors @ vectors.T
    /// ```
    ///
    /// pool: "features" (the input of the head), "class" (the class token), "mean" (of the patches) or "patches" (each of them:
    /// [n, patches, dim]). normalise: every vector to length 1. progress: always or never show it; by default where somebody
    /// watches, if it takes long.
    #[pyo3(signature = (images, *, pool="features", normalise=false, progress=None))]
    fn embed<'py>(
        &self,
        images: &Bound<'py, PyAny>,
        pool: &str,
        normalise: bool,
        progress: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = images.py();
        let pool: Pool = pool.parse().map_err(PyValueError::new_err)?;
        let pooled = PooledOutput::new(&self.checkpoint.config.architecture, pool).map_err(exception)?;
        let output = py.detach(|| self.shape_of(pooled.output)).map_err(exception)?;
        let each = pooled.shape(&[&[1], &output[..]].concat());
        let (dim, mut values) = (each.last().copied().unwrap_or(1), Vec::new());
        let one = self.run(images, pooled.output, progress, |row| {
            values.extend(pooled.embedding(&row, dim, normalise));
        })?;
        Self::array(py, one, &each, values)
    }

    /// What the model's answer depends on: an Explanation with maps over the image; a list of them for several images.
    ///
    /// ```python
    /// >>> explanation = model.explain("dog.jpg", top=1)
    /// >>> explanation.show()                  # in Jupyter, the last line of a cell shows it, too
    /// >>> explanation.map.shape               # the first map
    /// (8, 8)
    /// ```
    ///
    /// method: "rollout" (attention), "gradient" (rollout for a class), "gradcam", "attention" (of the last layer); by default what
    /// suits the model. top: the likeliest classes that get a map each. classes: these instead, by name or index.
    #[pyo3(signature = (images, *, method=None, top=1, classes=None))]
    fn explain<'py>(
        &self,
        images: &Bound<'py, PyAny>,
        method: Option<&str>,
        top: usize,
        classes: Option<Vec<Bound<'py, PyAny>>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = images.py();
        let method: Option<Method> = method.map(str::parse).transpose().map_err(PyValueError::new_err)?;
        let classes =
            classes.unwrap_or_default().iter().map(|class| self.class(class)).collect::<PyResult<Vec<_>>>()?;
        let mut images = Images::of(images)?;
        let (one, mut found) = (images.is_one(), Vec::new());
        while let Some(chunk) = images.next()? {
            let Chunk::Sources(sources) = chunk else { return Err(prepared()) };
            if sources.iter().any(Source::is_prepared) {
                return Err(prepared());
            }
            for source in sources {
                found.push(py.detach(|| self.explain_one(&source, method, top, &classes))?);
                py.check_signals()?;
            }
        }
        match (one, found.pop()) {
            (true, Some(explanation)) => Ok(Bound::new(py, explanation)?.into_any()),
            (_, last) => Ok(PyList::new(
                py,
                found.into_iter().chain(last).map(|one| Bound::new(py, one)).collect::<PyResult<Vec<_>>>()?,
            )?
            .into_any()),
        }
    }

    /// Images as the model takes them: float32 of shape [n, channels, height, width], resized, cropped and normalised.
    fn preprocess<'py>(&self, images: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = images.py();
        let mut images = Images::of(images)?;
        let (one, preprocess) = (images.is_one(), self.preprocessing());
        let mut progress = ImageProgress::new(py, Some(false), None)?;
        let mut values: Vec<f32> = Vec::new();
        while let Some(chunk) = images.next()? {
            py.detach(|| {
                self.each_batch(&chunk, preprocess, self.options.batch, |rows| {
                    rows.iter().for_each(|row| values.extend_from_slice(row));
                    Ok(Python::attach(|py| progress.add(py, rows.len()))?)
                })
            })?;
        }
        let [height, width] = preprocess.image_size;
        Self::array(py, one, &[preprocess.channels(), height, width], values)
    }

    /// Writes the model as a checkpoint folder, which timm opens, too.
    fn save(&self, py: Python<'_>, folder: PathBuf) -> PyResult<()> {
        let saved = py.detach(|| self.checkpoint.save(&folder, Layout::Timm, Dtype::F32));
        saved.map_err(|error| exception(error.into()))
    }

    /// The names of the classes; empty if the model does not name them.
    #[getter]
    fn labels(&self) -> Vec<String> {
        self.checkpoint.config.labels.clone()
    }

    /// The number of classes; 0 for a model without a head.
    #[getter]
    fn classes(&self) -> usize {
        self.checkpoint.config.architecture.classes()
    }

    /// Height and width of the model's input.
    #[getter]
    fn image_size(&self) -> (usize, usize) {
        let [height, width] = self.checkpoint.config.architecture.image_size();
        (height, width)
    }

    /// The name of the architecture, as timm has it; None for one without a name.
    #[getter]
    fn name(&self) -> Option<String> {
        self.checkpoint.config.name.clone()
    }

    /// Where the weights are from.
    #[getter]
    fn source(&self) -> String {
        self.checkpoint.source.display().to_string()
    }

    /// The device: "cpu" or "cuda:0".
    #[getter]
    fn device(&self) -> String {
        self.device.id()
    }

    /// The precision in which it computes.
    #[getter]
    fn precision(&self) -> String {
        self.options.device.precision.to_string()
    }

    /// Images in one run, at most.
    #[getter]
    fn batch(&self) -> usize {
        self.options.batch
    }

    /// What was changed to adapt the weights, one line each.
    #[getter]
    fn report(&self) -> Vec<String> {
        self.checkpoint.report.clone()
    }

    fn __repr__(&self) -> String {
        let (config, [height, width]) = (&self.checkpoint.config, self.checkpoint.config.architecture.image_size());
        let name = config.name.clone().unwrap_or_else(|| config.architecture.kind().into());
        let (classes, device) = (config.architecture.classes(), self.device.description());
        let (source, precision) = (self.checkpoint.source.display(), self.options.device.precision);
        format!("Model({name} from {source}: {height}x{width}, {classes} classes, {precision} on {device})")
    }
}

impl Model {
    fn explain_one(
        &self,
        source: &Source,
        method: Option<Method>,
        top: usize,
        classes: &[usize],
    ) -> Result<Explanation, Failure> {
        let image = source.image()?.into_owned();
        let mut compiled = self.compiled();
        let mut explainer = match compiled.explainer.take() {
            Some((known, explainer)) if known == method => explainer,
            _ => {
                let options = ExplainOptions { method, ..ExplainOptions::default() };
                Explain::of(&self.checkpoint, self.device.as_ref(), &options, &self.options.clone().batch(1))?
            }
        };
        let found = explainer.choose_classes(top, classes).and_then(|()| explainer.explain(&image));
        let name = self.checkpoint.config.name.clone().unwrap_or_default();
        let explanation = found.and_then(|found| Explanation::new(&explainer, source.title(), name, image, found));
        compiled.explainer = Some((method, explainer));
        Ok(explanation?)
    }
}

fn prepared() -> PyErr {
    PyValueError::new_err("maps are drawn over images; give them as files, bytes, Pillow's images or arrays of uint8")
}

/// `vit.Prediction`, a named tuple.
fn prediction_class(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let class = CLASS.get_or_try_init(py, || Ok::<_, PyErr>(py.import("vit")?.getattr("Prediction")?.unbind()))?;
    Ok(class.bind(py))
}
