//! What happens when a step's loss or gradients are not finite: the run saves, and finds the first operation whose result
//! is not finite.

use std::collections::BTreeMap;
use std::path::PathBuf;

use vit_graph::Graph;
use vit_graph::device::{Device, Elements};

use super::Trainer;
use super::record::Record;
use super::session::{Loaded, Losses, Session, StepInputs};
use crate::error::{Kept, TrainError};
use crate::pairs::BatchCaptions;
use crate::run::saving::Snapshot;
use crate::step::finite::{NonFinite, first_non_finite};
use crate::step::{StepOptions, TrainingStep};

impl Trainer<'_> {
    /// Saves, and makes the error of a step whose loss or gradients are not finite: in all processes.
    pub(super) fn non_finite(&mut self, losses: &Losses) -> Result<TrainError, TrainError> {
        let Trainer { setup, options, device, session, record, .. } = self;
        let (step, what) = (session.position.step, losses.non_finite().unwrap_or("loss"));
        // A step whose gradients are not finite changes nothing.
        let mut unchanged_since = if losses.grad_norm.is_finite() { step } else { step - 1 };
        if session.is_ahead() && session.read_losses()?.grad_norm.is_finite() {
            unchanged_since = session.started;
        }
        session.set_step(unchanged_since);
        let (mut kept, mut path) = (Kept::Saved { step: unchanged_since }, PathBuf::new());
        let finite = session.is_finite()?;
        match record {
            Some(Record { run, .. }) => {
                path = run.last().path().into();
                if finite {
                    run.last().save(&session.checkpoint(setup))?;
                } else {
                    kept = Kept::Before { step: run.last().open()?.snapshot.position.step };
                }
            }
            None if finite => session.contribute_to_checkpoint()?,
            None => {}
        }
        // After saving, since the search may run out of memory.
        let snapshot = session.snapshot(setup)?;
        // Of its own parts alone, since the processes find it at different operations.
        let own = StepOptions { exchange: false, sharding: None, ..options.step_options(&setup.recipe, &setup.config) };
        let own = TrainingStep::new(&setup.config.architecture, setup.recipe.batch, own)?;
        let place = session.find_non_finite(*device, &own.graph, snapshot, step).ok().flatten();
        let found = options.processes.gather(serde_json::to_vec(&place).unwrap_or_default())?;
        let place = found.iter().flatten().find_map(|place| serde_json::from_slice(place).unwrap_or_default());
        Ok(TrainError::NonFinite { step, what, place, kept, path })
    }
}

impl Session {
    /// Repeats a step from a snapshot to find the first operation whose result is not finite.
    fn find_non_finite(
        &self,
        device: &dyn Device,
        graph: &Graph,
        snapshot: Snapshot,
        step: u64,
    ) -> Result<Option<NonFinite>, TrainError> {
        let Some(Loaded { batch, captions, teacher }) = self.batches.front() else { return Ok(None) };
        let Snapshot { weights, optimiser, .. } = snapshot;
        let mut parameters: BTreeMap<String, Vec<f32>> =
            weights.tensors.into_iter().chain(optimiser.tensors).map(|(name, tensor)| (name, tensor.data)).collect();
        let StepInputs { scalars, seed } = self.inputs(step);
        let mut inputs = vec![
            ("image", Elements::F32(&batch.images)),
            ("targets", Elements::F32(&batch.targets)),
            ("seed", Elements::I32(&seed)),
        ];
        inputs.extend(scalars.iter().map(|(name, value)| (*name, Elements::F32(std::slice::from_ref(value)))));
        let captions = captions.as_ref().map(BatchCaptions::inputs).unwrap_or_default();
        inputs.extend(captions.iter().map(|(name, elements)| (name.as_str(), *elements)));
        inputs.extend(teacher.as_ref().map(|logits| ("teacher", Elements::F32(logits))));
        inputs.retain(|(name, _)| graph.inputs().any(|(_, input)| input.name == *name));
        Ok(first_non_finite(device, graph, &inputs, &mut parameters)?)
    }
}
