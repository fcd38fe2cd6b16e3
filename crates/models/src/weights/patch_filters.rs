//! First filters for another number of input channels, as timm adapts them, so that a model trained on RGB can be fine-tuned
//! on grey or multispectral images.

use super::{Tensor, WeightsError};

/// More than any sensor has: a wrong setting must not take all memory.
const MAX_CHANNELS: usize = 1 << 12;

/// Adapts filters `[out, channels, height, width]` to `channels`. To one channel they are summed, so that a grey image gives
/// the same activations as its RGB form; to others the three are repeated in turn and scaled by `3 / channels`, so that
/// activations keep their size.
pub fn adapt_channels(filters: Tensor, channels: usize) -> Result<Tensor, WeightsError> {
    let &[out, from, height, width] = filters.shape.as_slice() else {
        return Err(WeightsError::shape("patch_embed.proj.weight", &filters.shape, "[out, channels, height, width]"));
    };
    if from == channels {
        return Ok(filters);
    }
    let shape = vec![out, channels, height, width];
    let adaptable = channels == 1 || (from == 3 && (2..=MAX_CHANNELS).contains(&channels));
    let filled = super::element_count(&filters.shape) == Some(filters.data.len());
    if !adaptable || !filled || filters.data.is_empty() || super::element_count(&shape).is_none() {
        return Err(WeightsError::shape(
            "patch_embed.proj.weight",
            &filters.shape,
            format!("3 input channels to adapt to {channels}"),
        ));
    }

    let area = height * width;
    let mut data = Vec::with_capacity(out * channels * area);
    for filter in filters.data.chunks_exact(from * area) {
        if channels == 1 {
            data.extend((0..area).map(|at| {
                let sum: f64 = (0..from).map(|channel| f64::from(filter[channel * area + at])).sum();
                sum as f32
            }));
        } else {
            let scale = 3.0 / channels as f32;
            for channel in 0..channels {
                let source = &filter[channel % 3 * area..][..area];
                data.extend(source.iter().map(|value| value * scale));
            }
        }
    }
    Tensor::new(shape, data)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rgb() -> Tensor {
        Tensor::new(vec![2, 3, 1, 2], (0..12).map(|v| v as f32).collect()).unwrap()
    }

    #[test]
    fn grey_filters_are_the_sum_of_rgb() {
        let grey = adapt_channels(rgb(), 1).unwrap();
        assert_eq!(grey.shape, [2, 1, 1, 2]);
        assert_eq!(grey.data, [6., 9., 24., 27.]);
    }

    #[test]
    fn more_channels_repeat_rgb_and_keep_the_scale() {
        let four = adapt_channels(rgb(), 4).unwrap();
        assert_eq!(four.shape, [2, 4, 1, 2]);
        assert_eq!(four.data[..8], [0., 0.75, 1.5, 2.25, 3., 3.75, 0., 0.75]);
        let two = adapt_channels(rgb(), 2).unwrap();
        assert_eq!(two.data[..4], [0., 1.5, 3., 4.5]);
    }

    #[test]
    fn other_shapes_are_refused() {
        assert!(adapt_channels(rgb(), 0).is_err());
        let five = Tensor::new(vec![1, 5, 1, 1], vec![0.; 5]).unwrap();
        assert!(adapt_channels(five, 2).is_err());
        let flat = Tensor::new(vec![4], vec![0.; 4]).unwrap();
        assert!(adapt_channels(flat, 1).is_err());
    }
}
