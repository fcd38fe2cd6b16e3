//! The page at `/` and the viewer of the API at `/docs`: files in the binary, without a framework, a build step or a
//! reference to another server. They work under the policy `default-src 'self'; img-src 'self' data: blob:`.

use std::sync::LazyLock;

use vit_system::hash::fingerprint;

/// A file of the page.
#[derive(Debug)]
pub struct Asset {
    /// Its path on the server.
    pub path: &'static str,
    /// Its media type.
    pub content_type: &'static str,
    /// Its contents.
    pub body: &'static [u8],
    /// Its entity tag, with quotation marks.
    pub etag: String,
}

/// All files of the page.
pub fn assets() -> &'static [Asset] {
    &ASSETS
}

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! assets {
    ($($path:literal: $content_type:ident = $file:literal,)*) => {
        vec![$(asset($path, $content_type, include_bytes!(concat!("page/", $file)))),*]
    };
}

static ASSETS: LazyLock<Vec<Asset>> = LazyLock::new(|| {
    assets! {
        "/": HTML = "index.html",
        "/docs": HTML = "docs.html",
        "/page/base.css": CSS = "base.css",
        "/page/app.css": CSS = "app.css",
        "/page/docs.css": CSS = "docs.css",
        "/page/icon.svg": SVG = "icon.svg",
        "/page/app.js": SCRIPT = "app.js",
        "/page/api.js": SCRIPT = "api.js",
        "/page/bars.js": SCRIPT = "bars.js",
        "/page/curl.js": SCRIPT = "curl.js",
        "/page/docs.js": SCRIPT = "docs.js",
        "/page/dom.js": SCRIPT = "dom.js",
        "/page/entry.js": SCRIPT = "entry.js",
        "/page/explain.js": SCRIPT = "explain.js",
        "/page/intake.js": SCRIPT = "intake.js",
        "/page/models.js": SCRIPT = "models.js",
        "/page/overlay.js": SCRIPT = "overlay.js",
        "/page/panel.js": SCRIPT = "panel.js",
        "/page/prose.js": SCRIPT = "prose.js",
        "/page/schema.js": SCRIPT = "schema.js",
        "/page/shrink.js": SCRIPT = "shrink.js",
        "/page/stage.js": SCRIPT = "stage.js",
    }
});

fn asset(path: &'static str, content_type: &'static str, body: &'static [u8]) -> Asset {
    Asset { path, content_type, body, etag: format!("\"{}\"", fingerprint(&[body])) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use vit_plot::ColourMap;
    use vit_plot::palette::Colour;

    use super::*;

    fn text(path: &str) -> &'static str {
        let asset = assets().iter().find(|asset| asset.path == path).unwrap();
        std::str::from_utf8(asset.body).unwrap()
    }

    #[test]
    fn every_file_of_the_page_is_served() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/page");
        let files: BTreeSet<Vec<u8>> =
            fs::read_dir(folder).unwrap().map(|f| fs::read(f.unwrap().path()).unwrap()).collect();
        let served: BTreeSet<Vec<u8>> = assets().iter().map(|asset| asset.body.to_vec()).collect();
        assert!(files == served);
    }

    #[test]
    fn the_page_refers_to_its_own_files_alone() {
        let paths: BTreeSet<&str> = assets().iter().map(|asset| asset.path).collect();
        for asset in assets() {
            let text = std::str::from_utf8(asset.body).unwrap();
            let foreign = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!foreign.contains("http:") && !foreign.contains("https:"), "{} names an address", asset.path);
            assert!(!text.contains(" style=\"") && !text.contains("innerHTML"), "{} breaks the policy", asset.path);
            for import in text.split(" from './").skip(1) {
                let file = import.split('\'').next().unwrap();
                assert!(paths.contains(format!("/page/{file}").as_str()), "{} imports {file}", asset.path);
            }
            for link in text.split("=\"page/").skip(1) {
                let file = link.split('"').next().unwrap();
                assert!(paths.contains(format!("/page/{file}").as_str()), "{} links to {file}", asset.path);
            }
        }
    }

    #[test]
    fn maps_have_the_colours_of_the_explain_command() {
        let stops: Vec<&str> = text("/page/overlay.js").split("'#").skip(1).map(|stop| &stop[..6]).collect();
        for (index, stop) in stops.iter().enumerate() {
            let Colour(red, green, blue) = ColourMap::Heat.at(index as f32 / (stops.len() - 1) as f32);
            assert_eq!(*stop, format!("{red:02x}{green:02x}{blue:02x}"), "stop {index}");
        }
    }
}
