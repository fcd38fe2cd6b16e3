//! The files of an evaluation: metrics as JSON, classes and confusion matrix as CSV, plots.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use vit_data::Samples;
use vit_system::{atomic_file, csv_line};

use crate::error::TrainError;
use crate::evaluate::interval::wilson_interval;
use crate::evaluate::metrics::{ClassMetrics, Evaluation};
use crate::evaluate::{EvaluationOutcome, TaskEvaluation};
use crate::json::finite_json;
use crate::plots::{self, Scene, SheetEntry};

/// The metrics of an evaluation as JSON.
pub fn evaluation_json(outcome: &EvaluationOutcome, samples: &dyn Samples) -> Value {
    let names = samples.classes();
    let class = |(name, (m, average_precision)): (&String, &(ClassMetrics, Option<f64>))| {
        let mut class = json!({"class": name, "precision": m.precision, "recall": m.recall, "f1": m.f1,
            "support": m.support});
        if let Some(average_precision) = average_precision {
            class["average_precision"] = json!(average_precision);
        }
        class
    };
    let unreadable: Vec<Value> =
        outcome.unreadable.iter().map(|one| json!({"name": one.name, "reason": one.reason})).collect();
    let mut metrics = match &outcome.evaluation {
        TaskEvaluation::Single(evaluation) | TaskEvaluation::Neighbours(evaluation) => {
            finite_json(evaluation.metrics())
        }
        TaskEvaluation::Multi(evaluation) => finite_json(evaluation.metrics()),
        TaskEvaluation::Pairs(evaluation) => finite_json(evaluation.metrics()),
    };
    if let Value::Object(map) = &mut metrics {
        map.insert("classes".into(), names.iter().zip(&outcome.evaluation.per_class()).map(class).collect());
        if let TaskEvaluation::Single(evaluation) = &outcome.evaluation {
            let metrics = evaluation.metrics();
            if let Some(interval) = wilson_interval(metrics.top1, metrics.samples) {
                map.insert("top1_interval".into(), json!(interval));
            }
            map.insert("worst".into(), worst_json(evaluation, samples));
        }
        map.insert("unreadable".into(), unreadable.into());
    }
    metrics
}

fn worst_json(evaluation: &Evaluation, samples: &dyn Samples) -> Value {
    let name = |class: u32| samples.classes().get(class as usize).cloned().unwrap_or_default();
    (evaluation.worst().iter())
        .map(|m| {
            json!({"name": samples.name(m.index), "label": name(m.label), "predicted": name(m.predicted),
                   "confidence": m.confidence})
        })
        .collect()
}

/// Writes the files of an evaluation into a folder and returns their names.
pub fn write_evaluation(
    folder: &Path,
    title: &str,
    outcome: &EvaluationOutcome,
    samples: &dyn Samples,
) -> Result<Vec<&'static str>, TrainError> {
    let write = |name: &str, content: &[u8]| {
        let path = folder.join(name);
        atomic_file::write(&path, content).map_err(|error| TrainError::Config { path, what: error.to_string() })
    };
    fs::create_dir_all(folder).map_err(|e| TrainError::Config { path: folder.into(), what: e.to_string() })?;
    let mut files = vec!["evaluation.json", "classes.csv"];
    write(files[0], format!("{:#}\n", evaluation_json(outcome, samples)).as_bytes())?;
    let names = samples.classes();
    let multi = matches!(outcome.evaluation, TaskEvaluation::Multi(_));
    let mut header = vec!["class", "precision", "recall", "f1", "support"];
    header.extend(multi.then_some("average_precision"));
    let mut table = csv_line(header);
    for (name, (m, average_precision)) in names.iter().zip(&outcome.evaluation.per_class()) {
        let mut fields = vec![name.clone()];
        fields.extend([m.precision, m.recall, m.f1].map(|measure| format!("{measure:.6}")));
        fields.push(m.support.to_string());
        fields.extend(multi.then(|| average_precision.map_or_else(String::new, |precision| format!("{precision:.6}"))));
        table += &csv_line(fields);
    }
    write(files[1], table.as_bytes())?;
    let TaskEvaluation::Single(evaluation) = &outcome.evaluation else { return Ok(files) };

    write("confusion.csv", confusion_csv(evaluation, names).as_bytes())?;
    let mut draw = |name: &'static str, scene: &Scene| -> Result<(), TrainError> {
        if let Ok(png) = scene.png(2.0) {
            write(name, &png)?;
            files.push(name);
        }
        Ok(())
    };
    draw("confusion.png", &plots::confusion_matrix(title, evaluation.confusion(), names))?;
    draw("calibration.png", &plots::reliability(title, evaluation.calibration()))?;
    let class = |index: u32| names.get(index as usize).cloned().unwrap_or_default();
    let entry = |m: &crate::evaluate::metrics::Mistake| {
        let image = samples.image(m.index).ok()?;
        Some(SheetEntry { image, label: class(m.label), predicted: class(m.predicted), confidence: m.confidence })
    };
    let entries: Vec<SheetEntry> = evaluation.worst().iter().filter_map(entry).collect();
    if !entries.is_empty() {
        draw("worst.png", &plots::contact_sheet(&format!("{title}: the most confident mistakes"), &entries))?;
    }
    files.push("confusion.csv");
    Ok(files)
}

/// Rows are labels, columns predictions.
fn confusion_csv(evaluation: &Evaluation, names: &[String]) -> String {
    let mut text = csv_line(std::iter::once("label").chain(names.iter().map(String::as_str)));
    for (label, name) in names.iter().enumerate() {
        let counts = (0..names.len()).map(|predicted| evaluation.confusion().count(label, predicted).to_string());
        text += &csv_line(std::iter::once(name.clone()).chain(counts));
    }
    text
}
