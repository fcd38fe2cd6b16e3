//! Partition of an image into patches, each flattened into a row, and its inverse.

use super::{Operation, arity, expect_rank, expect_shape};
use crate::autodiff::Backward;
use crate::reference::Array;
use crate::{GraphError, Shape, Type};

/// The axis order of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ImageLayout {
    /// `[b, h, w, c]`.
    ChannelsLast,
    /// `[b, c, h, w]`.
    ChannelsFirst,
}

/// An image to `[b, patches, c · ph · pw]`: patches row by row, each in the order channel, row, column of published
/// filters. Pixels beyond the last whole patch are dropped, as by a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Patchify {
    /// Height and width of a patch.
    pub patch: [usize; 2],
    /// The axis order of the image.
    pub layout: ImageLayout,
}

impl Patchify {
    /// Batch, height, width and channels of an image.
    pub fn extents(&self, image: &[usize]) -> [usize; 4] {
        match self.layout {
            ImageLayout::ChannelsLast => [image[0], image[1], image[2], image[3]],
            ImageLayout::ChannelsFirst => [image[0], image[2], image[3], image[1]],
        }
    }

    /// The number of patches along rows and columns.
    pub fn grid(&self, image: &[usize]) -> [usize; 2] {
        let [_, h, w, _] = self.extents(image);
        [h / self.patch[0], w / self.patch[1]]
    }

    fn output_shape(&self, image: &Type) -> Result<Shape, String> {
        expect_rank("the image", image, 4)?;
        let [b, h, w, c] = self.extents(&image.shape);
        let [ph, pw] = self.patch;
        if ph == 0 || pw == 0 || h < ph || w < pw {
            return Err(format!("patches of {ph}x{pw} do not fit into {h}x{w} pixels"));
        }
        let [rows, columns] = self.grid(&image.shape);
        Ok(Shape::from([b, rows * columns, c * ph * pw]))
    }

    /// Calls `visit(patch index, image index)` for every element.
    fn each(&self, image: &[usize], mut visit: impl FnMut(usize, usize)) {
        let [b, h, w, c] = self.extents(image);
        let [ph, pw] = self.patch;
        let [rows, columns] = self.grid(image);
        for index in 0..b * rows * columns * c * ph * pw {
            let (kx, ky, channel) = (index % pw, index / pw % ph, index / (pw * ph) % c);
            let patch = index / (pw * ph * c);
            let (px, py, n) = (patch % columns, patch / columns % rows, patch / (columns * rows));
            let (y, x) = (py * ph + ky, px * pw + kx);
            visit(
                index,
                match self.layout {
                    ImageLayout::ChannelsLast => ((n * h + y) * w + x) * c + channel,
                    ImageLayout::ChannelsFirst => ((n * c + channel) * h + y) * w + x,
                },
            );
        }
    }
}

impl Operation for Patchify {
    fn name(&self) -> &'static str {
        "patchify"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        Ok(vec![Type::new(inputs[0].dtype, self.output_shape(&inputs[0])?)])
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let (x, dy) = (b.input(0), b.dy()?);
        let op = Unpatchify { patchify: *self, image: b.graph.shape(x).clone() };
        let dx = b.graph.value(op, &[dy])?;
        b.set(0, dx)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let mut y = Array::filled(outputs[0].shape.clone(), 0.0);
        let (x, data) = (inputs[0].data(), y.data_mut());
        self.each(inputs[0].shape(), |to, from| data[to] = x[from]);
        vec![y]
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

/// The inverse of [`Patchify`]; zero where no patch was.
#[derive(Debug, Clone, PartialEq)]
pub struct Unpatchify {
    /// The partition.
    pub patchify: Patchify,
    /// The image's shape.
    pub image: Shape,
}

impl Operation for Unpatchify {
    fn name(&self) -> &'static str {
        "unpatchify"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        let image = Type::new(inputs[0].dtype, self.image.clone());
        expect_shape("the patches", &inputs[0], &self.patchify.output_shape(&image)?)?;
        Ok(vec![image])
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let dy = b.dy()?;
        let dx = b.graph.value(self.patchify, &[dy])?;
        b.set(0, dx)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let mut image = Array::filled(outputs[0].shape.clone(), 0.0);
        let (y, data) = (inputs[0].data(), image.data_mut());
        self.patchify.each(&self.image, |from, to| data[to] = y[from]);
        vec![image]
    }

    fn moves_elements(&self) -> bool {
        true
    }
}
