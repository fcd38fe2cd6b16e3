//! Eight-bit inference against 32-bit on the same weights: the recorded small models, and the trained example.

mod support;

use std::path::{Path, PathBuf};

use support::{fixture, recorded};
use vit::{DeviceChoice, DeviceOptions, Image, Model, ModelOptions, Precision};
use vit_models::{Checkpoint, OpenOptions};

/// The largest relative error of the logits that is allowed: what ONNX Runtime's dynamic quantisation has on ViT-B/16.
const ALLOWED: f64 = 0.04;

fn logits(path: &Path, precision: Precision, images: &[Vec<f32>]) -> Vec<f32> {
    let checkpoint = Checkpoint::open(path, OpenOptions::default()).unwrap();
    let device = DeviceOptions::new().device(DeviceChoice::Cpu);
    let options = ModelOptions::new().batch(images.len()).device(device).precision(precision);
    let device = options.device.open().unwrap();
    let mut model = Model::new(checkpoint, device.as_ref(), &options).unwrap();
    model.run_prepared(images).unwrap();
    model.output("logits", images.len()).unwrap()
}

fn relative_error(exact: &[f32], rough: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
    norm(&mut exact.iter().zip(rough).map(|(a, b)| a - b)) / norm(&mut exact.iter().copied())
}

#[test]
fn recorded_models_lose_little_in_eight_bits() {
    for case in ["timm_vit", "timm_vit_gap", "timm_vit_modern", "timm_deit_distilled", "hf_vit", "jax_vit"] {
        let input = &recorded(case).tensors["input"];
        let images: Vec<Vec<f32>> = input.data.chunks(input.data.len() / input.shape[0]).map(<[f32]>::to_vec).collect();
        let [exact, rough] = [Precision::F32, Precision::Int8].map(|p| logits(&fixture(case), p, &images));
        let error = relative_error(&exact, &rough);
        assert!(error > 0.0, "{case}: nothing was quantised");
        assert!(error < ALLOWED, "{case}: {error}");
    }
}

#[test]
fn the_trained_example_says_the_same_in_eight_bits() {
    let root: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    let open = |precision| {
        let options = ModelOptions::new().precision(precision);
        Model::open_with("cifar10", &options).unwrap()
    };
    let (mut exact, mut rough) = (open(Precision::F32), open(Precision::Int8));
    let (mut logits, mut rough_logits) = (Vec::new(), Vec::new());
    for name in ["bird", "car", "dog", "ship"] {
        let image = Image::open(root.join(format!("images/{name}.jpg"))).unwrap();
        assert_eq!(exact.classify(&image).unwrap()[0].class, rough.classify(&image).unwrap()[0].class, "{name}");
        logits.extend(exact.output("logits", 1).unwrap());
        rough_logits.extend(rough.output("logits", 1).unwrap());
    }
    let error = relative_error(&logits, &rough_logits);
    assert!(error > 0.0 && error < ALLOWED, "{error}");
    assert!(rough.memory_bytes() < exact.memory_bytes() / 2);
}
