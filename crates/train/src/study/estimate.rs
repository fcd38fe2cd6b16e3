//! What a study would take, before any of it is carried out.

use std::collections::HashMap;

use vit_graph::cost::Cost;

use super::{Stage, Study, StudyRun};
use crate::error::TrainError;
use crate::run::memory::{ImageSizes, Workload};
use crate::run::trainer::TrainerOptions;
use crate::step::TrainingStep;

/// The work of a run.
#[derive(Debug, Clone, PartialEq)]
pub struct RunEstimate {
    /// Training images.
    pub images: usize,
    /// Steps.
    pub steps: u64,
    /// Images that are seen, with repetitions.
    pub seen: u64,
    /// FLOPs of all steps.
    pub flops: f64,
    /// What its memory depends on.
    pub workload: Workload,
}

impl Study {
    /// The work of every run, in their order.
    pub fn estimates(&self, options: &TrainerOptions) -> Result<Vec<RunEstimate>, TrainError> {
        // Runs that differ in their data and seed alone have the same step.
        let mut steps: HashMap<String, f64> = HashMap::new();
        self.runs().iter().map(|run| self.estimate(run, options, &mut steps)).collect()
    }

    fn estimate(
        &self,
        run: &StudyRun,
        options: &TrainerOptions,
        known: &mut HashMap<String, f64>,
    ) -> Result<RunEstimate, TrainError> {
        let data = match (run.stage, &self.grid.pretraining_data) {
            (Stage::Pretraining, Some(data)) => data,
            _ => &self.grid.data[run.data_index],
        };
        let images = ((data.images as f64 * run.settings.fraction).round() as usize).max(1);
        let mut recipe = run.recipe.clone();
        recipe.batch = recipe.batch.min(images / recipe.accumulate.max(1) * recipe.accumulate.max(1)).max(1);
        recipe.parts = recipe.parts.max(1);
        let config = run.config(data.classes)?;
        let steps = recipe.steps((images / recipe.batch).max(1) as u64);
        let step_options = options.step_options(&recipe, &config);
        let key = format!("{:?} {} {step_options:?}", config.architecture, recipe.batch);
        let flops = match known.get(&key) {
            Some(flops) => *flops,
            None => {
                let step = TrainingStep::new(&config.architecture, recipe.batch, step_options)?;
                let flops = Cost::of(&step.graph).flops() as f64;
                known.insert(key, flops);
                flops
            }
        };
        let [height, width] = config.architecture.image_size();
        let bytes = (3 * height * width) as u64;
        let sizes = ImageSizes { count: images, mean: bytes as f64, largest: bytes };
        Ok(RunEstimate {
            images,
            steps,
            seen: steps * recipe.batch as u64,
            flops: flops * steps as f64,
            workload: Workload {
                config,
                recipe,
                options: options.clone(),
                images: sizes,
                validation: data.validation_images,
                held: 0,
            },
        })
    }
}
