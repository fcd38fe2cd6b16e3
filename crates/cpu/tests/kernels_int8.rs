//! Products of quantised matrices against their definition: bytes as specified, sums in `i64`, the rest in `f64`.

mod kernels_support;

use kernels_support::{ACTIVATIONS, GAP, Random, activate, on_all_threads};
use vit_cpu::activation::Activation;
use vit_cpu::gemm::Epilogue;
use vit_cpu::int8::{DotPath, Gemm8, gemm, pack, pack_parallel, packed_len, workspace};
use vit_cpu::isa::Isa;
use vit_cpu::thread_pool::ThreadPool;
use vit_graph::quantise::{QuantisedRow, QuantisedWeights, quantise_row, quantise_weights};

/// A second implementation of `quantise_row`: `f32` arithmetic, halves rounded to even.
fn define_row(x: &[f32]) -> QuantisedRow {
    if x.iter().any(|x| !x.is_finite()) {
        return QuantisedRow { scale: f32::NAN, zero: 0, values: vec![0; x.len()] };
    }
    let (mut low, mut high) = (0f32, 0f32);
    for &x in x {
        low = if x < low { x } else { low };
        high = if x > high { x } else { high };
    }
    let scale = high / 255.0 - low / 255.0;
    if scale < f32::MIN_POSITIVE {
        return QuantisedRow { scale: 0.0, zero: 0, values: vec![0; x.len()] };
    }
    let inverse = 1.0 / scale;
    let zero = -half_even(low * inverse);
    let values = x.iter().map(|&x| (half_even(x * inverse) + zero).clamp(0, 255) as u8).collect();
    QuantisedRow { scale, zero: u8::try_from(zero).unwrap(), values }
}

fn define_weights(w: &[f32]) -> QuantisedWeights {
    if w.iter().any(|w| !w.is_finite()) {
        return QuantisedWeights { scale: f32::NAN, values: vec![0; w.len()] };
    }
    let scale = w.iter().fold(0f32, |a, w| a.max(w.abs())) / 127.0;
    if scale < f32::MIN_POSITIVE {
        return QuantisedWeights { scale: 0.0, values: vec![0; w.len()] };
    }
    let inverse = 1.0 / scale;
    QuantisedWeights { scale, values: w.iter().map(|&w| i8::try_from(half_even(w * inverse)).unwrap()).collect() }
}

fn half_even(x: f32) -> i64 {
    let x = f64::from(x);
    let below = x.floor();
    let up = x - below > 0.5 || (x - below == 0.5 && below as i64 % 2 != 0);
    below as i64 + i64::from(up)
}

fn same_row(a: &QuantisedRow, b: &QuantisedRow) -> bool {
    a.scale.to_bits() == b.scale.to_bits() && a.zero == b.zero && a.values == b.values
}

struct Case {
    m: usize,
    n: usize,
    k: usize,
    pads: [usize; 3],
    bias: bool,
    activation: Option<Activation>,
    scale: bool,
    residual: bool,
}

fn plain(m: usize, n: usize, k: usize) -> Case {
    Case { m, n, k, pads: [0; 3], bias: false, activation: None, scale: false, residual: false }
}

fn check(case: &Case, random: &mut Random) {
    let a = random.values(case.m * (case.k + case.pads[0]));
    let w = random.values(case.n * case.k);
    check_with(case, &a, &w, random);
}

/// Runs the case on every path and with 1, 2 and 3 threads.
fn check_with(case: &Case, a: &[f32], w: &[f32], random: &mut Random) {
    let &Case { m, n, k, activation, .. } = case;
    let (lda, ldc, ldr) = (k + case.pads[0], n + case.pads[1], n + case.pads[2]);
    let bias = random.values(n);
    let scale = random.values(n);
    let residual = random.values(m * ldr);
    let epilogue = Epilogue {
        bias: case.bias.then_some(&bias[..]),
        activation,
        scale: case.scale.then_some(&scale[..]),
        factor: None,
        residual: case.residual.then_some((&residual[..], ldr)),
    };
    let what = format!("{m}x{n}x{k} {activation:?}");

    let rows: Vec<_> = (0..m).map(|i| define_row(&a[i * lda..][..k])).collect();
    let columns: Vec<_> = (0..n).map(|j| define_weights(&w[j * k..][..k])).collect();
    for (i, row) in rows.iter().enumerate() {
        assert!(same_row(row, &quantise_row(&a[i * lda..][..k])), "{what}: row {i}");
    }
    let mut want = vec![f64::from(GAP); m * ldc];
    let mut allowed = vec![0.0; m * ldc];
    for (i, row) in rows.iter().enumerate() {
        for (j, column) in columns.iter().enumerate() {
            let terms = row.values.iter().zip(&column.values);
            let sum: i64 = terms.map(|(&q, &p)| (i64::from(q) - i64::from(row.zero)) * i64::from(p)).sum();
            let product = sum as f64 * f64::from(column.scale) * f64::from(row.scale);
            let bias = if case.bias { f64::from(bias[j]) } else { 0.0 };
            let scale = if case.scale { f64::from(scale[j]) } else { 1.0 };
            let residual = if case.residual { f64::from(residual[i * ldr + j]) } else { 0.0 };
            want[i * ldc + j] = residual + scale * activate(activation, product + bias);
            // No activation is steeper than 1.2.
            let size = 1.2 * scale.abs() * (product.abs() + bias.abs()) + residual.abs();
            let bare = activation.is_none() && !case.bias && !case.residual;
            allowed[i * ldc + j] = if bare { 3e-7 } else { 1e-6 } * size + 1e-44;
            if activation.is_some() {
                allowed[i * ldc + j] += 1e-6 * scale.abs();
            }
        }
    }

    let compute = |pool: &ThreadPool, path: DotPath| {
        let mut packed = vec![f32::NAN; packed_len(path, k, n)];
        pack(path, w, k, n, &mut packed);
        let mut parallel = vec![f32::NAN; packed.len()];
        pack_parallel(pool, path, w, k, n, &mut parallel);
        assert_eq!(bits(&packed), bits(&parallel), "{what}");
        let mut c = vec![GAP; m * ldc];
        let mut scratch = vec![f32::NAN; workspace(path, m, k)];
        gemm(pool, path, Gemm8 { m, n, k, a, lda, b_packed: &packed, c: &mut c, ldc, epilogue }, &mut scratch);
        c
    };
    let portable = compute(&ThreadPool::new(1), DotPath::Portable);
    for path in DotPath::available() {
        let got = on_all_threads(format!("{path} {what}"), |pool| compute(pool, path));
        // Without a transcendental function all paths round alike.
        if activation.is_none() {
            assert!(got.iter().zip(&portable).all(|(&a, &b)| same(a, b)), "{path} {what}");
        }
        for (i, &got) in got.iter().enumerate() {
            let (want, allowed) = (want[i], allowed[i]);
            let off = (f64::from(got) - want).abs();
            assert!(
                if (want as f32).is_finite() { off <= allowed } else { same(got, want as f32) },
                "{path} {what}: element {i} is {got}, expected {want}, off by {off:e} (allowed {allowed:e})"
            );
        }
    }
}

fn same(a: f32, b: f32) -> bool {
    a == b || a.is_nan() && b.is_nan()
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn every_small_shape_is_right() {
    let mut random = Random(1);
    for m in [1, 2, 3, 4, 5, 6, 7, 8, 9, 17] {
        for n in [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 47, 48, 49, 97] {
            for k in [1, 2, 3, 4, 5, 7, 9] {
                check(&plain(m, n, k), &mut random);
            }
        }
    }
}

#[test]
fn random_shapes_and_epilogues_are_right() {
    let mut random = Random(2);
    for _ in 0..200 {
        let case = Case {
            m: random.size(1, 60),
            n: random.size(1, 130),
            k: random.size(1, 150),
            pads: [0; 3].map(|_| random.size(0, 1) * random.size(0, 19)),
            bias: random.coin(),
            activation: random.pick(&ACTIVATIONS),
            scale: random.coin(),
            residual: random.coin(),
        };
        check(&case, &mut random);
    }
}

#[test]
fn long_sums_and_many_blocks_are_right() {
    let mut random = Random(3);
    for (m, n, k) in
        [(5, 50, 1037), (197, 40, 520), (13, 17, 3072), (1, 1000, 768), (203, 150, 66), (30, 5, 9001), (70, 150, 768)]
    {
        let case =
            Case { bias: true, activation: Some(Activation::Gelu), residual: true, scale: true, ..plain(m, n, k) };
        check(&case, &mut random);
    }
}

#[test]
fn products_as_large_as_they_can_be_are_exact() {
    // The full range of both operands, where saturating instructions would saturate.
    let mut random = Random(4);
    let (m, n, k) = (9, 50, 515);
    for low in [-1.0, -0.5, 0.0] {
        let a: Vec<f32> = (0..m * k).map(|_| if random.coin() { low } else { low + 1.0 }).collect();
        for sign in [1.0, -1.0] {
            let w: Vec<f32> = (0..n * k).map(|i| if i / k % 2 == 0 { sign } else { random.value() }).collect();
            check_with(&plain(m, n, k), &a, &w, &mut random);
        }
    }
    let k = vit_cpu::int8::MAX_TERMS;
    check_with(&plain(1, 1, k), &vec![1.0; k], &vec![-1.0; k], &mut random);
    check_with(&plain(1, 1, k), &vec![-1.0; k], &vec![-1.0; k], &mut random);
}

#[test]
fn awkward_rows_and_channels_are_right() {
    let mut random = Random(5);
    let (m, n, k) = (12, 20, 77);
    let mut a = random.values(m * k);
    let mut w = random.values(n * k);
    a[..k].fill(0.0);
    a[k..2 * k].fill(-0.0);
    a[2 * k + 5] = 1e6;
    a[3 * k + 5] = -1e30;
    a[4 * k..5 * k].fill(3.25);
    a[5 * k..6 * k].fill(-3.25);
    // The range of this row exceeds the largest finite f32.
    a[6 * k] = f32::MAX;
    a[6 * k + 1] = -f32::MAX;
    for x in &mut a[7 * k..8 * k] {
        *x *= 1e-30;
    }
    a[8 * k..9 * k].fill(1e-40);
    // 0, 0.5, 1, 1.5...: every second value is a tie.
    for (t, x) in a[9 * k..10 * k].iter_mut().enumerate() {
        *x = if t == 0 { 255.0 } else { t as f32 * 0.5 };
    }
    w[..k].fill(0.0);
    w[k + 3] = 1e4;
    w[2 * k..3 * k].fill(1e-42);
    for (t, w) in w[3 * k..4 * k].iter_mut().enumerate() {
        *w = if t == 0 { -127.0 } else { t as f32 * 0.5 };
    }
    for w in &mut w[4 * k..5 * k] {
        *w *= 1e-12;
    }
    check_with(&plain(m, n, k), &a, &w, &mut random);
}

#[test]
fn not_a_number_reaches_exactly_its_row_or_channel() {
    let mut random = Random(6);
    let (m, n, k) = (11, 53, 70);
    for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut a = random.values(m * k);
        let mut w = random.values(n * k);
        for t in [0, 13, 15, 16, 63, 69] {
            a[4 * k + t] = bad;
        }
        a[7 * k + 69] = bad;
        w[50 * k + 1] = bad;
        for activation in ACTIVATIONS {
            check_with(&Case { activation, bias: true, residual: true, ..plain(m, n, k) }, &a, &w, &mut random);
        }
    }
}

#[test]
fn a_row_does_not_depend_on_the_rows_around_it() {
    let mut random = Random(7);
    let (m, n, k) = (21, 70, 300);
    let a = random.values(m * k);
    let w = random.values(n * k);
    let product = |path: DotPath, a: &[f32], m: usize| {
        let mut packed = vec![0.0; packed_len(path, k, n)];
        pack(path, &w, k, n, &mut packed);
        let mut c = vec![0.0; m * n];
        let mut scratch = vec![0.0; workspace(path, m, k)];
        let epilogue = Epilogue { activation: Some(Activation::Gelu), ..Epilogue::default() };
        let one = Gemm8 { m, n, k, a, lda: k, b_packed: &packed, c: &mut c, ldc: n, epilogue };
        gemm(&ThreadPool::new(1), path, one, &mut scratch);
        c
    };
    for path in DotPath::available() {
        let all = product(path, &a, m);
        for i in 0..m {
            assert_eq!(product(path, &a[i * k..][..k], 1), &all[i * n..][..n], "{path} row {i}");
        }
    }
}

#[test]
fn quantised_values_are_near_the_originals() {
    let mut random = Random(8);
    for _ in 0..200 {
        let x = random.values(50);
        let QuantisedRow { scale, zero, values } = quantise_row(&x);
        for (&x, &q) in x.iter().zip(&values) {
            let back = scale * (f32::from(q) - f32::from(zero));
            // The error is at most one step where the top of the range was clamped, and half a step elsewhere.
            let most = if q == 255 { 1.001 } else { 0.501 };
            assert!((x - back).abs() <= most * scale, "{x} became {back}");
        }
        let QuantisedWeights { scale, values } = quantise_weights(&x);
        assert_eq!(values.iter().map(|q| q.abs()).max(), Some(127));
        for (&x, &q) in x.iter().zip(&values) {
            assert!((x - scale * f32::from(q)).abs() <= 0.501 * scale);
        }
    }
}

#[test]
fn nothing_to_compute_is_no_error() {
    let pool = ThreadPool::new(2);
    for path in DotPath::available() {
        for (m, n) in [(0, 5), (5, 0)] {
            let packed = vec![0.0; packed_len(path, 7, n)];
            let mut scratch = vec![0.0; workspace(path, m, 7)];
            let none = Gemm8 {
                m,
                n,
                k: 7,
                a: &vec![0.0; m * 7],
                lda: 7,
                b_packed: &packed,
                c: &mut [],
                ldc: n,
                epilogue: Epilogue::default(),
            };
            gemm(&pool, path, none, &mut scratch);
        }
        // A sum without terms is the epilogue of 0.
        let mut packed = vec![f32::NAN; packed_len(path, 0, 3)];
        pack(path, &[], 0, 3, &mut packed);
        let mut c = [GAP; 6];
        let mut scratch = vec![f32::NAN; workspace(path, 2, 0)];
        let epilogue = Epilogue { bias: Some(&[1.0, 2.0, 3.0]), ..Epilogue::default() };
        let empty = Gemm8 { m: 2, n: 3, k: 0, a: &[], lda: 0, b_packed: &packed, c: &mut c, ldc: 3, epilogue };
        gemm(&pool, path, empty, &mut scratch);
        assert_eq!(c, [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
    }
}

#[test]
fn an_instruction_set_stands_for_its_fastest_path() {
    for isa in Isa::available() {
        let path = DotPath::from(isa);
        assert!(path.is_available());
        assert_eq!(packed_len(isa, 30, 50), packed_len(path, 30, 50));
    }
}

#[test]
#[should_panic(expected = "C: 5 elements for 2 x 3")]
fn a_short_result_is_refused() {
    let path = DotPath::Portable;
    let one = Gemm8 {
        m: 2,
        n: 3,
        k: 1,
        a: &[0.0; 2],
        lda: 1,
        b_packed: &vec![0.0; packed_len(path, 1, 3)],
        c: &mut [0.0; 5],
        ldc: 3,
        epilogue: Epilogue::default(),
    };
    gemm(&ThreadPool::new(1), path, one, &mut vec![0.0; workspace(path, 2, 1)]);
}

#[test]
#[should_panic(expected = "sums of 65537 terms")]
fn sums_that_could_overflow_are_refused() {
    packed_len(DotPath::Portable, 65537, 1);
}
