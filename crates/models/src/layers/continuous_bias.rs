//! Continuous relative position bias (Swin V2: Liu et al., 2022): an MLP computes the biases from logarithms of the offsets,
//! so that it applies to windows of any size.

use vit_graph::Tensor;
use vit_graph::ops::{Activation, Constant};

use super::linear;
use super::relative::offsets;

/// Dropout inside the MLP in timm's `RelPosMlp`.
pub const CONTINUOUS_BIAS_DROPOUT: f32 = 0.125;

/// An MLP from offsets to biases: two layers with a relu between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContinuousBias {
    /// Width of the hidden layer.
    pub hidden: usize,
    /// The input of the MLP and the form of its result.
    pub form: ContinuousForm,
}

/// The input and the result of the MLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContinuousForm {
    /// `sign(d) ln(1 + |d|)` of an offset `d`; the result is the bias (timm's "cr").
    Natural,
    /// `sign(d) log₂(1 + |d|) / 3` of an offset that is scaled so that ±8 are the largest of this window; the bias is
    /// `16 σ(result)`, and the second layer has no bias (Swin V2).
    Swin {
        /// The window of pre-training, if it was another: offsets of larger windows are then extrapolated.
        pretrained: Option<[usize; 2]>,
    },
}

impl ContinuousBias {
    /// The biases of all offsets in a window, `[offsets, heads]`; `drop` is applied to the hidden layer, and the two layers
    /// have these names.
    pub fn table(
        &self,
        x: &Tensor,
        heads: usize,
        window: [usize; 2],
        drop: impl Fn(Tensor) -> Tensor,
        [first, second]: [&str; 2],
    ) -> Tensor {
        let inputs = x.constant(Constant::f32([offsets(window), 2], self.form.coordinates(window)));
        let h = drop(linear(&inputs, self.hidden, true, first).activation(Activation::Relu));
        match self.form {
            ContinuousForm::Natural => linear(&h, heads, true, second),
            ContinuousForm::Swin { .. } => linear(&h, heads, false, second).activation(Activation::Sigmoid).scale(16.0),
        }
    }
}

impl ContinuousForm {
    /// The MLP's inputs for all offsets in a window, `[rows of offsets][columns of offsets][2]`.
    fn coordinates(self, window: [usize; 2]) -> Vec<f32> {
        let side = |axis: usize| {
            let extent = window[axis] as i32;
            let coordinate = move |offset: i32| {
                let d = offset as f32;
                match self {
                    ContinuousForm::Natural => d.signum() * (d.abs() + 1.0).ln(),
                    ContinuousForm::Swin { pretrained } => {
                        let reach = pretrained.unwrap_or(window)[axis].saturating_sub(1).max(1) as f32;
                        let d = d / reach * 8.0;
                        d.signum() * (d.abs() + 1.0).log2() / 3.0
                    }
                }
            };
            (1 - extent..extent).map(coordinate).collect::<Vec<f32>>()
        };
        let (rows, columns) = (side(0), side(1));
        rows.iter().flat_map(|&y| columns.iter().flat_map(move |&x| [y, x])).collect()
    }
}
