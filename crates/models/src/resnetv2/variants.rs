//! The named models of Big Transfer.

use super::ResNetV2;
use crate::variant::Variant;
use vit_preprocess::{Filter, Preprocess};

/// Name, the paper's name, blocks of each stage, width factor, image size, share of the crop and filter.
type BitVariant = (&'static str, &'static str, [usize; 4], usize, usize, f64, Filter);

const PUBLISHED: [BitVariant; 6] = [
    ("resnetv2_50x1_bit", "R50x1", [3, 4, 6, 3], 1, 224, 0.875, Filter::Bicubic),
    ("resnetv2_50x3_bit", "R50x3", [3, 4, 6, 3], 3, 448, 1.0, Filter::Bilinear),
    ("resnetv2_101x1_bit", "R101x1", [3, 4, 23, 3], 1, 448, 1.0, Filter::Bilinear),
    ("resnetv2_101x3_bit", "R101x3", [3, 4, 23, 3], 3, 448, 1.0, Filter::Bilinear),
    ("resnetv2_152x2_bit", "R152x2", [3, 8, 36, 3], 2, 224, 0.875, Filter::Bicubic),
    ("resnetv2_152x4_bit", "R152x4", [3, 8, 36, 3], 4, 480, 1.0, Filter::Bilinear),
];

/// The published variants, as the paper orders them.
pub(super) fn variants() -> Vec<Variant> {
    let variant = |(name, paper, depths, factor, image, crop_pct, interpolation): BitVariant| {
        let image_size = [image; 2];
        let base = ResNetV2::default();
        let net = ResNetV2 {
            image_size,
            depths: depths.to_vec(),
            widths: base.widths.iter().map(|w| factor * w).collect(),
            stem_width: factor * base.stem_width,
            ..base
        };
        Variant {
            name: name.into(),
            paper_name: Some(format!("BiT-{paper}")),
            family: "BiT",
            architecture: net.into(),
            preprocessing: Preprocess { image_size, crop_pct, interpolation, ..Preprocess::inception() },
        }
    };
    PUBLISHED.into_iter().map(variant).collect()
}
