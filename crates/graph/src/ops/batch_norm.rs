//! Batch normalisation in training mode. In inference mode models write it as a product and a sum with constants, which
//! [`crate::rewrite::fold_batch_norm`] folds into convolutions.

use super::norm::{expect_elements, grad_types};
use super::{InputPrecision, Operation, arity, expect_shape};
use crate::autodiff::Backward;
use crate::reference::Array;
use crate::{GraphError, Type};

/// `(x - mean) · rstd · gamma + beta`, with mean and biased variance of each channel over all other axes.
///
/// Inputs: `x [.., c]`, `gamma`, `beta`, `running_mean` and `running_variance`, each `[c]`. Outputs: the result, `mean`
/// and `rstd` of each channel, and the new running statistics `running + momentum · (batch - running)`, with the
/// unbiased variance, as in PyTorch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchNorm {
    /// Added to the variance.
    pub epsilon: f32,
    /// The weight of this batch in the running statistics.
    pub momentum: f32,
}

impl Operation for BatchNorm {
    fn name(&self) -> &'static str {
        "batch_norm"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 5)?;
        let shape = &inputs[0].shape;
        expect_elements(shape)?;
        if shape.rows() < 2 {
            return Err("a batch norm learns from more than one value per channel; use a larger batch".into());
        }
        for (what, input) in ["gamma", "beta", "the running mean", "the running variance"].iter().zip(&inputs[1..]) {
            expect_shape(what, input, &[shape.last()])?;
        }
        let channel = Type::f32([shape.last()]);
        Ok(vec![inputs[0].clone(), channel.clone(), channel.clone(), channel.clone(), channel])
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        b.only_first_output("the batch's statistics")?;
        let inputs = [b.dy()?, b.input(0), b.input(1), b.output(1), b.output(2)];
        let node = b.graph.add(BatchNormGrad, &inputs)?;
        b.set_all(node, 3)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [x, gamma, beta, running_mean, running_variance] = [0, 1, 2, 3, 4].map(|i| inputs[i].data());
        let channels = gamma.len();
        let count = (x.len() / channels) as f64;
        let (mut mean, mut variance) = (vec![0.0; channels], vec![0.0; channels]);
        x.iter().enumerate().for_each(|(i, x)| mean[i % channels] += x / count);
        x.iter().enumerate().for_each(|(i, x)| variance[i % channels] += (x - mean[i % channels]).powi(2) / count);
        let rstd: Vec<f64> = variance.iter().map(|v| 1.0 / (v + f64::from(self.epsilon)).sqrt()).collect();
        let momentum = f64::from(self.momentum);
        let moved = |old: f64, found: f64| old + momentum * (found - old);
        let bessel = count / (count - 1.0);
        vec![
            Array::from_fn(&outputs[0].shape, |i| {
                let c = i % channels;
                (x[i] - mean[c]) * rstd[c] * gamma[c] + beta[c]
            }),
            Array::new([channels], mean.clone()),
            Array::new([channels], rstd.clone()),
            Array::from_fn(&outputs[3].shape, |c| moved(running_mean[c], mean[c])),
            Array::from_fn(&outputs[4].shape, |c| moved(running_variance[c], bessel * variance[c])),
        ]
    }

    /// The running statistics.
    fn in_place(&self) -> &'static [(usize, usize)] {
        &[(3, 3), (4, 4)]
    }

    fn always_writes_first_output(&self) -> bool {
        true
    }

    fn input_precision(&self, input: usize) -> InputPrecision {
        InputPrecision::f32_if(input > 0)
    }

    fn is_f32_output(&self, output: usize) -> bool {
        output > 0
    }

    /// A second evaluation would start from the running statistics that the first one updated in place.
    fn is_repeatable(&self) -> bool {
        false
    }
}

/// The gradient of [`BatchNorm`]: from `dy, x, gamma, mean, rstd` to `dx, dgamma, dbeta`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchNormGrad;

impl Operation for BatchNormGrad {
    fn name(&self) -> &'static str {
        "batch_norm_grad"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        grad_types(inputs, |x| Ok(vec![x.last()]))
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [dy, x, gamma, mean, rstd] = [0, 1, 2, 3, 4].map(|i| inputs[i].data());
        let channels = gamma.len();
        let count = (x.len() / channels) as f64;
        let normed = |i: usize| (x[i] - mean[i % channels]) * rstd[i % channels];
        let (mut dgamma, mut dbeta) = (vec![0.0; channels], vec![0.0; channels]);
        for i in 0..x.len() {
            dgamma[i % channels] += dy[i] * normed(i);
            dbeta[i % channels] += dy[i];
        }
        let dx = |i: usize| {
            let c = i % channels;
            gamma[c] * rstd[c] * (dy[i] - (dbeta[c] + normed(i) * dgamma[c]) / count)
        };
        vec![
            Array::from_fn(&outputs[0].shape, dx),
            Array::new([channels], dgamma.clone()),
            Array::new([channels], dbeta.clone()),
        ]
    }

    fn input_precision(&self, input: usize) -> InputPrecision {
        InputPrecision::f32_if(input > 1)
    }

    fn is_f32_output(&self, output: usize) -> bool {
        output > 0
    }
}
