//! `vit patches`: an image cut into the patches of a model.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use clap::builder::{PathBufValueParser, TypedValueParser};
use vit_insight::patches;

use crate::Outcome;
use crate::checkpoints::report_changes;
use crate::images::{ImageArguments, make_folder};
use crate::terminal;

/// Show an image cut into the patches of a model
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit patches examples/images/dog.jpg --out patches.png
  vit patches examples/images/dog.jpg --out patches.svg

On the left the image with the region that the model gets, on the right the
model's input, cut into its N = HW/P^2 patches, numbered in the model's order.
Models without patches have the cells of their last feature map.")]
pub struct Arguments {
    #[command(flatten)]
    images: ImageArguments,
    /// The file to write: .png or .svg; its folder is created if missing
    #[arg(long, short, value_name = "FILE", value_parser = PathBufValueParser::new().try_map(with_known_ending))]
    out: PathBuf,
}

fn with_known_ending(path: PathBuf) -> Result<PathBuf, String> {
    let known = path.extension().is_some_and(|e| e == "png" || e == "svg");
    if known { Ok(path) } else { Err("the ending should be .png or .svg".into()) }
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let Arguments { images, out } = &arguments;
    let sources = images.sources()?;
    let [source] = sources.as_slice() else {
        anyhow::bail!("{} images were given; `vit patches` draws one at a time", sources.len());
    };
    let checkpoint = images.checkpoint()?;
    report_changes(&images.model, &checkpoint.report);
    let image = images.how.decode(source)?;
    let name = source.name();
    let title = std::path::Path::new(&name).file_name().map_or(name.clone(), |n| n.to_string_lossy().into_owned());
    let scene = patches(&title, &image, &checkpoint.config.architecture, &checkpoint.config.preprocessing)?;
    let content =
        if out.extension().is_some_and(|e| e == "svg") { scene.svg().into_bytes() } else { scene.png(2.0)? };
    if let Some(folder) = out.parent() {
        make_folder(folder)?;
    }
    vit_system::atomic_file::write(out, content).with_context(|| out.display().to_string())?;
    terminal::note(out.display());
    Ok(Outcome::Fine)
}
