//! OpenCLIP's folders: `open_clip_config.json`, and weights under its names, which are those of OpenAI's CLIP.

use std::path::Path;

use serde_json::{Map, Value};
use vit_graph::ops::Activation;

use super::{Clip, Pairing, TextPooling, TextTower, variants};
use crate::config::{Arguments, Config};
use crate::problem_type::ProblemType;
use crate::variant::variant;
use crate::vit::{Embedding, FinalNorm, Pooling, Vit, quick_gelu};
use crate::weights::names::original::{CLIP, replaced, transposed};
use crate::weights::names::timm;
use crate::weights::{Weights, WeightsError};
use vit_preprocess::{CropMode, Filter, Preprocess};

/// The configuration's file.
pub(crate) const CONFIG: &str = "open_clip_config.json";

/// The weights' files, in order of preference.
pub(crate) const WEIGHTS: [&str; 3] =
    ["open_clip_model.safetensors", "open_clip_pytorch_model.safetensors", "open_clip_pytorch_model.bin"];

/// Options that do not change what a model computes, or do so in training only.
const IGNORED: &[&str] = &[
    "init_logit_bias",
    "init_logit_scale",
    "custom_text",
    "output_tokens",
    "patch_dropout",
    "timm_model_pretrained",
    "timm_drop",
    "timm_drop_path",
    "hf_tokenizer_name",
    "tokenizer_kwargs",
    "tokenizer_mode",
    "text_mask",
    "eos_id",
    "pad_id",
    "attentional_pool",
    "no_ln_pre",
    "embed_cls",
];

/// Reads `open_clip_config.json`.
pub(crate) fn parse(json: &Value) -> Result<Config, String> {
    let map = json.as_object().ok_or("the configuration is not a JSON object")?;
    let root = Arguments::new("OpenCLIP", map);
    let model = object(&root, "model_cfg")?;
    let (vision, text) = (object(&model, "vision_cfg")?, object(&model, "text_cfg")?);
    let embed_dim = model.count("embed_dim")?.ok_or("OpenCLIP's option `embed_dim` is missing")?;
    let quick = model.flag("quick_gelu")?.unwrap_or(false);
    let sigmoid = model.number("init_logit_bias")?.is_some();
    let clip = Clip {
        image: image_tower(&vision, embed_dim, quick)?,
        text: text_tower(&text, embed_dim, quick)?,
        pairing: if sigmoid { Pairing::Sigmoid } else { Pairing::Softmax },
    };
    for args in [&vision, &text, &model] {
        args.finish(IGNORED)?;
    }
    let preprocessing = match root.object("preprocess_cfg")? {
        Some(cfg) => preprocessing(cfg)?,
        None => variants::preprocess(),
    };
    let preprocessing = Preprocess { image_size: clip.image.image_size, ..preprocessing };
    Ok(Config {
        name: None,
        architecture: clip.into(),
        preprocessing,
        labels: Vec::new(),
        problem_type: ProblemType::default(),
    })
}

/// OpenCLIP's cleaning of a text before it is tokenised.
pub(crate) fn cleaning(json: &Value) -> &str {
    let text = json.pointer("/model_cfg/text_cfg");
    let of_text = |option: &str| text?.pointer(option)?.as_str();
    // The defaults of its classes `HFTokenizer` and `SimpleTokenizer`.
    let usual = if of_text("/hf_tokenizer_name").is_some() { "whitespace" } else { "lower" };
    of_text("/tokenizer_kwargs/clean").unwrap_or(usual)
}

fn object<'a>(args: &Arguments<'a>, name: &str) -> Result<Arguments<'a>, String> {
    let map = args.object(name)?.ok_or_else(|| format!("OpenCLIP's option `{name}` is missing"))?;
    Ok(Arguments::new("OpenCLIP", map))
}

fn image_tower(args: &Arguments, embed_dim: usize, quick: bool) -> Result<Vit, String> {
    let image_size = args.pair("image_size")?.unwrap_or([224, 224]);
    if let Some(name) = args.text("timm_model_name")? {
        return timm_tower(args, name, image_size, embed_dim);
    }
    for option in ["attentional_pool", "no_ln_pre"] {
        if args.get(option).is_some_and(|value| *value != Value::Bool(false)) {
            return Err(format!("OpenCLIP's option `{option}` cannot be used here yet"));
        }
    }
    let dim = args.count("width")?.unwrap_or(768);
    let after = args.flag("final_ln_after_pool")?.unwrap_or(false);
    let (pooling, after) = match args.text("pool_type")?.unwrap_or("tok") {
        // The same for a single token, and cheaper.
        "tok" => (Pooling::Token, true),
        "avg" => (Pooling::Mean, after),
        other => return Err(format!("OpenCLIP's option `pool_type` should be tok or avg, not {other}")),
    };
    Ok(Vit {
        image_size,
        patch_size: args.pair("patch_size")?.unwrap_or([16, 16]),
        classes: 0,
        dim,
        depth: args.count("layers")?.unwrap_or(12),
        heads: dim / args.count("head_width")?.unwrap_or(64).max(1),
        mlp_dim: hidden(args, dim)?,
        pre_norm: true,
        pooling,
        final_norm: if after { FinalNorm::AfterPooling } else { FinalNorm::BeforePooling },
        embedding: Some(Embedding::Projected(embed_dim)),
        layer_scale: args.number("ls_init_value")?.map(|initial| initial as f32),
        activation: activation(args, quick)?,
        norm_epsilon: epsilon(args)?,
        ..Vit::default()
    })
}

/// An image tower that is one of timm's models.
fn timm_tower(args: &Arguments, name: &str, image_size: [usize; 2], embed_dim: usize) -> Result<Vit, String> {
    let found = variant(name).ok_or_else(|| format!("timm's model `{name}` is not known here"))?;
    let vit: &Vit = found.architecture.downcast_ref().ok_or_else(|| format!("`{name}` is no Vision Transformer"))?;
    let pool = args.text("timm_pool")?.unwrap_or_default();
    let usual = match vit.pooling {
        Pooling::Token => "token",
        Pooling::Mean => "avg",
        Pooling::Map => "map",
        _ => "",
    };
    if !pool.is_empty() && pool != usual {
        return Err(format!("OpenCLIP's option `timm_pool` should be {usual} for {name}, not {pool}"));
    }
    if args.flag("timm_proj_bias")?.unwrap_or(false) {
        return Err("OpenCLIP's option `timm_proj_bias` cannot be used here yet".into());
    }
    let embedding = match args.text("timm_proj")? {
        Some("none") => Embedding::Pooled,
        Some("linear") => Embedding::Projected(embed_dim),
        other => {
            let found = other.unwrap_or("null");
            return Err(format!("OpenCLIP's option `timm_proj` should be none or linear, not {found}"));
        }
    };
    Ok(Vit { image_size, classes: 0, embedding: Some(embedding), ..vit.clone() })
}

fn text_tower(args: &Arguments, embed_dim: usize, quick: bool) -> Result<TextTower, String> {
    if let Some(name) = args.text("hf_model_name")? {
        return Err(format!("OpenCLIP's text tower `{name}` is one of transformers' models, which are not known here"));
    }
    if args.get("embed_cls").is_some_and(|value| *value == Value::Bool(true)) {
        return Err("OpenCLIP's option `embed_cls` cannot be used here yet".into());
    }
    let (dim, vocabulary) = (args.count("width")?.unwrap_or(512), args.count("vocab_size")?.unwrap_or(49408));
    Ok(TextTower {
        vocabulary,
        context: args.count("context_length")?.unwrap_or(77),
        dim,
        depth: args.count("layers")?.unwrap_or(12),
        heads: args.count("heads")?.unwrap_or(8),
        mlp_dim: hidden(args, dim)?,
        activation: activation(args, quick)?,
        norm_epsilon: epsilon(args)?,
        layer_scale: args.number("ls_init_value")?.map(|initial| initial as f32),
        causal: !args.flag("no_causal_mask")?.unwrap_or(false),
        pooling: match args.text("pool_type")?.unwrap_or("argmax") {
            "argmax" => TextPooling::HighestId,
            "first" => TextPooling::First,
            "last" => TextPooling::Last,
            "eos" => TextPooling::Id(args.count("eos_id")?.unwrap_or(vocabulary.saturating_sub(1)) as i32),
            other => {
                return Err(format!("OpenCLIP's option `pool_type` should be argmax, first, last or eos, not {other}"));
            }
        },
        embed_dim,
        projection_bias: args.flag("proj_bias")?.unwrap_or(false),
    })
}

fn hidden(args: &Arguments, dim: usize) -> Result<usize, String> {
    Ok((dim as f64 * args.number("mlp_ratio")?.unwrap_or(4.0)) as usize)
}

fn activation(args: &Arguments, quick: bool) -> Result<Activation, String> {
    let options = args.object("act_kwargs")?;
    let tanh = options.and_then(|options| options.get("approximate")).is_some_and(|kind| kind == "tanh");
    Ok(match (quick, tanh) {
        (true, _) => Activation::QuickGelu,
        (false, true) => Activation::GeluTanh,
        (false, false) => Activation::Gelu,
    })
}

fn epsilon(args: &Arguments) -> Result<f32, String> {
    let options = args.object("norm_kwargs")?;
    Ok(options.and_then(|options| options.get("eps")?.as_f64()).map_or(1e-5, |epsilon| epsilon as f32))
}

fn preprocessing(cfg: &Map<String, Value>) -> Result<Preprocess, String> {
    let args = Arguments::new("OpenCLIP", cfg);
    let usual = variants::preprocess();
    let floats = |name: &str, usual: Vec<f32>| -> Vec<f32> {
        let all = args.get(name).and_then(Value::as_array);
        all.and_then(|all| all.iter().map(|v| v.as_f64().map(|v| v as f32)).collect()).unwrap_or(usual)
    };
    Ok(Preprocess {
        mean: floats("mean", usual.mean.clone()),
        std: floats("std", usual.std.clone()),
        interpolation: match args.text("interpolation")? {
            None | Some("bicubic" | "random") => Filter::Bicubic,
            Some(name) => name.parse::<Filter>().map_err(|error| error.to_string())?,
        },
        crop_mode: match args.text("resize_mode")?.unwrap_or("shortest") {
            "shortest" => CropMode::Center,
            "squash" => CropMode::Squash,
            other => return Err(format!("OpenCLIP's option `resize_mode` should be shortest or squash, not {other}")),
        },
        ..usual
    })
}

/// Whether these are the names of both towers.
pub(crate) fn recognises(weights: &Weights) -> bool {
    let has = |name: &str| ["", "module."].iter().any(|root| weights.tensors.contains_key(&format!("{root}{name}")));
    has("visual.class_embedding") && has("token_embedding.weight") && has("text_projection")
}

/// The configuration of OpenAI's and OpenCLIP's weights without one, as OpenAI's `build_model` guesses it: heads have a width
/// of 64. OpenAI's files also hold the tensor `input_resolution`, and their activation is the quick GELU. With it the lines to
/// report.
pub(crate) fn guess(weights: &Weights, source: &Path) -> Option<(Config, Vec<String>)> {
    let names: Vec<&str> = weights.tensors.keys().map(|name| name.strip_prefix("module.").unwrap_or(name)).collect();
    let shape = |name: &str| {
        let found = weights.tensors.get(name).or_else(|| weights.tensors.get(&format!("module.{name}")));
        found.map(|tensor| tensor.shape.clone())
    };
    let depth = |tower: &str| {
        let index = |name: &&str| name.strip_prefix(tower)?.split('.').next()?.parse::<usize>().ok();
        names.iter().filter_map(index).max().map_or(0, |last| last + 1)
    };
    let [dim, channels, patch, _] = shape("visual.conv1.weight")?[..] else { return None };
    let [tokens, _] = shape("visual.positional_embedding")?[..] else { return None };
    let [text_dim, embed_dim] = shape("text_projection")?[..] else { return None };
    let [context, _] = shape("positional_embedding")?[..] else { return None };
    let [vocabulary, _] = shape("token_embedding.weight")?[..] else { return None };
    let mlp = |name: &str| shape(name)?.first().copied();
    let usual = variants::base_32();
    let quick = names.contains(&"input_resolution");
    let (activation, report) = match quick {
        true => (Activation::QuickGelu, Vec::new()),
        false => {
            let (activation, mut line) = quick_gelu::by_name(source);
            if activation == Activation::Gelu {
                line += &format!("; `quick_gelu` in the folder's {CONFIG} chooses the other");
            }
            (activation, vec![line])
        }
    };
    let clip = Clip {
        image: Vit {
            image_size: [tokens.saturating_sub(1).isqrt() * patch; 2],
            patch_size: [patch; 2],
            channels,
            dim,
            depth: depth("visual.transformer.resblocks."),
            heads: (dim / 64).max(1),
            mlp_dim: mlp("visual.transformer.resblocks.0.mlp.c_fc.weight")?,
            embedding: Some(Embedding::Projected(embed_dim)),
            activation,
            ..usual.image
        },
        text: TextTower {
            vocabulary,
            context,
            dim: text_dim,
            depth: depth("transformer.resblocks."),
            heads: (text_dim / 64).max(1),
            mlp_dim: mlp("transformer.resblocks.0.mlp.c_fc.weight")?,
            embed_dim,
            activation,
            ..usual.text
        },
        pairing: if names.contains(&"logit_bias") { Pairing::Sigmoid } else { Pairing::Softmax },
    };
    let preprocessing = Preprocess { image_size: clip.image.image_size, ..variants::preprocess() };
    let config = Config {
        name: None,
        architecture: clip.into(),
        preprocessing,
        labels: Vec::new(),
        problem_type: ProblemType::default(),
    };
    Some((config, report))
}

/// Canonical weights of a file under OpenCLIP's names.
pub(crate) fn to_canonical(weights: Weights, clip: &Clip) -> Result<Weights, WeightsError> {
    let mut image = Weights::default();
    let mut ours = Weights { metadata: weights.metadata, ..Weights::default() };
    for (name, tensor) in weights.tensors {
        let name = name.strip_prefix("module.").unwrap_or(&name).to_string();
        match text_name(&name) {
            None if name.starts_with("visual.") => image.insert(name, tensor)?,
            None => {}
            Some(TextName::Transposed(ours_name)) => ours.insert(ours_name, transposed(&name, tensor)?)?,
            Some(TextName::Renamed(name)) => ours.insert(name, tensor)?,
        }
    }
    for (name, shape) in [
        ("text.pos_embed", vec![1, clip.text.context, clip.text.dim]),
        ("logit_scale", vec![1]),
        ("logit_bias", vec![1]),
    ] {
        if let Some(tensor) = ours.tensors.get_mut(name)
            && tensor.data.len() == shape.iter().product::<usize>()
        {
            tensor.shape = shape;
        }
    }
    let after_pooling = clip.image.final_norm == FinalNorm::AfterPooling;
    for (name, tensor) in timm::to_canonical(image)?.tensors {
        let name = match name.strip_prefix("norm.").filter(|_| after_pooling) {
            Some(kind) => format!("fc_norm.{kind}"),
            // The projection as a head has a bias of zeros.
            None if name == "head.bias" => continue,
            None if name == "head.weight" => "proj.weight".into(),
            None => name,
        };
        ours.insert(name, tensor)?;
    }
    Ok(ours)
}

/// The canonical name of a tensor that is not the image tower's.
enum TextName {
    Renamed(String),
    /// Stored `[in, out]`.
    Transposed(String),
}

/// `None` for the image tower and for tensors that no output depends on.
fn text_name(name: &str) -> Option<TextName> {
    let renamed = |name: &str| Some(TextName::Renamed(name.to_string()));
    if ["visual.", "input_resolution", "context_length", "vocab_size"].iter().any(|start| name.starts_with(start)) {
        return None;
    }
    // Of models whose text tower is a module.
    let inner = name.strip_prefix("text.").unwrap_or(name);
    match inner {
        "attn_mask" => None,
        "logit_scale" | "logit_bias" => renamed(inner),
        "text_projection" => Some(TextName::Transposed("text.proj.weight".into())),
        _ => {
            let inner = inner.replace("text_projection.", "proj.").replace("ln_final", "norm");
            renamed(&format!("text.{}", replaced(&inner, &CLIP)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::Tensor;

    #[test]
    fn a_weights_file_without_a_configuration_is_recognised() {
        let mut weights = Weights::default();
        for (name, shape) in [
            ("visual.class_embedding", vec![128]),
            ("visual.conv1.weight", vec![128, 3, 8, 8]),
            ("visual.positional_embedding", vec![17, 128]),
            ("visual.transformer.resblocks.0.mlp.c_fc.weight", vec![512, 128]),
            ("visual.transformer.resblocks.2.mlp.c_fc.weight", vec![512, 128]),
            ("transformer.resblocks.0.mlp.c_fc.weight", vec![256, 64]),
            ("positional_embedding", vec![12, 64]),
            ("token_embedding.weight", vec![90, 64]),
            ("text_projection", vec![64, 32]),
            ("input_resolution", vec![]),
        ] {
            let data = vec![0.0; shape.iter().product()];
            weights.insert(name, Tensor::new(shape, data).unwrap()).unwrap();
        }
        assert!(recognises(&weights));
        let (config, _) = guess(&weights, Path::new("ViT-B-32.pt")).unwrap();
        let clip: &Clip = config.architecture.downcast_ref().unwrap();
        assert_eq!((clip.image.depth, clip.image.heads, clip.image.image_size), (3, 2, [32, 32]));
        assert_eq!((clip.text.depth, clip.text.heads, clip.text.context, clip.text.embed_dim), (1, 1, 12, 32));
        assert_eq!(clip.text.activation, Activation::QuickGelu);
    }
}
