//! Models with weights that a program has in memory.

use vit_graph::device::{Initial, Parameters};
use vit_models::weights::{Tensor, Weights};
use vit_models::{Checkpoint, ModelError, OpenOptions, variant};

const NAME: &str = "vit_tiny_patch4_32";

/// The weights of the model with so many classes.
fn weights(classes: usize) -> Weights {
    let mut architecture = variant(NAME).unwrap().architecture;
    architecture.set_classes(classes);
    let mut weights = Weights::default();
    for parameter in architecture.parameters().unwrap() {
        let data = Initial { seed: 1 }.take(&parameter).unwrap().into_owned();
        weights.insert(&parameter.name, Tensor::new(parameter.shape.to_vec(), data).unwrap()).unwrap();
    }
    weights
}

#[test]
fn classes_follow_from_the_weights() {
    for classes in [0, 3] {
        let given = weights(classes);
        let checkpoint = Checkpoint::from_weights(NAME, given.clone(), OpenOptions::default()).unwrap();
        assert_eq!(checkpoint.config.architecture.classes(), classes);
        assert_eq!(checkpoint.weights, given);
        assert_eq!(checkpoint.report, [format!("classes: {classes}, as the weights have")]);
        assert_eq!(checkpoint.config.name.as_deref(), Some(NAME));
    }
    let usual = Checkpoint::from_weights(NAME, weights(1000), OpenOptions::default()).unwrap();
    assert_eq!(usual.config.labels.len(), 1000);
}

#[test]
fn another_size_is_adapted_and_what_does_not_match_is_listed() {
    let larger = OpenOptions { image_size: Some([64, 64]), ..OpenOptions::default() };
    let checkpoint = Checkpoint::from_weights(NAME, weights(3), larger).unwrap();
    assert_eq!(checkpoint.config.architecture.image_size(), [64, 64]);
    assert_eq!(checkpoint.config.preprocessing.image_size, [64, 64]);

    let mut lacking = weights(3);
    lacking.take("norm.weight").unwrap();
    let error = Checkpoint::from_weights(NAME, lacking.clone(), OpenOptions::default()).unwrap_err();
    assert!(error.to_string().contains("norm.weight"), "{error}");
    let lenient = OpenOptions { allow_unmatched: true, ..OpenOptions::default() };
    assert!(Checkpoint::from_weights(NAME, lacking, lenient).is_ok());

    let error = Checkpoint::from_weights("vit_tny_patch4_32", weights(3), OpenOptions::default()).unwrap_err();
    assert!(matches!(error, ModelError::UnknownModel { .. }), "{error}");
}
