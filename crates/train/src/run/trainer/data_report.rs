//! The report on a run's data in its folder: classes, skipped files, and images that could not be read.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use vit_data::Samples;
use vit_data::dataset::ClassCount;
use vit_data::loader::Unreadable;

use super::Observer;
use crate::error::TrainError;
use crate::run::folder::RunFolder;
use crate::run::setup::Setup;

/// Unreadable images that are reported one by one; further ones are counted.
const NAMED: usize = 3;

/// The images of a run that could not be read, by name, with the reason.
#[derive(Default)]
pub(super) struct UnreadableImages {
    train: BTreeMap<String, String>,
    validation: BTreeMap<String, String>,
    /// How many of the training images were reported.
    reported: usize,
}

impl UnreadableImages {
    /// Those of earlier sessions.
    pub fn of(run: &RunFolder) -> UnreadableImages {
        let report = run.data_report();
        let listed = |key: &str| -> BTreeMap<String, String> {
            let text = |entry: &Value, key: &str| entry[key].as_str().map(str::to_string);
            let list = report[key].as_array().map_or(&[][..], Vec::as_slice);
            list.iter().filter_map(|entry| Some((text(entry, "name")?, text(entry, "reason")?))).collect()
        };
        let train = listed("unreadable");
        UnreadableImages { reported: train.len(), train, validation: listed("unreadable_validation") }
    }

    /// Adds training images. The first ones are reported by name, their number if `counted`.
    pub fn met_in_training<'a>(
        &mut self,
        met: impl ExactSizeIterator<Item = &'a Unreadable>,
        observer: &mut dyn Observer,
        counted: bool,
    ) {
        if met.len() == 0 {
            return;
        }
        for image in met {
            if self.train.contains_key(&image.name) {
                continue;
            }
            if self.reported < NAMED {
                self.reported += 1;
                let Unreadable { name, reason, .. } = image;
                observer.note(&format!("{name} cannot be read ({reason}); other images take its place"));
            }
            self.train.insert(image.name.clone(), image.reason.clone());
        }
        if counted && self.train.len() > self.reported {
            self.reported = self.train.len();
            observer.note(&format!("{} training images cannot be read so far; data.txt lists them", self.reported));
        }
    }

    /// Adds validation images.
    pub fn met_in_validation(&mut self, met: &[Unreadable], observer: &mut dyn Observer) {
        let new: Vec<&Unreadable> = met.iter().filter(|one| !self.validation.contains_key(&one.name)).collect();
        for Unreadable { name, reason, .. } in new.iter().take(NAMED) {
            observer.note(&format!("{name} cannot be read ({reason}); the model is not evaluated on it"));
        }
        if new.len() > NAMED {
            observer.note(&format!("{} validation images cannot be read; data.txt lists them", met.len()));
        }
        self.validation.extend(new.into_iter().map(|one| (one.name.clone(), one.reason.clone())));
    }

    /// Writes the report into the run's folder.
    pub fn write(&self, setup: &Setup, run: &RunFolder) -> Result<(), TrainError> {
        Ok(run.write_data_report(&self.text(setup), &self.json(setup))?)
    }

    /// The report as text.
    fn text(&self, setup: &Setup) -> String {
        let mut text = format!("{}\n{}\n", setup.settings.data.display(), setup.data_report);
        for (class, count) in setup.train.classes().iter().zip(&setup.data_report.classes) {
            let ClassCount { train, validation, test } = count;
            text.push_str(&format!("{class}: {train} train, {validation} validation, {test} test\n"));
        }
        let parts = [
            (&self.train, "training images could not be read; others took their places"),
            (&self.validation, "validation images could not be read; the model is not evaluated on them"),
        ];
        for (images, what) in parts.into_iter().filter(|(images, _)| !images.is_empty()) {
            text.push_str(&format!("\n{} {what}:\n", images.len()));
            images.iter().for_each(|(name, reason)| text.push_str(&format!("{name}: {reason}\n")));
        }
        text
    }

    /// The report as JSON.
    fn json(&self, setup: &Setup) -> Value {
        let classes: Vec<Value> = (setup.train.classes().iter().zip(&setup.data_report.classes))
            .map(|(class, c)| json!({"class": class, "train": c.train, "validation": c.validation, "test": c.test}))
            .collect();
        let skipped: Vec<Value> = (setup.data_report.skipped.iter())
            .map(|s| json!({"reason": s.reason, "count": s.count, "example": s.example}))
            .collect();
        let list = |images: &BTreeMap<String, String>| -> Vec<Value> {
            images.iter().map(|(name, reason)| json!({"name": name, "reason": reason})).collect()
        };
        let fingerprint = setup.fingerprint.as_ref();
        json!({
            "data": setup.settings.data, "format": setup.data_report.format.to_string(), "classes": classes,
            "fingerprint": fingerprint.map(|of| json!({"train": of.train, "validation": of.validation})),
            "empty": setup.data_report.empty, "skipped": skipped,
            "unreadable": list(&self.train), "unreadable_validation": list(&self.validation),
        })
    }
}
