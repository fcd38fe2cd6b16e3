//! Export to ONNX, for runtimes such as ONNX Runtime and OpenVINO.
//!
//! The file has the graph of inference for a batch of any size, as standard operators of opset 17. What depends on parameters
//! alone is computed here: folded batch norms, standardised filters, tables of relative positions.
//!
//! ```
//! use vit_models::onnx::{Options, export};
//! use vit_models::{Checkpoint, OpenOptions};
//!
//! let folder = tempfile::tempdir()?;
//! let checkpoint = Checkpoint::open("cifar10".as_ref(), OpenOptions::default())?;
//! let exported = export(checkpoint, &folder.path().join("cifar10.onnx"), Options::default())?;
//! assert_eq!((exported.input, exported.output), ("pixel_values", "logits"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod batch;
mod constants;
mod metadata;
mod model;
mod operators;
mod protobuf;
mod translation;

use std::path::{Path, PathBuf};

use vit_graph::rewrite::{eliminate_dead_code, eliminate_dead_tokens, fold_batch_norm, fold_layer_scale};
use vit_graph::{Graph, GraphError, Value};
use vit_preprocess::{Preprocess, PreprocessError};

use crate::clip::{Clip, PairExtents, TextPooling};
use crate::vit::Vit;
use crate::{Architecture, Checkpoint, Mode};
use batch::{BatchGraph, Extent};
use model::{Attribute, Element, Port};
use translation::Translation;

/// How a model is exported.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// The precision of weights and activations; the output is f32.
    pub precision: Precision,
    /// The input is bytes `[batch, height, width, channels]`, which the graph scales and normalises, instead of floats
    /// `[batch, channels, height, width]` that are normalised already.
    pub preprocess: bool,
    /// The tower of an image-text model.
    pub tower: Tower,
}

/// A tower of an image-text model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Tower {
    #[default]
    Image,
    Text,
}

/// The precision of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Precision {
    /// 32-bit floats.
    #[default]
    F32,
    /// 16-bit floats with 5 exponent bits; small differences and sums of squares stay in f32.
    F16,
}

/// An exported model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// The name of its input.
    pub input: &'static str,
    /// The name of its output: `logits`, or `embedding` of a tower or a model without classes.
    pub output: &'static str,
    /// The name of the output in the model's graph.
    pub source: &'static str,
    /// The version of the operator set.
    pub opset: i64,
    /// Nodes of the graph.
    pub nodes: usize,
    /// The file with the tensors, of a model that is too large for one file.
    pub beside: Option<PathBuf>,
}

/// An export that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OnnxError {
    /// An operation that has no translation.
    #[error("the operation `{operation}` in {scope} cannot be exported to ONNX")]
    Operation {
        /// The operation.
        operation: &'static str,
        /// Where in the model.
        scope: String,
    },
    /// A model that is not the same for each sample.
    #[error("{scope} cannot be exported to ONNX: {what} depend on the batch size in an unusual way")]
    Batch {
        /// Where in the model.
        scope: String,
        /// What depends on it.
        what: String,
    },
    /// A model that embeds images only.
    #[error("this model has no text tower")]
    NoTextTower,
    /// A parameter without weights of its shape.
    #[error("the weights have no `{name}` of the model's shape")]
    Parameter {
        /// The parameter.
        name: String,
    },
    /// Preprocessing that cannot be part of the graph.
    #[error("the model's preprocessing: {0}")]
    Preprocess(#[from] PreprocessError),
    /// A graph that cannot be built.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A file that cannot be written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: std::io::Error,
    },
}

/// Writes a model as an ONNX file.
pub fn export(checkpoint: Checkpoint, path: &Path, options: Options) -> Result<Exported, OnnxError> {
    let Checkpoint { config, weights, .. } = checkpoint;
    let part = Part::of(&config.architecture, options.tower)?;
    let source = part.source();
    let graph = BatchGraph::new(|batch| {
        let mut graph = part.build(batch)?;
        graph.output(source)?;
        graph.retain_outputs(|name| name == source);
        Ok(simplified(&graph)?)
    })?;
    let mut translation = Translation::new(&graph, weights, options.precision)?;
    let input = match &part {
        Part::Images(_) if options.preprocess => translation.bytes(&config.preprocessing)?,
        Part::Images(_) => translation.image()?,
        Part::Texts(clip) => translation.ids(clip.text.pooling)?,
    };
    translation.operators()?;
    let output = if source == LOGITS { LOGITS } else { "embedding" };
    translation.output(output, graph.graph().output(source)?)?;
    let mut model = translation.model;
    model.name = config.name.clone().unwrap_or_else(|| config.architecture.kind().into());
    model.metadata = metadata::metadata(&config, options);
    model.remove_unused();
    let beside = model.write(path).map_err(|error| OnnxError::Io { path: path.into(), error })?;
    Ok(Exported { input, output, source, opset: model::OPSET, nodes: model.nodes.len(), beside })
}

const LOGITS: &str = "logits";

/// The part of a model that is exported.
enum Part {
    /// From images to logits or an embedding.
    Images(Architecture),
    /// From texts to an embedding.
    Texts(Box<Clip>),
}

impl Part {
    fn of(architecture: &Architecture, tower: Tower) -> Result<Self, OnnxError> {
        match (architecture.downcast_ref::<Clip>(), tower) {
            (Some(clip), Tower::Image) => Ok(Part::Images(clip.image.clone().into())),
            (Some(clip), Tower::Text) => Ok(Part::Texts(Box::new(clip.clone()))),
            (None, Tower::Image) => Ok(Part::Images(architecture.clone())),
            (None, Tower::Text) => Err(OnnxError::NoTextTower),
        }
    }

    fn build(&self, batch: usize) -> Result<Graph, GraphError> {
        match self {
            Part::Images(model) => model.build(batch, Mode::Inference),
            Part::Texts(clip) => {
                clip.build_pairs(PairExtents { images: 1, texts: batch, masked: false }, Mode::Inference)
            }
        }
    }

    /// The output of the graph.
    fn source(&self) -> &'static str {
        match self {
            Part::Images(model) if model.classes() > 0 => LOGITS,
            Part::Images(model) if model.downcast_ref::<Vit>().is_some_and(|vit| vit.embedding.is_some()) => {
                "image_embeds"
            }
            Part::Images(_) => "features",
            Part::Texts(_) => "text_embeds",
        }
    }
}

/// Fewer and cheaper operations.
fn simplified(graph: &Graph) -> Result<Graph, GraphError> {
    let graph = fold_batch_norm(&eliminate_dead_code(graph)?)?;
    let graph = eliminate_dead_tokens(&fold_layer_scale(&graph)?)?;
    eliminate_dead_code(&graph)
}

impl Translation<'_> {
    /// An input of the graph and its shape.
    fn graph_input(&self, name: &str) -> Option<Value> {
        let mut inputs = self.graph.graph().inputs();
        inputs.find(|(_, input)| input.name == name).map(|(node, _)| Value { node, output: 0 })
    }

    /// The same where there must be one.
    fn needed_input(&self, name: &str) -> Result<(Value, Vec<Extent>), OnnxError> {
        let known = || self.graph.graph().inputs().map(|(_, input)| input.name.as_str()).collect::<Vec<_>>().join(", ");
        let unknown = || GraphError::UnknownName { kind: "input", name: name.into(), known: known() };
        let value = self.graph_input(name).ok_or_else(unknown)?;
        Ok((value, self.shape(value)?))
    }

    /// The input of prepared images.
    fn image(&mut self) -> Result<&'static str, OnnxError> {
        const NAME: &str = "pixel_values";
        let (image, shape) = self.needed_input("image")?;
        let x = self.input(Port { name: NAME.into(), element: Element::F32, shape });
        let x = self.narrow(&x);
        self.set_plain(image.node, x);
        Ok(NAME)
    }

    /// The input of bytes, scaled and normalised.
    fn bytes(&mut self, preprocess: &Preprocess) -> Result<&'static str, OnnxError> {
        const NAME: &str = "pixels";
        preprocess.validate()?;
        let (image, shape) = self.needed_input("image")?;
        let shape = [0, 2, 3, 1].map(|axis| shape[axis]).to_vec();
        let x = self.input(Port { name: NAME.into(), element: Element::U8, shape });
        let x = self.transpose(&x, &[0, 3, 1, 2]);
        let x = self.cast(&x, self.element());
        let channels = preprocess.mean.iter().zip(&preprocess.std);
        let (scale, shift): (Vec<f32>, Vec<f32>) =
            channels.map(|(mean, std)| ((1.0 / (255.0 * f64::from(*std))) as f32, -mean / std)).unzip();
        let per_channel = [scale.len(), 1, 1];
        let (scale, shift) = (self.floats("scale", &per_channel, scale), self.floats("shift", &per_channel, shift));
        let x = self.add("Mul", &[&x, &scale]);
        let x = self.add("Add", &[&x, &shift]);
        self.set_plain(image.node, x);
        Ok(NAME)
    }

    /// The input of texts. The place of the pooled token, an input of the graph where it depends on the text, is computed.
    fn ids(&mut self, pooling: TextPooling) -> Result<&'static str, OnnxError> {
        const NAME: &str = "input_ids";
        let (ids, shape) = self.needed_input("ids")?;
        let context = self.extents(ids)[1] as i64;
        let x = self.input(Port { name: NAME.into(), element: Element::I64, shape });
        self.set_plain(ids.node, x.clone());
        let Some(ends) = self.graph_input("ends") else { return Ok(NAME) };
        let highest = match pooling {
            TextPooling::Id(id) => {
                let id = self.integers(&[id.into()]);
                self.add("Equal", &[&x, &id])
            }
            _ => x.clone(),
        };
        // The first of the highest; not every runtime finds that of integers. Ids are exact in f32.
        let highest = self.cast(&highest, Element::F32);
        let first = vec![Attribute::Int("axis", 1), Attribute::Int("keepdims", 0)];
        let place = self.add_with("ArgMax", &[&highest], first);
        // Tokens of all texts are rows of one table.
        let [zero, one] = [0, 1].map(|n| self.integer(n));
        let (extents, context) = (self.add("Shape", &[&x]), self.integer(context));
        let texts = self.add_with("Gather", &[&extents, &zero], vec![Attribute::Int("axis", 0)]);
        let text = self.add("Range", &[&zero, &texts, &one]);
        let start = self.add("Mul", &[&text, &context]);
        let row = self.add("Add", &[&start, &place]);
        self.set_plain(ends.node, row);
        Ok(NAME)
    }
}
