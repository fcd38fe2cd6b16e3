//! Scenes as anti-aliased PNG.

use tiny_skia::{
    FillRule, LineCap, LineJoin, Paint, Path, PathBuilder, Pixmap, PixmapPaint, Rect, Stroke, StrokeDash, Transform,
};
use vit_data::{Filter, Image, resize};

use crate::font::{self, Pen};
use crate::palette::Colour;
use crate::scene::{Area, Scene, Shape, Text};

/// Why a figure could not be rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlotError {
    /// More pixels than memory or the format allows, or none.
    #[error("a figure of {width} x {height} pixels is too large or empty")]
    Size {
        /// Pixels per row.
        width: f32,
        /// Number of rows.
        height: f32,
    },
    /// The encoder failed.
    #[error("the image could not be encoded: {0}")]
    Encode(String),
}

impl From<png::EncodingError> for PlotError {
    fn from(error: png::EncodingError) -> Self {
        PlotError::Encode(error.to_string())
    }
}

impl From<jpeg_encoder::EncodingError> for PlotError {
    fn from(error: jpeg_encoder::EncodingError) -> Self {
        PlotError::Encode(error.to_string())
    }
}

/// The largest side of a figure: 16384 squared is a gigabyte.
const LARGEST: f32 = 16384.0;

impl Scene {
    /// The figure as a PNG file, `scale` times as large; 2 suits high-resolution screens.
    pub fn png(&self, scale: f32) -> Result<Vec<u8>, PlotError> {
        let (width, height) = ((self.width * scale).round(), (self.height * scale).round());
        let fits = |side: f32| (1.0..=LARGEST).contains(&side);
        let pixels = if fits(width) && fits(height) { Pixmap::new(width as u32, height as u32) } else { None };
        let mut pixels = pixels.ok_or(PlotError::Size { width, height })?;
        pixels.fill(tiny_skia::Color::WHITE);
        let transform = Transform::from_scale(scale, scale);
        for shape in &self.shapes {
            draw(&mut pixels, shape, scale, transform);
        }
        let rgb: Vec<u8> = pixels.data().chunks_exact(4).flat_map(|pixel| &pixel[..3]).copied().collect();
        encode(pixels.width(), pixels.height(), png::ColorType::Rgb, &rgb)
    }
}

/// An image as a PNG file, with fast compression: photographs may have many millions of pixels.
pub fn png(image: &Image) -> Result<Vec<u8>, PlotError> {
    let size = [image.width() as u32, image.height() as u32];
    compressed(size, png::ColorType::Rgb, image.pixels(), png::Compression::Fast)
}

/// A PNG file of these pixels.
pub(crate) fn encode(width: u32, height: u32, colours: png::ColorType, rows: &[u8]) -> Result<Vec<u8>, PlotError> {
    compressed([width, height], colours, rows, png::Compression::Balanced)
}

fn compressed(
    [width, height]: [u32; 2],
    colours: png::ColorType,
    rows: &[u8],
    compression: png::Compression,
) -> Result<Vec<u8>, PlotError> {
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, width, height);
    encoder.set_compression(compression);
    encoder.set_color(colours);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(rows)?;
    writer.finish()?;
    Ok(file)
}

fn paint(colour: Colour) -> Paint<'static> {
    let mut paint = Paint { anti_alias: true, ..Paint::default() };
    paint.set_color_rgba8(colour.0, colour.1, colour.2, 255);
    paint
}

fn draw(pixels: &mut Pixmap, shape: &Shape, scale: f32, transform: Transform) {
    match shape {
        Shape::Rectangle { area, fill } => {
            if let Some(rect) = Rect::from_xywh(area.x, area.y, area.width, area.height) {
                pixels.fill_rect(rect, &paint(*fill), transform, None);
            }
        }
        Shape::Line { points, width, colour, dashed } => {
            let mut path = PathBuilder::new();
            for (index, &[x, y]) in points.iter().enumerate() {
                if index == 0 { path.move_to(x, y) } else { path.line_to(x, y) }
            }
            let dash = dashed.then(|| StrokeDash::new(vec![5.0, 4.0], 0.0)).flatten();
            let cap = if *dashed { LineCap::Butt } else { LineCap::Round };
            let stroke = Stroke { width: *width, line_cap: cap, line_join: LineJoin::Round, dash, ..Stroke::default() };
            if let Some(path) = path.finish() {
                pixels.stroke_path(&path, &paint(*colour), &stroke, transform, None);
            }
        }
        Shape::Dot { centre: [x, y], radius, fill } => {
            if let Some(path) = PathBuilder::from_circle(*x, *y, *radius) {
                pixels.fill_path(&path, &paint(*fill), FillRule::Winding, transform, None);
            }
        }
        Shape::Text(text) => {
            if let Some(path) = text_path(text) {
                pixels.fill_path(&path, &paint(text.colour), FillRule::Winding, transform, None);
            }
        }
        Shape::Image { area, image } => draw_image(pixels, *area, image, scale),
    }
}

/// Draws an image at whole pixels: by Lanczos where it shrinks, by nearest neighbour where it grows.
fn draw_image(pixels: &mut Pixmap, area: Area, image: &Image, scale: f32) {
    let side = |length: f32| ((length * scale).round() as usize).max(1);
    let (width, height) = (side(area.width), side(area.height));
    let grows = width >= image.width() && height >= image.height();
    let filter = if grows { Filter::Nearest } else { Filter::Lanczos };
    let image = resize(image, width, height, filter);
    let Some(mut source) = Pixmap::new(width as u32, height as u32) else { return };
    for (to, from) in source.data_mut().chunks_exact_mut(4).zip(image.pixels().chunks_exact(3)) {
        to.copy_from_slice(&[from[0], from[1], from[2], 255]);
    }
    let (x, y) = ((area.x * scale).round() as i32, (area.y * scale).round() as i32);
    pixels.draw_pixmap(x, y, source.as_ref(), &PixmapPaint::default(), Transform::identity(), None);
}

fn text_path(text: &Text) -> Option<Path> {
    let mut outline = Outline { path: PathBuilder::new(), text, offset: text.offset() };
    font::outline(&text.text, text.weight, &mut outline);
    outline.path.finish()
}

struct Outline<'a> {
    path: PathBuilder,
    text: &'a Text,
    offset: (f32, f32),
}

impl Outline<'_> {
    fn place(&self, [x, y]: [f32; 2]) -> (f32, f32) {
        let ([at_x, at_y], size) = (self.text.at, self.text.size);
        let (along, across) = (self.offset.0 + x * size, self.offset.1 - y * size);
        if self.text.turned { (at_x + across, at_y - along) } else { (at_x + along, at_y + across) }
    }
}

impl Pen for Outline<'_> {
    fn move_to(&mut self, point: [f32; 2]) {
        let (x, y) = self.place(point);
        self.path.move_to(x, y);
    }

    fn line_to(&mut self, point: [f32; 2]) {
        let (x, y) = self.place(point);
        self.path.line_to(x, y);
    }

    fn curve_to(&mut self, control: [[f32; 2]; 2], point: [f32; 2]) {
        let [(x1, y1), (x2, y2)] = control.map(|point| self.place(point));
        let (x, y) = self.place(point);
        self.path.cubic_to(x1, y1, x2, y2, x, y);
    }

    fn close(&mut self) {
        self.path.close();
    }
}
