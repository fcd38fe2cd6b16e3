//! A square of palette indices, drawn at twice the size if it is small and averaged down.

use crate::augment::SampleRandom;
use crate::image::Image;

/// Smaller images are drawn at twice the size.
const SUPERSAMPLED_BELOW: usize = 128;

/// Palette indices of every pixel, 0 for the background. A border of one pixel takes what lies just outside.
pub(super) struct Canvas {
    /// Pixels per side of the image.
    side: usize,
    /// Canvas pixels per pixel of the image, along a side.
    factor: usize,
    /// Canvas pixels per side without the border.
    pub extent: usize,
    stride: usize,
    cells: Vec<u8>,
}

impl Canvas {
    pub fn new(side: usize) -> Self {
        let factor = if side < SUPERSAMPLED_BELOW { 2 } else { 1 };
        let extent = side * factor;
        let stride = extent + 2;
        Self { side, factor, extent, stride, cells: vec![0; stride * stride] }
    }

    /// The position of a canvas pixel among the cells, if it is inside.
    #[inline]
    pub fn cell(&self, x: f64, y: f64) -> Option<usize> {
        let extent = self.extent as f64;
        // Also false for NaN.
        let inside = x >= 0.0 && y >= 0.0 && x < extent && y < extent;
        inside.then(|| (y as i32 as usize + 1) * self.stride + x as i32 as usize + 1)
    }

    #[inline]
    pub fn set(&mut self, cell: usize, index: u8) {
        self.cells[cell] = index;
    }

    /// How far the cells of a 3 x 3 patch are before or after its centre.
    pub fn patch(&self) -> [isize; 9] {
        std::array::from_fn(|at| (at as isize / 3 - 1) * self.stride as isize + at as isize % 3 - 1)
    }

    /// The number of pixels that are not background.
    pub fn filled(&self) -> usize {
        self.cells.iter().filter(|cell| **cell != 0).count()
    }

    /// The image in the colours of a palette, mirrored left to right or upside down.
    pub fn image(&self, palette: &[[u8; 3]; 256], mirrored: bool, inverted: bool) -> Image {
        let (side, factor) = (self.side, self.factor);
        let mut pixels = vec![0; side * side * 3];
        for (y, row) in pixels.chunks_exact_mut(side * 3).enumerate() {
            let from = if inverted { side - 1 - y } else { y } * factor + 1;
            let line = |offset: usize| &self.cells[(from + offset) * self.stride + 1..][..self.extent];
            match factor {
                1 => row
                    .as_chunks_mut::<3>()
                    .0
                    .iter_mut()
                    .zip(line(0))
                    .for_each(|(pixel, cell)| *pixel = palette[*cell as usize]),
                _ => {
                    let fours = line(0).as_chunks::<2>().0.iter().zip(line(1).as_chunks::<2>().0);
                    for (pixel, ([a, b], [c, d])) in row.as_chunks_mut::<3>().0.iter_mut().zip(fours) {
                        let colours = [a, b, c, d].map(|cell| palette[*cell as usize]);
                        let mean =
                            |channel: usize| colours.iter().map(|colour| u16::from(colour[channel])).sum::<u16>() + 2;
                        *pixel = [0, 1, 2].map(|channel| (mean(channel) / 4) as u8);
                    }
                }
            }
            if mirrored {
                row.as_chunks_mut::<3>().0.reverse();
            }
        }
        Image::from_parts(side, side, pixels)
    }
}

/// A colour by hue (0 to 1, beyond which it repeats), saturation and value (both 0 to 1).
pub(super) fn colour(hue: f64, saturation: f64, value: f64) -> [u8; 3] {
    let sixths = 6.0 * (hue - libm::floor(hue));
    // Of red, green and blue, how far the hue is from where the channel is full.
    [0.0, 4.0, 2.0].map(|shift| {
        let place = sixths + shift;
        let place = if place >= 6.0 { place - 6.0 } else { place };
        let full = (libm::fabs(place - 3.0) - 1.0).clamp(0.0, 1.0);
        (255.0 * value * (1.0 - saturation * (1.0 - full)) + 0.5) as u8
    })
}

/// An instance's colours: hues within a random part of the circle.
pub(super) struct Hues {
    base: f64,
    spread: f64,
}

impl Hues {
    pub fn random(random: &mut SampleRandom) -> Self {
        Self { base: random.uniform(), spread: random.range(0.0, 0.6) }
    }

    pub fn colour(&self, random: &mut SampleRandom) -> [u8; 3] {
        let hue = self.base + self.spread * random.uniform();
        colour(hue, random.range(0.2, 1.0), random.range(0.4, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::colour;

    #[test]
    fn hues_go_round_from_red() {
        let sixths = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0].map(|sixth: f64| colour(sixth / 6.0, 1.0, 1.0));
        let [full, none] = [255, 0];
        let expected = [
            [full, none, none],
            [full, full, none],
            [none, full, none],
            [none, full, full],
            [none, none, full],
            [full, none, full],
            [full, none, none],
        ];
        assert_eq!(sixths, expected);
        assert_eq!(colour(0.3, 0.0, 0.5), [128; 3]);
    }
}
