//! Settings without effect on a model: every architecture with every such setting.

mod support;

use support::{Scene, recipe, settings};
use vit_models::{Architecture, variant};
use vit_train::{ModelChoice, Recipe, RunSettings, Setup, Teaching, TrainError, TrainingStep};

const MODELS: [&str; 8] = [
    "P/4@16",
    "resnet18_cifar",
    "resnetv2_50x1_bit",
    "lenet5_relu_cifar",
    "efficientnet_b0",
    "swin_tiny_patch4_window7_224",
    "coatnet_0_224",
    "convnextv2_atto",
];

/// A setting, and on which of the models it has an effect, in their order.
const TABLE: [(&str, [bool; 8]); 10] = [
    ("model.drop_path=0.1", [true, true, true, false, true, true, true, true]),
    ("model.dropout=0.1", [true, true, true, false, true, true, true, true]),
    ("model.attention_dropout=0.1", [true, false, false, false, false, true, true, false]),
    ("model.patch_drop=0.25", [true, false, false, false, false, false, false, false]),
    ("model.start=mimetic", [true, false, false, false, false, false, false, false]),
    ("optimiser.layer_decay=0.5", [true; 8]),
    ("model.freeze=[\"backbone\"]", [true; 8]),
    ("model.freeze=[\"first 2 blocks\"]", [true; 8]),
    ("model.freeze=[\"first 99 blocks\"]", [false; 8]),
    ("model.freeze=[\"no.such.*\"]", [false; 8]),
];

/// The operations of a training step, and the parameters that it changes.
fn step(model: &Architecture, recipe: &Recipe) -> (usize, usize) {
    let mut model = model.clone();
    recipe.apply_to(&mut model);
    let step = TrainingStep::new(&model, 2, recipe.step_options()).unwrap();
    (step.graph.nodes().len(), step.graph.updates().len())
}

#[test]
fn every_setting_changes_the_training_of_every_model_or_is_refused() {
    for (column, name) in MODELS.iter().enumerate() {
        let model = variant(name).unwrap_or_else(|| panic!("{name}")).architecture;
        let plain = Recipe::named("study").unwrap();
        let without = step(&model, &plain);
        for (setting, followed) in TABLE {
            let mut recipe = plain.clone();
            recipe.set(setting).unwrap();
            let unfollowed = recipe.unfollowed(&model, true).unwrap();
            assert_eq!(unfollowed.is_empty(), followed[column], "{name} with {setting}: {unfollowed:?}");
            if followed[column] && !setting.starts_with("model.start") {
                assert_ne!(step(&model, &recipe), without, "{name} with {setting}");
            }
        }
        // Distillation works with any head.
        let mut taught = plain;
        taught.objective.distillation = Teaching::Soft;
        assert_ne!(step(&model, &taught), without, "{name} with a teacher");
    }
}

#[test]
fn what_was_asked_for_and_cannot_be_followed_is_an_error_and_what_a_recipe_brings_along_is_left_out() {
    let scene = Scene::new();
    let begin = |model: &str, size: Option<[usize; 2]>, recipe: Recipe| {
        let settings = RunSettings { model: model.into(), ..settings(&scene.data) };
        Setup::new(ModelChoice::Named(model), size, settings, recipe)
    };
    let refused = |model: &str, size: Option<[usize; 2]>, settings: &[&str]| {
        begin(model, size, recipe(settings)).err().expect("refused").to_string()
    };
    let error = begin("resnet18_cifar", None, recipe(&["model.attention_dropout=0.1"])).err().unwrap();
    assert!(matches!(error, TrainError::Setting { .. }), "{error}");
    assert!(refused("P/4@16", None, &["model.freeze=[\"first 99 blocks\"]"]).contains("blocks"));
    let size = refused("P/4@16", Some([18, 24]), &[]);
    assert!(size.contains("16x24 and 20x24"), "{size}");
    assert!(refused("P/4@18", None, &[]).contains("16x16 and 20x20"));

    // None of this recipe's settings has an effect on LeNet.
    let setup = begin("lenet5_relu_cifar", None, Recipe::named("augreg").unwrap()).unwrap();
    let left_out = |key: &str| setup.report.iter().any(|line| line.starts_with(key) && line.contains("left out"));
    assert!(left_out("model.drop_path") && left_out("model.dropout"), "{:?}", setup.report);
    assert_eq!((setup.recipe.model.drop_path, setup.recipe.model.dropout), (0.0, 0.0));
}
