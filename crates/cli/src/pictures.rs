//! Pictures on their way into a model: found, decoded and prepared on all cores while the model runs, in order.

use std::ffi::OsString;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use vit::data::{self, DecodeOptions, Preprocess, find_images};
use vit::{DeviceChoice, ModelOptions};

use crate::terminal;

/// The arguments of every command that looks at pictures.
#[derive(Args)]
pub struct PictureArguments {
    /// Pictures, folders of pictures, or patterns like 'photos/*.jpg'; `-` reads one picture, or a list of paths, from
    /// standard input
    #[arg(required = true, value_name = "PICTURES")]
    pub pictures: Vec<OsString>,
    /// The model: a checkpoint folder, or a weights file
    #[arg(long, short, env = "VIT_MODEL", value_name = "PATH")]
    pub model: PathBuf,
    /// Pictures that are run at once; by default as many as there are, up to 8
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    batch: Option<u32>,
    /// Another image size than the weights were trained for: one number, or HEIGHTxWIDTH
    #[arg(long, value_parser = parse_size)]
    image_size: Option<[usize; 2]>,
    /// Do not turn pictures as their EXIF orientation says (timm and torchvision do not)
    #[arg(long)]
    ignore_orientation: bool,
    /// Where to run: auto or cpu
    #[arg(long, default_value = "auto")]
    device: DeviceChoice,
    /// Threads of the CPU; by default all cores
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: Option<u32>,
    /// Use weights that do not match the model exactly: what is missing starts anew
    #[arg(long)]
    allow_unmatched: bool,
}

/// Where one picture comes from.
#[derive(Clone)]
pub enum Source {
    File(PathBuf),
    StandardInput(Vec<u8>),
}

impl Source {
    pub fn name(&self) -> String {
        match self {
            Source::File(path) => path.display().to_string(),
            Source::StandardInput(_) => "-".into(),
        }
    }
}

impl PictureArguments {
    /// All pictures that the arguments mean.
    pub fn sources(&self) -> anyhow::Result<Vec<Source>> {
        let mut sources = Vec::new();
        let mut named: Vec<OsString> = Vec::new();
        for argument in &self.pictures {
            if argument == "-" {
                match standard_input()? {
                    StandardInput::Picture(bytes) => sources.push(Source::StandardInput(bytes)),
                    StandardInput::Paths(paths) => named.extend(paths),
                }
            } else {
                named.push(argument.clone());
            }
        }
        sources.extend(find_images(&named, true)?.into_iter().map(Source::File));
        anyhow::ensure!(!sources.is_empty(), "no pictures found in {}", list(&self.pictures));
        Ok(sources)
    }

    /// Options for a model that will see this many pictures.
    pub fn options(&self, pictures: usize) -> ModelOptions {
        ModelOptions {
            batch: self.batch.map_or(pictures.min(8), |b| b as usize),
            image_size: self.image_size,
            device: self.device,
            threads: self.threads.map(|t| t as usize),
            allow_unmatched: self.allow_unmatched,
            ..ModelOptions::default()
        }
    }

    pub fn decode_options(&self) -> DecodeOptions {
        DecodeOptions { apply_orientation: !self.ignore_orientation, ..DecodeOptions::default() }
    }

    /// Explains a model argument that is a name and not a path.
    pub fn check_model(&self) -> anyhow::Result<()> {
        if self.model.exists() {
            return Ok(());
        }
        let name = self.model.to_string_lossy();
        if vit::models::variant(&name).is_some() {
            anyhow::bail!(
                "`{name}` is an architecture without weights; give --model a checkpoint folder or a weights file (.safetensors, .npz, .pth)"
            );
        }
        anyhow::bail!(
            "{name}: no such checkpoint; give --model a checkpoint folder or a weights file (.safetensors, .npz, .pth)"
        );
    }
}

fn list(arguments: &[OsString]) -> String {
    arguments.iter().map(|a| a.to_string_lossy().into_owned()).collect::<Vec<_>>().join(", ")
}

enum StandardInput {
    Picture(Vec<u8>),
    Paths(Vec<OsString>),
}

/// A picture, or, if it is no picture but text, one path per line.
fn standard_input() -> anyhow::Result<StandardInput> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).context("standard input")?;
    if data::Format::of(&bytes).is_err()
        && let Ok(text) = std::str::from_utf8(&bytes)
    {
        let paths: Vec<OsString> = text.lines().map(str::trim).filter(|l| !l.is_empty()).map(OsString::from).collect();
        anyhow::ensure!(!paths.is_empty(), "standard input is empty; give a picture or one path per line");
        return Ok(StandardInput::Paths(paths));
    }
    Ok(StandardInput::Picture(bytes))
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

/// A prepared picture, or why there is none.
type Prepared = anyhow::Result<Vec<f32>>;

/// Prepares pictures on all cores and hands them over in order, `batch` at a time. At most a few batches wait.
pub fn for_each_batch(
    sources: &[Source],
    preprocess: &Preprocess,
    options: &DecodeOptions,
    batch: usize,
    mut each: impl FnMut(&[(Source, Prepared)]) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(sources.len());
    let next = AtomicUsize::new(0);
    let progress = progress(sources.len());
    std::thread::scope(|scope| {
        // One channel per thread keeps the order without sorting: picture i comes from the channel of thread i mod n.
        let channels: Vec<mpsc::Receiver<Prepared>> = (0..threads)
            .map(|thread| {
                let (sender, receiver) = mpsc::sync_channel(2 * batch.div_ceil(threads));
                scope.spawn(move || {
                    for source in sources.iter().skip(thread).step_by(threads) {
                        if sender.send(prepare(source, preprocess, options)).is_err() {
                            return; // Whoever receives has stopped with an error.
                        }
                    }
                });
                receiver
            })
            .collect();
        for group in sources.chunks(batch) {
            let mut prepared = Vec::with_capacity(group.len());
            for source in group {
                let i = next.fetch_add(1, Ordering::Relaxed);
                prepared.push((source.clone(), channels[i % threads].recv().context("a decoding thread stopped")?));
            }
            progress.suspend(|| each(&prepared))?;
            progress.inc(group.len() as u64);
        }
        progress.finish_and_clear();
        Ok(())
    })
}

fn prepare(source: &Source, preprocess: &Preprocess, options: &DecodeOptions) -> Prepared {
    let image = match source {
        Source::File(path) => data::open(path, options)?,
        Source::StandardInput(bytes) => data::decode(bytes, options).context("standard input")?,
    };
    Ok(preprocess.apply(&image)?)
}

/// A bar on standard error, if that is a terminal and there is enough to wait for.
fn progress(pictures: usize) -> ProgressBar {
    if pictures < 16 || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:32} {pos}/{len} pictures  {per_sec}  {eta} left");
    ProgressBar::new(pictures as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

/// Reports pictures that could not be read, at the end.
pub fn report_failures(failed: usize, all: usize) -> crate::Outcome {
    if failed == 0 {
        return crate::Outcome::Fine;
    }
    if all > 1 {
        terminal::note(&format!("{failed} of {all} pictures could not be read"));
    }
    crate::Outcome::Failed
}

/// Says what was changed about the weights.
pub fn report_changes(path: &Path, report: &[String]) {
    for line in report {
        terminal::note(&format!("{}: {line}", path.display()));
    }
}
