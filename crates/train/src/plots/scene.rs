//! A drawing as a list of shapes, in pixels with fractions, y downwards.

use vit_data::Image;

use super::font::{self, CAP_HEIGHT, Weight};
use super::palette::{Colour, INK};

/// A drawing that can be written as SVG or PNG.
#[derive(Debug, Clone)]
pub struct Scene {
    pub(super) width: f32,
    pub(super) height: f32,
    pub(super) shapes: Vec<Shape>,
}

/// A rectangle: left, top, width, height.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Area {
    pub x: f32,
    pub y: f32,
    pub width: f32,
    pub height: f32,
}

impl Area {
    pub(super) fn right(self) -> f32 {
        self.x + self.width
    }

    pub(super) fn bottom(self) -> f32 {
        self.y + self.height
    }
}

#[derive(Debug, Clone)]
pub(super) enum Shape {
    Rectangle { area: Area, fill: Colour },
    Line { points: Vec<[f32; 2]>, width: f32, colour: Colour, dashed: bool },
    Dot { centre: [f32; 2], radius: f32, fill: Colour },
    Text(Text),
    Picture { area: Area, image: Image },
}

/// Which point of a text is the given one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Left,
    Middle,
    Right,
}

/// A line of text whose capitals are centred on `at` across the line. `turned` text runs upwards.
#[derive(Debug, Clone)]
pub(super) struct Text {
    pub text: String,
    pub at: [f32; 2],
    pub size: f32,
    pub colour: Colour,
    pub weight: Weight,
    pub anchor: Anchor,
    pub turned: bool,
}

impl Text {
    pub(super) fn new(text: impl Into<String>, at: [f32; 2], size: f32) -> Self {
        let (weight, anchor) = (Weight::Regular, Anchor::Left);
        Self { text: text.into(), at, size, colour: INK, weight, anchor, turned: false }
    }

    pub(super) fn colour(self, colour: Colour) -> Self {
        Self { colour, ..self }
    }

    pub(super) fn anchor(self, anchor: Anchor) -> Self {
        Self { anchor, ..self }
    }

    pub(super) fn bold(self) -> Self {
        Self { weight: Weight::SemiBold, ..self }
    }

    pub(super) fn turned(self) -> Self {
        Self { turned: true, ..self }
    }

    /// Shortened with an ellipsis so that it is at most so wide.
    pub(super) fn within(mut self, width: f32) -> Self {
        if self.width() > width {
            let mut letters: Vec<char> = self.text.chars().collect();
            while self.width() > width && letters.pop().is_some() {
                self.text = letters.iter().collect::<String>().trim_end().to_string() + "…";
            }
        }
        self
    }

    pub(super) fn width(&self) -> f32 {
        self.size * font::width(&self.text, self.weight)
    }

    /// Where the line begins, along its direction, and the distance of the base line from `at`.
    pub(super) fn offset(&self) -> (f32, f32) {
        let along = match self.anchor {
            Anchor::Left => 0.0,
            Anchor::Middle => -self.width() / 2.0,
            Anchor::Right => -self.width(),
        };
        (along, self.size * CAP_HEIGHT / 2.0)
    }
}

impl Scene {
    pub(super) fn new(width: f32, height: f32) -> Self {
        Self { width, height, shapes: Vec::new() }
    }

    /// Width and height in pixels.
    pub fn size(&self) -> (f32, f32) {
        (self.width, self.height)
    }

    pub(super) fn rectangle(&mut self, area: Area, fill: Colour) {
        self.shapes.push(Shape::Rectangle { area, fill });
    }

    pub(super) fn line(&mut self, points: Vec<[f32; 2]>, width: f32, colour: Colour) {
        self.shapes.push(Shape::Line { points, width, colour, dashed: false });
    }

    pub(super) fn dashes(&mut self, points: Vec<[f32; 2]>, width: f32, colour: Colour) {
        self.shapes.push(Shape::Line { points, width, colour, dashed: true });
    }

    pub(super) fn dot(&mut self, centre: [f32; 2], radius: f32, fill: Colour) {
        self.shapes.push(Shape::Dot { centre, radius, fill });
    }

    pub(super) fn text(&mut self, text: Text) {
        self.shapes.push(Shape::Text(text));
    }

    pub(super) fn picture(&mut self, area: Area, image: Image) {
        self.shapes.push(Shape::Picture { area, image });
    }

    /// A frame of lines inside an area.
    pub(super) fn frame(&mut self, area: Area, colour: Colour) {
        let (left, top, right, bottom) = (area.x + 0.5, area.y + 0.5, area.right() - 0.5, area.bottom() - 0.5);
        self.line(vec![[left, top], [right, top], [right, bottom], [left, bottom], [left, top]], 1.0, colour);
    }
}

#[cfg(test)]
impl Scene {
    /// Panics if a text leaves the picture or touches another one: the two things that make a plot unreadable.
    #[track_caller]
    pub(super) fn assert_readable(&self) {
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
            assert!(inside, "`{text}` leaves the picture: {area:?} in {} x {}", self.width, self.height);
            for (other, other_text) in &boxes[index + 1..] {
                let apart = area.right() + 1.0 < other.x
                    || other.right() + 1.0 < area.x
                    || area.bottom() + 1.0 < other.y
                    || other.bottom() + 1.0 < area.y;
                assert!(apart, "`{text}` at {area:?} touches `{other_text}` at {other:?}");
            }
        }
    }

    pub(super) fn texts(&self) -> Vec<&str> {
        let texts = self.shapes.iter().filter_map(|shape| match shape {
            Shape::Text(text) => Some(text.text.as_str()),
            _ => None,
        });
        texts.collect()
    }
}
