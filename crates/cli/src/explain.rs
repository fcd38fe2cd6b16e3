//! `vit explain`: maps of what a model's answers depend on.

mod classes;
mod output;

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use vit::text::zero_shot;
use vit::{Explain, ModelOptions};
use vit_data::{ApplyPreprocess, Image};
use vit_insight::{ExplainOptions, Explanation, Map, Method, PageEntry, Subject};
use vit_models::{Checkpoint, Config};

use crate::Outcome;
use crate::checkpoints::report_changes;
use crate::hints::describe;
use crate::images::{ImageArguments, make_folder, report_failures};
use crate::terminal;
use output::{FileNames, PageFiles, PreparedImage, Preview, Writer};

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
network, with maps.npy and maps.json.

An image-text model (CLIP, SigLIP) shows where in the image a text is:
  vit explain dog.jpg --model clip --text 'a dog' --out dog")]
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
    /// A text whose place in the image gets a map, by CLIP or SigLIP; may be
    /// repeated
    #[arg(long = "text", value_name = "TEXT", conflicts_with_all = ["top", "classes"])]
    texts: Vec<String>,
    /// Cut texts that are longer than the model reads
    #[arg(long, requires = "texts")]
    truncate: bool,
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

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let Arguments { images, out, .. } = &arguments;
    let method = arguments.method()?;
    let sources = images.sources()?;
    let usual = if sources.len() == 1 { ExplanationFormat::Png } else { ExplanationFormat::Html };
    let format = arguments.format.unwrap_or(usual);
    let model_options = images.options(sources.len());
    let checkpoint = arguments.about_texts(images.checkpoint()?, &model_options)?;
    let Config { labels, architecture, .. } = &checkpoint.config;
    let classes = match arguments.texts.len() {
        0 => classes::find_all(&arguments.classes, labels, architecture.classes())?,
        texts => (0..texts).collect(),
    };
    let options = ExplainOptions { method, top: arguments.top.into(), classes, ..ExplainOptions::default() };
    let mut model = Explain::new(checkpoint, &options, &model_options)?;
    report_changes(&images.model, model.report());
    make_folder(out)?;

    let preprocess = model.preprocess().clone();
    let prepare = |image: Image| {
        let region = preprocess.region(image.width(), image.height())?;
        let input = preprocess.apply(&image)?;
        let view = match format {
            ExplanationFormat::Png => Preview::FullSize(image),
            ExplanationFormat::Html => Preview::Thumbnail(PageEntry::new(&image, region)?),
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
                    let captions = captions(&model, &explanation, !arguments.texts.is_empty());
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
    /// A classifier of the texts, if there are any; otherwise the model of images.
    fn about_texts(&self, checkpoint: Checkpoint, options: &ModelOptions) -> anyhow::Result<Checkpoint> {
        if self.texts.is_empty() {
            return Ok(checkpoint.into_image_tower()?);
        }
        Ok(zero_shot(checkpoint, &self.texts, &[], self.truncate, options)?)
    }

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

/// The name of every map, and the probability of its class, or a text's logit.
fn captions(model: &Explain, explanation: &Explanation, texts: bool) -> Vec<(String, String)> {
    if !texts {
        return model.captions(explanation);
    }
    let caption = |(subject, _): &(Subject, Map)| match subject {
        Subject::Class(text) => {
            (model.label(*text), format!("logit {:.2}", explanation.logits.get(*text).unwrap_or(&0.0)))
        }
        other => (other.to_string(), String::new()),
    };
    explanation.maps.iter().map(caption).collect()
}
