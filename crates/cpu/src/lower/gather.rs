//! Gathers rows of a table by index, and scatters their gradient; an index outside the table reads
//! zeros and gets no gradient.

use vit_graph::Type;
use vit_graph::ops::GatherGrad;

use super::Lowered;

pub(super) fn gather(table: &Type) -> Lowered {
    let (rows, inner) = (table.shape[0], table.shape[1..].iter().product::<usize>());
    Lowered::new(move |p, inputs, outputs, _| {
        let indices: &[i32] = bytemuck::cast_slice(inputs[1]);
        p.pool.run_chunks(&mut *outputs[0], inner.max(1), &|i, out| match usize::try_from(indices[i]) {
            Ok(row) if row < rows => out.copy_from_slice(&inputs[0][row * inner..][..inner]),
            _ => out.fill(0.0),
        });
    })
}

/// On one thread: indices may repeat, and their gradients are added in order.
pub(super) fn gather_grad(op: &GatherGrad) -> Lowered {
    let (rows, inner) = (op.table[0], op.table[1..].iter().product::<usize>());
    Lowered::new(move |_, inputs, outputs, _| {
        let indices: &[i32] = bytemuck::cast_slice(inputs[1]);
        outputs[0].fill(0.0);
        for (dy, &index) in inputs[0].chunks_exact(inner.max(1)).zip(indices) {
            if let Some(row) = usize::try_from(index).ok().filter(|&row| row < rows) {
                let out = &mut outputs[0][row * inner..][..inner];
                out.iter_mut().zip(dy).for_each(|(out, dy)| *out += dy);
            }
        }
    })
}
