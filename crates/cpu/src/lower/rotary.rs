//! Rotary position embedding, its tables of cosines and sines, and the random shift and scale of its coordinates in training.

use vit_graph::Type;
use vit_graph::ops::{Rotary, RotaryGrad, Uniform};

use super::dropout::seed_of;
use super::{Lowered, consumed};
use crate::rotary::{self, Table, TablesShape};

/// `x` and the tables to `x` rotated, in place.
pub(super) fn rotate(op: Rotary, inputs: &[Type]) -> Lowered {
    let e = op.extents(&inputs[0].shape, &inputs[1].shape);
    Lowered::new(move |p, inputs, outputs, _| {
        rotary::rotate(&p.pool, p.isa, op, e, outputs[0], [inputs[1], inputs[2]]);
    })
    .in_place()
}

/// The gradient of the rotation with respect to both tables.
pub(super) fn rotation_grad_tables(op: &RotaryGrad, inputs: &[Type]) -> Lowered {
    let (rotary, e) = (op.rotary, op.rotary.extents(&inputs[1].shape, &op.table));
    Lowered::new(move |p, inputs, outputs, _| {
        for (table, out) in [Table::Cos, Table::Sin].into_iter().zip(outputs) {
            if let Some(out) = consumed(out) {
                rotary::table_grad(&p.pool, rotary, e, table, [inputs[0], inputs[1]], out);
            }
        }
    })
}

pub(super) fn tables(inputs: &[Type]) -> Lowered {
    let shape = TablesShape::new(&inputs[0].shape, &inputs[1].shape);
    Lowered::new(move |p, inputs, outputs, _| {
        for (function, out) in [f32::cos as fn(f32) -> f32, f32::sin].into_iter().zip(outputs) {
            if let Some(out) = consumed(out) {
                rotary::table(&p.pool, shape, function, [inputs[0], inputs[1]], out);
            }
        }
    })
}

/// The gradient of the tables with respect to the frequencies.
pub(super) fn frequencies_grad(inputs: &[Type]) -> Lowered {
    let (table, axes) = (&inputs[2].shape, inputs[4].shape[1]);
    let shape = TablesShape { positions: table[1], axes, groups: table[0], pairs: table[2] };
    Lowered::new(move |p, inputs, outputs, _| {
        let [dcos, dsin, cos, sin, coordinates] = [0, 1, 2, 3, 4].map(|i| inputs[i]);
        rotary::frequencies_grad(&p.pool, shape, [dcos, dsin, cos, sin], coordinates, outputs[0]);
    })
}

pub(super) fn uniform(op: &Uniform) -> Lowered {
    let op = op.clone();
    Lowered::new(move |_, inputs, outputs, _| {
        let seed = seed_of(inputs[0]);
        outputs[0].iter_mut().enumerate().for_each(|(i, out)| *out = op.value(seed, i as u64));
    })
}
