//! The training loop: the same bits however a run is interrupted and however many threads there are.

mod support;

use std::path::Path;
use std::sync::atomic::AtomicBool;

use support::{Scene, assert_same, options, recipe, settings, write_images};
use vit_cpu::Cpu;
use vit_data::Samples;
use vit_models::swin::{Swin, SwinVersion};
use vit_models::vit::{CoordinateAugmentation, RotaryAngles, RotaryPositions, Vit};
use vit_models::weights::safetensors::Dtype;
use vit_models::weights::{Scheme, Tensor, Weights};
use vit_models::{Checkpoint, Config, Layout, Mode, Preprocess, ProblemType};
use vit_train::{
    ChangedData, Existing, Kept, Launch, ModelChoice, Recipe, RunFolder, RunSettings, Setup, Slot, TrainError, train,
};

/// All features with state or randomness: mixing, an average, micro-batches, dropout, stochastic depth.
const STATEFUL: [&str; 12] = [
    "batch=8",
    "accumulate=2",
    "length=9 steps",
    "evaluate_every=4 steps",
    "data.mixup=0.8",
    "data.cutmix=1.0",
    "data.auto_augment=rand-m9-mstd0.5-inc1",
    "data.erasing=0.5",
    "model.drop_path=0.2",
    "model.dropout=0.1",
    "model.attention_dropout=0.1",
    "average.decay=0.9",
];

#[test]
fn a_run_interrupted_anywhere_ends_with_the_same_bits() {
    let scene = Scene::new();
    assert!(scene.begin("whole", recipe(&STATEFUL), 2, u64::MAX).unwrap().complete);
    let whole = scene.last("whole");
    assert_eq!(whole.position.step, 9);
    for stop in [1, 2, 3, 4, 6, 8] {
        let name = format!("stopped-{stop}");
        assert!(!scene.begin(&name, recipe(&STATEFUL), 2, stop).unwrap().complete);
        assert_eq!(scene.last(&name).position.step, stop);
        assert!(scene.resume(&name, 2, u64::MAX).unwrap().complete);
        assert_same(&name, &whole, &scene.last(&name));
    }
    // One step at a time.
    scene.begin("often", recipe(&STATEFUL), 2, 1).unwrap();
    (2..=9).for_each(|step| {
        scene.resume("often", 2, step).unwrap();
    });
    // The last interruption was within the evaluation.
    scene.resume("often", 2, u64::MAX).unwrap();
    assert_same("often", &whole, &scene.last("often"));
}

#[test]
fn a_run_with_lion_is_resumed_to_the_same_bits() {
    let scene = Scene::new();
    let lion = [&STATEFUL[..], &["optimiser.method=lion", "schedule.rate=1e-4"]].concat();
    scene.begin("whole", recipe(&lion), 2, u64::MAX).unwrap();
    let whole = scene.last("whole");
    assert!(whole.optimiser.tensors.keys().any(|name| name.ends_with(".lion_momentum")));
    scene.begin("stopped", recipe(&lion), 2, 5).unwrap();
    scene.resume("stopped", 2, u64::MAX).unwrap();
    assert_same("lion", &whole, &scene.last("stopped"));
}

/// A small model of a published one's form, with random changes of its coordinates where it has them, in a new folder.
fn small_model(published: &str, folder: &Path) {
    let mut variant = vit_models::variant(published).unwrap();
    if let Some(vit) = variant.architecture.downcast_mut::<Vit>() {
        (vit.image_size, vit.patch_size, vit.classes) = ([16, 16], [4, 4], 5);
        (vit.dim, vit.depth, vit.heads, vit.mlp_dim) = (48, 2, 3, 64);
        if let Some(RotaryPositions { angles: RotaryAngles::Centred { augmentation, .. }, .. }) = &mut vit.rotary {
            *augmentation = CoordinateAugmentation { shift: Some(0.1), jitter: Some(1.1), rescale: Some(2.0) };
        }
    }
    if let Some(swin) = variant.architecture.downcast_mut::<Swin>() {
        (swin.image_size, swin.patch_size, swin.classes) = ([16, 16], [2, 2], 5);
        (swin.widths, swin.depths, swin.heads) = (vec![24, 48], vec![2, 1], vec![3, 6]);
        (swin.windows, swin.mlp_ratios, swin.head_dims) = (vec![[4, 4]; 2], vec![2.0; 2], vec![None; 2]);
        swin.version = SwinVersion::V2 { pretrained_windows: vec![None, Some([2, 2])] };
    }
    let mut weights = Weights::default();
    for (_, parameter) in variant.architecture.build(1, Mode::Inference).unwrap().parameters() {
        let mut data = vec![0.0; parameter.shape.elements()];
        parameter.init.fill(5, &parameter.name, &mut data);
        weights.insert(&*parameter.name, Tensor::new(parameter.shape.to_vec(), data).unwrap()).unwrap();
    }
    let preprocessing = Preprocess { image_size: [16, 16], ..variant.preprocessing };
    let config = Config {
        name: None,
        architecture: variant.architecture,
        preprocessing,
        labels: Vec::new(),
        problem_type: ProblemType::default(),
    };
    let checkpoint = Checkpoint {
        config,
        weights,
        scheme: Scheme::Timm,
        source: folder.into(),
        report: Vec::new(),
        tokenizer: None,
    };
    checkpoint.save(folder, Layout::Timm, Dtype::F32).unwrap();
}

#[test]
fn published_forms_are_fine_tuned_and_resumed_to_the_same_bits() {
    let scene = Scene::new();
    for published in [
        "vit_small_patch16_dinov3",
        "eva02_tiny_patch14_224",
        "vit_small_patch16_rope_mixed_224",
        "beit_base_patch16_224",
        "vit_srelpos_small_patch16_224",
        "swinv2_base_window12to16_192to256",
    ] {
        let folder = scene.folder.path().join(published);
        small_model(published, &folder);
        let begin = |name: &str, stop| {
            let model = folder.display().to_string();
            scene.begin_from(ModelChoice::Checkpoint(&folder), &model, name, recipe(&STATEFUL), 2, stop).unwrap()
        };
        let (whole, stopped) = (format!("{published}-whole"), format!("{published}-stopped"));
        assert!(begin(&whole, u64::MAX).complete);
        assert!(!begin(&stopped, 5).complete);
        assert!(scene.resume(&stopped, 2, u64::MAX).unwrap().complete);
        assert_same(published, &scene.last(&whole), &scene.last(&stopped));
    }
}

#[test]
fn steps_that_are_started_early_end_with_the_same_bits() {
    let mut scene = Scene::new();
    scene.begin("whole", recipe(&STATEFUL), 2, u64::MAX).unwrap();
    let whole = scene.last("whole");
    scene.ahead = true;
    assert!(scene.begin("ahead", recipe(&STATEFUL), 2, u64::MAX).unwrap().complete);
    assert_same("ahead", &whole, &scene.last("ahead"));
    let rows = |name: &str| RunFolder::open(scene.folder.path().join(name)).unwrap().rows().unwrap();
    let losses = |name: &str| rows(name).iter().map(|row| (row.step, row.get("train/loss"))).collect::<Vec<_>>();
    assert_eq!(losses("whole"), losses("ahead"));
    for stop in [1, 3, 4, 5, 8] {
        let name = format!("ahead-{stop}");
        assert!(!scene.begin(&name, recipe(&STATEFUL), 2, stop).unwrap().complete);
        // A step that was started early is counted; none is after an evaluation.
        let under_way = u64::from(stop % 4 != 0);
        assert_eq!(scene.last(&name).position.step, stop + under_way);
        assert!(scene.resume(&name, 2, u64::MAX).unwrap().complete);
        assert_same(&name, &whole, &scene.last(&name));
    }
}

#[test]
fn threads_change_nothing() {
    let scene = Scene::new();
    for threads in [1, 2, 3] {
        scene.begin(&format!("threads-{threads}"), recipe(&STATEFUL), threads, u64::MAX).unwrap();
    }
    let one = scene.last("threads-1");
    assert_same("2 threads", &one, &scene.last("threads-2"));
    assert_same("3 threads", &one, &scene.last("threads-3"));
}

#[test]
fn a_run_folder_describes_the_run() {
    let scene = Scene::new();
    scene.begin("run", recipe(&["batch=8", "length=8 steps", "evaluate_every=4 steps"]), 2, u64::MAX).unwrap();
    let path = scene.folder.path().join("run");
    for file in ["config.toml", "metrics.jsonl", "metrics.csv", "curves.svg", "curves.png", "data.txt", "data.json"] {
        assert!(path.join(file).is_file(), "{file}");
    }
    let rows = RunFolder::open(&path).unwrap().rows().unwrap();
    assert!(rows.iter().any(|row| row.step == 8 && row.get("val/top1").is_some()));
    let best = vit_models::Checkpoint::open(&path.join("checkpoints/best"), Default::default()).unwrap();
    assert_eq!(best.config.labels, ["amber", "blue", "green"]);
    // Classes that differ in colour are learned quickly.
    assert!(scene.last("run").position.best.unwrap().value > 0.6);
}

#[test]
fn a_loss_that_is_not_finite_stops_the_run_and_keeps_the_weights() {
    let mut scene = Scene::new();
    let wild = ["batch=8", "length=9 steps", "schedule.rate=1e30", "schedule.warmup=0 steps", "optimiser.clip=0"];
    for ahead in [false, true] {
        scene.ahead = ahead;
        let name = format!("wild {ahead}");
        let error = scene.begin(&name, recipe(&wild), 2, u64::MAX).unwrap_err();
        let TrainError::NonFinite { step, place, kept, .. } = &error else { panic!("{error}") };
        assert!(*step > 1 && place.is_some() && error.to_string().contains("elements are not finite"), "{error}");
        let last = scene.last(&name);
        assert!(last.weights.tensors.values().all(|t| t.data.iter().all(|v| v.is_finite())));
        // The checkpoint holds the weights before this step, so a resumed run fails in the same way.
        assert_eq!((*kept, last.position.step), (Kept::Saved { step: step - 1 }, step - 1), "{error}");
        assert_eq!(scene.resume(&name, 2, u64::MAX).unwrap_err().to_string(), error.to_string());
    }
}

#[test]
fn a_frozen_backbone_stays_as_it_is_and_the_head_learns() {
    let scene = Scene::new();
    scene.begin("first", recipe(&["batch=8", "length=6 steps"]), 2, u64::MAX).unwrap();
    let checkpoint = scene.folder.path().join("first/checkpoints/last");
    let other = scene.folder.path().join("other");
    write_images(&other, 8);
    std::fs::rename(other.join("amber"), other.join("gold")).unwrap();
    let frozen = recipe(&["batch=8", "length=6 steps", "model.freeze=[\"backbone\"]"]);
    let mut setup = Setup::new(ModelChoice::Checkpoint(&checkpoint), Some([24, 24]), settings(&other), frozen).unwrap();
    assert!(setup.report.iter().any(|line| line.contains("positions resampled")), "{:?}", setup.report);
    assert!(setup.report.iter().any(|line| line.contains("starting from zero")), "{:?}", setup.report);
    assert_eq!(setup.trained_parameters().unwrap().0, 2);
    let run =
        RunFolder::create(scene.folder.path().join("second"), &setup.to_toml(&Launch::default()), Existing::Refuse)
            .unwrap();
    let stop = AtomicBool::new(false);
    train(&Cpu::new(Some(2)), &mut setup, &run, None, &options(2), &mut (), &stop).unwrap();
    let (before, after) = (scene.last("first").weights, scene.last("second").weights);
    for (name, tensor) in before.tensors.iter().filter(|(name, _)| !name.starts_with("head") && *name != "pos_embed") {
        assert!(tensor.data == after.tensors[name].data, "{name} changed");
    }
    assert!(after.tensors["head.weight"].data.iter().any(|v| *v != 0.0));
}

#[test]
fn of_equal_scores_the_one_with_the_smaller_loss_is_best_and_the_last_checkpoint_is_written_once() {
    let scene = Scene::new();
    let settings = ["batch=8", "length=24 steps", "evaluate_every=3 steps"];
    scene.begin("run", recipe(&settings), 2, u64::MAX).unwrap();
    let run = RunFolder::open(scene.folder.path().join("run")).unwrap();
    let rows = run.rows().unwrap();
    let measured: Vec<(u64, f64, f64)> =
        rows.iter().filter_map(|row| Some((row.step, row.get("val/top1")?, row.get("val/loss")?))).collect();
    let most = measured.iter().map(|(_, top1, _)| *top1).fold(0.0, f64::max);
    let ties: Vec<_> = measured.iter().filter(|(_, top1, _)| *top1 == most).collect();
    let (step, _, loss) = ties.iter().min_by(|a, b| a.2.total_cmp(&b.2)).unwrap();
    assert!(*step > ties[0].0, "no tie to decide in {measured:?}");
    let best = scene.last("run").position.best.unwrap();
    assert_eq!((best.step, best.loss), (*step, Some(*loss)));
    assert_eq!(run.best().open().unwrap().snapshot.position.step, *step);

    // The previous checkpoint is from the evaluation before.
    let previous = Slot::new(run.path().join("checkpoints/last.previous")).open().unwrap();
    assert_eq!((previous.snapshot.position.step, scene.last("run").position.step), (21, 24));
}

#[test]
fn repeated_augmentation_trains_on_fewer_images_than_a_batch() {
    let scene = Scene::new();
    let mut deit = Recipe::named("deit").unwrap();
    deit.set("length=2 epochs").unwrap();
    assert!(deit.data.repeated > 1 && deit.batch > 36);
    assert!(scene.begin("few", deit, 2, u64::MAX).unwrap().complete);
    assert_eq!(scene.last("few").position.step, 2);
}

#[test]
fn a_run_that_no_longer_improves_stops_early_also_when_it_was_interrupted() {
    let scene = Scene::new();
    // Nothing changes, so only the first evaluation is a new best.
    let still = ["batch=8", "length=40 steps", "evaluate_every=2 steps", "schedule.rate=0", "patience=2"];
    let whole = scene.begin("whole", recipe(&still), 2, u64::MAX).unwrap();
    assert_eq!((whole.complete, whole.early, whole.position.step), (true, true, 6));
    for stop in [3, 4, 5] {
        let name = format!("stopped {stop}");
        assert!(!scene.begin(&name, recipe(&still), 2, stop).unwrap().complete);
        let resumed = scene.resume(&name, 2, u64::MAX).unwrap();
        assert_eq!((resumed.complete, resumed.early, resumed.position.step), (true, true, 6));
        assert_same(&name, &scene.last("whole"), &scene.last(&name));
    }
    // The run is over.
    let again = scene.resume("whole", 2, u64::MAX).unwrap();
    assert_eq!((again.early, again.position.step), (true, 6));
}

#[test]
fn images_added_to_a_class_do_not_leak_into_validation() {
    let scene = Scene::new();
    let short = ["batch=8", "length=6 steps", "evaluate_every=3 steps"];
    scene.begin("run", recipe(&short), 2, 2).unwrap();
    let path = scene.folder.path().join("run");
    let held_out = |setup: &Setup| -> Vec<String> {
        let validation = setup.validation.as_ref().unwrap();
        (0..validation.len()).map(|index| validation.name(index)).collect()
    };
    let resumed = |changed| {
        let run = RunFolder::open(&path).unwrap();
        Setup::resume(&run, &run.last().open().unwrap().snapshot, changed)
    };
    let before = held_out(&resumed(ChangedData::Refuse).unwrap());
    assert_eq!(before.len(), 6);

    // Twice as many images: a new split would hold out some that were trained on.
    write_images(&scene.data, 24);
    std::fs::remove_file(scene.data.join("blue/0.png")).unwrap();
    std::fs::rename(scene.data.join("amber/1.png"), scene.data.join("green/amber.png")).unwrap();
    let refused = scene.resume("run", 2, u64::MAX).unwrap_err();
    let TrainError::ChangedData { changes, .. } = &refused else { panic!("{refused}") };
    assert_eq!((changes.added.count, changes.removed.count), (37, 2));
    let said = refused.to_string();
    assert!(
        said.contains("37 added (amber/12.png, ") && said.contains("2 removed (amber/1.png, blue/0.png)"),
        "{said}"
    );

    let setup = resumed(ChangedData::Accept).unwrap();
    let after = held_out(&setup);
    assert!(!after.is_empty() && after.iter().all(|name| before.contains(name)), "{before:?} {after:?}");
    assert_eq!(setup.train.len() + after.len(), 3 * 24 - 1);
    assert!(setup.report[0].contains("The split of the run is kept"), "{:?}", setup.report);
    assert!(scene.resume_with("run", 2, u64::MAX, ChangedData::Accept).unwrap().complete);
    // The next resume compares with the accepted data.
    resumed(ChangedData::Refuse).unwrap();

    // A run without a record of its samples continues with a note.
    std::fs::remove_file(path.join("samples.tsv.zst")).unwrap();
    let report = resumed(ChangedData::Refuse).unwrap().report;
    assert!(report[0].contains("could not be checked"), "{report:?}");
}

#[test]
fn a_validation_set_of_its_own_and_relabelled_images_are_compared_too() {
    let scene = Scene::new();
    let (data, other) = (scene.folder.path().join("labels.csv"), scene.folder.path().join("other"));
    write_images(&other, 3);
    let manifest = |of: &dyn Fn(u32) -> &'static str| {
        let lines: Vec<String> = (0..12).map(|n| format!("images/blue/{n}.png,{}\n", of(n))).collect();
        std::fs::write(
            &data,
            format!("path,label\nimages/amber/0.png,amber\nimages/green/0.png,green\n{}", lines.concat()),
        )
        .unwrap();
    };
    manifest(&|_| "blue");
    let settings = RunSettings { data: data.clone(), validation: Some(other.clone()), ..settings(&scene.data) };
    let short = recipe(&["batch=8", "length=2 steps"]);
    let mut setup = Setup::new(ModelChoice::Named("P/4@16"), None, settings, short).unwrap();
    let path = scene.folder.path().join("run");
    let run = RunFolder::create(&path, &setup.to_toml(&Launch::default()), Existing::Refuse).unwrap();
    train(&Cpu::new(Some(2)), &mut setup, &run, None, &options(2), &mut (), &AtomicBool::new(false)).unwrap();
    let resumed = || Setup::resume(&run, &run.last().open().unwrap().snapshot, ChangedData::Refuse);
    resumed().unwrap();
    manifest(&|n| if n == 3 { "green" } else { "blue" });
    std::fs::remove_file(other.join("green/1.png")).unwrap();
    let said = resumed().err().unwrap().to_string();
    assert!(said.contains("1 with other labels (images/blue/3.png)"), "{said}");
    assert!(said.contains("in the validation dataset 1 removed (green/1.png)"), "{said}");
}
