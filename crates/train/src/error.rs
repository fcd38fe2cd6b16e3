//! Why a run could not be begun, or could not go on.

use std::path::PathBuf;

use vit_data::dataset::{Changes, DatasetError};
use vit_data::loader::LoaderError;
use vit_graph::GraphError;
use vit_models::ModelError;

use crate::evaluate::metrics::MetricsError;
use crate::step::finite::NonFinite;
use crate::{RecipeError, RunError, SaveError, StepError, Unfollowed};

/// What can go wrong in training and evaluation.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
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
    /// A model whose pictures nobody can prepare.
    #[error("the model's preprocessing: {0}")]
    Preprocessing(String),
    /// A recipe and a data set, or a model and a data set, that do not go together.
    #[error("{0}")]
    Unsuitable(String),
    /// A setting that was asked for and makes no difference to the model.
    #[error("{model} cannot follow {} = {}: {}; leave that setting out", setting.key, setting.value, setting.why)]
    Setting {
        /// The model.
        model: String,
        /// The setting.
        setting: Unfollowed,
    },
    /// A teacher that cannot teach this student.
    #[error("the teacher {}: {what}", path.display())]
    Teacher {
        /// Its checkpoint.
        path: PathBuf,
        /// What stands in the way.
        what: String,
    },
    /// A run that is to go on with other data than it was begun with.
    #[error("{}: the data changed since the run was begun: {changes}", path.display())]
    ChangedData {
        /// The dataset.
        path: PathBuf,
        /// What changed.
        changes: Box<Changes>,
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
    /// Nothing of a dataset is left to measure a model on.
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
        /// What the run is measured on instead.
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
        "step {step}: the {what} is not finite{}; {kept} {}. {}",
        place.as_ref().map(|p| format!(" (first in {p})")).unwrap_or_default(),
        path.display(),
        place.as_ref().map_or("Lower schedule.rate, or go on past such steps with --skip-non-finite", |p| p.advice())
    )]
    NonFinite {
        /// The step, from 1.
        step: u64,
        /// `loss` or `gradient`.
        what: &'static str,
        /// The first operation whose result is not finite.
        place: Option<Box<NonFinite>>,
        /// What is in the last checkpoint.
        kept: Kept,
        /// The last checkpoint.
        path: PathBuf,
    },
    /// A thread of the run panicked.
    #[error("a thread that {thread} panicked: {message}")]
    Panic {
        /// What the thread does.
        thread: &'static str,
        /// What the panic said.
        message: String,
    },
}

/// What the last checkpoint of a run holds that was stopped by a loss that is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// The weights with which it was stopped, saved then.
    Saved {
        /// The last step that changed them: the one before, or one that was started before the loss was known.
        step: u64,
    },
    /// What was saved before: the weights with which it was stopped are not finite either.
    Before {
        /// The step after which it was saved.
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
