//! Crops for training: a random part with a random aspect ratio (the sampling of timm and torchvision), or a random
//! window of a padded image, as is usual for small images.

use super::SampleRandom;
use crate::image::Image;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A rectangle of whole pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CropBox {
    /// Columns before it.
    pub left: usize,
    /// Rows above it.
    pub top: usize,
    /// Its columns.
    pub width: usize,
    /// Its rows.
    pub height: usize,
}

impl CropBox {
    /// A rectangle whose fraction of the area is in `scale` and whose aspect ratio (width to height) is in `ratio`.
    /// After ten candidates that do not fit, the largest centred one that does.
    pub fn random(width: usize, height: usize, scale: [f64; 2], ratio: [f64; 2], random: &mut SampleRandom) -> Self {
        let area = width as f64 * height as f64;
        let rounded = |length: f64| length.round_ties_even() as usize;
        for _ in 0..10 {
            let target = random.range(scale[0], scale[1]) * area;
            let proportion = libm::exp(random.range(libm::log(ratio[0]), libm::log(ratio[1])));
            let part_width = rounded((target * proportion).sqrt());
            let part_height = rounded((target / proportion).sqrt());
            // The lower bound differs from timm: a few pixels can round to none, which Pillow cannot resize.
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

/// The part of the image inside the rectangle, which must lie in it.
pub(crate) fn cut(image: &Image, region: CropBox) -> Image {
    let mut pixels = Vec::with_capacity(region.width * region.height * 3);
    for y in region.top..region.top + region.height {
        pixels.extend_from_slice(&image.row(y)[region.left * 3..(region.left + region.width) * 3]);
    }
    Image::from_parts(region.width, region.height, pixels)
}

/// The content of a border around an image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fill {
    /// The image mirrored at its outermost pixels, which are not repeated.
    Reflect,
    /// Black.
    #[default]
    Black,
}

/// A window of `size` = (width, height) at `corner` = (left, top) of a padded image.
pub(crate) struct CropWindow {
    pub(crate) border: usize,
    pub(crate) fill: Fill,
    pub(crate) corner: (usize, usize),
    pub(crate) size: (usize, usize),
}

impl CropWindow {
    /// The columns and rows of an image of `whole` = (width, height) that are visible in the window, directly or
    /// mirrored; `None` if only a black border is.
    pub(crate) fn shown(&self, whole: (usize, usize)) -> Option<(Range<usize>, Range<usize>)> {
        let span = |start: usize, length: usize, whole: usize| {
            let shown = (start..start + length).filter_map(|at| self.source(at, whole));
            shown.fold(None, |span: Option<Range<usize>>, at| {
                Some(span.map_or(at..at + 1, |span| span.start.min(at)..span.end.max(at + 1)))
            })
        };
        Some((span(self.corner.0, self.size.0, whole.0)?, span(self.corner.1, self.size.1, whole.1)?))
    }

    /// The window's content, given the part of an image of `whole` = (width, height) that begins at `origin` and
    /// contains everything that is [`shown`](Self::shown).
    pub(crate) fn of(&self, part: &Image, origin: (usize, usize), whole: (usize, usize)) -> Image {
        let (width, height) = self.size;
        let (left, top) = self.corner;
        let mut pixels = vec![0u8; width * height * 3];
        let columns: Vec<Option<usize>> =
            (left..left + width).map(|x| Some(self.source(x, whole.0)? - origin.0)).collect();
        // Nearly all columns are contiguous in the image, too, and are copied together.
        let inside =
            self.border.saturating_sub(left).min(width)..(self.border + whole.0).saturating_sub(left).min(width);
        for (y, row) in pixels.chunks_exact_mut(width * 3).enumerate() {
            let Some(from) = self.source(top + y, whole.1).map(|y| part.row(y - origin.1)) else { continue };
            let mut pick = |x: usize| {
                if let Some(column) = columns[x] {
                    row[x * 3..x * 3 + 3].copy_from_slice(&from[column * 3..column * 3 + 3]);
                }
            };
            (0..inside.start).chain(inside.end..width).for_each(&mut pick);
            if !inside.is_empty() {
                let first = (left + inside.start - self.border - origin.0) * 3;
                row[inside.start * 3..inside.end * 3].copy_from_slice(&from[first..first + inside.len() * 3]);
            }
        }
        Image::from_parts(width, height, pixels)
    }

    /// The column or row of the image that is visible at `at`, `None` in a black border.
    fn source(&self, at: usize, length: usize) -> Option<usize> {
        match self.fill {
            Fill::Reflect => Some(reflected(at as i64 - self.border as i64, length)),
            Fill::Black => at.checked_sub(self.border).filter(|at| *at < length),
        }
    }
}

/// The pixel visible at `at` with mirrors at both ends.
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
    use crate::resize::{Filter, resize, resize_window};

    #[test]
    fn a_mirror_repeats_no_edge() {
        let shown = |length: usize| (-5..8).map(|at| reflected(at, length)).collect::<Vec<_>>();
        assert_eq!(shown(4), [1, 2, 3, 2, 1, 0, 1, 2, 3, 2, 1, 0, 1]);
        assert_eq!(shown(2), [1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(shown(1), [0; 13]);
    }

    #[test]
    fn what_is_not_shown_need_not_be_resized() {
        let image = Image::from_rgb(5, 3, (0..45).map(|value| value * 5).collect()).unwrap();
        let filter = Filter::Bicubic;
        let whole = (40, 24);
        let resized = resize(&image, whole.0, whole.1, filter);
        for (fill, border) in [(Fill::Black, 4), (Fill::Black, 20), (Fill::Reflect, 4), (Fill::Reflect, 100)] {
            for corner in [(0, 0), (3, 4), (20, 8), (16 + 2 * border, border), (24 + 2 * border, 8 + 2 * border)] {
                let window = CropWindow { border, fill, corner, size: (16, 16) };
                let expected = window.of(&resized, (0, 0), whole);
                let Some((columns, rows)) = window.shown(whole) else {
                    assert!(expected.pixels().iter().all(|value| *value == 0));
                    continue;
                };
                assert!(columns.len() <= 16 + border && rows.len() <= 16 + border);
                let origin = (columns.start, rows.start);
                let part = resize_window(&image, whole, columns, rows, filter);
                assert_eq!(window.of(&part, origin, whole).pixels(), expected.pixels(), "{fill:?} {border} {corner:?}");
            }
        }
    }

    #[test]
    fn a_window_shows_image_and_border() {
        let image = Image::from_rgb(2, 2, (1..=12).collect()).unwrap();
        let grey = |image: &Image| image.pixels().iter().step_by(3).copied().collect::<Vec<_>>();
        let window = |fill, corner, size| CropWindow { border: 1, fill, corner, size }.of(&image, (0, 0), (2, 2));
        let black = window(Fill::Black, (0, 0), (4, 4));
        assert_eq!(grey(&black), [0, 0, 0, 0, 0, 1, 4, 0, 0, 7, 10, 0, 0, 0, 0, 0]);
        let mirrored = window(Fill::Reflect, (0, 1), (3, 2));
        assert_eq!(grey(&mirrored), [4, 1, 4, 10, 7, 10]);
    }
}
