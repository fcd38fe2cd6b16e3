//! Attention and its gradient against plain loops in f64.

mod kernels_support;

use kernels_support::{Random, close, on_all};
use vit_cpu::attention::{
    AttentionArgs, AttentionGradArgs, AttentionShape, GradOutputs, HeadView, HeadViewMut, WeightDropout, backward,
    backward_workspace, forward, forward_workspace,
};
use vit_cpu::isa::Isa;
use vit_cpu::thread_pool::ThreadPool;

struct Case {
    shape: AttentionShape,
    scale: f32,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    dout: Vec<f32>,
    bias: Option<(Vec<f32>, usize)>,
    dropout: bool,
}

/// A function of the index that drops a quarter of the weights.
fn factor(index: u64) -> f32 {
    if index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40 & 3 == 0 { 0.0 } else { 4.0 / 3.0 }
}

fn factors(first: u64, out: &mut [f32]) {
    for (i, x) in out.iter_mut().enumerate() {
        *x = factor(first + i as u64);
    }
}

#[derive(Default)]
struct Expected {
    out: Vec<f64>,
    lse: Vec<f64>,
    weights: Vec<f64>,
    dq: Vec<f64>,
    dk: Vec<f64>,
    dv: Vec<f64>,
    dbias: Vec<f64>,
}

impl Case {
    fn random(random: &mut Random, shape: AttentionShape, groups: usize, dropout: bool) -> Case {
        let AttentionShape { batch, heads, queries, keys, head_dim } = shape;
        let width = batch * heads * head_dim;
        let bias = (groups > 0).then(|| {
            let mut bias = random.values(groups * heads * queries * keys);
            for (i, x) in bias.iter_mut().enumerate() {
                // The first key of a row is never masked, or the row would be NaN.
                if i % keys > 0 && random.size(0, 4) == 0 {
                    *x = f32::NEG_INFINITY;
                }
            }
            (bias, groups)
        });
        Case {
            shape,
            scale: 1.0 / (head_dim as f32).sqrt(),
            q: random.values(width * queries),
            k: random.values(width * keys),
            v: random.values(width * keys),
            dout: random.values(width * queries),
            bias,
            dropout,
        }
    }

    fn expected(&self) -> Expected {
        let AttentionShape { batch, heads, queries, keys, head_dim } = self.shape;
        let groups = self.bias.as_ref().map_or(1, |b| b.1);
        let at = |b: usize, r: usize, h: usize, d: usize, rows: usize| ((b * rows + r) * heads + h) * head_dim + d;
        let mut e = Expected {
            out: vec![0.0; self.q.len()],
            lse: vec![0.0; batch * heads * queries],
            weights: vec![0.0; batch * heads * queries * keys],
            dq: vec![0.0; self.q.len()],
            dk: vec![0.0; self.k.len()],
            dv: vec![0.0; self.k.len()],
            dbias: vec![0.0; groups * heads * queries * keys],
        };
        let f = f64::from;
        for b in 0..batch {
            for h in 0..heads {
                for i in 0..queries {
                    let row = (b * heads + h) * queries + i;
                    let bias_row = (((b % groups) * heads + h) * queries + i) * keys;
                    let scores: Vec<f64> = (0..keys)
                        .map(|j| {
                            let dot: f64 = (0..head_dim)
                                .map(|d| f(self.q[at(b, i, h, d, queries)]) * f(self.k[at(b, j, h, d, keys)]))
                                .sum();
                            let bias = self.bias.as_ref().map_or(0.0, |x| f(x.0[bias_row + j]));
                            dot * f(self.scale) + bias
                        })
                        .collect();
                    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                    let sum: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
                    e.lse[row] = largest + sum.ln();
                    let kept: Vec<f64> = (0..keys)
                        .map(|j| if self.dropout { f(factor((row * keys + j) as u64)) } else { 1.0 })
                        .collect();
                    let p: Vec<f64> = scores.iter().map(|s| (s - largest).exp() / sum).collect();
                    let mut dp = vec![0.0; keys];
                    for j in 0..keys {
                        e.weights[row * keys + j] = p[j];
                        for d in 0..head_dim {
                            let (qi, kj) = (at(b, i, h, d, queries), at(b, j, h, d, keys));
                            e.out[qi] += p[j] * kept[j] * f(self.v[kj]);
                            e.dv[kj] += p[j] * kept[j] * f(self.dout[qi]);
                            dp[j] += kept[j] * f(self.dout[qi]) * f(self.v[kj]);
                        }
                    }
                    let mean: f64 = (0..keys).map(|j| p[j] * dp[j]).sum();
                    for j in 0..keys {
                        let ds = p[j] * (dp[j] - mean);
                        e.dbias[bias_row + j] += ds;
                        for d in 0..head_dim {
                            let (qi, kj) = (at(b, i, h, d, queries), at(b, j, h, d, keys));
                            e.dq[qi] += f(self.scale) * ds * f(self.k[kj]);
                            e.dk[kj] += f(self.scale) * ds * f(self.q[qi]);
                        }
                    }
                }
            }
        }
        e
    }

    fn check(&self) {
        let AttentionShape { batch, heads, queries, keys, head_dim } = self.shape;
        let e = self.expected();
        let what = format!("{:?} bias {:?} dropout {}", self.shape, self.bias.as_ref().map(|b| b.1), self.dropout);
        let rows = batch * heads * queries;
        let view = |data, rows| HeadView::dense(data, rows, heads, head_dim);
        let bias = self.bias.as_ref().map(|(b, g)| (&b[..], *g));
        let dropout = self.dropout.then_some(WeightDropout { factors: &factors });
        let run = |pool: &ThreadPool, isa: Isa, extras: bool| {
            let mut out = vec![f32::NAN; self.q.len()];
            let mut lse = vec![f32::NAN; rows];
            let mut weights = vec![f32::NAN; rows * keys];
            let mut workspace = vec![f32::NAN; forward_workspace(isa, pool.threads(), &self.shape)];
            let attention = AttentionArgs {
                shape: self.shape,
                scale: self.scale,
                q: view(&self.q, queries),
                k: view(&self.k, keys),
                v: view(&self.v, keys),
                out: HeadViewMut::dense(&mut out, queries, heads, head_dim),
                lse: extras.then_some(&mut lse[..]),
                weights: extras.then_some(&mut weights[..]),
                bias,
                dropout,
            };
            forward(pool, isa, attention, &mut workspace);
            (out, lse, weights)
        };
        on_all(
            |pool, isa| run(pool, isa, false).0,
            |isa, got| {
                close(&format!("{isa} out {what}"), got, &e.out, 2e-6);
                let pool = ThreadPool::new(1);
                let (out, lse, weights) = run(&pool, isa, true);
                assert_eq!(out, got, "{isa} {what}: asking for weights changes the output");
                close(&format!("{isa} lse {what}"), &lse, &e.lse, 2e-6);
                close(&format!("{isa} weights {what}"), &weights, &e.weights, 1e-6);
            },
        );

        let grad = |pool: &ThreadPool, isa: Isa| {
            let (out, lse, _) = run(pool, isa, true);
            let mut dq = vec![f32::NAN; self.q.len()];
            let mut dk = vec![f32::NAN; self.k.len()];
            let mut dv = vec![f32::NAN; self.k.len()];
            let mut dbias = vec![f32::NAN; e.dbias.len()];
            let groups = bias.map_or(1, |b| b.1);
            let mut workspace = vec![f32::NAN; backward_workspace(pool.threads(), &self.shape)];
            for want_dbias in [false, true] {
                let attention = AttentionGradArgs {
                    shape: self.shape,
                    scale: self.scale,
                    q: view(&self.q, queries),
                    k: view(&self.k, keys),
                    v: view(&self.v, keys),
                    out: HeadView::dense(&out, queries, heads, head_dim),
                    dout: view(&self.dout, queries),
                    lse: &lse,
                    bias,
                    dropout,
                    outputs: GradOutputs::Separate {
                        dq: HeadViewMut::dense(&mut dq, queries, heads, head_dim),
                        dk: HeadViewMut::dense(&mut dk, keys, heads, head_dim),
                        dv: HeadViewMut::dense(&mut dv, keys, heads, head_dim),
                    },
                    dbias: want_dbias.then_some((&mut dbias[..], groups)),
                };
                backward(pool, isa, attention, &mut workspace);
            }
            [dq, dk, dv, dbias].concat()
        };
        on_all(grad, |isa, got| {
            let want = [&e.dq[..], &e.dk, &e.dv, &e.dbias].concat();
            let tolerance = 3e-6 * (queries.max(keys) as f64).powf(0.25) * (batch as f64).sqrt();
            close(&format!("{isa} gradients {what}"), got, &want, tolerance);
        });
    }
}

fn shape(batch: usize, heads: usize, queries: usize, keys: usize, head_dim: usize) -> AttentionShape {
    AttentionShape { batch, heads, queries, keys, head_dim }
}

#[test]
fn random_shapes_are_right() {
    let mut random = Random(11);
    for round in 0..40 {
        let shape = shape(
            random.size(1, 4),
            random.size(1, 3),
            random.size(1, 40),
            random.size(1, 40),
            random.pick(&[1, 2, 5, 8, 16, 31, 33]),
        );
        let groups = if round % 2 == 0 { 0 } else { random.size(1, shape.batch) };
        Case::random(&mut random, shape, groups, round % 3 == 0).check();
    }
}

#[test]
fn the_shapes_of_models_are_right() {
    let mut random = Random(12);
    Case::random(&mut random, shape(1, 2, 197, 197, 64), 0, false).check();
    Case::random(&mut random, shape(5, 2, 49, 49, 32), 2, false).check();
    Case::random(&mut random, shape(1, 1, 1, 257, 80), 0, false).check();
    Case::random(&mut random, shape(1, 1, 3, 5, 256), 0, true).check();
}

#[test]
fn long_sequences_are_right() {
    let mut random = Random(13);
    Case::random(&mut random, shape(1, 1, 37, 4099, 8), 0, false).check();
    Case::random(&mut random, shape(1, 1, 1030, 3, 4), 1, false).check();
}

#[test]
fn a_packed_buffer_gives_what_separate_ones_give() {
    let mut random = Random(14);
    let (batch, rows, heads, head_dim) = (3, 21, 2, 12);
    let shape = shape(batch, heads, rows, rows, head_dim);
    let case = Case::random(&mut random, shape, 0, false);
    let width = heads * head_dim;
    let pack = |parts: [&[f32]; 3]| {
        let mut packed = Vec::new();
        for row in 0..batch * rows {
            for part in parts {
                packed.extend_from_slice(&part[row * width..][..width]);
            }
        }
        packed
    };
    let qkv = pack([&case.q, &case.k, &case.v]);
    let e = case.expected();
    let f32s = |x: &[f64]| x.iter().map(|&x| x as f32).collect::<Vec<_>>();
    let want: Vec<f64> = pack([&f32s(&e.dq), &f32s(&e.dk), &f32s(&e.dv)]).into_iter().map(f64::from).collect();
    let compute = |pool: &ThreadPool, isa: Isa| {
        let mut out = vec![f32::NAN; case.q.len()];
        let mut lse = vec![f32::NAN; batch * heads * rows];
        let mut workspace = vec![f32::NAN; forward_workspace(isa, pool.threads(), &shape)];
        let [q, k, v] = HeadView::packed_qkv(&qkv, rows, heads, head_dim);
        let attention = AttentionArgs {
            shape,
            scale: case.scale,
            q,
            k,
            v,
            out: HeadViewMut::dense(&mut out, rows, heads, head_dim),
            lse: Some(&mut lse),
            weights: None,
            bias: None,
            dropout: None,
        };
        forward(pool, isa, attention, &mut workspace);
        let mut dqkv = vec![f32::NAN; qkv.len()];
        let mut workspace = vec![f32::NAN; backward_workspace(pool.threads(), &shape)];
        let grad = AttentionGradArgs {
            shape,
            scale: case.scale,
            q,
            k,
            v,
            out: HeadView::dense(&out, rows, heads, head_dim),
            dout: HeadView::dense(&case.dout, rows, heads, head_dim),
            lse: &lse,
            bias: None,
            dropout: None,
            outputs: GradOutputs::Packed(&mut dqkv),
            dbias: None,
        };
        backward(pool, isa, grad, &mut workspace);
        dqkv
    };
    on_all(compute, |isa, got| close(&format!("{isa}"), got, &want, 5e-6));
}

fn one_head(q: &[f32], bias: Option<&[f32]>, isa: Isa) -> Vec<f32> {
    let shape = shape(1, 1, 2, 3, 1);
    let mut out = vec![0.0; 2];
    let mut workspace = vec![0.0; forward_workspace(isa, 1, &shape)];
    let attention = AttentionArgs {
        shape,
        scale: 1.0,
        q: HeadView::dense(q, 2, 1, 1),
        k: HeadView::dense(&[1.0, 2.0, 3.0], 3, 1, 1),
        v: HeadView::dense(&[1.0, 2.0, 3.0], 3, 1, 1),
        out: HeadViewMut::dense(&mut out, 2, 1, 1),
        lse: None,
        weights: None,
        bias: bias.map(|b| (b, 1)),
        dropout: None,
    };
    forward(&ThreadPool::new(1), isa, attention, &mut workspace);
    out
}

#[test]
fn nan_and_full_masks_stay_in_their_row() {
    let no = f32::NEG_INFINITY;
    for isa in Isa::available() {
        let out = one_head(&[f32::NAN, 1.0], None, isa);
        assert!(out[0].is_nan() && out[1].is_finite(), "{isa} {out:?}");
        let out = one_head(&[1.0, 1.0], Some(&[no, no, no, no, no, 0.0]), isa);
        assert!(out[0].is_nan(), "{isa} {out:?}");
        assert_eq!(out[1], 3.0, "{isa}");
    }
}

#[test]
fn huge_scores_do_not_overflow() {
    for isa in Isa::available() {
        // The exponent of the largest score is exactly 0, however the score is rounded.
        for size in [1e8, 3.3e15, 7.7e22, 1e30, 1.1e30, 1.3e37] {
            let out = one_head(&[size, -size], None, isa);
            assert_eq!(out, [3.0, 1.0], "{isa}, {size}");
        }
    }
}

#[test]
#[should_panic(expected = "rows of out overlap")]
fn overlapping_output_rows_are_refused() {
    let shape = shape(1, 1, 2, 1, 4);
    let isa = Isa::Portable;
    let mut out = [0.0; 16];
    let mut workspace = vec![0.0; forward_workspace(isa, 1, &shape)];
    let attention = AttentionArgs {
        shape,
        scale: 1.0,
        q: HeadView::dense(&[0.0; 8], 2, 1, 4),
        k: HeadView::dense(&[0.0; 4], 1, 1, 4),
        v: HeadView::dense(&[0.0; 4], 1, 1, 4),
        out: HeadViewMut { data: &mut out, batch_stride: 8, row_stride: 3, head_stride: 4 },
        lse: None,
        weights: None,
        bias: None,
        dropout: None,
    };
    forward(&ThreadPool::new(1), isa, attention, &mut workspace);
}
