//! A relevance map: a grid of values over the model's input.

use vit_data::{Image, Region};
use vit_plot::ColourMap;
use vit_plot::palette::Colour;

use crate::InsightError;

/// Opacity of the overlay at a map's smallest and largest value: low values darken the image, and the image stays
/// visible everywhere.
const OPACITY: [f32; 2] = [0.5, 0.62];

/// A grid of values over the input of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Map {
    rows: usize,
    columns: usize,
    values: Vec<f32>,
    input: [usize; 2],
    covers: [usize; 2],
}

impl Map {
    /// `rows x columns` values over an `input` of height and width. They cover its upper left part `covers`: all of it,
    /// unless a border is narrower than a patch.
    pub fn new(grid: [usize; 2], values: Vec<f32>, input: [usize; 2], covers: [usize; 2]) -> Result<Map, InsightError> {
        let expected = grid[0].saturating_mul(grid[1]);
        if expected != values.len() || expected == 0 {
            return Err(InsightError::Length { what: "a map", found: values.len(), expected });
        }
        Ok(Map { rows: grid[0], columns: grid[1], values, input, covers })
    }

    /// Rows and columns.
    pub fn grid(&self) -> [usize; 2] {
        [self.rows, self.columns]
    }

    /// The values, row by row.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// The smallest and the largest value.
    pub fn range(&self) -> [f32; 2] {
        let fold = |f: fn(f32, f32) -> f32, start| self.values.iter().copied().fold(start, f);
        [fold(f32::min, f32::INFINITY), fold(f32::max, f32::NEG_INFINITY)]
    }

    /// The smallest and the largest value in units of the mean. `None` for a map of zeros.
    pub fn range_by_mean(&self) -> Option<[f64; 2]> {
        let mean = self.values.iter().map(|&v| f64::from(v)).sum::<f64>() / self.values.len() as f64;
        (mean > 0.0).then(|| self.range().map(|v| f64::from(v) / mean))
    }

    /// A value's position between the smallest (0) and the largest (1).
    fn share(&self, value: f32) -> f32 {
        let [low, high] = self.range();
        if high > low { (value - low) / (high - low) } else { 0.0 }
    }

    /// The map over an image, of which `region` was the model's input. The rest is grey.
    pub fn over(&self, image: &Image, region: Region) -> Image {
        let [low, high] = self.range();
        let spread = if high > low { high - low } else { f32::INFINITY };
        let lines = interpolations(image.height(), [region.y, region.height], self.input[0], self.covers[0], self.rows);
        let columns =
            interpolations(image.width(), [region.x, region.width], self.input[1], self.covers[1], self.columns);
        let mut shown = image.clone();
        for (row, line) in shown.pixels_mut().chunks_exact_mut(3 * image.width()).zip(&lines) {
            let cells = line.as_ref().map(|line| {
                let [above, below] = line.cells.map(|row| &self.values[row * self.columns..][..self.columns]);
                above.iter().zip(below).map(|(a, b)| a + (b - a) * line.weight).collect::<Vec<f32>>()
            });
            for (pixel, column) in row.chunks_exact_mut(3).zip(&columns) {
                match (&cells, column) {
                    (Some(cells), Some(column)) => {
                        let [left, right] = column.cells.map(|column| cells[column]);
                        blend(pixel, (left + (right - left) * column.weight - low) / spread);
                    }
                    _ => unseen(pixel),
                }
            }
        }
        shown
    }

    /// The map as RGBA, one pixel per cell, to be laid over the covered part of the input.
    pub fn cells(&self) -> Vec<u8> {
        let cell = |&value: &f32| {
            let share = self.share(value);
            let Colour(red, green, blue) = ColourMap::Heat.at(share);
            [red, green, blue, (255.0 * opacity(share)).round() as u8]
        };
        self.values.iter().flat_map(cell).collect()
    }

    /// The part of an image that the map covers, if `region` of it was the model's input.
    pub fn part(&self, region: Region) -> Region {
        let share = |axis: usize| self.covers[axis] as f64 / self.input[axis].max(1) as f64;
        Region { width: region.width * share(1), height: region.height * share(0), ..region }
    }
}

/// Linear interpolation between the centres of two cells; `weight` is the weight of the second.
struct LinearInterpolation {
    cells: [usize; 2],
    weight: f32,
}

/// For each pixel along one axis, the cells to interpolate between. `part` (start and length) of the axis became an input
/// of this length, whose first `covers` pixels the cells cover; `None` outside.
fn interpolations(
    pixels: usize,
    part: [f64; 2],
    input: usize,
    covers: usize,
    cells: usize,
) -> Vec<Option<LinearInterpolation>> {
    let place = |pixel: usize| {
        let at = ((pixel as f64 + 0.5 - part[0]) * input as f64 / part[1]) as f32;
        let inside = (0.0..=covers as f32).contains(&at);
        inside.then(|| {
            let place = (at * cells as f32 / covers.max(1) as f32 - 0.5).clamp(0.0, (cells - 1) as f32);
            let before = (place as usize).min(cells.saturating_sub(2));
            LinearInterpolation { cells: [before, (before + 1).min(cells - 1)], weight: place - before as f32 }
        })
    };
    (0..pixels).map(place).collect()
}

fn opacity(share: f32) -> f32 {
    OPACITY[0] + (OPACITY[1] - OPACITY[0]) * share
}

fn blend(pixel: &mut [u8], share: f32) {
    let (Colour(red, green, blue), opacity) = (ColourMap::Heat.at(share), opacity(share));
    for (channel, colour) in pixel.iter_mut().zip([red, green, blue]) {
        *channel = (f32::from(*channel) * (1.0 - opacity) + f32::from(colour) * opacity).round() as u8;
    }
}

fn unseen(pixel: &mut [u8]) {
    let grey = pixel.iter().map(|&c| u16::from(c)).sum::<u16>() / 3;
    pixel.fill((grey / 2 + 56) as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_lie_where_their_patches_are() {
        // One bright cell in a grid of 2 x 4 over an input of 8 x 16, which is the middle of a wider image.
        let mut values = vec![0.0; 8];
        values[6] = 1.0;
        let map = Map::new([2, 4], values, [8, 16], [8, 16]).unwrap();
        let image = Image::from_rgb(64, 24, vec![128; 64 * 24 * 3]).unwrap();
        let region = Region { x: 8.0, y: 0.0, width: 48.0, height: 24.0 };
        let shown = map.over(&image, region);
        let brightness = |x: usize, y: usize| shown.row(y)[3 * x..3 * x + 3].iter().map(|&c| u32::from(c)).sum::<u32>();
        // The cell's centre: row 1.5 of 2, column 2.5 of 4.
        let brightest = (0..24).flat_map(|y| (8..56).map(move |x| (x, y))).max_by_key(|&(x, y)| brightness(x, y));
        let (x, y) = brightest.unwrap();
        assert!((37..=38).contains(&x) && y >= 17, "{x}, {y}");
        assert!(brightness(12, 4) < brightness(x, y));
        assert_eq!(shown.row(3)[..3], [120; 3], "outside of the input the image is grey");
        assert_eq!(shown.row(3)[3 * 60..3 * 61], [120; 3]);
    }

    #[test]
    fn even_maps_and_maps_of_one_cell_can_be_shown() {
        let image = Image::from_rgb(3, 2, vec![90; 18]).unwrap();
        let region = Region { x: 0.0, y: 0.0, width: 3.0, height: 2.0 };
        for (grid, value) in [([1, 1], 0.0), ([1, 1], 3.0), ([2, 2], 0.25)] {
            let map = Map::new(grid, vec![value; grid[0] * grid[1]], [2, 3], [2, 3]).unwrap();
            let shown = map.over(&image, region);
            assert!(shown.pixels().chunks(3).all(|p| p == &shown.pixels()[..3]));
            assert_eq!(map.range_by_mean(), (value > 0.0).then_some([1.0, 1.0]));
        }
        assert!(Map::new([2, 2], vec![0.0; 3], [2, 2], [2, 2]).is_err());
    }
}
