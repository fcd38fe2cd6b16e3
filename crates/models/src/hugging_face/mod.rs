//! transformers' model types: one file each, with the configuration in and out and the names of its tensors, and one line in
//! [`TYPES`]. Unsupported options are errors that name them.

mod beit;
mod bit;
mod clip;
mod convnext;
mod deit;
mod dinov2;
mod dinov3_vit;
mod efficientnet;
mod ijepa;
mod misfit;
mod names;
mod processor;
mod resnet;
mod siglip;
mod siglip2;
mod swin;
mod text;
mod vision_transformer;
mod vit;
mod vit_mae;
mod vit_msn;

pub use processor::{hugging_face_differences, hugging_face_preprocessor};

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::architecture::Architecture;
use crate::config::{Arguments, Config, timm_can_build};
use crate::problem_type::ProblemType;
use crate::weights::{Weights, WeightsError};
use names::Names;
use vit_preprocess::Preprocess;

/// The known model types. Of those that can express a model, the first is written.
const TYPES: &[ModelType] = &[
    vit::TYPE,
    deit::TYPE,
    vit_mae::TYPE,
    vit_msn::TYPE,
    dinov2::TYPE,
    dinov2::WITH_REGISTERS,
    dinov3_vit::TYPE,
    ijepa::TYPE,
    beit::TYPE,
    beit::DATA2VEC,
    clip::TYPE,
    clip::BOTH_TOWERS,
    siglip::TYPE,
    siglip::BOTH_TOWERS,
    siglip2::TYPE,
    siglip2::BOTH_TOWERS,
    swin::TYPE,
    swin::V2,
    convnext::TYPE,
    convnext::V2,
    resnet::TYPE,
    efficientnet::TYPE,
    bit::TYPE,
];

/// One of transformers' model types.
pub(crate) struct ModelType {
    /// `model_type` in `config.json`.
    name: &'static str,
    /// The beginning of its classes' names.
    class: &'static str,
    /// The prefix of the model's tensors in a class with a head.
    base: &'static str,
    /// The model of a configuration.
    read: fn(&Arguments, Task) -> Result<Architecture, String>,
    /// The tensors' names.
    names: fn(&Architecture) -> Names,
    /// The beginnings of names of tensors that no output depends on.
    unused: &'static [&'static str],
    /// Changes of tensors beyond their names and axes of length 1.
    convert: fn(&mut Weights, &Architecture) -> Result<(), WeightsError>,
    /// How images are prepared without a `preprocessor_config.json`.
    preprocessing: fn() -> Preprocess,
    /// The image size is that of the image processor: the model takes any, and resamples its positions.
    any_size: bool,
    /// The configuration of a model and the tensors as the type's classes have them, where writing is possible.
    write: Option<Writer>,
}

/// The options of a configuration.
type Options = Map<String, Value>;

/// How a model type is written.
struct Writer {
    /// The class, and its configuration without what all types have in common; or the option that the type lacks.
    config: fn(&Architecture) -> Result<(String, Options), String>,
    /// The reverse of [`ModelType::convert`], with the shapes of transformers.
    convert: fn(&mut Weights) -> Result<(), WeightsError>,
}

/// The class that a configuration is for.
#[derive(Clone, Copy)]
struct Task<'a> {
    /// Its name, as in `ViTForImageClassification`.
    class: &'a str,
    /// Classes of its head; 0 without one.
    labels: usize,
}

/// Options that do not change what a model computes: those of every configuration, most of them of text generation, which
/// older files list in full.
const IGNORED: &[&str] = &[
    "_attn_implementation",
    "_commit_hash",
    "_name_or_path",
    "_out_features",
    "_out_indices",
    "add_cross_attention",
    "apply_layernorm",
    "architectures",
    "attn_implementation",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "encoder_stride",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "initializer_factor",
    "initializer_range",
    "is_decoder",
    "is_encoder_decoder",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "model_type",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "out_features",
    "out_indices",
    "output_attentions",
    "output_hidden_states",
    "output_scores",
    "pad_token_id",
    "pooler_act",
    "pooler_output_size",
    "prefix",
    "problem_type",
    "pruned_heads",
    "remove_invalid_values",
    "repetition_penalty",
    "reshape_hidden_states",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "stage_names",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tie_word_embeddings",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "use_bfloat16",
    "use_cache",
];

/// The model type of a `config.json`, if it is transformers'.
pub(crate) fn model_type(config: &Value) -> Option<&'static ModelType> {
    if let Some(name) = config.get("model_type").and_then(Value::as_str) {
        return TYPES.iter().find(|known| known.name == name);
    }
    let class = config.get("class")?.as_str()?.strip_prefix("transformers.")?;
    of_class(class.rsplit('.').next().unwrap_or_default())
}

/// The type whose classes' names begin like this one; of several, that with the longest.
fn of_class(class: &str) -> Option<&'static ModelType> {
    TYPES.iter().filter(|known| class.starts_with(known.class)).max_by_key(|known| known.class.len())
}

/// Parses transformers' `config.json`.
pub(crate) fn parse(map: &Map<String, Value>, preprocessor: Option<&Value>) -> Result<Config, String> {
    let class = map.get("architectures").and_then(|a| a.as_array()?.first()?.as_str()).unwrap_or_default();
    let name = map["model_type"].as_str().unwrap_or_default();
    let Some(found) = TYPES.iter().find(|known| known.name == name) else {
        let known: Vec<&str> = TYPES.iter().map(|known| known.name).collect();
        return Err(format!(
            "Hugging Face's model type `{name}` is not known here; those that are: {}",
            known.join(", ")
        ));
    };
    found.config(class, map, preprocessor)
}

/// The configuration of a class and the arguments of its configuration.
pub(crate) fn from_arguments(class: &str, args: &Map<String, Value>) -> Result<Config, String> {
    let Some(found) = of_class(class) else {
        let known: Vec<String> = TYPES.iter().map(|known| format!("{}…", known.class)).collect();
        return Err(format!(
            "the class `transformers.{class}` is not known here; those that are: {}",
            known.join(", ")
        ));
    };
    found.config(class, args, None)
}

impl ModelType {
    fn config(&self, class: &str, map: &Map<String, Value>, preprocessor: Option<&Value>) -> Result<Config, String> {
        let args = Arguments::new("Hugging Face", map);
        let labels = labels(args.object("id2label")?);
        let classes = if class.contains("ForImageClassification") {
            args.count("num_labels")?.unwrap_or(if labels.is_empty() { 2 } else { labels.len() })
        } else {
            0
        };
        let mut architecture = (self.read)(&args, Task { class, labels: classes })?;
        args.finish(IGNORED)?;
        let usual = Preprocess { image_size: architecture.image_size(), ..(self.preprocessing)() };
        let preprocessing = match preprocessor.and_then(Value::as_object) {
            Some(map) => processor::parse(map, &usual, self.any_size)?,
            None => usual,
        };
        // Without positions there is nothing to resample when the weights are opened.
        if self.any_size && architecture.position_layout("pos_embed").is_none() {
            architecture.set_image_size(preprocessing.image_size);
        }
        let generic = labels.iter().enumerate().all(|(i, label)| *label == format!("LABEL_{i}"));
        let labels = if generic || labels.len() != classes { Vec::new() } else { labels };
        Ok(Config { name: None, architecture, preprocessing, labels, problem_type: ProblemType::parse(map)? })
    }

    /// Whether options of this type give a model, but for its rates of dropout, which belong to training, and an image size
    /// that no option states.
    fn gives(&self, class: &str, options: &Map<String, Value>, model: &Architecture) -> bool {
        let mut options = options.clone();
        options.insert("num_labels".into(), json!(model.classes()));
        let Ok(Config { architecture: mut read, .. }) = self.config(class, &options, None) else { return false };
        let mut model = model.clone();
        read.set_image_size(model.image_size());
        for architecture in [&mut read, &mut model] {
            architecture.set_dropout(0.0);
            architecture.set_attention_dropout(0.0);
            architecture.set_drop_path(0.0);
        }
        read == model
    }

    /// Whether a file has this type's names, and not canonical ones.
    pub(crate) fn recognises(&self, weights: &Weights, model: &Architecture) -> bool {
        let names = (self.names)(model);
        let renamed = |name: &String| {
            let inner = name.strip_prefix(self.base).unwrap_or(name);
            names.ours(inner).is_some_and(|(ours, _)| ours != *name)
        };
        weights.tensors.keys().any(renamed)
    }

    /// Canonical weights of a file of this type.
    pub(crate) fn to_canonical(&self, weights: Weights, model: &Architecture) -> Result<Weights, WeightsError> {
        // Where the configuration contradicts itself, `adapt` says so.
        let parameters = model.parameters().unwrap_or_default();
        let shapes: HashMap<String, Vec<usize>> = parameters.into_iter().map(|p| (p.name, p.shape.to_vec())).collect();
        let mut ours = names::to_canonical(weights, &(self.names)(model), self.base, self.unused, &shapes)?;
        (self.convert)(&mut ours, model)?;
        Ok(ours)
    }
}

/// The values of `id2label` in the order of its keys.
fn labels(by_number: Option<&Map<String, Value>>) -> Vec<String> {
    let by_number = by_number.cloned().unwrap_or_default();
    (0..by_number.len()).map_while(|i| by_number.get(&i.to_string())?.as_str().map(str::to_string)).collect()
}

/// The class of a type, with a head where the model has classes.
fn class_of(prefix: &str, model: &Architecture) -> String {
    format!("{prefix}{}", if model.classes() > 0 { "ForImageClassification" } else { "Model" })
}

/// No change of tensors.
fn unchanged(_: &mut Weights, _: &Architecture) -> Result<(), WeightsError> {
    Ok(())
}

/// The type that expresses a model, the class and its options; or why none does.
fn writable(model: &Architecture) -> Result<(&'static ModelType, &'static Writer, String, Options), String> {
    let mut reasons = Vec::new();
    for known in TYPES {
        let Some(writer) = &known.write else { continue };
        match (writer.config)(model) {
            Ok((class, options)) if known.gives(&class, &options, model) => {
                return Ok((known, writer, class, options));
            }
            Ok(_) => reasons.push(format!("Hugging Face's `{}` has no option for a part of this model", known.name)),
            Err(reason) => reasons.push(reason),
        }
    }
    reasons.dedup();
    // The reasons of other architectures say nothing about this one.
    let own = reasons.into_iter().find(|reason| !reason.is_empty());
    Err(own.unwrap_or_else(|| format!("none of Hugging Face's model types that are known here is a {}", model.kind())))
}

/// Hugging Face's `config.json` of a model, or why its classes cannot express it and what to write instead.
pub fn hugging_face_config(config: &Config) -> Result<Value, String> {
    let model = &config.architecture;
    let (known, _, class, mut options) = writable(model).map_err(|reason| {
        let instead = if timm_can_build(config) {
            "write timm's layout, which transformers opens too where timm is installed"
        } else {
            "timm's layout keeps it for vit, but neither library can build this model"
        };
        format!("{reason}; {instead}")
    })?;
    let classes = model.classes();
    let label = |i: usize| config.labels.get(i).cloned().unwrap_or_else(|| format!("LABEL_{i}"));
    options.insert("architectures".into(), json!([class]));
    options.insert("model_type".into(), json!(known.name));
    let id2label: Map<String, Value> = (0..classes).map(|i| (i.to_string(), json!(label(i)))).collect();
    options.insert("id2label".into(), json!(id2label));
    options.insert("label2id".into(), (0..classes).map(|i| (label(i), json!(i))).collect::<Map<_, _>>().into());
    if classes > 0 {
        options.insert(ProblemType::KEY.into(), json!(config.problem_type.name()));
    }
    Ok(Value::Object(options))
}

/// Weights under transformers' names. A tensor that the model's type does not have is an error.
pub fn hugging_face_weights(weights: &Weights, model: &Architecture) -> Result<Weights, WeightsError> {
    let (known, writer, class, _) =
        writable(model).map_err(|what| WeightsError::unsupported("Hugging Face's layout", what))?;
    let mut theirs = weights.clone();
    (writer.convert)(&mut theirs)?;
    let theirs = names::from_canonical(&theirs, &(known.names)(model), known.name)?;
    Ok(if class.contains("For") { prefixed(theirs, known.base) } else { theirs })
}

/// The tensors with the prefix that the model has in a class with a head; those of the head keep their names.
fn prefixed(mut weights: Weights, base: &str) -> Weights {
    let heads = ["classifier", "cls_classifier", "distillation_classifier"];
    let inside = |name: &String| !heads.iter().any(|head| name.split('.').next() == Some(head));
    weights.tensors = std::mem::take(&mut weights.tensors)
        .into_iter()
        .map(|(name, tensor)| (if inside(&name) { format!("{base}{name}") } else { name }, tensor))
        .collect();
    weights
}

/// Names of a ViT or DeiT without a configuration, in both directions.
pub(crate) mod without_config {
    use super::*;

    /// Canonical names.
    pub fn to_canonical(weights: Weights) -> Result<Weights, WeightsError> {
        let bases = ["vit.", "deit."];
        let base = bases.into_iter().find(|base| weights.tensors.keys().any(|name| name.starts_with(base)));
        let names = deit::names_by_heads(true).and(vit_mae::DECODER);
        names::to_canonical(weights, &names, base.unwrap_or_default(), vit::UNUSED, &HashMap::new())
    }

    /// transformers' names.
    pub fn from_canonical(weights: &Weights) -> Result<Weights, WeightsError> {
        let has = |name: &str| weights.tensors.contains_key(name);
        let (kind, base) = if has("dist_token") { ("deit", "deit.") } else { ("vit", "vit.") };
        let theirs = names::from_canonical(weights, &deit::names_by_heads(has("head_dist.weight")), kind)?;
        weights.get("cls_token")?;
        Ok(prefixed(theirs, base))
    }
}
