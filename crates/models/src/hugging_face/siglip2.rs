//! `siglip2` with both towers, and `siglip2_vision_model`, at the resolution of its positions: patches are cut by the image
//! processor there, and embedded by a matrix.

use super::clip::options_of;
use super::siglip::{self, tower};
use super::{ModelType, Task, text};
use crate::architecture::Architecture;
use crate::config::Arguments;
use crate::vit::Vit;
use crate::weights::{Tensor, Weights, WeightsError};

pub(super) const TYPE: ModelType = ModelType {
    name: "siglip2_vision_model",
    class: "Siglip2Vision",
    read: |args, task| Ok(fixed(args, task)?.into()),
    convert,
    ..siglip::TYPE
};

pub(super) const BOTH_TOWERS: ModelType = ModelType {
    name: "siglip2",
    class: "Siglip2",
    read: |args, task| {
        let vision = options_of(args, "vision_config")?;
        let vit = fixed(&vision, task)?;
        vision.finish(super::IGNORED)?;
        siglip::both_towers(args, task, vit)
    },
    names: siglip::names_of_both,
    base: "",
    unused: &[],
    ..TYPE
};

/// A square image with as many patches as there are positions.
fn fixed(args: &Arguments, task: Task) -> Result<Vit, String> {
    let patches = args.count("num_patches")?.unwrap_or(256);
    let side = patches.isqrt();
    if side * side != patches {
        return Err(format!("Hugging Face's option `num_patches` should be a square, not {patches}"));
    }
    let vit = tower(args, task)?;
    Ok(Vit { image_size: vit.patch_size.map(|extent| side.saturating_mul(extent)), ..vit })
}

/// The embedding's columns are rows, columns and channels of a patch.
fn convert(weights: &mut Weights, model: &Architecture) -> Result<(), WeightsError> {
    let Some(vit) = text::image_tower(model) else { return Ok(()) };
    const NAME: &str = "patch_embed.proj.weight";
    let matrix = weights.take(NAME)?;
    let ([high, wide], channels) = (vit.patch_size, vit.channels);
    let inputs = high.saturating_mul(wide).saturating_mul(channels);
    let [outputs, columns] = matrix.shape[..] else {
        return Err(WeightsError::shape(NAME, &matrix.shape, format!("[dim, {inputs}]")));
    };
    if columns != inputs || inputs == 0 {
        return Err(WeightsError::shape(
            NAME,
            &matrix.shape,
            format!("[dim, {inputs}] from `patch_size` and `num_channels`"),
        ));
    }
    let mut data = Vec::with_capacity(matrix.data.len());
    for filter in matrix.data.chunks_exact(inputs) {
        data.extend((0..channels).flat_map(|c| (0..high * wide).map(move |pixel| filter[pixel * channels + c])));
    }
    weights.insert(NAME, Tensor::new(vec![outputs, channels, high, wide], data)?)?;
    siglip::convert(weights, model)
}
