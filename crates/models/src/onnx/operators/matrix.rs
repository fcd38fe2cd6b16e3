//! Linear layers and matrix products.

use vit_graph::ops::{Attention, MatMul, Op, Rotary};
use vit_graph::{NodeId, Value};

use crate::onnx::OnnxError;
use crate::onnx::translation::Translation;
use crate::weights::Tensor;

impl Translation<'_> {
    pub fn linear(&mut self, id: NodeId) -> Result<(), OnnxError> {
        let inputs = &self.node(id).inputs;
        let (x, weight, bias) = (self.plain(inputs[0])?, inputs[1], inputs.get(2).copied());
        if self.is_packed_qkv(Value { node: id, output: 0 }) {
            // Three products instead of one that is split: the split would copy every activation.
            let [q, k, v] = [0, 1, 2].map(|third| self.product(&x, weight, bias, Some(third)));
            self.set_thirds(id, [q?, k?, v?]);
        } else {
            let y = self.product(&x, weight, bias, None)?;
            self.set_plain(id, y);
        }
        Ok(())
    }

    /// `x Wᵀ + b`, or one of query, key and value, whose rows are stacked in the weight `[outputs, inputs]`.
    pub fn product(
        &mut self,
        x: &str,
        weight: Value,
        bias: Option<Value>,
        third: Option<usize>,
    ) -> Result<String, OnnxError> {
        let part = third.map_or("", |third| [".query", ".key", ".value"][third]);
        let columns = self.extents(weight)[1..].iter().product();
        let rows = self.third_of(weight, third)?;
        let outputs = rows.len() / columns;
        let transposed = transposed(&rows, outputs, columns);
        let name = self.constant_name(weight, part);
        let weight = self.floats(&name, &[columns, outputs], transposed);
        let y = self.add("MatMul", &[x, &weight]);
        let Some(bias) = bias else { return Ok(y) };
        let elements = self.third_of(bias, third)?;
        // The keys of some models have no bias, but queries and values stacked with them do.
        if elements.iter().all(|&element| element == 0.0) {
            return Ok(y);
        }
        let name = self.constant_name(bias, part);
        let bias = self.floats(&name, &[outputs], elements);
        Ok(self.add("Add", &[&y, &bias]))
    }

    /// The elements of a constant, or of one third of its rows.
    fn third_of(&mut self, value: Value, third: Option<usize>) -> Result<Vec<f32>, OnnxError> {
        let Tensor { data, .. } = match third {
            // Another third is read after this one.
            Some(_) => self.copied_constant(value)?,
            None => self.constant(value)?,
        };
        let Some(third) = third else { return Ok(data) };
        let length = data.len() / 3;
        Ok(data[third * length..][..length].to_vec())
    }

    /// Whether all that read a value read it as packed query, key and value.
    fn is_packed_qkv(&self, value: Value) -> bool {
        let consumers = self.consumers(value);
        let reads = |&id: &NodeId| {
            let (node, y) = (self.node(id), Value { node: id, output: 0 });
            node.inputs[0] == value
                && match &node.op {
                    Op::Attention(Attention { packed, .. }) => *packed,
                    Op::CosineQkv(_) => self.is_packed_qkv(y),
                    Op::Rotary(rotary) => self.rotates_queries_and_keys(id, rotary) && self.is_packed_qkv(y),
                    _ => false,
                }
        };
        !consumers.is_empty() && consumers.iter().all(reads)
    }

    /// Whether a rotation is of all heads of queries and keys in packed query, key and value.
    pub fn rotates_queries_and_keys(&self, id: NodeId, rotary: &Rotary) -> bool {
        let inputs = &self.node(id).inputs;
        let e = rotary.extents(self.extents(inputs[0]), self.extents(inputs[1]));
        3 * rotary.heads * e.head_dim == 2 * e.width
    }

    pub fn matmul(&mut self, id: NodeId, product: &MatMul) -> Result<(), OnnxError> {
        let [a, b] = [self.node(id).inputs[0], self.node(id).inputs[1]];
        let mut operands = Vec::new();
        for (value, transposed) in [(a, product.transpose_a), (b, product.transpose_b)] {
            let x = self.plain(value)?;
            let mut order: Vec<usize> = (0..self.extents(value).len()).collect();
            let rank = order.len();
            order.swap(rank - 2, rank - 1);
            operands.push(if transposed { self.transpose(&x, &order) } else { x });
        }
        let y = self.add("MatMul", &[&operands[0], &operands[1]]);
        self.set_plain(id, y);
        Ok(())
    }
}

/// `[rows, columns]` as `[columns, rows]`.
fn transposed(x: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut y = vec![0.0; x.len()];
    for (row, x) in x.chunks(columns.max(1)).enumerate() {
        x.iter().enumerate().for_each(|(column, &v)| y[column * rows + row] = v);
    }
    y
}

#[cfg(test)]
mod tests {
    use super::transposed;

    #[test]
    fn rows_become_columns() {
        assert_eq!(transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2, 3), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }
}
