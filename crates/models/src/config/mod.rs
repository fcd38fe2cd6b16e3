//! Configurations in the forms in which they are published: timm's hub, Hugging Face's, and the class and arguments of
//! a constructor. One file per library; each says what it does not understand instead of guessing.

mod arguments;
mod big_vision;
mod hugging_face;
mod lenet;
mod timm;
mod torchvision;
mod vision_transformer;

pub use hugging_face::{hugging_face_config, hugging_face_differences, hugging_face_preprocessor};
pub use timm::{timm_config, timm_differences};
pub(crate) use vision_transformer::google_stages;

use serde_json::{Map, Value};

use crate::architecture::Architecture;
use crate::preprocessing::Preprocessing;
use crate::problem_type::ProblemType;
use arguments::{Arguments, pair, whole};

/// What a configuration says.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The model's name, where it has one.
    pub name: Option<String>,
    /// The model.
    pub architecture: Architecture,
    /// How its pictures are prepared.
    pub preprocessing: Preprocessing,
    /// The classes' names, in order; empty where they are not known.
    pub labels: Vec<String>,
    /// How its logits become probabilities.
    pub problem_type: ProblemType,
}

/// Understands a `config.json`; `preprocessor` is the `preprocessor_config.json` that Hugging Face puts beside it.
pub fn parse(config: &Value, preprocessor: Option<&Value>) -> Result<Config, String> {
    let map = config.as_object().ok_or("the configuration is not a JSON object")?;
    if map.contains_key("class") && map.contains_key("args") {
        from_constructor(map)
    } else if map.contains_key("model_type") {
        hugging_face::parse(map, preprocessor)
    } else if map.contains_key("architecture") {
        timm::parse(map)
    } else {
        Err("this is none of the known forms: timm's (`architecture`), Hugging Face's (`model_type`), or `class` with `args`".into())
    }
}

/// The class of a library and its constructor's arguments.
fn from_constructor(map: &Map<String, Value>) -> Result<Config, String> {
    let class = map["class"].as_str().ok_or("`class` is not a string")?;
    let args = map["args"].as_object().ok_or("`args` is not an object")?;
    let input = input_size(map)?;
    let (library, name) = (class.split('.').next().unwrap_or_default(), class.rsplit('.').next().unwrap_or_default());
    let unknown = || {
        Err(format!(
            "the class `{class}` is not known here; timm's VisionTransformer, ResNet, ResNetV2, EfficientNet, SwinTransformer and MaxxVit are, torchvision's ResNet and VisionTransformer, transformers' ViT and DeiT, vit_jax, big_vision and lenet5"
        ))
    };
    let mut config = match (library, name) {
        ("timm", _) => timm::from_arguments(name, args, input).unwrap_or_else(unknown),
        ("transformers", _) => hugging_face::from_arguments(name, args),
        ("torchvision", "VisionTransformer") => torchvision::vision_transformer(args),
        ("torchvision", "ResNet") => torchvision::resnet(args, input),
        ("vit_jax", "VisionTransformer") => vision_transformer::from_arguments(args, input),
        ("big_vision", _) => big_vision::from_arguments(args, input),
        ("lenet5", _) => lenet::from_arguments(args, input),
        _ => unknown(),
    }?;
    // A checkpoint written here says how its pictures are prepared, and what its classes are.
    if let Some(pretrained) = map.get("pretrained_cfg").and_then(Value::as_object) {
        config.preprocessing = timm::preprocessing(pretrained, config.preprocessing);
    }
    config.labels = timm::labels(map, config.architecture.classes());
    if map.contains_key(ProblemType::KEY) {
        config.problem_type = ProblemType::parse(map)?;
    }
    config.name = timm::apply_extra(map, &mut config.architecture)?;
    Ok(config)
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
fn unnamed(architecture: impl Into<Architecture>, preprocessing: Preprocessing) -> Config {
    let architecture = architecture.into();
    let preprocessing = Preprocessing { image_size: architecture.image_size(), ..preprocessing };
    Config { name: None, architecture, preprocessing, labels: Vec::new(), problem_type: ProblemType::default() }
}
