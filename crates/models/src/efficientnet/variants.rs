//! The named EfficientNets: B0 to B8 and L2, their TensorFlow forms, and EfficientNetV2.

use vit_graph::ops::Activation;

use super::{EfficientNet, Scaling, parse_stages};
use crate::layers::{Norm, Padding};
use crate::variant::Variant;
use vit_preprocess::{CropMode, Preprocess};

/// Table 1 of the paper.
const B0: [&str; 7] = [
    "ds_r1_k3_s1_e1_c16_se0.25",
    "ir_r2_k3_s2_e6_c24_se0.25",
    "ir_r2_k5_s2_e6_c40_se0.25",
    "ir_r3_k3_s2_e6_c80_se0.25",
    "ir_r3_k5_s1_e6_c112_se0.25",
    "ir_r4_k5_s2_e6_c192_se0.25",
    "ir_r1_k3_s1_e6_c320_se0.25",
];

const V2_S: [&str; 6] = [
    "cn_r2_k3_s1_e1_c24_skip",
    "er_r4_k3_s2_e4_c48",
    "er_r4_k3_s2_e4_c64",
    "ir_r6_k3_s2_e4_c128_se0.25",
    "ir_r9_k3_s1_e6_c160_se0.25",
    "ir_r15_k3_s2_e6_c256_se0.25",
];

const V2_M: [&str; 7] = [
    "cn_r3_k3_s1_e1_c24_skip",
    "er_r5_k3_s2_e4_c48",
    "er_r5_k3_s2_e4_c80",
    "ir_r7_k3_s2_e4_c160_se0.25",
    "ir_r14_k3_s1_e6_c176_se0.25",
    "ir_r18_k3_s2_e6_c304_se0.25",
    "ir_r5_k3_s1_e6_c512_se0.25",
];

const V2_L: [&str; 7] = [
    "cn_r4_k3_s1_e1_c32_skip",
    "er_r7_k3_s2_e4_c64",
    "er_r7_k3_s2_e4_c96",
    "ir_r10_k3_s2_e4_c192_se0.25",
    "ir_r19_k3_s1_e6_c224_se0.25",
    "ir_r25_k3_s2_e6_c384_se0.25",
    "ir_r7_k3_s1_e6_c640_se0.25",
];

const V2_XL: [&str; 7] = [
    "cn_r4_k3_s1_e1_c32_skip",
    "er_r8_k3_s2_e4_c64",
    "er_r8_k3_s2_e4_c96",
    "ir_r16_k3_s2_e4_c192_se0.25",
    "ir_r24_k3_s1_e6_c256_se0.25",
    "ir_r32_k3_s2_e6_c512_se0.25",
    "ir_r8_k3_s1_e6_c640_se0.25",
];

/// Compound scaling: name, width, depth.
const SCALES: [(&str, f64, f64); 10] = [
    ("b0", 1.0, 1.0),
    ("b1", 1.0, 1.1),
    ("b2", 1.1, 1.2),
    ("b3", 1.2, 1.4),
    ("b4", 1.4, 1.8),
    ("b5", 1.6, 2.2),
    ("b6", 1.8, 2.6),
    ("b7", 2.0, 3.1),
    ("b8", 2.2, 3.6),
    ("l2", 4.3, 5.3),
];

/// The preprocessing of published weights.
#[derive(Clone, Copy)]
struct EvalTransform {
    image: usize,
    crop_pct: f64,
    crop_mode: CropMode,
    /// Colours from -1 to 1 instead of standardised by ImageNet's mean and deviation.
    inception: bool,
}

const fn transform(image: usize, crop_pct: f64) -> EvalTransform {
    EvalTransform { image, crop_pct, crop_mode: CropMode::Center, inception: false }
}

const fn inception(image: usize, crop_pct: f64, crop_mode: CropMode) -> EvalTransform {
    EvalTransform { image, crop_pct, crop_mode, inception: true }
}

/// Those of timm's training, in the order of [`SCALES`].
const OWN: [EvalTransform; 10] = [
    transform(224, 0.875),
    inception(240, 0.9, CropMode::Center),
    transform(256, 0.875),
    transform(288, 0.875),
    transform(320, 0.875),
    EvalTransform { crop_mode: CropMode::Squash, ..transform(448, 1.0) },
    transform(528, 0.942),
    transform(600, 0.949),
    transform(672, 0.954),
    transform(800, 0.961),
];

/// Google's, Noisy Student's where there are any.
const TENSORFLOW: [EvalTransform; 10] = [
    transform(224, 0.875),
    transform(240, 0.882),
    transform(260, 0.89),
    transform(300, 0.904),
    transform(380, 0.922),
    transform(456, 0.934),
    transform(528, 0.942),
    transform(600, 0.949),
    inception(672, 0.954, CropMode::Center),
    transform(475, 0.936),
];

/// Name, definition, width of the stem, timm's and Google's preprocessing.
const SECOND: [(&str, &[&str], usize, EvalTransform, EvalTransform); 4] = [
    ("s", &V2_S, 24, transform(288, 1.0), inception(300, 1.0, CropMode::Center)),
    ("m", &V2_M, 24, transform(320, 1.0), inception(384, 1.0, CropMode::Squash)),
    ("l", &V2_L, 32, transform(384, 1.0), inception(384, 1.0, CropMode::Squash)),
    ("xl", &V2_XL, 32, transform(384, 1.0), inception(384, 1.0, CropMode::Squash)),
];

/// The published variants, smallest first.
pub(super) fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    for (prefix, tensorflow) in [("efficientnet_", false), ("tf_efficientnet_", true)] {
        for (i, (size, width, depth)) in SCALES.into_iter().enumerate() {
            let scaling = Scaling { width, depth };
            let net = network(&B0, scaling, scaling.width(32), scaling.width(1280), tensorflow);
            let paper = (!tensorflow).then(|| format!("EfficientNet-{}", size.to_uppercase()));
            all.push(variant(format!("{prefix}{size}"), paper, net, if tensorflow { TENSORFLOW[i] } else { OWN[i] }));
        }
    }
    for (prefix, tensorflow) in [("efficientnetv2_", false), ("tf_efficientnetv2_", true)] {
        for (size, definition, stem, own, google) in SECOND {
            let net = network(definition, Scaling::NONE, stem, 1280, tensorflow);
            all.push(variant(format!("{prefix}{size}"), None, net, if tensorflow { google } else { own }));
        }
    }
    all
}

fn network(
    definition: &[&str],
    scaling: Scaling,
    stem_width: usize,
    features: usize,
    tensorflow: bool,
) -> EfficientNet {
    let stages: Vec<Vec<String>> = definition.iter().map(|stage| vec![stage.to_string()]).collect();
    EfficientNet {
        stages: parse_stages(&stages, scaling).expect("the tables above are well formed"),
        stem_width,
        features,
        padding: if tensorflow { Padding::Same } else { Padding::Symmetric },
        norm: if tensorflow { Norm::Batch { epsilon: 1e-3, momentum: 0.1 } } else { Norm::BATCH },
        ..EfficientNet::default()
    }
}

impl Default for EfficientNet {
    /// No stages; all other choices as in the paper.
    fn default() -> Self {
        EfficientNet {
            image_size: [224, 224],
            channels: 3,
            classes: 1000,
            stem_width: 32,
            stem_kernel: 3,
            stages: Vec::new(),
            features: 1280,
            output_stride: 32,
            padding: Padding::Symmetric,
            activation: Activation::Silu,
            norm: Norm::BATCH,
            dropout: 0.0,
            drop_path: 0.0,
        }
    }
}

fn variant(name: String, paper_name: Option<String>, net: EfficientNet, transform: EvalTransform) -> Variant {
    let image_size = [transform.image; 2];
    let usual = if transform.inception { Preprocess::inception() } else { Preprocess::imagenet() };
    Variant {
        name,
        paper_name,
        family: "EfficientNet",
        architecture: EfficientNet { image_size, ..net }.into(),
        preprocessing: Preprocess { image_size, crop_pct: transform.crop_pct, crop_mode: transform.crop_mode, ..usual },
    }
}
