//! Windows of an image: a permutation of its pixels, rolled, padded and partitioned at once.

use vit_graph::ops::Windows;
use vit_graph::{NodeId, Value};

use crate::onnx::OnnxError;
use crate::onnx::batch::Extent;
use crate::onnx::model::Attribute;
use crate::onnx::translation::Translation;

/// For every token of every window, the pixel that it is, or the number of pixels where it is padding.
fn pixels(windows: &Windows, image: &[usize]) -> Vec<usize> {
    let ([rows, columns], [height, width]) = (windows.grid(image), windows.size);
    let source = |token: usize| {
        let (window, position) = (token / (height * width), token % (height * width));
        let y = windows.source(0, window / columns, position / width, image[1]);
        let x = windows.source(1, window % columns, position % width, image[2]);
        y.zip(x).map_or(image[1] * image[2], |(y, x)| y * image[2] + x)
    };
    (0..rows * columns * height * width).map(source).collect()
}

impl Translation<'_> {
    pub fn windows(&mut self, id: NodeId, windows: &Windows) -> Result<(), OnnxError> {
        let image = self.node(id).inputs[0];
        let [_, height, width, channels] = self.extents(image)[..] else { return Err(self.unsupported(id)) };
        let pixels = pixels(windows, self.extents(image));
        let batch = self.shape(image)?[0];
        let mut x = self.plain(image)?;
        if !pixels.iter().copied().eq(0..height * width) {
            x = self.reshape(&x, &[batch, Extent::Fixed(height * width), Extent::Fixed(channels)])?;
            if pixels.contains(&(height * width)) {
                let one_more = self.integers(&[0, 0, 0, 0, 1, 0]);
                x = self.add("Pad", &[&x, &one_more]);
            }
            x = self.take_pixels(&x, &pixels);
        }
        let shape = self.shape(Value { node: id, output: 0 })?;
        let y = self.reshape(&x, &shape)?;
        self.set_plain(id, y);
        Ok(())
    }

    /// The inverse; padding is dropped.
    pub fn unwindows(&mut self, id: NodeId, windows: &Windows) -> Result<(), OnnxError> {
        let image = Value { node: id, output: 0 };
        let [_, height, width, channels] = self.extents(image)[..] else { return Err(self.unsupported(id)) };
        let pixels = pixels(windows, self.extents(image));
        let shape = self.shape(image)?;
        let mut x = self.plain(self.node(id).inputs[0])?;
        let mut tokens = vec![0; height * width + 1];
        pixels.iter().enumerate().for_each(|(token, &pixel)| tokens[pixel] = token);
        tokens.pop();
        if !tokens.iter().copied().eq(0..pixels.len()) {
            x = self.reshape(&x, &[shape[0], Extent::Fixed(pixels.len()), Extent::Fixed(channels)])?;
            x = self.take_pixels(&x, &tokens);
        }
        let y = self.reshape(&x, &shape)?;
        self.set_plain(id, y);
        Ok(())
    }

    /// Entries of axis 1.
    fn take_pixels(&mut self, x: &str, indices: &[usize]) -> String {
        let indices: Vec<i64> = indices.iter().map(|&index| index as i64).collect();
        let indices = self.integers(&indices);
        self.add_with("Gather", &[x, &indices], vec![Attribute::Int("axis", 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::pixels;
    use vit_graph::ops::Windows;

    #[test]
    fn padding_is_one_pixel_past_the_last() {
        let windows = Windows { size: [2, 2], shift: [0, 1] };
        assert_eq!(pixels(&windows, &[1, 2, 3, 8]), [1, 2, 4, 5, 0, 6, 3, 6]);
    }
}
