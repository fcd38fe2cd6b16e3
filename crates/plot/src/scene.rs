//! A figure as a list of shapes, in fractional pixels, y downwards.

use vit_data::Image;

use crate::font::{self, CAP_HEIGHT, Weight};
use crate::palette::{Colour, FRAME, INK, MUTED};
use crate::{ColourMap, axis};

/// A figure that can be written as SVG or PNG.
#[derive(Debug, Clone)]
pub struct Scene {
    pub(crate) width: f32,
    pub(crate) height: f32,
    pub(crate) shapes: Vec<Shape>,
}

/// A rectangle: left, top, width, height.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub struct Area {
    pub x: f32,
    pub y: f32,
    pub width: f32,
    pub height: f32,
}

impl Area {
    /// The right edge.
    pub fn right(self) -> f32 {
        self.x + self.width
    }

    /// The bottom edge.
    pub fn bottom(self) -> f32 {
        self.y + self.height
    }
}

#[derive(Debug, Clone)]
pub(crate) enum Shape {
    Rectangle { area: Area, fill: Colour },
    Line { points: Vec<[f32; 2]>, width: f32, colour: Colour, dashed: bool },
    Dot { centre: [f32; 2], radius: f32, fill: Colour },
    Text(Text),
    Image { area: Area, image: Image },
}

/// Which point of a text is at its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Anchor {
    Left,
    Middle,
    Right,
}

/// A line of text. Its capitals are vertically centred on `at`; `turned` text runs upwards.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub struct Text {
    pub text: String,
    pub at: [f32; 2],
    pub size: f32,
    pub colour: Colour,
    pub weight: Weight,
    pub anchor: Anchor,
    pub turned: bool,
}

impl Text {
    /// Dark regular text that starts at this point.
    pub fn new(text: impl Into<String>, at: [f32; 2], size: f32) -> Self {
        let (weight, anchor) = (Weight::Regular, Anchor::Left);
        Self { text: text.into(), at, size, colour: INK, weight, anchor, turned: false }
    }

    /// In another colour.
    pub fn colour(self, colour: Colour) -> Self {
        Self { colour, ..self }
    }

    /// With another anchor.
    pub fn anchor(self, anchor: Anchor) -> Self {
        Self { anchor, ..self }
    }

    /// In semi-bold weight.
    pub fn bold(self) -> Self {
        Self { weight: Weight::SemiBold, ..self }
    }

    /// Running upwards.
    pub fn turned(self) -> Self {
        Self { turned: true, ..self }
    }

    /// Shortened with an ellipsis to at most this width.
    pub fn within(mut self, width: f32) -> Self {
        if self.width() > width {
            let mut letters: Vec<char> = self.text.chars().collect();
            while self.width() > width && letters.pop().is_some() {
                self.text = letters.iter().collect::<String>().trim_end().to_string() + "…";
            }
        }
        self
    }

    /// Its width.
    pub fn width(&self) -> f32 {
        self.size * font::width(&self.text, self.weight)
    }

    /// The offset of the line's start along its direction, and of the baseline across it, from `at`.
    pub(crate) fn offset(&self) -> (f32, f32) {
        let along = match self.anchor {
            Anchor::Left => 0.0,
            Anchor::Middle => -self.width() / 2.0,
            Anchor::Right => -self.width(),
        };
        (along, self.size * CAP_HEIGHT / 2.0)
    }
}

impl Scene {
    /// An empty figure.
    pub fn new(width: f32, height: f32) -> Self {
        Self { width, height, shapes: Vec::new() }
    }

    /// Width and height in pixels.
    pub fn size(&self) -> (f32, f32) {
        (self.width, self.height)
    }

    /// A filled rectangle.
    pub fn rectangle(&mut self, area: Area, fill: Colour) {
        self.shapes.push(Shape::Rectangle { area, fill });
    }

    /// A line through points.
    pub fn line(&mut self, points: Vec<[f32; 2]>, width: f32, colour: Colour) {
        self.shapes.push(Shape::Line { points, width, colour, dashed: false });
    }

    /// A dashed line through points.
    pub fn dashes(&mut self, points: Vec<[f32; 2]>, width: f32, colour: Colour) {
        self.shapes.push(Shape::Line { points, width, colour, dashed: true });
    }

    /// A filled circle.
    pub fn dot(&mut self, centre: [f32; 2], radius: f32, fill: Colour) {
        self.shapes.push(Shape::Dot { centre, radius, fill });
    }

    /// A line of text.
    pub fn text(&mut self, text: Text) {
        self.shapes.push(Shape::Text(text));
    }

    /// An image, stretched to an area; one that grows shows its pixels as squares.
    pub fn image(&mut self, area: Area, image: Image) {
        self.shapes.push(Shape::Image { area, image });
    }

    /// A frame of lines inside an area.
    pub fn frame(&mut self, area: Area, colour: Colour) {
        let (left, top, right, bottom) = (area.x + 0.5, area.y + 0.5, area.right() - 0.5, area.bottom() - 0.5);
        self.line(vec![[left, top], [right, top], [right, bottom], [left, bottom], [left, top]], 1.0, colour);
    }

    /// A vertical colour bar with ticks at its right from `low` to `high`.
    pub fn colour_bar(&mut self, bar: Area, map: ColourMap, [low, high]: [f64; 2]) {
        let rows = bar.height.round().max(2.0) as usize;
        let colours = (0..rows).flat_map(|row| {
            let Colour(r, g, b) = map.at(1.0 - row as f32 / (rows - 1) as f32);
            [r, g, b]
        });
        if let Ok(image) = Image::from_rgb(1, rows, colours.collect()) {
            self.image(bar, image);
        }
        self.frame(bar, FRAME);
        let count = ((bar.height / 40.0) as usize).clamp(3, 6);
        let ticks = axis::ticks(low, high, count);
        let place = axis::Axis { from: low, to: high, pixels: [bar.bottom(), bar.y] };
        for (tick, label) in ticks.iter().zip(axis::labels(&ticks)) {
            let y = place.place(*tick);
            self.line(vec![[bar.right(), y], [bar.right() + 4.0, y]], 1.0, FRAME);
            self.text(Text::new(label, [bar.right() + 8.0, y], 11.0).colour(MUTED));
        }
    }
}

/// Assertions for tests.
impl Scene {
    /// Checks that no text leaves the figure or overlaps another one.
    ///
    /// # Panics
    /// If one does.
    #[track_caller]
    pub fn assert_readable(&self) {
        let boxes: Vec<(Area, &str)> = self
            .shapes
            .iter()
            .filter_map(|shape| match shape {
                Shape::Text(text) if !text.text.is_empty() => {
                    let (along, base) = text.offset();
                    let ([x, y], width, height) = (text.at, text.width(), 2.0 * base);
                    let area = if text.turned {
                        Area { x: x - base, y: y - along - width, width: height, height: width }
                    } else {
                        Area { x: x + along, y: y - base, width, height }
                    };
                    Some((area, text.text.as_str()))
                }
                _ => None,
            })
            .collect();
        for (index, (area, text)) in boxes.iter().enumerate() {
            let inside = area.x >= 0.0 && area.y >= 0.0 && area.right() <= self.width && area.bottom() <= self.height;
            assert!(inside, "`{text}` leaves the figure: {area:?} in {} x {}", self.width, self.height);
            for (other, other_text) in &boxes[index + 1..] {
                let apart = area.right() + 1.0 < other.x
                    || other.right() + 1.0 < area.x
                    || area.bottom() + 1.0 < other.y
                    || other.bottom() + 1.0 < area.y;
                assert!(apart, "`{text}` at {area:?} touches `{other_text}` at {other:?}");
            }
        }
    }

    /// All texts, in the order they were drawn.
    pub fn texts(&self) -> Vec<&str> {
        let texts = self.shapes.iter().filter_map(|shape| match shape {
            Shape::Text(text) => Some(text.text.as_str()),
            _ => None,
        });
        texts.collect()
    }
}
