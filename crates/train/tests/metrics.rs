//! Metrics against values recorded from scikit-learn and numpy (`fixtures/metrics/record.py`), in batches, merged over
//! workers, and with values that are not finite.

use serde_json::Value;
use vit_train::metrics::{Evaluation, MetricsError, MultiLabelEvaluation};

fn recorded(kind: &str) -> Value {
    let mut all: Value = serde_json::from_str(include_str!("fixtures/metrics/recorded.json")).unwrap();
    all[kind].take()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect()
}

fn logits(value: &Value) -> Vec<f32> {
    numbers(&value["logits"]).into_iter().map(|x| x as f32).collect()
}

fn labels(value: &Value) -> Vec<u32> {
    numbers(&value["labels"]).into_iter().map(|x| x as u32).collect()
}

#[track_caller]
fn close(found: f64, expected: &Value) {
    let expected = expected.as_f64().unwrap();
    assert!((found - expected).abs() <= 1e-12, "{found} instead of {expected}");
}

/// All samples in batches of `size`.
fn evaluate(case: &Value, size: usize) -> Evaluation {
    let (logits, labels) = (logits(case), labels(case));
    let mut evaluation = Evaluation::new(8, 5);
    let indices: Vec<usize> = (0..labels.len()).collect();
    for ((logits, labels), indices) in logits.chunks(8 * size).zip(labels.chunks(size)).zip(indices.chunks(size)) {
        evaluation.add(logits, labels, indices).unwrap();
    }
    evaluation
}

#[test]
fn classification_agrees_with_scikit_learn() {
    let case = recorded("single");
    let evaluation = evaluate(&case, 10);
    let measures = evaluation.metrics();
    close(measures.loss, &case["loss"]);
    close(measures.top1, &case["top1"]);
    close(measures.top5, &case["top5"]);
    close(measures.balanced_accuracy, &case["balanced_accuracy"]);
    close(measures.macro_f1, &case["macro_f1"]);
    close(measures.ece, &case["ece"]);
    assert_eq!((measures.samples, measures.not_finite), (97, 0));
    for (class, measures) in evaluation.per_class().iter().enumerate() {
        close(measures.precision, &case["precision"][class]);
        close(measures.recall, &case["recall"][class]);
        close(measures.f1, &case["f1"][class]);
        assert_eq!(measures.support, case["support"][class]);
        for predicted in 0..8 {
            assert_eq!(evaluation.confusion().count(class, predicted), case["confusion"][class][predicted]);
        }
    }
    let table = evaluation.calibration().table();
    assert_eq!(table.len(), 15);
    for (bin, expected) in table.iter().zip(case["table"].as_array().unwrap()) {
        assert_eq!(bin.samples, expected[0]);
        close(bin.confidence, &expected[1]);
        close(bin.accuracy, &expected[2]);
    }
    assert_eq!(evaluation.worst().len(), 5);
    for (mistake, expected) in evaluation.worst().iter().zip(case["worst"].as_array().unwrap()) {
        assert_eq!(
            (mistake.index as u64, mistake.label as u64),
            (expected[0].as_u64().unwrap(), expected[1].as_u64().unwrap())
        );
        assert_eq!(mistake.predicted, expected[2]);
        close(mistake.confidence, &expected[3]);
    }
}

#[test]
fn several_labels_agree_with_scikit_learn() {
    let case = recorded("multi");
    let labels: Vec<Vec<u32>> = serde_json::from_value(case["labels"].clone()).unwrap();
    let logits = logits(&case);
    let mut evaluation = MultiLabelEvaluation::new(5);
    for (logits, labels) in logits.chunks(5 * 16).zip(labels.chunks(16)) {
        evaluation.add(logits, labels).unwrap();
    }
    let measures = evaluation.metrics();
    close(measures.loss, &case["loss"]);
    close(measures.mean_average_precision, &case["mean_average_precision"]);
    close(measures.micro_f1, &case["micro_f1"]);
    close(measures.macro_f1, &case["macro_f1"]);
    let precisions = evaluation.average_precisions();
    assert_eq!(precisions[4], None, "a class without samples has no average precision");
    for (class, precision) in precisions[..4].iter().enumerate() {
        close(precision.unwrap(), &case["average_precisions"][class]);
    }
}

#[test]
fn batches_do_not_matter_and_workers_add_up() {
    let case = recorded("single");
    let whole = evaluate(&case, 97);
    assert_eq!(evaluate(&case, 1), whole);
    let (logits, labels) = (logits(&case), labels(&case));
    let indices: Vec<usize> = (0..97).collect();
    let (mut first, mut second) = (Evaluation::new(8, 5), Evaluation::new(8, 5));
    first.add(&logits[..8 * 40], &labels[..40], &indices[..40]).unwrap();
    second.add(&logits[8 * 40..], &labels[40..], &indices[40..]).unwrap();
    second.merge(&first).unwrap();
    let (merged, whole) = (second.metrics(), (whole.metrics(), whole.worst().to_vec(), whole.confusion().clone()));
    assert!((merged.loss - whole.0.loss).abs() < 1e-12 && (merged.ece - whole.0.ece).abs() < 1e-12);
    assert_eq!((merged.top1, merged.top5), (whole.0.top1, whole.0.top5));
    assert_eq!((second.worst(), second.confusion()), (&whole.1[..], &whole.2));
    assert_eq!(first.merge(&Evaluation::new(9, 5)), Err(MetricsError::Classes { classes: 8, other: 9 }));
}

#[test]
fn logits_that_are_not_numbers_count_as_wrong() {
    let mut evaluation = Evaluation::new(2, 5);
    let nan = f32::NAN;
    let logits = [nan, 1.0, 2.0, 0.0, f32::INFINITY, 0.0, f32::NEG_INFINITY, f32::NEG_INFINITY];
    evaluation.add(&logits, &[1, 0, 0, 0], &[0, 1, 2, 3]).unwrap();
    let measures = evaluation.metrics();
    assert_eq!((measures.samples, measures.not_finite, measures.top1), (4, 3, 0.25));
    assert!(measures.loss.is_nan());
    let classes = evaluation.per_class();
    assert_eq!((classes[0].support, classes[0].predicted, classes[1].support), (3, 1, 1));
    assert_eq!(evaluation.calibration().table().iter().map(|bin| bin.samples).sum::<u64>(), 1);
}

#[test]
fn a_class_that_is_ruled_out_is_a_number() {
    let mut evaluation = Evaluation::new(2, 5);
    evaluation.add(&[f32::NEG_INFINITY, 3.0, 0.0, f32::NEG_INFINITY], &[1, 1], &[0, 1]).unwrap();
    let measures = evaluation.metrics();
    assert_eq!((measures.not_finite, measures.top1, measures.loss), (0, 0.5, f64::INFINITY));
}

#[test]
fn of_equal_logits_the_lower_class_is_predicted() {
    let mut evaluation = Evaluation::new(6, 5);
    evaluation.add(&[0.0; 18], &[0, 4, 5], &[0, 1, 2]).unwrap();
    let measures = evaluation.metrics();
    assert_eq!((measures.top1, measures.top5), (1.0 / 3.0, 2.0 / 3.0));
    assert_eq!(evaluation.confusion().count(5, 0), 1);
    assert_eq!(evaluation.worst().iter().map(|m| m.index).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn batches_that_do_not_fit_change_nothing() {
    let mut evaluation = Evaluation::new(3, 5);
    assert!(matches!(evaluation.add(&[0.0; 5], &[0, 1], &[0, 1]), Err(MetricsError::Logits { found: 5, .. })));
    assert!(matches!(evaluation.add(&[0.0; 6], &[0, 1], &[0]), Err(MetricsError::Indices { .. })));
    assert!(matches!(evaluation.add(&[0.0; 6], &[0, 3], &[0, 1]), Err(MetricsError::Label { label: 3, .. })));
    assert_eq!(evaluation, Evaluation::new(3, 5));
    assert!(evaluation.metrics().top1.is_nan());
    let mut evaluation = MultiLabelEvaluation::new(3);
    assert!(evaluation.add(&[0.0; 3], &[[0, 3]]).is_err());
    assert_eq!(evaluation, MultiLabelEvaluation::new(3));
}
