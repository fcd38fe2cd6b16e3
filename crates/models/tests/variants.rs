//! The named models are those of timm 1.0.30, to the parameter and with its evaluation transforms, and of the papers.

use vit_graph::cost::Cost;
use vit_models::vit::Vit;
use vit_models::{Mode, Preprocess, Variant, variant, variants};

/// A line of `timm_models.csv`, which `bench/timm_reference.py` writes: what timm says about a model.
struct Reference<'a> {
    name: &'a str,
    /// Of the published weights; 0 where they have no head.
    classes: usize,
    /// With the published head, or with 1000 classes where there is none.
    parameters: u64,
    /// Height and width.
    image: [usize; 2],
    crop_pct: f64,
    crop_mode: &'a str,
    interpolation: &'a str,
    mean: f32,
    std: f32,
}

fn size(text: &str) -> [usize; 2] {
    let (height, width) = text.split_once('x').unwrap();
    [height, width].map(|side| side.parse().unwrap())
}

fn reference() -> Vec<Reference<'static>> {
    let lines = include_str!("timm_models.csv").lines().skip(1);
    lines
        .map(|line| {
            let fields: Vec<&str> = line.split(',').collect();
            let [name, classes, parameters, image, crop_pct, crop_mode, interpolation, mean, std] = fields[..] else {
                panic!("{line}")
            };
            Reference {
                name,
                classes: classes.parse().unwrap(),
                parameters: parameters.parse().unwrap(),
                image: size(image),
                crop_pct: crop_pct.parse().unwrap(),
                crop_mode,
                interpolation,
                mean: mean.parse().unwrap(),
                std: std.parse().unwrap(),
            }
        })
        .collect()
}

/// Models of the paper that are built with 1000 classes, though timm's published weights have no head.
const WITH_HEAD: [&str; 4] =
    ["vit_small_patch8_224", "vit_large_patch32_224", "vit_huge_patch14_224", "vit_base_r50_s16_224"];

/// Not in timm: the paper's "M", which timm has for DeiT III and mean-pooled models only.
const NOT_IN_TIMM: [(&str, u64); 2] = [("vit_medium_patch32_224", 39_942_120), ("vit_medium_patch16_224", 38_837_736)];

fn cost(name: &str) -> Cost {
    Cost::of(&variant(name).unwrap().architecture.build(1, Mode::Inference).unwrap())
}

#[test]
fn parameters_are_as_many_as_timms() {
    let published = variants();
    for Reference { name, classes, parameters, .. } in reference() {
        let mut found = published.iter().find(|v| v.name == name).unwrap_or_else(|| panic!("{name}")).clone();
        let expected = if WITH_HEAD.contains(&name) { 1000 } else { classes };
        assert_eq!(found.architecture.classes(), expected, "{name}");
        if expected == 0 {
            found.architecture.set_classes(1000);
        }
        let graph = found.architecture.build(1, Mode::Inference).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(Cost::of(&graph).parameters(), parameters, "{name}");
    }
}

#[test]
fn every_vision_transformer_is_in_the_table() {
    let known: Vec<&str> = reference().iter().map(|r| r.name).chain(NOT_IN_TIMM.map(|(name, _)| name)).collect();
    let is_vit = |v: &&Variant| v.architecture.downcast_ref::<Vit>().is_some();
    for v in variants().iter().filter(is_vit) {
        assert!(known.contains(&v.name.as_str()), "{}", v.name);
    }
    for (name, parameters) in NOT_IN_TIMM {
        assert_eq!(cost(name).parameters(), parameters, "{name}");
    }
}

#[test]
fn preprocessing_is_timms() {
    for Reference { name, image, crop_pct, crop_mode, interpolation, mean, std, .. } in reference() {
        let found = variant(name).unwrap();
        let Preprocess { image_size, mean: means, std: stds, .. } = &found.preprocessing;
        assert_eq!(*image_size, image, "{name}");
        assert_eq!(found.architecture.image_size(), image, "{name}");
        assert_eq!(found.preprocessing.crop_pct, crop_pct, "{name}");
        assert_eq!(found.preprocessing.crop_mode.name(), crop_mode, "{name}");
        assert_eq!(found.preprocessing.interpolation.name(), interpolation, "{name}");
        assert_eq!((means[0], stds[0]), (mean, std), "{name}");
    }
}

#[test]
fn timms_forms_of_a_name_are_known() {
    for name in [
        "vit_base_patch16_clip_224",
        "vit_base_patch16_clip_224.openai",
        "timm/vit_base_patch16_clip_224.openai",
        "hf-hub:timm/vit_base_patch16_clip_224.openai",
        "hf_hub:timm/vit_base_patch16_clip_224.openai",
    ] {
        assert_eq!(variant(name).unwrap().name, "vit_base_patch16_clip_224", "{name}");
    }
    assert!(variant("vit_base_patch16_clip").is_none());
}

#[test]
fn the_papers_models_have_the_papers_size() {
    assert_eq!(cost("B/16").parameters(), 86_567_656);
    for (name, millions) in [("B/16", 86.0), ("L/16", 307.0), ("H/14", 632.0)] {
        let found = cost(name).parameters() as f64 / 1e6;
        assert!((found / millions - 1.0).abs() < 0.01, "{name}: {found}");
    }
    let flops = cost("B/16").flops() as f64;
    assert!((flops / 35.1e9 - 1.0).abs() < 0.01, "{flops:e}");
}
