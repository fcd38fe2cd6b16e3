//! Group normalisation (Wu and He, 2018).

use super::norm::grad_types;
use super::{InputPrecision, Operation, arity, expect_shape};
use crate::autodiff::Backward;
use crate::reference::Array;
use crate::{GraphError, Shape, Type};

/// `(x - mean) · rstd · gamma + beta`, with mean and biased variance of each sample's group of channels.
///
/// Inputs: `x [b, .., c]`, `gamma [c]`, `beta [c]`. Outputs: the result, and `mean` and `rstd` `[b, groups]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupNorm {
    /// The number of channel groups.
    pub groups: usize,
    /// Added to the variance.
    pub epsilon: f32,
}

/// The number of channels, if it is divisible by `groups`.
fn channels_of(shape: &Shape, groups: usize) -> Result<usize, String> {
    if shape.len() < 2 || shape[1..].contains(&0) {
        return Err(format!("the input {shape} has no elements to normalise"));
    }
    let channels = shape.last();
    if groups == 0 || !channels.is_multiple_of(groups) {
        return Err(format!("{channels} channels cannot be divided into {groups} groups"));
    }
    Ok(channels)
}

/// The mapping from elements of `[b, .., c]` to groups.
#[derive(Debug, Clone, Copy)]
struct ChannelGroups {
    sample_elements: usize,
    channels: usize,
    groups: usize,
}

impl ChannelGroups {
    fn new(groups: usize, shape: &[usize]) -> Self {
        ChannelGroups { sample_elements: shape[1..].iter().product(), channels: shape[shape.len() - 1], groups }
    }

    /// The group of an element, `sample · groups + group`.
    fn group(&self, i: usize) -> usize {
        i / self.sample_elements * self.groups + i % self.channels * self.groups / self.channels
    }

    /// The number of elements of a group.
    fn size(&self) -> f64 {
        (self.sample_elements / self.groups) as f64
    }

    /// The sum of `f(i)` over the elements of each group.
    fn sums(&self, elements: usize, f: impl Fn(usize) -> f64) -> Vec<f64> {
        let mut sums = vec![0.0; elements / self.sample_elements * self.groups];
        (0..elements).for_each(|i| sums[self.group(i)] += f(i));
        sums
    }
}

impl Operation for GroupNorm {
    fn name(&self) -> &'static str {
        "group_norm"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 3)?;
        let shape = &inputs[0].shape;
        let channels = channels_of(shape, self.groups)?;
        expect_shape("gamma", &inputs[1], &[channels])?;
        expect_shape("beta", &inputs[2], &[channels])?;
        let statistics = Type::f32([shape[0], self.groups]);
        Ok(vec![inputs[0].clone(), statistics.clone(), statistics])
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        b.only_first_output("the groups' statistics")?;
        let inputs = [b.dy()?, b.input(0), b.input(1), b.output(1), b.output(2)];
        let node = b.graph.add(GroupNormGrad { groups: self.groups }, &inputs)?;
        b.set_all(node, 3)
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [x, gamma, beta] = [0, 1, 2].map(|i| inputs[i].data());
        let groups = ChannelGroups::new(self.groups, inputs[0].shape());
        let mean: Vec<f64> = groups.sums(x.len(), |i| x[i] / groups.size());
        let variance = groups.sums(x.len(), |i| (x[i] - mean[groups.group(i)]).powi(2) / groups.size());
        let rstd: Vec<f64> = variance.iter().map(|v| 1.0 / (v + f64::from(self.epsilon)).sqrt()).collect();
        let value = |i: usize| {
            let (group, channel) = (groups.group(i), i % groups.channels);
            (x[i] - mean[group]) * rstd[group] * gamma[channel] + beta[channel]
        };
        vec![
            Array::from_fn(&outputs[0].shape, value),
            Array::new(outputs[1].shape.clone(), mean.clone()),
            Array::new(outputs[2].shape.clone(), rstd.clone()),
        ]
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
}

/// The gradient of [`GroupNorm`]: from `dy, x, gamma, mean, rstd` to `dx, dgamma, dbeta`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupNormGrad {
    /// The number of channel groups.
    pub groups: usize,
}

impl Operation for GroupNormGrad {
    fn name(&self) -> &'static str {
        "group_norm_grad"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        grad_types(inputs, |x| channels_of(x, self.groups).map(|_| vec![x[0], self.groups]))
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [dy, x, gamma, mean, rstd] = [0, 1, 2, 3, 4].map(|i| inputs[i].data());
        let groups = ChannelGroups::new(self.groups, inputs[1].shape());
        let normed = |i: usize| (x[i] - mean[groups.group(i)]) * rstd[groups.group(i)];
        let scaled = |i: usize| dy[i] * gamma[i % groups.channels];
        let sum = groups.sums(x.len(), scaled);
        let dot = groups.sums(x.len(), |i| scaled(i) * normed(i));
        let (mut dgamma, mut dbeta) = (vec![0.0; groups.channels], vec![0.0; groups.channels]);
        for i in 0..x.len() {
            dgamma[i % groups.channels] += dy[i] * normed(i);
            dbeta[i % groups.channels] += dy[i];
        }
        let dx = |i: usize| {
            let group = groups.group(i);
            rstd[group] * (scaled(i) - (sum[group] + normed(i) * dot[group]) / groups.size())
        };
        vec![
            Array::from_fn(&outputs[0].shape, dx),
            Array::new(outputs[1].shape.clone(), dgamma),
            Array::new(outputs[2].shape.clone(), dbeta),
        ]
    }

    fn input_precision(&self, input: usize) -> InputPrecision {
        InputPrecision::f32_if(input > 1)
    }

    fn is_f32_output(&self, output: usize) -> bool {
        output > 0
    }
}
