//! `vit explain`: maps of what a model's answers depend on.

mod classes;

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Seek};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use vit::Explain;
use vit_data::{ApplyPreprocess, Image, Region};
use vit_insight::{
    ExplainOptions, Explanation, Map, Method, Page, PageEntry, Subject, explanation_sheet, side_by_side,
};
use vit_models::Config;
use vit_models::weights::npy;
use vit_system::atomic_file;

use crate::Outcome;
use crate::checkpoints::report_changes;
use crate::hints::describe;
use crate::images::{ImageArguments, Source, make_folder, report_failures};
use crate::terminal;

/// Show what a model's answers depend on in images
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit explain examples/images/dog.jpg --out dog
  vit explain examples/images --out maps
  vit explain examples/images/dog.jpg --class cat --class dog -o pets
  vit explain examples/images --layer 3 --head 1 -o head

One image becomes NAME.png (the image, its maps, their scales),
NAME.overlay.png (side by side at its own resolution), NAME.npy (the raw maps,
[maps, rows, columns]) and NAME.json (what they are about and which part of the
image they cover). Several become one page, index.html, which needs no
network, with maps.npy and maps.json.")]
pub struct Arguments {
    #[command(flatten)]
    images: ImageArguments,
    /// The folder to write into; created if missing
    #[arg(long, short, value_name = "FOLDER")]
    out: PathBuf,
    /// rollout, gradient (rollout for a class), gradcam or attention (one layer)
    /// [default: rollout and gradient; gradcam for models of other kinds]
    #[arg(long, verbatim_doc_comment)]
    method: Option<Method>,
    /// The layer whose attention to show, from 0 [default: the last]
    #[arg(long, value_name = "N")]
    layer: Option<usize>,
    /// The head whose attention to show, from 0 [default: the mean of all]
    #[arg(long, value_name = "N")]
    head: Option<usize>,
    /// How many of the likeliest classes get a map each
    #[arg(long, short = 'k', value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    top: u16,
    /// A class that gets a map instead of the likeliest: its name, the beginning of
    /// it, or its number; may be repeated
    #[arg(long = "class", value_name = "NAME", conflicts_with = "top")]
    classes: Vec<String>,
    /// png (files for each image) or html (one page) [default: png for one
    /// image, html for several]
    #[arg(long, value_enum, hide_possible_values = true)]
    format: Option<ExplanationFormat>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum ExplanationFormat {
    Png,
    Html,
}

/// An image prepared for the model and for the output.
struct PreparedImage {
    input: Vec<f32>,
    region: Region,
    view: ImageView,
}

/// The image as the output shows it.
enum ImageView {
    FullSize(Image),
    Thumbnail(PageEntry),
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let Arguments { images, out, .. } = &arguments;
    let method = arguments.method()?;
    let sources = images.sources()?;
    let usual = if sources.len() == 1 { ExplanationFormat::Png } else { ExplanationFormat::Html };
    let format = arguments.format.unwrap_or(usual);
    let checkpoint = images.checkpoint()?;
    let Config { labels, architecture, .. } = &checkpoint.config;
    let classes = classes::find_all(&arguments.classes, labels, architecture.classes())?;
    let options = ExplainOptions { method, top: arguments.top.into(), classes, ..ExplainOptions::default() };
    let mut model = Explain::new(checkpoint, &options, &images.options(sources.len()))?;
    report_changes(&images.model, model.report());
    make_folder(out)?;

    let preprocess = model.preprocess().clone();
    let prepare = |image: Image| {
        let region = preprocess.region(image.width(), image.height())?;
        let input = preprocess.apply(&image)?;
        let view = match format {
            ExplanationFormat::Png => ImageView::FullSize(image),
            ExplanationFormat::Html => ImageView::Thumbnail(PageEntry::new(&image, region)?),
        };
        Ok(PreparedImage { input, region, view })
    };
    let subtitle = subtitle(&images.model, &model, method);
    let mut writer = match format {
        ExplanationFormat::Png => Writer::Files(FileNames::default()),
        ExplanationFormat::Html => {
            Writer::Page(Box::new(PageFiles::start(out, sources.len(), &subtitle, &model.maps())?))
        }
    };
    let mut failed = 0;
    images.how.for_each_batch_of(&sources, prepare, model.batch(), |group, progress| {
        let (mut ready, mut names) = (Vec::new(), Vec::new());
        for (source, prepared) in group {
            match prepared {
                Ok(image) => {
                    names.push(source);
                    ready.push(image);
                }
                Err(error) => {
                    failed += 1;
                    progress.suspend(|| terminal::error(describe(&error)));
                }
            }
        }
        let inputs: Vec<&[f32]> = ready.iter().map(|image| image.input.as_slice()).collect();
        let found = if inputs.is_empty() { Vec::new() } else { model.explain_prepared(&inputs)? };
        for ((source, image), explanation) in names.iter().zip(&ready).zip(found) {
            match explanation {
                Ok(explanation) => {
                    let captions = captions(&model, &explanation);
                    writer.add(out, &subtitle, source, image, &explanation, &captions)?;
                }
                Err(error) => {
                    failed += 1;
                    progress.suspend(|| terminal::error(format_args!("{}: {error}", source.name())));
                }
            }
        }
        Ok(())
    })?;
    if failed == sources.len() {
        anyhow::bail!("no image could be read, so nothing was written");
    }
    let written = writer.finish(out)?;
    terminal::note(format_args!("{}", written.display()));
    Ok(report_failures(failed, sources.len()))
}

impl Arguments {
    /// The method with its layer and head, which imply attention.
    fn method(&self) -> anyhow::Result<Option<Method>> {
        let Arguments { layer, head, .. } = *self;
        match self.method {
            None | Some(Method::Attention { .. }) if layer.is_some() || head.is_some() => {
                Ok(Some(Method::Attention { layer, head }))
            }
            method => {
                anyhow::ensure!(layer.is_none() && head.is_none(), "--layer and --head belong to --method attention");
                Ok(method)
            }
        }
    }
}

/// The line under the title: the model and the method.
fn subtitle(path: &Path, model: &Explain, method: Option<Method>) -> String {
    let name = path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned());
    let architecture = model.config().name.clone().map_or(String::new(), |name| format!(" ({name})"));
    let how = match method {
        None => "",
        Some(Method::Rollout) => ", attention rollout",
        Some(Method::Gradient) => ", attention rollout by a class's gradients",
        Some(Method::GradCam) => ", Grad-CAM",
        Some(Method::Attention { .. }) => ", attention",
    };
    format!("{name}{architecture}{how}")
}

/// The name of every map, and the probability of its class.
fn captions(model: &Explain, explanation: &Explanation) -> Vec<(String, String)> {
    let probabilities = &explanation.probabilities;
    let caption = |(subject, _): &(Subject, Map)| match subject {
        Subject::Class(class) => {
            (model.label(*class), format!("{:.1} %", 100.0 * probabilities.get(*class).unwrap_or(&0.0)))
        }
        other => (other.to_string(), String::new()),
    };
    explanation.maps.iter().map(caption).collect()
}

/// Distinct file names, also on file systems that do not distinguish `A.png` from `a.png`.
#[derive(Default)]
struct FileNames {
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

enum Writer {
    Files(FileNames),
    Page(Box<PageFiles>),
}

impl Writer {
    fn add(
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
            (Writer::Files(names), ImageView::FullSize(image)) => {
                let stem = names.for_source(source);
                write_files(out, &stem, subtitle, source, (image, region), explanation, captions)
            }
            (Writer::Page(page), ImageView::Thumbnail(entry)) => page.add(source, entry, region, explanation, captions),
            _ => unreachable!("images are prepared for the writer's format"),
        }
    }

    /// Completes the output; returns the file or folder to open.
    fn finish(self, out: &Path) -> anyhow::Result<PathBuf> {
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
        write(".overlay.png", &vit_plot::png(&side_by_side(image, region, first))?)?;
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
struct PageFiles {
    page: Page<BufWriter<File>>,
    maps: Vec<f32>,
    about: Vec<Value>,
    shape: Option<[usize; 3]>,
}

impl PageFiles {
    fn start(out: &Path, images: usize, subtitle: &str, maps: &[String]) -> anyhow::Result<Self> {
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
