//! ResNet v2 with group norm and standardised weights: Big Transfer (Kolesnikov et al., 2020), and the stages before a
//! hybrid Vision Transformer. Parameters have timm's names.

mod variants;

pub use variants::variants;

use vit_graph::ops::Activation;
use vit_graph::{Graph, GraphError, Init, Tensor};

use crate::layers::{
    Building, Conv, Mode, Norm, Padding, Standardise, average_down, channels_last, drop_path_rate, max_pool, pointwise,
    round_width,
};

/// The first convolutions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stem {
    /// One of 7x7, then pooling.
    Plain,
    /// One of 3x3 at every pixel and no pooling: for pictures of 32 pixels.
    Small,
    /// Three of 3x3, half the width in the first two.
    Deep,
    /// The same with three eighths in the first.
    Tiered,
}

/// How the stem's pooling continues the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StemPooling {
    /// One row and column on each side that no maximum sees.
    Symmetric,
    /// One row and column of zeros on each side, which stands in for TensorFlow's rule in BiT.
    Zeros,
    /// As TensorFlow does.
    Same,
}

/// The kind of residual block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResNetV2Block {
    /// Norm and activation before each of three convolutions.
    Bottleneck,
    /// Norm and activation before each of two convolutions.
    Basic,
    /// Three convolutions with norm and activation after each, as ResNet v1.5.
    PostActivation,
}

/// One ResNet v2.
#[derive(Debug, Clone, PartialEq)]
pub struct ResNetV2 {
    /// Height and width of the image.
    pub image_size: [usize; 2],
    /// Colour channels.
    pub channels: usize,
    /// Classes; 0 for no head.
    pub classes: usize,
    /// Blocks of each stage; none for a stem alone.
    pub depths: Vec<usize>,
    /// Width of each stage.
    pub widths: Vec<usize>,
    /// Width of the stem.
    pub stem_width: usize,
    /// The first convolutions.
    pub stem: Stem,
    /// The pooling after them.
    pub stem_pooling: StemPooling,
    /// The kind of block.
    pub block: ResNetV2Block,
    /// The share of a block's width that its inner convolutions have.
    pub bottleneck: f64,
    /// Shortcuts average pixels before they change width, instead of leaving pixels out.
    pub average_down: bool,
    /// The coarsest resolution; later stages see further apart instead.
    pub output_stride: usize,
    /// The norms.
    pub norm: Norm,
    /// What is done to the filters.
    pub standardise: Option<Standardise>,
    /// How convolutions continue the image.
    pub padding: Padding,
    /// The activation.
    pub activation: Activation,
    /// Dropout before the head.
    pub dropout: f32,
    /// Stochastic depth of the last block; earlier ones grow linearly to it.
    pub drop_path: f32,
}

impl Default for ResNetV2 {
    /// BiT's R50x1.
    fn default() -> Self {
        ResNetV2 {
            image_size: [224, 224],
            channels: 3,
            classes: 1000,
            depths: vec![3, 4, 6, 3],
            widths: vec![256, 512, 1024, 2048],
            stem_width: 64,
            stem: Stem::Plain,
            stem_pooling: StemPooling::Zeros,
            block: ResNetV2Block::Bottleneck,
            bottleneck: 0.25,
            average_down: false,
            output_stride: 32,
            norm: Norm::Group { groups: 32, epsilon: 1e-5 },
            standardise: Some(Standardise::Variance(1e-8)),
            padding: Padding::Symmetric,
            activation: Activation::Relu,
            dropout: 0.0,
            drop_path: 0.0,
        }
    }
}

/// Where a block stands.
#[derive(Clone, Copy)]
struct Place {
    width: usize,
    stride: usize,
    first_dilation: usize,
    dilation: usize,
    first: bool,
    drop_path: f32,
}

impl ResNetV2 {
    /// The graph for a batch of images.
    ///
    /// Input: `image [batch, channels, height, width]`, and in training `seed i32[4]` if anything is random. Outputs:
    /// `features` before the head, and `logits` if there are classes. Taps: `stages.N`, `stages.N.blocks.M`, and
    /// `feature_map [batch, rows, columns, channels]`.
    pub fn build(&self, batch: usize, mode: Mode) -> Result<Graph, GraphError> {
        let rates = [self.dropout, self.drop_path];
        let (image, building) = Building::start(batch, self.channels, self.image_size, mode, &rates);
        let x = self.stages(&building, &channels_last(&image));
        let x = match self.block {
            ResNetV2Block::PostActivation => x,
            _ => building.norm(&x, self.norm, "norm").activation(self.activation),
        };
        x.tap("feature_map");
        let features = building.dropout(x.mean([1, 2]), self.dropout);
        features.output("features");
        if self.classes > 0 {
            pointwise(&features, self.classes, Init::Zeros, "head.fc").output("logits");
        }
        image.finish()
    }

    /// The stages of a hybrid Vision Transformer: norms after convolutions, and TensorFlow's border.
    pub fn before_tokens(depths: &[usize]) -> Self {
        let base = ResNetV2::default();
        ResNetV2 {
            classes: 0,
            depths: depths.to_vec(),
            widths: base.widths[..depths.len().min(4)].to_vec(),
            stem_pooling: StemPooling::Same,
            block: ResNetV2Block::PostActivation,
            padding: Padding::Same,
            ..base
        }
    }

    /// Stem and stages, on a channels-last image.
    pub(crate) fn stages(&self, building: &Building, image: &Tensor) -> Tensor {
        if let Some(reason) = self.contradiction() {
            return image.refuse("resnetv2", reason);
        }
        Layers { net: self, building }.run(image)
    }

    /// Rows and columns of the last stage's result for an image of this size.
    pub fn feature_grid(&self, image_size: [usize; 2]) -> [usize; 2] {
        image_size.map(|extent| {
            let mut extent = extent;
            if self.stem != Stem::Small {
                let stem = self.padding.results(extent, if self.stem == Stem::Plain { 7 } else { 3 }, 2);
                let pooling = if self.stem_pooling == StemPooling::Same { Padding::Same } else { Padding::Symmetric };
                extent = pooling.results(stem, 3, 2);
            }
            let mut stride = self.stem_stride();
            for _ in 1..self.depths.len() {
                if stride < self.output_stride {
                    extent = self.padding.results(extent, 3, 2);
                    stride *= 2;
                }
            }
            extent
        })
    }

    /// How much coarser the stem's result is than the image.
    pub fn stem_stride(&self) -> usize {
        if self.stem == Stem::Small { 1 } else { 4 }
    }

    /// The width of the last stage.
    pub fn features(&self) -> usize {
        self.widths.last().copied().unwrap_or(self.stem_width)
    }

    fn contradiction(&self) -> Option<String> {
        if self.depths.len() != self.widths.len() {
            return Some(format!(
                "there are {} stages and {} widths; each stage needs one width",
                self.depths.len(),
                self.widths.len()
            ));
        }
        if self.depths.iter().any(|&d| d == 0 || d > 1 << 10) || self.widths.iter().any(|&w| w == 0 || w > 1 << 16) {
            return Some(format!(
                "the stages have {:?} blocks and widths {:?}; 1 to 1024 blocks and widths from 1 to 65536 are possible",
                self.depths, self.widths
            ));
        }
        if self.stem_width == 0 || self.stem_width > 1 << 16 || !(self.bottleneck > 0.0 && self.bottleneck <= 16.0) {
            return Some(format!(
                "a stem of {} and bottlenecks of {} cannot be built",
                self.stem_width, self.bottleneck
            ));
        }
        None
    }
}

struct Layers<'a> {
    net: &'a ResNetV2,
    building: &'a Building,
}

impl Layers<'_> {
    fn run(&self, image: &Tensor) -> Tensor {
        let net = self.net;
        // A stem alone is no part of anything, and has no name of its own.
        let mut x = self.stem(image, if net.depths.is_empty() { "" } else { "stem" });
        let (mut stride_so_far, mut dilation, mut index) = (net.stem_stride(), 1, 0);
        let blocks: usize = net.depths.iter().sum();
        for (stage, (&depth, &width)) in net.depths.iter().zip(&net.widths).enumerate() {
            let mut stride = if stage == 0 { 1 } else { 2 };
            if stride_so_far >= net.output_stride {
                dilation *= stride;
                stride = 1;
            }
            stride_so_far *= stride;
            for block in 0..depth {
                let first = block == 0;
                let place = Place {
                    width,
                    stride: if first { stride } else { 1 },
                    first_dilation: if first && dilation <= 2 {
                        1
                    } else if first {
                        2
                    } else {
                        dilation
                    },
                    dilation,
                    first,
                    drop_path: drop_path_rate(net.drop_path, index, blocks),
                };
                let _scope = x.scope(&format!("stages.{stage}.blocks.{block}"));
                x = match net.block {
                    ResNetV2Block::Bottleneck | ResNetV2Block::Basic => self.pre_activation(&x, place),
                    ResNetV2Block::PostActivation => self.post_activation(&x, place),
                };
                x.tap("");
                index += 1;
            }
            x.tap(&format!("stages.{stage}"));
        }
        x
    }

    fn stem(&self, image: &Tensor, name: &str) -> Tensor {
        let net = self.net;
        let _scope = image.scope(name);
        let strided = |filters, kernel| Conv { stride: 2, ..self.plain(filters, kernel) };
        let x = match net.stem {
            Stem::Plain | Stem::Small => {
                let small = net.stem == Stem::Small;
                let conv = if small { self.plain(net.stem_width, 3) } else { strided(net.stem_width, 7) };
                let x = conv.apply(image, "conv");
                if net.block == ResNetV2Block::PostActivation { self.norm_act(&x, "norm") } else { x }
            }
            Stem::Deep | Stem::Tiered => {
                let half = net.stem_width / 2;
                let first = if net.stem == Stem::Tiered { 3 * net.stem_width / 8 } else { half };
                let x = self.norm_act(&strided(first, 3).apply(image, "conv1"), "norm1");
                let x = self.norm_act(&self.plain(half, 3).apply(&x, "conv2"), "norm2");
                let x = self.plain(net.stem_width, 3).apply(&x, "conv3");
                if net.block == ResNetV2Block::PostActivation { self.norm_act(&x, "norm3") } else { x }
            }
        };
        x.tap("");
        match net.stem_pooling {
            _ if net.stem == Stem::Small => x,
            StemPooling::Symmetric => max_pool(&x, 3, 2, [[1; 2]; 2], false),
            StemPooling::Zeros => max_pool(&x, 3, 2, [[1; 2]; 2], true),
            StemPooling::Same => max_pool(&x, 3, 2, Padding::Same.around(&x, 3, 2, 1), false),
        }
    }

    fn plain(&self, filters: usize, kernel: usize) -> Conv {
        Conv { padding: self.net.padding, standardise: self.net.standardise, ..Conv::new(filters, kernel) }
    }

    fn norm_act(&self, x: &Tensor, name: &str) -> Tensor {
        self.building.norm(x, self.net.norm, name).activation(self.net.activation)
    }

    fn inner(&self, width: usize) -> usize {
        round_width(width as f64 * self.net.bottleneck)
    }

    fn pre_activation(&self, x: &Tensor, place: Place) -> Tensor {
        let Place { width, stride, first_dilation, dilation, .. } = place;
        let active = self.norm_act(x, "norm1");
        let basic = self.net.block == ResNetV2Block::Basic;
        let changes = !basic || stride != 1 || first_dilation != dilation || x.extent(3) != width;
        let shortcut = if place.first && changes { self.downsample(&active, place) } else { x.clone() };
        let strided = |filters| Conv { stride, dilation: first_dilation, ..self.plain(filters, 3) };
        let y = if basic {
            let y = strided(self.inner(width)).apply(&active, "conv1");
            Conv { dilation, ..self.plain(width, 3) }.apply(&self.norm_act(&y, "norm2"), "conv2")
        } else {
            let y = self.plain(self.inner(width), 1).apply(&active, "conv1");
            let y = strided(self.inner(width)).apply(&self.norm_act(&y, "norm2"), "conv2");
            self.plain(width, 1).apply(&self.norm_act(&y, "norm3"), "conv3")
        };
        self.building.drop_path(y, place.drop_path) + shortcut
    }

    fn post_activation(&self, x: &Tensor, place: Place) -> Tensor {
        let Place { width, stride, first_dilation, .. } = place;
        let shortcut = if place.first {
            let changed = self.downsample(x, place);
            self.building.norm(&changed, self.net.norm, "downsample.norm")
        } else {
            x.clone()
        };
        let y = self.norm_act(&self.plain(self.inner(width), 1).apply(x, "conv1"), "norm1");
        let middle = Conv { stride, dilation: first_dilation, ..self.plain(self.inner(width), 3) };
        let y = self.norm_act(&middle.apply(&y, "conv2"), "norm2");
        let y = self.building.norm(&self.plain(width, 1).apply(&y, "conv3"), self.net.norm, "norm3");
        (self.building.drop_path(y, place.drop_path) + shortcut).activation(self.net.activation)
    }

    fn downsample(&self, x: &Tensor, place: Place) -> Tensor {
        let Place { width, stride, dilation, .. } = place;
        if !self.net.average_down {
            return Conv { stride, ..self.plain(width, 1) }.apply(x, "downsample.conv");
        }
        let pooled = average_down(x, stride, dilation);
        self.plain(width, 1).apply(&pooled, "downsample.conv")
    }
}
