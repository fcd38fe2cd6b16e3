//! `vit finetune --pairs`: an image-text model on images and their captions.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, anyhow};
use vit::text::tokeniser_of;
use vit_data::Samples;
use vit_data::dataset::{self, DatasetOptions, Validation};
use vit_models::Layout;
use vit_models::weights::safetensors::Dtype;
use vit_train::{PairTraining, train_pairs};

use super::TrainingArguments;
use crate::checkpoints::{self, report_changes};
use crate::images::make_folder;
use crate::interrupt::Interrupt;
use crate::{Outcome, terminal};

/// Steps between two notes about the loss.
const NOTED: u64 = 50;

pub fn run(
    model: &Path,
    frozen_image: bool,
    template: Option<&str>,
    common: &TrainingArguments,
) -> anyhow::Result<Outcome> {
    let out = common.out.as_deref().ok_or_else(|| anyhow!("--pairs needs --out, the folder of the trained model"))?;
    let recipe = common.recipe("clip", &[])?;
    let mut checkpoint = checkpoints::open(model, false)?;
    report_changes(model, &checkpoint.report);
    let tokeniser = tokeniser_of(&checkpoint)?;
    let samples: Arc<dyn Samples> = {
        let _busy = terminal::busy(format!("opening {}", common.data.display()));
        let options =
            DatasetOptions { validation: Validation::Nowhere, seed: recipe.seed, ..DatasetOptions::default() };
        dataset::open(&common.data, &options)?.train
    };
    let (images, captions) = (samples.len(), samples.classes().len());
    terminal::note(format_args!("{}: {images} images, {captions} captions", common.data.display()));
    let (device, _) = common.precision.for_training()?.open(common.machine.placement, None)?;
    make_folder(out)?;
    let path = out.join("metrics.csv");
    let mut metrics = std::fs::File::create(&path).with_context(|| path.display().to_string())?;
    writeln!(metrics, "step,loss,rate")?;
    let interrupt = Interrupt::listen()?;
    let mut written = Ok(());
    let training = PairTraining { recipe: &recipe, frozen_image, template };
    train_pairs(&mut checkpoint, &samples, &tokeniser, device.as_ref(), &training, &mut |now| {
        written = writeln!(metrics, "{},{},{}", now.step, now.loss, now.rate);
        if now.step % NOTED == 0 || now.step == now.steps {
            terminal::note(format_args!("step {} of {}: loss {:.4}", now.step, now.steps, now.loss));
        }
        let stopped = written.is_err() || interrupt.stop.load(Ordering::Relaxed);
        if stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })?;
    written.with_context(|| path.display().to_string())?;
    checkpoint.save(out, Layout::Timm, Dtype::F32)?;
    terminal::note(format_args!("{}", out.display()));
    Ok(if interrupt.stop.load(Ordering::Relaxed) { interrupt.outcome() } else { Outcome::Fine })
}
