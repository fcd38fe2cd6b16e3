//! Training of an image-text model on images and captions: a dataset whose labels are captions, or words for a template.

use std::ops::ControlFlow;
use std::sync::Arc;

use vit_data::decode::ImageError;
use vit_data::image::Image;
use vit_data::tokenise::Tokeniser;
use vit_data::{BatchPosition, Loader, LoaderSettings, Samples};
use vit_graph::device::{Device, Elements};
use vit_models::weights::Tensor;
use vit_models::{Checkpoint, Network};

use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::recipe::preprocess::loader_settings;
use crate::step::pairs::pair_targets;
use crate::step::{StepParameters, TrainingStep};

/// The place of a label in a template.
const LABEL: &str = "{}";

/// How an image-text model is trained.
pub struct PairTraining<'a> {
    /// Length, batch, augmentation, optimiser and schedule.
    pub recipe: &'a Recipe,
    /// Whether only the text tower is trained (LiT).
    pub frozen_image: bool,
    /// A sentence with `{}` for the label, where labels are no captions.
    pub template: Option<&'a str>,
}

/// The state of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairProgress {
    /// Steps so far.
    pub step: u64,
    /// Steps in all.
    pub steps: u64,
    /// The loss of the last batch.
    pub loss: f32,
    /// The learning rate.
    pub rate: f64,
}

/// Trains the model of a checkpoint; `observe` is called after every step, and may stop the run.
pub fn train_pairs(
    checkpoint: &mut Checkpoint,
    samples: &Arc<dyn Samples>,
    tokeniser: &Tokeniser,
    device: &dyn Device,
    training: &PairTraining,
    observe: &mut dyn FnMut(PairProgress) -> ControlFlow<()>,
) -> Result<(), TrainError> {
    let PairTraining { recipe, frozen_image, template } = *training;
    let Some(mut clip) = checkpoint.image_text().cloned() else {
        return Err(TrainError::Unsuitable("this model has no text tower".into()));
    };
    // Dropout would need a seed in every step, and published image-text models are trained without.
    for set in [Network::set_dropout, Network::set_attention_dropout, Network::set_patch_drop, Network::set_drop_path] {
        set(&mut clip, 0.0);
    }
    let captions = Captions::new(&**samples, tokeniser, template)?;
    let settings = loader_settings(recipe, &checkpoint.config, samples.len())?;
    let per_epoch = settings.batches_per_epoch(samples.len());
    let (steps, schedule) = (recipe.steps(per_epoch), recipe.schedule(per_epoch));
    let settings = LoaderSettings { mix: Default::default(), ..settings };
    let images: Arc<dyn Samples> = Arc::new(ImagesAlone { samples: samples.clone(), class: vec!["image".into()] });
    let mut loader = Loader::new(images, settings, BatchPosition::default())?;

    let step = TrainingStep::of_pairs(&clip, recipe.batch, &recipe.step_options().optimiser, frozen_image)?;
    let mut model = &checkpoint.weights;
    let mut executable = device.compile(&step.graph, &mut StepParameters { model: &mut model, state: &step.state })?;
    for number in 0..steps {
        let batch = loader.next()?;
        let of_batch: Vec<u32> = batch.samples.iter().map(|&sample| captions.of_sample[sample]).collect();
        let ids: Vec<i32> =
            of_batch.iter().flat_map(|&caption| captions.ids(caption, clip.text.context)).copied().collect();
        let rate = schedule.rate(number);
        executable.write("image", Elements::F32(&batch.images))?;
        executable.write("ids", Elements::I32(&ids))?;
        if clip.text.pooling.reads_ids() {
            executable.write("ends", Elements::I32(&clip.text.ends(&ids)))?;
        }
        executable.write("pairs", Elements::F32(&pair_targets(&of_batch, clip.pairing)))?;
        executable.write("rate", Elements::F32(&[rate as f32]))?;
        executable.write("step", Elements::F32(&[(number + 1) as f32]))?;
        executable.run()?;
        let mut loss = [0.0];
        executable.read("loss", &mut loss)?;
        if !loss[0].is_finite() {
            let what = "the loss is NaN or infinite; a lower learning rate, schedule.rate, may help";
            return Err(TrainError::Unsuitable(what.into()));
        }
        if observe(PairProgress { step: number + 1, steps, loss: loss[0], rate }).is_break() {
            break;
        }
    }
    for (name, _) in &step.gradients {
        let Tensor { shape, data } = checkpoint.weights.get(name).map_err(vit_models::ModelError::from)?;
        let mut trained = Tensor { shape: shape.clone(), data: vec![0.0; data.len()] };
        executable.read_parameter(name, &mut trained.data)?;
        checkpoint.weights.tensors.insert(name.clone(), trained);
    }
    Ok(())
}

/// The captions of a dataset as tokens.
struct Captions {
    /// One caption's after the other's.
    ids: Vec<i32>,
    /// The caption of each sample.
    of_sample: Vec<u32>,
}

impl Captions {
    fn new(samples: &dyn Samples, tokeniser: &Tokeniser, template: Option<&str>) -> Result<Self, TrainError> {
        if let Some(template) = template.filter(|template| !template.contains(LABEL)) {
            return Err(TrainError::Unsuitable(format!(
                "the template `{template}` has no {LABEL} where the label goes"
            )));
        }
        let mut ids = Vec::with_capacity(samples.classes().len() * tokeniser.context());
        for label in samples.classes() {
            let caption = template.map_or(label.clone(), |template| template.replace(LABEL, label));
            let tokens = tokeniser.encode(&caption).map_err(|error| TrainError::Unsuitable(error.to_string()))?;
            ids.extend(tokens.ids);
        }
        let caption = |index: usize| match samples.labels(index) {
            [one] => Ok(*one),
            labels => Err(TrainError::Unsuitable(format!(
                "{} has {} captions; each image needs one",
                samples.name(index),
                labels.len()
            ))),
        };
        Ok(Captions { ids, of_sample: (0..samples.len()).map(caption).collect::<Result<_, _>>()? })
    }

    fn ids(&self, caption: u32, context: usize) -> &[i32] {
        &self.ids[caption as usize * context..][..context]
    }
}

/// The images of a dataset, all of one class: the loader's targets, a row of all classes for each sample, would be as long as
/// there are captions.
struct ImagesAlone {
    samples: Arc<dyn Samples>,
    class: Vec<String>,
}

impl Samples for ImagesAlone {
    fn len(&self) -> usize {
        self.samples.len()
    }

    fn classes(&self) -> &[String] {
        &self.class
    }

    fn labels(&self, _: usize) -> &[u32] {
        &[0]
    }

    fn name(&self, index: usize) -> String {
        self.samples.name(index)
    }

    fn announce(&self, indices: &[usize]) {
        self.samples.announce(indices);
    }

    fn image(&self, index: usize) -> Result<Image, ImageError> {
        self.samples.image(index)
    }
}
