//! The three operations of DeiT III ("Revenge of the ViT"), one of which every image goes through.

use super::{SampleRandom, blur, enhance, point};
use crate::image::Image;

/// Grey, solarized at 128, or blurred with a deviation of 0.1 to 2: each for a third of the images.
pub fn three_augment(image: &mut Image, random: &mut SampleRandom) {
    match random.below(3) {
        0 => enhance::to_grey(image),
        1 => point::solarize(image, 128.0),
        _ => blur::gaussian_blur(image, random.range(0.1, 2.0)),
    }
}
