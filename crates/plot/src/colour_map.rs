//! Colour scales. Equal steps of a value are equal steps of lightness in Oklab (Ottosson, 2020), so that a map shows no
//! edges that its values do not have, also in greyscale and to colour-blind readers.

use std::f32::consts::TAU;
use std::sync::LazyLock;

use crate::palette::Colour;

/// A colour scale from the smallest value to the largest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ColourMap {
    /// From dark blue over violet and red to light yellow, also for overlays on images.
    Heat,
    /// From dark blue over teal and green to light yellow.
    Sea,
}

/// Hues at the dark and the light end, in turns, and the largest chroma between them.
struct Path {
    hues: [f32; 2],
    chroma: f32,
}

/// Lightness at the ends, which differ from black and white.
const LIGHTNESS: [f32; 2] = [0.17, 0.95];

static HEAT: LazyLock<[Colour; 256]> = LazyLock::new(|| table(&Path { hues: [0.76, 1.29], chroma: 0.19 }));
static SEA: LazyLock<[Colour; 256]> = LazyLock::new(|| table(&Path { hues: [0.80, 0.30], chroma: 0.15 }));

impl ColourMap {
    /// The colour of a value between 0 and 1.
    pub fn at(self, share: f32) -> Colour {
        let table: &[Colour; 256] = match self {
            ColourMap::Heat => &HEAT,
            ColourMap::Sea => &SEA,
        };
        // NaN has the colour of 0.
        table[(share.clamp(0.0, 1.0) * 255.0).round() as usize]
    }
}

fn table(path: &Path) -> [Colour; 256] {
    std::array::from_fn(|index| {
        let t = index as f32 / 255.0;
        let lightness = LIGHTNESS[0] + t * (LIGHTNESS[1] - LIGHTNESS[0]);
        let hue = path.hues[0] + t * (path.hues[1] - path.hues[0]);
        // Less towards the ends, where the gamut is narrow.
        let mut chroma = path.chroma * (1.0 - (2.0 * t - 1.0).powi(4)).max(0.25);
        loop {
            let (sine, cosine) = (hue * TAU).sin_cos();
            match srgb([lightness, chroma * cosine, chroma * sine]) {
                Some(colour) => return colour,
                None => chroma *= 0.97,
            }
        }
    })
}

/// An Oklab colour in sRGB, if it is in its gamut.
fn srgb([l, a, b]: [f32; 3]) -> Option<Colour> {
    let cube = |v: f32| v * v * v;
    let long = cube(l + 0.396_337_78 * a + 0.215_803_76 * b);
    let medium = cube(l - 0.105_561_346 * a - 0.063_854_17 * b);
    let short = cube(l - 0.089_484_18 * a - 1.291_485_5 * b);
    let linear = [
        4.076_741_7 * long - 3.307_711_6 * medium + 0.230_969_94 * short,
        -1.268_438 * long + 2.609_757_4 * medium - 0.341_319_4 * short,
        -0.004_196_086_3 * long - 0.703_418_6 * medium + 1.707_614_7 * short,
    ];
    if linear.iter().any(|v| !(-1e-4..=1.0001).contains(v)) {
        return None;
    }
    let byte = |v: f32| {
        let v = v.clamp(0.0, 1.0);
        let gamma = if v <= 0.003_130_8 { 12.92 * v } else { 1.055 * v.powf(1.0 / 2.4) - 0.055 };
        (255.0 * gamma).round() as u8
    };
    Some(Colour(byte(linear[0]), byte(linear[1]), byte(linear[2])))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CIE lightness, a perceptual scale that is independent of Oklab.
    fn lightness(Colour(r, g, b): Colour) -> f32 {
        let linear = |byte: u8| {
            let v = f32::from(byte) / 255.0;
            if v <= 0.040_45 { v / 12.92 } else { ((v + 0.055) / 1.055).powf(2.4) }
        };
        let y = 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
        if y > 0.008_856 { 116.0 * y.cbrt() - 16.0 } else { 903.3 * y }
    }

    #[test]
    fn larger_is_lighter_everywhere() {
        for map in [ColourMap::Heat, ColourMap::Sea] {
            let steps: Vec<f32> = (0..=32).map(|i| lightness(map.at(i as f32 / 32.0))).collect();
            let differences: Vec<f32> = steps.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let mean = differences.iter().sum::<f32>() / 32.0;
            for (i, d) in differences.iter().enumerate() {
                assert!((0.35 * mean..1.9 * mean).contains(d), "{map:?}: step {i} is {d} of a mean of {mean}");
            }
            assert!(steps[0] < 12.0 && steps[32] > 90.0, "{map:?}: {} to {}", steps[0], steps[32]);
        }
    }

    #[test]
    fn values_outside_have_the_colours_of_the_ends() {
        assert_eq!(ColourMap::Heat.at(-3.0), ColourMap::Heat.at(0.0));
        assert_eq!(ColourMap::Heat.at(7.0), ColourMap::Heat.at(1.0));
        assert_eq!(ColourMap::Heat.at(f32::NAN), ColourMap::Heat.at(0.0));
    }
}
