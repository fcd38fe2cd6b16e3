//! One type for every architecture, so that callers need no special cases.

use vit_graph::{Graph, GraphError};

use crate::coatnet::CoAtNet;
use crate::efficientnet::EfficientNet;
use crate::layers::Mode;
use crate::lenet::LeNet;
use crate::resnet::{ResNet, Stem};
use crate::resnetv2::{self, ResNetV2};
use crate::swin::Swin;
use crate::vit::Vit;

macro_rules! architectures {
    ($($name:ident),*) => {
        /// Any model of the family. To add one: a file with its struct, a variant here, its names in `variant.rs`.
        #[derive(Debug, Clone, PartialEq)]
        #[allow(missing_docs)]
        pub enum Architecture { $($name($name)),* }

        $(impl From<$name> for Architecture {
            fn from(model: $name) -> Self {
                Architecture::$name(model)
            }
        })*

        /// Does the same with every model: all of them have these fields and methods.
        macro_rules! each {
            ($self:expr, $model:ident => $body:expr) => {
                match $self { $(Architecture::$name($model) => $body),* }
            };
        }
    };
}

architectures!(Vit, ResNet, ResNetV2, LeNet, EfficientNet, Swin, CoAtNet);

impl Architecture {
    /// The graph for a batch of images; see the architecture's own `build` for its inputs, outputs and taps.
    pub fn build(&self, batch: usize, mode: Mode) -> Result<Graph, GraphError> {
        each!(self, model => model.build(batch, mode))
    }

    /// Height and width of the image.
    pub fn image_size(&self) -> [usize; 2] {
        each!(self, model => model.image_size)
    }

    /// Changes the image size.
    pub fn set_image_size(&mut self, size: [usize; 2]) {
        each!(self, model => model.image_size = size);
    }

    /// Why an image size does not suit the model, and the nearest that do: whole patches must cover the image. Some
    /// published models leave a margin out; that is their own choice of size, not one to make by accident.
    pub fn refuses_image_size(&self, size: [usize; 2]) -> Option<String> {
        let (patch, backbone) = match self {
            Architecture::Vit(vit) => (vit.patch_size, vit.backbone.as_deref()),
            Architecture::Swin(swin) => (swin.patch_size, None),
            _ => return None,
        };
        let fits = |axis: usize, extent: usize| {
            let pixels = backbone.map_or(extent, |backbone| backbone.feature_grid([extent; 2])[0]);
            pixels > 0 && patch[axis] > 0 && pixels.is_multiple_of(patch[axis])
        };
        if fits(0, size[0]) && fits(1, size[1]) {
            return None;
        }
        let below = [0, 1].map(|axis| (1..=size[axis]).rev().find(|extent| fits(axis, *extent)));
        let above =
            [0, 1].map(|axis| (size[axis]..=size[axis].saturating_add(1 << 12)).find(|extent| fits(axis, *extent)));
        let sizes = [below, above].map(|[height, width]| Some(format!("{}x{}", height?, width?)));
        let sizes: Vec<String> = sizes.into_iter().flatten().collect();
        let ([height, width], [rows, columns]) = (size, patch);
        let what = if backbone.is_some() { "a feature map that divides into patches" } else { "patches" };
        Some(format!(
            "an image of {height}x{width} pixels cannot be cut into {what} of {rows}x{columns}; sizes that can are {}",
            sizes.join(" and ")
        ))
    }

    /// Colour channels.
    pub fn channels(&self) -> usize {
        each!(self, model => model.channels)
    }

    /// Changes the number of colour channels.
    pub fn set_channels(&mut self, channels: usize) {
        each!(self, model => model.channels = channels);
    }

    /// Classes; 0 without a head.
    pub fn classes(&self) -> usize {
        each!(self, model => model.classes)
    }

    /// Changes the number of classes.
    pub fn set_classes(&mut self, classes: usize) {
        each!(self, model => model.classes = classes);
    }

    /// Changes stochastic depth: the rate of the last block, to which earlier ones grow. LeNet has no blocks to leave out.
    pub fn set_drop_path(&mut self, rate: f32) {
        match self {
            Architecture::Vit(model) => model.drop_path = rate,
            Architecture::ResNet(model) => model.drop_path = rate,
            Architecture::ResNetV2(model) => model.drop_path = rate,
            Architecture::EfficientNet(model) => model.drop_path = rate,
            Architecture::Swin(model) => model.drop_path = rate,
            Architecture::CoAtNet(model) => model.drop_path = rate,
            Architecture::LeNet(_) => {}
        }
    }

    /// Changes dropout: in a Vision Transformer that of the paper, in the others the one before the head. LeNet has none.
    pub fn set_dropout(&mut self, rate: f32) {
        match self {
            Architecture::Vit(model) => model.dropout = rate,
            Architecture::ResNet(model) => model.dropout = rate,
            Architecture::ResNetV2(model) => model.dropout = rate,
            Architecture::EfficientNet(model) => model.dropout = rate,
            Architecture::Swin(model) => model.dropout = rate,
            Architecture::CoAtNet(model) => model.dropout = rate,
            Architecture::LeNet(_) => {}
        }
    }

    /// The layers that give the logits, by name.
    pub fn heads(&self) -> &'static [&'static str] {
        match self {
            Architecture::Vit(_) => &["head", "head_dist"],
            Architecture::ResNet(_) => &["fc"],
            Architecture::LeNet(_) => &["fc3"],
            Architecture::EfficientNet(_) => &["classifier"],
            Architecture::ResNetV2(_) | Architecture::Swin(_) | Architecture::CoAtNet(_) => &["head.fc"],
        }
    }

    /// Changes dropout of attention weights, where there are any.
    pub fn set_attention_dropout(&mut self, rate: f32) {
        match self {
            Architecture::Vit(model) => model.attention_dropout = rate,
            Architecture::Swin(model) => model.attention_dropout = rate,
            Architecture::CoAtNet(model) => model.transformers.attention_dropout = rate,
            _ => {}
        }
    }

    /// Whether a parameter belongs to a layer that gives the logits.
    pub fn is_head(&self, parameter: &str) -> bool {
        let layer = parameter.rsplit_once('.').map_or("", |(layer, _)| layer);
        self.heads().contains(&layer)
    }

    /// The filters that see the colours, by name.
    pub fn first_filters(&self) -> String {
        let stem = |net: &ResNetV2| match (net.depths.is_empty(), net.stem) {
            (true, resnetv2::Stem::Plain | resnetv2::Stem::Small) => "conv",
            (true, _) => "conv1",
            (false, resnetv2::Stem::Plain | resnetv2::Stem::Small) => "stem.conv",
            (false, _) => "stem.conv1",
        };
        let layer = match self {
            Architecture::Vit(vit) => match &vit.backbone {
                Some(backbone) => format!("patch_embed.backbone.{}", stem(backbone)),
                None => "patch_embed.proj".into(),
            },
            Architecture::ResNet(ResNet { stem: Stem::Deep { .. } | Stem::Tiered { .. }, .. }) => "conv1.0".into(),
            Architecture::ResNet(_) | Architecture::LeNet(_) => "conv1".into(),
            Architecture::ResNetV2(net) => stem(net).into(),
            Architecture::EfficientNet(_) => "conv_stem".into(),
            Architecture::Swin(_) => "patch_embed.proj".into(),
            Architecture::CoAtNet(_) => "stem.conv1".into(),
        };
        layer + ".weight"
    }

    /// Tokens that are not patches, where the model is made of tokens; others have a `feature_map` instead.
    pub fn prefix_tokens(&self) -> Option<usize> {
        match self {
            Architecture::Vit(vit) => Some(vit.prefix_tokens()),
            _ => None,
        }
    }

    /// Whether a part of the model is there to follow a teacher (DeiT's distillation head).
    pub fn follows_teacher(&self) -> bool {
        matches!(self, Architecture::Vit(vit) if vit.distillation_head)
    }

    /// Whether there is a class token.
    pub fn has_class_token(&self) -> bool {
        matches!(self, Architecture::Vit(vit) if vit.class_token)
    }
}
