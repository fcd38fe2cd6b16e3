//! The files that `vit explain` writes: a figure and arrays for each image, or one page for all.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Seek};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};
use vit_data::{Image, Region};
use vit_insight::{Explanation, Map, Page, PageEntry, Subject, explanation_sheet, side_by_side_png};
use vit_system::{atomic_file, npy};

use crate::images::Source;

/// An image prepared for the model and for the output.
pub struct PreparedImage {
    pub input: Vec<f32>,
    pub region: Region,
    pub view: Preview,
}

/// The image as the output shows it.
pub enum Preview {
    FullSize(Image),
    Thumbnail(PageEntry),
}

/// Distinct file names, also on file systems that do not distinguish `A.png` from `a.png`.
#[derive(Default)]
pub struct FileNames {
    given: Vec<String>,
    taken: BTreeSet<String>,
}

impl FileNames {
    fn for_source(&mut self, source: &Source) -> String {
        let name = source.name();
        let stem =
            Path::new(&name).file_stem().map_or_else(|| "image".into(), |stem| stem.to_string_lossy().into_owned());
        let stem = if stem == "-" { "image".to_string() } else { stem };
        let mut free = stem.clone();
        for number in 2.. {
            if self.taken.insert(free.to_lowercase()) {
                break;
            }
            free = format!("{stem}-{number}");
        }
        self.given.push(free.clone());
        free
    }
}

pub enum Writer {
    Files(FileNames),
    Page(Box<PageFiles>),
}

impl Writer {
    pub fn add(
        &mut self,
        out: &Path,
        subtitle: &str,
        source: &Source,
        image: &PreparedImage,
        explanation: &Explanation,
        captions: &[(String, String)],
    ) -> anyhow::Result<()> {
        let region = image.region;
        match (self, &image.view) {
            (Writer::Files(names), Preview::FullSize(image)) => {
                let stem = names.for_source(source);
                write_files(out, &stem, subtitle, source, (image, region), explanation, captions)
            }
            (Writer::Page(page), Preview::Thumbnail(entry)) => page.add(source, entry, region, explanation, captions),
            _ => unreachable!("images are prepared for the writer's format"),
        }
    }

    /// Completes the output; returns the file or folder to open.
    pub fn finish(self, out: &Path) -> anyhow::Result<PathBuf> {
        match self {
            Writer::Files(names) => Ok(match names.given.as_slice() {
                [one] => out.join(format!("{one}.png")),
                _ => out.to_path_buf(),
            }),
            Writer::Page(page) => page.finish(out),
        }
    }
}

fn write_files(
    out: &Path,
    stem: &str,
    subtitle: &str,
    source: &Source,
    (image, region): (&Image, Region),
    explanation: &Explanation,
    captions: &[(String, String)],
) -> anyhow::Result<()> {
    let write = |ending: &str, bytes: &[u8]| {
        let path = out.join(format!("{stem}{ending}"));
        atomic_file::write(&path, bytes).with_context(|| path.display().to_string())
    };
    let maps: Vec<&Map> = explanation.maps.iter().map(|(_, map)| map).collect();
    let named: Vec<(String, String, &Map)> =
        captions.iter().zip(&maps).map(|((name, figure), map)| (name.clone(), figure.clone(), *map)).collect();
    let title = Path::new(&source.name()).file_name().map_or(source.name(), |n| n.to_string_lossy().into_owned());
    write(".png", &explanation_sheet(&title, subtitle, image, region, &named).png(2.0)?)?;
    if let Some(first) = maps.first() {
        write(".overlay.png", &side_by_side_png(image, region, first)?)?;
        let [rows, columns] = first.grid();
        let values: Vec<f32> = maps.iter().flat_map(|map| map.values()).copied().collect();
        let path = out.join(format!("{stem}.npy"));
        npy::write(&path, &[maps.len(), rows, columns], &values).with_context(|| path.display().to_string())?;
    }
    let about = about(source, region, explanation, captions);
    write(".json", format!("{about:#}\n").as_bytes())
}

/// The JSON description of an image's maps.
fn about(source: &Source, region: Region, explanation: &Explanation, captions: &[(String, String)]) -> Value {
    let probabilities = &explanation.probabilities;
    let map = |((subject, map), (name, _)): (&(Subject, Map), &(String, String))| {
        let part = map.part(region);
        let mut about = json!({ "about": name, "picture_part": [part.x, part.y, part.width, part.height] });
        if let Subject::Class(class) = subject {
            about["class"] = json!(class);
            about["probability"] = json!(probabilities.get(*class));
        }
        about
    };
    json!({ "file": source.name(), "maps": explanation.maps.iter().zip(captions).map(map).collect::<Vec<_>>() })
}

/// The page's name.
const PAGE: &str = "index.html";

/// The page and the arrays beside it. Until it is complete the page is in an unnamed temporary file, of which nothing is
/// left if the program is stopped.
pub struct PageFiles {
    page: Page<BufWriter<File>>,
    maps: Vec<f32>,
    about: Vec<Value>,
    shape: Option<[usize; 3]>,
}

impl PageFiles {
    pub fn start(out: &Path, images: usize, subtitle: &str, maps: &[String]) -> anyhow::Result<Self> {
        let unwritable = || format!("{}: nothing can be written there; choose another --out", out.display());
        let file = tempfile::tempfile_in(out).with_context(unwritable)?;
        let title = format!("What the model looks at in {images} {}", if images == 1 { "image" } else { "images" });
        Ok(PageFiles {
            page: Page::start(BufWriter::new(file), &out.join(PAGE), &title, subtitle, maps)?,
            maps: Vec::new(),
            about: Vec::new(),
            shape: None,
        })
    }

    fn add(
        &mut self,
        source: &Source,
        entry: &PageEntry,
        region: Region,
        explanation: &Explanation,
        captions: &[(String, String)],
    ) -> anyhow::Result<()> {
        let label = |(name, figure): &(String, String)| {
            if figure.is_empty() { name.clone() } else { format!("{name} {figure}") }
        };
        let maps: Vec<(String, &Map)> =
            captions.iter().map(label).zip(explanation.maps.iter().map(|(_, map)| map)).collect();
        let sureness = explanation.probabilities.iter().copied().reduce(f32::max);
        self.page.add(&source.name(), entry, sureness, &maps)?;
        if let Some((_, first)) = explanation.maps.first() {
            let [rows, columns] = first.grid();
            self.shape = Some([explanation.maps.len(), rows, columns]);
        }
        self.maps.extend(explanation.maps.iter().flat_map(|(_, map)| map.values()));
        self.about.push(about(source, region, explanation, captions));
        Ok(())
    }

    fn finish(self, out: &Path) -> anyhow::Result<PathBuf> {
        let mut page = self.page.finish()?;
        let [maps, rows, columns] = self.shape.unwrap_or([0; 3]);
        let write = |name: &str, write: &mut dyn FnMut(&Path) -> std::io::Result<()>| {
            let path = out.join(name);
            write(&path).with_context(|| path.display().to_string())?;
            Ok::<PathBuf, anyhow::Error>(path)
        };
        let shape = [self.about.len(), maps, rows, columns];
        write("maps.npy", &mut |path| npy::write(path, &shape, &self.maps))?;
        let about = Value::Array(self.about);
        write("maps.json", &mut |path| atomic_file::write(path, format!("{about:#}\n")))?;
        page.rewind()?;
        write(PAGE, &mut |path| atomic_file::write_with(path, |file| std::io::copy(page.get_mut(), file).map(drop)))
    }
}
