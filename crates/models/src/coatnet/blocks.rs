//! The two blocks of CoAtNet.

use vit_graph::ops::{Attention, Constant, Pool2d, PoolMode};
use vit_graph::{Init, Tensor};

use super::{Convolutions, Downsample, RelativePositions, StrideOn, Transformers};
use crate::layers::{
    Building, CONTINUOUS_BIAS_DROPOUT, ContinuousBias, ContinuousForm, Conv, Padding, TABLE, layer_scale, round_width,
    squeeze_excite, window_bias,
};

/// The shape of a block's result, and its rate of stochastic depth.
#[derive(Clone, Copy)]
pub(super) struct BlockGeometry {
    pub width: usize,
    pub stride: usize,
    /// Rows and columns of the block's result.
    pub grid: [usize; 2],
    pub drop_path: f32,
}

/// Pooling that halves the resolution.
fn pool(x: &Tensor, how: Downsample, padding: Padding) -> Tensor {
    let (pooling, kernel) = match how {
        Downsample::Max => (PoolMode::Max, 3),
        Downsample::Max2 => (PoolMode::Max, 2),
        Downsample::Mean => (PoolMode::Mean, 3),
        Downsample::Mean2 => (PoolMode::Mean, 2),
    };
    // With TensorFlow's padding timm's means include the border's zeros.
    let (padding, count_padding) = match padding {
        Padding::Same => (Padding::Same.around(x, kernel, 2, 1), pooling == PoolMode::Mean),
        _ => ([[kernel / 3; 2]; 2], false),
    };
    x.pool2d(Pool2d { pooling, kernel: [kernel; 2], stride: [2; 2], padding, count_padding })
}

/// Pooling, then a 1x1 convolution if the width changes.
fn downsample(x: &Tensor, width: usize, how: Downsample, padding: Padding, bias: bool, name: &str) -> Tensor {
    let _scope = x.scope(name);
    let pooled = pool(x, how, padding);
    if x.extent(3) == width { pooled } else { Conv { bias, ..Conv::new(width, 1) }.apply(&pooled, "expand") }
}

/// An inverted bottleneck with norms before its convolutions.
pub(super) fn convolution(c: &Convolutions, building: &Building, x: &Tensor, geometry: BlockGeometry) -> Tensor {
    let BlockGeometry { width, stride, .. } = geometry;
    let inputs = x.extent(3);
    let inside = round_width(if c.expand_output { width } else { inputs } as f64 * c.expansion);
    let shortcut = match stride {
        2 => downsample(x, width, c.shortcut, c.padding, c.output_bias, "shortcut"),
        _ => x.clone(),
    };
    let norm_act = |x: &Tensor, name: &str| building.norm(x, c.norm, name).activation(c.activation);
    let squeeze = |x: &Tensor, name: &str| match c.squeeze {
        Some(share) => {
            let hidden = (share * if c.expand_output { width } else { inside } as f64) as usize;
            squeeze_excite(x, hidden.max(1), c.squeeze_activation, ["fc1", "fc2"], name)
        }
        None => x.clone(),
    };
    let mut y = building.norm(x, c.norm, "pre_norm");
    if c.pre_norm_activation {
        y = y.activation(c.activation);
    }
    let (mut first, mut middle) = (1, 1);
    match c.stride_on {
        StrideOn::Pooling(how) if stride == 2 => y = pool(&y, how, c.padding),
        StrideOn::Pooling(_) => {}
        StrideOn::Pointwise => first = stride,
        StrideOn::Depthwise => middle = stride,
    }
    let y = norm_act(&Conv { stride: first, ..Conv::new(inside, 1) }.apply(&y, "conv1_1x1"), "norm1");
    let groups = inside.checked_div(c.group_size).unwrap_or(1).max(1);
    let spatial = Conv { stride: middle, groups, padding: c.padding, ..Conv::new(inside, c.kernel) };
    let y = spatial.apply(&y, "conv2_kxk");
    let y = if c.squeeze_early {
        norm_act(&squeeze(&y, "se_early"), "norm2")
    } else {
        squeeze(&norm_act(&y, "norm2"), "se")
    };
    let y = Conv { bias: c.output_bias, ..Conv::new(width, 1) }.apply(&y, "conv3_1x1");
    building.drop_path(y, geometry.drop_path) + shortcut
}

/// Attention and MLP, each after a norm, each with a residual.
pub(super) fn transformer(t: &Transformers, building: &Building, x: &Tensor, geometry: BlockGeometry) -> Tensor {
    let width = geometry.width;
    let (shortcut, h) = if geometry.stride == 2 {
        let shortcut = downsample(x, width, t.pooling, Padding::Symmetric, t.shortcut_bias, "shortcut");
        let h = building.norm(x, t.norm, "norm1.norm");
        (shortcut, pool(&h, t.pooling, Padding::Symmetric))
    } else {
        (x.clone(), building.norm(x, t.norm, "norm1"))
    };
    let branch = |y: Tensor, name: &str| {
        let y = t.layer_scale.map_or(y.clone(), |initial| layer_scale(&y, initial, name));
        building.drop_path(y, geometry.drop_path)
    };
    let x = shortcut + branch(attention(t, building, &h, geometry), "ls1");
    let h = building.norm(&x, t.norm, "norm2");
    let hidden = (width as f64 * t.mlp_ratio) as usize;
    let scope = x.scope("mlp");
    let h = building.dropout(stored_as_filters(&h, hidden, true, "fc1").activation(t.activation), t.projection_dropout);
    let h = stored_as_filters(&h, width, true, "fc2");
    drop(scope);
    x + branch(h, "ls2")
}

/// A linear layer whose weight is stored as 1x1 filters.
fn stored_as_filters(x: &Tensor, width: usize, bias: bool, name: &str) -> Tensor {
    Conv { bias, ..Conv::new(width, 1) }.apply(x, name)
}

/// Multi-head attention over all pixels.
fn attention(t: &Transformers, building: &Building, x: &Tensor, geometry: BlockGeometry) -> Tensor {
    let _scope = x.scope("attn");
    let [batch, rows, columns, inputs] = [0, 1, 2, 3].map(|axis| x.extent(axis));
    let width = if t.expand_first { geometry.width } else { inputs };
    let (heads, d, tokens) = (width / t.head_dim, t.head_dim, rows * columns);
    if heads == 0 || !width.is_multiple_of(d) {
        return x.refuse("coatnet", format!("a width of {width} cannot be divided into heads of {d}"));
    }
    let bias = relative(t, building, x, heads, geometry.grid);
    let (dropout, seed) = building.attention_dropout(x, t.attention_dropout);
    let op = Attention { heads, scale: 1.0 / (d as f32).sqrt(), packed: true, bias: bias.is_some(), dropout };
    let others: Vec<&Tensor> = bias.iter().chain(seed).collect();
    let qkv = by_head(t, x, heads).reshape([batch, tokens, 3 * width]);
    let [y, weights] = qkv.attention(op, &others);
    weights.tap("weights");
    let y = y.reshape([batch, rows, columns, width]);
    let y = building.dropout(stored_as_filters(&y, geometry.width, t.attention_bias, "proj"), t.projection_dropout);
    y.tap("");
    y
}

/// The projections to query, key and value. Published weights are `[heads, 3, head_dim]`; attention takes
/// `[3, heads, head_dim]`, so the weight's rows are permuted once instead of every image's activations.
fn by_head(t: &Transformers, x: &Tensor, heads: usize) -> Tensor {
    let _scope = x.scope("qkv");
    let (d, inputs) = (t.head_dim, x.extent(3));
    let rows = 3 * heads * d;
    let init = Init::TruncatedNormal { std: 0.02 };
    let weight = x.parameter("weight", [rows, inputs, 1, 1], init);
    let weight = weight.reshape([heads, 3, d, inputs]).permute([1, 0, 2, 3]).reshape([rows, inputs]);
    let bias = t.attention_bias.then(|| {
        let bias = x.parameter("bias", [rows], Init::Zeros);
        bias.reshape([heads, 3, d]).permute([1, 0, 2]).reshape([rows])
    });
    x.linear(&weight, bias.as_ref())
}

/// The bias of attention scores by relative position.
fn relative(t: &Transformers, building: &Building, x: &Tensor, heads: usize, grid: [usize; 2]) -> Option<Tensor> {
    let _scope = x.scope("rel_pos");
    let [rows, columns] = grid.map(|side| 2 * side - 1);
    let offsets = rows * columns;
    match t.positions {
        RelativePositions::None => None,
        RelativePositions::Table => {
            let table = x.parameter("relative_position_bias_table", [offsets, heads], TABLE);
            Some(window_bias(&table, grid))
        }
        RelativePositions::TableByHead => {
            // The table's offsets are from key to query, those of `window_bias` from query to key: it is reversed.
            let table = x.parameter("relative_position_bias_table", [heads, rows, columns], TABLE);
            let table = table.reshape([heads, offsets]).permute([1, 0]);
            let reversed = x.constant(Constant::i32([offsets], (0..offsets as i32).rev().collect()));
            Some(window_bias(&table.gather(&reversed), grid))
        }
        RelativePositions::Network(hidden) => {
            let network = ContinuousBias { hidden, form: ContinuousForm::Natural };
            let drop = |h| building.dropout(h, CONTINUOUS_BIAS_DROPOUT);
            Some(window_bias(&network.table(x, heads, grid, drop, ["mlp.fc1", "mlp.fc2"]), grid))
        }
    }
}
