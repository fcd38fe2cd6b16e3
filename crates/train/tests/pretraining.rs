//! Pre-training without labels: runs on labelled and unlabelled images, their bits, and the models that they leave.

mod support;

use std::path::Path;

use support::{Scene, assert_same};
use vit_models::vit::Vit;
use vit_models::{Checkpoint, OpenOptions};
use vit_train::{ModelChoice, Recipe, RunFolder, Snapshot};

const TASKS: [&str; 3] = ["masked-patches", "mae", "dino"];

/// A short run of a task.
fn recipe(task: &str, settings: &[&str]) -> Recipe {
    let mut recipe = Recipe::named(task).unwrap();
    let short = ["length=6 steps", "batch=8", "evaluate_every=3 steps", "schedule.rate_batch=0", "schedule.rate=2e-3"];
    let small = ["pretraining.prototypes=32", "pretraining.local_crops=2", "pretraining.local_size=8"];
    recipe.set_all(short.into_iter().chain(small).chain(settings.iter().copied())).unwrap();
    recipe
}

/// Moves all images of class folders into one folder without classes.
fn without_classes(data: &Path) {
    for class in std::fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>() {
        let name = class.file_name().unwrap().to_string_lossy().into_owned();
        for image in std::fs::read_dir(&class).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>() {
            let file = format!("{name}-{}", image.file_name().unwrap().to_string_lossy());
            std::fs::rename(&image, data.join(file)).unwrap();
        }
        std::fs::remove_dir(&class).unwrap();
    }
}

#[test]
fn runs_are_resumed_to_the_same_bits_with_any_number_of_threads() {
    let scene = Scene::new();
    for task in TASKS {
        let noisy = recipe(task, &["model.drop_path=0.2", "accumulate=2"]);
        assert!(scene.begin(task, noisy.clone(), 2, u64::MAX).unwrap().complete);
        let whole = scene.last(task);
        // The measure is the accuracy of nearest neighbours.
        assert!(whole.position.best.is_some(), "{task}");
        let stopped = format!("{task}-stopped");
        scene.begin(&stopped, noisy, 1, 4).unwrap();
        scene.resume(&stopped, 1, u64::MAX).unwrap();
        assert_same(task, &whole, &scene.last(&stopped));
    }
}

#[test]
fn images_need_no_labels() {
    let scene = Scene::new();
    without_classes(&scene.data);
    for task in TASKS {
        let finished = scene.begin(task, recipe(task, &[]), 2, u64::MAX).unwrap();
        // Without labels there is nothing to measure.
        assert!(finished.complete && finished.position.best.is_none(), "{task}");
    }
}

#[test]
fn parts_of_a_batch_are_trained_too() {
    let scene = Scene::new();
    for task in TASKS {
        assert!(scene.begin(task, recipe(task, &["parts=2"]), 2, u64::MAX).unwrap().complete, "{task}");
    }
}

#[test]
fn the_model_is_fine_tuned_without_the_layers_of_pre_training() {
    let scene = Scene::new();
    for task in TASKS {
        scene.begin(task, recipe(task, &[]), 2, u64::MAX).unwrap();
        let run = RunFolder::open(scene.folder.path().join(task)).unwrap();
        let opened = Checkpoint::open(run.path(), OpenOptions::default()).unwrap();
        let vit = opened.config.architecture.downcast_ref::<Vit>().unwrap();
        assert!(vit.pretraining.is_some() && vit.classes == 0, "{task}");

        let mut finetune = Recipe::named("mae-finetune").unwrap();
        finetune.set_all(["length=2 steps", "batch=8", "evaluate_every=2 steps"]).unwrap();
        let name = format!("{task}-tuned");
        let choice = ModelChoice::Checkpoint(run.path());
        scene.begin_from(choice, task, &name, finetune, 2, u64::MAX).unwrap();
        let tuned = scene.last(&name);
        let vit = tuned.config.architecture.downcast_ref::<Vit>().unwrap();
        assert!(vit.pretraining.is_none() && vit.classes == 3, "{task}");
        let left = ["decoder_", "mask_token", "dino_head."];
        assert!(tuned.weights.tensors.keys().all(|name| left.iter().all(|prefix| !name.starts_with(prefix))), "{task}");
    }
}

#[test]
fn every_target_of_masked_patches_learns() {
    let scene = Scene::new();
    for target in ["mean-colour", "downsized", "pixels"] {
        let target_setting = format!("pretraining.target={target}");
        let recipe = recipe("masked-patches", &[&target_setting, "length=30 steps", "schedule.rate=5e-3"]);
        scene.begin(target, recipe, 2, u64::MAX).unwrap();
        let rows = RunFolder::open(scene.folder.path().join(target)).unwrap().rows().unwrap();
        let losses: Vec<f64> = rows.iter().filter_map(|row| row.get("train/loss")).collect();
        assert!(losses.len() > 1 && losses[losses.len() - 1] < 0.8 * losses[0], "{target}: {losses:?}");
    }
}

/// The directions of the prototypes, which are normalised in the model.
fn prototypes(snapshot: &Snapshot) -> Vec<f32> {
    let weight = &snapshot.weights.tensors["dino_head.last_layer.weight"];
    let width = *weight.shape.last().unwrap();
    let unit = |row: &[f32]| {
        let length = row.iter().map(|v| v * v).sum::<f32>().sqrt();
        row.iter().map(|v| v / length).collect::<Vec<_>>()
    };
    weight.data.chunks(width).flat_map(unit).collect()
}

#[test]
fn prototypes_stay_as_they_are_while_they_are_frozen() {
    let scene = Scene::new();
    let after = |name: &str, settings: &[&str]| {
        scene.begin(name, recipe("dino", settings), 2, u64::MAX).unwrap();
        prototypes(&scene.last(name))
    };
    let largest = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
    let frozen = "pretraining.freeze_last_layer=6 steps";
    let (first, last) = (after("first", &["length=1 steps", frozen]), after("last", &[frozen]));
    assert!(largest(&first, &last) < 1e-6, "{}", largest(&first, &last));
    let free = after("free", &["pretraining.freeze_last_layer=3 steps"]);
    assert!(largest(&first, &free) > 1e-4, "{}", largest(&first, &free));
}

#[test]
fn a_schedule_of_weight_decay_that_is_constant_changes_nothing() {
    let scene = Scene::new();
    for method in ["adamw", "lion"] {
        let method = format!("optimiser.method={method}");
        let last = |name: &str, end: &str| {
            let end = format!("optimiser.weight_decay_end={end}");
            let settings = ["optimiser.weight_decay=0.2", &end, &method];
            scene.begin(name, recipe("dino", &settings), 2, u64::MAX).unwrap();
            let snapshot = scene.last(name);
            std::fs::remove_dir_all(scene.folder.path().join(name)).unwrap();
            snapshot
        };
        let (constant, rising) = (last("constant", "0"), last("rising", "0.9"));
        assert_same(&method, &constant, &last("same", "0.2"));
        assert_ne!(constant.weights, rising.weights, "{method}");
    }
}

#[test]
fn what_cannot_be_pre_trained_is_refused_in_a_sentence() {
    let scene = Scene::new();
    let error = |model: &str| scene.begin_with(model, "none", recipe("mae", &[]), 1, 1).unwrap_err().to_string();
    assert!(error("resnet18_cifar").contains("choose a Vision Transformer"), "{}", error("resnet18_cifar"));
    let mixed = Recipe::named("mae").unwrap().set("data.mixup=0.8").unwrap_err().to_string();
    assert_eq!(mixed, "`data.mixup` should be 0 in pre-training without labels");
    let still = Recipe::named("dino").unwrap().set("average.decay=0").unwrap_err().to_string();
    assert!(still.contains("the teacher of self-distillation is the moving average"), "{still}");
}
