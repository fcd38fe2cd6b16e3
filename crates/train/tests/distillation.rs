//! DeiT end to end: a convolutional teacher is trained, and a student distils from it.

mod support;

use std::path::Path;

use support::{Scene, assert_same, recipe, write_image};
use vit_models::weights::safetensors::Dtype;
use vit_models::{Checkpoint, Layout};
use vit_train::{Kept, TrainError};

const TEACHER: &str = "lenet5_relu_cifar";
const STUDENT: &str = "deit_pico_distilled_patch8_32";

/// A scene with a trained teacher.
fn taught() -> (Scene, String) {
    let scene = Scene::new();
    let settings = ["batch=12", "length=30 steps", "evaluate_every=30 steps", "schedule.rate=2e-2"];
    assert!(scene.begin_with(TEACHER, "teacher", recipe(&settings), 2, u64::MAX).unwrap().complete);
    assert!(scene.last("teacher").position.best.unwrap().value > 0.9, "colours are easy");
    let teacher = format!("objective.teacher={}", scene.folder.path().join("teacher").display());
    (scene, teacher)
}

fn student<'a>(teacher: &'a str, more: &[&'a str]) -> vit_train::Recipe {
    let mut recipe = recipe(&["batch=12", "length=30 steps", "evaluate_every=30 steps", "schedule.rate=2e-2"]);
    recipe.set_all([teacher].into_iter().chain(more.iter().copied())).unwrap();
    recipe
}

#[test]
fn a_student_learns_from_its_teacher_alone() {
    let (scene, teacher) = taught();
    // With alpha 1, labels have no effect.
    for more in [
        ["objective.distillation=hard", "objective.alpha=1", "objective.temperature=1"],
        // DeiT divides the divergence by the number of classes, three here.
        ["objective.distillation=soft", "objective.alpha=1", "objective.temperature=3"],
    ] {
        let name = more[0].rsplit('=').next().unwrap();
        assert!(scene.begin_with(STUDENT, name, student(&teacher, &more), 2, u64::MAX).unwrap().complete);
        let snapshot = scene.last(name);
        let head = &snapshot.weights.tensors["head_dist.weight"].data;
        assert!(head.iter().any(|v| *v != 0.0), "{name}: the distillation head has not moved");
        let score = snapshot.position.best.unwrap().value;
        // Only the distillation head was trained.
        assert!(score > 0.9, "{name}: {score}");
        let untaught = &snapshot.weights.tensors["head.weight"].data;
        assert!(untaught.iter().all(|v| *v == 0.0), "{name}: labels were learned");
    }
}

#[test]
fn a_distilled_run_interrupted_anywhere_ends_with_the_same_bits() {
    let (scene, teacher) = taught();
    let more = [
        "objective.distillation=hard",
        "length=7 steps",
        "accumulate=2",
        "data.mixup=0.8",
        "model.drop_path=0.2",
        "average.decay=0.9",
        "evaluate_every=3 steps",
    ];
    scene.begin_with(STUDENT, "whole", student(&teacher, &more), 2, u64::MAX).unwrap();
    let whole = scene.last("whole");
    assert_eq!(whole.position.step, 7);
    for stop in [1, 3, 5] {
        let name = format!("stopped-{stop}");
        assert!(!scene.begin_with(STUDENT, &name, student(&teacher, &more), 2, stop).unwrap().complete);
        assert!(scene.resume(&name, 1, u64::MAX).unwrap().complete);
        assert_same(&name, &whole, &scene.last(&name));
    }
}

#[test]
fn a_teacher_that_does_not_fit_is_explained() {
    let (scene, teacher) = taught();
    let hard = "objective.distillation=hard";
    let refused = |teacher: &str, more: &[&str]| -> String {
        let mut recipe = student(teacher, &[]);
        recipe.set_all(more.iter().copied()).unwrap();
        scene.begin_with(STUDENT, &format!("refused-{}", more.len()), recipe, 1, 1).unwrap_err().to_string()
    };
    let missing = refused("objective.teacher=no/such/model", &[hard]);
    assert!(missing.starts_with("the teacher no/such/model: "), "{missing}");
    let unused = refused(&teacher, &[]);
    assert!(unused.contains("objective.distillation is none"), "{unused}");

    // Another dataset: other classes, then fewer.
    let other = scene.folder.path().join("other");
    support::write_images(&other, 12);
    std::fs::rename(other.join("blue"), other.join("cyan")).unwrap();
    let try_on = |data: &std::path::Path| {
        let scene = Scene { folder: tempfile::tempdir().unwrap(), data: data.to_path_buf(), ahead: false };
        scene.begin_with(STUDENT, "refused", student(&teacher, &[hard]), 1, 1).unwrap_err()
    };
    let renamed = try_on(&other);
    assert!(matches!(renamed, TrainError::Teacher { .. }));
    assert!(renamed.to_string().contains("class 1 is \"blue\" there and \"cyan\" here"), "{renamed}");
    std::fs::remove_dir_all(other.join("cyan")).unwrap();
    let fewer = try_on(&other).to_string();
    assert!(fewer.contains("it knows 3 classes, and the dataset has 2"), "{fewer}");

    // A teacher with one colour channel.
    let grey = recipe(&["batch=12", "length=1 steps"]);
    scene.begin_with("lenet5_relu", "grey", grey, 1, u64::MAX).unwrap();
    let grey = format!("objective.teacher={}", scene.folder.path().join("grey").display());
    let error = scene.begin_with(STUDENT, "colours", student(&grey, &[hard]), 1, 1).unwrap_err().to_string();
    assert!(error.contains("it sees 1 colour channels, and the student 3"), "{error}");
}

/// A teacher whose logits are infinite for a white image, and 0 for those with less blue.
fn overflowing_teacher(scene: &Scene) -> String {
    scene.begin_with(TEACHER, "any", recipe(&["batch=12", "length=1 step"]), 2, u64::MAX).unwrap();
    let mut teacher = Checkpoint::open(&scene.folder.path().join("any/checkpoints/last"), Default::default()).unwrap();
    teacher.weights.tensors.values_mut().for_each(|tensor| tensor.data.fill(0.0));
    let mut set = |name: &str, at: usize, value: f32| teacher.weights.tensors.get_mut(name).unwrap().data[at] = value;
    // The centre of the first filter reads the blue channel.
    set("conv1.weight", 2 * 25 + 12, 1.0);
    set("conv1.bias", 0, -0.99);
    set("conv2.weight", 12, 1e18);
    set("fc1.weight", 0, 1e18);
    set("fc2.weight", 0, 1e18);
    set("fc3.weight", 0, 1e18);
    (teacher.config.preprocessing.mean, teacher.config.preprocessing.std) = (vec![0.0; 3], vec![1.0; 3]);
    let folder = scene.folder.path().join("overflowing");
    teacher.save(&folder, Layout::Timm, Dtype::F32).unwrap();
    format!("objective.teacher={}", folder.display())
}

#[test]
fn a_loss_that_is_not_finite_is_traced_with_the_failing_batchs_logits_not_the_next() {
    let mut scene = Scene::new();
    let teacher = overflowing_teacher(&scene);
    // Several, since the first may be held out for validation; few, so that the next batch has none.
    for number in [3, 7, 11] {
        write_image(&Path::new(&scene.data).join(format!("amber/{number}.png")), [255; 3]);
    }
    let plain = ["data.crop=centre", "data.flip=0", "data.auto_augment=none", "data.mixup=0", "data.cutmix=0"];
    let mut one_by_one = recipe(&["batch=1", "length=60 steps", "evaluate_every=60 steps", "schedule.rate=1e-4"]);
    one_by_one.set_all(plain.into_iter().chain([teacher.as_str(), "objective.distillation=soft"])).unwrap();
    for ahead in [false, true] {
        scene.ahead = ahead;
        let name = format!("student {ahead}");
        let error = scene.begin_with(STUDENT, &name, one_by_one.clone(), 2, u64::MAX).unwrap_err();
        let TrainError::NonFinite { step, place, kept, .. } = &error else { panic!("{error}") };
        assert!(place.as_ref().is_some_and(|place| place.op == "input teacher"), "{error}");
        // The step that was started before the loss was read is finite, and counts.
        let saved = if ahead { step + 1 } else { step - 1 };
        assert_eq!((*kept, scene.last(&name).position.step), (Kept::Saved { step: saved }, saved), "{error}");
    }
}
