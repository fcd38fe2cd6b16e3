//! Several processes, as threads of one: the same bits as one process, however many there are, also across interruptions.

mod support;

use std::sync::atomic::AtomicBool;

use support::{Scene, StopAfter, ahead, assert_same, options, recipe, settings, write_images};
use vit_cluster::{Communicator, Reduce};
use vit_cpu::Cpu;
use vit_graph::device::Device;
use vit_train::{
    ChangedData, Existing, Finished, Launch, MetricsRow, ModelChoice, Processes, Recipe, RunFolder, RunSettings, Setup,
    ShardedState, TrainError, TrainerOptions, assist, train,
};

/// All features with state or randomness.
const STATEFUL: [&str; 12] = [
    "batch=16",
    "accumulate=2",
    "length=7 steps",
    "evaluate_every=3 steps",
    "data.mixup=0.8",
    "data.cutmix=1.0",
    "data.erasing=0.5",
    "model.drop_path=0.2",
    "model.dropout=0.1",
    "model.attention_dropout=0.1",
    "average.decay=0.9",
    "parts=4",
];

/// A run of a model in several processes.
struct Group<'a> {
    scene: &'a Scene,
    model: &'static str,
    size: [usize; 2],
    processes: usize,
    reduce: Reduce,
    sharded: ShardedState,
    recompute: bool,
}

impl<'a> Group<'a> {
    /// On images of 16 pixels, with nothing divided.
    fn of(scene: &'a Scene, model: &'static str, processes: usize, reduce: Reduce) -> Self {
        Group { scene, model, size: [16, 16], processes, reduce, sharded: ShardedState::None, recompute: false }
    }

    /// Calls `work` in every process.
    fn each<T: Send>(&self, work: impl Fn(Processes) -> Result<T, TrainError> + Sync) -> Vec<Result<T, TrainError>> {
        let ranks = Communicator::threads(self.processes).into_iter();
        let ranks: Vec<Processes> = ranks.map(|communicator| Processes::new(communicator, self.reduce)).collect();
        std::thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = ranks.into_iter().map(|processes| scope.spawn(move || work(processes))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn device(&self, processes: &Processes) -> Box<dyn Device> {
        let cpu = match processes.exchange() {
            Some(exchange) => Cpu::with_exchange(Some(1), exchange),
            None => Cpu::new(Some(1)),
        };
        if self.scene.ahead { Box::new(ahead::Ahead(cpu)) } else { Box::new(cpu) }
    }

    fn options(&self, processes: &Processes) -> TrainerOptions {
        let (processes, sharded, recompute) = (processes.clone(), self.sharded, self.recompute);
        TrainerOptions { processes, sharded, recompute, ..options(1) }
    }

    fn begin(&self, name: &str, recipe: &Recipe, stop_after: u64) -> Vec<Result<Finished, TrainError>> {
        self.each(|processes| {
            let settings = RunSettings { model: self.model.into(), ..settings(&self.scene.data) };
            let mut setup = Setup::new(ModelChoice::Named(self.model), Some(self.size), settings, recipe.clone())?;
            setup.divide(&processes)?;
            let options = self.options(&processes);
            let (device, stop) = (self.device(&processes), AtomicBool::new(false));
            if !processes.is_root() {
                return assist(device.as_ref(), &mut setup, None, &options, &stop);
            }
            let folder = self.scene.folder.path().join(name);
            let run = RunFolder::create(folder, &setup.to_toml(&Launch::default()), Existing::Refuse)?;
            let mut observer = StopAfter { steps: stop_after, stop: &stop };
            train(device.as_ref(), &mut setup, &run, None, &options, &mut observer, &stop)
        })
    }

    fn resume(&self, name: &str, stop_after: u64) -> Vec<Result<Finished, TrainError>> {
        self.each(|processes| {
            let folder = self.scene.folder.path().join(name);
            let run = if processes.is_root() { RunFolder::resume(folder)? } else { RunFolder::open(folder)? };
            let snapshot = run.last().open()?.snapshot;
            let mut setup = Setup::resume(&run, &snapshot, ChangedData::Refuse)?;
            setup.divide(&processes)?;
            let options = self.options(&processes);
            let (device, stop) = (self.device(&processes), AtomicBool::new(false));
            if !processes.is_root() {
                return assist(device.as_ref(), &mut setup, Some(snapshot), &options, &stop);
            }
            let mut observer = StopAfter { steps: stop_after, stop: &stop };
            train(device.as_ref(), &mut setup, &run, Some(snapshot), &options, &mut observer, &stop)
        })
    }

    fn rows(&self, name: &str) -> Vec<MetricsRow> {
        RunFolder::open(self.scene.folder.path().join(name)).unwrap().rows().unwrap()
    }

    /// The metrics without those of time.
    fn metrics(&self, name: &str) -> Vec<Vec<Option<f64>>> {
        let columns =
            ["train/loss", "train/grad_norm", "train/rate", "val/loss", "val/top1", "val/macro_f1", "val/ece"];
        let values = |row: &MetricsRow| columns.iter().map(|column| row.get(column)).collect();
        self.rows(name).iter().map(values).collect()
    }
}

fn all_fine(ended: Vec<Result<Finished, TrainError>>, complete: bool) {
    for finished in ended {
        assert_eq!(finished.unwrap().complete, complete);
    }
}

/// Runs of 1, 2 and 4 processes, and runs that were stopped at 4 and resumed with fewer.
fn same_bits(model: &'static str, size: [usize; 2], recipe: &Recipe, devices: &[bool]) {
    let mut scene = Scene::new();
    for &ahead in devices {
        scene.ahead = ahead;
        let group = |processes| Group { size, ..Group::of(&scene, model, processes, Reduce::Tree) };
        let name = |what: &str| format!("{what}-{ahead}");
        all_fine(group(1).begin(&name("1"), recipe, u64::MAX), true);
        let one = scene.last(&name("1"));
        for processes in [2, 4] {
            let name = name(&processes.to_string());
            all_fine(group(processes).begin(&name, recipe, u64::MAX), true);
            assert_same(&name, &one, &scene.last(&name));
            assert_eq!(group(1).metrics(&name), group(1).metrics(&format!("1-{ahead}")));
            scene.remove(&name);
        }
        for (stop, processes) in [(1, 2), (2, 1)] {
            let name = name(&format!("stopped-{stop}"));
            all_fine(group(4).begin(&name, recipe, stop), false);
            let at = scene.last(&name).position.step;
            assert!(at > stop && at < one.position.step, "stopped after step {at}");
            all_fine(group(processes).resume(&name, u64::MAX), true);
            assert_same(&name, &one, &scene.last(&name));
            scene.remove(&name);
        }
    }
}

#[test]
fn a_vision_transformer_has_the_same_bits_in_any_number_of_processes() {
    same_bits("P/4@16", [16, 16], &recipe(&STATEFUL), &[false, true]);
}

#[test]
fn batch_norms_have_the_same_bits_in_any_number_of_processes() {
    let settings = ["batch=8", "length=4 steps", "evaluate_every=4 steps", "model.start=random", "parts=4"];
    same_bits("resnet18_cifar", [16, 16], &recipe(&settings), &[false]);
}

#[test]
fn batch_norms_of_all_parts_have_the_same_bits_in_any_number_of_processes() {
    let settings = ["batch=16", "accumulate=2", "length=4 steps", "evaluate_every=4 steps", "model.start=random"];
    let settings = [&settings[..], &["parts=4", "batch_norm=sync"]].concat();
    same_bits("resnet18_cifar", [16, 16], &recipe(&settings), &[false]);
}

#[test]
fn pairs_have_the_same_bits_in_any_number_of_processes() {
    let mut recipe = Recipe::named("clip-pretrain").unwrap();
    let short = ["batch=8", "length=7 steps", "evaluate_every=3 steps", "schedule.rate=1e-3", "parts=4"];
    recipe.set_all(short).unwrap();
    same_bits("ViT-P-8-16", [16, 16], &recipe, &[false, true]);
    let scene = Scene::new();
    let group = |processes, sharded| Group {
        sharded,
        recompute: processes == 2,
        ..Group::of(&scene, "ViT-P-8-16", processes, Reduce::Tree)
    };
    all_fine(group(1, ShardedState::None).begin("one", &recipe, u64::MAX), true);
    for sharded in [ShardedState::Optimiser, ShardedState::All] {
        let name = format!("{sharded:?}");
        all_fine(group(2, sharded).begin(&name, &recipe, u64::MAX), true);
        assert_same(&name, &scene.last("one"), &scene.last(&name));
    }
}

#[test]
fn state_that_processes_divide_has_the_bits_of_one_process() {
    let scene = Scene::new();
    // Tensors of a Ti are large enough to be divided.
    let recipe = recipe(
        &[&STATEFUL[..], &["batch=8", "length=4 steps", "evaluate_every=2 steps", "optimiser.clip=0.5"]].concat(),
    );
    let group = |processes, sharded| Group {
        sharded,
        recompute: processes == 2,
        ..Group::of(&scene, "Ti/4@16", processes, Reduce::Tree)
    };
    let one = Group::of(&scene, "Ti/4@16", 1, Reduce::Tree);
    all_fine(one.begin("one", &recipe, u64::MAX), true);
    for sharded in [ShardedState::Optimiser, ShardedState::All] {
        for processes in [2, 4] {
            let name = format!("{sharded:?}-{processes}");
            all_fine(group(processes, sharded).begin(&name, &recipe, u64::MAX), true);
            assert_same(&name, &scene.last("one"), &scene.last(&name));
            assert_eq!(one.metrics(&name), one.metrics("one"), "{name}");
            let best = |name: &str| RunFolder::open(scene.folder.path().join(name)).unwrap().best().open().unwrap();
            assert_eq!(best(&name).snapshot.weights, best("one").snapshot.weights, "{name}");
            scene.remove(&name);
        }
    }
    all_fine(group(4, ShardedState::All).begin("stopped", &recipe, 1), false);
    all_fine(group(2, ShardedState::Optimiser).resume("stopped", 1), false);
    all_fine(one.resume("stopped", u64::MAX), true);
    assert_same("stopped", &scene.last("one"), &scene.last("stopped"));
}

#[test]
fn one_part_is_the_step_of_a_run_without_parts() {
    let scene = Scene::new();
    let plain = [&STATEFUL[..11], &["parts=0"]].concat();
    let one = [&STATEFUL[..11], &["parts=1"]].concat();
    scene.begin("plain", recipe(&plain), 1, u64::MAX).unwrap();
    let alone = Group::of(&scene, "P/4@16", 1, Reduce::Tree);
    all_fine(alone.begin("one", &recipe(&one), u64::MAX), true);
    assert_same("one part", &scene.last("plain"), &scene.last("one"));
}

#[test]
fn a_fast_sum_gives_losses_that_agree() {
    let scene = Scene::new();
    let settings = ["batch=12", "length=50 steps", "evaluate_every=50 steps", "data.mixup=0.2", "parts=4"];
    let group = |processes, reduce| Group::of(&scene, "P/4@16", processes, reduce);
    all_fine(group(1, Reduce::Tree).begin("tree", &recipe(&settings), u64::MAX), true);
    all_fine(group(3, Reduce::Fast).begin("fast", &recipe(&settings), u64::MAX), true);
    let loss = |name: &str| -> Vec<f64> {
        group(1, Reduce::Tree).rows(name).iter().filter_map(|row| row.get("train/loss")).collect()
    };
    let (tree, fast) = (loss("tree"), loss("fast"));
    assert!(tree.len() == fast.len() && tree.len() >= 10);
    for (a, b) in tree.iter().zip(&fast) {
        assert!((a - b).abs() < 1e-5, "{a} and {b}");
    }
}

#[test]
fn a_process_that_fails_ends_the_run_in_all_of_them() {
    let scene = Scene::new();
    let group = Group::of(&scene, "P/4@16", 2, Reduce::Tree);
    // Each process has its own copy of the images, and those of rank 1 disappear.
    let copy = scene.folder.path().join("copy");
    write_images(&copy, 12);
    let recipe = recipe(&STATEFUL);
    let ended = group.each(|processes| {
        let data = if processes.is_root() { &scene.data } else { &copy };
        let mut setup = Setup::new(ModelChoice::Named("P/4@16"), None, settings(data), recipe.clone())?;
        setup.divide(&processes)?;
        let options = TrainerOptions { processes: processes.clone(), ..options(1) };
        let (device, stop) = (group.device(&processes), AtomicBool::new(false));
        if !processes.is_root() {
            std::fs::remove_dir_all(&copy).unwrap();
            return assist(device.as_ref(), &mut setup, None, &options, &stop);
        }
        let run =
            RunFolder::create(scene.folder.path().join("run"), &setup.to_toml(&Launch::default()), Existing::Refuse)?;
        train(device.as_ref(), &mut setup, &run, None, &options, &mut (), &stop)
    });
    let errors: Vec<String> = ended.into_iter().map(|end| end.unwrap_err().to_string()).collect();
    assert!(errors.iter().all(|error| error.contains("samples in a row can be read")), "{errors:?}");
    assert!(errors[0].starts_with("rank 1 on ") && errors[1].starts_with("none of "), "{errors:?}");
}

#[test]
fn more_processes_than_parts_are_refused() {
    let scene = Scene::new();
    let refusal = |processes, settings: &[&str]| {
        let group = Group::of(&scene, "P/4@16", processes, Reduce::Tree);
        let mut ended = group.begin("refused", &recipe(settings), 1);
        ended.pop().unwrap().unwrap_err().to_string()
    };
    let error = refusal(4, &["batch=16", "parts=2"]);
    assert_eq!(error, "the run cuts its batch into 2 parts, so it has at most 2 processes and not 4");
    let error = refusal(2, &["batch=15"]);
    assert!(error.ends_with("at most 1 processes and not 2; choose a batch that is a multiple of 2"), "{error}");
    let error = refusal(3, &["batch=16"]);
    assert!(error.ends_with("start 2 or 4 processes, or choose the fast reduction"), "{error}");
}
