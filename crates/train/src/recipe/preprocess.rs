//! The transforms for evaluation and training and the settings of the loader, from a recipe and a model's preprocessing.

use vit_data::augment::{ColourJitter, Erasing, Fill};
use vit_data::loader::{BatchParts, LabelCount, LoaderSettings};
use vit_data::{Augmentation, Crop, Mix, Preprocess, TrainTransform, TransformError};

use vit_models::Config;
use vit_models::clip::Clip;

use crate::error::TrainError;
use crate::recipe::{ColourJitterSetting, CropSetting, DataSettings, Recipe};
use crate::step::objective::Loss;

/// The settings of a run's loader.
pub(crate) fn loader_settings(recipe: &Recipe, config: &Config, samples: usize) -> Result<LoaderSettings, TrainError> {
    let unsuitable = |error: TransformError| TrainError::Unsuitable(format!("[data] of the recipe: {error}"));
    let preprocess = &config.preprocessing;
    let mut transform = TrainTransform::new(preprocess, &augmentation(&recipe.data)).map_err(unsuitable)?;
    if let Some(crops) = config.architecture.downcast_ref().and_then(|vit| recipe.crops(vit)) {
        let p = &recipe.pretraining;
        let view = |number: usize, crop: Crop, size: [usize; 2]| {
            let (blur, solarize) = (p.blur[number], p.solarize[number]);
            let augmentation = Augmentation { crop, blur, solarize, ..augmentation(&recipe.data) };
            let preprocess = Preprocess { image_size: size, ..preprocess.clone() };
            TrainTransform::new(&preprocess, &augmentation).map_err(unsuitable)
        };
        let [first, second] = [0, 1].map(|number| view(number, crop(&recipe.data), preprocess.image_size));
        let local = Crop::Resized { scale: p.local_scale, ratio: recipe.data.crop_ratio };
        let local = view(2, local, crops.local_size)?;
        transform = first?.with_views([second?]).with_views(vec![local; crops.local_crops]);
    }
    let data = &recipe.data;
    let parts = BatchParts::all(recipe.parts.max(1));
    let plain = LoaderSettings { parts, ..LoaderSettings::training(transform, recipe.batch, recipe.seed) };
    let per_epoch = plain.batches_per_epoch(samples);
    Ok(LoaderSettings {
        mix: Mix {
            mixup: data.mixup,
            cutmix: data.cutmix,
            probability: data.mix_probability,
            switch: data.mix_switch,
            until: data.mix_until.steps(per_epoch, recipe.steps(per_epoch)),
            smoothing: data.label_smoothing,
        },
        labels: match recipe.objective.loss {
            _ if recipe.is_pretraining() || config.architecture.downcast_ref::<Clip>().is_some() => LabelCount::Ignored,
            Loss::Softmax => LabelCount::Single,
            Loss::Sigmoid => LabelCount::Multiple,
        },
        ..plain
    })
}

fn crop(data: &DataSettings) -> Crop {
    match data.crop {
        CropSetting::RandomResized => Crop::Resized { scale: data.crop_scale, ratio: data.crop_ratio },
        CropSetting::Padded => Crop::Padded { pixels: data.crop_padding, fill: Fill::default() },
        CropSetting::Centre => Crop::Centre,
    }
}

impl ColourJitterSetting {
    /// The ranges of each property.
    pub(crate) fn ranges(self) -> ColourJitter {
        match self {
            ColourJitterSetting::Uniform(amount) => ColourJitter::uniform(amount),
            ColourJitterSetting::Each([brightness, contrast, saturation, hue]) => {
                ColourJitter { brightness, contrast, saturation, hue }
            }
        }
    }
}

impl Recipe {
    /// How training images are augmented, before they are mixed.
    pub fn augmentation(&self) -> Augmentation {
        augmentation(&self.data)
    }
}

fn augmentation(data: &DataSettings) -> Augmentation {
    Augmentation {
        crop: crop(data),
        flip: data.flip,
        vertical_flip: 0.0,
        auto_augment: Some(data.auto_augment.clone()).filter(|policy| policy != "none" && !policy.is_empty()),
        three_augment: data.three_augment,
        colour_jitter: data.colour_jitter.ranges(),
        colour_jitter_probability: data.colour_jitter_probability,
        grey: data.grey,
        blur: 0.0,
        solarize: 0.0,
        erasing: Erasing { probability: data.erasing, ..Erasing::default() },
        repeated: data.repeated,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vit_data::Image;
    use vit_data::augment::SampleRandom;

    /// Covering 224 x 224 pixels, this image would be 224 x 896,000,000 pixels.
    #[test]
    fn an_image_one_pixel_wide_is_not_resized_as_a_whole() {
        for (width, height) in [(1, 4_000_000), (4_000_000, 1)] {
            let image = Image::from_rgb(width, height, vec![7; width * height * 3]).unwrap();
            for name in Recipe::names() {
                let recipe = Recipe::named(name).unwrap();
                let transform = TrainTransform::new(&Preprocess::default(), &augmentation(&recipe.data)).unwrap();
                let mut values = vec![0.0; transform.output_len()];
                transform.apply(&image, &mut SampleRandom::new(0, 0, 0, 0), &mut values).unwrap();
                assert!(values.iter().all(|value| value.is_finite()), "{name}");
            }
        }
    }
}
