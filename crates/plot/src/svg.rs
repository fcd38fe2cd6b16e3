//! Scenes as SVG, with text as text.

use std::fmt::Write;

use crate::bitmap::png;
use crate::embed::data_uri;
use crate::font::Weight;
use crate::palette::Colour;
use crate::scene::{Anchor, Scene, Shape, Text};

impl Scene {
    /// The figure as an SVG file.
    pub fn svg(&self) -> String {
        let (width, height) = (Short(self.width), Short(self.height));
        let mut out = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\" font-family=\"Inter, 'Helvetica Neue', Arial, sans-serif\">\n\
             <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
        );
        for shape in &self.shapes {
            out.push_str(&element(shape));
            out.push('\n');
        }
        out.push_str("</svg>\n");
        out
    }
}

fn element(shape: &Shape) -> String {
    match shape {
        Shape::Rectangle { area, fill } => {
            let (x, y, width, height) = (Short(area.x), Short(area.y), Short(area.width), Short(area.height));
            let fill = hex(*fill);
            format!("<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" fill=\"{fill}\"/>")
        }
        Shape::Line { points, width, colour, dashed } => {
            let mut list = String::new();
            for [x, y] in points {
                let _ = write!(list, "{},{} ", Short(*x), Short(*y));
            }
            let dash = if *dashed { " stroke-dasharray=\"5 4\"" } else { " stroke-linecap=\"round\"" };
            format!(
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-linejoin=\"round\"{dash}/>",
                list.trim_end(),
                hex(*colour),
                Short(*width)
            )
        }
        Shape::Dot { centre: [x, y], radius, fill } => {
            format!(
                "<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{}\"/>",
                Short(*x),
                Short(*y),
                Short(*radius),
                hex(*fill)
            )
        }
        Shape::Text(text) => text_element(text),
        Shape::Image { area, image } => {
            let (x, y, width, height) = (Short(area.x), Short(area.y), Short(area.width), Short(area.height));
            format!(
                "<image x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\" preserveAspectRatio=\"none\" \
                 style=\"image-rendering:pixelated\" href=\"{}\"/>",
                // An image that cannot be encoded is left out.
                data_uri("image/png", &png(image).unwrap_or_default())
            )
        }
    }
}

fn text_element(text: &Text) -> String {
    let anchor = match text.anchor {
        Anchor::Left => "start",
        Anchor::Middle => "middle",
        Anchor::Right => "end",
    };
    let weight = match text.weight {
        Weight::Regular => "",
        Weight::SemiBold => " font-weight=\"600\"",
    };
    let ([x, y], base) = (text.at, text.offset().1);
    let place = if text.turned {
        format!("transform=\"translate({} {}) rotate(-90)\"", Short(x + base), Short(y))
    } else {
        format!("x=\"{}\" y=\"{}\"", Short(x), Short(y + base))
    };
    let (size, colour, content) = (Short(text.size), hex(text.colour), escape(&text.text));
    format!("<text {place} font-size=\"{size}\" fill=\"{colour}\" text-anchor=\"{anchor}\"{weight}>{content}</text>")
}

fn hex(colour: Colour) -> String {
    format!("#{:02x}{:02x}{:02x}", colour.0, colour.1, colour.2)
}

/// Text escaped for XML and HTML; control characters, which XML does not allow, become U+FFFD.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            letter if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}

/// A coordinate with at most two decimals.
struct Short(f32);

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", (self.0 * 100.0).round() / 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped() {
        let mut scene = Scene::new(100.0, 20.0);
        scene.text(Text::new("a<b> & \"c\"\u{7}", [0.0, 10.0], 10.0));
        assert!(scene.svg().contains(">a&lt;b&gt; &amp; &quot;c&quot;\u{fffd}</text>"));
    }
}
