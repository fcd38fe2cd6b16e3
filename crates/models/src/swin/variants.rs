//! The named Swin Transformers.

use super::Swin;
use crate::variant::Variant;
use vit_preprocess::Preprocess;

/// Name, the paper's letter, width and heads of the first stage, blocks of the third.
const SIZES: [(&str, &str, usize, usize, usize); 4] =
    [("tiny", "T", 96, 3, 6), ("small", "S", 96, 3, 18), ("base", "B", 128, 4, 18), ("large", "L", 192, 6, 18)];

/// The published variants, smallest first.
pub(super) fn variants() -> Vec<Variant> {
    let mut all = Vec::new();
    for (size, letter, width, heads, third) in SIZES {
        let larger = matches!(size, "base" | "large").then_some((12, 384));
        for (window, image) in [Some((7, 224)), larger].into_iter().flatten() {
            let image_size = [image; 2];
            let swin = Swin {
                image_size,
                widths: (0..4).map(|stage| width << stage).collect(),
                depths: vec![2, 2, third, 2],
                heads: (0..4).map(|stage| heads << stage).collect(),
                windows: vec![[window; 2]; 4],
                ..Swin::default()
            };
            let resolution = if image == 224 { String::new() } else { format!("@{image}") };
            all.push(Variant {
                name: format!("swin_{size}_patch4_window{window}_{image}"),
                paper_name: Some(format!("Swin-{letter}{resolution}")),
                family: "Swin",
                architecture: swin.into(),
                preprocessing: Preprocess {
                    image_size,
                    crop_pct: if image > 224 { 1.0 } else { 0.9 },
                    ..Preprocess::imagenet()
                },
            });
        }
    }
    all
}
