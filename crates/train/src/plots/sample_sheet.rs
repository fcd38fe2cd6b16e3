//! A contact sheet of a dataset: a row of images for each class.

use vit_data::Image;
use vit_plot::palette::INK;
use vit_plot::{Area, Scene, Text};

const GAP: f32 = 4.0;
const NAMES: f32 = 120.0;

/// A class and some of its images.
#[derive(Debug, Clone)]
pub struct SampleRow {
    /// The name of the class.
    pub class: String,
    /// Images of any size.
    pub images: Vec<Image>,
}

/// A sheet with squares of this many pixels.
pub fn sample_sheet(rows: &[SampleRow], side: f32) -> Scene {
    let across = rows.iter().map(|row| row.images.len()).max().unwrap_or(0);
    let step = side + GAP;
    let mut scene = Scene::new(NAMES + across as f32 * step + GAP, rows.len() as f32 * step + GAP);
    for (down, row) in rows.iter().enumerate() {
        let y = GAP + down as f32 * step;
        scene.text(Text::new(&row.class, [GAP, y + side / 2.0], 12.0).colour(INK).within(NAMES - 2.0 * GAP));
        for (at, image) in row.images.iter().enumerate() {
            let (width, height) = (image.width() as f32, image.height() as f32);
            let scale = side / width.max(height);
            let (width, height) = ((width * scale).round().max(1.0), (height * scale).round().max(1.0));
            let x = NAMES + at as f32 * step + ((side - width) / 2.0).round();
            let shown = vit_plot::embed::shrunk(image, side as usize).unwrap_or_else(|| image.clone());
            scene.image(Area { x, y: y + ((side - height) / 2.0).round(), width, height }, shown);
        }
    }
    scene
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sheets_are_readable() {
        let image = |side: usize| Image::from_rgb(side, 2 * side, vec![90; 6 * side * side]).unwrap();
        let row = |count: usize| SampleRow {
            class: "wirehaired pointing griffon".into(),
            images: (1..=count).map(image).collect(),
        };
        for rows in [vec![], vec![row(0)], vec![row(1), row(7), row(30)]] {
            let scene = sample_sheet(&rows, 48.0);
            scene.assert_readable();
            assert!(scene.png(1.0).is_ok());
        }
    }
}
