//! One error for everything that this crate does. Its text is complete: it includes the cause, and names no option of any
//! program.

use std::io::ErrorKind;
use std::path::PathBuf;

#[cfg(feature = "train")]
use vit_data::FilesError;
use vit_data::ImageError;
#[cfg(feature = "train")]
use vit_data::{LoaderError, dataset::DatasetError};
use vit_graph::Precision;
use vit_models::ModelError;
use vit_models::weights::WeightsError;

/// What went wrong.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A model, its configuration or its checkpoint.
    #[error(transparent)]
    Model(#[from] vit_models::ModelError),
    /// A weights file.
    #[error(transparent)]
    Weights(#[from] vit_models::weights::WeightsError),
    /// An export to ONNX.
    #[error(transparent)]
    Onnx(#[from] vit_models::onnx::OnnxError),
    /// A comparison with other runtimes, none of which is installed.
    #[error(
        "no runtime to check the file with is installed: python3 can import neither onnxruntime nor openvino; `pip install \
         onnxruntime` installs one"
    )]
    NoRuntime,
    /// A graph or a device.
    #[error(transparent)]
    Graph(#[from] vit_graph::GraphError),
    /// A training run.
    #[cfg(feature = "train")]
    #[error(transparent)]
    Train(#[from] vit_train::TrainError),
    /// An explanation or an inspection.
    #[cfg(feature = "explain")]
    #[error(transparent)]
    Insight(#[from] vit_insight::InsightError),
    /// An image that cannot be read.
    #[error(transparent)]
    Image(#[from] vit_data::ImageError),
    /// A dataset that cannot be opened.
    #[cfg(feature = "train")]
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// Images that cannot be loaded.
    #[cfg(feature = "train")]
    #[error(transparent)]
    Loader(#[from] LoaderError),
    /// A model that does not exist.
    #[error("{}: no such file or folder; give {MODEL_FORMS}", path.display())]
    NoModel {
        /// What was given.
        path: PathBuf,
    },
    /// The name of an architecture where a model with weights is needed.
    #[error("`{name}` is an architecture without weights; give {MODEL_FORMS}")]
    NoWeights {
        /// The name.
        name: String,
    },
    /// Preprocessing that cannot be done.
    #[error("the model's preprocessing: {0}")]
    Preprocess(vit_data::PreprocessError),
    /// A device that cannot be opened.
    #[error("{device} cannot be used: {reason}")]
    Device {
        /// The device: `cuda:0`.
        device: String,
        /// Why not.
        reason: String,
    },
    /// A precision that the device or the task does not have.
    #[error("{precision} {reason}")]
    Precision {
        /// The precision.
        precision: Precision,
        /// Why not, after the precision's name.
        reason: String,
    },
    /// A model without a classification head, which has features but no logits.
    #[error("this model has no classification head")]
    NoHead,
    /// A model without a class token to read the embedding from.
    #[error("this model has no class token")]
    NoClassToken,
    /// A model that embeds images only.
    #[error("this model has no text tower")]
    NoTextTower,
    /// A text tower without a tokeniser.
    #[error(
        "{}: there is no tokenizer.json, and CLIP's tokeniser does not suit a vocabulary of {vocabulary} tokens; put the \
         model's tokenizer.json there",
        folder.display()
    )]
    NoTokeniser {
        /// The model's folder.
        folder: PathBuf,
        /// Tokens of its vocabulary.
        vocabulary: usize,
    },
    /// A tokeniser that cannot be read, or a text that it refuses.
    #[cfg(feature = "text")]
    #[error(transparent)]
    Tokenise(#[from] vit_data::tokenise::TokeniseError),
    /// A text of more tokens than the model reads.
    #[error("the text `{}` has {tokens} tokens, and the model reads at most {context}; shorten it", shortened(.text))]
    TextLength {
        /// The text.
        text: String,
        /// Its tokens.
        tokens: usize,
        /// The most that the model reads.
        context: usize,
    },
    /// A list of labels that is empty.
    #[error("there are no labels")]
    NoLabels,
    /// A template without a place for the label.
    #[error("the template `{template}` has no {{}} where the label goes")]
    Template {
        /// The template.
        template: String,
    },
    /// A text whose embedding is NaN or infinite.
    #[error("the embedding of the text `{}` is NaN or infinite; use a more precise number format, such as f32", shortened(.text))]
    NonFiniteText {
        /// The text.
        text: String,
    },
    /// An output that the model does not have.
    #[error(
        "the model has no output `{name}`; it has {}, and intermediates {}",
        outputs.join(", "),
        intermediates.join(", ")
    )]
    UnknownOutput {
        /// The name.
        name: String,
        /// The outputs.
        outputs: Vec<String>,
        /// The named intermediates, which can be requested as well.
        intermediates: Vec<String>,
    },
    /// An output that was not requested when the model was opened.
    #[error("the output `{name}` was not requested; there are {}", requested.join(", "))]
    NotRequested {
        /// The name.
        name: String,
        /// The outputs that were.
        requested: Vec<String>,
    },
    /// A list of images that is empty.
    #[error("there are no images")]
    NoImages,
    /// More images than the model takes in one run.
    #[error("{images} images do not fit into a batch of {batch}")]
    Batch {
        /// How many were given.
        images: usize,
        /// How many fit.
        batch: usize,
    },
    /// A preprocessed image of another length than the model's input.
    #[error("a preprocessed image of {found} elements, where the model takes {expected}")]
    Length {
        /// Its elements.
        found: usize,
        /// Elements of the model's input.
        expected: usize,
    },
    /// An image for which a model with finite weights gives NaN or infinity, while others are fine.
    #[error(
        "the model's {output} for this image are NaN or infinite, although its weights are finite: values overflow \
         inside the model; use a more precise number format, such as f32, or leave the image out"
    )]
    NonFinite {
        /// The output.
        output: String,
    },
    /// A model with finite weights that gives NaN or infinity for every image.
    #[error(
        "{}: the model's {output} are NaN or infinite for any image, even a blank one, although its weights are finite: \
         values overflow inside the model; use a more precise number format, such as f32, or another checkpoint",
        path.display()
    )]
    Overflow {
        /// The weights file.
        path: PathBuf,
        /// The output.
        output: String,
    },
    /// Recorded outputs or training steps that cannot be compared with.
    #[error("{}: {what}", path.display())]
    Recording {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A file that cannot be read or written.
    #[error("{}: {what}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

/// The forms of a model with weights.
const MODEL_FORMS: &str = "a checkpoint folder, a weights file (.safetensors, .npz, .pt, .pth, .bin), a run's folder, or \
                           cifar10 for the built-in model";

/// The beginning of a text.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.into(),
    }
}

impl Error {
    /// A file that cannot be read or written.
    pub(crate) fn file(path: impl Into<PathBuf>, what: impl ToString) -> Self {
        Error::File { path: path.into(), what: what.to_string() }
    }
}

impl Error {
    /// The system's reason, if the cause is a file or folder that could not be opened.
    pub fn io_kind(&self) -> Option<ErrorKind> {
        match self {
            Error::Model(error) => of_model(error),
            Error::Weights(error) => of_weights(error),
            Error::Image(error) => of_image(error),
            #[cfg(feature = "train")]
            Error::Dataset(error) => of_dataset(error),
            Error::NoModel { .. } => Some(ErrorKind::NotFound),
            #[cfg(feature = "train")]
            Error::Train(error) => match error {
                vit_train::TrainError::Model(error) => of_model(error),
                vit_train::TrainError::Dataset(error) => of_dataset(error),
                vit_train::TrainError::Run(vit_train::RunError::Io { error, .. }) => Some(error.kind()),
                vit_train::TrainError::Run(vit_train::RunError::NotARun { .. }) => Some(ErrorKind::NotFound),
                vit_train::TrainError::Run(vit_train::RunError::Exists { .. }) => Some(ErrorKind::AlreadyExists),
                _ => None,
            },
            _ => None,
        }
    }
}

fn of_model(error: &ModelError) -> Option<ErrorKind> {
    match error {
        ModelError::Io { error, .. } => Some(error.kind()),
        ModelError::Weights(error) => of_weights(error),
        _ => None,
    }
}

fn of_weights(error: &WeightsError) -> Option<ErrorKind> {
    match error {
        WeightsError::File { error, .. } => of_weights(error),
        WeightsError::Io(error) => Some(error.kind()),
        _ => None,
    }
}

fn of_image(error: &ImageError) -> Option<ErrorKind> {
    match error {
        ImageError::File { error, .. } => of_image(error),
        ImageError::Io(error) => Some(error.kind()),
        _ => None,
    }
}

#[cfg(feature = "train")]
fn of_dataset(error: &DatasetError) -> Option<ErrorKind> {
    match error {
        DatasetError::Io { error, .. } | DatasetError::Files(FilesError::Io { error, .. }) => Some(error.kind()),
        DatasetError::Files(_) => Some(ErrorKind::NotFound),
        _ => None,
    }
}

impl From<vit_data::PreprocessError> for Error {
    fn from(error: vit_data::PreprocessError) -> Self {
        Error::Preprocess(error)
    }
}

#[cfg(feature = "train")]
impl From<vit_train::StepError> for Error {
    fn from(error: vit_train::StepError) -> Self {
        Error::Train(error.into())
    }
}
