//! Runs that train an image-text model: their bits across interruptions and processes, their metrics, what they refuse.

mod support;

use support::{Scene, assert_same};
use vit_models::clip::Clip;
use vit_models::{Checkpoint, OpenOptions};
use vit_train::{ModelChoice, Recipe, RunFolder, columns};

const MODEL: &str = "ViT-P-8-16";

/// A short run, in which images that were cropped at random have to find one of three captions.
fn recipe(settings: &[&str]) -> Recipe {
    let mut recipe = Recipe::named("clip-pretrain").unwrap();
    let short = ["length=8 steps", "batch=8", "evaluate_every=4 steps", "schedule.rate=2e-3"];
    recipe.set_all(short.into_iter().chain(settings.iter().copied())).unwrap();
    recipe
}

#[test]
fn runs_are_resumed_to_the_same_bits_with_any_number_of_threads() {
    let mut scene = Scene::new();
    let noisy = recipe(&["model.drop_path=0.2", "data.flip=0.5", "average.decay=0.9", "parts=2"]);
    for ahead in [false, true] {
        scene.ahead = ahead;
        let (whole, stopped) = (format!("whole-{ahead}"), format!("stopped-{ahead}"));
        assert!(scene.begin_with(MODEL, &whole, noisy.clone(), 2, u64::MAX).unwrap().complete);
        scene.begin_with(MODEL, &stopped, noisy.clone(), 1, 5).unwrap();
        scene.resume(&stopped, 1, u64::MAX).unwrap();
        assert_same(&whole, &scene.last(&whole), &scene.last(&stopped));
    }
    assert_same("ahead", &scene.last("whole-false"), &scene.last("whole-true"));
}

#[test]
fn held_out_pairs_are_retrieved() {
    let scene = Scene::new();
    let learning = recipe(&["length=60 steps", "batch=12", "evaluate_every=20 steps"]);
    let best = scene.begin_with(MODEL, "run", learning.clone(), 2, u64::MAX).unwrap().position.best.unwrap();
    assert_eq!(best.metric, columns::VAL_R1);
    let run = RunFolder::open(scene.folder.path().join("run")).unwrap();
    let rows = run.rows().unwrap();
    let of = |column: &str| rows.iter().filter_map(|row| row.get(column)).collect::<Vec<f64>>();
    let names = ["image_to_text_r1", "image_to_text_r5", "text_to_image_r1", "text_to_image_r5"];
    for name in names.map(|name| format!("val/{name}")) {
        assert_eq!(of(&name).len(), 3, "{name}");
    }
    // Images of three colours, which are the captions.
    assert!(best.value > 0.9, "{best:?}");
    let losses = of(columns::VAL_LOSS);
    assert!(losses[2] < losses[0], "{losses:?}");

    // The best model is an image-text model that goes on from there, or with the image tower as it is.
    let path = run.best().path().to_path_buf();
    let model = path.display().to_string();
    let best = Checkpoint::open(&path, OpenOptions::default()).unwrap();
    let lit = recipe(&["model.freeze=[\"*\", \"!text.*\", \"!logit_*\"]"]);
    scene.begin_from(ModelChoice::ImageText(&path), &model, "lit", lit, 2, u64::MAX).unwrap();
    let after = scene.last("lit").weights;
    for (name, tensor) in &best.weights.tensors {
        let text = name.starts_with("text.") || name.starts_with("logit_");
        assert_eq!(after.tensors[name] != *tensor, text, "{name}");
    }
}

#[test]
fn the_scale_of_logits_stays_below_a_hundred() {
    let scene = Scene::new();
    scene.begin_with(MODEL, "first", recipe(&["length=1 steps"]), 2, u64::MAX).unwrap();
    let path = scene.folder.path().join("clip");
    let mut checkpoint = Checkpoint::open(&scene.folder.path().join("first"), OpenOptions::default()).unwrap();
    // A step changes it by at most about the learning rate.
    checkpoint.weights.tensors.get_mut("logit_scale").unwrap().data = vec![5.5];
    checkpoint.save(&path, vit_models::Layout::Timm, vit_models::weights::safetensors::Dtype::F32).unwrap();
    let choice = ModelChoice::ImageText(&path);
    scene.begin_from(choice, "clip", "clipped", recipe(&["length=1 steps"]), 2, u64::MAX).unwrap();
    let found = &scene.last("clipped");
    assert_eq!(found.weights.tensors["logit_scale"].data, [f32::ln(100.0)]);
    let siglip = vit_models::variant("ViT-B-16-SigLIP").unwrap();
    assert_eq!(siglip.architecture.downcast_ref::<Clip>().unwrap().max_logit_scale(), None);
}

#[test]
fn what_pairs_cannot_follow_is_said_in_one_sentence() {
    let scene = Scene::new();
    let refusal = |settings: &[&str]| {
        let name = settings.join(" ");
        scene.begin_with(MODEL, &name, recipe(settings), 1, 1).unwrap_err().to_string()
    };
    let accumulated = refusal(&["accumulate=2"]);
    assert!(accumulated.contains("contrasted over the whole batch") && accumulated.contains("--recompute"));
    assert!(refusal(&["data.mixup=0.2"]).contains("data.mixup of the recipe is for images with labels"));
    assert!(refusal(&["data.label_smoothing=0.1"]).contains("set it to 0"));
    let image_model = scene.folder.path().join("vit");
    scene.begin("vit", support::recipe(&["length=1 steps", "batch=8"]), 1, 1).unwrap();
    let choice = ModelChoice::ImageText(&image_model);
    let refused = scene.begin_from(choice, "vit", "pairs", recipe(&[]), 1, 1).unwrap_err().to_string();
    assert!(refused.contains("this model has no text tower, which --pairs trains"), "{refused}");
}
