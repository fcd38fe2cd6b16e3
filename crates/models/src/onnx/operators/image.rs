//! Convolution and pooling, which ONNX defines on images with channels first.

use vit_graph::ops::{Conv2d, Pool2d, PoolMode};
use vit_graph::{NodeId, Value};

use crate::onnx::OnnxError;
use crate::onnx::model::Attribute;
use crate::onnx::translation::Translation;

/// `[[top, bottom], [left, right]]` in ONNX's order.
fn pads([[top, bottom], [left, right]]: [[usize; 2]; 2]) -> Vec<i64> {
    [top, left, bottom, right].map(|pixels| pixels as i64).to_vec()
}

fn pair(of: [usize; 2]) -> Vec<i64> {
    of.map(|n| n as i64).to_vec()
}

impl Translation<'_> {
    pub fn convolution(&mut self, id: NodeId, conv: &Conv2d) -> Result<(), OnnxError> {
        let inputs = &self.node(id).inputs;
        let (image, weight, bias) = (inputs[0], inputs[1], inputs.get(2).copied());
        let kernel = [2, 3].map(|axis| self.extents(weight)[axis]);
        let pointwise = kernel == [1, 1] && *conv == Conv2d::patches(kernel, conv.bias);
        // Between operations that need channels last it is a linear layer, without transposition.
        if pointwise && self.forms(image).channels_first.is_none() {
            let x = self.plain(image)?;
            let y = self.product(&x, weight, bias, None)?;
            self.set_plain(id, y);
            return Ok(());
        }
        let x = self.channels_first(image)?;
        let mut operands = vec![x, self.plain(weight)?];
        if let Some(bias) = bias {
            operands.push(self.plain(bias)?);
        }
        let operands: Vec<&str> = operands.iter().map(String::as_str).collect();
        let attributes = vec![
            Attribute::Ints("kernel_shape", pair(kernel)),
            Attribute::Ints("strides", pair(conv.stride)),
            Attribute::Ints("pads", pads(conv.padding)),
            Attribute::Ints("dilations", pair(conv.dilation)),
            Attribute::Int("group", conv.groups as i64),
        ];
        let y = self.add_with("Conv", &operands, attributes);
        self.set_channels_first(id, y);
        Ok(())
    }

    pub fn pooling(&mut self, id: NodeId, pool: &Pool2d) -> Result<(), OnnxError> {
        let image = self.node(id).inputs[0];
        let extents = self.extents(image);
        if pool.kernel == [extents[1], extents[2]] && pool.padding == [[0; 2]; 2] {
            let channels_first = self.only_channels_first(image);
            let x = self.in_layout(image, channels_first)?;
            let operator = match pool.pooling {
                PoolMode::Max => "ReduceMax",
                PoolMode::Mean => "ReduceMean",
            };
            let axes = if channels_first { vec![2, 3] } else { vec![1, 2] };
            let y = self.add_with(operator, &[&x], vec![Attribute::Ints("axes", axes), Attribute::Int("keepdims", 1)]);
            self.set_in_layout(id, channels_first, y);
            return Ok(());
        }
        let x = self.channels_first(image)?;
        let mut attributes = vec![
            Attribute::Ints("kernel_shape", pair(pool.kernel)),
            Attribute::Ints("strides", pair(pool.stride)),
            Attribute::Ints("pads", pads(pool.padding)),
        ];
        let y = match pool.pooling {
            PoolMode::Max => {
                let y = self.add_with("MaxPool", &[&x], attributes);
                if pool.count_padding { self.at_least_padding(&y, id, pool) } else { y }
            }
            PoolMode::Mean => {
                attributes.push(Attribute::Int("count_include_pad", pool.count_padding.into()));
                self.add_with("AveragePool", &[&x], attributes)
            }
        };
        self.set_channels_first(id, y);
        Ok(())
    }
    /// The maxima of windows of which those at the border contain zeros. `MaxPool` leaves padding out; a `Pad` before it would
    /// have the same result, but ONNX Runtime 1.31 makes that the padding of the `MaxPool`.
    fn at_least_padding(&mut self, y: &str, id: NodeId, pool: &Pool2d) -> String {
        let (image, result) = (self.node(id).inputs[0], Value { node: id, output: 0 });
        let [rows, columns] = [1, 2].map(|axis| self.extents(result)[axis]);
        let padded = |axis: usize, output: usize| {
            let [start, end] = pool.window(axis, output, self.extents(image)[1 + axis]);
            end - start < pool.kernel[axis]
        };
        let least = |i: usize| if padded(0, i / columns) || padded(1, i % columns) { 0.0 } else { f32::MIN };
        let least: Vec<f32> = (0..rows * columns).map(least).collect();
        let least = self.table("border", &[1, 1, rows, columns], least);
        self.add("Max", &[y, &least])
    }
}
