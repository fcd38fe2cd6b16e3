//! The models of a study, and the one that students follow.

use std::path::PathBuf;

use vit_graph::cost::Cost;
use vit_models::{Checkpoint, Config, Mode, OpenOptions, Variant};

use super::wrong;
use crate::error::TrainError;
use crate::study::data::name;
use crate::study::{StudyFile, StudyModel, named_variant};

/// A model of a study.
pub(super) struct GridModel<'a> {
    pub given: StudyModel,
    pub variant: Variant,
    pub label: String,
    /// The weights that it starts from.
    pub checkpoint: Option<PathBuf>,
    /// Settings for this model alone, `KEY=VALUE`.
    pub own: Vec<&'a str>,
}

/// The models of a study.
pub(super) fn models<'a>(file: &StudyFile, own: &'a [(String, String)]) -> Result<Vec<GridModel<'a>>, TrainError> {
    let plain = file.models.iter().map(|name| StudyModel { name: name.clone(), ..StudyModel::default() });
    let mut models: Vec<GridModel> = Vec::new();
    for given in plain.chain(file.model.iter().cloned()) {
        let variant = named_variant(&given.name)?;
        let label = if given.label.is_empty() { variant.name.clone() } else { given.label.clone() };
        if models.iter().any(|known| known.label == label) {
            return Err(wrong(format!("the model {label} is in the study twice")));
        }
        let own = own.iter().filter(|(model, _)| *model == given.name).map(|(_, setting)| setting.as_str()).collect();
        models.push(GridModel { given, variant, label, checkpoint: None, own });
    }
    if let Some(path) = &file.checkpoint {
        let opened = Checkpoint::open_image_model(path, OpenOptions::default())?;
        let Config { name: known, architecture, preprocessing, .. } = opened.config;
        let label = known.unwrap_or_else(|| name(path));
        let variant =
            Variant { name: label.clone(), paper_name: None, family: "checkpoint", architecture, preprocessing };
        let given = StudyModel { name: label.clone(), ..StudyModel::default() };
        models.push(GridModel { given, variant, label, checkpoint: Some(path.clone()), own: Vec::new() });
    }
    if models.is_empty() {
        return Err(wrong("a study needs models".into()));
    }
    if let Some((model, _)) = own.iter().find(|(model, _)| models.iter().all(|known| known.given.name != *model)) {
        return Err(wrong(format!("there is a setting for {model}, which is not in the study")));
    }
    Ok(models)
}

/// The teacher of the models with a distillation head, if there are any.
pub(super) fn teacher(file: &StudyFile, models: &[GridModel]) -> Result<Option<usize>, TrainError> {
    let is_student = |model: &GridModel| model.variant.architecture.follows_teacher();
    let Some(student) = models.iter().find(|model| is_student(model)) else { return Ok(None) };
    if let Some(name) = &file.teacher {
        let wanted = named_variant(name)?.name;
        let found = models.iter().position(|model| model.variant.name == wanted && !is_student(model));
        let refused = || wrong(format!("the teacher {wanted} must be one of the study's models, and no student"));
        return found.map(Some).ok_or_else(refused);
    }
    let mut largest: Option<(u64, usize)> = None;
    for (index, model) in models.iter().enumerate() {
        if is_student(model) || model.variant.architecture.tokens().is_some() {
            continue;
        }
        let parameters = Cost::of(&model.variant.architecture.build(1, Mode::Inference)?).parameters();
        if largest.is_none_or(|(most, _)| parameters > most) {
            largest = Some((parameters, index));
        }
    }
    largest.map(|(_, index)| Some(index)).ok_or_else(|| {
        wrong(format!(
            "{} follows a teacher, and there is no convolutional model in the study; add one, such as resnet18_cifar",
            student.variant.name
        ))
    })
}
