//! The reproducible source of shapes and values.

use vit_graph::random::philox;

/// Random numbers that depend on the seed, the stream and how many were drawn before.
pub struct Rng {
    seed: u32,
    stream: u32,
    drawn: u32,
}

impl Rng {
    /// A stream of one seed.
    pub fn new(seed: u32, stream: u32) -> Self {
        Rng { seed, stream, drawn: 0 }
    }

    /// 32 random bits.
    pub fn word(&mut self) -> u32 {
        self.drawn += 1;
        philox([self.drawn, self.stream, 0, 0], [self.seed, 0x7e57])[0]
    }

    /// A small extent: often 1, odd, or next to the length of a vector register.
    pub fn extent(&mut self) -> usize {
        self.pick(&[1, 1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17])
    }

    /// An extent that spans several vector registers, with remainders.
    pub fn wide(&mut self) -> usize {
        self.pick(&[1, 3, 7, 8, 15, 16, 17, 24, 31, 32, 33, 47, 64, 65])
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.word() as usize % from.len()]
    }

    /// A fair coin.
    pub fn flip(&mut self) -> bool {
        self.word() & 1 == 1
    }

    /// An approximately normal value (the sum of four uniform ones), exact in f32.
    pub fn value(&mut self) -> f64 {
        let sum: f64 = (0..4).map(|_| f64::from(self.word()) / 4294967296.0).sum();
        f64::from(((sum - 2.0) * 1.7) as f32)
    }
}
