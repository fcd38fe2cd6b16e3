//! Initialisers of parameters.

use vit_system::hash::fnv1a;

use crate::random::philox;

/// A parameter's initialiser.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// All zero.
    Zeros,
    /// All one.
    Ones,
    /// All this value.
    Constant(f32),
    /// Normal with mean 0.
    Normal {
        /// Standard deviation.
        std: f32,
    },
    /// Normal with mean 0, redrawn beyond two standard deviations.
    TruncatedNormal {
        /// Standard deviation before truncation.
        std: f32,
    },
    /// Uniform between `-bound` and `bound`.
    Uniform {
        /// Largest magnitude.
        bound: f32,
    },
    /// Frequencies of rotary positions, `[2, .., pairs]` for x and y (Heo et al., 2024). The first half of a head's
    /// pairs have magnitudes that fall geometrically from 1, all in one random direction; the second half the same
    /// magnitudes, at a right angle to it.
    RotaryFrequencies {
        /// The smallest magnitude is nearly `1 / temperature`.
        temperature: f32,
        /// Pairs of channels of a head.
        pairs: usize,
    },
}

impl Init {
    /// Fills a parameter. Values depend only on the seed and the name, not on the order of parameters.
    pub fn fill(self, seed: u64, name: &str, into: &mut [f32]) {
        let mut draw = NamedStream::new(seed, name);
        match self {
            Init::Zeros => into.fill(0.0),
            Init::Ones => into.fill(1.0),
            Init::Constant(value) => into.fill(value),
            Init::Normal { std } => into.iter_mut().for_each(|v| *v = std * draw.normal() as f32),
            Init::TruncatedNormal { std } => into.iter_mut().for_each(|v| {
                *v = loop {
                    let n = draw.normal();
                    if n.abs() <= 2.0 {
                        break std * n as f32;
                    }
                }
            }),
            Init::Uniform { bound } => {
                into.iter_mut().for_each(|v| *v = bound * (2.0 * draw.uniform() - 1.0) as f32);
            }
            Init::RotaryFrequencies { temperature, pairs } => {
                let (first, second) = into.split_at_mut(into.len() / 2);
                for (x, y) in first.chunks_mut(pairs.max(1)).zip(second.chunks_mut(pairs.max(1))) {
                    let direction = std::f64::consts::TAU * draw.uniform();
                    for (i, (x, y)) in x.iter_mut().zip(y).enumerate() {
                        let half = pairs.div_ceil(2);
                        let angle = direction + if i < half { 0.0 } else { std::f64::consts::FRAC_PI_2 };
                        let magnitude = f64::from(temperature).powf(-((i % half) as f64) / half as f64);
                        (*x, *y) = ((magnitude * angle.cos()) as f32, (magnitude * angle.sin()) as f32);
                    }
                }
            }
        }
    }
}

/// The random numbers of one parameter: Philox with the seed as key, and block and name as counter.
struct NamedStream {
    key: [u32; 2],
    /// The hash of the name.
    name: u64,
    block: u64,
    words: [u32; 4],
    /// The next of `words`; 4 if a new block is needed.
    next: usize,
}

impl NamedStream {
    fn new(seed: u64, name: &str) -> Self {
        NamedStream {
            key: [seed as u32, (seed >> 32) as u32],
            name: fnv1a(name.as_bytes()),
            block: 0,
            words: [0; 4],
            next: 4,
        }
    }

    fn word(&mut self) -> u32 {
        if self.next == 4 {
            let counter = [self.block as u32, (self.block >> 32) as u32, self.name as u32, (self.name >> 32) as u32];
            self.words = philox(counter, self.key);
            self.block += 1;
            self.next = 0;
        }
        self.next += 1;
        self.words[self.next - 1]
    }

    /// In the open interval (0, 1).
    fn uniform(&mut self) -> f64 {
        (f64::from(self.word()) + 0.5) / 4294967296.0
    }

    /// The Box-Muller transform.
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.uniform().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_right_and_names_are_independent() {
        let mut a = vec![0.0; 20_000];
        Init::Normal { std: 0.5 }.fill(1, "a", &mut a);
        let mean = a.iter().sum::<f32>() / a.len() as f32;
        let std = (a.iter().map(|v| v * v).sum::<f32>() / a.len() as f32).sqrt();
        assert!(mean.abs() < 0.02 && (std - 0.5).abs() < 0.02, "{mean} {std}");

        let mut b = vec![0.0; 20_000];
        Init::TruncatedNormal { std: 0.5 }.fill(1, "b", &mut b);
        assert!(b.iter().all(|v| v.abs() <= 1.0));
        assert_ne!(a[..8], b[..8]);

        let mut again = vec![0.0; 20_000];
        Init::Normal { std: 0.5 }.fill(1, "a", &mut again);
        assert_eq!(a, again);
    }
}
