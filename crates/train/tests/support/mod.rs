//! A small dataset, and runs on it that are interrupted and resumed.

#![allow(dead_code)]

pub mod ahead;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tempfile::TempDir;
use vit_cpu::Cpu;
use vit_graph::device::Device;
use vit_models::weights::Weights;
use vit_train::{
    ChangedData, Existing, Finished, Launch, ModelChoice, Observer, Processes, Progress, Recipe, RunFolder,
    RunSettings, Setup, ShardedState, Snapshot, TrainError, TrainerOptions, train,
};

/// Images of three classes that differ in colour, 16 pixels wide.
pub fn write_images(folder: &Path, each: u32) {
    for (class, base) in [("amber", [220u8, 160, 40]), ("blue", [40, 60, 210]), ("green", [50, 190, 70])] {
        let class = folder.join(class);
        std::fs::create_dir_all(&class).unwrap();
        for number in 0..each {
            let pixel = |i: u32| base.map(|c| c.wrapping_add(((i * 37 + number * 101) % 31) as u8));
            write(&class.join(format!("{number}.png")), &(0..256).flat_map(pixel).collect::<Vec<u8>>());
        }
    }
}

/// An image of one colour, 16 pixels wide.
pub fn write_image(file: &Path, colour: [u8; 3]) {
    write(file, &colour.repeat(256));
}

fn write(file: &Path, pixels: &[u8]) {
    let mut encoder = png::Encoder::new(std::fs::File::create(file).unwrap(), 16, 16);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.write_header().unwrap().write_image_data(pixels).unwrap();
}

pub fn recipe(settings: &[&str]) -> Recipe {
    let mut recipe = Recipe::named("small").unwrap();
    settings.iter().for_each(|setting| recipe.set(setting).unwrap());
    recipe
}

pub fn settings(data: &Path) -> RunSettings {
    RunSettings {
        model: "P/4@16".into(),
        data: data.into(),
        validation: None,
        template: None,
        validation_fraction: 0.2,
        fraction: 1.0,
        max_unreadable: 0.05,
        skip_non_finite: false,
        precision: "f32".into(),
    }
}

pub fn options(threads: usize) -> TrainerOptions {
    TrainerOptions {
        threads,
        cache_bytes: 1 << 20,
        save_every: Duration::from_secs(3600),
        recompute: false,
        processes: Processes::default(),
        sharded: ShardedState::None,
    }
}

/// Sets the stop flag after some steps.
pub struct StopAfter<'a> {
    pub steps: u64,
    pub stop: &'a AtomicBool,
}

impl Observer for StopAfter<'_> {
    fn step(&mut self, progress: &Progress) {
        if progress.step >= self.steps {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

pub struct Scene {
    pub folder: TempDir,
    pub data: PathBuf,
    /// Whether steps are started before the losses of the previous ones are read.
    pub ahead: bool,
}

impl Scene {
    pub fn new() -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("images");
        write_images(&data, 12);
        Scene { folder, data, ahead: false }
    }

    fn device(&self, threads: usize) -> Box<dyn Device> {
        let cpu = Cpu::new(Some(threads));
        if self.ahead { Box::new(ahead::Ahead(cpu)) } else { Box::new(cpu) }
    }

    /// Begins a run and stops it after some steps.
    pub fn begin(&self, name: &str, recipe: Recipe, threads: usize, stop_after: u64) -> Result<Finished, TrainError> {
        self.begin_with("P/4@16", name, recipe, threads, stop_after)
    }

    /// Begins a run of a named model and stops it after some steps.
    pub fn begin_with(
        &self,
        model: &str,
        name: &str,
        recipe: Recipe,
        threads: usize,
        stop_after: u64,
    ) -> Result<Finished, TrainError> {
        self.begin_from(ModelChoice::Named(model), model, name, recipe, threads, stop_after)
    }

    /// Begins a run of a model, which its settings name `model`, and stops it after some steps.
    pub fn begin_from(
        &self,
        choice: ModelChoice,
        model: &str,
        name: &str,
        recipe: Recipe,
        threads: usize,
        stop_after: u64,
    ) -> Result<Finished, TrainError> {
        let settings = RunSettings { model: model.into(), ..settings(&self.data) };
        let mut setup = Setup::new(choice, None, settings, recipe)?;
        let run =
            RunFolder::create(self.folder.path().join(name), &setup.to_toml(&Launch::default()), Existing::Refuse)?;
        let stop = AtomicBool::new(false);
        let mut observer = StopAfter { steps: stop_after, stop: &stop };
        train(self.device(threads).as_ref(), &mut setup, &run, None, &options(threads), &mut observer, &stop)
    }

    /// Resumes a run and stops it when it has taken some steps.
    pub fn resume(&self, name: &str, threads: usize, stop_after: u64) -> Result<Finished, TrainError> {
        self.resume_with(name, threads, stop_after, ChangedData::Refuse)
    }

    /// The same with data that may have changed.
    pub fn resume_with(
        &self,
        name: &str,
        threads: usize,
        stop_after: u64,
        changed: ChangedData,
    ) -> Result<Finished, TrainError> {
        let run = RunFolder::resume(self.folder.path().join(name))?;
        let snapshot = run.last().open()?.snapshot;
        let mut setup = Setup::resume(&run, &snapshot, changed)?;
        let stop = AtomicBool::new(false);
        let mut observer = StopAfter { steps: stop_after, stop: &stop };
        train(self.device(threads).as_ref(), &mut setup, &run, Some(snapshot), &options(threads), &mut observer, &stop)
    }

    pub fn last(&self, name: &str) -> Snapshot {
        RunFolder::open(self.folder.path().join(name)).unwrap().last().open().unwrap().snapshot
    }

    /// Removes a run: those of models of usual size take hundreds of megabytes each.
    pub fn remove(&self, name: &str) {
        std::fs::remove_dir_all(self.folder.path().join(name)).unwrap();
    }
}

pub fn assert_same_bits(what: &str, a: &Weights, b: &Weights) {
    assert_eq!(a.tensors.len(), b.tensors.len(), "{what}");
    for (name, tensor) in &a.tensors {
        let bits = |data: &[f32]| data.iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
        assert!(bits(&tensor.data) == bits(&b.tensors[name].data), "{what}: {name} differs");
    }
}

pub fn assert_same(what: &str, a: &Snapshot, b: &Snapshot) {
    assert_same_bits(what, &a.weights, &b.weights);
    assert_same_bits(what, &a.optimiser, &b.optimiser);
    assert_eq!(
        (a.position.step, a.position.epoch, a.position.batch),
        (b.position.step, b.position.epoch, b.position.batch)
    );
    assert_eq!(a.position.best, b.position.best, "{what}");
}
