//! `vit search`: an index of a folder's images, and what is found in it.

mod indexing;
mod page;
mod query;

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser};
use clap::{Args, Subcommand};
use vit_search::{Index, VectorType};

use crate::embed::{check_writable, with_known_ending};
use crate::images::RunArguments;
use crate::{Outcome, terminal};

/// Find images by words, by another image, or near duplicates
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Examples:
  vit search index examples/images --out found/
  vit search found/ --image examples/images/dog.jpg --html found.html
  vit search found/ --near-duplicates 0.9
  vit search export found/ vectors.parquet

Words need a model of images and texts:

  vit search index photos --model CLIP --out found/
  vit search found/ \"two dogs on a beach\"

Several words or images are averaged. The search is exact: every vector is
compared. An index in a folder named `index` is written index/.")]
pub struct Arguments {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    query: QueryArguments,
}

#[derive(Subcommand)]
enum Action {
    /// Index the images of a folder, or bring its index up to date: only new and
    /// changed images are embedded, and missing ones leave
    Index(IndexArguments),
    /// Write the vectors of an index for other programs
    Export(ExportArguments),
}

#[derive(Args)]
struct IndexArguments {
    /// The folder of images, with its subfolders
    folder: PathBuf,
    /// The folder of the index
    #[arg(long, short, value_name = "INDEX")]
    out: PathBuf,
    /// The model: a checkpoint folder, a weights file, or a run's folder
    /// [default: that of the index, or the built-in one]
    #[arg(long, short, env = "VIT_MODEL", hide_env_values = true, value_name = "PATH")]
    model: Option<PathBuf>,
    /// How vectors are stored: f16, or int8 for half the memory [default: f16]
    #[arg(long, value_name = "TYPE")]
    dtype: Option<VectorType>,
    /// Print one JSON object about what was done
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    how: RunArguments,
}

#[derive(Args)]
struct ExportArguments {
    /// The index
    index: PathBuf,
    /// The file to write: .npy, .safetensors or .parquet
    #[arg(value_name = "FILE", value_parser = PathBufValueParser::new().try_map(with_known_ending))]
    out: PathBuf,
}

#[derive(Args)]
struct QueryArguments {
    /// The index
    #[arg(required = true)]
    index: Option<PathBuf>,
    /// What to look for, in words
    words: Vec<String>,
    /// An image to look for, which need not be in the index
    #[arg(long, value_name = "FILE")]
    image: Vec<OsString>,
    /// A vector to look for: a NumPy array of float32
    #[arg(long, value_name = "FILE.npy")]
    vector: Vec<PathBuf>,
    /// Groups of images with a cosine of at least COSINE [default: 0.95]
    #[arg(long, value_name = "COSINE", num_args = 0..=1, default_missing_value = "0.95", value_parser = cosine)]
    #[arg(conflicts_with_all = ["words", "image", "vector"])]
    near_duplicates: Option<f64>,
    /// The most images, or groups, to show
    #[arg(long, short = 'k', value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    top: u32,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Write a page of thumbnails
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The model of the index, if it is no longer where it was
    #[arg(long, short, value_name = "PATH")]
    model: Option<PathBuf>,
    #[command(flatten)]
    how: RunArguments,
}

fn cosine(text: &str) -> Result<f64, String> {
    let cosine = text.parse().ok().filter(|cosine| *cosine > 0.0 && *cosine <= 1.0);
    cosine.ok_or_else(|| "should be a cosine above 0 and at most 1, like 0.95".into())
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    match arguments.action {
        Some(Action::Index(arguments)) => indexing::run(&arguments),
        Some(Action::Export(arguments)) => export(&arguments),
        None => query::run(&arguments.query),
    }
}

fn export(arguments: &ExportArguments) -> anyhow::Result<Outcome> {
    let ExportArguments { index, out } = arguments;
    let index = Index::open(index)?;
    check_writable(out)?;
    let folder = shown_folder(&index.settings().files);
    let (mut files, mut values) = (Vec::new(), Vec::with_capacity(index.len() * index.settings().dim));
    let _busy = terminal::busy(format!("writing {}", out.display()));
    index.for_each(|file, vector| {
        files.push(folder.join(file.stamp.file).display().to_string());
        values.extend_from_slice(vector);
        Ok::<(), anyhow::Error>(())
    })?;
    let dim = index.settings().dim;
    vit::embeddings::write(out, &files, &[dim], &values)?;
    terminal::note(format_args!("{}: {} images, shape {:?}", out.display(), files.len(), [files.len(), dim]));
    Ok(Outcome::Fine)
}

/// The folder of an index, relative to the current one if it is inside.
fn shown_folder(folder: &Path) -> PathBuf {
    let inside =
        std::env::current_dir().ok().and_then(|current| folder.strip_prefix(current.canonicalize().ok()?).ok());
    inside.unwrap_or(folder).into()
}
