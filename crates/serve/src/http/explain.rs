//! `POST /v1/explain`: maps of what an answer depends on, as JSON or drawn over the image.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE, VARY};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::{IntoParams, ToSchema};
use vit::data::{ApplyPreprocess, Preprocess, Region};
use vit::explain::{Explanation, Map, Method, Subject, side_by_side_png};

use super::App;
use super::answers::{ImageResult, RequestTiming, all, complete, refused, results};
use super::classify::{ClassProbability, ImageClasses, ImageForm};
use super::fields::{Fields, shortened};
use super::images::ImageRequest;
use super::problem::{Problem, ProblemKind};
use crate::engine::{ExplainWork, Explained, ServedModel};

/// The most classes that get a map each in one request.
const MAX_CLASSES: usize = 100;
/// ImageClasses listed beside the maps.
const LISTED: usize = 5;

/// Options of an explanation.
#[derive(Debug, IntoParams)]
#[into_params(parameter_in = Query)]
#[allow(dead_code, reason = "the fields document the options")]
pub struct ExplainParameters {
    /// The model; without it the first.
    model: Option<String>,
    /// How maps are computed; what suits the model if not given.
    #[param(inline)]
    method: Option<ExplainMethodName>,
    /// The layer whose attention to show, from 0; the last if not given.
    #[param(minimum = 0)]
    layer: Option<usize>,
    /// The head whose attention to show, from 0; the mean of all if not given.
    #[param(minimum = 0)]
    head: Option<usize>,
    /// A class that gets a map, by number or name; may be repeated.
    class: Option<Vec<String>>,
    /// How many of the likeliest classes get a map each; 1 if not given.
    #[param(minimum = 1, maximum = 100)]
    top: Option<usize>,
    /// `json` or `png`; without it the header `Accept` decides.
    #[param(inline)]
    format: Option<FormatName>,
}

/// How maps are computed.
#[derive(Debug, ToSchema)]
#[schema(rename_all = "lowercase")]
#[allow(dead_code, reason = "the variants document the names")]
pub enum ExplainMethodName {
    Rollout,
    Gradient,
    GradCam,
    Attention,
}

/// A class by number or name.
#[derive(Debug, ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "the variants document the forms")]
pub enum ClassName {
    Number(usize),
    Name(String),
}

/// The form of an explanation.
#[derive(Debug, ToSchema)]
#[schema(rename_all = "lowercase")]
#[allow(dead_code, reason = "the variants document the names")]
pub enum FormatName {
    Json,
    Png,
}

/// Images in JSON, with the options of the query as members.
#[derive(Debug, ToSchema)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "the fields document the request")]
pub struct ExplainRequest {
    /// Images as base64 or as data URIs.
    images: Vec<String>,
    /// The model; without it the first.
    model: Option<String>,
    /// How maps are computed; what suits the model if not given.
    method: Option<ExplainMethodName>,
    /// The layer whose attention to show, from 0; the last if not given.
    #[schema(minimum = 0)]
    layer: Option<usize>,
    /// The head whose attention to show, from 0; the mean of all if not given.
    #[schema(minimum = 0)]
    head: Option<usize>,
    /// ImageClasses that get a map each, by number or name.
    #[schema(max_items = 100)]
    class: Option<Vec<ClassName>>,
    /// How many of the likeliest classes get a map each; 1 if not given.
    #[schema(minimum = 1, maximum = 100)]
    top: Option<usize>,
    /// `json` or `png`; without it the header `Accept` decides.
    format: Option<FormatName>,
}

/// Explanations of images.
#[derive(Debug, Serialize, ToSchema)]
pub struct ExplainResponse {
    /// The model.
    pub model: String,
    /// The version of its weights.
    pub version: String,
    /// In the order of the images; an image without an answer has `error`, a problem document.
    pub results: Vec<ImageResult<ImageMaps>>,
    /// Where the time went.
    pub timing: RequestTiming,
}

/// The maps of one image.
#[derive(Debug, Serialize, ToSchema)]
pub struct ImageMaps {
    /// The likeliest classes; empty for models without classes.
    pub predictions: Vec<ClassProbability>,
    /// Class-independent maps first, then one per class.
    pub maps: Vec<RelevanceMap>,
}

/// A grid of values over a part of the image.
#[derive(Debug, Serialize, ToSchema)]
pub struct RelevanceMap {
    /// What the map is about: `attention rollout`, a layer, or a class.
    pub subject: String,
    /// The class, if the map is about one.
    pub class: Option<usize>,
    /// Its name.
    pub label: Option<String>,
    /// The layer, if the map is about one, from 0.
    pub layer: Option<usize>,
    /// The head, if the map is about one, from 0.
    pub head: Option<usize>,
    /// Rows and columns.
    pub grid: [usize; 2],
    /// The values, row by row.
    pub values: Vec<f32>,
    /// The part of the image that the map covers: left, top, width and height as fractions of the image's sides.
    pub region: [f64; 4],
}

/// Maps of what answers depend on
///
/// The body is as for `/v1/classify`. With `Accept: image/png` or `format=png`, the answer for a single image is the image
/// and, beside it, the same with the first map over it.
#[utoipa::path(
    post, path = "/v1/explain", tag = "Images", params(ExplainParameters),
    request_body(content(
        (ExplainRequest = "application/json"),
        (ImageForm = "multipart/form-data"),
        (Vec<u8> = "image/*"),
        (Vec<u8> = "application/octet-stream"),
    )),
    responses((status = 200, description = "The maps of each image", content(
        (ExplainResponse = "application/json"),
        (Vec<u8> = "image/png"),
    ))),
)]
pub async fn explain(State(app): State<Arc<App>>, request: Request) -> Result<Response, Problem> {
    let known = ["method", "layer", "head", "class", "top", "format"];
    let request = ImageRequest::read(&app, request, &known).await?;
    let form = ExplanationForm::of(&request.fields, &request.headers)?;
    let model = app.engine.model(request.fields.text("model")?)?;
    let what = work(&request.fields, &model)?;
    if form == ExplanationForm::Png && request.images.len() != 1 {
        return Err(Problem::option("The answer for several images has no PNG form; ask for JSON."));
    }
    let mut images = Vec::new();
    let admitted: Vec<Result<(), Problem>> =
        request.images.into_iter().map(|image| image.map(|image| images.push(image))).collect();
    let tickets = match images.is_empty() {
        true => Vec::new(),
        false => refused(&app, &model, model.explain(images, &what, request.deadline))?,
    };
    let mut explained = all(tickets, request.deadline).await?.into_iter();
    let answers: Vec<Result<Explained, Problem>> = (admitted.into_iter())
        .map(|admitted| admitted.and_then(|()| explained.next().map_or(Err(Problem::deadline()), |e| Ok(e?))))
        .collect();
    for answer in &answers {
        app.metrics.explained(&model.card().name, answer.as_ref().map(|answer| answer.timing).map_err(|p| p.kind));
    }
    match form {
        ExplanationForm::Json => json(&model, &what, answers),
        ExplanationForm::Png => {
            let explained = complete(answers)?.swap_remove(0);
            let preprocess = model.preprocess().clone();
            let png = app.blocking(move || draw(&preprocess, &explained)).await??;
            Ok(([(CONTENT_TYPE, "image/png"), (VARY, "accept")], png).into_response())
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum ExplanationForm {
    Json,
    Png,
}

impl ExplanationForm {
    fn of(fields: &Fields, headers: &HeaderMap) -> Result<Self, Problem> {
        match fields.text("format")? {
            Some("json") => return Ok(Self::Json),
            Some("png") => return Ok(Self::Png),
            Some(_) => return Err(Problem::option("`format` should be json or png.")),
            None => {}
        }
        let accept =
            headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect::<Vec<_>>().join(",");
        let accepted: Vec<&str> =
            accept.split(',').map(|range| range.split(';').next().unwrap_or_default().trim()).collect();
        let accepts = |names: &[&str]| accepted.iter().any(|range| names.contains(range));
        if accept.is_empty() || accepts(&["application/json", "*/*", "application/*"]) {
            Ok(Self::Json)
        } else if accepts(&["image/png", "image/*"]) {
            Ok(Self::Png)
        } else {
            Err(Problem::new(ProblemKind::NotAcceptable, "There is application/json and image/png."))
        }
    }
}

/// What the options ask for.
fn work(fields: &Fields, model: &ServedModel) -> Result<ExplainWork, Problem> {
    let layer = fields.integer("layer", 0..=usize::MAX)?;
    let head = fields.integer("head", 0..=usize::MAX)?;
    let method = match fields.parsed::<Method>("method")? {
        None | Some(Method::Attention { .. }) if layer.is_some() || head.is_some() => {
            Some(Method::Attention { layer, head })
        }
        Some(_) if layer.is_some() || head.is_some() => {
            return Err(Problem::option("`layer` and `head` belong to the method attention."));
        }
        method => method,
    };
    let mut classes = Vec::new();
    for name in fields.all("class")? {
        let class = class(name, model)?;
        if !classes.contains(&class) {
            classes.push(class);
        }
    }
    if classes.len() > MAX_CLASSES {
        return Err(Problem::option(format!("`class` names more than {MAX_CLASSES} classes.")));
    }
    let top = fields.integer("top", 1..=MAX_CLASSES)?.unwrap_or(1);
    Ok(ExplainWork { method, classes, top })
}

/// A class by its name, by one of the names that its label lists, or by its number.
fn class(text: &str, model: &ServedModel) -> Result<usize, Problem> {
    let config = &model.card().config;
    let wanted = text.trim();
    let is_named = |label: &String| {
        label.eq_ignore_ascii_case(wanted) || label.split(',').any(|name| name.trim().eq_ignore_ascii_case(wanted))
    };
    let number = wanted.parse::<usize>().ok().filter(|class| *class < config.architecture.classes());
    config.labels.iter().position(is_named).or(number).ok_or_else(|| {
        let classes = config.architecture.classes();
        Problem::option(format!("There is no class `{}` among the {classes} of this model.", shortened(wanted)))
    })
}

fn json(
    model: &ServedModel,
    what: &ExplainWork,
    answers: Vec<Result<Explained, Problem>>,
) -> Result<Response, Problem> {
    let timing = RequestTiming::of(answers.iter().flatten().map(|answer| answer.timing));
    let maps = |explained: Explained| maps(model, what, &explained);
    let results = results(answers.into_iter().map(|answer| answer.and_then(maps)).collect())?;
    let (model, version) = (model.card().name.clone(), model.card().version.clone());
    Ok(([(VARY, "accept")], Json(ExplainResponse { model, version, results, timing })).into_response())
}

fn maps(model: &ServedModel, what: &ExplainWork, explained: &Explained) -> Result<ImageMaps, Problem> {
    let Explained { explanation: Explanation { logits, maps, .. }, image, .. } = explained;
    let region = region(model.preprocess(), explained)?;
    let labels = &model.card().config.labels;
    let last = model.card().heads.len().checked_sub(1);
    let map = |(subject, map): &(Subject, Map)| {
        let class = if let Subject::Class(class) = subject { Some(*class) } else { None };
        let (layer, head) = match (subject, what.method) {
            (Subject::Layer(_, head), Some(Method::Attention { layer, .. })) => (layer.or(last), *head),
            _ => (None, None),
        };
        let part = map.part(region);
        let (width, height) = (image.width() as f64, image.height() as f64);
        RelevanceMap {
            subject: subject.to_string(),
            class,
            label: class.map(|class| labels.get(class).cloned().unwrap_or_else(|| format!("class {class}"))),
            layer,
            head,
            grid: map.grid(),
            values: map.values().to_vec(),
            region: [part.x / width, part.y / height, part.width / width, part.height / height],
        }
    };
    let predictions = match logits.is_empty() {
        true => Vec::new(),
        false => ImageClasses::new(&model.predictions(logits, LISTED), None).predictions,
    };
    Ok(ImageMaps { predictions, maps: maps.iter().map(map).collect() })
}

/// The part of the image that is the model's input.
fn region(preprocess: &Preprocess, explained: &Explained) -> Result<Region, Problem> {
    let (width, height) = (explained.image.width(), explained.image.height());
    preprocess.region(width, height).map_err(|error| Problem::new(ProblemKind::Internal, error.to_string()))
}

fn draw(preprocess: &Preprocess, explained: &Explained) -> Result<Vec<u8>, Problem> {
    let Some((_, map)) = explained.explanation.maps.first() else {
        return Err(Problem::new(ProblemKind::Unsuitable, "There is no map to draw."));
    };
    side_by_side_png(&explained.image, region(preprocess, explained)?, map)
        .map_err(|error| Problem::new(ProblemKind::Internal, error.to_string()))
}
