//! `POST /v1/classify`.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};
use vit::Prediction;
use vit::models::ProblemType;

use super::App;
use super::answers::{ImageResult, RequestTiming, answers, results};
use super::images::ImageRequest;
use super::problem::{Problem, ProblemKind};
use crate::engine::{Answer, ServedModel, WorkOutput};

/// The probability above which a class is one of an image's several labels.
const THRESHOLD: f32 = 0.5;

/// Options of a classification.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "the fields document the options")]
pub struct ClassifyOptions {
    /// The model; without it the first.
    model: Option<String>,
    /// How many classes to answer with, at most; 5 if not given.
    #[param(minimum = 1, maximum = 100_000)]
    top: Option<usize>,
    /// Only classes with a probability above this; for models with several labels per image 0.5 if not given.
    #[param(minimum = 0.0, maximum = 1.0)]
    threshold: Option<f32>,
}

/// Images in JSON, with the options of the query as members.
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "the fields document the request")]
pub struct ClassifyRequest {
    /// Images as base64 or as data URIs.
    images: Vec<String>,
    /// The model; without it the first.
    model: Option<String>,
    /// How many classes to answer with, at most; 5 if not given.
    #[schema(minimum = 1, maximum = 100_000)]
    top: Option<usize>,
    /// Only classes with a probability above this; for models with several labels per image 0.5 if not given.
    #[schema(minimum = 0.0, maximum = 1.0)]
    threshold: Option<f32>,
}

/// Images as parts of a form.
#[derive(Debug, ToSchema)]
#[allow(dead_code, reason = "the fields document the request")]
pub struct ImageForm {
    /// Encoded images: JPEG, PNG, WebP, GIF, BMP or TIFF. Options can be further fields.
    #[schema(value_type = Vec<String>, format = Binary)]
    images: Vec<Vec<u8>>,
}

/// The classes of images.
#[derive(Debug, Serialize, ToSchema)]
pub struct ClassifyResponse {
    /// The model.
    pub model: String,
    /// The version of its weights.
    pub version: String,
    /// In the order of the images; an image without an answer has `error`, a problem document.
    pub results: Vec<ImageResult<ImageClasses>>,
    /// Where the time went.
    pub timing: RequestTiming,
}

/// The classes of one image.
#[derive(Debug, Serialize, ToSchema)]
pub struct ImageClasses {
    /// The likeliest first.
    pub predictions: Vec<ClassProbability>,
    /// The likeliest class, if none is above the threshold.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub likeliest: Option<ClassProbability>,
}

/// A class and its probability.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct ClassProbability {
    /// The index of the class.
    pub class: usize,
    /// Its name.
    pub label: String,
    /// By softmax, or by one sigmoid per class if images may have several labels.
    pub probability: f32,
}

impl From<&Prediction> for ClassProbability {
    fn from(prediction: &Prediction) -> Self {
        let Prediction { class, label, probability, .. } = prediction.clone();
        Self { class, label, probability }
    }
}

impl ImageClasses {
    /// Of the likeliest classes those above the threshold, as `vit classify` chooses them.
    pub fn new(likeliest: &[Prediction], threshold: Option<f32>) -> Self {
        let above = |p: &&Prediction| threshold.is_none_or(|threshold| p.probability > threshold);
        let predictions: Vec<ClassProbability> = likeliest.iter().filter(above).map(Into::into).collect();
        let likeliest = likeliest.first().filter(|_| predictions.is_empty()).map(Into::into);
        Self { predictions, likeliest }
    }
}

/// ImageClasses of images
///
/// The body is one encoded image, a form with several, or a JSON object with images as base64 or data URIs. Images that
/// cannot be read do not keep the others from being answered.
#[utoipa::path(
    post, path = "/v1/classify", tag = "Images", params(ClassifyOptions),
    request_body(content(
        (ClassifyRequest = "application/json"),
        (ImageForm = "multipart/form-data"),
        (Vec<u8> = "image/*"),
        (Vec<u8> = "application/octet-stream"),
    )),
    responses((status = 200, description = "The classes of each image", body = ClassifyResponse)),
)]
pub async fn classify(State(app): State<Arc<App>>, request: Request) -> Result<Json<ClassifyResponse>, Problem> {
    let request = ImageRequest::read(&app, request, &["top", "threshold"]).await?;
    let top = request.fields.integer("top", 1..=100_000)?.unwrap_or(5);
    let threshold = request.fields.float("threshold", 0.0..=1.0)?;
    let model = app.engine.model(request.fields.text("model")?)?;
    let threshold = match model.card().config.problem_type {
        ProblemType::SingleLabel => threshold,
        ProblemType::MultiLabel => Some(threshold.unwrap_or(THRESHOLD)),
    };
    has_head(&model)?;
    let answers = answers(&app, &model, request.images, WorkOutput::Logits, request.deadline).await?;
    let timing = RequestTiming::of(answers.iter().flatten().map(|answer| answer.timing));
    let classes = |answer: Answer| ImageClasses::new(&model.predictions(&answer.logits, top), threshold);
    let results = results(answers.into_iter().map(|answer| answer.map(classes)).collect())?;
    let (model, version) = (model.card().name.clone(), model.card().version.clone());
    Ok(Json(ClassifyResponse { model, version, results, timing }))
}

/// Refuses models that have features but no classes.
pub fn has_head(model: &ServedModel) -> Result<(), Problem> {
    let detail = "This model has no classification head, so it has no classes; /v1/embed gives its features.";
    match model.card().config.architecture.classes() {
        0 => Err(Problem::new(ProblemKind::Unsuitable, detail)),
        _ => Ok(()),
    }
}
