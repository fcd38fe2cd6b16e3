//! `ijepa`: ViT without a class token; a classifier reads the mean of the patches.

use super::names::Names;
use super::vision_transformer::{AROUND, LAYERS, read};
use super::{ModelType, processor, unchanged, vit};
use crate::vit::{Pooling, Vit};

pub(super) const TYPE: ModelType = ModelType {
    name: "ijepa",
    class: "IJepa",
    base: "ijepa.",
    read: |args, task| Ok(Vit { class_token: false, pooling: Pooling::Mean, ..read(args, task, 1e-12)? }.into()),
    names: |_| Names::new(AROUND).and(LAYERS),
    unused: vit::UNUSED,
    convert: unchanged,
    preprocessing: processor::vit,
    any_size: false,
    write: None,
};
