//! What a run leaves behind and reports: the part of rank 0.

use vit_data::loader::Unreadable;

use super::data_report::UnreadableImages;
use super::{Observer, Trainer};
use crate::error::TrainError;
use crate::run::folder::{MetricsLog, MetricsRow, RunFolder};

pub(super) struct Record<'a> {
    pub run: &'a RunFolder,
    pub observer: &'a mut dyn Observer,
    pub log: MetricsLog,
    pub unreadable: UnreadableImages,
}

impl<'a> Record<'a> {
    /// The record of a new run, or of one that continues after a step.
    pub fn new(run: &'a RunFolder, observer: &'a mut dyn Observer, step: Option<u64>) -> Result<Self, TrainError> {
        let log = match step {
            Some(step) => MetricsLog::resume(run, step)?,
            None => MetricsLog::create(run)?,
        };
        Ok(Record { run, observer, log, unreadable: UnreadableImages::of(run) })
    }

    /// Adds a row to the metrics.
    pub fn append(&mut self, row: &MetricsRow) -> Result<(), TrainError> {
        self.log.append(row)?;
        self.observer.recorded(row);
        Ok(())
    }

    /// Adds training images that could not be read; see [`UnreadableImages::met_in_training`].
    pub fn met_in_training<'b>(&mut self, met: impl ExactSizeIterator<Item = &'b Unreadable>, counted: bool) {
        self.unreadable.met_in_training(met, self.observer, counted);
    }
}

impl Trainer<'_> {
    /// Adds the training images that any process could not read.
    pub(super) fn gather_unreadable(&mut self) -> Result<(), TrainError> {
        let own: Vec<&Unreadable> = self.session.unreadable().collect();
        let processes = &self.options.processes;
        if processes.size() == 1 {
            self.record.iter_mut().for_each(|record| record.met_in_training(own.iter().copied(), true));
            return Ok(());
        }
        let lines: Vec<_> = own.iter().map(|one| (one.sample, &one.name, &one.reason)).collect();
        let all = processes.gather(serde_json::to_vec(&lines).unwrap_or_default())?;
        if let (Some(all), Some(record)) = (all, &mut self.record) {
            let lines = all.iter().flat_map(|own| serde_json::from_slice::<Vec<(usize, String, String)>>(own));
            let mut met: Vec<Unreadable> =
                lines.flatten().map(|(sample, name, reason)| Unreadable { sample, name, reason }).collect();
            met.sort_by_key(|one| one.sample);
            record.met_in_training(met.iter(), true);
        }
        Ok(())
    }
}
