//! From a study's file to its runs: every combination of what is varied.

mod checks;
mod models;

use std::path::{Path, PathBuf};

use toml::{Table, Value};
use vit_models::{Config, ProblemType, Variant};

use super::data::{absolute, name};
use super::file::{Axis, AxisValue, leaves};
use super::run::{folder, slug};
use super::{SampleSize, Stage, StudyData, StudyFile, StudyRun};
use crate::error::TrainError;
use crate::recipe::{Recipe, Span, Teaching};
use crate::run::setup::RunSettings;
use checks::{check, x};
use models::{GridModel, models, teacher};

/// The names of dimensions that every study has, and that no axis may have.
pub(super) const MODEL: &str = "model";
pub(super) const DATA: &str = "data";
pub(super) const IMAGES: &str = "images";
pub(super) const PRETRAIN_IMAGES: &str = "pretrain.images";
/// Measured quantities that the figure's horizontal axis can show.
pub(super) const FLOPS: &str = "flops";
pub(super) const PARAMETERS: &str = "parameters";

/// Settings of an axis that are none of a recipe: the recipe itself, the image size, and options of the model.
const RECIPE: &str = "recipe";
const IMAGE_SIZE: &str = "image_size";
const OPTION: &str = "options.";

/// The runs of a study, and what they differ in.
pub(super) struct Grid {
    pub runs: Vec<StudyRun>,
    pub data: Vec<StudyData>,
    pub pretraining_data: Option<StudyData>,
    /// Dimensions with their values, in the order of the study.
    pub dimensions: Vec<(String, Vec<String>)>,
    /// Those of them that are chosen by validation.
    pub sweep: Vec<String>,
    pub x: String,
    pub lines: Vec<String>,
}

/// How a study finds its recipes, by name or file.
type ReadRecipe<'a, E> = &'a dyn Fn(&str) -> Result<Recipe, E>;

/// The parts of a study's grid.
struct Expansion<'a> {
    file: &'a StudyFile,
    path: &'a Path,
    /// What all runs share.
    base: &'a RunSettings,
    data: &'a [StudyData],
    pretraining_data: Option<&'a StudyData>,
    models: Vec<GridModel<'a>>,
    axes: Vec<Axis>,
    pretrain_axes: Vec<Axis>,
    /// The model that students follow.
    teacher: Option<usize>,
}

/// One combination of values.
struct Place<'a> {
    model: usize,
    data: usize,
    size: SampleSize,
    values: Vec<(&'a Axis, &'a AxisValue)>,
    pretrain_size: SampleSize,
    pretrain_values: Vec<(&'a Axis, &'a AxisValue)>,
    seed: u64,
}

/// Expands a study's file. `own` are settings of single models, in addition: model and `KEY=VALUE`.
pub(super) fn expand<E: From<TrainError>>(
    path: &Path,
    file: &StudyFile,
    own: &[(String, String)],
    base: &RunSettings,
    read: ReadRecipe<E>,
) -> Result<Grid, E> {
    let paths = file.data.paths();
    if paths.is_empty() {
        return Err(wrong("a study needs a dataset".into()).into());
    }
    let paths: Vec<PathBuf> = paths.iter().map(|path| absolute(path)).collect::<Result<_, TrainError>>()?;
    let models = models(file, own)?;
    let axes = Axis::all(&file.axes, "")?;
    let sweep = Axis::all(&file.sweep, "")?;
    let pretrain = file.pretrain.as_ref();
    let pretrain_axes = pretrain.map_or(Ok(Vec::new()), |stage| Axis::all(&stage.axes, "pretrain."))?;
    let sizes = SampleSize::all(&file.fractions, &file.images)?;
    let pretrain_sizes = match pretrain {
        Some(stage) => SampleSize::all(&stage.fractions, &stage.images)?,
        None => vec![SampleSize::Fraction(1.0)],
    };
    check(file, &[&axes[..], &sweep, &pretrain_axes].concat(), &sizes)?;

    // All names are known to be valid before datasets are opened.
    let recipe = read(&file.recipe)?;
    let pretrain_recipe = pretrain.map(|stage| read(if stage.recipe.is_empty() { "small" } else { &stage.recipe }));
    let pretrain_recipe = pretrain_recipe.transpose()?;
    let teacher = teacher(file, &models)?;
    let data: Vec<StudyData> =
        paths.iter().map(|path| StudyData::open(path, file)).collect::<Result<_, TrainError>>()?;
    let pretraining_data = match (pretrain, &pretrain_recipe) {
        (Some(stage), Some(recipe)) => {
            Some(StudyData::for_pretraining(&absolute(&stage.data)?, file, recipe.is_pretraining())?)
        }
        _ => None,
    };
    let sweep_names: Vec<String> = sweep.iter().map(|axis| axis.name.clone()).collect();
    let expansion = Expansion {
        file,
        path,
        base,
        data: &data,
        pretraining_data: pretraining_data.as_ref(),
        models,
        axes: axes.into_iter().chain(sweep).collect(),
        pretrain_axes,
        teacher,
    };
    let mut runs: Vec<StudyRun> = Vec::new();
    for place in expansion.places(&sizes, &pretrain_sizes) {
        let start = match (pretrain, &pretrain_recipe) {
            (Some(stage), Some(recipe)) => {
                let recipe = expansion.recipe(recipe, &stage.set, &place, Stage::Pretraining, read)?;
                let run = expansion.pretraining(&place, recipe)?;
                let name = run.name.clone();
                push(&mut runs, run)?;
                Some(name)
            }
            _ => None,
        };
        if file.finetune {
            let recipe = expansion.recipe(&recipe, &file.set, &place, Stage::Training, read)?;
            let run = expansion.training(&place, recipe, start)?;
            push(&mut runs, run)?;
        }
    }
    let dimensions = expansion.dimensions(&sizes, &pretrain_sizes);
    let x = x(file, &dimensions, &sweep_names)?;
    Ok(Grid { runs, data, pretraining_data, dimensions, sweep: sweep_names, x, lines: file.lines.clone() })
}

/// Adds a run, unless it is there: runs share their pre-training.
fn push(runs: &mut Vec<StudyRun>, run: StudyRun) -> Result<(), TrainError> {
    match runs.iter().find(|known| known.name == run.name) {
        Some(known) if *known == run => Ok(()),
        Some(_) => {
            Err(wrong(format!("two runs of the study would have the name {}; give values other labels", run.name)))
        }
        None => {
            runs.push(run);
            Ok(())
        }
    }
}

fn wrong(what: String) -> TrainError {
    TrainError::Unsuitable(what)
}

/// Every combination of one value of each axis; the last axis varies fastest.
fn combinations(axes: &[Axis]) -> Vec<Vec<(&Axis, &AxisValue)>> {
    axes.iter().fold(vec![Vec::new()], |before, axis| {
        let with = |chosen: &Vec<_>, value| chosen.iter().copied().chain([(axis, value)]).collect();
        before.iter().flat_map(|chosen| axis.values.iter().map(move |value| with(chosen, value))).collect()
    })
}

impl Expansion<'_> {
    /// All combinations: smaller amounts of data first, teachers before students, seeds last.
    fn places(&self, sizes: &[SampleSize], pretrain_sizes: &[SampleSize]) -> Vec<Place<'_>> {
        // Stable: otherwise in the given order.
        let mut order: Vec<usize> = (0..self.models.len()).collect();
        order.sort_by_key(|&index| self.models[index].variant.architecture.follows_teacher());
        let (values, pretrain_values) = (combinations(&self.axes), combinations(&self.pretrain_axes));
        let mut places = Vec::new();
        for &pretrain_size in pretrain_sizes {
            for pretrain_values in &pretrain_values {
                for &size in sizes {
                    for data in 0..self.data.len() {
                        for &model in &order {
                            for values in &values {
                                places.extend(self.file.seeds.iter().map(|&seed| {
                                    let (values, pretrain_values) = (values.clone(), pretrain_values.clone());
                                    Place { model, data, size, values, pretrain_size, pretrain_values, seed }
                                }));
                            }
                        }
                    }
                }
            }
        }
        places
    }

    /// The recipe of a run: the study's settings, the model's, those of its place, its seed.
    fn recipe<E: From<TrainError>>(
        &self,
        base: &Recipe,
        set: &Table,
        place: &Place,
        stage: Stage,
        read: ReadRecipe<E>,
    ) -> Result<Recipe, E> {
        let mut recipe = base.clone();
        let model = &self.models[place.model];
        let own_values = match stage {
            Stage::Pretraining => &place.pretrain_values,
            Stage::Training => &place.values,
        };
        let values = || own_values.iter().flat_map(|(_, value)| &value.settings);
        if let Some((_, name)) = values().find(|(key, _)| key == RECIPE) {
            recipe = read(name.as_str().unwrap_or_default())?;
        }
        let of_model = leaves("", &model.given.set);
        // Axes of either stage may change the model itself, which both share.
        let of_places = place.pretrain_values.iter().chain(&place.values).flat_map(|(_, value)| &value.settings);
        let options = of_model.iter().chain(of_places);
        let options: Vec<String> = options.filter_map(|(key, value)| option(key, value)).collect();
        let of_recipe = |(key, value): &(String, Value)| {
            (![RECIPE, IMAGE_SIZE].contains(&key.as_str()) && !key.starts_with(OPTION))
                .then(|| format!("{key}={value}"))
        };
        let settings: Vec<String> =
            leaves("", set).iter().chain(&of_model).chain(values()).filter_map(of_recipe).collect();
        if settings
            .iter()
            .map(String::as_str)
            .chain(model.own.iter().copied())
            .any(|setting| setting.starts_with("seed="))
        {
            return Err(wrong("a study has `seeds`, a list, instead of the recipe's seed".into()).into());
        }
        let set_all = |recipe: &mut Recipe, settings: &[String]| {
            recipe.set_all(settings.iter().map(String::as_str)).map_err(TrainError::from)
        };
        set_all(&mut recipe, &settings)?;
        set_all(&mut recipe, &[format!("seed={}", place.seed)])?;
        // Nothing is chosen on the way, so only the last weights are evaluated.
        if recipe.patience == 0 && !settings.iter().any(|setting| setting.starts_with("evaluate_every=")) {
            recipe.evaluate_every = Span::Share(1.0);
        }
        recipe.model.options.extend(options);
        Ok(recipe)
    }

    /// The model of a place, with its options.
    fn configured(&self, place: &Place, recipe: &Recipe) -> Result<Config, TrainError> {
        let GridModel { variant, label, .. } = &self.models[place.model];
        let Variant { name, mut architecture, mut preprocessing, .. } = variant.clone();
        recipe.configure(&mut architecture).map_err(|error| wrong(format!("{label}: {error}")))?;
        preprocessing.image_size = architecture.image_size();
        let (labels, problem_type) = (Vec::new(), ProblemType::default());
        Ok(Config { name: Some(name), architecture, preprocessing, labels, problem_type })
    }

    /// The run that trains a model or fine-tunes a pre-trained one.
    fn training(&self, place: &Place, mut recipe: Recipe, start: Option<String>) -> Result<StudyRun, TrainError> {
        let model = &self.models[place.model];
        let sizes = self.file.fractions.len().max(self.file.images.len());
        self.check_length(&recipe, sizes)?;
        let mut needs: Vec<String> = start.iter().cloned().collect();
        let mut teacher = None;
        if let Some(index) = self.teacher.filter(|_| model.variant.architecture.follows_teacher()) {
            let (values, pretrain_values) = (place.values.clone(), place.pretrain_values.clone());
            let name = self.name(&Place { model: index, values, pretrain_values, ..*place });
            recipe.objective.teacher = folder(self.path, &name).display().to_string();
            recipe.objective.distillation = Teaching::Hard;
            needs.push(name);
            teacher = Some(self.models[index].label.clone());
        }
        let base = self.configured(place, &recipe)?;
        if start.is_some() {
            // They were followed in pre-training.
            recipe.model.options.clear();
        }
        let checkpoint = match &start {
            Some(start) => Some(folder(self.path, start).join("checkpoints/last")),
            None => model.checkpoint.clone(),
        };
        let left_out = recipe.leave_out_for_one_of_many(&model.label, &base.architecture, checkpoint.is_none())?;
        recipe.set_all(model.own.iter().copied())?;
        let name = self.name(place);
        let data = &self.data[place.data];
        let settings = RunSettings {
            model: checkpoint.as_ref().map_or_else(|| model.variant.name.clone(), |path| path.display().to_string()),
            data: data.path.clone(),
            validation: data.validation.clone(),
            fraction: place.size.fraction(data)?,
            ..self.base.clone()
        };
        Ok(StudyRun {
            folder: folder(self.path, &name),
            name,
            stage: Stage::Training,
            model: model.variant.name.clone(),
            family: model.variant.family.into(),
            data: data.name.clone(),
            size: place.size,
            seed: place.seed,
            place: self.place(place),
            recipe,
            settings,
            image_size: image_size(place)?,
            teacher,
            needs,
            start,
            finetunes: checkpoint.is_some(),
            base,
            data_index: place.data,
            left_out,
        })
    }

    /// The run that pre-trains a model.
    fn pretraining(&self, place: &Place, mut recipe: Recipe) -> Result<StudyRun, TrainError> {
        let model = &self.models[place.model];
        let stage = self.file.pretrain.as_ref();
        let sizes = stage.map_or(0, |stage| stage.fractions.len().max(stage.images.len()));
        self.check_length(&recipe, sizes)?;
        let Some(data) = self.pretraining_data else { return Err(wrong("[pretrain] needs `data`".into())) };
        let base = self.configured(place, &recipe)?;
        let left_out = recipe.leave_out_for_one_of_many(&model.label, &base.architecture, true)?;
        let name = self.pretraining_name(place, &recipe.model.options);
        let settings = RunSettings {
            model: model.variant.name.clone(),
            data: data.path.clone(),
            validation: data.validation.clone(),
            fraction: place.pretrain_size.fraction(data)?,
            ..self.base.clone()
        };
        let all = self.place(place);
        let of_pretraining = |name: &str| name == MODEL || name.starts_with("pretrain.");
        Ok(StudyRun {
            folder: folder(self.path, &name),
            name,
            stage: Stage::Pretraining,
            model: model.variant.name.clone(),
            family: model.variant.family.into(),
            data: data.name.clone(),
            size: place.pretrain_size,
            seed: place.seed,
            place: all.into_iter().filter(|(name, _)| of_pretraining(name)).collect(),
            recipe,
            settings,
            image_size: None,
            teacher: None,
            needs: Vec::new(),
            start: None,
            finetunes: false,
            base,
            data_index: 0,
            left_out,
        })
    }

    fn check_length(&self, recipe: &Recipe, sizes: usize) -> Result<(), TrainError> {
        if sizes < 2 || matches!(recipe.length, Span::Steps(_)) {
            return Ok(());
        }
        Err(wrong(format!(
            "length is {}, and that is more steps for more images; a study over amounts of data gives every run the same \
             number of steps, such as length=4000 steps",
            recipe.length
        )))
    }

    /// The name of a training run. What a study may get more of later is named only where it is not the usual.
    fn name(&self, place: &Place) -> String {
        let mut parts = vec![self.models[place.model].label.clone()];
        if place.data > 0 {
            parts.push(self.data[place.data].name.clone());
        }
        parts.push(place.size.slug());
        parts.extend(place.values.iter().map(|(axis, value)| format!("{}={}", short(&axis.name), value.label)));
        if self.file.pretrain.is_some() {
            parts.push(format!("from-{}", place.pretrain_size.slug()));
            let values = &place.pretrain_values;
            parts.extend(values.iter().map(|(axis, value)| format!("{}={}", short(&axis.name), value.label)));
        }
        parts.extend((place.seed != 0).then(|| format!("seed{}", place.seed)));
        slug(&parts.join("-"))
    }

    fn pretraining_name(&self, place: &Place, options: &[String]) -> String {
        let mut parts = vec!["pretrain".into(), self.models[place.model].label.clone(), place.pretrain_size.slug()];
        parts.extend(options.iter().cloned());
        let values = &place.pretrain_values;
        parts.extend(values.iter().map(|(axis, value)| format!("{}={}", short(&axis.name), value.label)));
        parts.extend((place.seed != 0).then(|| format!("seed{}", place.seed)));
        slug(&parts.join("-"))
    }

    /// A combination as text.
    fn place(&self, place: &Place) -> Vec<(String, String)> {
        let mut all = vec![
            (MODEL.to_string(), self.models[place.model].label.clone()),
            (DATA.into(), self.data[place.data].name.clone()),
            (IMAGES.into(), place.size.to_string()),
        ];
        if self.file.pretrain.is_some() {
            all.push((PRETRAIN_IMAGES.into(), place.pretrain_size.to_string()));
        }
        let values = place.pretrain_values.iter().chain(&place.values);
        all.extend(values.map(|(axis, value)| (axis.name.clone(), value.label.clone())));
        all
    }

    /// The same of the whole study.
    fn dimensions(&self, sizes: &[SampleSize], pretrain_sizes: &[SampleSize]) -> Vec<(String, Vec<String>)> {
        let texts = |sizes: &[SampleSize]| sizes.iter().map(SampleSize::to_string).collect::<Vec<String>>();
        let mut all = vec![
            (MODEL.to_string(), self.models.iter().map(|model| model.label.clone()).collect()),
            (DATA.into(), self.data.iter().map(|data| data.name.clone()).collect()),
            (IMAGES.into(), texts(sizes)),
        ];
        if self.file.pretrain.is_some() {
            all.push((PRETRAIN_IMAGES.into(), texts(pretrain_sizes)));
        }
        let axes = self.pretrain_axes.iter().chain(&self.axes);
        all.extend(axes.map(|axis| {
            (axis.name.clone(), axis.values.iter().map(|value| value.label.clone()).collect::<Vec<String>>())
        }));
        all
    }
}

/// The last part of a key.
pub(super) fn short(key: &str) -> &str {
    key.rsplit('.').next().unwrap_or(key)
}

/// A setting of the form `options.NAME` as an option of the model.
fn option(key: &str, value: &Value) -> Option<String> {
    let name = key.strip_prefix(OPTION)?;
    Some(format!("{name}={}", value.as_str().map_or_else(|| value.to_string(), str::to_string)))
}

/// The image size of a place, if an axis sets one.
fn image_size(place: &Place) -> Result<Option<[usize; 2]>, TrainError> {
    let mut settings = place.values.iter().flat_map(|(_, value)| &value.settings);
    let Some((_, value)) = settings.find(|(key, _)| key == IMAGE_SIZE) else { return Ok(None) };
    let side = value.as_integer().and_then(|side| usize::try_from(side).ok()).filter(|side| *side > 0);
    let side = side.ok_or_else(|| wrong(format!("image_size is {value}; it should be a number of pixels")))?;
    Ok(Some([side; 2]))
}

/// The name of a study without one: that of its first dataset.
pub(super) fn usual_name(file: &StudyFile) -> String {
    file.data.paths().first().map_or_else(|| "study".into(), |path| name(path))
}
