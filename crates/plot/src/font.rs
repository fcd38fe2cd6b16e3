//! The embedded font: widths and outlines of text.

use ttf_parser::{Face, GlyphId, OutlineBuilder};

/// A weight of the font.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Weight {
    Regular,
    SemiBold,
}

/// Cap height of the font, as a share of its size.
pub(crate) const CAP_HEIGHT: f32 = 0.727;

const REGULAR: &[u8] = include_bytes!("fonts/Inter-Regular.otf");
const SEMI_BOLD: &[u8] = include_bytes!("fonts/Inter-SemiBold.otf");

fn face(weight: Weight) -> Option<Face<'static>> {
    let bytes = match weight {
        Weight::Regular => REGULAR,
        Weight::SemiBold => SEMI_BOLD,
    };
    Face::parse(bytes, 0).ok()
}

/// The glyph of a character, or that of U+FFFD if the font has none.
fn glyph(face: &Face, letter: char) -> GlyphId {
    face.glyph_index(letter).or_else(|| face.glyph_index('\u{fffd}')).unwrap_or_default()
}

/// The width of a text of size 1.
pub(crate) fn width(text: &str, weight: Weight) -> f32 {
    let Some(face) = face(weight) else { return 0.0 };
    let units: u32 =
        text.chars().map(|letter| u32::from(face.glyph_hor_advance(glyph(&face, letter)).unwrap_or(0))).sum();
    units as f32 / f32::from(face.units_per_em())
}

/// Draws the outlines of a text of size 1, y upwards.
pub(crate) fn outline(text: &str, weight: Weight, out: &mut impl Pen) {
    let Some(face) = face(weight) else { return };
    let scale = 1.0 / f32::from(face.units_per_em());
    let mut x = 0.0;
    for letter in text.chars() {
        let glyph = glyph(&face, letter);
        face.outline_glyph(glyph, &mut Placed { pen: out, scale, x });
        x += f32::from(face.glyph_hor_advance(glyph).unwrap_or(0)) * scale;
    }
}

/// A target of outlines.
pub(crate) trait Pen {
    fn move_to(&mut self, point: [f32; 2]);
    fn line_to(&mut self, point: [f32; 2]);
    fn curve_to(&mut self, control: [[f32; 2]; 2], point: [f32; 2]);
    fn close(&mut self);
}

struct Placed<'a, P> {
    pen: &'a mut P,
    scale: f32,
    x: f32,
}

impl<P> Placed<'_, P> {
    fn place(&self, x: f32, y: f32) -> [f32; 2] {
        [self.x + x * self.scale, y * self.scale]
    }
}

impl<P: Pen> OutlineBuilder for Placed<'_, P> {
    fn move_to(&mut self, x: f32, y: f32) {
        self.pen.move_to(self.place(x, y));
    }

    fn line_to(&mut self, x: f32, y: f32) {
        self.pen.line_to(self.place(x, y));
    }

    fn quad_to(&mut self, x1: f32, y1: f32, x: f32, y: f32) {
        // The embedded font is cubic, so this is never called; both control points at one place are close enough.
        let control = self.place(x1, y1);
        self.pen.curve_to([control, control], self.place(x, y));
    }

    fn curve_to(&mut self, x1: f32, y1: f32, x2: f32, y2: f32, x: f32, y: f32) {
        self.pen.curve_to([self.place(x1, y1), self.place(x2, y2)], self.place(x, y));
    }

    fn close(&mut self) {
        self.pen.close();
    }
}
