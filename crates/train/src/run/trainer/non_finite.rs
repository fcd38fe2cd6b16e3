//! What happens when a step's loss or gradients are not finite: the run saves, and finds the first operation whose result
//! is not finite.

use std::collections::BTreeMap;

use vit_graph::device::{Device, Elements};

use super::session::{Loaded, Losses, Session};
use crate::error::{Kept, TrainError};
use crate::run::folder::RunFolder;
use crate::run::saving::Snapshot;
use crate::run::setup::Setup;
use crate::step::finite::{NonFinite, first_non_finite};

impl Session {
    /// Saves, and makes the error of a step whose loss or gradients are not finite.
    pub fn non_finite(
        &mut self,
        device: &dyn Device,
        losses: &Losses,
        setup: &Setup,
        run: &RunFolder,
    ) -> Result<TrainError, TrainError> {
        let (step, what) = (self.position.step, losses.non_finite().unwrap_or("loss"));
        // A step whose gradients are not finite changes nothing.
        let mut unchanged_since = if losses.grad_norm.is_finite() { step } else { step - 1 };
        if self.is_ahead() && self.read_losses()?.grad_norm.is_finite() {
            unchanged_since = self.started;
        }
        self.set_step(unchanged_since);
        let kept = if self.is_finite()? {
            run.last().save(&self.checkpoint(setup))?;
            Kept::Saved { step: unchanged_since }
        } else {
            Kept::Before { step: run.last().open()?.snapshot.position.step }
        };
        // After saving, since the search may run out of memory.
        let snapshot = self.snapshot(setup)?;
        let place = self.find_non_finite(device, snapshot, step).ok().flatten();
        Ok(TrainError::NonFinite { step, what, place: place.map(Box::new), kept, path: run.last().path().into() })
    }

    /// Repeats a step from a snapshot to find the first operation whose result is not finite.
    fn find_non_finite(
        &self,
        device: &dyn Device,
        snapshot: Snapshot,
        step: u64,
    ) -> Result<Option<NonFinite>, TrainError> {
        let Some(Loaded { batch, teacher }) = self.batches.front() else { return Ok(None) };
        let Snapshot { weights, optimiser, .. } = snapshot;
        let mut parameters: BTreeMap<String, Vec<f32>> =
            weights.tensors.into_iter().chain(optimiser.tensors).map(|(name, tensor)| (name, tensor.data)).collect();
        let scalars = self.inputs(step);
        let mut inputs = vec![
            ("image", Elements::F32(&batch.images)),
            ("targets", Elements::F32(&batch.targets)),
            ("rate", Elements::F32(std::slice::from_ref(&scalars.rate))),
            ("step", Elements::F32(std::slice::from_ref(&scalars.step))),
            ("seed", Elements::I32(&scalars.seed)),
            ("average_decay", Elements::F32(std::slice::from_ref(&scalars.average_decay))),
        ];
        inputs.extend(teacher.as_ref().map(|logits| ("teacher", Elements::F32(logits))));
        inputs.retain(|(name, _)| self.graph.graph.inputs().any(|(_, input)| input.name == *name));
        Ok(first_non_finite(device, &self.graph.graph, &inputs, &mut parameters)?)
    }
}
