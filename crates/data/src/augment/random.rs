//! Random streams for one sample, one epoch's order or one batch: a pure function of the seed and the stream's
//! identity, so that augmentation depends neither on threads, nor on the order of work, nor on where a run was resumed.
//! Functions come from `libm`, because the standard ones differ between platforms in the last bit.

use std::f64::consts::TAU;
use vit_graph::random::philox;

/// The purpose of a random stream. Streams of different purposes are independent.
#[derive(Clone, Copy)]
enum RandomStream {
    Sample = 1,
    Order = 2,
    Batch = 3,
}

/// The random stream of a sample of an epoch, of an epoch's order, or of a batch.
#[derive(Clone, Debug)]
pub struct SampleRandom {
    key: [u32; 2],
    /// The first word counts; the others identify the stream.
    counter: [u32; 4],
    block: [u32; 4],
    used: usize,
}

impl SampleRandom {
    /// The stream of a sample of an epoch; `repetition` counts how often the epoch has shown it before.
    pub fn new(seed: u64, epoch: u64, sample: u64, repetition: u32) -> Self {
        Self::for_purpose(RandomStream::Sample, seed, epoch, repetition, sample)
    }

    /// The stream of an epoch's order.
    pub fn for_order(seed: u64, epoch: u64) -> Self {
        Self::for_purpose(RandomStream::Order, seed, epoch, 0, 0)
    }

    /// The stream of choices for a whole batch.
    pub fn for_batch(seed: u64, step: u64) -> Self {
        Self::for_purpose(RandomStream::Batch, seed, step, 0, 0)
    }

    fn for_purpose(purpose: RandomStream, seed: u64, time: u64, repetition: u32, which: u64) -> Self {
        // A counter cannot hold all of it, so the parts that rarely change are hashed into a key.
        let common =
            philox([time as u32, (time >> 32) as u32, repetition, purpose as u32], [seed as u32, (seed >> 32) as u32]);
        Self {
            key: [common[0], common[1]],
            counter: [0, which as u32, (which >> 32) as u32, common[2]],
            block: [0; 4],
            used: 4,
        }
    }

    /// 32 random bits.
    #[inline]
    pub fn word(&mut self) -> u32 {
        if self.used == 4 {
            self.block = self.next_block();
            self.used = 0;
        }
        self.used += 1;
        self.block[self.used - 1]
    }

    fn next_block(&mut self) -> [u32; 4] {
        let block = philox(self.counter, self.key);
        self.counter[0] = self.counter[0].wrapping_add(1);
        block
    }

    /// Uniform in 0..1, with all 53 bits of an f64.
    pub fn uniform(&mut self) -> f64 {
        let bits = (u64::from(self.word()) << 32 | u64::from(self.word())) >> 11;
        bits as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// Uniform between `low` and `high`.
    pub fn range(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.uniform()
    }

    /// True with the given probability: never for 0, always for 1.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.uniform() < probability
    }

    /// A uniform integer below `limit`; 0 if `limit` is 0.
    pub fn below(&mut self, limit: usize) -> usize {
        let limit = limit as u64;
        // Lemire (2019): products in the incomplete last interval are drawn again.
        let incomplete = if limit == 0 { 0 } else { limit.wrapping_neg() % limit };
        loop {
            let bits = u64::from(self.word()) << 32 | u64::from(self.word());
            let product = u128::from(bits) * u128::from(limit);
            if product as u64 >= incomplete {
                return (product >> 64) as usize;
            }
        }
    }

    /// Normal with mean 0 and standard deviation 1 (Box-Muller).
    pub fn normal(&mut self) -> f64 {
        // 1 - u is never 0.
        let radius = libm::sqrt(-2.0 * libm::log(1.0 - self.uniform()));
        radius * libm::cos(TAU * self.uniform())
    }

    /// Fills `values` with normal values, in f32 and several times faster than [`normal`](Self::normal).
    pub fn fill_normal(&mut self, values: &mut [f32]) {
        /// In (0, 1], so that the logarithm exists.
        fn open(word: u32) -> f32 {
            ((word >> 8) + 1) as f32 * (1.0 / (1 << 24) as f32)
        }
        for group in values.chunks_mut(4) {
            let [a, b, c, d] = self.next_block();
            let mut four = [0.0; 4];
            for (pair, (first, second)) in four.chunks_exact_mut(2).zip([(a, b), (c, d)]) {
                let radius = libm::sqrtf(-2.0 * libm::logf(open(first)));
                let (sine, cosine) = libm::sincosf(std::f32::consts::TAU * open(second));
                pair.copy_from_slice(&[radius * cosine, radius * sine]);
            }
            group.copy_from_slice(&four[..group.len()]);
        }
    }

    /// From the beta distribution with both parameters `alpha`, in 0..=1; 0.5 if `alpha` is not positive.
    pub fn beta(&mut self, alpha: f64) -> f64 {
        if alpha.is_nan() || alpha <= 0.0 {
            return 0.5;
        }
        // The ratio of gamma variables from their logarithms: for a small alpha both would underflow to 0.
        let (a, b) = (self.log_gamma_variable(alpha), self.log_gamma_variable(alpha));
        1.0 / (1.0 + libm::exp(b - a))
    }

    /// The logarithm of a gamma variable (Marsaglia and Tsang, 2000).
    fn log_gamma_variable(&mut self, shape: f64) -> f64 {
        let boost = if shape < 1.0 { libm::log(1.0 - self.uniform()) / shape } else { 0.0 };
        let d = if shape < 1.0 { shape + 1.0 } else { shape } - 1.0 / 3.0;
        let c = 1.0 / libm::sqrt(9.0 * d);
        loop {
            let x = self.normal();
            let root = 1.0 + c * x;
            if root <= 0.0 {
                continue;
            }
            let log_cube = 3.0 * libm::log(root);
            let cube = root * root * root;
            if libm::log(1.0 - self.uniform()) < 0.5 * x * x + d - d * cube + d * log_cube {
                return libm::log(d) + log_cube + boost;
            }
        }
    }

    /// Shuffles `items`.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last + 1));
        }
    }

    /// A random permutation of `0..length`.
    pub fn permutation(&mut self, length: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..length as u32).collect();
        self.shuffle(&mut order);
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: usize = 20_000;

    fn moments(mut draw: impl FnMut() -> f64) -> (f64, f64) {
        let values: Vec<f64> = (0..DRAWS).map(|_| draw()).collect();
        let mean = values.iter().sum::<f64>() / DRAWS as f64;
        (mean, values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / DRAWS as f64)
    }

    #[test]
    fn distributions_have_their_mean_and_variance() {
        let mut random = SampleRandom::new(7, 0, 0, 0);
        let close = |what: &str, (mean, variance): (f64, f64), expected: (f64, f64)| {
            // Five standard errors of the mean, and as many of the variance.
            let error = 5.0 * (expected.1 / DRAWS as f64).sqrt();
            assert!((mean - expected.0).abs() < error, "{what}: mean {mean}");
            assert!((variance - expected.1).abs() < 0.06 * expected.1, "{what}: variance {variance}");
        };
        close("uniform", moments(|| random.uniform()), (0.5, 1.0 / 12.0));
        close("normal", moments(|| random.normal()), (0.0, 1.0));
        let mut many = vec![0.0; DRAWS];
        random.fill_normal(&mut many);
        let mut each = many.iter();
        close("many normals", moments(|| f64::from(*each.next().unwrap())), (0.0, 1.0));
        for alpha in [0.01, 0.2, 0.8, 1.0, 3.0] {
            let variance = 1.0 / (4.0 * (2.0 * alpha + 1.0));
            close(&format!("beta({alpha})"), moments(|| random.beta(alpha)), (0.5, variance));
        }
        close("below", moments(|| random.below(10) as f64), (4.5, 8.25));
    }

    #[test]
    fn every_permutation_is_equally_likely() {
        let mut counts = std::collections::HashMap::new();
        for epoch in 0..6000 {
            *counts.entry(SampleRandom::for_order(1, epoch).permutation(3)).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6);
        assert!(counts.values().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn every_position_has_numbers_of_its_own() {
        let mut first = std::collections::HashSet::new();
        for seed in [0, 1, 1 << 40] {
            for epoch in [0, 1, 1 << 33] {
                for sample in [0, 1, 1 << 35] {
                    for repetition in [0, 1] {
                        let mut random = SampleRandom::new(seed, epoch, sample, repetition);
                        assert!(first.insert([random.word(), random.word(), random.word()]));
                    }
                }
                assert!(first.insert(std::array::from_fn({
                    let mut random = SampleRandom::for_order(seed, epoch);
                    move |_| random.word()
                })));
                assert!(first.insert(std::array::from_fn({
                    let mut random = SampleRandom::for_batch(seed, epoch);
                    move |_| random.word()
                })));
            }
        }
    }

    #[test]
    fn limits_are_kept() {
        let mut random = SampleRandom::new(3, 1, 4, 1);
        assert_eq!((random.below(0), random.below(1)), (0, 0));
        assert!((0..1000).all(|_| !random.chance(0.0) && random.chance(1.0)));
        assert!((0..1000).all(|_| random.below(3) < 3));
        assert_eq!(random.beta(0.0), 0.5);
        assert!(random.permutation(0).is_empty());
    }
}
