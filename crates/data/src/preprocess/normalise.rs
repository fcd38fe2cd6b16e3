//! From bytes to normalised values, one plane per channel. A table of 256 values per channel defines the result. Table
//! look-ups and divisions are slower than SIMD, so the divisions are computed as multiplications if that gives all
//! values of the table exactly, which is checked; otherwise values come from the table.

/// Pixels per iteration.
const PIXELS: usize = 16;

/// The normalised value of each byte, with the rounding of torchvision's three steps in f32.
fn table(mean: f32, std: f32) -> [f32; 256] {
    std::array::from_fn(|byte| (byte as f32 / 255.0 - mean) / std)
}

/// The normalisation of one channel.
#[derive(Clone, Debug)]
pub(crate) struct Channel {
    table: [f32; 256],
    formula: NormaliseFormula,
    /// Whether the CPU has fused multiply-add and the formula gives the table's values.
    fused: bool,
}

impl Channel {
    pub(crate) fn new(mean: f32, std: f32) -> Self {
        let table = table(mean, std);
        let formula = NormaliseFormula { to_unit: Reciprocal::of(255.0), mean, per_std: Reciprocal::of(std) };
        let fused = fused::is_exact(&formula, &table);
        Self { table, formula, fused }
    }

    /// Writes one channel of interleaved RGB `pixels` to `plane`.
    pub(crate) fn write(&self, pixels: &[u8], channel: usize, plane: &mut [f32]) {
        let done = if self.fused { plane.len() / PIXELS * PIXELS } else { 0 };
        if self.fused {
            fused::write(&self.formula, pixels, channel, plane);
        }
        for (value, pixel) in plane.iter_mut().zip(pixels.chunks_exact(3)).skip(done) {
            *value = self.table[usize::from(pixel[channel])];
        }
    }
}

/// Normalises groups of [`PIXELS`] pixels with the formula. Without the CPU features only `is_exact` may be called.
#[cfg(target_arch = "x86_64")]
mod fused {
    use super::*;
    use std::arch::is_x86_feature_detected as has;

    pub(super) fn is_exact(formula: &NormaliseFormula, table: &[f32; 256]) -> bool {
        #[target_feature(enable = "avx2,fma")]
        fn compiled(formula: &NormaliseFormula, table: &[f32; 256]) -> bool {
            formula.gives(table)
        }
        // SAFETY: the CPU has the features that the function is compiled for.
        has!("avx2") && has!("fma") && unsafe { compiled(formula, table) }
    }

    pub(super) fn write(formula: &NormaliseFormula, pixels: &[u8], channel: usize, plane: &mut [f32]) {
        #[target_feature(enable = "avx2,fma")]
        fn compiled(formula: &NormaliseFormula, pixels: &[u8], channel: usize, plane: &mut [f32]) {
            let orders = avx2::orders(channel);
            groups(pixels, |pixels| avx2::pick(pixels, &orders), formula, plane);
        }
        if has!("avx2") && has!("fma") {
            // SAFETY: the CPU has the features that the function is compiled for.
            unsafe { compiled(formula, pixels, channel, plane) }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod fused {
    use super::*;

    pub(super) fn is_exact(formula: &NormaliseFormula, table: &[f32; 256]) -> bool {
        formula.gives(table)
    }

    pub(super) fn write(formula: &NormaliseFormula, pixels: &[u8], channel: usize, plane: &mut [f32]) {
        let pick = |pixels: &[u8; PIXELS * 3]| std::array::from_fn(|pixel| pixels[pixel * 3 + channel]);
        groups(pixels, pick, formula, plane);
    }
}

/// Without the instruction, a fused multiply-add is a slow function call.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod fused {
    use super::*;

    pub(super) fn is_exact(_: &NormaliseFormula, _: &[f32; 256]) -> bool {
        false
    }

    pub(super) fn write(_: &NormaliseFormula, _: &[u8], _: usize, _: &mut [f32]) {}
}

/// `pick` takes one channel of a group of pixels.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
fn groups(
    pixels: &[u8],
    pick: impl Fn(&[u8; PIXELS * 3]) -> [u8; PIXELS],
    formula: &NormaliseFormula,
    plane: &mut [f32],
) {
    for (values, pixels) in plane.as_chunks_mut::<PIXELS>().0.iter_mut().zip(pixels.as_chunks().0) {
        // A loop instead of `map`, whose closure would be compiled without the caller's target features.
        for (value, byte) in values.iter_mut().zip(pick(pixels)) {
            *value = formula.value(f32::from(byte));
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::PIXELS;
    use std::arch::x86_64::*;

    /// For each third of a group of pixels, the shuffle that moves its bytes of one channel into place.
    pub(super) fn orders(channel: usize) -> [[u8; PIXELS]; 3] {
        std::array::from_fn(|third| {
            std::array::from_fn(|pixel| match (pixel * 3 + channel).checked_sub(third * PIXELS) {
                Some(at) if at < PIXELS => at as u8,
                // The highest bit makes the shuffle write zero.
                _ => 0x80,
            })
        })
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    pub(super) fn pick(pixels: &[u8; PIXELS * 3], orders: &[[u8; PIXELS]; 3]) -> [u8; PIXELS] {
        let mut picked = _mm_setzero_si128();
        for (third, order) in pixels.as_chunks::<PIXELS>().0.iter().zip(orders) {
            // SAFETY: both are arrays of the 16 bytes that are read.
            let (third, order) =
                unsafe { (_mm_loadu_si128(third.as_ptr().cast()), _mm_loadu_si128(order.as_ptr().cast())) };
            picked = _mm_or_si128(picked, _mm_shuffle_epi8(third, order));
        }
        let mut bytes = [0; PIXELS];
        // SAFETY: the array has the 16 bytes that are written.
        unsafe { _mm_storeu_si128(bytes.as_mut_ptr().cast(), picked) };
        bytes
    }
}

/// (byte / 255 - mean) / std.
#[derive(Clone, Debug)]
struct NormaliseFormula {
    to_unit: Reciprocal,
    mean: f32,
    per_std: Reciprocal,
}

impl NormaliseFormula {
    #[inline(always)]
    fn value(&self, byte: f32) -> f32 {
        self.per_std.times(self.to_unit.times(byte) - self.mean)
    }

    /// Whether the formula gives the table's values exactly.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[inline(always)]
    fn gives(&self, table: &[f32; 256]) -> bool {
        let mut equal = true;
        for (byte, expected) in table.iter().enumerate() {
            equal &= self.value(byte as f32).to_bits() == expected.to_bits();
        }
        equal
    }
}

/// The reciprocal of a divisor in twice f32's precision, as the sum of two values. Multiplying by it rounds like a
/// division for all but about one in four million quotients.
#[derive(Clone, Debug)]
struct Reciprocal {
    high: f32,
    low: f32,
}

impl Reciprocal {
    fn of(number: f32) -> Self {
        let exact = 1.0 / f64::from(number);
        let high = exact as f32;
        Self { high, low: (exact - f64::from(high)) as f32 }
    }

    #[inline(always)]
    fn times(&self, value: f32) -> f32 {
        value.mul_add(self.high, value * self.low)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(mean: f32, std: f32, count: usize) {
        let pixels: Vec<u8> = (0..count * 3).map(|i| (i * 7 + i / 256) as u8).collect();
        for channel in 0..3 {
            let mut plane = vec![f32::NAN; count];
            Channel::new(mean, std).write(&pixels, channel, &mut plane);
            for (pixel, value) in pixels.chunks_exact(3).zip(&plane) {
                let expected = (f32::from(pixel[channel]) / 255.0 - mean) / std;
                assert_eq!(value.to_bits(), expected.to_bits(), "{} - {mean} / {std}", pixel[channel]);
            }
        }
    }

    #[test]
    fn absurd_settings_give_what_dividing_gives() {
        for (mean, std) in
            [(f32::MAX, 1e-5), (-f32::MAX, 1e-38), (0.0, f32::MIN_POSITIVE), (0.5, f32::MAX), (0.0, -1.0)]
        {
            check(mean, std, 300);
        }
    }

    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn the_usual_settings_need_no_division() {
        let clip = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.261_302_6, 0.275_777_1]);
        for (mean, std) in [([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]), ([0.5; 3], [0.5; 3]), clip] {
            for (mean, std) in std::iter::zip(mean, std) {
                let formula = NormaliseFormula { to_unit: Reciprocal::of(255.0), mean, per_std: Reciprocal::of(std) };
                for (byte, expected) in table(mean, std).iter().enumerate() {
                    assert_eq!(formula.value(byte as f32), *expected, "{byte} with {mean} and {std}");
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_value_is_that_of_dividing(mean in -2.0f32..2.0, std in 1e-3f32..4.0, count in 0usize..300) {
            check(mean, std, count);
        }
    }
}
