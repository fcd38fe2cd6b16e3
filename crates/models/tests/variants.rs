//! The named models are those of timm 1.0.30 (`sum(p.numel() for p in timm.create_model(name).parameters())`, and the
//! evaluation transform in its default configuration), and of the papers.

use vit_graph::cost::Cost;
use vit_models::vit::Vit;
use vit_models::{Mode, Preprocess, Variant, variant, variants};

const HALF: [f32; 2] = [0.5, 0.5];
const IMAGENET: [f32; 2] = [0.485, 0.229];

/// Name, parameters, image size, crop fraction, the first channel's mean and deviation. All resize bicubically and crop
/// the centre.
const TIMM: [(&str, u64, usize, f64, [f32; 2]); 44] = [
    ("vit_tiny_patch16_224", 5_717_416, 224, 0.9, HALF),
    ("vit_tiny_patch16_384", 5_790_376, 384, 1.0, HALF),
    ("vit_small_patch32_224", 22_878_952, 224, 0.9, HALF),
    ("vit_small_patch32_384", 22_915_432, 384, 1.0, HALF),
    ("vit_small_patch16_224", 22_050_664, 224, 0.9, HALF),
    ("vit_small_patch16_384", 22_196_584, 384, 1.0, HALF),
    ("vit_small_patch8_224", 22_055_272, 224, 0.9, IMAGENET),
    ("vit_base_patch32_224", 88_224_232, 224, 0.9, HALF),
    ("vit_base_patch32_384", 88_297_192, 384, 1.0, HALF),
    ("vit_base_patch16_224", 86_567_656, 224, 0.9, HALF),
    ("vit_base_patch16_384", 86_859_496, 384, 1.0, HALF),
    ("vit_base_patch8_224", 86_576_872, 224, 0.9, HALF),
    ("vit_large_patch32_224", 306_535_400, 224, 0.9, HALF),
    ("vit_large_patch32_384", 306_632_680, 384, 1.0, HALF),
    ("vit_large_patch16_224", 304_326_632, 224, 0.9, HALF),
    ("vit_large_patch16_384", 304_715_752, 384, 1.0, HALF),
    ("vit_large_patch14_224", 304_203_752, 224, 0.9, HALF),
    ("vit_huge_patch14_224", 632_045_800, 224, 0.9, HALF),
    ("vit_giant_patch14_224", 1_012_611_432, 224, 0.9, HALF),
    ("vit_gigantic_patch14_224", 1_844_440_680, 224, 0.9, HALF),
    ("deit_tiny_patch16_224", 5_717_416, 224, 0.9, IMAGENET),
    ("deit_small_patch16_224", 22_050_664, 224, 0.9, IMAGENET),
    ("deit_base_patch16_224", 86_567_656, 224, 0.9, IMAGENET),
    ("deit_base_patch16_384", 86_859_496, 384, 1.0, IMAGENET),
    ("deit_tiny_distilled_patch16_224", 5_910_800, 224, 0.9, IMAGENET),
    ("deit_small_distilled_patch16_224", 22_436_432, 224, 0.9, IMAGENET),
    ("deit_base_distilled_patch16_224", 87_338_192, 224, 0.9, IMAGENET),
    ("deit_base_distilled_patch16_384", 87_630_032, 384, 1.0, IMAGENET),
    ("deit3_small_patch16_224", 22_059_496, 224, 0.9, IMAGENET),
    ("deit3_medium_patch16_224", 38_849_512, 224, 0.9, IMAGENET),
    ("deit3_base_patch16_224", 86_585_320, 224, 0.9, IMAGENET),
    ("deit3_large_patch16_224", 304_374_760, 224, 0.9, IMAGENET),
    ("deit3_huge_patch14_224", 632_126_440, 224, 0.9, IMAGENET),
    ("vit_medium_patch16_gap_240", 38_845_416, 240, 0.95, HALF),
    ("vit_small_patch14_dinov2", 22_056_192, 518, 1.0, IMAGENET),
    ("vit_small_patch14_reg4_dinov2", 22_057_344, 518, 1.0, IMAGENET),
    ("vit_base_patch14_dinov2", 86_579_712, 518, 1.0, IMAGENET),
    ("vit_base_patch14_reg4_dinov2", 86_582_016, 518, 1.0, IMAGENET),
    ("vit_large_patch14_dinov2", 304_367_616, 518, 1.0, IMAGENET),
    ("vit_large_patch14_reg4_dinov2", 304_370_688, 518, 1.0, IMAGENET),
    ("vit_base_patch16_siglip_224", 92_884_224, 224, 0.9, HALF),
    ("vit_base_patch16_siglip_256", 92_930_304, 256, 0.9, HALF),
    ("vit_base_patch16_siglip_384", 93_176_064, 384, 0.9, HALF),
    ("vit_large_patch16_siglip_256", 315_956_224, 256, 0.9, HALF),
];

/// timm gives these another number of classes by default; counted with `num_classes=1000`.
const OTHER_CLASSES: [&str; 4] =
    ["vit_small_patch8_224", "vit_large_patch32_224", "vit_huge_patch14_224", "vit_medium_patch16_gap_240"];

/// Not in timm: the paper's "M", which timm has for DeiT III and mean-pooled models only.
const NOT_IN_TIMM: [(&str, u64); 2] = [("vit_medium_patch32_224", 39_942_120), ("vit_medium_patch16_224", 38_837_736)];

fn cost(name: &str) -> Cost {
    Cost::of(&variant(name).unwrap().architecture.build(1, Mode::Inference).unwrap())
}

#[test]
fn parameters_are_as_many_as_timms() {
    for (name, parameters, ..) in TIMM {
        assert_eq!(cost(name).parameters(), parameters, "{name}");
    }
    assert!(OTHER_CLASSES.iter().all(|name| TIMM.iter().any(|(n, ..)| n == name)));
}

#[test]
fn every_variant_is_in_the_tables() {
    let known: Vec<&str> = TIMM.iter().map(|(name, ..)| *name).chain(NOT_IN_TIMM.map(|(name, _)| name)).collect();
    // Other models are in the table of `family.rs`.
    let plain = |v: &Variant| v.architecture.downcast_ref().is_some_and(|vit: &Vit| vit.backbone.is_none());
    let all: Vec<Variant> = variants().into_iter().filter(plain).collect();
    for v in &all {
        assert!(known.contains(&v.name.as_str()), "{}", v.name);
    }
    assert_eq!(all.len(), known.len());
    for (name, parameters) in NOT_IN_TIMM {
        assert_eq!(cost(name).parameters(), parameters, "{name}");
    }
}

#[test]
fn preprocessing_is_timms() {
    for (name, _, image, crop_pct, [mean, std]) in TIMM {
        let usual = if mean == 0.5 { Preprocess::inception() } else { Preprocess::imagenet() };
        let expected = Preprocess { image_size: [image, image], crop_pct, ..usual };
        let found = variant(name).unwrap();
        assert_eq!(found.preprocessing, expected, "{name}");
        assert_eq!((found.preprocessing.mean[0], found.preprocessing.std[0]), (mean, std), "{name}");
        assert_eq!(
            (found.preprocessing.crop_mode.name(), found.preprocessing.interpolation.name()),
            ("center", "bicubic")
        );
        assert_eq!(found.architecture.image_size(), [image, image], "{name}");
    }
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
