//! `vit inspect`: figures of a model's weights and attention.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use vit_data::{ApplyPreprocess, Image};
use vit_insight::{Inspector, Sample, card, report};

use crate::Outcome;
use crate::checkpoints::{ModelArgument, report_changes};
use crate::hints::describe;
use crate::images::{RunArguments, Source, make_folder, report_failures, sources};
use crate::terminal;

/// Draw what a model learned: filters, positions, attention
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit inspect cifar10 --out inspected
  vit inspect cifar10 --data examples/images --out inspected

index.html shows everything and needs no network. Beside it, every figure is a
PNG and an SVG with its values (CSV, JSON, NumPy): first filters, similarity of
positions, attention distance, attention by layer, effective receptive field,
class token against mean pooling. Images in a folder named like a class of the
model count as images of that class.")]
pub struct Arguments {
    #[command(flatten)]
    model: ModelArgument,
    /// Images, folders of images, or patterns, to see how the model attends
    #[arg(long, num_args = 1.., value_name = "IMAGES")]
    data: Vec<OsString>,
    /// The folder to write into; created if missing
    #[arg(long, short, value_name = "FOLDER")]
    out: PathBuf,
    #[command(flatten)]
    how: RunArguments,
}

/// Images shown in figures.
const EXAMPLES: usize = 3;

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let Arguments { how, out, .. } = &arguments;
    let model = &arguments.model.path();
    let sources = sources(&arguments.data)?;
    let checkpoint = how.checkpoint(model)?.into_image_tower()?;
    report_changes(model, &checkpoint.report);
    checkpoint.check_finite()?;
    make_folder(out)?;
    let options = how.options(sources.len().max(1));
    let device = options.device.open()?;
    let config = &checkpoint.config;
    let preprocess = &config.preprocessing;
    preprocess.validate()?;
    let mut inspector = {
        let _busy = terminal::busy("preparing the model");
        Inspector::new(config, &checkpoint.weights, device.as_ref(), options.batch)?
    };
    let prepare = |image: Image| {
        let seen = preprocess.crop(&image)?;
        Ok((preprocess.apply(&image)?, seen))
    };
    // Spread over all images, since neighbours are often similar.
    let example = |index: usize| index.is_multiple_of(sources.len().div_ceil(EXAMPLES).max(1));
    let (mut failed, mut seen) = (0, 0);
    if !sources.is_empty() {
        how.for_each_batch_of(&sources, prepare, options.batch, |group, progress| {
            let mut ready = Vec::new();
            for (source, prepared) in group {
                seen += 1;
                match prepared {
                    Ok(image) => ready.push((source, example(seen - 1), image)),
                    Err(error) => {
                        failed += 1;
                        progress.suspend(|| terminal::error(describe(&error)));
                    }
                }
            }
            let names: Vec<String> = ready.iter().map(|(source, ..)| source.name()).collect();
            let mut samples = Vec::new();
            for ((source, shown, (input, seen)), name) in ready.iter().zip(&names) {
                samples.push(Sample { name, seen, input, shown: *shown, label: label(source, &config.labels) });
            }
            if samples.is_empty() { Ok(()) } else { Ok(inspector.add(&samples)?) }
        })?;
        anyhow::ensure!(failed < sources.len(), "no image could be read, so nothing was written");
    }
    let (inspection, files) = {
        let _busy = terminal::busy("drawing");
        let inspection = inspector.finish()?;
        let files = inspection.figures.iter().map(|figure| figure.write(out)).collect::<Result<Vec<_>, _>>()?;
        (inspection, files)
    };
    let name = model.file_name().map_or_else(|| model.display().to_string(), |n| n.to_string_lossy().into_owned());
    let images = match sources.len() - failed {
        0 => "from its weights alone".to_string(),
        1 => "with 1 image".to_string(),
        count => format!("with {count} images"),
    };
    let page =
        report(&format!("What {name} learned"), &format!("Inspected {images}"), &card(config)?, &inspection, &files);
    let path = out.join("index.html");
    vit_system::atomic_file::write(&path, page).with_context(|| path.display().to_string())?;
    for missing in &inspection.missing {
        let hint = if missing.needs_images { " Give some with --data." } else { "" };
        terminal::note(format!("{}{hint}", missing.reason));
    }
    terminal::note(path.display());
    Ok(report_failures(failed, sources.len()))
}

/// The class of an image, if its folder has the name of one.
fn label(source: &Source, labels: &[String]) -> Option<usize> {
    let name = source.name();
    let folder = Path::new(&name).parent()?.file_name()?.to_string_lossy().into_owned();
    labels.iter().position(|label| *label == folder)
}
