//! `vit embed`: embedding vectors of images.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PathBufValueParser, TypedValueParser};
use serde_json::json;
use vit::embeddings::{ENDINGS, write};
use vit::{Embed, Pool};

use crate::Outcome;
use crate::checkpoints::report_changes;
use crate::hints::describe;
use crate::images::{ImageArguments, report_failures};
use crate::terminal;

/// Turn images into embedding vectors
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit embed examples/images --out vectors.npy
  vit embed examples/images --normalise -o v.parquet
  vit embed examples/images --pool mean -o v.safetensors

Beside vectors.npy, vectors.files.txt names the image of each row; the other
formats hold the names. An image that cannot be read is reported and has no
row; the exit status is then 1.")]
pub struct Arguments {
    #[command(flatten)]
    images: ImageArguments,
    /// The file to write: .npy, .safetensors or .parquet
    #[arg(long, short, value_name = "FILE", value_parser = PathBufValueParser::new().try_map(with_known_ending))]
    out: PathBuf,
    /// features (the head's input), class (the class token), mean (of the patch
    /// tokens) or patches (all of them)
    #[arg(long, default_value = "features")]
    pool: Pool,
    /// Normalise every vector to length 1
    #[arg(long, visible_alias = "normalize")]
    normalise: bool,
    /// Print one JSON object about what was written
    #[arg(long)]
    json: bool,
}

/// Refuses a file of none of the formats of embeddings.
pub fn with_known_ending(path: PathBuf) -> Result<PathBuf, String> {
    let known = path.extension().and_then(|e| e.to_str()).is_some_and(|e| ENDINGS.contains(&e));
    if known { Ok(path) } else { Err(format!("the ending should be one of .{}", ENDINGS.join(", ."))) }
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let Arguments { images, out, .. } = &arguments;
    check_writable(out)?;
    let sources = images.sources()?;
    let options = images.options(sources.len());
    let embed = Embed::new(images.checkpoint()?, arguments.pool, &options)?;
    let mut embed = if arguments.normalise { embed.normalised() } else { embed };
    report_changes(&images.model, embed.model().report());
    let (preprocess, batch) = (embed.model().preprocess().clone(), embed.model().batch());
    let (mut files, mut values, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    let run = |images: &[Vec<f32>]| embed.run_prepared(images);
    images.how.run_model(&sources, &preprocess, batch, run, |source, embedding| {
        match embedding {
            Ok(embedding) => {
                files.push(source.name());
                values.extend(embedding);
            }
            Err(error) => {
                let error = describe(&error);
                terminal::error(&error);
                failed.push(json!({ "file": source.name(), "error": error }));
            }
        }
        Ok(())
    })?;
    anyhow::ensure!(!files.is_empty(), "no image could be read, so {} was not written", out.display());
    let shape: Vec<usize> = std::iter::once(files.len()).chain(embed.shape()).collect();
    {
        let _busy = terminal::busy(format!("writing {}", out.display()));
        write(out, &files, &embed.shape(), &values)?;
    }
    let count = failed.len();
    if arguments.json {
        let written = json!({ "file": out.display().to_string(), "shape": shape, "failed": failed });
        writeln!(std::io::stdout(), "{written:#}")?;
    } else {
        let images = if files.len() == 1 { "image" } else { "images" };
        terminal::note(format_args!("{}: {} {images}, shape {shape:?}", out.display(), files.len()));
    }
    Ok(report_failures(count, sources.len()))
}

/// Fails before the work if the result could not be written after it.
pub fn check_writable(out: &Path) -> anyhow::Result<()> {
    let folder = out.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    anyhow::ensure!(
        folder.is_dir(),
        "{}: there is no folder {}; create it, or choose another --out",
        out.display(),
        folder.display()
    );
    anyhow::ensure!(!out.is_dir(), "{}: this is a folder; --out names a file", out.display());
    let probe = folder.join(format!(".vit-embed-{}", std::process::id()));
    if let Err(error) = fs::File::create(&probe) {
        anyhow::bail!("{}: cannot be written ({error}); choose another --out", out.display());
    }
    let _ = fs::remove_file(probe);
    Ok(())
}
