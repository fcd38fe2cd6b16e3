//! `vit_mae`: the encoder of masked autoencoders, which sees all patches here. Positions are fixed, and are in the file.

use super::names::Names;
use super::vision_transformer::{AROUND, LAYERS, read};
use super::{ModelType, processor, unchanged, vit};

/// Options of the decoder and of pre-training.
const PRE_TRAINING: [&str; 6] = [
    "decoder_num_attention_heads",
    "decoder_hidden_size",
    "decoder_num_hidden_layers",
    "decoder_intermediate_size",
    "mask_ratio",
    "norm_pix_loss",
];

pub(super) const TYPE: ModelType = ModelType {
    name: "vit_mae",
    class: "ViTMAE",
    base: "vit.",
    read: |args, task| {
        for option in PRE_TRAINING {
            args.get(option);
        }
        Ok(read(args, task, 1e-12)?.into())
    },
    names: |_| Names::new(AROUND).and(LAYERS),
    unused: vit::UNUSED,
    convert: unchanged,
    preprocessing: processor::vit,
    any_size: false,
    write: None,
};
