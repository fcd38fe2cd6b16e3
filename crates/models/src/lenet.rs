//! LeNet-5 (LeCun et al., 1998) in its usual form: two convolutions with pooling, three fully connected layers; with tanh and
//! mean pooling, or with ReLU and max pooling.

use serde_json::{Map, Value, json};
use vit_graph::ops::{Activation, Operation, Pool2d, PoolMode};
use vit_graph::{Init, Tensor};

use crate::architecture::Network;
use crate::config::{Arguments, Configured, TimmForm};
use crate::layers::{Building, Conv, Padding, channels_last, head, linear_from};
use crate::network_fields;
use crate::variant::Variant;
use vit_preprocess::{Filter, Preprocess};

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

impl Network for LeNet {
    network_fields!();

    fn kind(&self) -> &'static str {
        "LeNet"
    }

    /// Outputs: `features` before the head, and `logits` if there are classes. Taps: `stages.0`, `stages.1` and
    /// `feature_map`, the second stage's result.
    fn forward(&self, image: &Tensor, _: &Building) {
        let pool = Pool2d::tiles(self.pooling, 2);
        // The first filters are padded by two pixels, so that images of 28 pixels suffice where the paper's have 32.
        let conv1 = Conv { bias: true, ..Conv::new(6, 5) };
        let conv2 = Conv { padding: Padding::None, bias: true, ..Conv::new(16, 5) };
        let x = conv1.apply(&channels_last(image), "conv1").activation(self.activation).pool2d(pool);
        x.tap("stages.0");
        let x = conv2.apply(&x, "conv2").activation(self.activation).pool2d(pool);
        x.tap("stages.1");
        x.tap("feature_map");
        // The published order of the flattened image: channel, row, column.
        let flat = x.permute([0, 3, 1, 2]).reshape([x.extent(0), x.extent(1) * x.extent(2) * x.extent(3)]);
        let h = dense(&flat, 120, "fc1").activation(self.activation);
        head(&dense(&h, 84, "fc2").activation(self.activation), self.classes, "fc3");
    }

    fn heads(&self) -> &'static [&'static str] {
        &["fc3"]
    }

    fn first_filters(&self) -> String {
        "conv1.weight".into()
    }

    fn variants() -> Vec<Variant> {
        let variant = |name: &str, paper: Option<&str>, lenet: LeNet| Variant {
            name: name.into(),
            paper_name: paper.map(str::to_string),
            family: "LeNet",
            architecture: lenet.into(),
            preprocessing: digits(),
        };
        let modern = LeNet { activation: Activation::Relu, pooling: PoolMode::Max, ..LeNet::default() };
        vec![variant("lenet5", Some("LeNet-5"), LeNet::default()), variant("lenet5_relu", None, modern)]
    }

    /// With `_cifar` after a published name, the form for coloured images of 32 pixels.
    fn variant(name: &str) -> Option<Variant> {
        let published = name.strip_suffix("_cifar")?;
        let mut variant =
            Self::variants().into_iter().find(|v| v.name == published || v.paper_name.as_deref() == Some(published))?;
        variant.preprocessing = Preprocess::cifar();
        variant.architecture.set_image_size(variant.preprocessing.image_size);
        variant.architecture.set_channels(3);
        Some(Variant { name: name.into(), paper_name: None, ..variant })
    }
}

impl Configured for LeNet {
    fn constructor(&self) -> (&'static str, Map<String, Value>) {
        let mut args = Map::new();
        args.insert("act".into(), json!(self.activation.name()));
        args.insert("pool".into(), json!(if self.pooling == PoolMode::Max { "max" } else { "avg" }));
        args.insert("num_classes".into(), json!(self.classes));
        args.insert("in_chans".into(), json!(self.channels));
        (CLASS, args)
    }

    fn configure(&mut self, args: &Arguments) -> Result<(), String> {
        self.activation = args.activation("act")?.unwrap_or(self.activation);
        self.pooling = match args.text("pool")? {
            None => self.pooling,
            Some("avg") => PoolMode::Mean,
            Some("max") => PoolMode::Max,
            Some(other) => return Err(format!("LeNet's option `pool` should be avg or max, not `{other}`")),
        };
        self.classes = args.count("num_classes")?.unwrap_or(self.classes);
        self.channels = args.count("in_chans")?.unwrap_or(self.channels);
        args.finish(&[])
    }

    fn timm(&self) -> TimmForm {
        TimmForm { base: Err("timm has no LeNet".into()), ..TimmForm::published(Map::new()) }
    }

    fn classes() -> Vec<(&'static str, Self, Preprocess)> {
        vec![(CLASS, LeNet::default(), digits())]
    }
}

const CLASS: &str = "lenet5";

/// How images of handwritten digits (MNIST) are prepared.
fn digits() -> Preprocess {
    Preprocess {
        image_size: [28, 28],
        crop_pct: 1.0,
        interpolation: Filter::Bilinear,
        mean: vec![0.1307],
        std: vec![0.3081],
        ..Preprocess::imagenet()
    }
}

fn dense(x: &Tensor, features: usize, name: &str) -> Tensor {
    let bound = (6.0 / (x.extent(1) + features) as f32).sqrt();
    linear_from(x, features, true, Init::Uniform { bound }, name)
}
