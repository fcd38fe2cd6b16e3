//! `vit embed`: pictures as vectors.

use std::path::PathBuf;

use clap::Args;
use vit::embeddings::{ENDINGS, write};
use vit::models::{Changes, Checkpoint, OpenOptions};
use vit::{Embed, Pool};

use crate::Outcome;
use crate::pictures::{PictureArguments, for_each_batch, report_changes, report_failures};
use crate::terminal;

/// Turn pictures into vectors
#[derive(Args)]
#[command(
    after_help = "Examples:\n  vit embed -m checkpoints/cifar10 photos/ --out photos.npy\n  vit embed -m checkpoints/cifar10 photos/ --pool patches --out patches.safetensors\n  vit embed -m checkpoints/cifar10 photos/ --normalise --out photos.parquet\n\nNext to a .npy file, .files.txt names the picture of each row. Pictures that cannot be read have no row."
)]
pub struct Arguments {
    #[command(flatten)]
    pictures: PictureArguments,
    /// The file to write: .npy, .safetensors or .parquet
    #[arg(long, short)]
    out: PathBuf,
    /// Which vector: features (what the head sees), class (the class token), mean (of the patches) or patches (all)
    #[arg(long, default_value = "features")]
    pool: Pool,
    /// Make every vector's length 1
    #[arg(long, visible_alias = "normalize")]
    normalise: bool,
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let pictures = &arguments.pictures;
    let ending = arguments.out.extension().and_then(|e| e.to_str()).unwrap_or_default();
    anyhow::ensure!(
        ENDINGS.contains(&ending),
        "{}: the ending should be .{}",
        arguments.out.display(),
        ENDINGS.join(", .")
    );
    pictures.check_model()?;
    let sources = pictures.sources()?;
    let options = pictures.options(sources.len());
    let open = OpenOptions { weights: None, allow_unmatched: options.allow_unmatched };
    let mut checkpoint = Checkpoint::open(&pictures.model, open)?;
    checkpoint.change(Changes { image_size: options.image_size, ..Changes::default() })?;
    let mut embed = Embed::new(checkpoint, arguments.pool, arguments.normalise, &options)?;
    report_changes(&pictures.model, embed.model().report());
    let (preprocess, batch) = (embed.model().preprocess().clone(), embed.model().batch());
    let (mut files, mut values) = (Vec::new(), Vec::new());
    for_each_batch(&sources, &preprocess, &pictures.decode_options(), batch, |group| {
        let mut ready = Vec::new();
        for (source, prepared) in group {
            match prepared {
                Ok(image) => {
                    files.push(source.name());
                    ready.push(image.clone());
                }
                Err(error) => terminal::error(&format!("{error:#}")),
            }
        }
        if !ready.is_empty() {
            values.extend(embed.run_prepared(&ready)?);
        }
        Ok(())
    })?;
    anyhow::ensure!(!files.is_empty(), "none of the pictures could be read, so there is nothing to write");
    write(&arguments.out, &files, &embed.shape(), &values)?;
    let shape: Vec<String> = std::iter::once(files.len()).chain(embed.shape()).map(|n| n.to_string()).collect();
    terminal::note(&format!("{}: {} vectors, [{}]", arguments.out.display(), files.len(), shape.join(", ")));
    Ok(report_failures(sources.len() - files.len(), sources.len()))
}
