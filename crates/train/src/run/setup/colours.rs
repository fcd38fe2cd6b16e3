//! The mean and standard deviation of a dataset's colours, by which a model's input is normalised.

use vit_data::Samples;
use vit_models::Config;

/// The number of images that are read, evenly spaced over the dataset.
const IMAGES: usize = 1000;
/// The smallest standard deviation, for images of one colour.
const LEAST: f64 = 0.02;

/// Sets a model's mean and standard deviation to those of these samples, and returns a line on it; without readable samples
/// nothing changes.
pub(crate) fn normalise_by(samples: &dyn Samples, config: &mut Config) -> Option<String> {
    let channels = config.architecture.channels();
    let (mean, deviation) = statistics(samples, channels)?;
    let list = |values: &[f32]| values.iter().map(f32::to_string).collect::<Vec<_>>().join(", ");
    let line = format!("colours: mean {} and deviation {} of the images", list(&mean), list(&deviation));
    config.preprocessing.mean = mean;
    config.preprocessing.std = deviation;
    Some(line)
}

/// Mean and standard deviation of each channel in units of full scale, to three decimals. Every image has the same weight,
/// whatever its size.
fn statistics(samples: &dyn Samples, channels: usize) -> Option<(Vec<f32>, Vec<f32>)> {
    let stride = samples.len().div_ceil(IMAGES).max(1);
    let (mut sums, mut squares, mut count) = (vec![0.0; channels], vec![0.0; channels], 0.0);
    for image in (0..samples.len()).step_by(stride).filter_map(|index| samples.image(index).ok()) {
        let image = if channels == 1 { image.to_grey() } else { image };
        let share = 1.0 / (image.width() * image.height()) as f64;
        // Decoded images always have three channels, which are equal in grey ones.
        for pixel in image.pixels().chunks_exact(3) {
            for channel in 0..channels.min(3) {
                let value = f64::from(pixel[channel]) / 255.0;
                sums[channel] += value * share;
                squares[channel] += value * value * share;
            }
        }
        count += 1.0;
    }
    let round = |value: f64| ((value * 1000.0).round() / 1000.0) as f32;
    let mean = sums.iter().map(|sum| round(sum / count)).collect();
    let deviation = sums.iter().zip(&squares).map(|(sum, square): (&f64, &f64)| {
        let mean = sum / count;
        round((square / count - mean * mean).max(0.0).sqrt().max(LEAST))
    });
    (count > 0.0).then(|| (mean, deviation.collect()))
}

#[cfg(test)]
mod tests {
    use vit_data::{Image, ImageError};

    use super::*;

    /// Images of one colour each.
    struct Plain(Vec<[u8; 3]>);

    impl Samples for Plain {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn classes(&self) -> &[String] {
            &[]
        }

        fn labels(&self, _: usize) -> &[u32] {
            &[]
        }

        fn name(&self, index: usize) -> String {
            index.to_string()
        }

        fn image(&self, index: usize) -> Result<Image, ImageError> {
            // Sizes differ, which must not matter.
            let size = 1 + index;
            Ok(Image::from_rgb(size, size, self.0[index].repeat(size * size)).unwrap())
        }
    }

    #[test]
    fn statistics_are_those_of_the_images() {
        let images = Plain(vec![[0, 51, 100], [255, 153, 100]]);
        let (mean, deviation) = statistics(&images, 3).unwrap();
        assert_eq!(mean, [0.5, 0.4, 0.392]);
        assert_eq!(deviation, [0.5, 0.2, LEAST as f32]);
        assert_eq!(statistics(&Plain(vec![]), 3), None);
    }
}
