//! What the kernel tests share: a small generator, and running a kernel on every instruction set and thread count.
#![allow(dead_code, reason = "each test file uses a part")]

use vit_cpu::isa::Isa;
use vit_cpu::pool::Pool;

/// SplitMix64: the same cases on every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `low..=high`.
    pub fn size(&mut self, low: usize, high: usize) -> usize {
        low + (self.next() % (high - low + 1) as u64) as usize
    }

    pub fn coin(&mut self) -> bool {
        self.next() & 1 == 1
    }

    /// Roughly normal.
    pub fn number(&mut self) -> f32 {
        let sum: f64 = (0..4).map(|_| (self.next() >> 11) as f64 / (1u64 << 53) as f64).sum();
        ((sum - 2.0) * 1.732) as f32
    }

    pub fn numbers(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.number()).collect()
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.size(0, from.len() - 1)]
    }
}

/// Computes on every instruction set and with 1, 2 and 3 threads; asserts that threads do not change a bit; hands the
/// result of each instruction set to `check`.
pub fn on_all(compute: impl Fn(&Pool, Isa) -> Vec<f32>, check: impl Fn(Isa, &[f32])) {
    thread_local! {
        static POOLS: [Pool; 3] = [Pool::new(1), Pool::new(2), Pool::new(3)];
    }
    POOLS.with(|pools| {
        for isa in Isa::available() {
            let first = compute(&pools[0], isa);
            for pool in &pools[1..] {
                let other = compute(pool, isa);
                let threads = pool.threads();
                assert_eq!(first.len(), other.len());
                for (i, (a, b)) in first.iter().zip(&other).enumerate() {
                    assert!(a.to_bits() == b.to_bits(), "{isa}: element {i} is {a} with 1 thread, {b} with {threads}");
                }
            }
            check(isa, &first);
        }
    });
}

/// Asserts `|got - want| <= tolerance` plus a few roundings of the value itself, element by element, and that NaN is where it is expected.
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
