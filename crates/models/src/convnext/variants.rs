//! The named ConvNeXts: the papers' sizes, and timm's smaller ones.

use super::{ConvNext, ConvNextStem};
use crate::variant::Variant;
use vit_preprocess::{CropMode, Preprocess};

/// Name, blocks of each stage, width of the first, and the papers' letter.
const SIZES: [(&str, [usize; 4], usize, Option<&str>); 10] = [
    ("atto", [2, 2, 6, 2], 40, None),
    ("femto", [2, 2, 6, 2], 48, None),
    ("pico", [2, 2, 6, 2], 64, None),
    ("nano", [2, 2, 8, 2], 80, None),
    ("tiny", [3, 3, 9, 3], 96, Some("T")),
    ("small", [3, 3, 27, 3], 96, Some("S")),
    ("base", [3, 3, 27, 3], 128, Some("B")),
    ("large", [3, 3, 27, 3], 192, Some("L")),
    ("xlarge", [3, 3, 27, 3], 256, Some("XL")),
    ("huge", [3, 3, 27, 3], 352, Some("H")),
];

/// Variants of the first version whose published weights were evaluated on a larger share of the image.
const WIDE_CROP: [&str; 6] =
    ["convnext_pico_ols", "convnext_nano", "convnext_nano_ols", "convnext_tiny", "convnext_tiny_hnf", "convnext_small"];

/// The published variants, smallest first.
pub(super) fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    for (size, depths, width, letter) in SIZES {
        let small = letter.is_none();
        let net = ConvNext {
            depths: depths.to_vec(),
            widths: (0..4).map(|stage| width << stage).collect(),
            mlp_as_filters: small,
            ..ConvNext::default()
        };
        let paper = |version: &str| letter.map(|letter| format!("ConvNeXt{version}-{letter}"));
        if size != "huge" {
            all.push(variant(format!("convnext_{size}"), paper(""), net.clone()));
        }
        if small {
            // An overlapping stem ("ols").
            let stem = if size == "nano" { ConvNextStem::Overlapping } else { ConvNextStem::OverlappingTiered };
            all.push(variant(format!("convnext_{size}_ols"), None, ConvNext { stem, ..net.clone() }));
        }
        if size == "tiny" {
            // The head's norm first ("hnf").
            let net = ConvNext { norm_before_pooling: true, mlp_as_filters: true, ..net.clone() };
            all.push(variant("convnext_tiny_hnf".into(), None, net));
        }
        if size != "xlarge" {
            let net = ConvNext { response_norm: true, layer_scale: None, ..net };
            all.push(variant(format!("convnextv2_{size}"), paper("V2"), net));
        }
    }
    all
}

fn variant(name: String, paper_name: Option<String>, net: ConvNext) -> Variant {
    let usual = Preprocess::imagenet();
    let preprocessing = match name.as_str() {
        "convnextv2_huge" => Preprocess { image_size: [384; 2], crop_pct: 1.0, crop_mode: CropMode::Squash, ..usual },
        name if WIDE_CROP.contains(&name) => Preprocess { crop_pct: 0.95, ..usual },
        _ => Preprocess { crop_pct: 0.875, ..usual },
    };
    let net = ConvNext { image_size: preprocessing.image_size, ..net };
    Variant { name, paper_name, family: "ConvNeXt", architecture: net.into(), preprocessing }
}
