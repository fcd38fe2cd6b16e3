//! The samples of each batch: a function of seed, epoch and the size of the dataset alone.

use super::{BatchPosition, LastBatch};
use crate::augment::SampleRandom;

/// The division of an epoch into batches.
#[derive(Clone, Copy, Debug)]
pub(super) struct EpochPlan {
    pub(super) samples: usize,
    pub(super) batch: usize,
    pub(super) repeated: usize,
    pub(super) last: LastBatch,
    /// `None` for the order of the dataset.
    pub(super) shuffle_seed: Option<u64>,
}

impl EpochPlan {
    pub(super) fn batches(&self) -> u64 {
        let full = self.samples / self.batch;
        let rest = usize::from(!self.samples.is_multiple_of(self.batch) && self.last != LastBatch::Drop);
        (full + rest) as u64
    }

    /// Samples in a batch of an epoch.
    pub(super) fn count(&self, batch: u64) -> usize {
        (self.samples - batch as usize * self.batch).min(self.batch)
    }

    /// Batches before a position, over all epochs.
    pub(super) fn step(&self, position: BatchPosition) -> u64 {
        position.epoch * self.batches() + position.batch
    }

    pub(super) fn position(&self, step: u64) -> BatchPosition {
        BatchPosition { epoch: step / self.batches(), batch: step % self.batches() }
    }

    pub(super) fn order(&self, epoch: u64) -> EpochOrder {
        let shuffled = self.shuffle_seed.map(|seed| SampleRandom::for_order(seed, epoch).permutation(self.samples));
        EpochOrder { shuffled, plan: *self }
    }
}

/// The samples of an epoch in order.
pub(super) struct EpochOrder {
    shuffled: Option<Vec<u32>>,
    plan: EpochPlan,
}

/// A sample, and how many times the epoch has shown it before (repeated augmentation).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SampleTurn {
    /// The sample's index in the epoch's order, without repetitions.
    pub(super) place: usize,
    pub(super) sample: usize,
    pub(super) repetition: u32,
}

impl EpochOrder {
    /// The sample at an index of a batch.
    pub(super) fn turn(&self, batch: u64, within: usize) -> SampleTurn {
        let at = batch as usize * self.plan.batch + within;
        let place = at / self.plan.repeated;
        SampleTurn { place, sample: self.sample(place), repetition: (at % self.plan.repeated) as u32 }
    }

    /// The sample at an index of the order, modulo its length.
    pub(super) fn sample(&self, place: usize) -> usize {
        let place = place % self.plan.samples;
        self.shuffled.as_ref().map_or(place, |order| order[place] as usize)
    }
}
