//! ResNet v2 with group norm and standardised weights: Big Transfer (Kolesnikov et al., 2020), and the stages before a
//! hybrid Vision Transformer. Parameters have timm's names.

mod timm;
mod variants;

use vit_graph::ops::Activation;
use vit_graph::{Init, Tensor};

use crate::architecture::Network;
use crate::layers::{
    Building, Conv, Forward, NetworkStrides, Norm, Padding, ResidualBlock, Standardise, Stem, average_down,
    channels_last, max_pool, pointwise, residual_stages, round_width, stages_contradiction,
};
use crate::network_fields;
use crate::variant::Variant;

/// The padding of the stem's pooling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StemPooling {
    /// One row and column on each side, ignored by the maximum.
    Symmetric,
    /// One row and column of zeros on each side, as in BiT.
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
    /// The width of a block's inner convolutions as a multiple of its result's.
    pub bottleneck: f64,
    /// Shortcuts pool by the mean before a 1x1 convolution, instead of a convolution with a stride.
    pub average_down: bool,
    /// The coarsest resolution; later stages are dilated instead.
    pub output_stride: usize,
    /// The norms.
    pub norm: Norm,
    /// Standardisation of the filters.
    pub standardise: Option<Standardise>,
    /// The padding of convolutions.
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

impl ResNetV2 {
    /// The stages of a hybrid Vision Transformer: norms after convolutions, and TensorFlow's padding.
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

    /// Rows and columns of the last stage's result for an image of this size.
    pub fn feature_grid(&self, image_size: [usize; 2]) -> [usize; 2] {
        image_size.map(|extent| {
            let mut extent = extent;
            if self.stem != Stem::Small {
                let stem = self.padding.results(extent, if self.stem == Stem::Plain { 7 } else { 3 }, 2);
                let pooling = if self.stem_pooling == StemPooling::Same { Padding::Same } else { Padding::Symmetric };
                extent = pooling.results(stem, 3, 2);
            }
            let mut stride = self.stem.stride();
            for _ in 1..self.depths.len() {
                if stride < self.output_stride {
                    extent = self.padding.results(extent, 3, 2);
                    stride *= 2;
                }
            }
            extent
        })
    }

    /// The width of the last stage.
    pub fn features(&self) -> usize {
        self.widths.last().copied().unwrap_or(self.stem_width)
    }
}

impl Network for ResNetV2 {
    network_fields!(dropout, drop_path);

    fn kind(&self) -> &'static str {
        "ResNet v2 (BiT)"
    }

    fn forward(&self, image: &Tensor, building: &Building) {
        Forward { net: self, building }.run(image);
    }

    fn contradiction(&self) -> Option<String> {
        if let Some(reason) = stages_contradiction(&self.depths, &self.widths) {
            return Some(reason);
        }
        if self.stem_width == 0 || self.stem_width > 1 << 16 || !(self.bottleneck > 0.0 && self.bottleneck <= 16.0) {
            return Some(format!(
                "a stem of {} and bottlenecks of {} cannot be built",
                self.stem_width, self.bottleneck
            ));
        }
        None
    }

    fn rates(&self) -> Vec<f32> {
        vec![self.dropout, self.drop_path]
    }

    fn heads(&self) -> &'static [&'static str] {
        &["head.fc"]
    }

    fn first_filters(&self) -> String {
        let prefix = if self.depths.is_empty() { "" } else { "stem." };
        let deep = matches!(self.stem, Stem::Deep | Stem::Tiered);
        format!("{prefix}{}.weight", if deep { "conv1" } else { "conv" })
    }

    fn variants() -> Vec<Variant> {
        variants::variants()
    }
}

impl Forward<'_, ResNetV2> {
    /// Outputs: `features` before the head, and `logits` if there are classes. Taps: `stem`, `stages.N`,
    /// `stages.N.blocks.M`, and `feature_map [batch, rows, columns, channels]`.
    fn run(&self, image: &Tensor) {
        let net = self.net;
        let x = self.stages(&channels_last(image));
        let x = if net.block == ResNetV2Block::PostActivation { x } else { self.norm_act(&x, "norm") };
        x.tap("feature_map");
        let features = self.building.dropout(x.mean([1, 2]), net.dropout);
        features.output("features");
        if net.classes > 0 {
            pointwise(&features, net.classes, Init::Zeros, "head.fc").output("logits");
        }
    }

    /// Stem and stages, on a channels-last image.
    pub(crate) fn stages(&self, image: &Tensor) -> Tensor {
        let net = self.net;
        // timm names the parameters of a stem without stages as if it were the whole model.
        let mut x = self.stem(image, if net.depths.is_empty() { "" } else { "stem" });
        let strides = NetworkStrides { stem: net.stem.stride(), first_stage: 1, output: net.output_stride };
        let stages = residual_stages(&net.depths, &net.widths, strides, net.drop_path);
        for (stage, blocks) in stages.into_iter().enumerate() {
            for (index, block) in blocks.into_iter().enumerate() {
                let _scope = x.scope(&format!("stages.{stage}.blocks.{index}"));
                x = match net.block {
                    ResNetV2Block::Bottleneck | ResNetV2Block::Basic => self.pre_activation(&x, block),
                    ResNetV2Block::PostActivation => self.post_activation(&x, block),
                };
                x.tap("");
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

    fn pre_activation(&self, x: &Tensor, block: ResidualBlock) -> Tensor {
        let ResidualBlock { width, stride, dilation, .. } = block;
        let first_dilation = block.first_dilation();
        let active = self.norm_act(x, "norm1");
        let basic = self.net.block == ResNetV2Block::Basic;
        let changes = !basic || stride != 1 || first_dilation != dilation || x.extent(3) != width;
        let shortcut = if block.first && changes { self.downsample(&active, block) } else { x.clone() };
        let strided = |filters| Conv { stride, dilation: first_dilation, ..self.plain(filters, 3) };
        let y = if basic {
            let y = strided(self.inner(width)).apply(&active, "conv1");
            Conv { dilation, ..self.plain(width, 3) }.apply(&self.norm_act(&y, "norm2"), "conv2")
        } else {
            let y = self.plain(self.inner(width), 1).apply(&active, "conv1");
            let y = strided(self.inner(width)).apply(&self.norm_act(&y, "norm2"), "conv2");
            self.plain(width, 1).apply(&self.norm_act(&y, "norm3"), "conv3")
        };
        self.building.drop_path(y, block.drop_path) + shortcut
    }

    fn post_activation(&self, x: &Tensor, block: ResidualBlock) -> Tensor {
        let ResidualBlock { width, stride, .. } = block;
        let shortcut = if block.first {
            let changed = self.downsample(x, block);
            self.building.norm(&changed, self.net.norm, "downsample.norm")
        } else {
            x.clone()
        };
        let y = self.norm_act(&self.plain(self.inner(width), 1).apply(x, "conv1"), "norm1");
        let middle = Conv { stride, dilation: block.first_dilation(), ..self.plain(self.inner(width), 3) };
        let y = self.norm_act(&middle.apply(&y, "conv2"), "norm2");
        let y = self.building.norm(&self.plain(width, 1).apply(&y, "conv3"), self.net.norm, "norm3");
        (self.building.drop_path(y, block.drop_path) + shortcut).activation(self.net.activation)
    }

    fn downsample(&self, x: &Tensor, block: ResidualBlock) -> Tensor {
        let ResidualBlock { width, stride, dilation, .. } = block;
        if !self.net.average_down {
            return Conv { stride, ..self.plain(width, 1) }.apply(x, "downsample.conv");
        }
        let pooled = average_down(x, stride, dilation);
        self.plain(width, 1).apply(&pooled, "downsample.conv")
    }
}
