//! EfficientNet (Tan and Le, 2019) and what is built of the same blocks: inverted bottlenecks with depthwise convolution
//! and squeeze-excitation. Parameters have timm's names.

mod definition;
mod timm;
mod variants;

pub use definition::{Scaling, parse_stages};

use vit_graph::Tensor;
use vit_graph::ops::Activation;

use crate::architecture::Network;
use crate::layers::{Building, Conv, Forward, Norm, Padding, channels_last, head, round_width, squeeze_excite};
use crate::network_fields;
use crate::variant::Variant;

/// The kind of block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MobileBlockKind {
    /// Depthwise, then 1x1.
    Separable {
        /// Whether an activation follows the 1x1 convolution too.
        active: bool,
    },
    /// 1x1 up, depthwise, 1x1 down: MBConv.
    Inverted,
    /// Full filters up, 1x1 down: fused MBConv.
    Fused,
    /// One convolution.
    Plain,
}

/// One block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MobileBlock {
    /// Its layers.
    pub kind: MobileBlockKind,
    /// Filter size of its spatial convolution.
    pub kernel: usize,
    /// Filter size of the convolution before it, in blocks that have one.
    pub expand_kernel: usize,
    /// Filter size of the last convolution.
    pub project_kernel: usize,
    /// The stride of its spatial convolution.
    pub stride: usize,
    /// Width inside as a multiple of the input's.
    pub expansion: f64,
    /// Width of its result.
    pub width: usize,
    /// The width that `expansion` multiplies instead of the input's.
    pub expand_from: Option<usize>,
    /// Hidden width of squeeze-excitation as a share of the input's width; 0 for none.
    pub squeeze: f64,
    /// Channels in a group of its spatial convolution; 0 for a single group.
    pub group_size: usize,
    /// A residual connection, if the shapes are equal.
    pub skip: bool,
    /// An activation other than the network's.
    pub activation: Option<Activation>,
}

/// One EfficientNet.
#[derive(Debug, Clone, PartialEq)]
pub struct EfficientNet {
    /// Height and width of the image.
    pub image_size: [usize; 2],
    /// Colour channels.
    pub channels: usize,
    /// Classes; 0 for no head.
    pub classes: usize,
    /// Width of the first convolution.
    pub stem_width: usize,
    /// Its filter size.
    pub stem_kernel: usize,
    /// The blocks of every stage.
    pub stages: Vec<Vec<MobileBlock>>,
    /// Width of the last convolution; 0 for none.
    pub features: usize,
    /// The coarsest resolution; later stages are dilated instead.
    pub output_stride: usize,
    /// The padding of convolutions.
    pub padding: Padding,
    /// The activation.
    pub activation: Activation,
    /// The batch norms.
    pub norm: Norm,
    /// Dropout before the head.
    pub dropout: f32,
    /// Stochastic depth, to which the rates of the blocks grow linearly.
    pub drop_path: f32,
}

impl Network for EfficientNet {
    network_fields!(dropout, drop_path);

    fn kind(&self) -> &'static str {
        "EfficientNet"
    }

    fn forward(&self, image: &Tensor, building: &Building) {
        Forward { net: self, building }.run(image);
    }

    fn contradiction(&self) -> Option<String> {
        let blocks = || self.stages.iter().flatten();
        if blocks().count() == 0 || blocks().count() > 1 << 10 {
            return Some(format!("the model has {} blocks; 1 to 1024 are possible", blocks().count()));
        }
        let sizes = |b: &MobileBlock| [b.kernel, b.expand_kernel, b.project_kernel];
        if blocks()
            .any(|b| b.width > 1 << 16 || sizes(b).iter().any(|&k| k == 0 || k > 63) || ![1, 2].contains(&b.stride))
        {
            return Some("a block is wider than 65536, has filters beyond 63, or a stride that is not 1 or 2".into());
        }
        let odd = |b: &MobileBlock| !(b.expansion > 0.0 && b.expansion <= 64.0 && (0.0..=64.0).contains(&b.squeeze));
        if blocks().any(odd) {
            return Some("a block's expansion or squeeze is not between 0 and 64".into());
        }
        (self.stem_width > 1 << 16 || self.features > 1 << 16 || !(1..64).contains(&self.stem_kernel))
            .then(|| format!("a stem of {} and {} features cannot be built", self.stem_width, self.features))
    }

    fn rates(&self) -> Vec<f32> {
        vec![self.dropout, self.drop_path]
    }

    fn heads(&self) -> &'static [&'static str] {
        &["classifier"]
    }

    fn first_filters(&self) -> String {
        "conv_stem.weight".into()
    }

    fn variants() -> Vec<Variant> {
        variants::variants()
    }
}

/// A block's stride and dilation, and its rate of stochastic depth.
#[derive(Clone, Copy)]
struct MobileBlockGeometry {
    stride: usize,
    dilation: usize,
    drop_path: f32,
}

impl Forward<'_, EfficientNet> {
    /// Outputs: `features` before the head, and `logits` if there are classes. Taps: `stem`, `stages.N`, `blocks.N.M`, and
    /// `feature_map [batch, rows, columns, channels]`.
    fn run(&self, image: &Tensor) {
        let net = self.net;
        let stem = Conv { stride: 2, ..self.conv(net.stem_width, net.stem_kernel) };
        let mut x = self.norm_act(&stem.apply(&channels_last(image), "conv_stem"), net.activation, "bn1");
        x.tap("stem");
        let count: usize = net.stages.iter().map(Vec::len).sum();
        let (mut stride_so_far, mut dilation, mut index) = (2, 1, 0);
        for (s, stage) in net.stages.iter().enumerate() {
            for (b, block) in stage.iter().enumerate() {
                let mut geometry =
                    MobileBlockGeometry { stride: if b == 0 { block.stride } else { 1 }, dilation, drop_path: 0.0 };
                if geometry.stride > 1 && stride_so_far * geometry.stride > net.output_stride {
                    dilation *= geometry.stride;
                    geometry.stride = 1;
                }
                stride_so_far *= geometry.stride;
                geometry.drop_path = net.drop_path * index as f32 / count as f32;
                let _scope = x.scope(&format!("blocks.{s}.{b}"));
                x = self.block(&x, block, geometry);
                x.tap("");
                index += 1;
            }
            x.tap(&format!("stages.{s}"));
        }
        if net.features > 0 {
            let last = self.conv(net.features, 1).apply(&x, "conv_head");
            x = self.norm_act(&last, net.activation, "bn2");
        }
        x.tap("feature_map");
        head(&self.building.dropout(x.mean([1, 2]), net.dropout), net.classes, "classifier");
    }

    fn conv(&self, filters: usize, kernel: usize) -> Conv {
        Conv { padding: self.net.padding, ..Conv::new(filters, kernel) }
    }

    fn norm(&self, x: &Tensor, name: &str) -> Tensor {
        self.building.norm(x, self.net.norm, name)
    }

    fn norm_act(&self, x: &Tensor, activation: Activation, name: &str) -> Tensor {
        self.norm(x, name).activation(activation)
    }

    fn block(&self, x: &Tensor, block: &MobileBlock, geometry: MobileBlockGeometry) -> Tensor {
        let act = block.activation.unwrap_or(self.net.activation);
        let inputs = x.extent(3);
        let inside = round_width(block.expand_from.unwrap_or(inputs) as f64 * block.expansion);
        let spatial = |filters: usize, kernel: usize, channels: usize| {
            let groups = channels.checked_div(block.group_size).unwrap_or(1).max(1);
            Conv { stride: geometry.stride, dilation: geometry.dilation, groups, ..self.conv(filters, kernel) }
        };
        let y = match block.kind {
            MobileBlockKind::Separable { active } => {
                let y = spatial(inputs, block.kernel, inputs).apply(x, "conv_dw");
                let y = self.squeeze(&self.norm_act(&y, act, "bn1"), block, 1.0, act);
                let y = self.norm(&self.conv(block.width, block.project_kernel).apply(&y, "conv_pw"), "bn2");
                if active { y.activation(act) } else { y }
            }
            MobileBlockKind::Inverted => {
                let y = self.conv(inside, block.expand_kernel).apply(x, "conv_pw");
                let y = spatial(inside, block.kernel, inside).apply(&self.norm_act(&y, act, "bn1"), "conv_dw");
                let y = self.squeeze(&self.norm_act(&y, act, "bn2"), block, block.expansion, act);
                self.norm(&self.conv(block.width, block.project_kernel).apply(&y, "conv_pwl"), "bn3")
            }
            MobileBlockKind::Fused => {
                let y = spatial(inside, block.kernel, inside).apply(x, "conv_exp");
                let y = self.squeeze(&self.norm_act(&y, act, "bn1"), block, block.expansion, act);
                self.norm(&self.conv(block.width, block.project_kernel).apply(&y, "conv_pwl"), "bn2")
            }
            MobileBlockKind::Plain => {
                self.norm_act(&spatial(block.width, block.kernel, inputs).apply(x, "conv"), act, "bn1")
            }
        };
        if block.skip && geometry.stride == 1 && inputs == block.width {
            self.building.drop_path(y, geometry.drop_path) + x
        } else {
            y
        }
    }

    /// Squeeze-excitation; its hidden width is a share of the block's input, which is `expansion` times narrower.
    fn squeeze(&self, x: &Tensor, block: &MobileBlock, expansion: f64, act: Activation) -> Tensor {
        if block.squeeze == 0.0 {
            return x.clone();
        }
        let hidden = (x.extent(3) as f64 * (block.squeeze / expansion)).round_ties_even() as usize;
        squeeze_excite(x, hidden.max(1), act, ["conv_reduce", "conv_expand"], "se")
    }
}
