//! Configurations in the forms in which they are published: timm's hub, Hugging Face's, and the class and arguments of
//! a constructor. Unsupported options are errors that name them.

mod arguments;
mod big_vision;
mod hub;
pub(crate) mod timm;
mod torchvision;
mod vision_transformer;

pub use arguments::Arguments;
pub(crate) use arguments::{pair, whole};
pub(crate) use hub::can_build as timm_can_build;
pub use hub::{TimmForm, timm_config, timm_differences};
pub(crate) use hub::{parse_unknown, unknown_name};
pub(crate) use vision_transformer::google_stages;

pub use crate::hugging_face::{hugging_face_config, hugging_face_differences, hugging_face_preprocessor};

use serde_json::{Map, Value};

use crate::architecture::{Architecture, NetworkObject};
use crate::hugging_face;
use crate::problem_type::ProblemType;
use crate::registry::registered;
use vit_preprocess::Preprocess;

/// A model's configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The model's name, where it has one.
    pub name: Option<String>,
    /// The model.
    pub architecture: Architecture,
    /// How its images are prepared.
    pub preprocessing: Preprocess,
    /// The classes' names, in order; empty where they are not known.
    pub labels: Vec<String>,
    /// How its logits become probabilities.
    pub problem_type: ProblemType,
}

/// A model in configuration files: the class of its constructor and the arguments.
pub trait Configured: NetworkObject {
    /// The class, as in `timm.models.resnet.ResNet`, and the arguments of its constructor that make this model.
    fn constructor(&self) -> (&'static str, Map<String, Value>);

    /// Changes the model by arguments of its class's constructor.
    fn configure(&mut self, arguments: &Arguments) -> Result<(), String>;

    /// Changes the model as [`TimmForm::extra`] says.
    fn configure_extra(&mut self, extra: &Arguments) -> Result<(), String> {
        extra.finish(&[])
    }

    /// How timm builds the model by name.
    fn timm(&self) -> TimmForm {
        TimmForm::published(self.constructor().1)
    }

    /// The name of a parameter in timm's files, where it is not this project's.
    fn timm_name(&self, _parameter: &str) -> Option<String> {
        None
    }

    /// Whether another model is the same but for what timm's arguments leave out.
    fn same_in_timm(&self, other: &Architecture) -> bool {
        self.equals(&**other)
    }

    /// Differences in what the model computes that timm builds instead of this one, one line each.
    fn differences(&self, _built: &Architecture) -> Vec<String> {
        Vec::new()
    }

    /// The classes that make models of this architecture: name, the model made without arguments, and how the class's
    /// published weights take images.
    fn classes() -> Vec<(&'static str, Self, Preprocess)>
    where
        Self: Sized;
}

/// Parses a `config.json`, with Hugging Face's `preprocessor_config.json` if there is one.
pub fn parse(config: &Value, preprocessor: Option<&Value>) -> Result<Config, String> {
    let map = config.as_object().ok_or("the configuration is not a JSON object")?;
    if map.contains_key("class") && map.contains_key("args") {
        from_constructor(map)
    } else if map.contains_key("model_type") {
        hugging_face::parse(map, preprocessor)
    } else if map.contains_key("architecture") {
        hub::parse(map)
    } else {
        Err("this is none of the known forms: timm's (`architecture`), Hugging Face's (`model_type`), or `class` with `args`".into())
    }
}

/// The class of a library and its constructor's arguments.
fn from_constructor(map: &Map<String, Value>) -> Result<Config, String> {
    let class = map["class"].as_str().ok_or("`class` is not a string")?;
    let args = map["args"].as_object().ok_or("`args` is not an object")?;
    let input = input_size(map)?;
    let mut config = match library_and_name(class) {
        ("transformers", name) => hugging_face::from_arguments(name, args),
        ("torchvision", "VisionTransformer") => torchvision::vision_transformer(args),
        ("torchvision", "ResNet") => torchvision::resnet(args, input),
        ("vit_jax", "VisionTransformer") => vision_transformer::from_arguments(args, input),
        ("big_vision", _) => big_vision::from_arguments(args, input),
        _ => from_registered(class, args, input),
    }?;
    // Checkpoints that this project wrote say how images are prepared, and what the classes are.
    if let Some(pretrained) = map.get("pretrained_cfg").and_then(Value::as_object) {
        config.preprocessing = hub::preprocessing(pretrained, config.preprocessing)?;
    }
    config.labels = hub::labels(map, config.architecture.classes());
    if map.contains_key(ProblemType::KEY) {
        config.problem_type = ProblemType::parse(map)?;
    }
    hub::apply_extra(map, &mut config)?;
    Ok(config)
}

/// `timm` and `ResNet` of `timm.models.resnet.ResNet`.
fn library_and_name(class: &str) -> (&str, &str) {
    (class.split('.').next().unwrap_or_default(), class.rsplit('.').next().unwrap_or_default())
}

/// A model of a registered architecture.
fn from_registered(class: &str, args: &Map<String, Value>, input: Option<[usize; 2]>) -> Result<Config, String> {
    let all: Vec<_> = registered().into_iter().flat_map(|architecture| (architecture.classes)()).collect();
    let Some((name, mut model, usual)) =
        all.iter().find(|(name, ..)| library_and_name(name) == library_and_name(class)).cloned()
    else {
        let known: Vec<&str> = all.iter().map(|(name, ..)| *name).collect();
        return Err(format!(
            "the class `{class}` is not known here; those that are: {}, torchvision's ResNet and VisionTransformer, transformers' classes, vit_jax and big_vision",
            known.join(", ")
        ));
    };
    // Convolutional networks have no argument for the image size; `input_shape` has it.
    if let Some(size) = input.filter(|_| !args.contains_key("img_size")) {
        model.set_image_size(size);
    }
    model.configure(&Arguments::new(library_and_name(name).0, args))?;
    Ok(unnamed(model, usual))
}

/// Height and width of a recorded `input_shape`, `[batch, channels, height, width]`.
fn input_size(map: &Map<String, Value>) -> Result<Option<[usize; 2]>, String> {
    let Some(shape) = map.get("input_shape") else { return Ok(None) };
    let extents: Option<Vec<u64>> = shape.as_array().map(|a| a.iter().filter_map(Value::as_u64).collect());
    match extents.as_deref() {
        Some([_, _, height, width]) => Ok(Some([*height as usize, *width as usize])),
        _ => Err("`input_shape` should be [batch, channels, height, width]".into()),
    }
}

/// A configuration without a name, with the library's usual preprocessing.
fn unnamed(architecture: impl Into<Architecture>, preprocessing: Preprocess) -> Config {
    let architecture = architecture.into();
    let preprocessing = Preprocess { image_size: architecture.image_size(), ..preprocessing };
    Config { name: None, architecture, preprocessing, labels: Vec::new(), problem_type: ProblemType::default() }
}
