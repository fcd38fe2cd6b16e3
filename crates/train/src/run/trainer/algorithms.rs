//! The algorithms that the bits of a run depend on: written to its folder before the first checkpoint, and restored when it
//! is resumed.

use vit_graph::device::{Algorithms, Device};

use super::Observer;
use crate::run::folder::{RunError, RunFolder};

/// The algorithms recorded in a run's folder.
pub(super) struct KeptAlgorithms(Option<Algorithms>);

impl KeptAlgorithms {
    /// Makes the device use the algorithms of earlier sessions. Another kind of device has other algorithms; the observer is
    /// then notified that results will differ.
    pub fn restore(
        device: &dyn Device,
        run: &RunFolder,
        observer: &mut dyn Observer,
    ) -> Result<KeptAlgorithms, RunError> {
        let kept = run.algorithms()?;
        if let Some(before) = &kept {
            let here = device.algorithms().environment;
            if before.environment == here {
                device.use_algorithms(before);
            } else {
                let list = |environment: &std::collections::BTreeMap<String, String>| {
                    let items: Vec<String> = environment.iter().map(|(what, is)| format!("{what} {is}")).collect();
                    items.join(", ")
                };
                observer.note(&format!(
                    "until now this run was computed with {}, here it is {}: from here on its weights agree with those of \
                     an uninterrupted run to rounding, not to the bit",
                    list(&before.environment),
                    list(&here)
                ));
            }
        }
        Ok(KeptAlgorithms(kept))
    }

    /// Records the algorithms that the device has chosen.
    pub fn keep(&mut self, device: &dyn Device, run: &RunFolder) -> Result<(), RunError> {
        let now = device.algorithms();
        if self.0.as_ref() != Some(&now) {
            run.write_algorithms(&now)?;
            self.0 = Some(now);
        }
        Ok(())
    }
}
