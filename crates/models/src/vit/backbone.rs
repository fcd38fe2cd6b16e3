//! The convolutional stages of a hybrid, whose feature map is cut into patches instead of the image.

use serde_json::{Map, Value, json};
use vit_graph::Tensor;
use vit_graph::ops::Activation;

use crate::architecture::Network;
use crate::config::{Arguments, Configured};
use crate::layers::{Building, Conv, Forward, Norm, Padding};
use crate::resnet::ResNet;
use crate::resnetv2::ResNetV2;

/// Convolutional stages.
#[derive(Debug, Clone, PartialEq)]
pub enum Backbone {
    /// Those of BiT, as in the paper.
    ResNetV2(ResNetV2),
    /// Those of ResNet.
    ResNet(ResNet),
    /// Three convolutions that do not overlap; the last one has the width of the tokens, so that no projection follows
    /// (MobileCLIP).
    ConvStem(ConvStem),
}

/// Convolutions with a kernel as large as the stride, all but the last with batch norm and GELU.
#[derive(Debug, Clone, PartialEq)]
pub struct ConvStem {
    /// Filters of each convolution.
    pub widths: Vec<usize>,
}

/// The strides of [`ConvStem`].
const STRIDES: [usize; 3] = [4, 2, 2];

const RESNET: &str = "timm.models.resnet.ResNet";
const CONV_STEM: &str = "timm.models.vision_transformer_hybrid.ConvStem";

impl From<ResNetV2> for Backbone {
    fn from(net: ResNetV2) -> Self {
        Backbone::ResNetV2(net)
    }
}

impl Backbone {
    /// Rows and columns of the feature map of an image.
    pub fn feature_grid(&self, image_size: [usize; 2]) -> [usize; 2] {
        match self {
            Backbone::ResNetV2(net) => net.feature_grid(image_size),
            Backbone::ResNet(net) => net.feature_grid(image_size),
            Backbone::ConvStem(_) => image_size.map(|extent| extent / STRIDES.iter().product::<usize>()),
        }
    }

    /// The pixels of the image along a side of one of the feature map.
    pub(super) fn stride(&self) -> usize {
        let [rows, _] = self.feature_grid([1 << 10; 2]);
        (1 << 10) / rows.max(1)
    }

    /// Whether the feature map is projected to tokens.
    pub(super) fn is_projected(&self) -> bool {
        !matches!(self, Backbone::ConvStem(_))
    }

    pub(super) fn first_filters(&self) -> String {
        match self {
            Backbone::ResNetV2(net) => net.first_filters(),
            Backbone::ResNet(net) => net.first_filters(),
            Backbone::ConvStem(_) => "0.conv.weight".into(),
        }
    }

    pub(super) fn contradiction(&self, dim: usize) -> Option<String> {
        match self {
            Backbone::ResNetV2(net) => net.contradiction(),
            Backbone::ResNet(net) => net.contradiction(),
            Backbone::ConvStem(stem) => (stem.widths.len() != STRIDES.len() || stem.widths.last() != Some(&dim))
                .then(|| format!("a stem of three convolutions should end in {dim} filters, not {:?}", stem.widths)),
        }
    }

    /// The feature map of a channels-last image.
    pub(super) fn feature_map(&self, image: &Tensor, building: &Building) -> Tensor {
        match self {
            Backbone::ResNetV2(net) => Forward { net, building }.stages(image),
            Backbone::ResNet(net) => Forward { net, building }.stages(image),
            Backbone::ConvStem(stem) => stem.feature_map(image, building),
        }
    }

    /// The arguments of timm's constructor, with its class unless that is `ResNetV2`.
    pub(super) fn described(&self) -> Map<String, Value> {
        let (class, mut args) = match self {
            Backbone::ResNetV2(net) => return net.constructor().1,
            Backbone::ResNet(net) => (RESNET, net.constructor().1),
            Backbone::ConvStem(stem) => (CONV_STEM, Map::from_iter([("channels".to_string(), json!(stem.widths))])),
        };
        args.insert("class".into(), json!(class));
        args
    }

    /// Reads what [`described`](Self::described) writes.
    pub(super) fn read(args: &Map<String, Value>) -> Result<Self, String> {
        let args = Arguments::new("timm", args);
        match args.text("class")? {
            None => {
                let mut stages = ResNetV2 { classes: 0, ..ResNetV2::default() };
                stages.configure(&args)?;
                Ok(Backbone::ResNetV2(stages))
            }
            Some(RESNET) => {
                let mut stages = ResNet { classes: 0, ..ResNet::default() };
                stages.configure(&args)?;
                Ok(Backbone::ResNet(stages))
            }
            Some(CONV_STEM) => {
                let stem = ConvStem { widths: args.counts("channels")?.unwrap_or_default() };
                args.finish(&[])?;
                Ok(Backbone::ConvStem(stem))
            }
            Some(other) => Err(format!("convolutional stages of class `{other}` cannot be used before an encoder")),
        }
    }
}

impl ConvStem {
    /// That of tokens of this width.
    pub fn of_width(dim: usize) -> Self {
        ConvStem { widths: vec![dim / 4, dim / 4, dim] }
    }

    fn feature_map(&self, image: &Tensor, building: &Building) -> Tensor {
        let mut x = image.clone();
        for (index, (&width, stride)) in self.widths.iter().zip(STRIDES).enumerate() {
            let last = index + 1 == self.widths.len();
            let _scope = x.scope(&index.to_string());
            let conv = Conv { stride, padding: Padding::None, bias: last, ..Conv::new(width, stride) };
            x = conv.apply(&x, "conv");
            if !last {
                x = building.norm(&x, Norm::BATCH, "bn").activation(Activation::Gelu);
            }
        }
        x
    }
}
