//! One error for everything that this crate does.

/// What went wrong, in one sentence that says where and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A model, its configuration or its weights.
    #[error(transparent)]
    Model(#[from] vit_models::ModelError),
    /// A weights file.
    #[error(transparent)]
    Weights(#[from] vit_models::weights::WeightsError),
    /// A graph or a device.
    #[error(transparent)]
    Graph(#[from] vit_graph::GraphError),
    /// A training step.
    #[error(transparent)]
    Step(#[from] vit_train::StepError),
    /// A look inside.
    #[error(transparent)]
    Insight(#[from] vit_insight::InsightError),
    /// A picture.
    #[error(transparent)]
    Image(#[from] vit_data::ImageError),
    /// Preprocessing that does not work.
    #[error("the model's preprocessing: {0}")]
    Preprocess(#[from] vit_data::PreprocessError),
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
        path: std::path::PathBuf,
        /// The output.
        output: String,
    },
    /// A request that this model or machine cannot meet.
    #[error("{0}")]
    Unsuitable(String),
}
