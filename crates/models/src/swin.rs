//! Swin Transformer (Liu et al., 2021): attention inside windows, shifted in every second block, and patch merging between
//! stages. Swin V2 (Liu et al., 2022) has other norms and another attention. Parameters have timm's names.

mod misfit;
mod timm;
mod v2;
mod variants;

use vit_graph::ops::{Activation, Attention, Constant, Conv2d, Pad, Unwindows, Windows};
use vit_graph::{Init, Tensor};

use crate::architecture::{Network, PatchGrid, PositionLayout};
use crate::layers::{
    Building, Forward, TABLE, channels_last, drop_path_rate, head, layer_norm, linear, mlp, offsets, refuses_patches,
    window_bias,
};
use crate::network_fields;
use crate::variant::Variant;

/// The bias of pairs that the cyclic shift brought into one window, as in the original code: e⁻¹⁰⁰ is 0.
const MASKED: f32 = -100.0;

/// The most elements of one block's biases, over windows and pairs of positions.
const MAX_BIAS: usize = 1 << 27;

/// The version of the architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SwinVersion {
    /// Norms before attention and MLP, scaled dot products, a table of relative position biases.
    V1,
    /// Norms after attention, MLP and the reduction of merged patches; cosine attention; relative position biases that an MLP
    /// computes; no bias of the keys.
    V2 {
        /// The windows of each stage in pre-training, if they were others.
        pretrained_windows: Vec<Option<[usize; 2]>>,
    },
}

/// One Swin Transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct Swin {
    /// The version of the architecture.
    pub version: SwinVersion,
    /// Height and width of the image.
    pub image_size: [usize; 2],
    /// Side of a patch.
    pub patch_size: [usize; 2],
    /// Colour channels.
    pub channels: usize,
    /// Classes; 0 for no head.
    pub classes: usize,
    /// Width of each stage.
    pub widths: Vec<usize>,
    /// Blocks of each stage.
    pub depths: Vec<usize>,
    /// Attention heads of each stage.
    pub heads: Vec<usize>,
    /// Width of a head of each stage; `None` for the stage's width divided by its heads.
    pub head_dims: Vec<Option<usize>>,
    /// Height and width of a window in each stage.
    pub windows: Vec<[usize; 2]>,
    /// Windows keep their size and shift even if the image is not larger.
    pub always_partition: bool,
    /// Width of the MLP's hidden layer as a multiple of each stage's width.
    pub mlp_ratios: Vec<f64>,
    /// Biases in the query, key and value projections; in V2 not of the keys.
    pub qkv_bias: bool,
    /// The layer norms' epsilon.
    pub norm_epsilon: f32,
    /// The MLP's activation.
    pub activation: Activation,
    /// Dropout before the head.
    pub dropout: f32,
    /// Dropout after projections and MLP layers.
    pub projection_dropout: f32,
    /// Dropout on attention weights.
    pub attention_dropout: f32,
    /// Stochastic depth of the last block; earlier ones grow linearly to it.
    pub drop_path: f32,
}

impl Default for Swin {
    /// Swin-T.
    fn default() -> Self {
        Swin {
            version: SwinVersion::V1,
            image_size: [224, 224],
            patch_size: [4, 4],
            channels: 3,
            classes: 1000,
            widths: vec![96, 192, 384, 768],
            depths: vec![2, 2, 6, 2],
            heads: vec![3, 6, 12, 24],
            head_dims: vec![None; 4],
            windows: vec![[7, 7]; 4],
            always_partition: false,
            mlp_ratios: vec![4.0; 4],
            qkv_bias: true,
            norm_epsilon: 1e-5,
            activation: Activation::Gelu,
            dropout: 0.0,
            projection_dropout: 0.0,
            attention_dropout: 0.0,
            drop_path: 0.0,
        }
    }
}

impl Swin {
    /// Rows and columns of patches.
    pub fn grid(&self) -> [usize; 2] {
        [0, 1].map(|axis| self.image_size[axis].checked_div(self.patch_size[axis]).unwrap_or(0))
    }

    /// The windows of a stage and the shift of every second block: along an axis where the image is not larger than a window,
    /// the window is the image and is not shifted.
    pub fn window(&self, stage: usize) -> Windows {
        let target = self.windows[stage];
        let shift = target.map(|side| side / 2);
        if self.always_partition {
            return Windows { size: target, shift };
        }
        // As in timm, without the row that padding an odd image adds.
        let resolution = self.grid().map(|extent| extent >> stage);
        let size = [0, 1].map(|axis| resolution[axis].min(target[axis]));
        Windows { size, shift: [0, 1].map(|axis| if resolution[axis] <= size[axis] { 0 } else { shift[axis] }) }
    }
}

impl Network for Swin {
    network_fields!(dropout, attention_dropout, drop_path);

    fn kind(&self) -> &'static str {
        match self.version {
            SwinVersion::V1 => "Swin Transformer",
            SwinVersion::V2 { .. } => "Swin Transformer V2",
        }
    }

    fn forward(&self, image: &Tensor, building: &Building) {
        Forward { net: self, building }.run(image);
    }

    fn contradiction(&self) -> Option<String> {
        let stages = self.depths.len();
        let lengths =
            [self.widths.len(), self.heads.len(), self.head_dims.len(), self.windows.len(), self.mlp_ratios.len()];
        if stages == 0 || stages > 16 || lengths.iter().any(|&n| n != stages) {
            return Some(format!(
                "there are {stages} stages with {lengths:?} widths, heads, head widths, windows and MLP ratios; each stage needs one of each"
            ));
        }
        if self.depths.iter().any(|&d| d > 1 << 10) || self.widths.iter().any(|&w| w == 0 || w > 1 << 16) {
            return Some(format!(
                "the stages have {:?} blocks and widths {:?}; at most 1024 blocks and widths from 1 to 65536 are possible",
                self.depths, self.widths
            ));
        }
        for stage in 0..stages {
            let (width, heads) = (self.widths[stage], self.heads[stage]);
            if heads == 0 || (self.head_dims[stage].is_none() && width < heads) {
                return Some(format!("a width of {width} cannot be divided among {heads} heads"));
            }
            if self.windows[stage].iter().any(|&side| side == 0 || side > 1 << 10) {
                return Some(format!(
                    "the windows of a stage are {:?} patches large; each side must be from 1 to 1024",
                    self.windows[stage]
                ));
            }
            if self.head_dims[stage].is_some_and(|d| d == 0 || d > 1 << 12)
                || !(0.0..=64.0).contains(&self.mlp_ratios[stage])
            {
                return Some("a head must be 1 to 4096 wide and an MLP ratio from 0 to 64".into());
            }
        }
        if let SwinVersion::V2 { pretrained_windows } = &self.version
            && let Some(reason) = v2::contradiction(self, pretrained_windows)
        {
            return Some(reason);
        }
        let ([rows, columns], [ih, iw], [ph, pw]) = (self.grid(), self.image_size, self.patch_size);
        if rows >> (stages - 1) == 0 || columns >> (stages - 1) == 0 || ih.max(iw) > 1 << 16 {
            return Some(format!("an image of {ih}x{iw} pixels has too few patches of {ph}x{pw} for {stages} stages"));
        }
        for stage in 0..stages {
            let area: usize = self.window(stage).size.iter().product();
            if area.saturating_mul(rows * columns) > MAX_BIAS {
                return Some(format!("windows of {area} patches in an image of {rows}x{columns} take too much memory"));
            }
        }
        (ih % ph != 0 || iw % pw != 0)
            .then(|| format!("an image of {ih}x{iw} pixels cannot be cut into patches of {ph}x{pw}"))
    }

    fn rates(&self) -> Vec<f32> {
        vec![self.dropout, self.projection_dropout, self.attention_dropout, self.drop_path]
    }

    fn heads(&self) -> &'static [&'static str] {
        &["head.fc"]
    }

    fn first_filters(&self) -> String {
        "patch_embed.proj.weight".into()
    }

    fn refuses_image_size(&self, size: [usize; 2]) -> Option<String> {
        refuses_patches(size, self.patch_size, "patches", |extent| extent)
    }

    fn patches(&self) -> Option<PatchGrid> {
        Some(PatchGrid { grid: self.grid(), size: Some(self.patch_size) })
    }

    fn options_of(&self, parameter: &str) -> Option<String> {
        misfit::options(self, parameter)
    }

    fn position_layout(&self, parameter: &str) -> Option<PositionLayout> {
        parameter.strip_suffix("relative_position_bias_table")?;
        let stage: usize = parameter.strip_prefix("layers.")?.split('.').next()?.parse().ok()?;
        (stage < self.windows.len()).then(|| PositionLayout::Window(self.window(stage).size))
    }

    fn variants() -> Vec<Variant> {
        variants::variants()
    }
}

impl Forward<'_, Swin> {
    /// Outputs: `features` before the head, and `logits` if there are classes. Taps: `patch_embed`, `stages.N`,
    /// `layers.N.blocks.M`, `layers.N.blocks.M.attn` and its `.weights` (window by window), and
    /// `feature_map [batch, rows, columns, channels]` after the last norm.
    fn run(&self, image: &Tensor) {
        let swin = self.net;
        let mut x = self.patches(image);
        let (mut index, blocks) = (0, swin.depths.iter().sum());
        for (stage, &depth) in swin.depths.iter().enumerate() {
            {
                let _scope = x.scope(&format!("layers.{stage}"));
                if stage > 0 {
                    x = self.merge(&x, swin.widths[stage]);
                }
                for block in 0..depth {
                    x = self.block(&x, stage, block, drop_path_rate(swin.drop_path, index, blocks));
                    index += 1;
                }
            }
            x.tap(&format!("stages.{stage}"));
        }
        let x = layer_norm(&x, swin.norm_epsilon, "norm");
        x.tap("feature_map");
        head(&self.building.dropout(x.mean([1, 2]), swin.dropout), swin.classes, "head.fc");
    }

    fn patches(&self, image: &Tensor) -> Tensor {
        let (swin, [ph, pw]) = (self.net, self.net.patch_size);
        let _scope = image.scope("patch_embed");
        let weight = image.parameter(
            "proj.weight",
            [swin.widths[0], swin.channels, ph, pw],
            Init::TruncatedNormal { std: 0.02 },
        );
        let bias = image.parameter("proj.bias", [swin.widths[0]], Init::Zeros);
        let x = channels_last(image).conv2d(Conv2d::patches([ph, pw], true), &weight, Some(&bias));
        let x = layer_norm(&x, swin.norm_epsilon, "norm");
        x.tap("");
        x
    }

    /// Patch merging: four neighbouring patches become one. In V2 its norm is the last step.
    fn merge(&self, x: &Tensor, width: usize) -> Tensor {
        let _scope = x.scope("downsample");
        let even = (1..3).fold(x.clone(), |x, axis| match x.extent(axis) % 2 {
            0 => x,
            _ => x.apply(Pad { axis, before: 0, after: 1 }, &[]),
        });
        let [b, h, w, c] = [0, 1, 2, 3].map(|axis| even.extent(axis));
        // Each four in column-major order, as in the original code.
        let fours =
            even.reshape([b, h / 2, 2, w / 2, 2, c]).permute([0, 1, 3, 4, 2, 5]).reshape([b, h / 2, w / 2, 4 * c]);
        let (norm, reduce) = (
            |x: &Tensor| layer_norm(x, self.net.norm_epsilon, "norm"),
            |x: &Tensor| linear(x, width, false, "reduction"),
        );
        match self.net.version {
            SwinVersion::V1 => reduce(&norm(&fours)),
            SwinVersion::V2 { .. } => norm(&reduce(&fours)),
        }
    }

    fn block(&self, x: &Tensor, stage: usize, block: usize, drop_path: f32) -> Tensor {
        let swin = self.net;
        let _scope = x.scope(&format!("blocks.{block}"));
        let mut windows = swin.window(stage);
        if block.is_multiple_of(2) {
            windows.shift = [0, 0];
        }
        let hidden = (swin.widths[stage] as f64 * swin.mlp_ratios[stage]) as usize;
        let drop = |h| self.building.dropout(h, swin.projection_dropout);
        let x = self.branch(x, "norm1", drop_path, |h| self.attention(h, stage, windows));
        let x = self.branch(&x, "norm2", drop_path, |h| mlp(h, hidden, swin.activation, drop, "mlp"));
        x.tap("");
        x
    }

    /// A residual branch with its norm: before it, in V2 after it.
    fn branch(&self, x: &Tensor, norm: &str, drop_path: f32, of: impl Fn(&Tensor) -> Tensor) -> Tensor {
        let epsilon = self.net.norm_epsilon;
        let y = match self.net.version {
            SwinVersion::V1 => of(&layer_norm(x, epsilon, norm)),
            SwinVersion::V2 { .. } => v2::residual_post_norm(&of(x), epsilon, norm),
        };
        x + &self.building.drop_path(y, drop_path)
    }

    fn attention(&self, x: &Tensor, stage: usize, windows: Windows) -> Tensor {
        let (swin, image) = (self.net, x.shape());
        let _scope = x.scope("attn");
        let (width, heads) = (swin.widths[stage], swin.heads[stage]);
        let head_dim = swin.head_dims[stage].unwrap_or(width / heads);
        let tokens = x.apply(windows, &[]);
        let (qkv, scale, table) = match &swin.version {
            SwinVersion::V1 => {
                let qkv = linear(&tokens, 3 * head_dim * heads, swin.qkv_bias, "qkv");
                let table = x.parameter("relative_position_bias_table", [offsets(windows.size), heads], TABLE);
                (qkv, 1.0 / (head_dim as f32).sqrt(), table)
            }
            SwinVersion::V2 { pretrained_windows } => {
                let table = v2::bias_table(x, heads, windows.size, pretrained_windows[stage]);
                (v2::qkv(&tokens, heads, swin.qkv_bias), 1.0, table)
            }
        };
        let mut bias = window_bias(&table, windows.size);
        if windows.shift != [0, 0] {
            bias = bias + x.constant(mask(&image, windows));
        }
        let (dropout, seed) = self.building.attention_dropout(x, swin.attention_dropout);
        let op = Attention { heads, scale, packed: true, bias: true, dropout };
        let others: Vec<&Tensor> = std::iter::once(&bias).chain(seed).collect();
        let [y, weights] = qkv.attention(op, &others);
        weights.tap("weights");
        let y = self.building.dropout(linear(&y, width, true, "proj"), swin.projection_dropout);
        let y = y.apply(Unwindows { windows, image }, &[]);
        y.tap("");
        y
    }
}

/// `[windows, 1, area, area]`: masks pairs in a window that were not neighbours before the cyclic shift.
fn mask(image: &[usize], windows: Windows) -> Constant {
    let ([rows, columns], [height, width]) = (windows.grid(image), windows.size);
    // Along each axis: 0 before the last window, 1 in its part that was there before the shift, 2 in the rest.
    let part = |axis: usize, at: usize, extent: usize| match extent - at {
        rest if rest <= windows.shift[axis] => 2,
        rest if rest <= windows.size[axis] => 1,
        _ => 0,
    };
    let (area, extents) = (height * width, [rows * height, columns * width]);
    let region = |window: usize, position: usize| {
        let (y, x) = (window / columns * height + position / width, window % columns * width + position % width);
        (part(0, y, extents[0]), part(1, x, extents[1]))
    };
    let bias = |at: usize| {
        let (window, i, j) = (at / (area * area), at / area % area, at % area);
        if region(window, i) == region(window, j) { 0.0 } else { MASKED }
    };
    let shape = [rows * columns, 1, area, area];
    Constant::f32(shape, (0..shape.iter().product()).map(bias).collect())
}
