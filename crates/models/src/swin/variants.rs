//! The named Swin Transformers.

use super::{Swin, SwinVersion};
use crate::variant::Variant;
use vit_preprocess::Preprocess;

/// Name, the paper's letter, width and heads of the first stage, blocks of the third.
const SIZES: [(&str, &str, usize, usize, usize); 4] =
    [("tiny", "T", 96, 3, 6), ("small", "S", 96, 3, 18), ("base", "B", 128, 4, 18), ("large", "L", 192, 6, 18)];

/// Size, window and image size of the first version.
const V1: [(&str, usize, usize); 6] =
    [("tiny", 7, 224), ("small", 7, 224), ("base", 7, 224), ("base", 12, 384), ("large", 7, 224), ("large", 12, 384)];

/// S3 (Chen et al., 2021), whose windows were searched: name, windows of each stage, blocks of the third.
const S3: [(&str, [usize; 4], usize); 3] =
    [("tiny", [7, 7, 14, 7], 6), ("small", [14, 14, 14, 7], 18), ("base", [7, 7, 14, 7], 30)];

/// Size, the rest of the name, window and image size of Swin V2. The names say where windows were others in pre-training.
const V2: [(&str, &str, usize, usize); 12] = [
    ("tiny", "window8_256", 8, 256),
    ("tiny", "window16_256", 16, 256),
    ("small", "window8_256", 8, 256),
    ("small", "window16_256", 16, 256),
    ("base", "window8_256", 8, 256),
    ("base", "window16_256", 16, 256),
    ("base", "window12_192", 12, 192),
    ("base", "window12to16_192to256", 16, 256),
    ("base", "window12to24_192to384", 24, 384),
    ("large", "window12_192", 12, 192),
    ("large", "window12to16_192to256", 16, 256),
    ("large", "window12to24_192to384", 24, 384),
];

/// The windows of pre-training at 192 pixels; the last stage has no more than 6x6 patches.
const PRETRAINED: [Option<[usize; 2]>; 4] = [Some([12; 2]), Some([12; 2]), Some([12; 2]), Some([6; 2])];

/// Classes of ImageNet-22k, on which the models for 192 pixels were published.
const IMAGENET_22K: usize = 21841;

/// The published variants, smallest first.
pub(super) fn variants() -> Vec<Variant> {
    let first = V1.map(|(size, window, image)| {
        let resolution = if image == 224 { String::new() } else { format!("@{image}") };
        let paper_name = Some(format!("Swin-{}{resolution}", by_name(size).1));
        let name = format!("swin_{size}_patch4_window{window}_{image}");
        Variant { paper_name, ..published(name, "Swin", swin(size, [window; 4], image)) }
    });
    let searched = S3.map(|(size, windows, third)| {
        let depths = vec![2, 2, third, 2];
        published(format!("swin_s3_{size}_224"), "Swin S3", Swin { depths, ..swin("tiny", windows, 224) })
    });
    let second = V2.map(|(size, rest, window, image)| {
        let pretrained_windows = if rest.contains("to") { PRETRAINED.to_vec() } else { vec![None; 4] };
        let classes = if image == 192 { IMAGENET_22K } else { 1000 };
        let version = SwinVersion::V2 { pretrained_windows };
        let swin = Swin { version, classes, ..swin(size, [window; 4], image) };
        published(format!("swinv2_{size}_{rest}"), "Swin V2", swin)
    });
    first.into_iter().chain(searched).chain(second).collect()
}

fn by_name(name: &str) -> (&'static str, &'static str, usize, usize, usize) {
    SIZES.into_iter().find(|(size, ..)| *size == name).expect("every published size is in the table")
}

fn swin(size: &str, windows: [usize; 4], image: usize) -> Swin {
    let (.., width, heads, third) = by_name(size);
    Swin {
        image_size: [image; 2],
        widths: (0..4).map(|stage| width << stage).collect(),
        depths: vec![2, 2, third, 2],
        heads: (0..4).map(|stage| heads << stage).collect(),
        windows: windows.map(|side| [side; 2]).to_vec(),
        ..Swin::default()
    }
}

fn published(name: String, family: &'static str, swin: Swin) -> Variant {
    // Weights for 384 pixels were evaluated on whole images.
    let crop_pct = if swin.image_size[0] > 256 { 1.0 } else { 0.9 };
    let preprocessing = Preprocess { image_size: swin.image_size, crop_pct, ..Preprocess::imagenet() };
    Variant { name, paper_name: None, family, architecture: swin.into(), preprocessing }
}
