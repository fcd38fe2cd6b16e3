//! 3-Augment of DeiT III ("DeiT III: Revenge of the ViT"): one of three operations for every image.

use super::{SampleRandom, blur, enhance, point};
use crate::image::Image;

/// Grey, solarized at 128, or blurred with a standard deviation of 0.1 to 2, each with probability 1/3.
pub fn three_augment(image: &mut Image, random: &mut SampleRandom) {
    match random.below(3) {
        0 => enhance::to_grey(image),
        1 => point::solarize(image, 128.0),
        _ => blur::gaussian_blur(image, random.range(0.1, 2.0)),
    }
}
