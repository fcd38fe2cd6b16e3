//! What Swin V2 changes (Liu et al., 2022): res-post-norm, cosine attention, and a continuous relative position bias.

use vit_graph::{Init, Tensor};

use super::Swin;
use crate::layers::{ContinuousBias, ContinuousForm, NormKind, cosine_qkv, glorot, query_value_bias};

/// Width of the hidden layer of the MLP that computes biases.
const BIAS_HIDDEN: usize = 512;

/// Why these choices are impossible in V2.
pub(super) fn contradiction(swin: &Swin, pretrained_windows: &[Option<[usize; 2]>]) -> Option<String> {
    let stages = swin.depths.len();
    if pretrained_windows.len() != stages {
        let found = pretrained_windows.len();
        return Some(format!("there are {found} windows of pre-training for {stages} stages; each stage needs one"));
    }
    let divisible = |(width, heads): (&usize, &usize)| width.is_multiple_of(*heads);
    let wrong = swin.widths.iter().zip(&swin.heads).find(|&stage| !divisible(stage));
    wrong.map(|(width, heads)| format!("a width of {width} cannot be divided among {heads} heads"))
}

/// The norm at the end of a residual branch. Its weight starts at zero: every block starts as the identity.
pub(super) fn residual_post_norm(x: &Tensor, epsilon: f32, name: &str) -> Tensor {
    NormKind::Layer.apply_from(x, epsilon, Init::Zeros, name)
}

/// Packed query, key and value of cosine attention in windows `[b, n, width]`.
pub(super) fn qkv(tokens: &Tensor, heads: usize, bias: bool) -> Tensor {
    let width = tokens.extent(2);
    let weight = tokens.parameter("qkv.weight", [3 * width, width], glorot(width, width));
    let bias = bias.then(|| query_value_bias(tokens, width));
    cosine_qkv(&tokens.linear(&weight, bias.as_ref()), heads, "logit_scale")
}

/// The biases of all offsets in a window, `[offsets, heads]`.
pub(super) fn bias_table(x: &Tensor, heads: usize, window: [usize; 2], pretrained: Option<[usize; 2]>) -> Tensor {
    let network = ContinuousBias { hidden: BIAS_HIDDEN, form: ContinuousForm::Swin { pretrained } };
    network.table(x, heads, window, |h| h, ["cpb_mlp.0", "cpb_mlp.2"])
}
