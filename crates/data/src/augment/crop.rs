//! Choosing the part of a picture that a model trains on: a random part of random proportions (timm's and torchvision's
//! sampling), or a random window of the picture with a border around it, as is usual for small pictures.

use super::SampleRandom;
use crate::image::Image;
use serde::{Deserialize, Serialize};

/// A rectangle of whole pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Columns before it.
    pub left: usize,
    /// Rows above it.
    pub top: usize,
    /// Its columns.
    pub width: usize,
    /// Its rows.
    pub height: usize,
}

impl Region {
    /// A region whose share of the area is in `scale` and whose proportion (width to height) is in `ratio`. After ten
    /// that do not fit, the greatest in the middle that does.
    pub fn random(width: usize, height: usize, scale: [f64; 2], ratio: [f64; 2], random: &mut SampleRandom) -> Self {
        let area = width as f64 * height as f64;
        let rounded = |length: f64| length.round_ties_even() as usize;
        for _ in 0..10 {
            let target = random.range(scale[0], scale[1]) * area;
            let proportion = libm::exp(random.range(libm::log(ratio[0]), libm::log(ratio[1])));
            let part_width = rounded((target * proportion).sqrt());
            let part_height = rounded((target / proportion).sqrt());
            // The lower limit is ours: a few pixels can round to none, which Pillow cannot resize.
            if (1..=width).contains(&part_width) && (1..=height).contains(&part_height) {
                let top = random.below(height - part_height + 1);
                let left = random.below(width - part_width + 1);
                return Self { left, top, width: part_width, height: part_height };
            }
        }
        let proportion = width as f64 / height as f64;
        let (part_width, part_height) = if proportion < ratio[0] {
            (width, rounded(width as f64 / ratio[0]).clamp(1, height))
        } else if proportion > ratio[1] {
            (rounded(height as f64 * ratio[1]).clamp(1, width), height)
        } else {
            (width, height)
        };
        let (left, top) = ((width - part_width) / 2, (height - part_height) / 2);
        Self { left, top, width: part_width, height: part_height }
    }
}

/// The part of the picture inside the region, which must lie in it.
pub(crate) fn cut(image: &Image, region: Region) -> Image {
    let mut pixels = Vec::with_capacity(region.width * region.height * 3);
    for y in region.top..region.top + region.height {
        pixels.extend_from_slice(&image.row(y)[region.left * 3..(region.left + region.width) * 3]);
    }
    Image::from_parts(region.width, region.height, pixels)
}

/// What a border around a picture shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fill {
    /// The picture mirrored at its outermost pixels, which are not repeated.
    Reflect,
    /// Black.
    #[default]
    Black,
}

/// The window of `width` x `height` at (`left`, `top`) of the picture with a border of `border` pixels around it.
pub(crate) fn window(
    image: &Image,
    border: usize,
    fill: Fill,
    (left, top): (usize, usize),
    (width, height): (usize, usize),
) -> Image {
    let mut pixels = vec![0u8; width * height * 3];
    // Where the window's columns and rows come from, `None` if from a black border.
    let source = |at: usize, length: usize| match fill {
        Fill::Reflect => Some(reflected(at as i64 - border as i64, length)),
        Fill::Black => at.checked_sub(border).filter(|at| *at < length),
    };
    let columns: Vec<Option<usize>> = (left..left + width).map(|x| source(x, image.width())).collect();
    // Nearly all columns are neighbours in the picture too and can be copied together.
    let inside = border.saturating_sub(left).min(width)..(border + image.width()).saturating_sub(left).min(width);
    for (y, row) in pixels.chunks_exact_mut(width * 3).enumerate() {
        let Some(from) = source(top + y, image.height()).map(|y| image.row(y)) else { continue };
        let mut pick = |x: usize| {
            if let Some(column) = columns[x] {
                row[x * 3..x * 3 + 3].copy_from_slice(&from[column * 3..column * 3 + 3]);
            }
        };
        (0..inside.start).chain(inside.end..width).for_each(&mut pick);
        if !inside.is_empty() {
            let first = (left + inside.start - border) * 3;
            row[inside.start * 3..inside.end * 3].copy_from_slice(&from[first..first + inside.len() * 3]);
        }
    }
    Image::from_parts(width, height, pixels)
}

/// The pixel that a mirror at both ends shows at `at`.
fn reflected(at: i64, length: usize) -> usize {
    let last = length as i64 - 1;
    if last == 0 {
        return 0;
    }
    let at = at.rem_euclid(2 * last);
    (if at <= last { at } else { 2 * last - at }) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mirror_repeats_no_edge() {
        let shown = |length: usize| (-5..8).map(|at| reflected(at, length)).collect::<Vec<_>>();
        assert_eq!(shown(4), [1, 2, 3, 2, 1, 0, 1, 2, 3, 2, 1, 0, 1]);
        assert_eq!(shown(2), [1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(shown(1), [0; 13]);
    }

    #[test]
    fn a_window_shows_picture_and_border() {
        let image = Image::from_rgb(2, 2, (1..=12).collect()).unwrap();
        let grey = |image: &Image| image.pixels().iter().step_by(3).copied().collect::<Vec<_>>();
        let black = window(&image, 1, Fill::Black, (0, 0), (4, 4));
        assert_eq!(grey(&black), [0, 0, 0, 0, 0, 1, 4, 0, 0, 7, 10, 0, 0, 0, 0, 0]);
        let mirrored = window(&image, 1, Fill::Reflect, (0, 1), (3, 2));
        assert_eq!(grey(&mirrored), [4, 1, 4, 10, 7, 10]);
    }
}
