//! Matrix products against loops in f64.

mod kernels_support;

use kernels_support::{ACTIVATIONS, GAP, Random, activate, close, on_all};
use vit_cpu::activation::Activation;
use vit_cpu::gemm::{
    ALayout, BLayout, Epilogue, Gemm, Matmul, gemm, gemm_workspace, matmul, matmul_workspace, pack_b, pack_b_parallel,
    packed_len,
};
use vit_cpu::isa::Isa;
use vit_cpu::thread_pool::ThreadPool;

struct Case {
    m: usize,
    n: usize,
    k: usize,
    a_layout: ALayout,
    b_layout: BLayout,
    pads: [usize; 4],
    accumulate: bool,
    bias: bool,
    activation: Option<Activation>,
    scale: bool,
    factor: bool,
    residual: bool,
    derivative: bool,
}

/// A bound of the rounding error of a sum of `k` terms: partial sums grow as sqrt(k), as does the sum of the roundings.
fn rounding(k: usize) -> f64 {
    1e-6 + 1e-6 * (k as f64).sqrt() + 5e-8 * k as f64
}

/// The largest factor, at least 1.
fn largest(factors: &[f32]) -> f32 {
    factors.iter().fold(1f32, |a, x| a.max(x.abs()))
}

fn check(case: &Case, random: &mut Random) {
    let &Case { m, n, k, .. } = case;
    let (a_rows, a_cols) = match case.a_layout {
        ALayout::RowMajor => (m, k),
        ALayout::Transposed => (k, m),
    };
    let (b_rows, b_cols) = match case.b_layout {
        BLayout::RowsAreN => (n, k),
        BLayout::RowsAreK => (k, n),
    };
    let (lda, ldb, ldc, ldr) = (a_cols + case.pads[0], b_cols + case.pads[1], n + case.pads[2], n + case.pads[3]);
    let a = random.values(a_rows * lda);
    let b = random.values(b_rows * ldb);
    let mut c = random.values(m * ldc);
    for row in c.chunks_mut(ldc) {
        row[n..].fill(GAP);
    }
    let bias = random.values(n);
    let scale = random.values(n);
    let factor = random.values(m * ldr);
    let residual = random.values(m * ldr);
    let mut want = vec![0.0; m * ldc];
    let mut derivatives = vec![f64::from(GAP); if case.derivative { m * ldc } else { 0 }];
    for i in 0..m {
        for j in 0..ldc {
            want[i * ldc + j] = f64::from(c[i * ldc + j]);
            if j >= n {
                continue;
            }
            let mut sum = 0.0;
            for t in 0..k {
                let x = match case.a_layout {
                    ALayout::RowMajor => a[i * lda + t],
                    ALayout::Transposed => a[t * lda + i],
                };
                let y = match case.b_layout {
                    BLayout::RowsAreN => b[j * ldb + t],
                    BLayout::RowsAreK => b[t * ldb + j],
                };
                sum += f64::from(x) * f64::from(y);
            }
            if case.accumulate {
                sum += f64::from(c[i * ldc + j]);
            }
            if case.bias {
                sum += f64::from(bias[j]);
            }
            if case.derivative {
                derivatives[i * ldc + j] = case.activation.map_or(1.0, |f| f.derivative(sum));
            }
            sum = activate(case.activation, sum);
            if case.scale {
                sum *= f64::from(scale[j]);
            }
            if case.factor {
                sum *= f64::from(factor[i * ldr + j]);
            }
            if case.residual {
                sum += f64::from(residual[i * ldr + j]);
            }
            want[i * ldc + j] = sum;
        }
    }
    want.extend(derivatives);
    let epilogue = Epilogue {
        bias: case.bias.then_some(&bias[..]),
        activation: case.activation,
        scale: case.scale.then_some(&scale[..]),
        factor: case.factor.then_some((&factor[..], ldr)),
        residual: case.residual.then_some((&residual[..], ldr)),
    };
    let what = format!(
        "{m}x{n}x{k} {:?} {:?} {:?} accumulate {}",
        case.a_layout, case.b_layout, case.activation, case.accumulate
    );
    let grown = largest(&scale) * if case.factor { largest(&factor) } else { 1.0 };
    let tolerance = rounding(k) * f64::from(grown);
    let compute = |pool: &ThreadPool, isa: Isa| {
        let mut packed = vec![f32::NAN; packed_len(isa, k, n)];
        pack_b(isa, &b, case.b_layout, ldb, k, n, &mut packed);
        let mut parallel = vec![f32::NAN; packed.len()];
        pack_b_parallel(pool, isa, &b, case.b_layout, ldb, k, n, &mut parallel);
        assert_eq!(packed, parallel, "{what}");
        let mut out = c.clone();
        let mut derivative = vec![GAP; if case.derivative { m * ldc } else { 0 }];
        let mut workspace = vec![f32::NAN; gemm_workspace(isa, pool.threads(), m, n, k)];
        let product = Gemm {
            m,
            n,
            k,
            a: &a,
            lda,
            a_layout: case.a_layout,
            b: &packed,
            c: &mut out,
            ldc,
            accumulate: case.accumulate,
            epilogue,
            d_activation: case.derivative.then_some(&mut derivative[..]),
        };
        gemm(pool, isa, product, &mut workspace);
        out.extend(derivative);
        out
    };
    on_all(compute, |isa, got| {
        close(&format!("{isa} {what}"), got, &want, tolerance);
    });
}

/// A dense product without an epilogue.
fn plain(m: usize, n: usize, k: usize) -> Case {
    Case {
        m,
        n,
        k,
        a_layout: ALayout::RowMajor,
        b_layout: BLayout::RowsAreN,
        pads: [0; 4],
        accumulate: false,
        bias: false,
        activation: None,
        scale: false,
        factor: false,
        residual: false,
        derivative: false,
    }
}

#[test]
fn every_small_shape_is_right() {
    let mut random = Random(1);
    for m in 1..=9 {
        for n in [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 47, 48, 49, 64, 97] {
            for k in [1, 2, 9] {
                check(&plain(m, n, k), &mut random);
            }
        }
    }
}

#[test]
fn random_shapes_layouts_and_epilogues_are_right() {
    let mut random = Random(2);
    for _ in 0..150 {
        let case = Case {
            m: random.size(1, 60),
            n: random.size(1, 130),
            k: random.size(1, 70),
            a_layout: random.pick(&[ALayout::RowMajor, ALayout::Transposed]),
            b_layout: random.pick(&[BLayout::RowsAreN, BLayout::RowsAreK]),
            pads: [0; 4].map(|_| random.size(0, 1) * random.size(0, 19)),
            accumulate: random.coin(),
            bias: random.coin(),
            activation: random.pick(&ACTIVATIONS),
            scale: random.coin(),
            factor: random.coin(),
            residual: random.coin(),
            derivative: random.coin(),
        };
        check(&case, &mut random);
    }
}

#[test]
fn sums_longer_than_a_cache_block_are_right() {
    let mut random = Random(3);
    for (m, n, k) in [(5, 50, 1037), (197, 40, 520), (13, 17, 3072), (1, 1000, 768)] {
        let case =
            Case { bias: true, activation: Some(Activation::Gelu), residual: true, scale: true, ..plain(m, n, k) };
        check(&case, &mut random);
        let case =
            Case { bias: true, activation: Some(Activation::Gelu), derivative: true, factor: true, ..plain(m, n, k) };
        check(&case, &mut random);
        let case =
            Case { a_layout: ALayout::Transposed, b_layout: BLayout::RowsAreK, accumulate: true, ..plain(m, n, k) };
        check(&case, &mut random);
    }
}

#[test]
fn many_rows_are_right() {
    let mut random = Random(5);
    // Several row blocks for each thread, several column blocks, several kc blocks.
    for (m, n, k) in [(1601, 50, 33), (530, 300, 800), (513, 1, 1600)] {
        let case = Case { bias: true, activation: Some(Activation::Gelu), residual: true, ..plain(m, n, k) };
        check(&case, &mut random);
        let case = Case { b_layout: BLayout::RowsAreK, accumulate: true, derivative: true, ..plain(m, n, k) };
        check(&case, &mut random);
    }
}

#[test]
fn activations_alone_are_right_in_whole_and_partial_tiles() {
    let mut random = Random(11);
    // Fewer terms than a tile has vectors, as many, several kc blocks; partial tiles in both directions.
    for (m, n, k) in [(8, 48, 1), (19, 100, 5), (33, 96, 24), (200, 150, 50), (26, 96, 1037)] {
        for activation in ACTIVATIONS {
            check(&Case { bias: true, activation, ..plain(m, n, k) }, &mut random);
            check(&Case { accumulate: true, activation, ..plain(m, n, k) }, &mut random);
        }
    }
}

#[test]
fn transposed_rows_a_power_of_two_apart_are_right() {
    let mut random = Random(7);
    for (m, n, k) in [(30, 150, 40), (101, 97, 530)] {
        let case = Case { a_layout: ALayout::Transposed, pads: [1024 - m, 0, 3, 0], bias: true, ..plain(m, n, k) };
        check(&case, &mut random);
    }
}

#[test]
fn a_row_does_not_depend_on_the_rows_around_it() {
    let mut random = Random(4);
    let (m, n, k) = (21, 70, 600);
    let a = random.values(m * k);
    let b = random.values(n * k);
    let product = |pool: &ThreadPool, isa: Isa, a: &[f32], m: usize| {
        let mut packed = vec![0.0; packed_len(isa, k, n)];
        pack_b(isa, &b, BLayout::RowsAreN, k, k, n, &mut packed);
        let mut c = vec![0.0; m * n];
        let mut workspace = vec![0.0; gemm_workspace(isa, pool.threads(), m, n, k)];
        gemm(pool, isa, Gemm::dense([m, n, k], a, &packed, &mut c), &mut workspace);
        c
    };
    let pool = ThreadPool::new(2);
    for isa in Isa::available() {
        let all = product(&pool, isa, &a, m);
        for i in 0..m {
            let row = product(&pool, isa, &a[i * k..][..k], 1);
            assert_eq!(row, &all[i * n..][..n], "{isa} row {i}");
        }
    }
}

#[test]
fn nan_reaches_exactly_its_row() {
    let mut random = Random(5);
    let (m, n, k) = (9, 20, 30);
    let mut a = random.values(m * k);
    a[4 * k + 7] = f32::NAN;
    let b = random.values(n * k);
    for isa in Isa::available() {
        let pool = ThreadPool::new(1);
        let mut packed = vec![0.0; packed_len(isa, k, n)];
        pack_b(isa, &b, BLayout::RowsAreN, k, k, n, &mut packed);
        for activation in ACTIVATIONS {
            let mut c = vec![0.0; m * n];
            let mut workspace = vec![0.0; gemm_workspace(isa, 1, m, n, k)];
            let epilogue = Epilogue { activation, ..Epilogue::default() };
            gemm(&pool, isa, Gemm { epilogue, ..Gemm::dense([m, n, k], &a, &packed, &mut c) }, &mut workspace);
            for (i, x) in c.iter().enumerate() {
                assert_eq!(x.is_nan(), i / n == 4, "{isa} {activation:?} element {i}: {x}");
            }
        }
    }
}

#[test]
fn batches_of_plain_matrices_are_right() {
    let mut random = Random(6);
    for round in 0..40 {
        let (batch, m, n, mut k) = (random.size(1, 9), random.size(1, 40), random.size(1, 130), random.size(1, 50));
        // Sometimes several kc blocks.
        if round % 8 == 0 {
            k += 1600;
        }
        let a_layout = random.pick(&[ALayout::RowMajor, ALayout::Transposed]);
        let b_layout = random.pick(&[BLayout::RowsAreN, BLayout::RowsAreK]);
        let lda = if a_layout == ALayout::RowMajor { k } else { m };
        let ldb = if b_layout == BLayout::RowsAreN { k } else { n };
        let shared_b = round % 3 == 0;
        let a = random.values(batch * m * k);
        let b = random.values(if shared_b { 1 } else { batch } * n * k);
        let b_batch_stride = if shared_b { 0 } else { n * k };
        let factor = random.values(batch * m * n);
        let residual = random.values(batch * m * n);
        let bias = random.values(n);
        let mut want = vec![0.0; batch * m * n];
        for s in 0..batch {
            for i in 0..m {
                for j in 0..n {
                    let mut sum = f64::from(bias[j]);
                    for t in 0..k {
                        let x = match a_layout {
                            ALayout::RowMajor => a[s * m * k + i * k + t],
                            ALayout::Transposed => a[s * m * k + t * m + i],
                        };
                        let y = match b_layout {
                            BLayout::RowsAreN => b[s * b_batch_stride + j * k + t],
                            BLayout::RowsAreK => b[s * b_batch_stride + t * n + j],
                        };
                        sum += f64::from(x) * f64::from(y);
                    }
                    let i = s * m * n + i * n + j;
                    want[i] = sum * f64::from(factor[i]) + f64::from(residual[i]);
                }
            }
        }
        let compute = |pool: &ThreadPool, isa: Isa| {
            let mut c = vec![GAP; batch * m * n];
            // Without an activation the derivative is 1.
            let mut derivative = vec![GAP; batch * m * n];
            let threads = pool.threads();
            let mut workspace = vec![f32::NAN; matmul_workspace(isa, threads, batch, m, n, k)];
            let products = Matmul {
                batch,
                a_batch_stride: m * k,
                b_batch_stride,
                c_batch_stride: m * n,
                epilogue: Epilogue {
                    bias: Some(&bias),
                    factor: Some((&factor, n)),
                    residual: Some((&residual, n)),
                    ..Epilogue::default()
                },
                d_activation: (round % 2 == 1).then_some(&mut derivative[..]),
                ..Matmul::single([m, n, k], (&a, lda, a_layout), (&b, ldb, b_layout), (&mut c, n))
            };
            matmul(pool, isa, products, &mut workspace);
            let expected = if round % 2 == 1 { 1.0 } else { GAP };
            assert!(derivative.iter().all(|&derivative| derivative == expected), "{isa} {batch} of {m}x{n}x{k}");
            c
        };
        on_all(compute, |isa, got| {
            let what = format!("{isa} {batch} of {m}x{n}x{k} {a_layout:?} {b_layout:?}");
            close(&what, got, &want, rounding(k) * f64::from(largest(&factor)));
        });
    }
}

#[test]
#[should_panic(expected = "C: 5 elements for 2 x 3")]
fn a_short_result_is_refused() {
    let pool = ThreadPool::new(1);
    let isa = Isa::Portable;
    let packed = vec![0.0; packed_len(isa, 1, 3)];
    let mut workspace = vec![0.0; gemm_workspace(isa, 1, 2, 3, 1)];
    gemm(&pool, isa, Gemm::dense([2, 3, 1], &[0.0; 2], &packed, &mut [0.0; 5]), &mut workspace);
}
