//! A run records the algorithms that its device chose by timing and restores them when it is resumed, so that its bits do
//! not depend on timing.

mod support;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use support::{Scene, options, recipe, settings};
use vit_cpu::{Cpu, Isa};
use vit_graph::device::{Algorithms, Device, Executable, Memory, Parameters};
use vit_graph::{Graph, GraphError};
use vit_train::{ChangedData, Existing, Launch, ModelChoice, Observer, Progress, RunFolder, Setup, train};

/// A device whose timing finds another algorithm in every process.
struct Timing {
    cpu: Cpu,
    kind: &'static str,
    fastest: &'static str,
    chosen: Mutex<BTreeMap<String, String>>,
    given: Mutex<Option<Algorithms>>,
}

impl Timing {
    fn new(kind: &'static str, fastest: &'static str) -> Timing {
        Timing { cpu: Cpu::new(Some(2)), kind, fastest, chosen: Mutex::default(), given: Mutex::default() }
    }
}

impl Device for Timing {
    fn name(&self) -> &'static str {
        "timing"
    }
    fn plan(&self, graph: &Graph) -> Result<Memory, GraphError> {
        self.cpu.plan(graph)
    }
    fn algorithms(&self) -> Algorithms {
        let environment = BTreeMap::from([("GPU".to_string(), self.kind.to_string())]);
        Algorithms { environment, chosen: self.chosen.lock().unwrap().clone() }
    }
    fn use_algorithms(&self, algorithms: &Algorithms) {
        *self.given.lock().unwrap() = Some(algorithms.clone());
        self.chosen.lock().unwrap().extend(algorithms.chosen.clone());
    }
    fn compile(&self, graph: &Graph, parameters: &mut dyn Parameters) -> Result<Box<dyn Executable>, GraphError> {
        // Training and evaluation have different products.
        let product = format!("{} nodes", graph.nodes().len());
        self.chosen.lock().unwrap().entry(product).or_insert(self.fastest.into());
        self.cpu.compile(graph, parameters)
    }
}

/// Stops a run after some steps and collects its notes.
struct Watch<'a> {
    steps: u64,
    stop: &'a AtomicBool,
    notes: Vec<String>,
}

impl Observer for Watch<'_> {
    fn step(&mut self, progress: &Progress) {
        self.stop.store(progress.step >= self.steps, Ordering::Relaxed);
    }
    fn note(&mut self, message: &str) {
        self.notes.push(message.into());
    }
}

/// Begins or resumes a run of six steps, evaluated after every second, and returns its notes.
fn go(scene: &Scene, device: &dyn Device, steps: u64) -> Vec<String> {
    let path = scene.folder.path().join("run");
    let stop = AtomicBool::new(false);
    let mut watch = Watch { steps, stop: &stop, notes: vec![] };
    if path.exists() {
        let run = RunFolder::resume(&path).unwrap();
        let from = run.last().open().unwrap().snapshot;
        let mut setup = Setup::resume(&run, &from, ChangedData::Refuse).unwrap();
        train(device, &mut setup, &run, Some(from), &options(2), &mut watch, &stop).unwrap();
    } else {
        let recipe = recipe(&["batch=8", "length=6 steps", "evaluate_every=2 steps"]);
        let mut setup = Setup::new(ModelChoice::Named("P/4@16"), None, settings(&scene.data), recipe).unwrap();
        let run = RunFolder::create(&path, &setup.to_toml(&Launch::default()), Existing::Refuse).unwrap();
        train(device, &mut setup, &run, None, &options(2), &mut watch, &stop).unwrap();
    }
    watch.notes
}

fn kept(scene: &Scene) -> Algorithms {
    RunFolder::open(scene.folder.path().join("run")).unwrap().algorithms().unwrap().unwrap()
}

#[test]
fn a_resumed_run_takes_the_algorithms_that_it_began_with() {
    let scene = Scene::new();
    let first = Timing::new("H200", "split-k");
    go(&scene, &first, 3);
    // The training step's and the evaluation's.
    assert_eq!(kept(&scene).chosen.len(), 2);
    assert_eq!(kept(&scene), first.algorithms());

    let second = Timing::new("H200", "stream-k");
    assert!(!go(&scene, &second, 4).iter().any(|note| note.contains("to the bit")));
    assert_eq!(second.algorithms(), first.algorithms());
    assert_eq!(kept(&scene), first.algorithms());

    // Choices of another kind of GPU are not used, and a note says that bits will differ.
    let other = Timing::new("RTX 4090", "stream-k");
    let notes = go(&scene, &other, 6);
    assert!(notes.iter().any(|note| note.contains("GPU H200") && note.contains("GPU RTX 4090")), "{notes:?}");
    assert_eq!(*other.given.lock().unwrap(), None);
    assert_eq!(kept(&scene), other.algorithms());
}

#[test]
fn another_instruction_set_is_said_to_change_bits() {
    let scene = Scene::new();
    go(&scene, &Cpu::with_isa(Isa::Portable, Some(2)), 3);
    let notes = go(&scene, &Cpu::with_isa(Isa::Portable, Some(1)), 4);
    assert!(!notes.iter().any(|note| note.contains("to the bit")), "{notes:?}");
    if Isa::detect() != Isa::Portable {
        let notes = go(&scene, &Cpu::new(Some(2)), 6);
        assert!(notes.iter().any(|note| note.contains("instruction set portable")), "{notes:?}");
    }
}
