//! LeNet-5 (LeCun et al., 1998) as it is taught: two convolutions with pooling, three fully connected layers; with tanh
//! and averages, or with ReLU and maxima.

use vit_graph::ops::{Activation, Pool2d, PoolMode};
use vit_graph::{Graph, GraphError, Init, Tensor};

use crate::layers::{Building, Conv, Mode, channels_last, head, linear_from};
use crate::preprocessing::Preprocessing;
use crate::variant::Variant;

/// One LeNet-5.
#[derive(Debug, Clone, PartialEq)]
pub struct LeNet {
    /// Height and width of the image.
    pub image_size: [usize; 2],
    /// Colour channels.
    pub channels: usize,
    /// Classes; 0 for no head.
    pub classes: usize,
    /// The activation.
    pub activation: Activation,
    /// How pixels are pooled.
    pub pooling: PoolMode,
}

impl Default for LeNet {
    /// The one of 1998, for handwritten digits.
    fn default() -> Self {
        LeNet { image_size: [28, 28], channels: 1, classes: 10, activation: Activation::Tanh, pooling: PoolMode::Mean }
    }
}

impl LeNet {
    /// The graph for a batch of images: input `image`, outputs `features` and `logits`. Taps: `stages.0`, `stages.1` and
    /// `feature_map`, the second stage's result.
    pub fn build(&self, batch: usize, mode: Mode) -> Result<Graph, GraphError> {
        let (image, _) = Building::start(batch, self.channels, self.image_size, mode, &[]);
        let pool = Pool2d::tiles(self.pooling, 2);
        // The first filters see two rows of border, so that 28 pixels are enough for what was made for 32.
        let x = biased(6).apply(&channels_last(&image), "conv1").activation(self.activation).pool2d(pool);
        x.tap("stages.0");
        let x = unpadded(&x, 16, "conv2").activation(self.activation).pool2d(pool);
        x.tap("stages.1");
        x.tap("feature_map");
        // The published order of the flattened image: channel, row, column.
        let flat = x.permute([0, 3, 1, 2]).reshape([batch, x.extent(1) * x.extent(2) * x.extent(3)]);
        let h = dense(&flat, 120, "fc1").activation(self.activation);
        head(&dense(&h, 84, "fc2").activation(self.activation), self.classes, "fc3");
        image.finish()
    }
}

fn biased(filters: usize) -> Conv {
    Conv { bias: true, ..Conv::new(filters, 5) }
}

fn unpadded(x: &Tensor, filters: usize, name: &str) -> Tensor {
    let _scope = x.scope(name);
    let init = Init::Normal { std: (2.0 / (25 * filters) as f32).sqrt() };
    let weight = x.parameter("weight", [filters, x.extent(3), 5, 5], init);
    let bias = x.parameter("bias", [filters], Init::Zeros);
    let conv = vit_graph::ops::Conv2d { stride: [1; 2], padding: [[0; 2]; 2], dilation: [1; 2], groups: 1, bias: true };
    x.conv2d(conv, &weight, Some(&bias))
}

fn dense(x: &Tensor, features: usize, name: &str) -> Tensor {
    let bound = (6.0 / (x.extent(1) + features) as f32).sqrt();
    linear_from(x, features, true, Init::Uniform { bound }, name)
}

/// The variant of a name; with `_cifar` behind it, the form for coloured pictures of 32 pixels.
pub fn variant(name: &str) -> Option<Variant> {
    let find = |name: &str| variants().into_iter().find(|v| v.name == name || v.paper_name.as_deref() == Some(name));
    find(name).or_else(|| {
        let mut variant = find(name.strip_suffix("_cifar")?)?;
        variant.preprocessing = Preprocessing::cifar();
        variant.architecture.set_image_size(variant.preprocessing.image_size);
        variant.architecture.set_channels(3);
        Some(Variant { name: name.into(), paper_name: None, ..variant })
    })
}

/// LeNet-5 with both choices.
pub fn variants() -> Vec<Variant> {
    let preprocessing = Preprocessing {
        image_size: [28, 28],
        crop_pct: 1.0,
        interpolation: "bilinear".into(),
        mean: vec![0.1307],
        std: vec![0.3081],
        ..Preprocessing::imagenet()
    };
    let variant = |name: &str, paper: Option<&str>, lenet: LeNet| Variant {
        name: name.into(),
        paper_name: paper.map(str::to_string),
        family: "LeNet",
        architecture: lenet.into(),
        preprocessing: preprocessing.clone(),
    };
    let modern = LeNet { activation: Activation::Relu, pooling: PoolMode::Max, ..LeNet::default() };
    vec![variant("lenet5", Some("LeNet-5"), LeNet::default()), variant("lenet5_relu", None, modern)]
}
