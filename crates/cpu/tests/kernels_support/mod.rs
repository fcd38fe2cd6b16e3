//! Shared by the kernel tests: random inputs, runs on every instruction set and number of threads, comparisons.
#![allow(dead_code, reason = "each test file uses a part")]

use vit_cpu::activation::Activation;
use vit_cpu::isa::Isa;
use vit_cpu::thread_pool::ThreadPool;

/// Marks elements of a result that a kernel must not write.
pub const GAP: f32 = -12345.0;

/// No activation, and every activation.
pub const ACTIVATIONS: [Option<Activation>; 7] = [
    None,
    Some(Activation::Gelu),
    Some(Activation::GeluTanh),
    Some(Activation::Relu),
    Some(Activation::Silu),
    Some(Activation::Tanh),
    Some(Activation::Sigmoid),
];

/// An activation in f64.
pub fn activate(activation: Option<Activation>, x: f64) -> f64 {
    activation.map_or(x, |f| f.apply(x))
}

/// SplitMix64 with a given seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// An integer in `low..=high`.
    pub fn size(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() % (high - low + 1) as u64) as usize
    }

    pub fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }

    /// Approximately normal with variance 1.
    pub fn value(&mut self) -> f32 {
        let sum: f64 = (0..4).map(|_| (self.next() >> 11) as f64 / (1u64 << 53) as f64).sum();
        ((sum - 2.0) * 1.732) as f32
    }

    pub fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.size(0, from.len() - 1)]
    }
}

/// Computes on every instruction set with 1, 2 and 3 threads, asserts that the bits do not depend on the threads, and
/// passes the result of each instruction set to `check`.
pub fn on_all(compute: impl Fn(&ThreadPool, Isa) -> Vec<f32>, check: impl Fn(Isa, &[f32])) {
    for isa in Isa::available() {
        check(isa, &on_all_threads(isa, |pool| compute(pool, isa)));
    }
}

/// Computes with 1, 2 and 3 threads and asserts that the bits do not depend on the threads. `what` is for messages.
pub fn on_all_threads(what: impl std::fmt::Display, compute: impl Fn(&ThreadPool) -> Vec<f32>) -> Vec<f32> {
    thread_local! {
        static POOLS: [ThreadPool; 3] = [ThreadPool::new(1), ThreadPool::new(2), ThreadPool::new(3)];
    }
    POOLS.with(|pools| {
        let first = compute(&pools[0]);
        for pool in &pools[1..] {
            let (other, threads) = (compute(pool), pool.threads());
            assert_eq!(first.len(), other.len());
            for (i, (a, b)) in first.iter().zip(&other).enumerate() {
                assert!(a.to_bits() == b.to_bits(), "{what}: element {i} is {a} with 1 thread, {b} with {threads}");
            }
        }
        first
    })
}

/// Asserts, element by element, `|got - want| <= tolerance` plus a few roundings of the value, and NaN exactly where
/// `want` has it.
#[track_caller]
pub fn close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        if w.is_nan() {
            assert!(g.is_nan(), "{what}: element {i} is {g}, not NaN");
        } else if w.is_infinite() {
            assert!(f64::from(g) == w, "{what}: element {i} is {g}, not {w}");
        } else {
            let error = (f64::from(g) - w).abs();
            let tolerance = tolerance + 5e-7 * w.abs();
            assert!(
                error <= tolerance,
                "{what}: element {i} is {g}, expected {w}, off by {error:e} (allowed {tolerance:e})"
            );
        }
    }
}
