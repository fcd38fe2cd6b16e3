//! `ijepa`: ViT without a class token; a classifier reads the mean of the patches.

use serde_json::{Map, Value};

use super::names::Names;
use super::vision_transformer::{AROUND, LAYERS, read, written};
use super::{ModelType, Writer, class_of, processor, unchanged, vit};
use crate::architecture::Architecture;
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
    write: Some(Writer { config, convert: |_| Ok(()) }),
};

fn config(model: &Architecture) -> Result<(String, Map<String, Value>), String> {
    let vit = model.downcast_ref::<Vit>().ok_or_else(String::new)?;
    Ok((class_of("IJepa", model), written(vit)))
}
