//! Recorded models, and temporary folders.
#![allow(dead_code)] // Each test binary uses its own part.

use std::fs;
use std::path::{Path, PathBuf};

use vit::{Model, ModelOptions};
use vit_models::config::{self, Config};
use vit_models::weights::{Weights, safetensors};
use vit_models::{Checkpoint, OpenOptions};

/// Every recorded Vision Transformer.
pub const CASES: [&str; 19] = [
    "timm_vit",
    "timm_vit_gap",
    "timm_vit_gap_notoken",
    "timm_vit_rect",
    "timm_vit_modern",
    "timm_vit_map",
    "timm_vit_clip",
    "timm_clip_vit",
    "timm_aimv2",
    "timm_parallel",
    "timm_deit_distilled",
    "timm_beit",
    "timm_relpos",
    "hf_vit",
    "hf_deit",
    "hf_deit_plain",
    "jax_vit",
    "jax_vit_gap",
    "tv_vit",
];

/// Every recorded model of the family around it.
pub const FAMILY: [&str; 14] = [
    "timm_bit",
    "timm_bit_fixed",
    "timm_hybrid",
    "jax_hybrid",
    "tv_resnet_basic",
    "tv_resnet_bottleneck",
    "lenet5",
    "lenet5_relu",
    "timm_efficientnet",
    "timm_efficientnet_tf",
    "timm_convnext",
    "timm_swin",
    "timm_coatnet",
    "timm_coatnet_rw",
];

/// A recorded model's folder.
pub fn fixture(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(case)
}

/// The checkpoint of a recorded model.
pub fn open(case: &str) -> Checkpoint {
    Checkpoint::open(&fixture(case), OpenOptions::default()).unwrap()
}

/// Its recorded arrays.
pub fn recorded(case: &str) -> Weights {
    safetensors::read(&fixture(case).join("io.safetensors")).unwrap()
}

/// Refuses a configuration that is another one after it is written and read.
pub fn survives_writing(config: &Config) -> Result<(), String> {
    let read = config::parse(&config::timm_config(config), None).map_err(|what| format!("as written: {what}"))?;
    if read.architecture != config.architecture {
        return Err(format!("written and read it is {:?} instead of {:?}", read.architecture, config.architecture));
    }
    if read.preprocessing != config.preprocessing {
        return Err(format!("written and read, images are prepared as {:?}", read.preprocessing));
    }
    Ok(())
}

/// An empty folder for one test.
pub fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// A copy of a recorded model, to be modified.
pub fn copy(case: &str, name: &str) -> PathBuf {
    let folder = scratch(name);
    for entry in fs::read_dir(fixture(case)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
    }
    folder
}

/// Replaces a safetensors file.
pub fn write(path: &Path, weights: &Weights) {
    safetensors::write(path, weights.iter(), safetensors::Dtype::F32, &weights.metadata).unwrap();
}

/// `tokens`, `features` and, where there are classes, `logits` of a checkpoint for one input, on one thread.
pub fn outputs(checkpoint: &Checkpoint, input: &[f32]) -> Vec<Vec<f32>> {
    let mut names = vec!["tokens", "features"];
    if checkpoint.config.architecture.classes() > 0 {
        names.push("logits");
    }
    let ([height, width], channels) =
        (checkpoint.config.architecture.image_size(), checkpoint.config.architecture.channels());
    let each = channels * height * width;
    let options = ModelOptions::new().batch(input.len() / each).threads(1);
    let options = names.iter().fold(options, |options, name| options.output(*name));
    let device = options.device.open().unwrap();
    let mut model = Model::new(checkpoint.clone(), device.as_ref(), &options).unwrap();
    let images: Vec<Vec<f32>> = input.chunks(each).map(<[f32]>::to_vec).collect();
    model.run_prepared(&images).unwrap();
    names.iter().map(|name| model.output(name, images.len()).unwrap()).collect()
}

/// The largest absolute difference.
pub fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |m, d| if d.is_nan() { f32::INFINITY } else { m.max(d) })
}
