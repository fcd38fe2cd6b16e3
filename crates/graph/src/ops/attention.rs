//! Multi-head scaled dot-product attention as one operation, so that devices need not write the scores to memory.

use super::dropout::{check_rate, seed_of};
use super::softmax::softmax_row;
use super::{Dropout, InputPrecision, Operation, arity, expect_rank, expect_seed, expect_shape};
use crate::autodiff::Backward;
use crate::reference::Array;
use crate::{GraphError, Type, Value};

/// `softmax(scale · Q Kᵀ + bias) V` for every head.
///
/// Inputs: `q [b, n, h·d]`, `k [b, m, h·d]`, `v [b, m, h·d]`, or packed as one `qkv [b, n, 3·h·d]`; then `bias [g, h,
/// n, m]` if there is one, where sample `i` uses group `i mod g` (one group shared by all samples, or one per shifted
/// window); then the seed if there is dropout.
///
/// Outputs: the result `[b, n, h·d]`, the log-sum-exp of every row of scores `[b, h, n]`, which the gradient needs, and
/// the attention weights `[b, h, n, m]` before dropout, which are only computed if used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attention {
    /// The number of heads.
    pub heads: usize,
    /// The factor of the scores, usually `1 / √d`.
    pub scale: f32,
    /// Whether query, key and value are one input.
    pub packed: bool,
    /// Whether there is a bias input.
    pub bias: bool,
    /// Dropout of single attention weights, whatever its granularity.
    pub dropout: Option<Dropout>,
}

/// The extents of one attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct AttentionExtents {
    pub batch: usize,
    pub heads: usize,
    pub queries: usize,
    pub keys: usize,
    pub head_dim: usize,
}

impl Attention {
    /// The number of inputs for query, key and value.
    pub fn operands(&self) -> usize {
        if self.packed { 1 } else { 3 }
    }

    /// The extents, from the types of the operands.
    pub fn extents(&self, operands: &[Type]) -> AttentionExtents {
        let (q, k) = (&operands[0].shape, &operands[if self.packed { 0 } else { 1 }].shape);
        let width = if self.packed { q[2] / 3 } else { q[2] };
        AttentionExtents { batch: q[0], heads: self.heads, queries: q[1], keys: k[1], head_dim: width / self.heads }
    }

    fn check(&self, inputs: &[Type]) -> Result<AttentionExtents, String> {
        let operands = self.operands();
        arity(inputs, operands + usize::from(self.bias) + usize::from(self.dropout.is_some()))?;
        for (name, ty) in ["the query", "the key", "the value"].iter().zip(&inputs[..operands]) {
            expect_rank(if self.packed { "qkv" } else { name }, ty, 3)?;
        }
        let projections = if self.packed { 3 } else { 1 };
        let width = inputs[0].shape[2];
        let divisor = self.heads.checked_mul(projections).filter(|&divisor| divisor > 0);
        if width == 0 || divisor.is_none_or(|divisor| !width.is_multiple_of(divisor)) {
            return Err(format!("a width of {} cannot be divided among {} heads", width / projections, self.heads));
        }
        let x = self.extents(inputs);
        if x.keys == 0 {
            return Err("the keys have no tokens, at least one is needed".into());
        }
        if !self.packed {
            let expected = [x.batch, x.keys, width];
            expect_shape("the key", &inputs[1], &expected)?;
            expect_shape("the value", &inputs[2], &expected)?;
        }
        if self.bias {
            let bias = &inputs[operands];
            expect_rank("the bias", bias, 4)?;
            let groups = bias.shape[0];
            expect_shape("the bias", bias, &[groups, x.heads, x.queries, x.keys])?;
            if groups == 0 || !x.batch.is_multiple_of(groups) {
                return Err(format!("{} samples cannot share {groups} groups of bias", x.batch));
            }
        }
        if let Some(dropout) = self.dropout {
            check_rate(dropout.rate)?;
            expect_seed(&inputs[operands + usize::from(self.bias)])?;
        }
        Ok(x)
    }

    /// The input and the index in it of channel `c` of head `h` of token `i`; `projection` is 0 for query, 1 for key, 2
    /// for value.
    fn locate(
        &self,
        x: &AttentionExtents,
        projection: usize,
        b: usize,
        i: usize,
        h: usize,
        c: usize,
    ) -> (usize, usize) {
        let width = x.heads * x.head_dim;
        let column = h * x.head_dim + c;
        if self.packed {
            (0, (b * x.queries + i) * 3 * width + projection * width + column)
        } else {
            let tokens = if projection == 0 { x.queries } else { x.keys };
            (projection, (b * tokens + i) * width + column)
        }
    }

    /// The attention weights of one query, before dropout, and the log-sum-exp of its scores.
    fn weights(&self, x: &AttentionExtents, inputs: &[&Array], b: usize, h: usize, i: usize) -> (Vec<f64>, f64) {
        let get = |projection, i, c| {
            let (input, index) = self.locate(x, projection, b, i, h, c);
            inputs[input].data()[index]
        };
        let mut scores: Vec<f64> = (0..x.keys)
            .map(|j| {
                let dot: f64 = (0..x.head_dim).map(|c| get(0, i, c) * get(1, j, c)).sum();
                let mut score = dot * f64::from(self.scale);
                if self.bias {
                    let bias = inputs[self.operands()];
                    let group = b % bias.shape()[0];
                    score += bias.data()[((group * x.heads + h) * x.queries + i) * x.keys + j];
                }
                score
            })
            .collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lse = max + scores.iter().map(|s| (s - max).exp()).sum::<f64>().ln();
        softmax_row(&mut scores);
        (scores, lse)
    }

    /// The dropout factor of the weight of key `j`.
    fn mask(&self, x: &AttentionExtents, inputs: &[&Array], b: usize, h: usize, i: usize, j: usize) -> f64 {
        let Some(dropout) = self.dropout else { return 1.0 };
        let seed = seed_of(inputs[self.operands() + usize::from(self.bias)]);
        let index = ((b * x.heads + h) * x.queries + i) * x.keys + j;
        let kept = seed.keeps(dropout.stream, index as u64, dropout.rate);
        if kept { 1.0 / (1.0 - f64::from(dropout.rate)) } else { 0.0 }
    }

    /// The FLOPs of one matrix product per head whose extents are `queries`, `keys` and `head_dim`, in any order.
    fn product_flops(&self, x: &AttentionExtents) -> u64 {
        2 * (x.batch * x.heads * x.queries) as u64 * (x.keys * x.head_dim) as u64
    }
}

impl Operation for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        let x = self.check(inputs)?;
        Ok(vec![
            Type::new(inputs[0].dtype, [x.batch, x.queries, x.heads * x.head_dim]),
            Type::f32([x.batch, x.heads, x.queries]),
            Type::f32([x.batch, x.heads, x.queries, x.keys]),
        ])
    }

    fn flops(&self, inputs: &[Type], _: &[Type]) -> u64 {
        // Q Kᵀ and the weights times V.
        2 * self.product_flops(&self.extents(inputs))
    }

    fn gradient(&self, b: &mut Backward) -> Result<(), GraphError> {
        b.only_first_output("its weights or log-sum-exp")?;
        let operands = self.operands();
        let mut inputs = vec![b.dy()?, b.output(0), b.output(1)];
        inputs.extend((0..operands + usize::from(self.bias) + usize::from(self.dropout.is_some())).map(|i| b.input(i)));
        let node = b.graph.add(AttentionGrad(*self), &inputs)?;
        for i in 0..operands + usize::from(self.bias) {
            if b.needs_gradient(i) {
                b.set(i, Value { node, output: i })?;
            }
        }
        Ok(())
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let x = AttentionExtents {
            batch: outputs[2].shape[0],
            heads: self.heads,
            queries: outputs[2].shape[2],
            keys: outputs[2].shape[3],
            head_dim: outputs[0].shape[2] / self.heads,
        };
        let mut results: Vec<Array> = outputs.iter().map(|t| Array::filled(t.shape.clone(), 0.0)).collect();
        for (b, h, i) in triples(&x) {
            let (weights, lse) = self.weights(&x, inputs, b, h, i);
            let row = (b * x.heads + h) * x.queries + i;
            results[1].data_mut()[row] = lse;
            results[2].data_mut()[row * x.keys..][..x.keys].copy_from_slice(&weights);
            for c in 0..x.head_dim {
                let mut sum = 0.0;
                for (j, weight) in weights.iter().enumerate() {
                    let (input, index) = self.locate(&x, 2, b, j, h, c);
                    sum += weight * self.mask(&x, inputs, b, h, i, j) * inputs[input].data()[index];
                }
                results[0].data_mut()[(b * x.queries + i) * x.heads * x.head_dim + h * x.head_dim + c] = sum;
            }
        }
        results
    }

    /// A packed input is read as a whole, since it also holds keys and values. The bias of a query and its dropout mask
    /// depend on its position.
    fn row_inputs(&self, inputs: &[Type], _: &Type) -> Option<Vec<bool>> {
        let by_row = !self.bias && self.dropout.is_none();
        by_row.then(|| (0..inputs.len()).map(|i| i == 0 && !self.packed).collect())
    }

    fn always_writes_first_output(&self) -> bool {
        true
    }

    fn is_f32_output(&self, output: usize) -> bool {
        output > 0
    }

    fn random_stream(&mut self) -> Option<&mut u32> {
        self.dropout.as_mut().map(|dropout| &mut dropout.stream)
    }
}

/// All `(sample, head, query)`.
fn triples(x: &AttentionExtents) -> impl Iterator<Item = (usize, usize, usize)> + use<> {
    let (batch, heads, queries) = (x.batch, x.heads, x.queries);
    (0..batch).flat_map(move |b| (0..heads).flat_map(move |h| (0..queries).map(move |i| (b, h, i))))
}

/// The gradient of [`Attention`]: from `dy`, its result and log-sum-exp, and its inputs, to the gradients of its
/// operands and bias. The weights are recomputed, as in FlashAttention (Dao et al., 2022).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionGrad(pub Attention);

/// The number of inputs of [`AttentionGrad`] before those of the attention: `dy`, result, log-sum-exp.
const BEFORE: usize = 3;

impl Operation for AttentionGrad {
    fn name(&self) -> &'static str {
        "attention_grad"
    }

    fn infer(&self, inputs: &[Type]) -> Result<Vec<Type>, String> {
        if inputs.len() < BEFORE {
            return Err("inputs are missing".into());
        }
        let attention_inputs = &inputs[BEFORE..];
        let x = self.0.check(attention_inputs)?;
        let out = [x.batch, x.queries, x.heads * x.head_dim];
        expect_shape("dy", &inputs[0], &out)?;
        expect_shape("the result", &inputs[1], &out)?;
        expect_shape("the log-sum-exp", &inputs[2], &[x.batch, x.heads, x.queries])?;
        Ok(attention_inputs[..self.0.operands() + usize::from(self.0.bias)].to_vec())
    }

    fn flops(&self, inputs: &[Type], _: &[Type]) -> u64 {
        // Q Kᵀ again, and one product each for the gradients of weights, V, Q and K.
        5 * self.0.product_flops(&self.0.extents(&inputs[BEFORE..]))
    }

    fn evaluate(&self, inputs: &[&Array], outputs: &[Type]) -> Vec<Array> {
        let (attention, attention_inputs) = (&self.0, &inputs[BEFORE..]);
        let x = attention.extents(&attention_inputs.iter().map(|a| Type::f32(a.shape())).collect::<Vec<_>>());
        let width = x.heads * x.head_dim;
        let mut grads: Vec<Array> = outputs.iter().map(|t| Array::filled(t.shape.clone(), 0.0)).collect();
        for (b, h, i) in triples(&x) {
            let (weights, _) = attention.weights(&x, attention_inputs, b, h, i);
            let dy = &inputs[0].data()[(b * x.queries + i) * width + h * x.head_dim..][..x.head_dim];
            let get = |projection, token, c| {
                let (input, index) = attention.locate(&x, projection, b, token, h, c);
                attention_inputs[input].data()[index]
            };
            let masks: Vec<f64> = (0..x.keys).map(|j| attention.mask(&x, attention_inputs, b, h, i, j)).collect();
            let dweights: Vec<f64> =
                (0..x.keys).map(|j| masks[j] * (0..x.head_dim).map(|c| dy[c] * get(2, j, c)).sum::<f64>()).collect();
            let dot: f64 = weights.iter().zip(&dweights).map(|(w, d)| w * d).sum();
            for j in 0..x.keys {
                let dscore = weights[j] * (dweights[j] - dot);
                for (c, dy) in dy.iter().enumerate() {
                    let scaled = dscore * f64::from(attention.scale);
                    for (projection, token, amount) in [
                        (0, i, scaled * get(1, j, c)),
                        (1, j, scaled * get(0, i, c)),
                        (2, j, weights[j] * masks[j] * dy),
                    ] {
                        let (input, index) = attention.locate(&x, projection, b, token, h, c);
                        grads[input].data_mut()[index] += amount;
                    }
                }
                if attention.bias {
                    let group = b % attention_inputs[attention.operands()].shape()[0];
                    let index = ((group * x.heads + h) * x.queries + i) * x.keys + j;
                    grads[attention.operands()].data_mut()[index] += dscore;
                }
            }
        }
        grads
    }

    fn always_writes_first_output(&self) -> bool {
        true
    }

    fn input_precision(&self, input: usize) -> InputPrecision {
        InputPrecision::f32_if(input == 2)
    }
}
