//! Pooling over windows of an image.

use super::{Operation, arity, expect_rank, expect_shape};
use crate::autodiff::Backward;
use crate::reference::Array;
use crate::{GraphError, Shape, Type};

/// How a window is reduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PoolMode {
    /// Its largest element, the first of equal ones; NaN if the window has one.
    Max,
    /// The mean of its elements.
    Mean,
}

/// Pooling of a channels-last image `[b, h, w, c]` to `[b, h', w', c]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pool2d {
    /// Maximum or mean.
    pub pooling: PoolMode,
    /// Height and width of a window.
    pub kernel: [usize; 2],
    /// The stride of rows and columns.
    pub stride: [usize; 2],
    /// The padding, `[[top, bottom], [left, right]]`.
    pub padding: [[usize; 2]; 2],
    /// Whether padding counts as zeros; otherwise it is excluded from maximum and mean.
    pub count_padding: bool,
}

impl Pool2d {
    /// Non-overlapping square windows.
    pub fn tiles(pooling: PoolMode, side: usize) -> Self {
        Pool2d { pooling, kernel: [side; 2], stride: [side; 2], padding: [[0; 2]; 2], count_padding: false }
    }

    fn output_shape(&self, x: &Type) -> Result<Shape, String> {
        expect_rank("the image", x, 4)?;
        let mut shape = x.shape.clone();
        for axis in 0..2 {
            let ([before, after], kernel) = (self.padding[axis], self.kernel[axis]);
            let extent = x.shape[1 + axis];
            // Every window must contain a pixel.
            if before >= kernel || after >= kernel || self.stride[axis] == 0 || extent == 0 {
                return Err(format!("windows of {kernel} do not fit {extent} pixels padded with {before} and {after}"));
            }
            let padded = extent.checked_add(before).and_then(|e| e.checked_add(after));
            let last_start = padded
                .and_then(|padded| padded.checked_sub(kernel))
                .ok_or_else(|| format!("windows of {kernel} do not fit into {extent} pixels"))?;
            shape = shape.with(1 + axis, last_start / self.stride[axis] + 1);
        }
        Ok(shape)
    }

    /// Start and end (exclusive) of a window along an axis, without padding.
    pub fn window(&self, axis: usize, output: usize, extent: usize) -> [usize; 2] {
        let start = output * self.stride[axis];
        let clamp = |padded: usize| padded.saturating_sub(self.padding[axis][0]).min(extent);
        [clamp(start), clamp(start + self.kernel[axis])]
    }

    /// Calls `visit(output index, input indices of its window, whether the window contains padding)`.
    fn each(&self, x: &[usize], y: &[usize], mut visit: impl FnMut(usize, &[usize], bool)) {
        let mut window = Vec::new();
        for out in 0..y.iter().product() {
            let (b, oy, ox, c) =
                (out / (y[1] * y[2] * y[3]), out / (y[2] * y[3]) % y[1], out / y[3] % y[2], out % y[3]);
            let ([top, bottom], [left, right]) = (self.window(0, oy, x[1]), self.window(1, ox, x[2]));
            window.clear();
            for iy in top..bottom {
                window.extend((left..right).map(|ix| ((b * x[1] + iy) * x[2] + ix) * x[3] + c));
            }
            visit(out, &window, window.len() < self.kernel[0] * self.kernel[1]);
        }
    }

    /// The divisor of a window's mean.
    fn count(&self, window: &[usize]) -> f64 {
        if self.count_padding { (self.kernel[0] * self.kernel[1]) as f64 } else { window.len() as f64 }
    }

    /// The index of a window's maximum; `None` if that is a zero of the padding.
    fn largest(&self, x: &[f64], window: &[usize], padded: bool) -> Option<usize> {
        let best = window.iter().copied().reduce(|best, i| if x[i] > x[best] || x[i].is_nan() { i } else { best });
        best.filter(|&i| !(self.count_padding && padded && x[i] < 0.0))
    }
}

impl Operation for Pool2d {
    fn name(&self) -> &'static str {
        match self.pooling {
            PoolMode::Max => "max_pool",
            PoolMode::Mean => "mean_pool",
        }
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        Ok(vec![Type::new(inputs[0].dtype, self.output_shape(&inputs[0])?)])
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let (x, dy) = (b.input(0), b.dy()?);
        let dx = b.graph.value(Pool2dGrad(*self), &[dy, x])?;
        b.set(0, dx)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let x = inputs[0].data();
        let mut y = Array::filled(outputs[0].shape.clone(), 0.0);
        self.each(inputs[0].shape(), &outputs[0].shape, |out, window, padded| {
            y.data_mut()[out] = match self.pooling {
                PoolMode::Max => self.largest(x, window, padded).map_or(0.0, |i| x[i]),
                PoolMode::Mean => window.iter().map(|&i| x[i]).sum::<f64>() / self.count(window),
            };
        });
        vec![y]
    }
}

/// The gradient of [`Pool2d`]: from `dy` and the image `x`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pool2dGrad(pub Pool2d);

impl Operation for Pool2dGrad {
    fn name(&self) -> &'static str {
        "pool_grad"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 2)?;
        expect_shape("dy", &inputs[0], &self.0.output_shape(&inputs[1])?)?;
        Ok(vec![inputs[1].clone()])
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (dy, x) = (inputs[0].data(), inputs[1].data());
        let mut dx = Array::filled(outputs[0].shape.clone(), 0.0);
        let data = dx.data_mut();
        self.0.each(inputs[1].shape(), inputs[0].shape(), |out, window, padded| match self.0.pooling {
            PoolMode::Max => self.0.largest(x, window, padded).into_iter().for_each(|i| data[i] += dy[out]),
            PoolMode::Mean => window.iter().for_each(|&i| data[i] += dy[out] / self.0.count(window)),
        });
        vec![dx]
    }
}
