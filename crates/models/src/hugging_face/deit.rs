//! `deit`: ViT with a distillation token, which has a head in `DeiTForImageClassificationWithTeacher`.

use serde_json::{Map, Value};

use super::names::Names;
use super::vision_transformer::{AROUND, LAYERS, read, written};
use super::{ModelType, Writer, processor, unchanged, vit};
use crate::architecture::Architecture;
use crate::vit::Vit;

/// The class token's head has another name where the distillation token has one, too.
const HEADS: &[(&str, &str)] = &[("cls_classifier", "head"), ("distillation_classifier", "head_dist")];

const TOKEN: &[(&str, &str)] = &[("embeddings.distillation_token", "dist_token")];

pub(super) const TYPE: ModelType = ModelType {
    name: "deit",
    class: "DeiT",
    base: "deit.",
    read: |args, task| {
        let distillation_head = task.class.ends_with("WithTeacher");
        let vit = Vit { distillation_token: true, distillation_head, ..read(args, task, 1e-12)? };
        Ok(vit.into())
    },
    names: |model| names_by_heads(model.downcast_ref().is_some_and(|vit: &Vit| vit.distillation_head)),
    unused: vit::UNUSED,
    convert: unchanged,
    preprocessing: processor::deit,
    any_size: false,
    write: Some(Writer { config, convert: vit::needs_class_token }),
};

/// The names of models with two heads or one.
pub(super) fn names_by_heads(two: bool) -> Names {
    let heads = if two { Names::new(HEADS) } else { Names::default() };
    heads.and(TOKEN).and(AROUND).and(LAYERS)
}

fn config(model: &Architecture) -> Result<(String, Map<String, Value>), String> {
    let vit = vit::plain(model)?;
    let class = match (vit.classes, vit.distillation_head) {
        _ if !vit.distillation_token => return Err("Hugging Face's DeiT needs a distillation token".into()),
        (0, _) => "DeiTModel",
        (_, true) => "DeiTForImageClassificationWithTeacher",
        (_, false) => "DeiTForImageClassification",
    };
    Ok((class.into(), written(vit)))
}
