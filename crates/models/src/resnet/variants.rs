//! The named ResNets: the paper's depths, their "D" forms, and the grouped and the wide ones.

use super::{ResNet, ResNetBlock, Stem};
use crate::architecture::Architecture;
use crate::preprocessing::Preprocessing;
use crate::variant::Variant;

struct Entry {
    name: &'static str,
    paper: Option<&'static str>,
    net: ResNet,
    image: usize,
    crop_pct: f64,
    interpolation: &'static str,
}

/// The published variants, smallest first.
pub fn variants() -> Vec<Variant> {
    let depth = |block, depths: &[usize]| ResNet { block, depths: depths.to_vec(), ..ResNet::default() };
    let (basic, bottleneck) =
        (|d: &[usize]| depth(ResNetBlock::Basic, d), |d: &[usize]| depth(ResNetBlock::Bottleneck, d));
    let deep = |net: ResNet| ResNet { stem: Stem::Deep { width: 32 }, average_down: true, ..net };
    let grouped = |groups, group_width, net: ResNet| ResNet { groups, group_width, ..net };
    let entry =
        |name, paper, net, image, crop_pct, interpolation| Entry { name, paper, net, image, crop_pct, interpolation };
    let all = vec![
        entry("resnet18", Some("ResNet-18"), basic(&[2, 2, 2, 2]), 224, 0.95, "bicubic"),
        entry("resnet26", None, bottleneck(&[2, 2, 2, 2]), 224, 0.875, "bicubic"),
        entry("resnet34", Some("ResNet-34"), basic(&[3, 4, 6, 3]), 224, 0.95, "bicubic"),
        entry("resnet50", Some("ResNet-50"), bottleneck(&[3, 4, 6, 3]), 224, 0.95, "bicubic"),
        entry("resnet101", Some("ResNet-101"), bottleneck(&[3, 4, 23, 3]), 224, 0.95, "bicubic"),
        entry("resnet152", Some("ResNet-152"), bottleneck(&[3, 8, 36, 3]), 224, 0.95, "bicubic"),
        entry("resnet18d", None, deep(basic(&[2, 2, 2, 2])), 224, 0.875, "bicubic"),
        entry("resnet26d", None, deep(bottleneck(&[2, 2, 2, 2])), 224, 0.875, "bicubic"),
        entry("resnet34d", None, deep(basic(&[3, 4, 6, 3])), 224, 0.875, "bicubic"),
        entry("resnet50d", None, deep(bottleneck(&[3, 4, 6, 3])), 224, 0.875, "bicubic"),
        entry("resnet101d", None, deep(bottleneck(&[3, 4, 23, 3])), 256, 0.95, "bicubic"),
        entry("resnet152d", None, deep(bottleneck(&[3, 8, 36, 3])), 256, 0.95, "bicubic"),
        entry("resnet200d", None, deep(bottleneck(&[3, 24, 36, 3])), 256, 0.95, "bicubic"),
        entry("resnext50_32x4d", None, grouped(32, 4, bottleneck(&[3, 4, 6, 3])), 224, 0.95, "bicubic"),
        entry("resnext101_32x4d", None, grouped(32, 4, bottleneck(&[3, 4, 23, 3])), 224, 0.875, "bilinear"),
        entry("resnext101_32x8d", None, grouped(32, 8, bottleneck(&[3, 4, 23, 3])), 224, 0.875, "bilinear"),
        entry("wide_resnet50_2", None, grouped(1, 128, bottleneck(&[3, 4, 6, 3])), 224, 0.875, "bicubic"),
        entry("wide_resnet101_2", None, grouped(1, 128, bottleneck(&[3, 4, 23, 3])), 224, 0.875, "bilinear"),
    ];
    all.into_iter().map(published).collect()
}

/// The variant of a name; with `_cifar` behind it, the form for small pictures.
pub fn variant(name: &str) -> Option<Variant> {
    let find = |name: &str| variants().into_iter().find(|v| v.name == name || v.paper_name.as_deref() == Some(name));
    find(name).or_else(|| find(name.strip_suffix("_cifar")?).and_then(|v| small(v, name)))
}

/// A first layer that leaves pictures of 32 pixels their size; what it replaces must be the plain one.
fn small(variant: Variant, name: &str) -> Option<Variant> {
    let Architecture::ResNet(net @ ResNet { stem: Stem::Plain, .. }) = variant.architecture else { return None };
    let preprocessing = Preprocessing::cifar();
    let net = ResNet { stem: Stem::Small, image_size: preprocessing.image_size, ..net };
    Some(Variant { name: name.into(), paper_name: None, architecture: net.into(), preprocessing, ..variant })
}

fn published(entry: Entry) -> Variant {
    let image_size = [entry.image; 2];
    Variant {
        name: entry.name.into(),
        paper_name: entry.paper.map(str::to_string),
        family: "ResNet",
        architecture: ResNet { image_size, ..entry.net }.into(),
        preprocessing: Preprocessing {
            image_size,
            crop_pct: entry.crop_pct,
            interpolation: entry.interpolation.into(),
            ..Preprocessing::imagenet()
        },
    }
}
