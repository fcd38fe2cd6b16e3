//! An image divided into patches, before and after preprocessing.

use vit_data::{ApplyPreprocess, Filter, Image, Preprocess, Region, resize};
use vit_models::{Architecture, PatchGrid};
use vit_plot::palette::{Colour, INK, MUTED, ORANGE, WHITE};
use vit_plot::{Anchor, Area, Scene, Text};

use crate::InsightError;
use crate::inspect::last_grid;
use crate::layers::covered;

/// The longer side of each of the two images.
const SIDE: f32 = 560.0;
const MARGIN: f32 = 24.0;
const TOP: f32 = 96.0;
/// The smallest cell that holds its index.
const READABLE: f32 = 15.0;

/// An image with the borders of its patches, beside the model's input with the patches apart and numbered row by row.
pub fn patches(
    title: &str,
    image: &Image,
    architecture: &Architecture,
    preprocess: &Preprocess,
) -> Result<Scene, InsightError> {
    let (grid, of) = grid(architecture)?;
    let input = preprocess.crop(image)?;
    let region = preprocess.region(image.width(), image.height())?;
    let covers = covered(architecture, grid);
    let (before, after) = (fitted(image), fitted(&input));
    let width = 3.0 * MARGIN + before[0] + after[0];
    let mut scene = Scene::new(width, TOP + before[1].max(after[1]) + MARGIN);
    scene.text(Text::new(title, [MARGIN, 28.0], 18.0).bold().within(width - 2.0 * MARGIN));
    let (rows, columns) = (grid[0], grid[1]);
    let [high, wide] = [covers[0] as f64 / rows as f64, covers[1] as f64 / columns as f64];
    let summary = format!("{} {of}: {rows} x {columns}, each {} x {} pixels", rows * columns, plain(high), plain(wide));
    scene.text(Text::new(summary, [MARGIN, 52.0], 12.5).colour(MUTED).within(width - 2.0 * MARGIN));

    let area = Area { x: MARGIN, y: TOP, width: before[0], height: before[1] };
    let heading = format!("before: {} x {} pixels", image.width(), image.height());
    scene.text(Text::new(heading, [area.x, TOP - 14.0], 13.0).bold().within(before[0]));
    scene.image(area, sharp(image, before));
    outline_patches(&mut scene, area, image, region, grid, covers, preprocess.image_size);

    let area = Area { x: 2.0 * MARGIN + before[0], y: TOP, width: after[0], height: after[1] };
    let heading = format!("after: {} x {} pixels", input.width(), input.height());
    scene.text(Text::new(heading, [area.x, TOP - 14.0], 13.0).bold().within(after[0]));
    scene.image(area, sharp(&input, after));
    number_patches(&mut scene, area, grid, [covers[0], covers[1]], preprocess.image_size);
    Ok(scene)
}

/// Rows and columns of the grid, and what its cells are.
fn grid(architecture: &Architecture) -> Result<([usize; 2], &'static str), InsightError> {
    Ok(match architecture.patches() {
        Some(PatchGrid { grid, size: Some(_) }) => (grid, "patches"),
        Some(PatchGrid { grid, size: None }) => (grid, "patches of a convolutional feature map"),
        None => (last_grid(architecture)?, "cells of the last feature map (this model has no patches)"),
    })
}

fn plain(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { format!("{value:.1}") }
}

fn fitted(image: &Image) -> [f32; 2] {
    let (width, height) = (image.width() as f32, image.height() as f32);
    let scale = SIDE / width.max(height);
    [(width * scale).round().max(120.0), (height * scale).round().max(24.0)]
}

fn sharp(image: &Image, size: [f32; 2]) -> Image {
    let [width, height] = size.map(|side| (2.0 * side) as usize);
    let filter = if width >= image.width() { Filter::Nearest } else { Filter::Lanczos };
    resize(image, width, height, filter)
}

/// The borders of the patches in the original image.
fn outline_patches(
    scene: &mut Scene,
    area: Area,
    image: &Image,
    region: Region,
    [rows, columns]: [usize; 2],
    covers: [usize; 2],
    input: [usize; 2],
) {
    let scale = [f64::from(area.width) / image.width() as f64, f64::from(area.height) / image.height() as f64];
    let share = |axis: usize| covers[axis] as f64 / input[axis].max(1) as f64;
    let x = |column: usize| {
        area.x + ((region.x + region.width * share(1) * column as f64 / columns as f64) * scale[0]) as f32
    };
    let y = |row: usize| area.y + ((region.y + region.height * share(0) * row as f64 / rows as f64) * scale[1]) as f32;
    let (left, right) = (x(0).max(area.x), x(columns).min(area.right()));
    let (top, bottom) = (y(0).max(area.y), y(rows).min(area.bottom()));
    // Lines between narrow cells would hide the image: draw every second, fourth, … only.
    let every = |count: usize, length: f32| {
        let mut step = 1;
        while length / count as f32 * (step as f32) < 7.0 && step < count {
            step *= 2;
        }
        step
    };
    for column in (0..=columns).step_by(every(columns, right - left)).filter(|c| (left..=right).contains(&x(*c))) {
        scene.line(vec![[x(column), top], [x(column), bottom]], 1.0, WHITE);
    }
    for row in (0..=rows).step_by(every(rows, bottom - top)).filter(|r| (top..=bottom).contains(&y(*r))) {
        scene.line(vec![[left, y(row)], [right, y(row)]], 1.0, WHITE);
    }
    scene.frame(Area { x: left, y: top, width: right - left, height: bottom - top }, ORANGE);
}

/// Gaps between the patches of the input, and their indices where these fit.
fn number_patches(scene: &mut Scene, area: Area, [rows, columns]: [usize; 2], covers: [usize; 2], input: [usize; 2]) {
    let inside = [
        area.width * covers[1] as f32 / input[1].max(1) as f32,
        area.height * covers[0] as f32 / input[0].max(1) as f32,
    ];
    let cell = [inside[0] / columns as f32, inside[1] / rows as f32];
    let gap = (cell[0].min(cell[1]) * 0.12).clamp(0.6, 4.0);
    for column in 0..=columns {
        let x = area.x + column as f32 * cell[0];
        scene.line(vec![[x, area.y], [x, area.y + inside[1]]], gap, WHITE);
    }
    for row in 0..=rows {
        let y = area.y + row as f32 * cell[1];
        scene.line(vec![[area.x, y], [area.x + inside[0], y]], gap, WHITE);
    }
    let longest = (rows * columns - 1).to_string();
    let size = (cell[1] * 0.3).clamp(8.0, 13.0);
    let room = Text::new(&longest, [0.0, 0.0], size).width() + 6.0;
    // Every index if it fits, else those of every second, fourth, … row and column.
    let (mut across, mut down) = (1, 1);
    while cell[0] * (across as f32) < room + 4.0 && across < columns {
        across *= 2;
    }
    while cell[1] * (down as f32) < READABLE && down < rows {
        down *= 2;
    }
    for row in (0..rows).step_by(down) {
        for column in (0..columns).step_by(across) {
            let text = Text::new((row * columns + column).to_string(), [0.0, 0.0], size);
            let (x, y) = (area.x + column as f32 * cell[0] + gap, area.y + row as f32 * cell[1] + gap);
            let tag = Area { x, y, width: text.width() + 4.0, height: size + 1.0 };
            if tag.right() > area.right() + 1.0 || tag.bottom() > area.bottom() + 1.0 {
                continue;
            }
            scene.rectangle(tag, Colour(255, 255, 255));
            let at = [tag.x + tag.width / 2.0, tag.y + tag.height / 2.0];
            scene.text(Text { at, ..text }.anchor(Anchor::Middle).colour(INK));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vit_models::variant;

    #[test]
    fn patches_of_all_models_are_readable() {
        let image = Image::from_rgb(320, 200, vec![140; 320 * 200 * 3]).unwrap();
        for name in
            ["vit_base_patch16_224", "Ti/4@32", "vit_large_patch14_224", "swin_tiny_patch4_window7_224", "resnet50"]
        {
            let model = variant(name).unwrap_or_else(|| panic!("{name}"));
            let preprocess = Preprocess { image_size: model.architecture.image_size(), ..Preprocess::default() };
            let scene = patches("an image.jpg", &image, &model.architecture, &preprocess).unwrap();
            scene.assert_readable();
            assert!(scene.png(1.0).is_ok());
        }
    }
}
