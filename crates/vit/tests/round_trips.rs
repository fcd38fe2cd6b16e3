//! A checkpoint that is saved and opened again is the same model, in both layouts. Whether timm and
//! transformers open the files takes Python to test, and is not tested here.

mod support;

use support::{CASES, difference, open, outputs, recorded, scratch};
use vit_models::weights::safetensors::Dtype;
use vit_models::{Checkpoint, CropMode, Filter, Layout, OpenOptions, Preprocess};

/// The cases that Hugging Face's classes can express.
const HUGGING_FACE: [&str; 8] = [
    "timm_vit",
    "timm_vit_gap_notoken",
    "timm_vit_rect",
    "timm_deit_distilled",
    "hf_vit",
    "hf_deit",
    "hf_deit_plain",
    "jax_vit_gap",
];

fn again(checkpoint: &Checkpoint, layout: Layout, dtype: Dtype, name: &str) -> Checkpoint {
    let folder = scratch(name);
    checkpoint.save(&folder, layout, dtype).unwrap();
    assert!(std::fs::read_dir(&folder).unwrap().all(|e| !e.unwrap().path().to_string_lossy().contains("partial")));
    let reopened = Checkpoint::open(&folder, OpenOptions::default()).unwrap();
    assert_eq!(reopened.report, [""; 0], "{name}");
    reopened
}

/// A preprocessing by its effect: Hugging Face writes the shorter side before the crop in pixels, not as a fraction.
fn transform(p: &Preprocess) -> (Preprocess, f64) {
    let [height, width] = p.image_size;
    let resized = (height.min(width) as f64 / p.crop_pct).floor();
    (Preprocess { crop_pct: 1.0, ..p.clone() }, resized)
}

#[test]
fn f32_is_exact() {
    for case in CASES {
        let input = recorded(case).tensors["input"].data.clone();
        let original = open(case);
        for (layout, name) in [(Layout::Timm, "timm"), (Layout::HuggingFace, "hf")] {
            if layout == Layout::HuggingFace && !HUGGING_FACE.contains(&case) {
                let refused = original.save(&scratch(&format!("refused_{case}")), layout, Dtype::F32).unwrap_err();
                assert!(refused.to_string().contains("no option for"), "{case}: {refused}");
                continue;
            }
            let reopened = again(&original, layout, Dtype::F32, &format!("f32_{name}_{case}"));
            assert_eq!(reopened.config.architecture, original.config.architecture, "{case} as {name}");
            assert_eq!(transform(&reopened.config.preprocessing), transform(&original.config.preprocessing), "{case}");
            assert_eq!(reopened.weights.tensors, original.weights.tensors, "{case} as {name}");
            assert_eq!(outputs(&reopened, &input), outputs(&original, &input), "{case} as {name}");
        }
    }
}

#[test]
fn other_model_types_of_transformers_are_exact() {
    for case in ["hf_dinov2", "hf_dinov2_registers", "tv_resnet_basic", "tv_resnet_bottleneck"] {
        let original = open(case);
        for layout in [Layout::Timm, Layout::HuggingFace] {
            let reopened = again(&original, layout, Dtype::F32, &format!("types_{layout:?}_{case}"));
            assert_eq!(reopened.config.architecture, original.config.architecture, "{case} as {layout:?}");
            assert_eq!(reopened.weights.tensors, original.weights.tensors, "{case} as {layout:?}");
        }
    }
}

#[test]
fn halves_are_within_their_rounding() {
    for case in HUGGING_FACE {
        let input = recorded(case).tensors["input"].data.clone();
        let original = open(case);
        let expected = outputs(&original, &input);
        for layout in [Layout::Timm, Layout::HuggingFace] {
            // Half a unit in the last place, of 11 and 8 bits; the smallest steps of f16 are 2^-24 apart.
            for (dtype, relative, absolute, most) in
                [(Dtype::F16, 2f32.powi(-11), 2f32.powi(-25), 0.02), (Dtype::BF16, 2f32.powi(-8), 0.0, 0.2)]
            {
                let reopened = again(&original, layout, dtype, &format!("{dtype:?}_{layout:?}_{case}"));
                for (name, tensor) in &original.weights.tensors {
                    for (&before, &after) in tensor.data.iter().zip(&reopened.weights.tensors[name].data) {
                        let allowed = (before.abs() * relative).max(absolute);
                        assert!((before - after).abs() <= allowed, "{case}, {name}, {dtype:?}: {before} {after}");
                    }
                }
                let found = outputs(&reopened, &input);
                let largest = difference(expected.last().unwrap(), found.last().unwrap());
                assert!(largest > 0.0 && largest < most, "{case}, {layout:?}, {dtype:?}: {largest}");
                // Saving the rounded values as f32 does not change them.
                let exact = again(&reopened, layout, Dtype::F32, &format!("{dtype:?}_{layout:?}_{case}_again"));
                assert_eq!(exact.weights.tensors, reopened.weights.tensors);
            }
        }
    }
}

#[test]
fn the_class_head_of_deit_has_the_name_that_its_class_looks_for() {
    for (case, expected, other) in [
        ("hf_deit", "cls_classifier.weight", "classifier.weight"),
        ("hf_deit_plain", "classifier.weight", "cls_classifier.weight"),
    ] {
        let folder = scratch(&format!("head_of_{case}"));
        open(case).save(&folder, Layout::HuggingFace, Dtype::F32).unwrap();
        let weights = vit_models::weights::read(&folder.join("model.safetensors")).unwrap();
        assert!(weights.tensors.contains_key(expected) && !weights.tensors.contains_key(other), "{case}");
    }
}

#[test]
fn the_size_before_a_crop_survives_being_a_fraction() {
    for (image, resized) in [(224, 256), (224, 354), (224, 400), (240, 443), (384, 438), (9, 14)] {
        let mut checkpoint = open("hf_vit");
        checkpoint.config.preprocessing.crop_mode = CropMode::Center;
        checkpoint.config.preprocessing.image_size = [image, image];
        let folder = scratch("fraction");
        checkpoint.save(&folder, Layout::HuggingFace, Dtype::F32).unwrap();
        let path = folder.join("preprocessor_config.json");
        let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        json["size"]["shortest_edge"] = resized.into();
        json["crop_size"] = image.into();
        json["do_center_crop"] = true.into();
        std::fs::write(&path, json.to_string()).unwrap();
        let read = vit_models::read_config(&folder).unwrap().unwrap().preprocessing;
        assert_eq!((image as f64 / read.crop_pct).floor(), f64::from(resized), "{image} of {resized}");
    }
}

#[test]
fn labels_and_preprocessing_travel() {
    let mut checkpoint = open("timm_vit");
    checkpoint.config.labels = (0..11).map(|i| format!("animal {i}")).collect();
    checkpoint.config.preprocessing.crop_pct = 0.5;
    checkpoint.config.preprocessing.interpolation = Filter::Bilinear;
    for layout in [Layout::Timm, Layout::HuggingFace] {
        let reopened = again(&checkpoint, layout, Dtype::F32, &format!("labels_{layout:?}"));
        assert_eq!(reopened.config.labels, checkpoint.config.labels);
        assert_eq!(reopened.config.preprocessing, checkpoint.config.preprocessing);
    }
}

#[test]
fn a_model_of_an_unknown_name_is_what_its_weights_and_arguments_say() {
    for case in ["timm_vit", "timm_vit_modern", "timm_clip_vit"] {
        let original = open(case);
        let folder = scratch(&format!("unknown_{case}"));
        original.save(&folder, Layout::Timm, Dtype::F32).unwrap();
        let path = folder.join("config.json");
        let mut config: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        assert!(config["architecture"].is_string() && config["model_args"].is_object(), "{case}");
        config["architecture"] = "vit_unheard_of_patch8_32".into();
        std::fs::write(&path, config.to_string()).unwrap();
        let opened = Checkpoint::open(&folder, OpenOptions::default()).unwrap();
        assert_eq!(opened.config.architecture, original.config.architecture, "{case}");
        let line = "no model is known by the name `vit_unheard_of_patch8_32`; it is what its weights and arguments say";
        assert_eq!(opened.report, [line], "{case}");
    }
}
