//! The images of a command: found, decoded and preprocessed on all cores while the model runs, in order.

use std::ffi::OsString;
use std::fmt;
use std::io::{IsTerminal, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use vit::ModelOptions;
use vit_data::{ApplyPreprocess, DecodeOptions, Image, Pipeline, Preprocess, find_images_each};
use vit_models::{Changes, Checkpoint, builtin};
use vit_storage::Extent;

use crate::device_options::DeviceArguments;
use crate::{checkpoints, terminal};

/// The arguments of every command about images.
#[derive(Args)]
pub struct ImageArguments {
    /// Images, folders of images, or patterns like 'photos/*.jpg'; `-` reads
    /// one image, or a list of paths, from standard input
    #[arg(required = true, value_name = "IMAGES")]
    images: Vec<OsString>,
    /// The model: a checkpoint folder, a weights file, or a run's folder; the
    /// built-in one knows CIFAR-10's classes
    #[arg(long, short, env = "VIT_MODEL", hide_env_values = true, value_name = "PATH", default_value = builtin::NAME)]
    pub model: PathBuf,
    #[command(flatten)]
    pub how: RunArguments,
}

/// The arguments of every command that runs a model on images.
#[derive(Args)]
pub struct RunArguments {
    /// Images in one run of the model, at most [default: 8]
    #[arg(long, value_name = "N", help_heading = "How to run", value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: Option<u32>,
    /// Another image size than the model's: N, or HEIGHTxWIDTH
    #[arg(long, value_name = "SIZE", help_heading = "How to run", value_parser = parse_size)]
    image_size: Option<[usize; 2]>,
    /// Leave images as stored, whatever their EXIF orientation says (as timm does)
    #[arg(long, help_heading = "How to run")]
    ignore_orientation: bool,
    /// Refuse images with more pixels than this [default: 178956970, as Pillow]
    #[arg(long, value_name = "N", help_heading = "How to run", value_parser = clap::value_parser!(u64).range(1..))]
    max_pixels: Option<u64>,
    #[command(flatten)]
    device: DeviceArguments,
    /// Use weights that do not match the model: what is missing is initialised
    #[arg(long, help_heading = "How to run")]
    allow_unmatched: bool,
}

/// The source of one image.
pub enum Source {
    File(PathBuf),
    StandardInput(Vec<u8>),
    /// An argument without an image, and why.
    Missing(OsString, String),
}

impl Source {
    pub fn name(&self) -> String {
        match self {
            Source::File(path) => path.display().to_string(),
            Source::StandardInput(_) => "-".into(),
            Source::Missing(name, _) => name.to_string_lossy().into_owned(),
        }
    }

    fn decode(&self, options: &DecodeOptions) -> anyhow::Result<Image> {
        match self {
            Source::File(path) => Ok(vit_data::open(path, options)?),
            Source::StandardInput(bytes) => vit_data::decode(bytes, options).context("standard input"),
            Source::Missing(_, error) => Err(anyhow!("{error}")),
        }
    }
}

impl ImageArguments {
    /// All images of the arguments, see [`sources`].
    pub fn sources(&self) -> anyhow::Result<Vec<Source>> {
        sources(&self.images)
    }

    /// The model's checkpoint, with the changes that the arguments ask for.
    pub fn checkpoint(&self) -> anyhow::Result<Checkpoint> {
        self.how.checkpoint(&self.model)
    }

    /// Options of a model for this many images.
    pub fn options(&self, images: usize) -> ModelOptions {
        self.how.options(images)
    }
}

/// All images of some arguments. What cannot be found is [`Source::Missing`], and is reported like a damaged file.
pub fn sources(images: &[OsString]) -> anyhow::Result<Vec<Source>> {
    let mut sources = Vec::new();
    let mut named: Vec<OsString> = Vec::new();
    let mut read = false;
    for argument in images {
        if argument != "-" {
            named.push(argument.clone());
        } else if !std::mem::replace(&mut read, true) {
            match standard_input()? {
                StandardInput::Image(bytes) => sources.push(Source::StandardInput(bytes)),
                StandardInput::Paths(paths) => named.extend(paths),
            }
        }
    }
    for argument in find_images_each(&named, true) {
        sources.push(match argument {
            Ok(path) => Source::File(path),
            Err(error) => Source::Missing(error.place().into(), error.to_string()),
        });
    }
    Ok(sources)
}

impl RunArguments {
    /// A model's checkpoint, with the changes that the arguments ask for.
    pub fn checkpoint(&self, model: &Path) -> anyhow::Result<Checkpoint> {
        let mut checkpoint = checkpoints::open(model, self.allow_unmatched)?;
        checkpoints::change(&mut checkpoint, Changes { image_size: self.image_size, ..Changes::default() })?;
        Ok(checkpoint)
    }

    /// Options of a model for this many images.
    pub fn options(&self, images: usize) -> ModelOptions {
        let options = ModelOptions::new()
            .batch(images.min(self.batch.unwrap_or(8) as usize))
            .device(self.device.inference())
            .allow_unmatched(self.allow_unmatched);
        self.image_size.map_or(options.clone(), |size| options.image_size(size))
    }

    /// Decodes one image.
    pub fn decode(&self, source: &Source) -> anyhow::Result<Image> {
        source.decode(&self.decode_options())
    }

    /// How images are decoded.
    pub fn decode_options(&self) -> DecodeOptions {
        let max_pixels = self.max_pixels.unwrap_or(DecodeOptions::default().max_pixels);
        DecodeOptions { apply_orientation: !self.ignore_orientation, max_pixels }
    }

    /// Runs a model over all images. `model` takes the preprocessed images of a batch and gives a result for each; `each`
    /// gets every image's result, or its error, in order.
    pub fn run_model<R>(
        &self,
        sources: &[Source],
        preprocess: &Preprocess,
        batch: usize,
        mut model: impl FnMut(&[Vec<f32>]) -> Result<Vec<Result<R, vit::Error>>, vit::Error>,
        mut each: impl FnMut(&Source, anyhow::Result<R>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        self.for_each_batch_of(
            sources,
            |image| Ok(preprocess.apply(&image)?),
            batch,
            |group, progress| {
                let mut ready = Vec::new();
                let prepared: Vec<_> =
                    group.into_iter().map(|(source, image)| (source, image.map(|image| ready.push(image)))).collect();
                let mut results = if ready.is_empty() { Vec::new() } else { model(&ready)? }.into_iter();
                progress.suspend(|| {
                    for (source, prepared) in prepared {
                        let result = match prepared {
                            Ok(()) => match results.next() {
                                Some(result) => result.with_context(|| source.name()),
                                None => bail!("the model gave fewer results than there are images"),
                            },
                            Err(error) => Err(error),
                        };
                        each(source, result)?;
                    }
                    Ok(())
                })
            },
        )
    }

    /// Decodes images and applies `prepare` to them on worker threads; calls `each` with the results in order, `batch` at
    /// a time. `each` suspends the progress bar where it prints.
    pub fn for_each_batch_of<T: Send>(
        &self,
        sources: &[Source],
        prepare: impl Fn(Image) -> anyhow::Result<T> + Sync,
        batch: usize,
        each: impl FnMut(Vec<(&Source, anyhow::Result<T>)>, &ProgressBar) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let options = self.decode_options();
        let remote = sources.iter().filter_map(|source| match source {
            Source::File(path) if vit_storage::is_url(path) => Some(Extent { path: path.clone(), range: None }),
            _ => None,
        });
        vit_storage::announce(remote.collect());
        let read = |source: &Source| source.decode(&options).and_then(&prepare);
        self.for_each_batch(sources, Source::name, read, batch, each)
    }

    /// Calls `read` for every item on worker threads, and `each` with the results in order, `batch` at a time. `each` suspends
    /// the progress bar where it prints.
    pub fn for_each_batch<'a, S: Sync, T: Send>(
        &self,
        items: &'a [S],
        name: impl Fn(&S) -> String + Sync,
        read: impl Fn(&S) -> anyhow::Result<T> + Sync,
        batch: usize,
        mut each: impl FnMut(Vec<(&'a S, anyhow::Result<T>)>, &ProgressBar) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let progress = progress(items.len());
        progress.tick();
        let threads = self.threads();
        let name = |index: usize| name(&items[index]);
        let mut ready = Vec::with_capacity(batch);
        let pipeline = Pipeline { threads, look_ahead: 2 * batch.max(threads), name: &name };
        let finished = pipeline.run(
            items.len(),
            |index| read(&items[index]),
            |index, result| {
                ready.push((&items[index], result));
                if ready.len() == batch || index + 1 == items.len() {
                    let images = ready.len() as u64;
                    each(std::mem::take(&mut ready), &progress)?;
                    progress.inc(images);
                }
                Ok::<_, anyhow::Error>(ControlFlow::Continue(()))
            },
        );
        progress.finish_and_clear();
        finished.map(drop)
    }

    /// CPU threads.
    pub fn threads(&self) -> usize {
        self.device.placement.threads()
    }
}

enum StandardInput {
    Image(Vec<u8>),
    Paths(Vec<OsString>),
}

/// Reads an image or a list of paths.
fn standard_input() -> anyhow::Result<StandardInput> {
    if std::io::stdin().is_terminal() {
        terminal::note("reading paths from standard input, one per line; Ctrl-D ends the list");
    }
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).context("standard input")?;
    if vit_data::ImageFormat::of(&bytes).is_ok() {
        return Ok(StandardInput::Image(bytes));
    }
    let paths = paths(&bytes);
    anyhow::ensure!(!paths.is_empty(), "standard input is empty; give an image, or paths, one per line");
    // Bytes that are neither text nor the path of a file go to the decoder, whose error says what they are.
    let text = std::str::from_utf8(&bytes).is_ok() || PathBuf::from(&paths[0]).exists();
    Ok(if text { StandardInput::Paths(paths) } else { StandardInput::Image(bytes) })
}

/// One path per line, or between zero bytes as `find -print0` writes them.
fn paths(bytes: &[u8]) -> Vec<OsString> {
    let end = if bytes.contains(&0) { 0 } else { b'\n' };
    let lines =
        bytes.split(|b| *b == end).map(|line| if end == 0 { line } else { line.strip_suffix(b"\r").unwrap_or(line) });
    lines.filter(|line| !line.is_empty()).map(os_string).collect()
}

#[cfg(unix)]
fn os_string(bytes: &[u8]) -> OsString {
    std::os::unix::ffi::OsStringExt::from_vec(bytes.to_vec())
}

#[cfg(not(unix))]
fn os_string(bytes: &[u8]) -> OsString {
    String::from_utf8_lossy(bytes).into_owned().into()
}

/// One number for both sides, or `HEIGHTxWIDTH`.
pub fn parse_size(text: &str) -> Result<[usize; 2], String> {
    let (height, width) = text.split_once('x').unwrap_or((text, text));
    let side = |t: &str| t.parse::<usize>().ok().filter(|n| (1..=16384).contains(n));
    match (side(height), side(width)) {
        (Some(height), Some(width)) => Ok([height, width]),
        _ => Err("should be a number of pixels like 384, or HEIGHTxWIDTH like 224x320".into()),
    }
}

/// A progress bar on standard error, if that is a terminal and there are more than a few images.
fn progress(images: usize) -> ProgressBar {
    if images < 16 || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:32} {pos}/{len} images  {rate}  {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .with_key("rate", |state: &ProgressState, out: &mut dyn fmt::Write| {
            let _ = write!(out, "{:.1}/s", state.per_sec());
        });
    ProgressBar::new(images as u64).with_style(style)
}

/// Creates the folder that --out names.
pub fn make_folder(out: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(out)
        .map_err(|error| anyhow!("the folder {} cannot be created ({error}); choose another --out", out.display()))
}

/// Reports how many images could not be read.
pub fn report_failures(failed: usize, all: usize) -> crate::Outcome {
    if failed == 0 {
        return crate::Outcome::Fine;
    }
    if all > 1 {
        terminal::note(format_args!("{failed} of {all} images could not be read"));
    }
    crate::Outcome::Failed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_paths_are_split_where_they_should_be() {
        assert_eq!(paths(b"a.jpg\r\n\n b .jpg\n"), ["a.jpg", " b .jpg"]);
        assert_eq!(paths(b"a\nb.jpg\0c.jpg\0"), ["a\nb.jpg", "c.jpg"]);
        assert!(paths(b"\n").is_empty());
    }

    #[test]
    fn image_sizes_are_one_number_or_two() {
        assert_eq!(parse_size("384"), Ok([384, 384]));
        assert_eq!(parse_size("224x320"), Ok([224, 320]));
        for wrong in ["", "x", "0", "-1", "224x", "99999", "1x2x3"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
