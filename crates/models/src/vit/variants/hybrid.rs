//! Hybrids: convolutional stages before the encoder.

use super::published::*;
use super::{by_timm, inception};
use crate::layers::Stem;
use crate::resnet::ResNet;
use crate::resnetv2::ResNetV2;
use crate::variant::Variant;
use crate::vit::{Backbone, ConvStem, PositionsOn, Vit};
use vit_preprocess::Preprocess;

pub(super) fn variants() -> Vec<Variant> {
    [bit(), resnet(), mobile_clip()].concat()
}

/// The paper's: name, the paper's name, size, blocks of each stage, patch size on their result.
const BIT: [(&str, &str, &str, &[usize], usize); 5] = [
    ("vit_tiny_r_s16_p8", "R+Ti/16", "tiny", &[], 8),
    ("vit_small_r26_s32", "R26+S/32", "small", &[2, 2, 2, 2], 1),
    ("vit_base_r26_s32", "R26+B/32", "base", &[2, 2, 2, 2], 1),
    ("vit_base_r50_s16", "R50+B/16", "base", &[3, 4, 9], 1),
    ("vit_large_r50_s32", "R50+L/32", "large", &[3, 4, 6, 3], 1),
];

fn bit() -> Vec<Variant> {
    let mut all = Vec::new();
    for (name, paper, size, depths, patch) in BIT {
        let size = by_timm(size).expect("the hybrids' sizes are the paper's");
        for image in [224, 384] {
            // timm has no larger form of this one.
            if name == "vit_base_r26_s32" && image > 224 {
                continue;
            }
            let stages = ResNetV2::before_tokens(depths).into();
            let vit = Vit { backbone: Some(Box::new(stages)), ..size.vit(patch, image) };
            let crop_pct = if image > 224 { 1.0 } else { 0.9 };
            let resolution = if image == 224 { String::new() } else { format!("@{image}") };
            let paper_name = Some(format!("{paper}{resolution}"));
            all.push(Variant { paper_name, ..inception(&format!("{name}_{image}"), "Hybrid ViT", vit, crop_pct) });
        }
    }
    all
}

/// The stages of a ResNet-D.
fn resnet() -> Vec<Variant> {
    let deep = |depths: &[usize]| ResNet {
        classes: 0,
        depths: depths.to_vec(),
        widths: [64, 128, 256, 512][..depths.len()].to_vec(),
        stem: Stem::Deep,
        stem_width: 32,
        average_down: true,
        ..ResNet::default()
    };
    let stages: [&[usize]; 4] = [&[2, 2, 2, 2], &[3, 4, 6], &[2, 2, 2, 2], &[3, 4, 6, 3]];
    let before = |depths, vit| Vit { backbone: Some(Box::new(Backbone::ResNet(deep(depths)))), ..vit };
    let rows = RESNET.into_iter().zip(stages);
    rows.map(|(row, depths)| row.variant("Hybrid ViT", Preprocess::imagenet(), |vit| before(depths, vit))).collect()
}

const RESNET: [Row; 4] = [
    row("vit_small_resnet26d_224", Size(768, 8, 8, 2304), 1, 224, 1000, center(0.9)),
    row("vit_small_resnet50d_s16_224", Size(768, 8, 8, 2304), 1, 224, 1000, center(0.9)),
    row("vit_base_resnet26d_224", BASE, 1, 224, 1000, center(0.9)),
    row("vit_base_resnet50d_224", BASE, 1, 224, 1000, center(0.9)),
];

/// The image encoder of MobileCLIP-B (Vasu et al., 2024).
fn mobile_clip() -> Vec<Variant> {
    let stem = |vit: Vit| Vit {
        backbone: Some(Box::new(Backbone::ConvStem(ConvStem::of_width(vit.dim)))),
        positions_on: PositionsOn::Patches,
        ..vit
    };
    published(&MOBILE_CLIP, "CLIP", Preprocess::unit(), stem)
}

const MOBILE_CLIP: [Row; 1] = [row("vit_base_mci_224", BASE, 1, 224, 512, center(0.9))];
