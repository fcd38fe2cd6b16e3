//! Operations that move elements, and reductions.

use vit_graph::ops::{Pad, Reduce, Reduction, Slice};
use vit_graph::{NodeId, Value};

use crate::onnx::OnnxError;
use crate::onnx::batch::Extent;
use crate::onnx::model::Attribute;
use crate::onnx::translation::Translation;

impl Translation<'_> {
    pub fn reshaped(&mut self, id: NodeId) -> Result<(), OnnxError> {
        let x = self.plain(self.node(id).inputs[0])?;
        let shape = self.shape(Value { node: id, output: 0 })?;
        let y = self.reshape(&x, &shape)?;
        self.set_plain(id, y);
        Ok(())
    }

    pub fn permuted(&mut self, id: NodeId, order: &[usize]) -> Result<(), OnnxError> {
        let input = self.node(id).inputs[0];
        match *order {
            // From channels first to channels last, and back: another form of the same image.
            [0, 2, 3, 1] => {
                let image = self.plain(input)?;
                self.set_channels_first(id, image);
            }
            [0, 3, 1, 2] => {
                let image = self.channels_first(input)?;
                self.set_plain(id, image);
            }
            _ => {
                let x = self.plain(input)?;
                let y = self.transpose(&x, order);
                self.set_plain(id, y);
            }
        }
        Ok(())
    }

    pub fn sliced(&mut self, id: NodeId, slice: &Slice) -> Result<(), OnnxError> {
        let x = self.plain(self.node(id).inputs[0])?;
        let [start, end, axis] = [slice.start, slice.start + slice.length, slice.axis].map(|n| n as i64);
        let [start, end, axis] = [start, end, axis].map(|n| self.integers(&[n]));
        let y = self.add("Slice", &[&x, &start, &end, &axis]);
        self.set_plain(id, y);
        Ok(())
    }

    pub fn padded(&mut self, id: NodeId, pad: &Pad) -> Result<(), OnnxError> {
        let input = self.node(id).inputs[0];
        let (x, rank) = (self.plain(input)?, self.extents(input).len());
        let mut amounts = vec![0; 2 * rank];
        (amounts[pad.axis], amounts[rank + pad.axis]) = (pad.before as i64, pad.after as i64);
        let amounts = self.integers(&amounts);
        let y = self.add("Pad", &[&x, &amounts]);
        self.set_plain(id, y);
        Ok(())
    }

    pub fn concatenated(&mut self, id: NodeId, axis: usize) -> Result<(), OnnxError> {
        let parts = self.node(id).inputs.iter().map(|&input| self.plain(input)).collect::<Result<Vec<_>, _>>()?;
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let y = self.add_with("Concat", &parts, vec![Attribute::Int("axis", axis as i64)]);
        self.set_plain(id, y);
        Ok(())
    }

    /// The shape is computed from that of the model's input where it depends on the batch.
    pub fn broadcast(&mut self, id: NodeId) -> Result<(), OnnxError> {
        let x = self.plain(self.node(id).inputs[0])?;
        let shape = self.shape(Value { node: id, output: 0 })?;
        let mut parts = Vec::with_capacity(shape.len());
        for extent in shape {
            parts.push(match extent {
                Extent::Fixed(extent) => self.integers(&[extent as i64]),
                Extent::Batches(times) => self.batches(times),
            });
        }
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        let shape = self.add_with("Concat", &parts, vec![Attribute::Int("axis", 0)]);
        let y = self.add("Expand", &[&x, &shape]);
        self.set_plain(id, y);
        Ok(())
    }

    /// So many times the batch, as a list of one.
    fn batches(&mut self, times: usize) -> String {
        let input = self.model.inputs[0].name.clone();
        let (first, times) = (self.integers(&[0]), (times > 1).then(|| self.integers(&[times as i64])));
        let shape = self.add("Shape", &[&input]);
        let batch = self.add_with("Gather", &[&shape, &first], vec![Attribute::Int("axis", 0)]);
        times.map_or(batch.clone(), |times| self.add("Mul", &[&batch, &times]))
    }

    pub fn reduced(&mut self, id: NodeId, reduce: &Reduce) -> Result<(), OnnxError> {
        let input = self.node(id).inputs[0];
        let pixels = reduce.axes == [1, 2] && self.only_channels_first(input);
        let x = self.in_layout(input, pixels)?;
        let axes: Vec<i64> = if pixels { vec![2, 3] } else { reduce.axes.iter().map(|&axis| axis as i64).collect() };
        let dropped = Attribute::Int("keepdims", 0);
        let y = match reduce.reduction {
            // Of the reductions, `ReduceSum` alone has its axes as an input in this operator set.
            Reduction::Sum => {
                let axes = self.integers(&axes);
                self.add_with("ReduceSum", &[&x, &axes], vec![dropped])
            }
            Reduction::Mean => self.add_with("ReduceMean", &[&x], vec![Attribute::Ints("axes", axes), dropped]),
        };
        self.set_plain(id, y);
        Ok(())
    }

    pub fn gathered(&mut self, id: NodeId) -> Result<(), OnnxError> {
        let [table, indices] = [0, 1].map(|i| self.node(id).inputs[i]);
        let x = self.plain(table)?;
        let indices = match self.constants.integers(indices) {
            // An index outside the table would be an error where the graph has zeros.
            Some(list) => {
                let rows = self.extents(table)[0] as i64;
                if self.extents(indices).len() != 1 || list.iter().any(|index| !(0..rows).contains(index)) {
                    return Err(self.unsupported(id));
                }
                self.integers(&list)
            }
            None => self.plain(indices)?,
        };
        let y = self.add_with("Gather", &[&x, &indices], vec![Attribute::Int("axis", 0)]);
        self.set_plain(id, y);
        Ok(())
    }
}
