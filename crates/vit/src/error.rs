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
    /// A request that this model or machine cannot meet.
    #[error("{0}")]
    Unsuitable(String),
}
