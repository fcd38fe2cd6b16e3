//! The metadata of an exported file: class labels, and the preprocessing of images.

use serde_json::json;

use super::{Options, Tower};
use crate::config::{self, Config};

/// Names and values, of which all but plain words are JSON.
pub(super) fn metadata(config: &Config, options: Options) -> Vec<(String, String)> {
    let mut entries = match options.tower {
        Tower::Image => of_images(config, options.preprocess),
        Tower::Text => Vec::new(),
    };
    let classes = config.architecture.classes();
    if classes > 0 {
        entries.push(("problem_type", config.problem_type.name().into()));
        if config.labels.len() == classes {
            entries.push(("labels", json!(config.labels).to_string()));
        }
    }
    // The whole configuration, as in a checkpoint's config.json.
    entries.push(("config", config::timm_config(config).to_string()));
    entries.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

/// How images are prepared; `normalises` is whether the graph divides by 255 and normalises.
fn of_images(config: &Config, normalises: bool) -> Vec<(&'static str, String)> {
    let p = &config.preprocessing;
    vec![
        ("image_size", json!(p.image_size).to_string()),
        ("mean", json!(short(&p.mean)).to_string()),
        ("std", json!(short(&p.std)).to_string()),
        ("interpolation", p.interpolation.name().into()),
        ("crop_pct", json!(p.crop_pct).to_string()),
        ("crop_mode", p.crop_mode.name().into()),
        ("normalises", normalises.to_string()),
    ]
}

/// The shortest decimal that is read as the same f32.
fn short(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| config::timm::short(value)).collect()
}
