//! The algorithms that the bits of a run depend on: written to its folder before the first checkpoint, and restored when it
//! is resumed.

use std::collections::BTreeMap;

use vit_graph::device::{Algorithms, Device};

use super::Observer;
use super::record::Record;
use crate::error::TrainError;
use crate::processes::Processes;
use crate::run::folder::{RunError, RunFolder};

/// Compiles with the algorithms of the run. Rank 0 compiles first, so that autotuning happens in one process and the others
/// use its choices.
pub(super) fn shared<T>(
    device: &dyn Device,
    processes: &Processes,
    record: Option<&mut Record>,
    compile: impl FnOnce() -> Result<T, TrainError>,
) -> Result<T, TrainError> {
    let environment = device.algorithms().environment;
    processes.ensure_same("device", &listed(&environment))?;
    device.connect()?;
    let Some(record) = record else {
        let chosen = serde_json::from_slice(&processes.broadcast(Vec::new())?).unwrap_or_default();
        device.use_algorithms(&Algorithms { environment, chosen });
        return compile();
    };
    let mut kept = KeptAlgorithms::restore(device, record.run, record.observer)?;
    let compiled = compile()?;
    processes.broadcast(serde_json::to_vec(&device.algorithms().chosen).unwrap_or_default())?;
    kept.keep(device, record.run)?;
    Ok(compiled)
}

/// An environment as text.
fn listed(environment: &BTreeMap<String, String>) -> String {
    environment.iter().map(|(what, is)| format!("{what} {is}")).collect::<Vec<_>>().join(", ")
}

/// The algorithms recorded in a run's folder.
struct KeptAlgorithms(Option<Algorithms>);

impl KeptAlgorithms {
    /// Makes the device use the algorithms of earlier sessions. Another kind of device has other algorithms; the observer is
    /// then notified that results will differ.
    fn restore(device: &dyn Device, run: &RunFolder, observer: &mut dyn Observer) -> Result<KeptAlgorithms, RunError> {
        let kept = run.algorithms()?;
        if let Some(before) = &kept {
            let here = device.algorithms().environment;
            if before.environment == here {
                device.use_algorithms(before);
            } else {
                observer.note(&format!(
                    "until now this run was computed with {}, here it is {}: from here on its weights agree with those of \
                     an uninterrupted run to rounding, not to the bit",
                    listed(&before.environment),
                    listed(&here)
                ));
            }
        }
        Ok(KeptAlgorithms(kept))
    }

    /// Records the algorithms that the device has chosen.
    fn keep(&mut self, device: &dyn Device, run: &RunFolder) -> Result<(), RunError> {
        let now = device.algorithms();
        if self.0.as_ref() != Some(&now) {
            run.write_algorithms(&now)?;
            self.0 = Some(now);
        }
        Ok(())
    }
}
