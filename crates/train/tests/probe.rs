//! The classifiers of probes against scikit-learn's, on recorded features (`bench/probe_reference.py`).

use std::collections::BTreeMap;
use std::path::Path;

use nalgebra::DMatrix;
use vit_models::weights::safetensors;
use vit_train::probe::{Convergence, LabelledRows, LogisticRegression, NearestNeighbours, Ridge, Standardisation};

struct Recording {
    values: BTreeMap<String, Vec<f32>>,
    width: usize,
    labels: Vec<u32>,
    classes: usize,
}

fn recording() -> Recording {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/probe.safetensors");
    let read = safetensors::read(&path).unwrap();
    let width = read.tensors["train"].shape[1];
    let values: BTreeMap<String, Vec<f32>> =
        read.tensors.iter().map(|(name, tensor)| (name.to_string(), tensor.data.to_vec())).collect();
    let labels: Vec<u32> = values["labels"].iter().map(|label| *label as u32).collect();
    let classes = *labels.iter().max().unwrap() as usize + 1;
    Recording { values, width, labels, classes }
}

impl Recording {
    fn samples(&self, name: &str, count: usize) -> DMatrix<f64> {
        let values = self.values[name][..count * self.width].iter().map(|value| f64::from(*value));
        DMatrix::from_iterator(self.width, count, values)
    }

    fn count(&self, name: &str) -> usize {
        self.values[name].len() / self.width
    }

    /// The largest difference to recorded values.
    fn difference(&self, name: &str, found: &[f64]) -> f64 {
        let recorded = &self.values[name];
        assert_eq!(recorded.len(), found.len(), "{name}");
        recorded.iter().zip(found).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max)
    }
}

#[test]
fn ridge_regression_is_that_of_scikit_learn() {
    let recorded = recording();
    let test = recorded.samples("test", recorded.count("test"));
    for (name, count) in [("ridge", recorded.count("train")), ("ridge_few", 30)] {
        let target = |class: usize, image: usize| if recorded.labels[image] as usize == class { 1.0 } else { -1.0 };
        let targets = DMatrix::from_fn(recorded.classes, count, target);
        let ridge = Ridge::new(recorded.samples("train", count), &targets);
        for power in [-4, 0, 4] {
            let outputs = ridge.solve(2f64.powi(power)).unwrap().predict(&test);
            let difference = recorded.difference(&format!("{name}_{power}"), outputs.as_slice());
            assert!(difference < 1e-6, "{name}, λ = 2^{power}: {difference}");
        }
    }
}

#[test]
fn votes_of_nearest_neighbours_are_those_of_scikit_learn() {
    let recorded = recording();
    let (train, test) = (&recorded.values["train"], &recorded.values["test"]);
    let labels = &recorded.labels[..recorded.count("train")];
    for neighbours in [1, 5, 20] {
        let nearest = NearestNeighbours { neighbours, ..NearestNeighbours::default() };
        let shares = nearest.shares(train, labels, test, recorded.width, recorded.classes);
        let difference = recorded.difference(&format!("nearest_{neighbours}"), &shares);
        assert!(difference < 1e-5, "{neighbours} neighbours: {difference}");
    }
}

#[test]
fn logistic_regression_is_that_of_scikit_learn() {
    let recorded = recording();
    let train = &recorded.values["train"];
    let standardisation = Standardisation::of(train, recorded.width);
    let labels = &recorded.labels[..recorded.count("train")];
    let data = LabelledRows { rows: train, labels, standardisation: &standardisation };
    for power in [-3, -1] {
        let mut model = LogisticRegression::zeros(recorded.classes, recorded.width);
        assert!(model.fit(&data, 10f64.powi(power), Convergence { tolerance: 1e-9, steps: 5000 }));
        let mut shares = model.logits(&recorded.values["test"], &standardisation);
        for row in shares.chunks_exact_mut(recorded.classes) {
            let sum: f64 = row.iter().map(|logit| logit.exp()).sum();
            row.iter_mut().for_each(|logit| *logit = logit.exp() / sum);
        }
        let difference = recorded.difference(&format!("logistic_{power}"), &shares);
        assert!(difference < 1e-5, "λ = 10^{power}: {difference}");
    }
}
