//! Attention as products, with the rotation and normalisation of queries and keys.

use std::ops::Range;

use vit_graph::ops::{Attention, LEAST_LENGTH, Rotary, RotaryExtents, RotaryPairs};
use vit_graph::{NodeId, Value};

use crate::onnx::OnnxError;
use crate::onnx::batch::Extent;
use crate::onnx::model::Attribute;
use crate::onnx::translation::Translation;

/// The tokens `[batch, tokens, heads · head_dim]` of one operand.
struct Tokens {
    batch: Extent,
    tokens: usize,
    heads: usize,
    head_dim: usize,
}

impl Translation<'_> {
    pub fn attention(&mut self, id: NodeId, attention: &Attention) -> Result<(), OnnxError> {
        let inputs = &self.node(id).inputs;
        let [q, k, v] = match attention.packed {
            true => self.thirds(inputs[0])?,
            false => [self.plain(inputs[0])?, self.plain(inputs[1])?, self.plain(inputs[2])?],
        };
        let result = self.shape(Value { node: id, output: 0 })?;
        let [_, heads, queries, keys] = self.extents(Value { node: id, output: 2 })[..] else {
            return Err(self.unsupported(id));
        };
        let head_dim = self.extents(Value { node: id, output: 0 })[2] / heads;
        let of = |tokens| Tokens { batch: result[0], tokens, heads, head_dim };
        let q = self.by_head(&q, &of(queries), [0, 2, 1, 3])?;
        let scale = self.scalar(attention.scale);
        let q = if attention.scale == 1.0 { q } else { self.add("Mul", &[&q, &scale]) };
        let k = self.by_head(&k, &of(keys), [0, 2, 3, 1])?;
        let v = self.by_head(&v, &of(keys), [0, 2, 1, 3])?;
        let mut scores = self.add("MatMul", &[&q, &k]);
        if attention.bias {
            scores = self.biased(&scores, inputs[attention.operands()], id)?;
        }
        let weights = self.add_with("Softmax", &[&scores], vec![Attribute::Int("axis", -1)]);
        let y = self.add("MatMul", &[&weights, &v]);
        // A single token is not moved.
        let y = if queries == 1 { y } else { self.transpose(&y, &[0, 2, 1, 3]) };
        let y = self.reshape(&y, &result)?;
        self.set_plain(id, y);
        self.set_output(id, 2, weights);
        Ok(())
    }

    /// `[batch, tokens, heads · head_dim]` as `[batch, tokens, heads, head_dim]`, with the axes in this order.
    fn by_head(&mut self, x: &str, of: &Tokens, order: [usize; 4]) -> Result<String, OnnxError> {
        let [tokens, heads, head_dim] = [of.tokens, of.heads, of.head_dim].map(Extent::Fixed);
        let shape = [of.batch, tokens, heads, head_dim];
        if of.tokens == 1 {
            return self.reshape(x, &order.map(|axis| shape[axis]));
        }
        let x = self.reshape(x, &shape)?;
        Ok(self.transpose(&x, &order))
    }

    /// Scores with their bias `[groups, heads, queries, keys]`, where sample `i` has that of group `i mod groups`.
    fn biased(&mut self, scores: &str, bias: Value, id: NodeId) -> Result<String, OnnxError> {
        let bias_name = self.plain(bias)?;
        let groups = self.extents(bias)[0];
        // A group for each sample is one bias per sample.
        if groups == 1 || !self.shape(bias)?[0].is_fixed() {
            return Ok(self.add("Add", &[scores, &bias_name]));
        }
        let shape = self.shape(Value { node: id, output: 2 })?;
        let Extent::Batches(samples) = shape[0] else { return Err(self.unsupported(id)) };
        if !samples.is_multiple_of(groups) {
            return Err(self.unsupported(id));
        }
        let [batch, of_group] = [Extent::Batches(samples / groups), Extent::Fixed(groups)];
        let grouped = self.reshape(scores, &[&[batch, of_group], &shape[1..]].concat())?;
        let sum = self.add("Add", &[&grouped, &bias_name]);
        self.reshape(&sum, &shape)
    }

    pub fn rotary(&mut self, id: NodeId, rotary: &Rotary) -> Result<(), OnnxError> {
        let inputs = &self.node(id).inputs;
        let [cos, sin] = [self.copied_constant(inputs[1])?.data, self.copied_constant(inputs[2])?.data];
        let e = rotary.extents(self.extents(inputs[0]), self.extents(inputs[1]));
        let batch = self.shape(inputs[0])?[0];
        let rotation = Rotation { rotary, e, cos, sin };
        let all = e.width / e.head_dim;
        if self.forms(inputs[0]).thirds.is_some() && self.rotates_queries_and_keys(id, rotary) {
            let [q, k, v] = self.thirds(inputs[0])?;
            let heads = all / 3;
            let q = self.rotated(&q, batch, &rotation, 0..heads)?;
            let k = self.rotated(&k, batch, &rotation, heads..2 * heads)?;
            self.set_thirds(id, [q, k, v]);
        } else {
            let x = self.plain(inputs[0])?;
            let y = self.rotated(&x, batch, &rotation, 0..all)?;
            self.set_plain(id, y);
        }
        Ok(())
    }

    /// `x · C + partner(x) · S`, where the partner of a channel is the other one of its pair.
    fn rotated(
        &mut self,
        x: &str,
        batch: Extent,
        rotation: &Rotation,
        heads: Range<usize>,
    ) -> Result<String, OnnxError> {
        let RotaryExtents { tokens, head_dim, .. } = rotation.e;
        let (cos, sin) = rotation.tables(heads.clone());
        let table = [tokens, cos.len() / tokens / head_dim, head_dim];
        let (cos, sin) = (self.table("rotary.cos", &table, cos), self.table("rotary.sin", &table, sin));
        let by_head = [batch, Extent::Fixed(tokens), Extent::Fixed(heads.len()), Extent::Fixed(head_dim)];
        let x = self.reshape(x, &by_head)?;
        let partners: Vec<i64> = (0..head_dim).map(|channel| rotation.partner(channel) as i64).collect();
        let partners = self.integers(&partners);
        let other = self.add_with("Gather", &[&x, &partners], vec![Attribute::Int("axis", 3)]);
        let (x, other) = (self.add("Mul", &[&x, &cos]), self.add("Mul", &[&other, &sin]));
        let y = self.add("Add", &[&x, &other]);
        self.reshape(&y, &[batch, Extent::Fixed(tokens), Extent::Fixed(heads.len() * head_dim)])
    }

    /// Queries times `scale / length`, keys divided by their length.
    pub fn cosine(&mut self, id: NodeId, heads: usize) -> Result<(), OnnxError> {
        let inputs = &self.node(id).inputs;
        let shape = self.shape(inputs[0])?;
        let [_, tokens, width] = self.extents(inputs[0])[..] else { return Err(self.unsupported(id)) };
        let scale = self.constant(inputs[1])?.data;
        let [q, k, v] = self.thirds(inputs[0])?;
        let by_head = [shape[0], Extent::Fixed(tokens), Extent::Fixed(heads), Extent::Fixed(width / 3 / heads)];
        let flat = [shape[0], Extent::Fixed(tokens), Extent::Fixed(width / 3)];
        let mut normalised = |x: &str, scale: Option<Vec<f32>>| {
            let x = self.wide(x);
            let x = self.reshape(&x, &by_head)?;
            let axes = vec![Attribute::Ints("axes", vec![-1]), Attribute::Int("keepdims", 1)];
            let length = self.add_with("ReduceL2", &[&x], axes);
            let least = self.wide_scalar(LEAST_LENGTH);
            let length = self.add("Max", &[&length, &least]);
            let y = self.add("Div", &[&x, &length]);
            let mut y = self.narrow(&y);
            if let Some(scale) = scale {
                let name = self.constant_name(inputs[1], "");
                let scale = self.floats(&name, &[heads, 1], scale);
                y = self.add("Mul", &[&y, &scale]);
            }
            self.reshape(&y, &flat)
        };
        let (q, k) = (normalised(&q, Some(scale))?, normalised(&k, None)?);
        self.set_thirds(id, [q, k, v]);
        Ok(())
    }
}

/// A rotation with its tables `[groups, positions, pairs]`.
struct Rotation<'a> {
    rotary: &'a Rotary,
    e: RotaryExtents,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl Rotation<'_> {
    /// The index of a channel's pair, and whether it is the second of it.
    fn pair(&self, channel: usize) -> (usize, bool) {
        let pairs = self.e.head_dim / 2;
        match self.rotary.pairs {
            RotaryPairs::Adjacent => (channel / 2, channel % 2 == 1),
            RotaryPairs::Halves => (channel % pairs, channel >= pairs),
        }
    }

    fn partner(&self, channel: usize) -> usize {
        let (pair, second) = self.pair(channel);
        self.rotary.pairs.channels(pair, self.e.head_dim)[usize::from(!second)]
    }

    /// The factors `[tokens, heads, head_dim]` of the channels and of their partners; `[tokens, 1, head_dim]` where all heads
    /// have the same. Tokens and heads that are not rotated have 1 and 0.
    fn tables(&self, heads: Range<usize>) -> (Vec<f32>, Vec<f32>) {
        let RotaryExtents { tokens, prefix, groups, head_dim, .. } = self.e;
        let heads = if groups == 1 && heads.end <= self.rotary.heads { heads.start..heads.start + 1 } else { heads };
        let (positions, pairs) = (tokens - prefix, head_dim / 2);
        let sign = if self.rotary.inverse { -1.0 } else { 1.0 };
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        for token in 0..tokens {
            for head in heads.clone() {
                for channel in 0..head_dim {
                    let (pair, second) = self.pair(channel);
                    let (c, s) = match token.checked_sub(prefix).filter(|_| head < self.rotary.heads) {
                        None => (1.0, 0.0),
                        Some(position) => {
                            let at = (head % groups * positions + position) * pairs + pair;
                            (self.cos[at], sign * self.sin[at])
                        }
                    };
                    cos.push(c);
                    sin.push(if second { s } else { -s });
                }
            }
        }
        (cos, sin)
    }
}
