//! An image and its maps as one figure, and side by side at the image's own resolution.

use vit_data::{Filter, Image, Region, resize};
use vit_plot::palette::{Colour, FRAME, MUTED, ORANGE};
use vit_plot::{Area, ColourMap, PlotError, Scene, Text, png};

use crate::Map;

/// The longer side of a panel.
const PANEL: f32 = 280.0;
/// Pixels of a panel's image per unit of the figure; figures are written as PNG at scale 2.
const SHARPNESS: f32 = 2.0;
const MARGIN: f32 = 24.0;
const HEADER: f32 = 72.0;
const CAPTION: f32 = 30.0;
/// Width of the colour bar beside a map, with its labels.
const BAR: f32 = 62.0;
const MAX_ACROSS: usize = 5;

/// An image and its maps, each with a name and a value (such as a class and its probability).
pub fn explanation_sheet(
    title: &str,
    subtitle: &str,
    image: &Image,
    region: Region,
    maps: &[(String, String, &Map)],
) -> Scene {
    let size = fitted(image);
    let (panels, step) = (maps.len() + 1, [size[0] + BAR, CAPTION + size[1] + MARGIN]);
    let across = panels.min(MAX_ACROSS);
    let down = panels.div_ceil(across);
    let width = (2.0 * MARGIN + across as f32 * step[0]).max(420.0);
    let mut scene = Scene::new(width, HEADER + down as f32 * step[1]);
    scene.text(Text::new(title, [MARGIN, 28.0], 18.0).bold().within(width - 2.0 * MARGIN));
    scene.text(Text::new(subtitle, [MARGIN, 52.0], 12.5).colour(MUTED).within(width - 2.0 * MARGIN));
    let (image, region) = sharp(image, region, size);
    for panel in 0..panels {
        let x = MARGIN + (panel % across) as f32 * step[0];
        let y = HEADER + (panel / across) as f32 * step[1];
        let area = Area { x, y: y + CAPTION, width: size[0], height: size[1] };
        let Some((name, figure, map)) = panel.checked_sub(1).map(|map| &maps[map]) else {
            scene.text(Text::new("image", [x, y + 12.0], 13.0).bold());
            scene.image(area, image.clone());
            outline(&mut scene, area, region);
            continue;
        };
        let figure = Text::new(figure, [0.0, y + 12.0], 13.0).colour(MUTED);
        let name = Text::new(name, [x, y + 12.0], 13.0).bold().within(size[0] + BAR - figure.width() - 24.0);
        let at = [x + name.width() + 8.0, y + 12.0];
        scene.text(name);
        scene.text(Text { at, ..figure });
        scene.image(area, map.over(&image, region));
        let bar = Area { x: area.right() + 8.0, width: 9.0, ..area };
        match map.range_by_mean() {
            Some([low, high]) if high > low => scale(&mut scene, bar, [low, high]),
            Some(_) => scene.text(Text::new("even", [bar.x, bar.y + 8.0], 11.0).colour(MUTED)),
            None => scene.text(Text::new("nothing", [bar.x, bar.y + 8.0], 11.0).colour(MUTED)),
        }
    }
    scene
}

/// The colour bar beside a map; its ends are multiples of the map's mean.
fn scale(scene: &mut Scene, bar: Area, [low, high]: [f64; 2]) {
    let rows = bar.height as usize;
    let colour = |row: usize| {
        let Colour(r, g, b) = ColourMap::Heat.at(1.0 - row as f32 / (rows.max(2) - 1) as f32);
        [r, g, b]
    };
    if let Ok(image) = Image::from_rgb(1, rows, (0..rows).flat_map(colour).collect()) {
        scene.image(bar, image);
    }
    scene.frame(bar, FRAME);
    for (value, y) in [(high, bar.y + 6.0), (low, bar.bottom() - 6.0)] {
        let label = if value < 9.95 { format!("{value:.1}×") } else { format!("{value:.0}×") };
        scene.text(Text::new(label, [bar.right() + 5.0, y], 11.0).colour(MUTED));
    }
}

/// Width and height of a panel for this image.
fn fitted(image: &Image) -> [f32; 2] {
    let (width, height) = (image.width() as f32, image.height() as f32);
    let scale = PANEL / width.max(height);
    // Very elongated images keep a visible shorter side.
    [(width * scale).round().max(24.0), (height * scale).round().max(24.0)]
}

/// The image at the resolution of a panel, and the region in it. Upscaling is nearest-neighbour, so that pixels stay visible.
fn sharp(image: &Image, region: Region, size: [f32; 2]) -> (Image, Region) {
    let [width, height] = size.map(|side| (side * SHARPNESS) as usize);
    let filter = if width >= image.width() { Filter::Nearest } else { Filter::Lanczos };
    let [sx, sy] = [width as f64 / image.width() as f64, height as f64 / image.height() as f64];
    let region = Region { x: region.x * sx, y: region.y * sy, width: region.width * sx, height: region.height * sy };
    (resize(image, width, height, filter), region)
}

/// A frame around the model's input, if that is a part of the image.
fn outline(scene: &mut Scene, area: Area, region: Region) {
    let [x, y, width, height] = [region.x, region.y, region.width, region.height].map(|v| v as f32 / SHARPNESS);
    let (left, top) = ((area.x + x).max(area.x), (area.y + y).max(area.y));
    let (right, bottom) = ((area.x + x + width).min(area.right()), (area.y + y + height).min(area.bottom()));
    let seen = Area { x: left, y: top, width: right - left, height: bottom - top };
    if seen.width < area.width - 1.0 || seen.height < area.height - 1.0 {
        scene.frame(seen, ORANGE);
    }
}

/// The image, and beside it the same with the map over it, at the image's resolution.
pub fn side_by_side(image: &Image, region: Region, map: &Map) -> Image {
    let shown = map.over(image, region);
    let gap = (image.width() / 64).max(1);
    let mut pixels = Vec::with_capacity((2 * image.width() + gap) * image.height() * 3);
    for y in 0..image.height() {
        pixels.extend_from_slice(image.row(y));
        pixels.resize(pixels.len() + 3 * gap, 255);
        pixels.extend_from_slice(shown.row(y));
    }
    Image::from_rgb(2 * image.width() + gap, image.height(), pixels).unwrap_or(shown)
}

/// [`side_by_side`] as a PNG file.
pub fn side_by_side_png(image: &Image, region: Region, map: &Map) -> Result<Vec<u8>, PlotError> {
    png(&side_by_side(image, region, map))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sheets_are_readable() {
        for (width, height, count) in [(32, 32, 1), (500, 375, 4), (40, 900, 6), (3000, 10, 2), (64, 48, 0)] {
            let image = Image::from_rgb(width, height, vec![120; width * height * 3]).unwrap();
            let region = Region { x: 4.0, y: -3.0, width: width as f64 - 8.0, height: height as f64 + 6.0 };
            let map = Map::new([2, 2], vec![0.1, 0.2, 0.3, 40.0], [16, 16], [16, 16]).unwrap();
            let entry =
                |i: usize| (format!("a class with a long name {i}"), format!("{:.1} %", 100.0 / (i + 1) as f32), &map);
            let maps: Vec<_> = (0..count).map(entry).collect();
            let scene = explanation_sheet("an image with a rather long name.jpg", "some model", &image, region, &maps);
            scene.assert_readable();
            assert!(scene.png(1.0).is_ok());
            let both = side_by_side(&image, region, &map);
            assert!(both.width() > 2 * width && both.height() == height);
            assert_eq!(both.row(0)[..3], image.row(0)[..3]);
        }
    }
}
