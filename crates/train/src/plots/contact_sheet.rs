//! A contact sheet of a model's most confident mistakes, with labels and predictions.

use vit_data::Image;

use vit_plot::palette::{GREEN, INK, MUTED, PAPER, RED};
use vit_plot::{Anchor, Area, Scene, Text};

const THUMBNAIL: f32 = 168.0;
const GAP: f32 = 20.0;
const CAPTION: f32 = 48.0;
const HEADER: f32 = 84.0;

/// One image of a contact sheet.
#[derive(Debug, Clone)]
pub struct SheetEntry {
    /// The image, of any size.
    pub image: Image,
    /// The name of its label.
    pub label: String,
    /// The name of the predicted class.
    pub predicted: String,
    /// The probability of the predicted class.
    pub confidence: f64,
}

/// A grid of images in the given order.
pub fn contact_sheet(title: &str, entries: &[SheetEntry]) -> Scene {
    let across = ((entries.len() as f32 * 1.5).sqrt().ceil() as usize).clamp(3, 8);
    let down = entries.len().div_ceil(across).max(1);
    let (step_x, step_y) = (THUMBNAIL + GAP, THUMBNAIL + CAPTION + GAP);
    let mut scene = Scene::new(GAP + across as f32 * step_x, HEADER + down as f32 * step_y);
    scene.text(Text::new(title, [GAP, 28.0], 18.0).bold().within(scene.size().0 - 2.0 * GAP));
    let mut x = GAP;
    for (text, colour) in [("what the model saw", RED), ("what it is", GREEN)] {
        scene.dot([x + 5.0, 56.0], 4.5, colour);
        let text = Text::new(text, [x + 16.0, 56.0], 12.0).colour(MUTED);
        x += 16.0 + text.width() + 20.0;
        scene.text(text);
    }
    for (index, entry) in entries.iter().enumerate() {
        let x = GAP + (index % across) as f32 * step_x;
        let y = HEADER + (index / across) as f32 * step_y;
        scene.rectangle(Area { x, y, width: THUMBNAIL, height: THUMBNAIL }, PAPER);
        scene.image(fitted(&entry.image, x, y), thumbnail(&entry.image));
        let confidence =
            Text::new(format!("{:.1} %", 100.0 * entry.confidence), [x + THUMBNAIL, y + THUMBNAIL + 15.0], 12.0);
        let room = THUMBNAIL - confidence.width() - 8.0;
        scene.text(confidence.colour(INK).anchor(Anchor::Right));
        scene.text(Text::new(&entry.predicted, [x, y + THUMBNAIL + 15.0], 12.5).colour(RED).within(room));
        scene.text(Text::new(&entry.label, [x, y + THUMBNAIL + 33.0], 12.5).colour(GREEN).within(THUMBNAIL));
    }
    scene
}

/// The area of an image in its square, with its aspect ratio.
fn fitted(image: &Image, x: f32, y: f32) -> Area {
    let (width, height) = (image.width() as f32, image.height() as f32);
    let scale = THUMBNAIL / width.max(height);
    let (width, height) = ((width * scale).round().max(1.0), (height * scale).round().max(1.0));
    Area { x: x + ((THUMBNAIL - width) / 2.0).round(), y: y + ((THUMBNAIL - height) / 2.0).round(), width, height }
}

/// A reduced copy, so that a sheet does not hold photographs of many megabytes.
fn thumbnail(image: &Image) -> Image {
    vit_plot::embed::shrunk(image, 3 * THUMBNAIL as usize).unwrap_or_else(|| image.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sheets_are_readable() {
        for count in [0, 1, 5, 24, 60] {
            let entry = |index: usize| SheetEntry {
                image: Image::from_rgb(
                    1 + index * 31,
                    700 / (1 + index),
                    vec![90; (1 + index * 31) * (700 / (1 + index)) * 3],
                )
                .unwrap(),
                label: "bird".repeat(1 + index % 12),
                predicted: "a Siberian husky or so".chars().cycle().take(index * 3).collect(),
                confidence: 1.0 - index as f64 / 100.0,
            };
            let scene = contact_sheet("The surest mistakes", &(0..count).map(entry).collect::<Vec<_>>());
            scene.assert_readable();
            assert!(scene.png(1.0).is_ok());
        }
    }
}
