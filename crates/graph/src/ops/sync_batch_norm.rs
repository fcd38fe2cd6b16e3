//! Batch normalisation whose statistics are those of all parts of a batch, as several operations between which sums
//! over the parts, and over the processes that compute them, are added.
//!
//! [`BatchMoments`] of every part gives a mean, whose sum over parts gives the mean of the batch; [`VarianceAbout`] of
//! every part is the variance about that mean, whose sum gives the variance of the batch; [`SyncBatchNorm`] normalises
//! all parts of this process. All parts have the same shape. Two sums, instead of one of `x` and `x²`, avoid
//! cancellation.

use super::norm::expect_elements;
use super::{AllReduce, BatchNorm, BatchNormGrad, InputPrecision, Operation, PartSum, arity, expect_shape};
use crate::autodiff::Backward;
use crate::reference::Array;
use crate::{Graph, GraphError, Type, Value};

/// Which parts a batch norm normalises together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncedParts {
    /// The number of parts of a batch, over all processes.
    pub parts: usize,
    /// The number of parts of this process.
    pub own: usize,
    /// Whether other processes compute some of the parts.
    pub exchange: bool,
}

impl SyncedParts {
    /// The sum over all parts of a value of each part of this process, added in a balanced binary tree.
    fn sum(&self, graph: &mut Graph, of_parts: &[Value]) -> Result<Value, GraphError> {
        let sum = tree_sum(graph, of_parts)?;
        if self.exchange { graph.value(AllReduce, &[sum]) } else { Ok(sum) }
    }
}

/// The sum in a balanced binary tree; the left subtree has the largest power of two below the number of values.
fn tree_sum(graph: &mut Graph, values: &[Value]) -> Result<Value, GraphError> {
    if let [only] = values {
        return Ok(*only);
    }
    let (left, right) = values.split_at(values.len().next_power_of_two() / 2);
    let operands = [tree_sum(graph, left)?, tree_sum(graph, right)?];
    graph.value(PartSum, &operands)
}

/// Adds a batch norm of all parts. `of_parts` has the inputs of [`BatchNorm`] for every part of this process, whose
/// running statistics are the same value. Returns the outputs of [`SyncBatchNorm`].
pub fn sync_batch_norm(
    graph: &mut Graph,
    norm: BatchNorm,
    synced: SyncedParts,
    of_parts: &[Vec<Value>],
) -> Result<Vec<Value>, GraphError> {
    let operand = |input: usize| of_parts.iter().map(move |inputs| inputs[input]);
    let moments = operand(0).map(|x| graph.add(BatchMoments, &[x])).collect::<Result<Vec<_>, _>>()?;
    let means: Vec<Value> = moments.iter().map(|&node| Value { node, output: 0 }).collect();
    let mean_sum = synced.sum(graph, &means)?;
    let about = VarianceAbout { parts: synced.parts };
    let variances = moments
        .iter()
        .map(|&node| graph.value(about, &[Value { node, output: 0 }, Value { node, output: 1 }, mean_sum]))
        .collect::<Result<Vec<_>, _>>()?;
    let variance_sum = synced.sum(graph, &variances)?;
    let mut inputs: Vec<Value> = (0..3).flat_map(operand).collect();
    inputs.extend([mean_sum, variance_sum, of_parts[0][3], of_parts[0][4]]);
    let node = graph.add(SyncBatchNorm { norm, synced }, &inputs)?;
    Ok((0..of_parts.len() + 4).map(|output| Value { node, output }).collect())
}

/// Mean and biased variance of each channel of `x [.., c]` over all other axes. It has no gradient itself: that of
/// [`SyncBatchNorm`] includes the dependence of the statistics on `x`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchMoments;

impl Operation for BatchMoments {
    fn name(&self) -> &'static str {
        "batch_moments"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 1)?;
        expect_elements(&inputs[0].shape)?;
        Ok(vec![Type::f32([inputs[0].shape.last()]); 2])
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (x, channels) = (inputs[0].data(), outputs[0].shape.elements());
        let count = (x.len() / channels) as f64;
        let (mut mean, mut variance) = (vec![0.0; channels], vec![0.0; channels]);
        x.iter().enumerate().for_each(|(i, x)| mean[i % channels] += x / count);
        x.iter().enumerate().for_each(|(i, x)| variance[i % channels] += (x - mean[i % channels]).powi(2) / count);
        vec![Array::new([channels], mean), Array::new([channels], variance)]
    }

    fn is_f32_output(&self, _output: usize) -> bool {
        true
    }
}

/// The variance of a part about the mean of all parts: `variance + (mean - mean_sum / parts)²`, from `mean`, `variance`
/// and `mean_sum`, each `[c]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VarianceAbout {
    /// The parts in `mean_sum`.
    pub parts: usize,
}

impl Operation for VarianceAbout {
    fn name(&self) -> &'static str {
        "variance_about"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 3)?;
        expect_shape("the variance", &inputs[1], &inputs[0].shape)?;
        expect_shape("the sum of means", &inputs[2], &inputs[0].shape)?;
        Ok(vec![inputs[0].clone()])
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [mean, variance, sum] = [0, 1, 2].map(|i| inputs[i].data());
        let parts = self.parts as f64;
        vec![Array::from_fn(&outputs[0].shape, |c| variance[c] + (mean[c] - sum[c] / parts).powi(2))]
    }

    fn input_precision(&self, _input: usize) -> InputPrecision {
        InputPrecision::F32
    }

    fn is_f32_output(&self, _output: usize) -> bool {
        true
    }
}

/// `(x - mean) · rstd · gamma + beta` of the `k` parts of this process, with `mean = mean_sum / parts` and
/// `rstd = 1 / √(variance_sum / parts + epsilon)`.
///
/// Inputs: `k` times `x [.., c]`, `k` times `gamma`, `k` times `beta` (the same values; each has the gradient of its
/// part), `mean_sum`, `variance_sum`, `running_mean` and `running_variance`, each `[c]`. Outputs: `k` results, `mean`,
/// `rstd` and the new running statistics of [`BatchNorm`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SyncBatchNorm {
    /// Epsilon and momentum.
    pub norm: BatchNorm,
    /// The parts that are normalised together.
    pub synced: SyncedParts,
}

impl SyncBatchNorm {
    /// Elements of a channel in all parts.
    pub fn count(&self, x: &Type) -> usize {
        x.shape.rows() * self.synced.parts
    }
}

impl Operation for SyncBatchNorm {
    fn name(&self) -> &'static str {
        "sync_batch_norm"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        let own = self.synced.own;
        arity(inputs, 3 * own + 4)?;
        let x = &inputs[0];
        expect_elements(&x.shape)?;
        if self.count(x) < 2 {
            return Err("a batch norm learns from more than one value per channel; use a larger batch".into());
        }
        inputs[1..own].iter().try_for_each(|other| expect_shape("x of another part", other, &x.shape))?;
        inputs[own..].iter().try_for_each(|other| expect_shape("a value per channel", other, &[x.shape.last()]))?;
        let statistics = vec![Type::f32([x.shape.last()]); 4];
        Ok([inputs[..own].to_vec(), statistics].concat())
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        let own = self.synced.own;
        b.only_outputs_before(own, "the batch's statistics")?;
        let [mean, rstd] = [own, own + 1].map(|output| b.output(output));
        let (mut grads, mut upstream) = (Vec::new(), Vec::new());
        for part in 0..own {
            let dy = b.dy_of(part)?;
            upstream.push(dy);
            // Only the gradients of gamma and beta are used; that of x needs their sums over all parts.
            let operands = [dy, b.input(part), b.input(own + part), mean, rstd];
            let node = b.graph.add(BatchNormGrad, &operands)?;
            for (input, output) in [(own + part, 1), (2 * own + part, 2)] {
                if b.needs_gradient(input) {
                    b.set(input, Value { node, output })?;
                }
            }
            grads.push(node);
        }
        if !(0..own).any(|part| b.needs_gradient(part)) {
            return Ok(());
        }
        let mut sum = |output: usize| {
            let of_parts: Vec<Value> = grads.iter().map(|&node| Value { node, output }).collect();
            self.synced.sum(b.graph, &of_parts)
        };
        let (dgamma, dbeta) = (sum(1)?, sum(2)?);
        let op = SyncBatchNormGrad { count: self.count(b.graph.ty(b.input(0))) };
        for (part, dy) in upstream.into_iter().enumerate() {
            let operands = [dy, b.input(part), b.input(own + part), mean, rstd, dgamma, dbeta];
            let dx = b.graph.value(op, &operands)?;
            b.set(part, dx)?;
        }
        Ok(())
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let own = self.synced.own;
        let [mean_sum, variance_sum, running_mean, running_variance] = [0, 1, 2, 3].map(|i| inputs[3 * own + i].data());
        let (parts, count) = (self.synced.parts as f64, self.count(&outputs[0]) as f64);
        let mean: Vec<f64> = mean_sum.iter().map(|sum| sum / parts).collect();
        let variance: Vec<f64> = variance_sum.iter().map(|sum| sum / parts).collect();
        let rstd: Vec<f64> = variance.iter().map(|v| 1.0 / (v + f64::from(self.norm.epsilon)).sqrt()).collect();
        let moved = |old: f64, found: f64| old + f64::from(self.norm.momentum) * (found - old);
        let channels = mean.len();
        let normalised = (0..own).map(|part| {
            let [x, gamma, beta] = [part, own + part, 2 * own + part].map(|i| inputs[i].data());
            Array::from_fn(&outputs[part].shape, |i| {
                let c = i % channels;
                (x[i] - mean[c]) * rstd[c] * gamma[c] + beta[c]
            })
        });
        let mut results: Vec<Array> = normalised.collect();
        let of_channels = |f: &dyn Fn(usize) -> f64| Array::from_fn(&outputs[own].shape, f);
        results.extend([
            of_channels(&|c| mean[c]),
            of_channels(&|c| rstd[c]),
            of_channels(&|c| moved(running_mean[c], mean[c])),
            of_channels(&|c| moved(running_variance[c], count / (count - 1.0) * variance[c])),
        ]);
        results
    }

    fn input_precision(&self, input: usize) -> InputPrecision {
        InputPrecision::f32_if(input >= self.synced.own)
    }

    fn is_f32_output(&self, output: usize) -> bool {
        output >= self.synced.own
    }
}

/// The gradient of [`SyncBatchNorm`] with respect to `x` of one part: from `dy, x, gamma, mean, rstd` and the sums of
/// `dgamma` and `dbeta` over all parts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SyncBatchNormGrad {
    /// Elements of a channel in all parts.
    pub count: usize,
}

impl Operation for SyncBatchNormGrad {
    fn name(&self) -> &'static str {
        "sync_batch_norm_grad"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        arity(inputs, 7)?;
        expect_shape("x", &inputs[1], &inputs[0].shape)?;
        let channels = [inputs[0].shape.last()];
        inputs[2..].iter().try_for_each(|input| expect_shape("a value per channel", input, &channels))?;
        Ok(vec![inputs[0].clone()])
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let [dy, x, gamma, mean, rstd, dgamma, dbeta] = [0, 1, 2, 3, 4, 5, 6].map(|i| inputs[i].data());
        let (channels, count) = (gamma.len(), self.count as f64);
        vec![Array::from_fn(&outputs[0].shape, |i| {
            let c = i % channels;
            let normed = (x[i] - mean[c]) * rstd[c];
            gamma[c] * rstd[c] * (dy[i] - (dbeta[c] + normed * dgamma[c]) / count)
        })]
    }

    fn input_precision(&self, input: usize) -> InputPrecision {
        InputPrecision::f32_if(input > 1)
    }
}
