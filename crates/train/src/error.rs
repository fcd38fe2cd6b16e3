//! Errors of training and evaluation.

use std::path::PathBuf;

use vit_cluster::ClusterError;
use vit_data::PreprocessError;
use vit_data::dataset::{DatasetError, SampleChanges};
use vit_data::loader::LoaderError;
use vit_graph::{GraphError, Hint, Hints};

use vit_models::ModelError;

use crate::evaluate::metrics::MetricsError;
use crate::step::finite::NonFinite;
use crate::{RecipeError, RunError, SaveError, StepError, Unfollowed};

/// An error of training or evaluation.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum TrainError {
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error(transparent)]
    Step(#[from] StepError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    #[error(transparent)]
    Loader(#[from] LoaderError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error(transparent)]
    Save(#[from] SaveError),
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// Another process of the run failed, or cannot be reached.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A model whose preprocessing is not supported.
    #[error("the model's preprocessing: {0}")]
    Preprocess(PreprocessError),
    /// A recipe or a model that does not suit the dataset.
    #[error("{0}")]
    Unsuitable(String),
    /// A setting that has no effect on the model.
    #[error("{model} cannot follow {} = {}: {}; leave that setting out", setting.key, setting.value, setting.why)]
    Setting {
        /// The model.
        model: String,
        /// The setting.
        setting: Unfollowed,
    },
    /// A teacher that does not suit the student.
    #[error("the teacher {}: {what}", path.display())]
    Teacher {
        /// Its checkpoint.
        path: PathBuf,
        /// Why not.
        what: String,
    },
    /// A resumed run whose data changed since it was begun.
    #[error("{}: the data changed since the run was begun: {changes}", path.display())]
    ChangedData {
        /// The dataset.
        path: PathBuf,
        /// What changed.
        changes: Box<SampleChanges>,
    },
    /// Too many validation images that cannot be read.
    #[error(
        "{found} of the {of} validation images cannot be read, more than the {:.1}% allowed, such as {examples}; repair or \
         remove them, or allow more",
        limit * 100.0
    )]
    UnreadableValidation {
        /// How many.
        found: usize,
        /// Out of how many.
        of: usize,
        /// The share allowed.
        limit: f64,
        /// Some of them, with reasons.
        examples: String,
    },
    /// A run that held out no samples for evaluation.
    #[error(
        "{}: {} trained on all of these images and held none out{}",
        data.display(),
        run.display(),
        validation.as_ref().map(|path| format!("; it is validated on {}", path.display())).unwrap_or_default()
    )]
    NothingHeldOut {
        /// The dataset.
        data: PathBuf,
        /// The run.
        run: PathBuf,
        /// The dataset that the run is validated on.
        validation: Option<PathBuf>,
    },
    /// A configuration that cannot be read.
    #[error("{}: {what}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// A step whose loss or gradients are infinite or NaN.
    #[error(
        "step {step}: the {what} is not finite{}; {kept} {}{}{}",
        place.as_ref().map(|p| format!(" (first in {p})")).unwrap_or_default(),
        path.display(),
        place.as_ref().and_then(|p| p.origin()).map(|origin| format!("; {origin}")).unwrap_or_default(),
        Hints(non_finite_hints(place.as_deref()))
    )]
    NonFinite {
        /// The step, from 1.
        step: u64,
        /// `loss` or `gradient`.
        what: &'static str,
        /// The first operation whose result is not finite.
        place: Option<Box<NonFinite>>,
        /// The content of the last checkpoint.
        kept: Kept,
        /// The last checkpoint.
        path: PathBuf,
    },
}

impl From<PreprocessError> for TrainError {
    fn from(error: PreprocessError) -> Self {
        TrainError::Preprocess(error)
    }
}

impl TrainError {
    /// Whether another process failed, and this one only ends with it.
    pub fn is_of_another_process(&self) -> bool {
        matches!(self, TrainError::Cluster(ClusterError::Peer { .. }) | TrainError::Graph(GraphError::Exchange(_)))
    }

    /// What can be done about the error, as far as it is known.
    pub fn hints(&self) -> &[Hint] {
        match self {
            TrainError::Graph(error) => error.hints(),
            TrainError::NonFinite { place, .. } => non_finite_hints(place.as_deref()),
            _ => &[],
        }
    }
}

/// A cause outside of the step is no matter of its learning rate.
fn non_finite_hints(place: Option<&NonFinite>) -> &'static [Hint] {
    match place.and_then(NonFinite::origin) {
        Some(_) => &[],
        None => &[Hint::LowerLearningRate, Hint::SkipNonFinite],
    }
}

/// The content of the last checkpoint of a run that stopped at a loss that is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The weights before the step that failed.
    Saved {
        /// The last step that changed them. A step that ran before the loss was known may be later than the one that failed.
        step: u64,
    },
    /// An earlier save, since the weights are not finite either.
    Before {
        /// The step after which it was written.
        step: u64,
    },
}

impl std::fmt::Display for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Kept::Saved { step } => write!(f, "the weights, last changed by step {step}, are saved in"),
            Kept::Before { step } => write!(f, "the weights are not finite either, so those after step {step} stay in"),
        }
    }
}
