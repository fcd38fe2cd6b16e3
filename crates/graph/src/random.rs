//! The counter-based random number generator Philox 4x32-10 (Salmon et al., 2011), which every device implements.
//!
//! Every random number is a pure function of a seed and a position, so dropout masks need no memory, do not depend on
//! threads or devices, and are the same in the backward pass.

/// Four random words for one counter and key.
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    const MULTIPLIER: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    for _ in 0..10 {
        let p0 = MULTIPLIER[0] * u64::from(counter[0]);
        let p1 = MULTIPLIER[1] * u64::from(counter[2]);
        counter =
            [(p1 >> 32) as u32 ^ counter[1] ^ key[0], p1 as u32, (p0 >> 32) as u32 ^ counter[3] ^ key[1], p0 as u32];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

/// The value of a graph's `seed` input, which determines the random numbers of a run: low and high halves of the seed
/// and of the step number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub [i32; 4]);

impl Seed {
    /// The seed for one step of a run.
    pub fn new(seed: u64, step: u64) -> Self {
        Seed([seed as i32, (seed >> 32) as i32, step as i32, (step >> 32) as i32])
    }

    /// 32-bit word `index` of a random stream; each random operation of a graph has its own stream.
    pub fn word(self, stream: u32, index: u64) -> u32 {
        let [low, high, step_low, step_high] = self.0.map(|w| w as u32);
        // A stream has 2^34 words per step.
        let block = philox([(index / 4) as u32, stream, step_low, step_high], [low, high]);
        block[(index % 4) as usize]
    }

    /// Whether dropout at `rate` keeps element `index` of a stream.
    pub fn keeps(self, stream: u32, index: u64, rate: f32) -> bool {
        // rate * 2^32
        f64::from(self.word(stream, index)) >= f64::from(rate) * 4294967296.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Known answers of the Random123 distribution's kat_vectors for philox4x32-10.
    #[test]
    fn philox_gives_the_published_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        assert_eq!(philox([0xffffffff; 4], [0xffffffff; 2]), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
        assert_eq!(
            philox([0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344], [0xa4093822, 0x299f31d0]),
            [0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1]
        );
    }

    #[test]
    fn dropout_keeps_the_right_share() {
        let seed = Seed::new(7, 3);
        let kept = (0..20_000).filter(|&i| seed.keeps(5, i, 0.3)).count();
        assert!((kept as f64 / 20_000.0 - 0.7).abs() < 0.02, "{kept}");
        assert!((0..1000).all(|i| seed.keeps(5, i, 0.0)));
    }
}
