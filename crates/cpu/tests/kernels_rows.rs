//! Norms, softmax, sums and activations against f64.

mod kernels_support;

use kernels_support::{Random, close, on_all};
use vit_cpu::activation::{Activation, apply, apply_grad};
use vit_cpu::isa::Isa;
use vit_cpu::norm::{LayerNormArgs, LayerNormGradArgs, layer_norm, layer_norm_grad, layer_norm_grad_workspace};
use vit_cpu::reduce::{column_sum, column_sum_workspace};
use vit_cpu::softmax::{softmax, softmax_grad};
use vit_cpu::thread_pool::ThreadPool;

const SHAPES: [(usize, usize); 10] =
    [(1, 1), (3, 2), (7, 17), (50, 31), (197, 192), (5, 768), (2, 1283), (130, 65), (1500, 3), (0, 5)];

fn statistics(row: &[f64], eps: f64) -> (f64, f64) {
    let n = row.len() as f64;
    let mean = row.iter().sum::<f64>() / n;
    let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
    (mean, 1.0 / (variance + eps).sqrt())
}

fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().copied().map(f64::from).collect()
}

#[test]
fn layer_norm_and_its_fused_addition_are_right() {
    let mut random = Random(21);
    for (case, (rows, dim)) in SHAPES.into_iter().enumerate() {
        // A one-pass variance would fail for a mean far from zero.
        let offset = if case % 2 == 0 { 50.0 } else { 0.0 };
        let x: Vec<f32> = random.values(rows * dim).iter().map(|x| x + offset).collect();
        let y = random.values(rows * dim);
        let gamma = random.values(dim);
        let beta = random.values(dim);
        let eps = 1e-6;
        for affine in [false, true] {
            let (gamma, beta) = (affine.then_some(&gamma[..]), affine.then_some(&beta[..]));
            let expected = |x: &[f32]| {
                let (mut out, mut means, mut rstds) = (vec![], vec![], vec![]);
                for row in wide(x).chunks(dim) {
                    let (mean, rstd) = statistics(row, f64::from(eps));
                    means.push(mean);
                    rstds.push(rstd);
                    for (i, x) in row.iter().enumerate() {
                        let g = gamma.map_or(1.0, |g| f64::from(g[i]));
                        let b = beta.map_or(0.0, |b| f64::from(b[i]));
                        out.push((x - mean) * rstd * g + b);
                    }
                }
                [out, means, rstds].concat()
            };
            // The statistics of one or two elements amplify rounding without bound.
            let tolerance = if dim < 4 {
                2e-2
            } else if offset > 0.0 {
                2e-5
            } else {
                2e-6
            };
            let compute = |pool: &ThreadPool, isa: Isa| {
                let mut out = vec![f32::NAN; rows * dim];
                let (mut mean, mut rstd) = (vec![f32::NAN; rows], vec![f32::NAN; rows]);
                let (m, r) = (Some(&mut mean[..]), Some(&mut rstd[..]));
                let args = LayerNormArgs::new([rows, dim], &x, eps, &mut out);
                layer_norm(pool, isa, LayerNormArgs { gamma, beta, mean: m, rstd: r, ..args });
                let mut again = vec![f32::NAN; rows * dim];
                let args = LayerNormArgs::new([rows, dim], &x, eps, &mut again);
                layer_norm(pool, isa, LayerNormArgs { gamma, beta, ..args });
                assert_eq!(out, again);
                [out, mean, rstd].concat()
            };
            on_all(compute, |isa, got| {
                if dim == 1 {
                    return;
                }
                close(&format!("{isa} {rows}x{dim}"), got, &expected(&x), tolerance);
            });

            let total: Vec<f32> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
            let compute = |pool: &ThreadPool, isa: Isa| {
                let mut sum = vec![f32::NAN; rows * dim];
                let mut out = vec![f32::NAN; rows * dim];
                let mut plain = vec![f32::NAN; rows * dim];
                let args = LayerNormArgs::new([rows, dim], &x, eps, &mut out);
                layer_norm(pool, isa, LayerNormArgs { residual: Some((&y, &mut sum)), gamma, beta, ..args });
                assert_eq!(sum, total);
                let args = LayerNormArgs::new([rows, dim], &total, eps, &mut plain);
                layer_norm(pool, isa, LayerNormArgs { gamma, beta, ..args });
                assert_eq!(out, plain, "the fused norm differs from the plain one");
                out
            };
            on_all(compute, |_, _| ());
        }
    }
}

#[test]
fn the_gradient_of_layer_norm_is_right() {
    let mut random = Random(22);
    for (rows, dim) in SHAPES {
        let x = random.values(rows * dim);
        let dy = random.values(rows * dim);
        let weights = random.values(dim);
        let residual_stream = random.values(rows * dim);
        for (gamma, residual) in
            [(None, None), (Some(&weights[..]), Some(&residual_stream[..])), (Some(&weights[..]), None)]
        {
            let (mut mean, mut rstd) = (vec![], vec![]);
            let (mut dx, mut dgamma, mut dbeta) = (vec![], vec![0.0; dim], vec![0.0; dim]);
            for (row, dy) in wide(&x).chunks(dim).zip(wide(&dy).chunks(dim)) {
                let (m, r) = statistics(row, 1e-3);
                mean.push(m as f32);
                rstd.push(r as f32);
                let (m, r) = (f64::from(m as f32), f64::from(r as f32));
                let normalised: Vec<f64> = row.iter().map(|x| (x - m) * r).collect();
                let g: Vec<f64> = (0..dim).map(|i| dy[i] * gamma.map_or(1.0, |g| f64::from(g[i]))).collect();
                let sum = g.iter().sum::<f64>() / dim as f64;
                let product = g.iter().zip(&normalised).map(|(a, b)| a * b).sum::<f64>() / dim as f64;
                for i in 0..dim {
                    let residual = residual.map_or(0.0, |x| f64::from(x[dx.len()]));
                    dx.push(r * (g[i] - sum - normalised[i] * product) + residual);
                    dgamma[i] += dy[i] * normalised[i];
                    dbeta[i] += dy[i];
                }
            }
            let compute = |pool: &ThreadPool, isa: Isa| {
                let mut dx = vec![f32::NAN; rows * dim];
                let (mut dgamma, mut dbeta) = (vec![f32::NAN; dim], vec![f32::NAN; dim]);
                let mut workspace = vec![f32::NAN; layer_norm_grad_workspace(rows, dim)];
                let args = LayerNormGradArgs {
                    rows,
                    dim,
                    dy: &dy,
                    x: &x,
                    gamma,
                    mean: &mean,
                    rstd: &rstd,
                    centred: true,
                    residual_grad: residual,
                    dx: &mut dx,
                    dgamma: Some(&mut dgamma),
                    dbeta: Some(&mut dbeta),
                };
                layer_norm_grad(pool, isa, args, &mut workspace);
                [dx, dgamma, dbeta].concat()
            };
            let want = [&dx[..], &dgamma, &dbeta].concat();
            let largest = rstd.iter().fold(1f32, |a, &b| a.max(b));
            let tolerance = 1e-6 * f64::from(largest) * (1.0 + (rows as f64).sqrt());
            on_all(compute, |isa, got| close(&format!("{isa} {rows}x{dim}"), got, &want, tolerance));
        }
    }
}

#[test]
fn softmax_and_its_gradient_are_right() {
    let mut random = Random(23);
    for (rows, dim) in SHAPES {
        let mut x: Vec<f32> = random.values(rows * dim).iter().map(|x| x * 10.0).collect();
        for (i, x) in x.iter_mut().enumerate() {
            if i % dim > 0 && random.size(0, 9) == 0 {
                *x = f32::NEG_INFINITY;
            }
        }
        let dy = random.values(rows * dim);
        let (mut y, mut dx) = (vec![], vec![]);
        for (row, dy) in wide(&x).chunks(dim).zip(wide(&dy).chunks(dim)) {
            let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = row.iter().map(|x| (x - largest).exp()).sum();
            let p: Vec<f64> = row.iter().map(|x| (x - largest).exp() / sum).collect();
            let dot: f64 = p.iter().zip(dy).map(|(a, b)| a * b).sum();
            dx.extend(p.iter().zip(dy).map(|(p, dy)| p * (dy - dot)));
            y.extend(p);
        }
        let compute = |pool: &ThreadPool, isa: Isa| {
            let mut y = vec![f32::NAN; rows * dim];
            softmax(pool, isa, &x, rows, dim, &mut y);
            for (y, x) in y.iter().zip(&x) {
                assert!(*x > f32::NEG_INFINITY || *y == 0.0, "{isa}: a masked weight is {y}");
            }
            let mut dx = vec![f32::NAN; rows * dim];
            softmax_grad(pool, isa, &y, &dy, rows, dim, &mut dx);
            [y, dx].concat()
        };
        // The gradient is linear in dy, and so is its rounding error.
        let largest = dy.iter().fold(1.0f32, |m, dy| m.max(dy.abs()));
        on_all(compute, |isa, got| {
            let (found_y, found_dx) = got.split_at(rows * dim);
            close(&format!("{isa} {rows}x{dim}"), found_y, &y, 3e-7);
            close(&format!("{isa} {rows}x{dim} gradient"), found_dx, &dx, 3e-7 * f64::from(largest));
        });
    }
    for isa in Isa::available() {
        let mut out = [0.0; 4];
        let x = [1.0, f32::NAN, 1.0, 1.0];
        softmax(&ThreadPool::new(1), isa, &x, 2, 2, &mut out);
        assert!(out[0].is_nan() && out[1].is_nan(), "{isa} {out:?}");
        assert_eq!(out[2..], [0.5, 0.5], "{isa}");
    }
}

#[test]
fn column_sums_are_right() {
    let mut random = Random(24);
    for (rows, cols) in SHAPES {
        let x = random.values(rows * cols);
        let mut want = vec![0.0; cols];
        for row in wide(&x).chunks(cols) {
            for (sum, x) in want.iter_mut().zip(row) {
                *sum += x;
            }
        }
        let compute = |pool: &ThreadPool, isa: Isa| {
            let mut out = vec![f32::NAN; cols];
            let mut workspace = vec![f32::NAN; column_sum_workspace(rows, cols)];
            column_sum(pool, isa, rows, cols, &x, &mut out, &mut workspace);
            out
        };
        let tolerance = 1e-6 * (1.0 + (rows as f64).sqrt());
        on_all(compute, |isa, got| close(&format!("{isa} {rows}x{cols}"), got, &want, tolerance));
    }
}

const ACTIVATIONS: [Activation; 7] = [
    Activation::Gelu,
    Activation::GeluTanh,
    Activation::Relu,
    Activation::Silu,
    Activation::Tanh,
    Activation::Sigmoid,
    Activation::QuickGelu,
];

#[test]
fn activations_are_accurate_everywhere() {
    // Fine steps near zero, coarse ones far out, and powers of two down to 2^-39.
    let mut x: Vec<f32> = (-60_000..60_000).map(|i| i as f32 * 2e-4).collect();
    x.extend((-1000..1000).map(|i| i as f32 * 0.1));
    x.extend((0..40).flat_map(|i| [0.5f32.powi(i), -(0.5f32.powi(i))]));
    let dy = vec![1.0; x.len()];
    for f in ACTIVATIONS {
        let (want, derivatives): (Vec<f64>, Vec<f64>) =
            x.iter().map(|&x| (f.apply(f64::from(x)), f.derivative(f64::from(x)))).unzip();
        let compute = |pool: &ThreadPool, isa: Isa| {
            let mut y = vec![f32::NAN; x.len()];
            apply(pool, isa, f, &x, &mut y);
            y
        };
        // In addition, `close` allows a relative error of a few roundings.
        on_all(compute, |isa, got| close(&format!("{isa} {f:?}"), got, &want, 5e-8));
        let compute = |pool: &ThreadPool, isa: Isa| {
            let mut dx = vec![f32::NAN; x.len()];
            apply_grad(pool, isa, f, &x, &dy, &mut dx);
            dx
        };
        on_all(compute, |isa, got| close(&format!("{isa} {f:?}'"), got, &derivatives, 5e-7));
    }
}

#[test]
fn activations_propagate_nan_and_have_limits_at_infinity() {
    let x = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e30, -1e30];
    for isa in Isa::available() {
        let pool = ThreadPool::new(1);
        for f in ACTIVATIONS {
            let (mut y, mut dx) = ([0.0; 5], [0.0; 5]);
            apply(&pool, isa, f, &x, &mut y);
            apply_grad(&pool, isa, f, &x, &[1.0; 5], &mut dx);
            assert!(y[0].is_nan(), "{isa} {f:?}");
            assert!(dx[0].is_nan(), "{isa} {f:?}");
            assert!(dx[1..].iter().all(|x| x.is_finite()), "{isa} {f:?} {dx:?}");
            let bounded = matches!(f, Activation::Tanh | Activation::Sigmoid);
            assert_eq!(y[1], if bounded { 1.0 } else { f32::INFINITY }, "{isa} {f:?}");
            assert_eq!(y[3], if bounded { 1.0 } else { 1e30 }, "{isa} {f:?}");
            let low = if f == Activation::Tanh { -1.0 } else { 0.0 };
            assert_eq!(y[4], low, "{isa} {f:?}");
        }
    }
}

#[test]
fn every_length_is_handled() {
    let mut random = Random(25);
    for n in 0..70 {
        let x = random.values(n);
        let want: Vec<f64> = x.iter().map(|&x| f64::from(x.max(0.0))).collect();
        let compute = |pool: &ThreadPool, isa: Isa| {
            let mut y = vec![f32::NAN; n];
            apply(pool, isa, Activation::Relu, &x, &mut y);
            y
        };
        on_all(compute, |isa, got| close(&format!("{isa} {n}"), got, &want, 0.0));
    }
}

#[test]
#[should_panic(expected = "gamma has the wrong length")]
fn a_short_gamma_is_refused() {
    let pool = ThreadPool::new(1);
    let x = [0.0; 6];
    let mut out = [0.0; 6];
    let args = LayerNormArgs::new([2, 3], &x, 1e-6, &mut out);
    layer_norm(&pool, Isa::Portable, LayerNormArgs { gamma: Some(&[1.0; 2]), ..args });
}
