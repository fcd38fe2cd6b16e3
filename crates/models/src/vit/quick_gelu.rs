//! CLIP's weights without a configuration: OpenAI's and some others were trained with `x sigmoid(1.702 x)` in place of GELU,
//! which no tensor shows.

use std::path::Path;

use vit_graph::ops::Activation;
use vit_preprocess::{CropMode, Preprocess};

use super::{BlockKind, Lineage, Vit};
use crate::config::Config;
use crate::layers::{Gate, NormKind};

/// Parts of the names of files and folders whose weights have the quick GELU: OpenAI's tag, and the suffix of OpenCLIP's and
/// timm's models.
const QUICK: [&str; 3] = ["openai", "quickgelu", "quick_gelu"];

/// The activation of CLIP's weights by the name of their file or folder, and a line that says so.
pub(crate) fn by_name(source: &Path) -> (Activation, String) {
    let names = source.iter().rev().take(2).map(|name| name.to_string_lossy().to_lowercase());
    let found = names.flat_map(|name| QUICK.into_iter().filter(move |part| name.contains(part))).next();
    match found {
        Some(part) => (
            Activation::QuickGelu,
            format!("activation: quick_gelu, since the name of the file or its folder has `{part}` in it"),
        ),
        None => (
            Activation::Gelu,
            "activation: gelu was assumed, since CLIP's tensors do not show whether it is gelu or quick_gelu (OpenAI's)".into(),
        ),
    }
}

/// Sets activation and preprocessing of a guessed image tower of CLIP, and returns the lines to report; none for another
/// model.
pub(crate) fn configure(config: &mut Config, source: &Path) -> Vec<String> {
    let Some(vit) = config.architecture.downcast_mut::<Vit>().filter(|vit| is_clip(vit)) else { return Vec::new() };
    let (activation, mut line) = by_name(source);
    vit.activation = activation;
    let classes = vit.classes;
    line += &match (activation, &config.name) {
        (Activation::Gelu, Some(name)) => format!(
            "; a config.json beside the weights with {{\"architecture\": \"{name}\", \"num_classes\": {classes}, \
             \"model_args\": {{\"act_layer\": \"quick_gelu\"}}}} chooses the other"
        ),
        (Activation::Gelu, None) => {
            "; a config.json beside the weights with \"act_layer\": \"quick_gelu\" among its arguments chooses the other".into()
        }
        _ => String::new(),
    };
    // As OpenAI's and OpenCLIP's transforms.
    let size = config.preprocessing.image_size;
    config.preprocessing =
        Preprocess { image_size: size, crop_pct: 1.0, crop_mode: CropMode::Center, ..Preprocess::clip() };
    if activation == Activation::QuickGelu {
        let model = &config.architecture;
        config.name = super::variants::variants().into_iter().find(|v| v.architecture == *model).map(|v| v.name);
    }
    vec![line, "preprocessing: CLIP's, since there is a norm before the first block".into()]
}

fn is_clip(vit: &Vit) -> bool {
    vit.pre_norm
        && vit.class_token
        && vit.backbone.is_none()
        && (vit.lineage, vit.block) == (Lineage::VisionTransformer, BlockKind::PreNorm)
        && (vit.norm, vit.gate, vit.activation) == (NormKind::Layer, Gate::None, Activation::Gelu)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;
    use crate::variant::variant;

    fn opened(file: &str) -> (Config, Vec<String>) {
        let json = serde_json::json!({ "architecture": "vit_base_patch32_clip_224", "num_classes": 512 });
        let mut config = parse(&json, None).unwrap();
        let lines = configure(&mut config, Path::new(file));
        (config, lines)
    }

    #[test]
    fn the_name_of_a_file_says_which_gelu_clip_has() {
        for file in ["ViT-B-32-quickgelu.pt", "weights/vit_base_patch32_clip_224.openai/model.safetensors"] {
            let (config, lines) = opened(file);
            let vit: &Vit = config.architecture.downcast_ref().unwrap();
            assert_eq!(vit.activation, Activation::QuickGelu, "{lines:?}");
            assert_eq!(config.name.as_deref(), Some("vit_base_patch32_clip_quickgelu_224"));
            assert_eq!((config.preprocessing.crop_pct, config.preprocessing.mean[0]), (1.0, 0.481_454_66));
        }
    }

    /// The configuration that the line suggests is one that works.
    #[test]
    fn without_a_name_gelu_is_assumed_and_the_other_can_be_chosen() {
        let (config, lines) = opened("laion/model.safetensors");
        assert_eq!(config.name.as_deref(), Some("vit_base_patch32_clip_224"));
        let (_, rest) = lines[0].split_once(" with ").unwrap();
        let (suggested, _) = rest.split_once(" chooses").unwrap();
        let chosen = parse(&serde_json::from_str(suggested).unwrap(), None).unwrap();
        let quick = variant("vit_base_patch32_clip_quickgelu_224").unwrap();
        assert_eq!(chosen.architecture, quick.architecture);
    }

    #[test]
    fn other_models_are_left_alone() {
        let mut config = parse(&serde_json::json!({ "architecture": "vit_base_patch32_224" }), None).unwrap();
        assert!(configure(&mut config, Path::new("openai.pt")).is_empty());
    }
}
