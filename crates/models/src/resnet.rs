//! ResNet (He et al., 2016) in its usual form, "v1.5": batch norm after every convolution, the stride of a
//! bottleneck on its 3x3 filters. With groups it is ResNeXt, with wider bottlenecks Wide ResNet, with a deep stem and
//! averaged shortcuts ResNet-D. Parameters have timm's names, which are torchvision's.

mod timm;
mod variants;

use vit_graph::Tensor;
use vit_graph::ops::Activation;

use crate::architecture::Network;
use crate::layers::{
    Building, Conv, Forward, NetworkStrides, Norm, ResidualBlock, Stem, average_down, channels_last, head, max_pool,
    residual_stages, stages_contradiction,
};
use crate::network_fields;
use crate::variant::Variant;

/// The two kinds of residual block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResNetBlock {
    /// Two 3x3 convolutions.
    Basic,
    /// 1x1 down, 3x3, 1x1 up.
    Bottleneck,
}

impl ResNetBlock {
    /// The width of a block's result as a multiple of its narrowest part.
    pub fn expansion(self) -> usize {
        match self {
            ResNetBlock::Basic => 1,
            ResNetBlock::Bottleneck => 4,
        }
    }
}

/// One ResNet.
#[derive(Debug, Clone, PartialEq)]
pub struct ResNet {
    /// Height and width of the image.
    pub image_size: [usize; 2],
    /// Colour channels.
    pub channels: usize,
    /// Classes; 0 for no head.
    pub classes: usize,
    /// The kind of block.
    pub block: ResNetBlock,
    /// Blocks of each stage.
    pub depths: Vec<usize>,
    /// The narrowest width of each stage's blocks.
    pub widths: Vec<usize>,
    /// Groups of a bottleneck's 3x3 convolution.
    pub groups: usize,
    /// Width of a bottleneck's group for a stage of width 64.
    pub group_width: usize,
    /// The first layers.
    pub stem: Stem,
    /// Filters of the first convolution; of a deep stem, of the first two, half as many as of the third.
    pub stem_width: usize,
    /// Shortcuts pool by the mean before a 1x1 convolution, instead of a convolution with a stride.
    pub average_down: bool,
    /// Filters of the shortcuts that change the resolution.
    pub down_kernel: usize,
    /// The divisor of the width of a block's first convolution.
    pub reduce_first: usize,
    /// The coarsest resolution; later stages are dilated instead.
    pub output_stride: usize,
    /// The activation.
    pub activation: Activation,
    /// The batch norms.
    pub norm: Norm,
    /// Dropout before the head.
    pub dropout: f32,
    /// Stochastic depth of the last block; earlier ones grow linearly to it.
    pub drop_path: f32,
}

impl Default for ResNet {
    /// ResNet-50.
    fn default() -> Self {
        ResNet {
            image_size: [224, 224],
            channels: 3,
            classes: 1000,
            block: ResNetBlock::Bottleneck,
            depths: vec![3, 4, 6, 3],
            widths: vec![64, 128, 256, 512],
            groups: 1,
            group_width: 64,
            stem: Stem::Plain,
            stem_width: 64,
            average_down: false,
            down_kernel: 1,
            reduce_first: 1,
            output_stride: 32,
            activation: Activation::Relu,
            norm: Norm::BATCH,
            dropout: 0.0,
            drop_path: 0.0,
        }
    }
}

impl ResNet {
    /// Rows and columns of the feature map of an image: the stem, its pooling and every stage after the first halve it,
    /// rounded up.
    pub fn feature_grid(&self, image_size: [usize; 2]) -> [usize; 2] {
        let mut stride = self.stem.stride();
        for _ in 1..self.depths.len() {
            stride = if stride < self.output_stride { 2 * stride } else { stride };
        }
        image_size.map(|extent| extent.div_ceil(stride))
    }
}

impl Network for ResNet {
    network_fields!(dropout, drop_path);

    fn kind(&self) -> &'static str {
        "ResNet"
    }

    fn forward(&self, image: &Tensor, building: &Building) {
        Forward { net: self, building }.run(image);
    }

    fn contradiction(&self) -> Option<String> {
        if self.depths.is_empty() {
            return Some("there are no stages".into());
        }
        if let Some(reason) = stages_contradiction(&self.depths, &self.widths) {
            return Some(reason);
        }
        if self.groups == 0 || self.groups > 1 << 16 || self.group_width > 1 << 16 || self.reduce_first == 0 {
            return Some(format!(
                "there are {} groups of width {}; both must be from 1 to 65536",
                self.groups, self.group_width
            ));
        }
        if self.block == ResNetBlock::Basic && (self.groups > 1 || self.group_width != 64) {
            return Some("groups need bottleneck blocks, and this model has basic ones".into());
        }
        (![8, 16, 32].contains(&self.output_stride))
            .then(|| format!("an output stride of {} is not 8, 16 or 32", self.output_stride))
    }

    fn rates(&self) -> Vec<f32> {
        vec![self.dropout, self.drop_path]
    }

    fn heads(&self) -> &'static [&'static str] {
        &["fc"]
    }

    fn first_filters(&self) -> String {
        let deep = matches!(self.stem, Stem::Deep | Stem::Tiered);
        if deep { "conv1.0.weight" } else { "conv1.weight" }.into()
    }

    fn variants() -> Vec<Variant> {
        variants::variants()
    }

    fn variant(name: &str) -> Option<Variant> {
        variants::variant(name)
    }
}

impl Forward<'_, ResNet> {
    /// Outputs: `features` before the head, and `logits` if there are classes. Taps: `stem`, `stages.N`, `layerN.M` for every
    /// block, and `feature_map [batch, rows, columns, channels]`.
    fn run(&self, image: &Tensor) {
        let net = self.net;
        let x = self.stages(&channels_last(image));
        x.tap("feature_map");
        head(&self.building.dropout(x.mean([1, 2]), net.dropout), net.classes, "fc");
    }

    /// The feature map of a channels-last image.
    pub(crate) fn stages(&self, image: &Tensor) -> Tensor {
        let net = self.net;
        let mut x = self.stem(image);
        let strides = NetworkStrides { stem: net.stem.stride(), first_stage: 1, output: net.output_stride };
        let stages = residual_stages(&net.depths, &net.widths, strides, net.drop_path);
        for (stage, blocks) in stages.into_iter().enumerate() {
            for (index, block) in blocks.into_iter().enumerate() {
                let _scope = x.scope(&format!("layer{}.{index}", stage + 1));
                x = self.block(&x, block);
                x.tap("");
            }
            x.tap(&format!("stages.{stage}"));
        }
        x
    }

    fn stem(&self, x: &Tensor) -> Tensor {
        let strided = |filters, kernel| Conv { stride: 2, ..Conv::new(filters, kernel) };
        let deep = |first, width: usize| {
            let x = self.norm_act(&strided(first, 3).apply(x, "conv1.0"), "conv1.1");
            let x = self.norm_act(&Conv::new(width, 3).apply(&x, "conv1.3"), "conv1.4");
            Conv::new(2 * width, 3).apply(&x, "conv1.6")
        };
        let x = match self.net.stem {
            Stem::Plain => strided(self.net.stem_width, 7).apply(x, "conv1"),
            Stem::Small => Conv::new(self.net.stem_width, 3).apply(x, "conv1"),
            Stem::Deep => deep(self.net.stem_width, self.net.stem_width),
            Stem::Tiered => deep(3 * (self.net.stem_width / 4), self.net.stem_width),
        };
        let x = self.norm_act(&x, "bn1");
        x.tap("stem");
        if self.net.stem == Stem::Small { x } else { max_pool(&x, 3, 2, [[1; 2]; 2], false) }
    }

    fn norm(&self, x: &Tensor, name: &str) -> Tensor {
        self.building.norm(x, self.net.norm, name)
    }

    fn norm_act(&self, x: &Tensor, name: &str) -> Tensor {
        self.norm(x, name).activation(self.net.activation)
    }

    fn block(&self, x: &Tensor, block: ResidualBlock) -> Tensor {
        let branch = match self.net.block {
            ResNetBlock::Basic => self.basic(x, block),
            ResNetBlock::Bottleneck => self.bottleneck(x, block),
        };
        let branch = self.building.drop_path(branch, block.drop_path);
        (branch + self.shortcut(x, block)).activation(self.net.activation)
    }

    fn basic(&self, x: &Tensor, block: ResidualBlock) -> Tensor {
        let ResidualBlock { width, stride, previous_dilation, dilation, .. } = block;
        let first = Conv { stride, dilation: previous_dilation, ..Conv::new(width / self.net.reduce_first, 3) };
        let y = self.norm_act(&first.apply(x, "conv1"), "bn1");
        self.norm(&Conv { dilation, ..Conv::new(width, 3) }.apply(&y, "conv2"), "bn2")
    }

    fn bottleneck(&self, x: &Tensor, block: ResidualBlock) -> Tensor {
        let (net, ResidualBlock { width, stride, previous_dilation, .. }) = (self.net, block);
        let inner = width * net.group_width / 64 * net.groups;
        let y = self.norm_act(&Conv::new(inner / net.reduce_first, 1).apply(x, "conv1"), "bn1");
        let middle = Conv { stride, dilation: previous_dilation, groups: net.groups, ..Conv::new(inner, 3) };
        let y = self.norm_act(&middle.apply(&y, "conv2"), "bn2");
        self.norm(&Conv::new(width * net.block.expansion(), 1).apply(&y, "conv3"), "bn3")
    }

    /// The input as it is, or changed to the block's width and resolution.
    fn shortcut(&self, x: &Tensor, block: ResidualBlock) -> Tensor {
        let (net, ResidualBlock { width, stride, previous_dilation, dilation, .. }) = (self.net, block);
        let width = width * net.block.expansion();
        if stride == 1 && x.extent(3) == width {
            return x.clone();
        }
        if net.average_down {
            let pooled = average_down(x, stride, dilation);
            return self.norm(&Conv::new(width, 1).apply(&pooled, "downsample.1"), "downsample.2");
        }
        let kernel = if stride == 1 && dilation == 1 { 1 } else { net.down_kernel };
        let dilation = if kernel > 1 { previous_dilation } else { 1 };
        let conv = Conv { stride, dilation, ..Conv::new(width, kernel) };
        self.norm(&conv.apply(x, "downsample.0"), "downsample.1")
    }
}
