//! Partition of an image into (shifted) windows for local attention, and its inverse.

use super::{Operation, arity, expect_rank, expect_shape};
use crate::autodiff::Backward;
use crate::reference::Array;
use crate::{GraphError, Shape, Type};

/// `[b, h, w, c]` to `[b · windows, height · width, c]`, as in timm's Swin: the image is rolled up and left by `shift`
/// (cyclically), then padded with zeros at the bottom and right to whole windows, and partitioned row by row.
/// (torchvision pads first.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Windows {
    /// Height and width of a window.
    pub size: [usize; 2],
    /// The cyclic shift in rows and columns.
    pub shift: [usize; 2],
}

impl Windows {
    /// The number of windows along rows and columns.
    pub fn grid(&self, image: &[usize]) -> [usize; 2] {
        [0, 1].map(|axis| image[1 + axis].div_ceil(self.size[axis].max(1)))
    }

    /// The row or column of the image at a position of a window; `None` for padding.
    pub fn source(&self, axis: usize, window: usize, position: usize, extent: usize) -> Option<usize> {
        let shifted = window * self.size[axis] + position;
        (shifted < extent).then(|| (shifted + self.shift[axis] % extent) % extent)
    }

    fn windows_shape(&self, image: &Type) -> Result<Shape, String> {
        expect_rank("the image", image, 4)?;
        if self.size.contains(&0) || image.shape.contains(&0) {
            return Err(format!("windows of {}x{} cannot hold {}", self.size[0], self.size[1], image.shape));
        }
        let [rows, columns] = self.grid(&image.shape);
        let tokens = self.size[0].checked_mul(self.size[1]).ok_or("the windows are too large")?;
        Ok(Shape::from([image.shape[0] * rows * columns, tokens, image.shape[3]]))
    }

    /// Calls `visit(token, pixel)` for every token of every window that is not padding.
    fn each(&self, image: &[usize], mut visit: impl FnMut(usize, usize)) {
        let ([rows, columns], [height, width]) = (self.grid(image), self.size);
        for token in 0..image[0] * rows * columns * height * width {
            let (position, window) = (token % (height * width), token / (height * width));
            let (b, row, column) = (window / (rows * columns), window / columns % rows, window % columns);
            let y = self.source(0, row, position / width, image[1]);
            let x = self.source(1, column, position % width, image[2]);
            if let Some((y, x)) = y.zip(x) {
                visit(token, (b * image[1] + y) * image[2] + x);
            }
        }
    }
}

impl Operation for Windows {
    fn name(&self) -> &'static str {
        "windows"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        Ok(vec![Type::new(inputs[0].dtype, self.windows_shape(&inputs[0])?)])
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let (dy, image) = (b.dy()?, b.graph.shape(b.input(0)).clone());
        let dx = b.graph.value(Unwindows { windows: *self, image }, &[dy])?;
        b.set(0, dx)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let channels = inputs[0].shape()[3];
        let mut y = Array::filled(outputs[0].shape.clone(), 0.0);
        self.each(inputs[0].shape(), |token, pixel| {
            y.data_mut()[token * channels..][..channels]
                .copy_from_slice(&inputs[0].data()[pixel * channels..][..channels]);
        });
        vec![y]
    }

    fn moves_elements(&self) -> bool {
        true
    }
}

/// The inverse of [`Windows`]; padding is dropped.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Unwindows {
    /// The partition.
    pub windows: Windows,
    /// The image's shape.
    pub image: Shape,
}

impl Operation for Unwindows {
    fn name(&self) -> &'static str {
        "unwindows"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        let image = Type::new(inputs[0].dtype, self.image.clone());
        expect_shape("the windows", &inputs[0], &self.windows.windows_shape(&image)?)?;
        Ok(vec![image])
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let dy = b.dy()?;
        let dx = b.graph.value(self.windows, &[dy])?;
        b.set(0, dx)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let channels = self.image[3];
        let mut y = Array::filled(outputs[0].shape.clone(), 0.0);
        self.windows.each(&self.image, |token, pixel| {
            y.data_mut()[pixel * channels..][..channels]
                .copy_from_slice(&inputs[0].data()[token * channels..][..channels]);
        });
        vec![y]
    }

    fn moves_elements(&self) -> bool {
        true
    }
}
