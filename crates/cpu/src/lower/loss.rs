//! Losses, as means over the batch, and one-hot maxima.

use vit_graph::Type;

use super::Lowered;

/// The log-sum-exp of a row, in f64, which costs little for the few rows of a batch.
fn log_sum_exp(row: &[f32]) -> f64 {
    let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    f64::from(largest) + row.iter().map(|&v| f64::from(v - largest).exp()).sum::<f64>().ln()
}

pub(super) fn cross_entropy(logits: &Type) -> Lowered {
    let (batch, classes) = (logits.shape[0], logits.shape[1]);
    Lowered::new(move |_, inputs, outputs, _| {
        let mut loss = 0.0;
        for (logits, targets) in inputs[0].chunks_exact(classes).zip(inputs[1].chunks_exact(classes)) {
            let lse = log_sum_exp(logits);
            loss += logits.iter().zip(targets).map(|(&l, &t)| f64::from(t) * (lse - f64::from(l))).sum::<f64>();
        }
        outputs[0][0] = (loss / batch as f64) as f32;
    })
}

/// `(softmax · target_sum - targets) · dy / batch`: targets need not add up to 1.
pub(super) fn cross_entropy_grad(logits: &Type) -> Lowered {
    let (batch, classes) = (logits.shape[0], logits.shape[1]);
    Lowered::new(move |p, inputs, outputs, _| {
        let factor = f64::from(inputs[0][0]) / batch as f64;
        p.pool.run_chunks(&mut *outputs[0], classes, &|row, out| {
            let (logits, targets) = (&inputs[1][row * classes..][..classes], &inputs[2][row * classes..][..classes]);
            let lse = log_sum_exp(logits);
            let target_sum: f64 = targets.iter().map(|&t| f64::from(t)).sum();
            for ((out, &l), &t) in out.iter_mut().zip(logits).zip(targets) {
                *out = (factor * ((f64::from(l) - lse).exp() * target_sum - f64::from(t))) as f32;
            }
        });
    })
}

pub(super) fn sigmoid_cross_entropy(logits: &Type) -> Lowered {
    let (batch, classes) = (logits.shape[0], logits.shape[1]);
    Lowered::new(move |p, inputs, outputs, workspace| {
        p.pool.run_chunks(&mut workspace[..batch], 1, &|row, sum| {
            let (logits, targets) = (&inputs[0][row * classes..][..classes], &inputs[1][row * classes..][..classes]);
            // -t ln sigmoid(x) - (1 - t) ln(1 - sigmoid(x)), without overflow.
            let entropy = |(&x, &t): (&f32, &f32)| {
                let x = f64::from(x);
                x.max(0.0) - f64::from(t) * x + (-x.abs()).exp().ln_1p()
            };
            sum[0] = logits.iter().zip(targets).map(entropy).sum::<f64>() as f32;
        });
        let total: f64 = workspace[..batch].iter().map(|&s| f64::from(s)).sum();
        outputs[0][0] = (total / batch as f64) as f32;
    })
    .with_workspace(batch)
}

pub(super) fn squared_error(x: &Type) -> Lowered {
    let (rows, columns) = (x.shape[0], x.shape[1]);
    Lowered::new(move |p, inputs, outputs, workspace| {
        p.pool.run_chunks(&mut workspace[..rows], 1, &|row, sum| {
            let (x, targets) = (&inputs[0][row * columns..][..columns], &inputs[1][row * columns..][..columns]);
            let square = |(&x, &t): (&f32, &f32)| (f64::from(x) - f64::from(t)).powi(2);
            sum[0] = x.iter().zip(targets).map(square).sum::<f64>() as f32;
        });
        let total: f64 = workspace[..rows].iter().map(|&s| f64::from(s)).sum();
        outputs[0][0] = (total / (rows * columns) as f64) as f32;
    })
    .with_workspace(rows)
}

/// One at the first maximum of each row; a NaN counts as the maximum and is copied.
pub(super) fn one_hot_max(x: &Type) -> Lowered {
    let columns = x.shape.last().max(1);
    Lowered::new(move |_, inputs, outputs, _| {
        for (out, row) in outputs[0].chunks_exact_mut(columns).zip(inputs[0].chunks_exact(columns)) {
            let larger = |i: usize, best: usize| row[i] > row[best] || (row[i].is_nan() && !row[best].is_nan());
            let best = (1..row.len()).fold(0, |best, i| if larger(i, best) { i } else { best });
            out.fill(0.0);
            out[best] = if row[best].is_nan() { row[best] } else { 1.0 };
        }
    })
}
