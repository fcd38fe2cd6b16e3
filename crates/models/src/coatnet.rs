//! CoAtNet (Dai et al., 2021) as timm builds it: stages of inverted bottlenecks, then stages of attention with relative
//! positions over the whole feature map. Parameters have timm's names.

mod blocks;
mod timm;
mod variants;

use vit_graph::Tensor;
use vit_graph::ops::Activation;

use crate::architecture::{Network, PositionLayout};
use crate::layers::{
    Building, CONTINUOUS_BIAS_DROPOUT, Conv, Forward, Norm, Padding, channels_last, drop_path_rate, head, linear,
};
use crate::network_fields;
use crate::variant::Variant;
use blocks::BlockGeometry;

/// The largest feature map with attention, in pixels.
const MAX_MAP: usize = 1 << 13;

/// The kind of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// An inverted bottleneck: "C".
    Convolution,
    /// Attention and MLP: "T".
    Transformer,
}

/// Pooling that halves the resolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Downsample {
    /// The maximum of 3x3 pixels.
    Max,
    /// The maximum of 2x2 pixels.
    Max2,
    /// The mean of 3x3 pixels.
    Mean,
    /// The mean of 2x2 pixels.
    Mean2,
}

/// Which part of an inverted bottleneck halves the resolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StrideOn {
    /// Pooling before it.
    Pooling(Downsample),
    /// Its first 1x1 convolution.
    Pointwise,
    /// Its depthwise convolution.
    Depthwise,
}

/// The inverted bottlenecks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Convolutions {
    /// Width inside as a multiple.
    pub expansion: f64,
    /// `expansion` refers to the width of their result, otherwise to that of their input.
    pub expand_output: bool,
    /// Filter size of the middle convolution.
    pub kernel: usize,
    /// Channels in a group of it; 0 for a single group.
    pub group_size: usize,
    /// An activation follows the first norm.
    pub pre_norm_activation: bool,
    /// Biases in the last convolution and the shortcut.
    pub output_bias: bool,
    /// The layer that halves the resolution.
    pub stride_on: StrideOn,
    /// The pooling of the shortcut.
    pub shortcut: Downsample,
    /// The padding of convolutions.
    pub padding: Padding,
    /// Squeeze-excitation comes before the norm of the middle convolution.
    pub squeeze_early: bool,
    /// Squeeze-excitation's hidden width as a share; `None` for none of it.
    pub squeeze: Option<f64>,
    /// Its activation.
    pub squeeze_activation: Activation,
    /// The activation.
    pub activation: Activation,
    /// The norms.
    pub norm: Norm,
}

/// The biases of relative positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RelativePositions {
    /// None.
    None,
    /// A table.
    Table,
    /// A table laid out as in Google's code, `[heads, rows, columns]`.
    TableByHead,
    /// A small network with this hidden width.
    Network(usize),
}

/// The attention blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transformers {
    /// Width of a head.
    pub head_dim: usize,
    /// Width of the MLP's hidden layer as a multiple.
    pub mlp_ratio: f64,
    /// A change of width happens in the query, key and value projections; otherwise in the output projection.
    pub expand_first: bool,
    /// Biases in shortcuts that change width.
    pub shortcut_bias: bool,
    /// Biases in the attention's projections.
    pub attention_bias: bool,
    /// Pooling that halves the resolution.
    pub pooling: Downsample,
    /// Relative positions.
    pub positions: RelativePositions,
    /// Layer scale and its starting value.
    pub layer_scale: Option<f32>,
    /// The MLP's activation.
    pub activation: Activation,
    /// The norms.
    pub norm: Norm,
    /// Dropout on attention weights.
    pub attention_dropout: f32,
    /// Dropout after projections and MLP layers.
    pub projection_dropout: f32,
}

/// One CoAtNet.
#[derive(Debug, Clone, PartialEq)]
pub struct CoAtNet {
    /// Height and width of the image.
    pub image_size: [usize; 2],
    /// Colour channels.
    pub channels: usize,
    /// Classes; 0 for no head.
    pub classes: usize,
    /// Width of each stage.
    pub widths: Vec<usize>,
    /// The blocks of each stage.
    pub stages: Vec<Vec<BlockKind>>,
    /// Widths of the two first convolutions.
    pub stem_widths: [usize; 2],
    /// Biases in them.
    pub stem_bias: bool,
    /// The inverted bottlenecks.
    pub convolutions: Convolutions,
    /// The attention blocks.
    pub transformers: Transformers,
    /// Width of the head's hidden layer with tanh; `None` for a linear head after a norm of the feature map.
    pub head_hidden: Option<usize>,
    /// Dropout before the head.
    pub dropout: f32,
    /// Stochastic depth of the last block; earlier ones grow linearly to it.
    pub drop_path: f32,
}

impl Default for Convolutions {
    /// As in the paper.
    fn default() -> Self {
        Convolutions {
            expansion: 4.0,
            expand_output: true,
            kernel: 3,
            group_size: 1,
            pre_norm_activation: false,
            output_bias: true,
            stride_on: StrideOn::Depthwise,
            shortcut: Downsample::Mean2,
            padding: Padding::Symmetric,
            squeeze_early: false,
            squeeze: Some(0.25),
            squeeze_activation: Activation::Silu,
            activation: Activation::Gelu,
            norm: Norm::BATCH,
        }
    }
}

impl Default for Transformers {
    /// As in the paper.
    fn default() -> Self {
        Transformers {
            head_dim: 32,
            mlp_ratio: 4.0,
            expand_first: true,
            shortcut_bias: true,
            attention_bias: true,
            pooling: Downsample::Mean2,
            positions: RelativePositions::Table,
            layer_scale: None,
            activation: Activation::Gelu,
            norm: Norm::Layer { epsilon: 1e-6 },
            attention_dropout: 0.0,
            projection_dropout: 0.0,
        }
    }
}

impl Default for CoAtNet {
    /// CoAtNet-0.
    fn default() -> Self {
        CoAtNet {
            image_size: [224, 224],
            channels: 3,
            classes: 1000,
            widths: vec![96, 192, 384, 768],
            stages: stages(&[2, 3, 5, 2], "CCTT"),
            stem_widths: [64, 64],
            stem_bias: false,
            convolutions: Convolutions::default(),
            transformers: Transformers::default(),
            head_hidden: Some(768),
            dropout: 0.0,
            drop_path: 0.0,
        }
    }
}

/// Stages of these depths, each of one kind of block.
fn stages(depths: &[usize], kinds: &str) -> Vec<Vec<BlockKind>> {
    let kind = |c| if c == 'T' { BlockKind::Transformer } else { BlockKind::Convolution };
    depths.iter().zip(kinds.chars()).map(|(&depth, c)| vec![kind(c); depth]).collect()
}

impl CoAtNet {
    /// Rows and columns of a stage's result.
    pub fn grid(&self, stage: usize) -> [usize; 2] {
        self.image_size.map(|extent| (0..=stage).fold(extent / 2, |extent, _| extent.saturating_sub(1) / 2 + 1))
    }
}

impl Network for CoAtNet {
    network_fields!(dropout, drop_path);

    fn kind(&self) -> &'static str {
        "CoAtNet"
    }

    fn forward(&self, image: &Tensor, building: &Building) {
        Forward { net: self, building }.run(image);
    }

    fn contradiction(&self) -> Option<String> {
        if self.stages.len() != self.widths.len() || self.stages.is_empty() || self.stages.len() > 16 {
            return Some(format!(
                "there are {} stages and {} widths; each stage needs one width",
                self.stages.len(),
                self.widths.len()
            ));
        }
        if self.stages.iter().any(|s| s.len() > 1 << 10) || self.widths.iter().any(|&w| w == 0 || w > 1 << 16) {
            return Some(format!(
                "the widths of the stages are {:?}; they must be from 1 to 65536, with at most 1024 blocks in a stage",
                self.widths
            ));
        }
        let (c, t) = (&self.convolutions, &self.transformers);
        let possible = |ratio: f64| ratio > 0.0 && ratio <= 64.0;
        if !((1..64).contains(&c.kernel) && possible(c.expansion) && possible(t.mlp_ratio)) {
            return Some("filters must be 1 to 63 wide, expansions and MLP ratios above 0 and at most 64".into());
        }
        if t.head_dim == 0 {
            return Some("the width of a head is 0".into());
        }
        for (stage, kinds) in self.stages.iter().enumerate().filter(|(_, s)| s.contains(&BlockKind::Transformer)) {
            let [rows, columns] = self.grid(stage);
            if rows * columns > MAX_MAP {
                return Some(format!(
                    "attention over {rows}x{columns} pixels in {} blocks takes too much memory",
                    kinds.len()
                ));
            }
        }
        let [height, width] = self.image_size;
        let [rows, columns] = self.grid(self.stages.len() - 1);
        (height < 4 || width < 4 || rows == 0 || columns == 0 || height.max(width) > 1 << 16)
            .then(|| format!("an image of {height}x{width} pixels is too small or too large"))
    }

    fn rates(&self) -> Vec<f32> {
        let t = &self.transformers;
        let positions = if let RelativePositions::Network(_) = t.positions { CONTINUOUS_BIAS_DROPOUT } else { 0.0 };
        vec![self.dropout, self.drop_path, t.attention_dropout, t.projection_dropout, positions]
    }

    fn set_attention_dropout(&mut self, rate: f32) {
        self.transformers.attention_dropout = rate;
    }

    fn heads(&self) -> &'static [&'static str] {
        &["head.fc"]
    }

    fn first_filters(&self) -> String {
        "stem.conv1.weight".into()
    }

    fn position_layout(&self, parameter: &str) -> Option<PositionLayout> {
        parameter.strip_suffix("relative_position_bias_table")?;
        let stage: usize = parameter.strip_prefix("stages.")?.split('.').next()?.parse().ok()?;
        (stage < self.stages.len()).then(|| PositionLayout::Window(self.grid(stage)))
    }

    fn variants() -> Vec<Variant> {
        variants::variants()
    }
}

impl Forward<'_, CoAtNet> {
    /// Outputs: `features` before the head's last layer, and `logits` if there are classes. Taps: `stem`, `stages.N`,
    /// `stages.N.blocks.M`, `stages.N.blocks.M.attn` and its `.weights`, and `feature_map [batch, rows, columns, channels]`.
    fn run(&self, image: &Tensor) {
        let net = self.net;
        let mut x = self.stem(&channels_last(image));
        let (mut index, blocks) = (0, net.stages.iter().map(Vec::len).sum());
        for (stage, (kinds, &width)) in net.stages.iter().zip(&net.widths).enumerate() {
            for (block, kind) in kinds.iter().enumerate() {
                let _scope = x.scope(&format!("stages.{stage}.blocks.{block}"));
                let stride = if block == 0 { 2 } else { 1 };
                let drop_path = drop_path_rate(net.drop_path, index, blocks);
                let geometry = BlockGeometry { width, stride, grid: net.grid(stage), drop_path };
                x = match kind {
                    BlockKind::Convolution => blocks::convolution(&net.convolutions, self.building, &x, geometry),
                    BlockKind::Transformer => blocks::transformer(&net.transformers, self.building, &x, geometry),
                };
                x.tap("");
                index += 1;
            }
            x.tap(&format!("stages.{stage}"));
        }
        self.head(&x);
    }

    fn stem(&self, x: &Tensor) -> Tensor {
        let (net, _scope) = (self.net, x.scope("stem"));
        let conv = |filters| Conv { bias: net.stem_bias, padding: net.convolutions.padding, ..Conv::new(filters, 3) };
        let x = Conv { stride: 2, ..conv(net.stem_widths[0]) }.apply(x, "conv1");
        let x = self.building.norm(&x, net.convolutions.norm, "norm1").activation(net.convolutions.activation);
        let x = conv(net.stem_widths[1]).apply(&x, "conv2");
        x.tap("");
        x
    }

    fn head(&self, x: &Tensor) {
        let (net, norm) = (self.net, self.net.transformers.norm);
        let Some(hidden) = net.head_hidden else {
            let x = self.building.norm(x, norm, "norm");
            x.tap("feature_map");
            return head(&self.building.dropout(x.mean([1, 2]), net.dropout), net.classes, "head.fc");
        };
        x.tap("feature_map");
        let y = self.building.norm(&x.mean([1, 2]), norm, "head.norm");
        let y = linear(&y, hidden, true, "head.pre_logits.fc").tanh();
        head(&self.building.dropout(y, net.dropout), net.classes, "head.fc");
    }
}
