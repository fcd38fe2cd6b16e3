//! ResNet (He et al., 2016) in the form everyone uses, "v1.5": batch norm after every convolution, the stride of a
//! bottleneck on its 3x3 filters. With groups it is ResNeXt, with wider bottlenecks Wide ResNet, with a deep stem and
//! averaged shortcuts ResNet-D. Parameters have timm's names, which are torchvision's.

mod variants;

pub use variants::{variant, variants};

use vit_graph::ops::Activation;
use vit_graph::{Graph, GraphError, Tensor};

use crate::layers::{Building, Conv, Mode, Norm, average_down, channels_last, drop_path_rate, head, max_pool};

/// The two kinds of residual block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResNetBlock {
    /// Two 3x3 convolutions.
    Basic,
    /// 1x1 down, 3x3, 1x1 up.
    Bottleneck,
}

impl ResNetBlock {
    /// How many times wider a block's result is than its narrowest part.
    pub fn expansion(self) -> usize {
        match self {
            ResNetBlock::Basic => 1,
            ResNetBlock::Bottleneck => 4,
        }
    }
}

/// What comes before the first stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stem {
    /// 64 filters of 7x7 at every other pixel, then pooling.
    Plain,
    /// 64 filters of 3x3 at every pixel and no pooling: for pictures of 32 pixels, as everyone trains them on CIFAR.
    Small,
    /// Three layers of 3x3 filters, `width`, `width` and twice as many.
    Deep {
        /// Filters of the first two layers.
        width: usize,
    },
    /// The same with three quarters of `width` in the first.
    Tiered {
        /// Filters of the second layer.
        width: usize,
    },
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
    /// Shortcuts average pixels before they change width, instead of leaving pixels out.
    pub average_down: bool,
    /// Filters of the shortcuts that change the resolution.
    pub down_kernel: usize,
    /// The first convolution of a block is so many times narrower.
    pub reduce_first: usize,
    /// The coarsest resolution; later stages see further apart instead.
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

/// Where a block stands: what it does to the resolution, and how far its filters' taps are apart.
#[derive(Clone, Copy)]
struct Place {
    width: usize,
    stride: usize,
    first_dilation: usize,
    dilation: usize,
    drop_path: f32,
}

impl ResNet {
    /// The graph for a batch of images.
    ///
    /// Input: `image [batch, channels, height, width]`, and in training `seed i32[4]` if anything is random. Outputs:
    /// `features` before the head, and `logits` if there are classes. Taps: `stages.N`, `layerN.M` for every block, and
    /// `feature_map [batch, rows, columns, channels]`.
    pub fn build(&self, batch: usize, mode: Mode) -> Result<Graph, GraphError> {
        let rates = [self.dropout, self.drop_path];
        let (image, building) = Building::start(batch, self.channels, self.image_size, mode, &rates);
        Layers { net: self, building }.run(&image);
        image.finish()
    }

    fn contradiction(&self) -> Option<String> {
        if self.depths.len() != self.widths.len() || self.depths.is_empty() {
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
}

struct Layers<'a> {
    net: &'a ResNet,
    building: Building,
}

impl Layers<'_> {
    fn run(&self, image: &Tensor) {
        let net = self.net;
        if let Some(reason) = net.contradiction() {
            image.refuse("resnet", reason);
            return;
        }
        let mut x = self.stem(image);
        let stem_stride = if net.stem == Stem::Small { 1 } else { 4 };
        let (mut stride_so_far, mut dilation, mut previous, mut index) = (stem_stride, 1, 1, 0);
        let blocks: usize = net.depths.iter().sum();
        for (stage, (&depth, &width)) in net.depths.iter().zip(&net.widths).enumerate() {
            let mut stride = if stage == 0 { 1 } else { 2 };
            if stride_so_far >= net.output_stride {
                dilation *= stride;
                stride = 1;
            } else {
                stride_so_far *= stride;
            }
            for block in 0..depth {
                let stride = if block == 0 { stride } else { 1 };
                let drop_path = drop_path_rate(net.drop_path, index, blocks);
                let place = Place { width, stride, first_dilation: previous, dilation, drop_path };
                let _scope = x.scope(&format!("layer{}.{block}", stage + 1));
                x = self.block(&x, place);
                x.tap("");
                previous = dilation;
                index += 1;
            }
            x.tap(&format!("stages.{stage}"));
        }
        x.tap("feature_map");
        head(&self.building.dropout(x.mean([1, 2]), net.dropout), net.classes, "fc");
    }

    fn stem(&self, image: &Tensor) -> Tensor {
        let x = channels_last(image);
        let strided = |filters, kernel| Conv { stride: 2, ..Conv::new(filters, kernel) };
        let deep = |first, width: usize| {
            let x = self.norm_act(&strided(first, 3).apply(&x, "conv1.0"), "conv1.1");
            let x = self.norm_act(&Conv::new(width, 3).apply(&x, "conv1.3"), "conv1.4");
            Conv::new(2 * width, 3).apply(&x, "conv1.6")
        };
        let x = match self.net.stem {
            Stem::Plain => strided(64, 7).apply(&x, "conv1"),
            Stem::Small => Conv::new(64, 3).apply(&x, "conv1"),
            Stem::Deep { width } => deep(width, width),
            Stem::Tiered { width } => deep(3 * (width / 4), width),
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

    fn block(&self, x: &Tensor, place: Place) -> Tensor {
        let branch = match self.net.block {
            ResNetBlock::Basic => self.basic(x, place),
            ResNetBlock::Bottleneck => self.bottleneck(x, place),
        };
        let branch = self.building.drop_path(branch, place.drop_path);
        (branch + self.shortcut(x, place)).activation(self.net.activation)
    }

    fn basic(&self, x: &Tensor, place: Place) -> Tensor {
        let Place { width, stride, first_dilation, dilation, .. } = place;
        let first = Conv { stride, dilation: first_dilation, ..Conv::new(width / self.net.reduce_first, 3) };
        let y = self.norm_act(&first.apply(x, "conv1"), "bn1");
        self.norm(&Conv { dilation, ..Conv::new(width, 3) }.apply(&y, "conv2"), "bn2")
    }

    fn bottleneck(&self, x: &Tensor, place: Place) -> Tensor {
        let (net, Place { width, stride, first_dilation, .. }) = (self.net, place);
        let inner = width * net.group_width / 64 * net.groups;
        let y = self.norm_act(&Conv::new(inner / net.reduce_first, 1).apply(x, "conv1"), "bn1");
        let middle = Conv { stride, dilation: first_dilation, groups: net.groups, ..Conv::new(inner, 3) };
        let y = self.norm_act(&middle.apply(&y, "conv2"), "bn2");
        self.norm(&Conv::new(width * net.block.expansion(), 1).apply(&y, "conv3"), "bn3")
    }

    /// The input as it is, or changed to the block's width and resolution.
    fn shortcut(&self, x: &Tensor, place: Place) -> Tensor {
        let (net, Place { width, stride, first_dilation, dilation, .. }) = (self.net, place);
        let width = width * net.block.expansion();
        if stride == 1 && x.extent(3) == width {
            return x.clone();
        }
        if net.average_down {
            let pooled = average_down(x, stride, dilation);
            return self.norm(&Conv::new(width, 1).apply(&pooled, "downsample.1"), "downsample.2");
        }
        let kernel = if stride == 1 && dilation == 1 { 1 } else { net.down_kernel };
        let dilation = if kernel > 1 { first_dilation } else { 1 };
        let conv = Conv { stride, dilation, ..Conv::new(width, kernel) };
        self.norm(&conv.apply(x, "downsample.0"), "downsample.1")
    }
}
