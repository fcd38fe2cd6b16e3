//! ConvNeXt (Liu et al., 2022) and ConvNeXt V2 (Woo et al., 2023): a ResNet with a Transformer's proportions. A block is a
//! large depthwise convolution, a layer norm and an MLP; V2 normalises the MLP's hidden channels by their response over the
//! whole map. Parameters have timm's names.

mod timm;
mod variants;

use vit_graph::ops::{Activation, Constant};
use vit_graph::{Init, Shape, Tensor};

use crate::architecture::Network;
use crate::layers::{
    Building, Conv, Forward, NetworkStrides, Padding, ResidualBlock, channels_last, head, layer_norm, layer_scale,
    linear_from, pointwise, residual_stages, round_width, stages_contradiction,
};
use crate::network_fields;
use crate::variant::Variant;

/// How all filters and matrices start.
const INIT: Init = Init::TruncatedNormal { std: 0.02 };

/// The epsilon of the global response norm.
const RESPONSE_EPSILON: f32 = 1e-6;

/// The first layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConvNextStem {
    /// Patches of this side, projected linearly.
    Patches(usize),
    /// Two convolutions of 3x3 with stride 2.
    Overlapping,
    /// The same with half as many filters in the first.
    OverlappingTiered,
    /// The same with an activation between the two.
    OverlappingActive,
}

/// One ConvNeXt.
#[derive(Debug, Clone, PartialEq)]
pub struct ConvNext {
    /// Height and width of the image.
    pub image_size: [usize; 2],
    /// Colour channels.
    pub channels: usize,
    /// Classes; 0 for no head.
    pub classes: usize,
    /// Blocks of each stage.
    pub depths: Vec<usize>,
    /// Width of each stage.
    pub widths: Vec<usize>,
    /// Filter size of each stage's depthwise convolutions.
    pub kernels: Vec<usize>,
    /// The first layers.
    pub stem: ConvNextStem,
    /// Biases in stem, downsampling and depthwise convolutions.
    pub conv_bias: bool,
    /// The MLP's matrices are stored as 1x1 filters.
    pub mlp_as_filters: bool,
    /// A global response norm in every MLP (V2).
    pub response_norm: bool,
    /// Layer scale and its starting value.
    pub layer_scale: Option<f32>,
    /// The last norm comes before the mean over pixels; otherwise after it.
    pub norm_before_pooling: bool,
    /// Width of the head's hidden layer with GELU; `None` for a linear head.
    pub head_hidden: Option<usize>,
    /// The stride of the first stage: 2 after patches of 2 pixels in timm, otherwise 1.
    pub first_stride: usize,
    /// The coarsest resolution; later stages are dilated instead.
    pub output_stride: usize,
    /// The MLP's activation.
    pub activation: Activation,
    /// The layer norms' epsilon.
    pub norm_epsilon: f32,
    /// That of the last norm.
    pub last_norm_epsilon: f32,
    /// Dropout before the head.
    pub dropout: f32,
    /// Stochastic depth of the last block; earlier ones grow linearly to it.
    pub drop_path: f32,
}

impl Default for ConvNext {
    /// ConvNeXt-T.
    fn default() -> Self {
        ConvNext {
            image_size: [224, 224],
            channels: 3,
            classes: 1000,
            depths: vec![3, 3, 9, 3],
            widths: vec![96, 192, 384, 768],
            kernels: vec![7; 4],
            stem: ConvNextStem::Patches(4),
            conv_bias: true,
            mlp_as_filters: false,
            response_norm: false,
            layer_scale: Some(1e-6),
            norm_before_pooling: false,
            head_hidden: None,
            first_stride: 1,
            output_stride: 32,
            activation: Activation::Gelu,
            norm_epsilon: 1e-6,
            last_norm_epsilon: 1e-6,
            dropout: 0.0,
            drop_path: 0.0,
        }
    }
}

impl ConvNext {
    fn blocks(&self) -> Vec<Vec<ResidualBlock>> {
        let stem = if let ConvNextStem::Patches(side) = self.stem { side } else { 4 };
        let strides = NetworkStrides { stem, first_stage: self.first_stride, output: self.output_stride };
        residual_stages(&self.depths, &self.widths, strides, self.drop_path)
    }
}

impl Network for ConvNext {
    network_fields!(dropout, drop_path);

    fn kind(&self) -> &'static str {
        if self.response_norm { "ConvNeXt V2" } else { "ConvNeXt" }
    }

    fn forward(&self, image: &Tensor, building: &Building) {
        Forward { net: self, building }.run(image);
    }

    fn contradiction(&self) -> Option<String> {
        if self.depths.is_empty() || self.kernels.len() != self.depths.len() {
            return Some(format!(
                "there are {} stages and {} filter sizes; each stage needs one",
                self.depths.len(),
                self.kernels.len()
            ));
        }
        if let Some(reason) = stages_contradiction(&self.depths, &self.widths) {
            return Some(reason);
        }
        if self.kernels.iter().any(|kernel| kernel.is_multiple_of(2) || *kernel > 63) {
            return Some(format!("filters of {:?} pixels; odd sizes up to 63 are possible", self.kernels));
        }
        if self.output_stride < 8 || !self.output_stride.is_power_of_two() {
            return Some(format!(
                "an output stride of {} is not 8, 16, 32 or a larger power of two",
                self.output_stride
            ));
        }
        if ![1, 2].contains(&self.first_stride) {
            return Some(format!("the stride of the first stage is {}, it must be 1 or 2", self.first_stride));
        }
        if self.norm_before_pooling && self.head_hidden.is_some() {
            return Some("a hidden layer in the head needs the norm after pooling".into());
        }
        let mut grid = match self.stem {
            ConvNextStem::Patches(side) => self.image_size.map(|extent| extent.checked_div(side).unwrap_or(0)),
            _ => self.image_size.map(|extent| extent.div_ceil(2).div_ceil(2)),
        };
        for stage in self.blocks() {
            grid = grid.map(|extent| extent / stage[0].stride);
        }
        let ([height, width], [rows, columns]) = (self.image_size, grid);
        (rows == 0 || columns == 0 || height.max(width) > 1 << 16)
            .then(|| format!("an image of {height}x{width} pixels is too small or too large"))
    }

    fn rates(&self) -> Vec<f32> {
        vec![self.dropout, self.drop_path]
    }

    fn heads(&self) -> &'static [&'static str] {
        &["head.fc"]
    }

    fn first_filters(&self) -> String {
        "stem.0.weight".into()
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let list = |values: &[usize]| values.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        vec![("Stages", format!("{} blocks, widths {}", list(&self.depths), list(&self.widths)))]
    }

    fn variants() -> Vec<Variant> {
        variants::variants()
    }
}

impl Forward<'_, ConvNext> {
    /// Outputs: `features` before the head's last layer, and `logits` if there are classes. Taps: `stem`, `stages.N`,
    /// `stages.N.blocks.M`, and `feature_map [batch, rows, columns, channels]`.
    fn run(&self, image: &Tensor) {
        let net = self.net;
        let mut x = self.stem(&channels_last(image));
        for (stage, blocks) in net.blocks().into_iter().enumerate() {
            {
                let _scope = x.scope(&format!("stages.{stage}"));
                x = self.downsample(&x, blocks[0]);
                for (index, block) in blocks.into_iter().enumerate() {
                    x = self.block(&x, block, net.kernels[stage], &format!("blocks.{index}"));
                }
            }
            x.tap(&format!("stages.{stage}"));
        }
        self.head(&x);
    }

    fn stem(&self, x: &Tensor) -> Tensor {
        let (net, width, _scope) = (self.net, self.net.widths[0], x.scope("stem"));
        let x = match net.stem {
            ConvNextStem::Patches(side) => {
                let x = Conv { stride: side, padding: Padding::None, ..self.conv(width, side) }.apply(x, "0");
                layer_norm(&x, net.norm_epsilon, "1")
            }
            overlapping => {
                let strided = |filters| Conv { stride: 2, ..self.conv(filters, 3) };
                let tiered = overlapping == ConvNextStem::OverlappingTiered;
                let x = strided(if tiered { round_width((width / 2) as f64) } else { width }).apply(x, "0");
                // timm counts the activation as a layer.
                let (x, [second, norm]) = match overlapping {
                    ConvNextStem::OverlappingActive => (x.activation(net.activation), ["2", "3"]),
                    _ => (x, ["1", "2"]),
                };
                layer_norm(&strided(width).apply(&x, second), net.norm_epsilon, norm)
            }
        };
        x.tap("");
        x
    }

    fn conv(&self, filters: usize, kernel: usize) -> Conv {
        Conv { bias: self.net.conv_bias, init: Some(INIT), ..Conv::new(filters, kernel) }
    }

    /// A norm and a convolution at the start of a stage that changes width or resolution.
    fn downsample(&self, x: &Tensor, block: ResidualBlock) -> Tensor {
        let ResidualBlock { width, stride, dilation, .. } = block;
        let dilated = block.first_dilation() != dilation;
        if x.extent(3) == width && stride == 1 && !dilated {
            return x.clone();
        }
        let _scope = x.scope("downsample");
        let kernel = if stride > 1 || dilated { 2 } else { 1 };
        let padding = if dilation > 1 { Padding::Same } else { Padding::None };
        let conv = Conv { stride, dilation: block.first_dilation(), padding, ..self.conv(width, kernel) };
        conv.apply(&layer_norm(x, self.net.norm_epsilon, "0"), "1")
    }

    /// Depthwise convolution, norm, MLP, and the residual.
    fn block(&self, x: &Tensor, block: ResidualBlock, kernel: usize, name: &str) -> Tensor {
        let (net, ResidualBlock { width, dilation, .. }) = (self.net, block);
        let _scope = x.scope(name);
        let y = Conv { groups: width, dilation, ..self.conv(width, kernel) }.apply(x, "conv_dw");
        let y = self.mlp(&layer_norm(&y, net.norm_epsilon, "norm"), "mlp");
        let y = net.layer_scale.map_or(y.clone(), |initial| layer_scale(&y, initial, ""));
        let x = x + &self.building.drop_path(y, block.drop_path);
        x.tap("");
        x
    }

    fn mlp(&self, x: &Tensor, name: &str) -> Tensor {
        let _scope = x.scope(name);
        let layer = |x: &Tensor, features, name| match self.net.mlp_as_filters {
            true => pointwise(x, features, INIT, name),
            false => linear_from(x, features, true, INIT, name),
        };
        let width = x.extent(3);
        let h = layer(x, 4 * width, "fc1").activation(self.net.activation);
        let h = if self.net.response_norm { response_norm(&h, "grn") } else { h };
        layer(&h, width, "fc2")
    }

    fn head(&self, x: &Tensor) {
        let net = self.net;
        if net.norm_before_pooling {
            let x = layer_norm(x, net.last_norm_epsilon, "norm_pre");
            x.tap("feature_map");
            return head(&self.building.dropout(x.mean([1, 2]), net.dropout), net.classes, "head.fc");
        }
        x.tap("feature_map");
        let mut y = layer_norm(&x.mean([1, 2]), net.last_norm_epsilon, "head.norm");
        if let Some(hidden) = net.head_hidden {
            y = linear_from(&y, hidden, true, INIT, "head.pre_logits.fc").gelu();
        }
        head(&self.building.dropout(y, net.dropout), net.classes, "head.fc");
    }
}

/// Global response norm (V2, equations 1 to 3): `x + bias + weight * x * g / mean(g)`, where `g` is the 2-norm of a channel
/// over the map, and the mean is over channels.
fn response_norm(x: &Tensor, name: &str) -> Tensor {
    let _scope = x.scope(name);
    let (batch, channels) = (x.extent(0), x.extent(3));
    let scalar = |n: f32| x.constant(Constant::filled(Shape::default(), n));
    let weight = x.parameter("weight", [channels], Init::Zeros);
    let bias = x.parameter("bias", [channels], Init::Zeros);
    let norm = (x * x).sum([1, 2]).sqrt();
    let mean = norm.mean([1]).reshape([batch, 1]);
    let response = norm * (mean + scalar(RESPONSE_EPSILON)).power(-1.0);
    let factor = response * weight + scalar(1.0);
    x * &factor.reshape([batch, 1, 1, channels]) + bias
}
