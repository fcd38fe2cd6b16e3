//! The named ResNets: the paper's depths, their "D" forms, and the grouped and the wide ones.

use super::{ResNet, ResNetBlock};
use crate::layers::Stem;
use crate::variant::Variant;
use vit_preprocess::{Filter, Preprocess};

struct ResNetVariant {
    name: &'static str,
    paper: Option<&'static str>,
    net: ResNet,
    image: usize,
    crop_pct: f64,
    interpolation: Filter,
}

/// The published variants, smallest first.
pub(super) fn variants() -> Vec<Variant> {
    let depth = |block, depths: &[usize]| ResNet { block, depths: depths.to_vec(), ..ResNet::default() };
    let (basic, bottleneck) =
        (|d: &[usize]| depth(ResNetBlock::Basic, d), |d: &[usize]| depth(ResNetBlock::Bottleneck, d));
    let deep = |net: ResNet| ResNet { stem: Stem::Deep, stem_width: 32, average_down: true, ..net };
    let grouped = |groups, group_width, net: ResNet| ResNet { groups, group_width, ..net };
    let entry = |name, paper, net, image, crop_pct, interpolation| ResNetVariant {
        name,
        paper,
        net,
        image,
        crop_pct,
        interpolation,
    };
    let all = vec![
        entry("resnet18", Some("ResNet-18"), basic(&[2, 2, 2, 2]), 224, 0.95, Filter::Bicubic),
        entry("resnet26", None, bottleneck(&[2, 2, 2, 2]), 224, 0.875, Filter::Bicubic),
        entry("resnet34", Some("ResNet-34"), basic(&[3, 4, 6, 3]), 224, 0.95, Filter::Bicubic),
        entry("resnet50", Some("ResNet-50"), bottleneck(&[3, 4, 6, 3]), 224, 0.95, Filter::Bicubic),
        entry("resnet101", Some("ResNet-101"), bottleneck(&[3, 4, 23, 3]), 224, 0.95, Filter::Bicubic),
        entry("resnet152", Some("ResNet-152"), bottleneck(&[3, 8, 36, 3]), 224, 0.95, Filter::Bicubic),
        entry("resnet18d", None, deep(basic(&[2, 2, 2, 2])), 224, 0.875, Filter::Bicubic),
        entry("resnet26d", None, deep(bottleneck(&[2, 2, 2, 2])), 224, 0.875, Filter::Bicubic),
        entry("resnet34d", None, deep(basic(&[3, 4, 6, 3])), 224, 0.875, Filter::Bicubic),
        entry("resnet50d", None, deep(bottleneck(&[3, 4, 6, 3])), 224, 0.875, Filter::Bicubic),
        entry("resnet101d", None, deep(bottleneck(&[3, 4, 23, 3])), 256, 0.95, Filter::Bicubic),
        entry("resnet152d", None, deep(bottleneck(&[3, 8, 36, 3])), 256, 0.95, Filter::Bicubic),
        entry("resnet200d", None, deep(bottleneck(&[3, 24, 36, 3])), 256, 0.95, Filter::Bicubic),
        entry("resnext50_32x4d", None, grouped(32, 4, bottleneck(&[3, 4, 6, 3])), 224, 0.95, Filter::Bicubic),
        entry("resnext101_32x4d", None, grouped(32, 4, bottleneck(&[3, 4, 23, 3])), 224, 0.875, Filter::Bilinear),
        entry("resnext101_32x8d", None, grouped(32, 8, bottleneck(&[3, 4, 23, 3])), 224, 0.875, Filter::Bilinear),
        entry("wide_resnet50_2", None, grouped(1, 128, bottleneck(&[3, 4, 6, 3])), 224, 0.875, Filter::Bicubic),
        entry("wide_resnet101_2", None, grouped(1, 128, bottleneck(&[3, 4, 23, 3])), 224, 0.875, Filter::Bilinear),
    ];
    all.into_iter().map(published).collect()
}

/// The variant for small images of a name that ends in `_cifar`; its stem must have been the plain one.
pub(super) fn variant(name: &str) -> Option<Variant> {
    let published = name.strip_suffix("_cifar")?;
    let variant = variants().into_iter().find(|v| v.name == published || v.paper_name.as_deref() == Some(published))?;
    let net = variant.architecture.downcast_ref::<ResNet>().filter(|net| net.stem == Stem::Plain)?;
    let preprocessing = Preprocess::cifar();
    let net = ResNet { stem: Stem::Small, image_size: preprocessing.image_size, ..net.clone() };
    Some(Variant { name: name.into(), paper_name: None, architecture: net.into(), preprocessing, ..variant })
}

fn published(entry: ResNetVariant) -> Variant {
    let image_size = [entry.image; 2];
    Variant {
        name: entry.name.into(),
        paper_name: entry.paper.map(str::to_string),
        family: "ResNet",
        architecture: ResNet { image_size, ..entry.net }.into(),
        preprocessing: Preprocess {
            image_size,
            crop_pct: entry.crop_pct,
            interpolation: entry.interpolation,
            ..Preprocess::imagenet()
        },
    }
}
