//! A self-contained page of thumbnails.

use std::fmt::Write;
use std::path::Path;

use anyhow::Context;
use vit_data::Image;
use vit_insight::PAGE_STYLE;
use vit_plot::embed::{data_uri, thumbnail};
use vit_plot::escape;
use vit_search::Hit;
use vit_system::atomic_file;

use super::query::SearchResult;
use crate::images::RunArguments;

const STYLE: &str = include_str!("page.css");

/// The longer side of a thumbnail.
const THUMBNAIL: usize = 320;
/// Thumbnails that are made at a time.
const BATCH: usize = 8;

/// Images under one heading.
pub struct PageSection {
    pub title: Option<String>,
    pub hits: Vec<Hit>,
}

/// Writes the page. `folder` is that of the images; those that cannot be read have no thumbnail.
pub fn write(out: &Path, result: &SearchResult, folder: &Path, how: &RunArguments) -> anyhow::Result<()> {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n\
         <style>\n{PAGE_STYLE}{STYLE}</style>\n</head>\n<body>\n<header>\n<div class=\"queries\">{queries}</div>\n\
         <div><h1>{title}</h1>\n<p>{subtitle}</p></div>\n</header>\n",
        title = escape(&result.title),
        subtitle = escape(&result.subtitle),
        queries = result.queries.iter().map(|(name, image)| image_tag(name, Some(image))).collect::<String>(),
    );
    for section in &result.sections {
        if let Some(title) = &section.title {
            writeln!(page, "<h2>{}</h2>", escape(title))?;
        }
        page += "<main>\n";
        let open = |hit: &Hit| Ok(vit_data::open(&folder.join(&hit.file), &how.decode_options())?);
        how.for_each_batch(
            &section.hits,
            |hit| hit.file.clone(),
            open,
            BATCH,
            |group, _| {
                for (hit, image) in group {
                    let (name, path) = (escape(&hit.file), folder.join(&hit.file));
                    writeln!(
                        page,
                        "<figure><a href=\"{link}\">{image}</a><figcaption title=\"{name}\">{name}</figcaption>\
                     <p>{score:.4}</p></figure>",
                        link = escape(&file_url(&path)),
                        image = image_tag(&hit.file, image.ok().as_ref()),
                        score = hit.score,
                    )?;
                }
                Ok(())
            },
        )?;
        page += "</main>\n";
    }
    page += "</body>\n</html>\n";
    atomic_file::write(out, page).with_context(|| out.display().to_string())
}

/// A thumbnail, or an empty frame.
fn image_tag(name: &str, image: Option<&Image>) -> String {
    let frame = || "<div class=\"missing\">cannot be read</div>".to_string();
    let Some(image) = image else { return frame() };
    let (width, height, name) = (image.width(), image.height(), escape(name));
    match thumbnail(image, THUMBNAIL) {
        Ok(jpeg) => format!(
            "<img alt=\"{name}\" width=\"{width}\" height=\"{height}\" loading=\"lazy\" src=\"{}\">",
            data_uri("image/jpeg", &jpeg)
        ),
        Err(_) => frame(),
    }
}

/// A link to a file of this machine.
fn file_url(path: &Path) -> String {
    let mut url = String::from("file://");
    let text = path.to_string_lossy().replace('\\', "/");
    if !text.starts_with('/') {
        url.push('/');
    }
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' | b':' => url.push(byte.into()),
            other => url += &format!("%{other:02X}"),
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_escaped() {
        assert_eq!(file_url(Path::new("/a b/ü#?.jpg")), "file:///a%20b/%C3%BC%23%3F.jpg");
    }
}
