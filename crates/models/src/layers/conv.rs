//! Convolutions: their padding, and the standardisation of their weights.

use vit_graph::ops::{Constant, Conv2d, Pool2d, PoolMode};
use vit_graph::{Init, Shape, Tensor};

/// How many zeros are around an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Padding {
    /// As many before as after, whatever the image's size, as in PyTorch.
    Symmetric,
    /// As many as give `ceil(size / stride)` results, an odd one after, as in TensorFlow and JAX.
    Same,
    /// None: a border narrower than the stride is left out.
    None,
}

impl Padding {
    /// Rows or columns before and after.
    pub fn amount(self, extent: usize, kernel: usize, stride: usize, dilation: usize) -> [usize; 2] {
        let reach = dilation * kernel.saturating_sub(1);
        match self {
            Padding::None => [0; 2],
            Padding::Symmetric => [(stride.saturating_sub(1) + reach) / 2; 2],
            Padding::Same => {
                let last = extent.div_ceil(stride.max(1)).saturating_sub(1) * stride;
                let total = (last + reach + 1).saturating_sub(extent);
                [total / 2, total - total / 2]
            }
        }
    }

    /// The padding of an image for square filters.
    pub fn around(self, image: &Tensor, kernel: usize, stride: usize, dilation: usize) -> [[usize; 2]; 2] {
        [1, 2].map(|axis| self.amount(image.extent(axis), kernel, stride, dilation))
    }

    /// The extent of the result along one axis.
    pub fn results(self, extent: usize, kernel: usize, stride: usize) -> usize {
        let [before, after] = self.amount(extent, kernel, stride, 1);
        (extent + before + after).saturating_sub(kernel) / stride.max(1) + 1
    }
}

/// Weight standardisation (Qiao et al., 2019): every filter has mean 0 and deviation 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Standardise {
    /// Divided by `sqrt(variance + epsilon)`, as PyTorch's ports do.
    Variance(f32),
    /// Divided by `sqrt(variance) + epsilon`, as Google's code does.
    Deviation(f32),
}

impl Standardise {
    fn apply(self, weight: &Tensor) -> Tensor {
        // One filter per row.
        let (shape, filters) = (weight.shape(), weight.extent(0));
        let rows = weight.reshape([filters, shape.elements() / filters.max(1)]);
        let centred = &rows - &rows.mean([1]).reshape([filters, 1]);
        let variance = (&centred * &centred).mean([1]).reshape([filters, 1]);
        let scalar = |n: f32| weight.constant(Constant::filled(Shape::default(), n));
        let factor = match self {
            Standardise::Variance(epsilon) => (variance + scalar(epsilon)).power(-0.5),
            Standardise::Deviation(epsilon) => (variance.sqrt() + scalar(epsilon)).power(-1.0),
        };
        (centred * factor).reshape(shape)
    }
}

/// A convolution with square filters.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub struct Conv {
    pub filters: usize,
    pub kernel: usize,
    pub stride: usize,
    pub dilation: usize,
    pub groups: usize,
    pub padding: Padding,
    pub bias: bool,
    pub standardise: Option<Standardise>,
    /// How the weights start; by default so that the size of activations is kept (He et al., 2015).
    pub init: Option<Init>,
}

impl Conv {
    /// Filters of this size, with stride 1 and without a bias.
    pub fn new(filters: usize, kernel: usize) -> Self {
        Conv {
            filters,
            kernel,
            stride: 1,
            dilation: 1,
            groups: 1,
            padding: Padding::Symmetric,
            bias: false,
            standardise: None,
            init: None,
        }
    }

    /// Applies it to a channels-last image.
    pub fn apply(&self, x: &Tensor, name: &str) -> Tensor {
        let _scope = x.scope(name);
        let Conv { filters, kernel, stride, dilation, groups, .. } = *self;
        let groups = groups.max(1);
        let fan_out = (kernel * kernel * filters / groups).max(1);
        let init = self.init.unwrap_or(Init::Normal { std: (2.0 / fan_out as f32).sqrt() });
        let weight = x.parameter("weight", [filters, x.extent(3) / groups, kernel, kernel], init);
        let weight = self.standardise.map_or(weight.clone(), |how| how.apply(&weight));
        let bias = self.bias.then(|| x.parameter("bias", [filters], Init::Zeros));
        let padding = self.padding.around(x, kernel, stride, dilation);
        let conv = Conv2d { stride: [stride; 2], padding, dilation: [dilation; 2], groups, bias: self.bias };
        x.conv2d(conv, &weight, bias.as_ref())
    }
}

/// Maximum over squares.
pub fn max_pool(x: &Tensor, kernel: usize, stride: usize, padding: [[usize; 2]; 2], count_padding: bool) -> Tensor {
    let (pooling, kernel, stride) = (PoolMode::Max, [kernel; 2], [stride; 2]);
    x.pool2d(Pool2d { pooling, kernel, stride, padding, count_padding })
}

/// The mean of 2x2 pixels before a shortcut that changes the resolution (ResNet-D). With a stride, padding does not count in
/// means at the border; with dilation instead of a stride, the image keeps its size and zeros count.
pub fn average_down(x: &Tensor, stride: usize, dilation: usize) -> Tensor {
    let (padding, count_padding) = match (stride, dilation) {
        (1, 1) => return x.clone(),
        (1, _) => ([[0, 1]; 2], true),
        _ => ([1, 2].map(|axis| [0, x.extent(axis) % 2]), false),
    };
    x.pool2d(Pool2d { pooling: PoolMode::Mean, kernel: [2; 2], stride: [stride; 2], padding, count_padding })
}

/// A channels-last image from the input `[b, c, h, w]`.
pub fn channels_last(image: &Tensor) -> Tensor {
    image.permute([0, 2, 3, 1])
}

/// A linear layer whose weight is stored as 1x1 filters.
pub fn pointwise(x: &Tensor, features: usize, init: Init, name: &str) -> Tensor {
    let _scope = x.scope(name);
    let inputs = x.shape().last();
    let weight = x.parameter("weight", [features, inputs, 1, 1], init).reshape([features, inputs]);
    let bias = x.parameter("bias", [features], Init::Zeros);
    x.linear(&weight, Some(&bias))
}

#[cfg(test)]
mod tests {
    use vit_graph::autodiff::gradients;
    use vit_graph::reference::{self, Array, Bindings};
    use vit_graph::{DType, Tensor};

    use super::{Padding, Standardise};

    #[test]
    fn filters_of_equal_weights_have_finite_gradients() {
        for standardise in [Standardise::Variance(1e-10), Standardise::Deviation(1e-10)] {
            let weight = Tensor::input("weight", DType::F32, [2, 1, 2, 2]);
            let weighted = &standardise.apply(&weight) * &weight;
            weighted.sum([0, 1, 2, 3]).output("loss");
            let value = weight.value().unwrap();
            let mut graph = weight.finish().unwrap();
            let loss = graph.output("loss").unwrap();
            let gradient = gradients(&mut graph, loss, &[value]).unwrap()[0];
            graph.set_output("gradient", gradient).unwrap();
            let weights = vec![0.0, 0.0, 0.0, 0.0, 1.0, 2.0, -1.0, 0.5];
            let found =
                reference::run(&graph, &Bindings::new().with("weight", Array::new([2, 1, 2, 2], weights))).unwrap();
            assert!(
                found.iter().all(|(_, array)| array.data().iter().all(|x| x.is_finite())),
                "{standardise:?}: {found:?}"
            );
        }
    }

    #[test]
    fn padding_is_that_of_the_libraries() {
        // TensorFlow: 224 with a 3x3 filter of stride 2 has nothing before and one row after; PyTorch one on each side.
        assert_eq!(Padding::Same.amount(224, 3, 2, 1), [0, 1]);
        assert_eq!(Padding::Same.amount(225, 3, 2, 1), [1, 1]);
        assert_eq!(Padding::Same.amount(224, 7, 2, 1), [2, 3]);
        assert_eq!(Padding::Same.amount(14, 1, 2, 1), [0, 0]);
        assert_eq!(Padding::Symmetric.amount(224, 3, 2, 1), [1, 1]);
        assert_eq!(Padding::Symmetric.amount(224, 7, 2, 1), [3, 3]);
        assert_eq!(Padding::Symmetric.amount(224, 3, 1, 2), [2, 2]);
    }
}
