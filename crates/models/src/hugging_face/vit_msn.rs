//! `vit_msn`: ViT as pre-trained by masked siamese networks.

use super::names::Names;
use super::vision_transformer::{AROUND, LAYERS, read};
use super::{ModelType, processor, unchanged, vit};

pub(super) const TYPE: ModelType = ModelType {
    name: "vit_msn",
    class: "ViTMSN",
    base: "vit.",
    read: |args, task| Ok(read(args, task, 1e-6)?.into()),
    names: |_| Names::new(AROUND).and(LAYERS),
    unused: vit::UNUSED,
    convert: unchanged,
    preprocessing: processor::vit,
    any_size: false,
    write: None,
};
