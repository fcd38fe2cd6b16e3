//! Images and their maps on one self-contained HTML page. Each image is embedded once as a small JPEG; a map is a PNG of one
//! pixel per cell, a few hundred bytes, which the browser scales and overlays. Off-screen entries are not rendered
//! (`content-visibility`), so thousands of them stay responsive.

use std::io::Write;
use std::path::{Path, PathBuf};

use vit_data::{Image, Region};
use vit_plot::embed::{data_uri, thumbnail, transparent_png};
use vit_plot::palette::Colour;
use vit_plot::{ColourMap, escape};

use crate::{InsightError, Map};

/// The style that all pages share.
pub const STYLE: &str = include_str!("page/style.css");
const GALLERY: &str = include_str!("page/gallery.css");
const SCRIPT: &str = include_str!("page/gallery.js");

/// The longer side of an image on the page.
const THUMBNAIL: usize = 256;

/// An image of the page.
#[derive(Debug, Clone)]
pub struct PageEntry {
    jpeg: Vec<u8>,
    size: [usize; 2],
    region: Region,
}

impl PageEntry {
    /// A thumbnail of an image, of which `region` is the model's input.
    pub fn new(image: &Image, region: Region) -> Result<PageEntry, InsightError> {
        let size = [image.width(), image.height()];
        Ok(PageEntry { jpeg: thumbnail(image, THUMBNAIL)?, size, region })
    }
}

/// Writes a page entry by entry.
pub struct Page<W: Write> {
    out: W,
    path: PathBuf,
}

impl<W: Write> Page<W> {
    /// Writes the header. `path` stands in error messages; `maps` names the first, second, … map of every image.
    pub fn start(
        mut out: W,
        path: &Path,
        title: &str,
        subtitle: &str,
        maps: &[String],
    ) -> Result<Page<W>, InsightError> {
        let options: String =
            maps.iter().enumerate().map(|(i, map)| format!("<option value=\"{i}\">{}</option>", escape(map))).collect();
        write!(
            out,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
             <style>\n{STYLE}{GALLERY}</style>\n</head>\n<body>\n<header>\n<h1>{title}</h1>\n<p>{subtitle}</p>\n\
             <form>\n<label>Find <input type=\"search\" id=\"find\" placeholder=\"name or class\"></label>\n\
             <label>Show <select id=\"which\">{options}</select></label>\n\
             <label>Order <select id=\"order\"><option value=\"given\">as given</option>\
             <option value=\"unsure\">least sure first</option><option value=\"sure\">surest first</option></select></label>\n\
             <label>Map <input type=\"range\" id=\"strength\" max=\"100\" value=\"100\"></label>\n\
             <label>Size <input type=\"range\" id=\"size\" min=\"96\" max=\"480\" value=\"170\"></label>\n\
             <label><input type=\"checkbox\" id=\"beside\" checked> Beside the image</label>\n\
             <output id=\"count\"></output>\n</form>\n\
             <p class=\"scale\">least <span style=\"background:{scale}\"></span> most, each map by itself</p>\n\
             </header>\n<main>\n",
            title = escape(title),
            subtitle = escape(subtitle),
            scale = gradient(ColourMap::Heat),
        )
        .map_err(InsightError::of(path))?;
        Ok(Page { out, path: path.into() })
    }

    /// Adds an image with its named maps and the model's confidence.
    pub fn add(
        &mut self,
        name: &str,
        entry: &PageEntry,
        sureness: Option<f32>,
        maps: &[(String, &Map)],
    ) -> Result<(), InsightError> {
        let (mut layers, mut tabs, mut words) = (String::new(), String::new(), name.to_lowercase());
        for (index, (label, map)) in maps.iter().enumerate() {
            let [rows, columns] = map.grid();
            let png = transparent_png(columns, rows, &map.cells())?;
            let place = percentages(map.part(entry.region), entry.size);
            let hidden = if index > 0 { " hidden" } else { "" };
            let (pressed, text) = (index == 0, escape(label));
            layers += &format!("<img alt=\"\" style=\"{place}\" src=\"{}\"{hidden}>", data_uri("image/png", &png));
            tabs += &format!("<button type=\"button\" aria-pressed=\"{pressed}\">{text}</button>");
            words += &format!(" {}", label.to_lowercase());
        }
        let ([width, height], name, words) = (entry.size, escape(name), escape(&words));
        let written = writeln!(
            self.out,
            "<figure data-words=\"{words}\" data-sure=\"{sure}\" style=\"--shape:{width}/{height};--image:url({image})\">\
             <div class=\"pair\"><div class=\"image\" role=\"img\" aria-label=\"{name}\"></div>\
             <div class=\"image map\">{layers}</div></div>\
             <figcaption title=\"{name}\">{name}</figcaption><div class=\"tabs\">{tabs}</div></figure>",
            sure = sureness.unwrap_or(0.0),
            image = data_uri("image/jpeg", &entry.jpeg),
        );
        written.map_err(InsightError::of(&self.path))
    }

    /// Writes the footer.
    pub fn finish(mut self) -> Result<W, InsightError> {
        write!(self.out, "</main>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n")
            .and_then(|()| self.out.flush())
            .map_err(InsightError::of(&self.path))?;
        Ok(self.out)
    }
}

/// A part of an image in percent of its size, as CSS.
fn percentages(part: Region, [width, height]: [usize; 2]) -> String {
    let percent = |value: f64, whole: usize| (1000.0 * 100.0 * value / whole as f64).round() / 1000.0;
    format!(
        "left:{}%;top:{}%;width:{}%;height:{}%",
        percent(part.x, width),
        percent(part.y, height),
        percent(part.width, width),
        percent(part.height, height)
    )
}

/// A colour map from left to right, as CSS.
pub(crate) fn gradient(map: ColourMap) -> String {
    let stops: Vec<String> = (0..=12)
        .map(|i| {
            let Colour(r, g, b) = map.at(i as f32 / 12.0);
            format!("#{r:02x}{g:02x}{b:02x}")
        })
        .collect();
    format!("linear-gradient(to right,{})", stops.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(name: &str) -> String {
        let image = Image::from_rgb(400, 200, vec![90; 400 * 200 * 3]).unwrap();
        let region = Region { x: 100.0, y: 0.0, width: 200.0, height: 200.0 };
        let map = Map::new([2, 2], vec![0.0, 1.0, 2.0, 3.0], [32, 32], [32, 32]).unwrap();
        let mut page =
            Page::start(Vec::new(), Path::new("index.html"), "a <b> & c", "model", &["rollout".into(), "class".into()])
                .unwrap();
        let entry = PageEntry::new(&image, region).unwrap();
        let maps = [("rollout".to_string(), &map), ("cat \"<x>\"".to_string(), &map)];
        page.add(name, &entry, Some(0.5), &maps).unwrap();
        String::from_utf8(page.finish().unwrap()).unwrap()
    }

    #[test]
    fn a_page_needs_no_network_and_names_cannot_break_it() {
        let page = page("\"><script>alert(1)</script>.jpg");
        assert!(!page.contains("http:") && !page.contains("https:") && !page.contains("//cdn"));
        assert!(!page.contains("<script>alert") && !page.contains("<x>") && !page.contains("a <b>"));
        assert_eq!(page.matches("<script").count(), 1);
        assert_eq!(page.matches("data:image/jpeg").count(), 1, "an image is there once");
        assert_eq!(page.matches("data:image/png").count(), 2);
        assert!(page.contains("left:25%;top:0%;width:50%;height:100%"), "the map lies on what the model saw");
    }
}
