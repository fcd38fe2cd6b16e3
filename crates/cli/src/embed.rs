//! `vit embed`: embedding vectors of images and texts.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PathBufValueParser, TypedValueParser};
use serde_json::{Value, json};
use vit::embeddings::{ENDINGS, write};
use vit::{Embed, Pool, TextEmbed};
use vit_models::{Checkpoint, builtin};

use crate::Outcome;
use crate::checkpoints::report_changes;
use crate::hints::describe;
use crate::images::{RunArguments, Source, report_failures, sources};
use crate::terminal;

/// Turn images, and texts, into embedding vectors
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit embed examples/images --out vectors.npy
  vit embed examples/images --normalise -o v.parquet
  vit embed examples/images --pool mean -o v.safetensors

Beside vectors.npy, vectors.files.txt names the image of each row; the other
formats hold the names. Texts (--text, by CLIP or SigLIP) have rows after those
of the images, under the text. An image that cannot be read is reported and has
no row; the exit status is then 1.")]
pub struct Arguments {
    /// Images, folders of images, or patterns like 'photos/*.jpg'; `-` reads
    /// one image, or a list of paths, from standard input
    #[arg(required_unless_present = "texts", value_name = "IMAGES")]
    images: Vec<OsString>,
    /// A text to embed beside the images, by CLIP or SigLIP; may be repeated
    #[arg(long = "text", id = "texts", value_name = "TEXT")]
    texts: Vec<String>,
    /// Cut texts that are longer than the model reads
    #[arg(long, requires = "texts")]
    truncate: bool,
    /// The model: a checkpoint folder, a weights file, or a run's folder; the
    /// built-in one knows CIFAR-10's classes
    #[arg(long, short, env = "VIT_MODEL", hide_env_values = true, value_name = "PATH", default_value = builtin::NAME)]
    model: PathBuf,
    #[command(flatten)]
    how: RunArguments,
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
    let out = &arguments.out;
    check_writable(out)?;
    let sources = sources(&arguments.images)?;
    let checkpoint = arguments.how.checkpoint(&arguments.model)?;
    // Texts are few, and may be refused: they come first.
    let texts = arguments.embedded_texts(&checkpoint)?;
    let mut rows = EmbeddingRows::default();
    let shape = if sources.is_empty() {
        vec![texts.first().map_or(0, Vec::len)]
    } else {
        arguments.embed_images(checkpoint, &sources, &mut rows)?
    };
    for (text, embedding) in arguments.texts.iter().zip(texts) {
        rows.names.push(text.clone());
        rows.values.extend(embedding);
    }
    let EmbeddingRows { names, values, failed } = rows;
    anyhow::ensure!(!names.is_empty(), "no image could be read, so {} was not written", out.display());
    let whole: Vec<usize> = std::iter::once(names.len()).chain(shape.iter().copied()).collect();
    {
        let _busy = terminal::busy(format!("writing {}", out.display()));
        write(out, &names, &shape, &values)?;
    }
    let count = failed.len();
    if arguments.json {
        let written = json!({ "file": out.display().to_string(), "shape": whole, "failed": failed });
        writeln!(std::io::stdout(), "{written:#}")?;
    } else {
        let what = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let texts = arguments.texts.len();
        let images = names.len() - texts;
        let rows = match (images, texts) {
            (images, 0) => what(images, "image"),
            (0, texts) => what(texts, "text"),
            (images, texts) => format!("{} and {}", what(images, "image"), what(texts, "text")),
        };
        terminal::note(format_args!("{}: {rows}, shape {whole:?}", out.display()));
    }
    Ok(report_failures(count, sources.len()))
}

/// The rows of the file.
#[derive(Default)]
struct EmbeddingRows {
    names: Vec<String>,
    values: Vec<f32>,
    /// Images that could not be read.
    failed: Vec<Value>,
}

impl Arguments {
    fn embedded_texts(&self, checkpoint: &Checkpoint) -> anyhow::Result<Vec<Vec<f32>>> {
        if self.texts.is_empty() {
            return Ok(Vec::new());
        }
        anyhow::ensure!(
            self.pool == Pool::Features,
            "texts have one vector each; leave --pool out, or use --pool features"
        );
        let options = self.how.options(self.texts.len());
        let tower = TextEmbed::new(checkpoint, &options)?.truncating(self.truncate);
        let mut tower = if self.normalise { tower.normalised() } else { tower };
        Ok(tower.embed(&self.texts)?)
    }

    /// Adds a row for each image; returns the shape of one.
    fn embed_images(
        &self,
        checkpoint: Checkpoint,
        sources: &[Source],
        rows: &mut EmbeddingRows,
    ) -> anyhow::Result<Vec<usize>> {
        let embed = Embed::new(checkpoint, self.pool, &self.how.options(sources.len()))?;
        let mut embed = if self.normalise { embed.normalised() } else { embed };
        report_changes(&self.model, embed.model().report());
        let (preprocess, batch) = (embed.model().preprocess().clone(), embed.model().batch());
        let run = |images: &[Vec<f32>]| embed.run_prepared(images);
        self.how.run_model(sources, &preprocess, batch, run, |source, embedding| {
            match embedding {
                Ok(embedding) => {
                    rows.names.push(source.name());
                    rows.values.extend(embedding);
                }
                Err(error) => {
                    let error = describe(&error);
                    terminal::error(&error);
                    rows.failed.push(json!({ "file": source.name(), "error": error }));
                }
            }
            Ok(())
        })?;
        Ok(embed.shape())
    }
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
