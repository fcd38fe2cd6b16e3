//! The algorithms that the bits of a run depend on: kept in its folder before anything computed with them is, and taken
//! up again when it is resumed.

use vit_graph::device::{Algorithms, Device};

use super::Observer;
use crate::run::folder::{RunError, RunFolder};

/// What a run's folder says of its algorithms.
pub(super) struct KeptAlgorithms(Option<Algorithms>);

impl KeptAlgorithms {
    /// Lets the device take the algorithms of the sessions before. On another kind of device they mean nothing; then the
    /// observer hears that results will differ.
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
                     an undisturbed run to rounding, not to the bit",
                    list(&before.environment),
                    list(&here)
                ));
            }
        }
        Ok(KeptAlgorithms(kept))
    }

    /// Writes down what the device has chosen since.
    pub fn keep(&mut self, device: &dyn Device, run: &RunFolder) -> Result<(), RunError> {
        let now = device.algorithms();
        if self.0.as_ref() != Some(&now) {
            run.write_algorithms(&now)?;
            self.0 = Some(now);
        }
        Ok(())
    }
}
