//! The planned memory of a run, before any of it is allocated: the device's plans of the step and of the model that is
//! evaluated, and the sizes of the training loop's buffers.

use std::collections::HashSet;
use std::path::Path;

use vit_data::Samples;
use vit_data::loader::LoaderSettings;
use vit_graph::batch_size::largest_batch;
use vit_graph::device::Memory;
use vit_graph::{Graph, GraphError, NodeId};
use vit_models::{Config, read_config};
use vit_system::host::FreeMemory;

use crate::error::TrainError;
use crate::evaluate::{evaluation_batch, inference};
use crate::recipe::Recipe;
use crate::recipe::preprocess::loader_settings;
use crate::run::setup::{FirstWeights, Setup};
use crate::run::trainer::TrainerOptions;
use crate::step::TrainingStep;
use crate::step::objective::Loss;

/// The planned memory of a graph on a device, which need not exist.
pub type GraphPlan<'a> = &'a dyn Fn(&Graph) -> Result<Memory, GraphError>;

/// The decoded images of a dataset.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ImageSizes {
    /// Their number.
    pub count: usize,
    /// Mean bytes.
    pub mean: f64,
    /// Bytes of the largest one.
    pub largest: u64,
}

impl ImageSizes {
    /// Estimates the sizes from a few images of the whole dataset.
    pub fn of(samples: &dyn Samples) -> ImageSizes {
        const DECODED: usize = 16;
        let stride = samples.len().div_ceil(DECODED).max(1);
        let bytes: Vec<u64> = (0..samples.len())
            .step_by(stride)
            .filter_map(|index| samples.image(index).ok())
            .map(|image| image.pixels().len() as u64)
            .collect();
        ImageSizes {
            count: samples.len(),
            mean: bytes.iter().sum::<u64>() as f64 / bytes.len().max(1) as f64,
            largest: bytes.into_iter().max().unwrap_or(0),
        }
    }

    fn bytes(&self) -> u64 {
        (self.count as f64 * self.mean) as u64
    }
}

/// Everything that the memory of a run depends on.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// The model.
    pub config: Config,
    /// The recipe.
    pub recipe: Recipe,
    /// How the run is carried out.
    pub options: TrainerOptions,
    /// The training images.
    pub images: ImageSizes,
    /// The number of validation samples.
    pub validation: usize,
    /// Bytes of weights in host memory that are moved into the step.
    pub held: u64,
}

impl Workload {
    /// That of a run before its first step, with a snapshot of so many bytes.
    pub fn of(setup: &Setup, options: &TrainerOptions, snapshot: u64) -> Workload {
        let first = match &setup.weights {
            FirstWeights::Given(weights) => vit_graph::device::Parameters::held_bytes(weights),
            FirstWeights::Random => 0,
        };
        Workload {
            config: setup.config.clone(),
            recipe: setup.recipe.clone(),
            options: options.clone(),
            images: ImageSizes::of(setup.train.as_ref()),
            validation: setup.validation.as_ref().map_or(0, |validation| validation.len()),
            held: first + snapshot,
        }
    }
}

/// When a part of a run's memory is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryPhase {
    /// From the first step to the last.
    Always,
    /// During an evaluation.
    Evaluating,
    /// While a checkpoint is written.
    Saving,
}

/// A part of a run's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryPart {
    /// Its purpose.
    pub name: &'static str,
    /// Bytes of host memory.
    pub host: u64,
    /// Bytes of device memory.
    pub device: u64,
    /// When it is in use.
    pub when: MemoryPhase,
}

/// The planned memory of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunMemory {
    /// The parts; the first is the memory that is in use before the run.
    pub parts: Vec<MemoryPart>,
    /// The size of a checkpoint.
    pub state: StateBytes,
    /// Bytes that the process holds before the run, weights included.
    resident: u64,
}

/// The memory of a run that does not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shortage {
    /// Bytes that it needs.
    pub needed: u64,
    /// The memory that is free.
    pub room: FreeMemory,
}

/// The memory in use before a run begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryBaseline {
    /// Bytes of host memory that the process holds.
    pub resident: u64,
    /// Free device memory, if known.
    pub device: Option<FreeMemory>,
    /// Whether the device has its own memory, even if it does not exist here.
    pub own_memory: bool,
}

/// Host memory for buffers of files, stacks of threads, figures and metrics.
const SMALL_THINGS: u64 = 24 << 20;

/// GPU memory for compiled kernels and the allocations of cuBLASLt and the driver.
const GPU_LIBRARIES: u64 = 96 << 20;

/// GPU memory that a process takes before it allocates any: of an H200 under driver 580. Where there is a GPU, it is measured.
const GPU_CONTEXT: u64 = 524 << 20;

impl RunMemory {
    /// Plans a run; `plan` gives the memory of a graph on the device.
    pub fn new(workload: &Workload, plan: GraphPlan, before: MemoryBaseline) -> Result<RunMemory, TrainError> {
        let Workload { config, recipe, options, images, .. } = workload;
        let place = |name, bytes: u64, when| match before.own_memory {
            true => MemoryPart { name, host: 0, device: bytes, when },
            false => MemoryPart { name, host: bytes, device: 0, when },
        };
        let host = |name, bytes, when| MemoryPart { name, host: bytes, device: 0, when };

        let step = TrainingStep::new(&config.architecture, recipe.batch, options.step_options(recipe, config))?;
        let memory = plan(&step.graph)?;
        let sizes = StateBytes::of(&step);
        let optimiser = stored_state(&step);
        let frozen = frozen(&step);
        let inputs: u64 = step.graph.inputs().map(|(_, input)| input.ty.bytes() as u64).sum();
        drop(step);

        let context = if before.own_memory { GPU_CONTEXT } else { 0 };
        let taken = before.device.map_or(context, |room| room.total - room.free);
        let small = SMALL_THINGS + if before.own_memory { inputs } else { 0 };
        let libraries = if before.own_memory { GPU_LIBRARIES } else { 0 };
        let weights = place("weights", (memory.stored_bytes as u64).saturating_sub(optimiser), MemoryPhase::Always);
        // A device may keep frozen parameters in packed form only; the run keeps a copy for its checkpoints.
        let weights = MemoryPart { host: weights.host + frozen, ..weights };
        let mut parts = vec![
            MemoryPart {
                name: "process",
                host: before.resident.saturating_sub(workload.held) + small,
                device: taken + libraries,
                when: MemoryPhase::Always,
            },
            weights,
            place("optimiser", optimiser.min(memory.stored_bytes as u64), MemoryPhase::Always),
            place("activations", memory.arena_bytes as u64, MemoryPhase::Always),
        ];

        let settings = loader_settings(recipe, config, images.count.max(1))?;
        let settings = LoaderSettings { parts: options.processes.parts(recipe.parts), ..settings };
        parts.push(host("batches", batches(&settings, config, before.own_memory), MemoryPhase::Always));
        // In every thread: the file, the decoded image and the intermediates of resizing.
        let decoding = options.threads as u64 * 3 * images.largest;
        let cached = options.cache_bytes.min(images.bytes());
        parts.push(host("decoded images", decoding + cached, MemoryPhase::Always));
        if !recipe.objective.teacher.is_empty() {
            let (memory, images) = teacher(recipe, config, plan)?;
            let part = place("teacher", memory, MemoryPhase::Always);
            parts.push(MemoryPart { host: part.host + images, ..part });
        }
        if workload.validation > 0 {
            let (memory, images) = evaluation(workload, plan)?;
            parts.push(place("evaluation", memory, MemoryPhase::Always));
            parts.push(host("evaluated images", images, MemoryPhase::Evaluating));
        }
        // A checkpoint is read from the device one file at a time.
        parts.push(host("saving", sizes.model.max(sizes.optimiser), MemoryPhase::Saving));
        parts.retain(|part| part.host + part.device > 0);
        Ok(RunMemory { parts, state: sizes, resident: before.resident })
    }

    /// The peak of host memory.
    pub fn host(&self) -> u64 {
        self.peak(|part| part.host)
    }

    /// The peak of device memory.
    pub fn device(&self) -> u64 {
        self.peak(|part| part.device)
    }

    fn peak(&self, of: impl Fn(&MemoryPart) -> u64) -> u64 {
        let sum = |when| self.parts.iter().filter(|part| part.when == when).map(&of).sum::<u64>();
        sum(MemoryPhase::Always) + sum(MemoryPhase::Evaluating).max(sum(MemoryPhase::Saving))
    }

    /// The shortage, if the run does not fit into free memory.
    pub fn shortage(&self, host: Option<FreeMemory>, device: Option<FreeMemory>) -> Option<Shortage> {
        let device = device.filter(|room| self.device() > room.total.min(room.free + self.device_taken()));
        if let Some(room) = device {
            return Some(Shortage { needed: self.device(), room });
        }
        let room = host.filter(|room| self.host().saturating_sub(self.resident) > room.free)?;
        Some(Shortage { needed: self.host(), room })
    }

    fn device_taken(&self) -> u64 {
        self.parts
            .iter()
            .find(|part| part.name == "process")
            .map_or(0, |part| part.device.saturating_sub(GPU_LIBRARIES))
    }
}

/// Changes that make a run fit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Alternatives {
    /// The largest smaller batch that fits.
    pub batch: Option<usize>,
    /// Whether the same batch fits with activations recomputed.
    pub recompute: bool,
    /// The number of micro-batches with which the same batch fits.
    pub accumulate: Option<usize>,
}

impl Alternatives {
    /// Searches for changes with which a workload `fits`.
    pub fn of(workload: &Workload, fits: &dyn Fn(&Workload) -> bool) -> Alternatives {
        let with = |change: &dyn Fn(&mut Workload)| {
            let mut other = workload.clone();
            change(&mut other);
            fits(&other)
        };
        let (whole, parts) = (workload.recipe.batch, workload.recipe.accumulate.max(1));
        let unit = parts * workload.recipe.parts.max(1);
        let batch = largest_batch(whole, unit, |batch| with(&|other| other.recipe.batch = batch));
        let recompute = !workload.options.recompute && with(&|other| other.options.recompute = true);
        let splits =
            [2, 4, 8, 16].into_iter().filter(|times| whole.is_multiple_of(times * unit)).map(|times| times * parts);
        // If no smaller batch fits, no micro-batch does.
        let accumulate =
            batch.and_then(|_| splits.into_iter().find(|&parts| with(&|other| other.recipe.accumulate = parts)));
        Alternatives { batch, recompute, accumulate }
    }
}

/// The size of a checkpoint in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateBytes {
    /// The model's weights.
    pub model: u64,
    /// The optimiser's state and the averages.
    pub optimiser: u64,
}

impl StateBytes {
    /// That of a step.
    pub fn of(step: &TrainingStep) -> StateBytes {
        let (mut model, mut optimiser) = (0, 0);
        for (_, parameter) in step.graph.parameters() {
            let kept = if step.state.contains(&parameter.name) { &mut optimiser } else { &mut model };
            let shape = step.shards.get(&parameter.name).map_or(&parameter.shape, |sharded| &sharded.shape);
            *kept += 4 * shape.elements() as u64;
        }
        StateBytes { model, optimiser }
    }
}

/// Bytes of the optimiser's state that this process has.
fn stored_state(step: &TrainingStep) -> u64 {
    let state = step.graph.parameters().filter(|(_, parameter)| step.state.contains(&parameter.name));
    state.map(|(_, parameter)| 4 * parameter.shape.elements() as u64).sum()
}

/// Bytes of the parameters that a step does not change.
fn frozen(step: &TrainingStep) -> u64 {
    let changed: HashSet<NodeId> = step.graph.updates().iter().map(|(parameter, _)| parameter.node).collect();
    let unchanged = step.graph.parameters().filter(|(node, _)| !changed.contains(node));
    unchanged.map(|(_, parameter)| 4 * parameter.shape.elements() as u64).sum()
}

/// Bytes of prepared batches: those that the loader prefetches, and those of the last, the current and the next step; an
/// asynchronous device is one step further.
fn batches(settings: &LoaderSettings, config: &Config, ahead: bool) -> u64 {
    let image = settings.transform.output_len();
    let held = settings.prefetch + 3 + usize::from(ahead);
    4 * (held * settings.parts.places(settings.batch).len() * (image + config.architecture.classes())) as u64
}

/// Bytes of a teacher on the device, and of its images and logits on the host.
fn teacher(recipe: &Recipe, student: &Config, plan: GraphPlan) -> Result<(u64, u64), TrainError> {
    let path = vit_models::run::model_of(Path::new(&recipe.objective.teacher));
    let Ok(Some(mut config)) = read_config(&path) else {
        // The architecture of a weights file is unknown before it is read.
        return Ok((std::fs::metadata(&path).map_or(0, |file| file.len()), 0));
    };
    let size = student.architecture.image_size();
    config.architecture.set_image_size(size);
    let part = recipe.batch / recipe.parts.max(1);
    let images = 4 * part * (student.architecture.channels() * size[0] * size[1] + config.architecture.classes());
    Ok((plan(&inference(&config, part)?)?.bytes(), images as u64))
}

/// Bytes of the model that is evaluated on the device, and of its prepared images and scores on the host.
fn evaluation(workload: &Workload, plan: GraphPlan) -> Result<(u64, u64), TrainError> {
    let Workload { config, recipe, validation, .. } = workload;
    let batch = evaluation_batch(recipe).clamp(1, *validation);
    let memory = plan(&inference(config, batch)?)?;
    // The batch that is filled, and at most two that threads prepare ahead.
    let prepared = 4 * (3 * batch * config.preprocessing.output_len()) as u64;
    let scores = match recipe.objective.loss {
        Loss::Sigmoid => 4 * (validation * config.architecture.classes()) as u64,
        Loss::Softmax => 0,
    };
    Ok((memory.bytes(), prepared + scores))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::Processes;
    use crate::step::sharding::ShardedState;
    use vit_system::host::MemoryLimit;

    fn workload(batch: usize) -> Workload {
        let variant = vit_models::variant("Ti/4@32").unwrap();
        let mut config = Config {
            name: None,
            architecture: variant.architecture,
            preprocessing: variant.preprocessing,
            labels: vec![],
            problem_type: vit_models::ProblemType::SingleLabel,
        };
        config.architecture.set_classes(10);
        config.preprocessing.image_size = [32, 32];
        let mut recipe = Recipe::named("small").unwrap();
        recipe.batch = batch;
        let options = TrainerOptions {
            threads: 2,
            cache_bytes: 1 << 20,
            save_every: std::time::Duration::from_secs(300),
            recompute: false,
            processes: Processes::default(),
            sharded: ShardedState::None,
        };
        let images = ImageSizes { count: 1000, mean: 3072.0, largest: 3072 };
        Workload { config, recipe, options, images, validation: 100, held: 0 }
    }

    fn planned(workload: &Workload, before: MemoryBaseline) -> RunMemory {
        let cpu = vit_cpu::Cpu::new(Some(1));
        RunMemory::new(workload, &|graph| vit_graph::device::Device::plan(&cpu, graph), before).unwrap()
    }

    fn free_memory(free: u64) -> Option<FreeMemory> {
        Some(FreeMemory { free, total: 2 * free, limit: MemoryLimit::Machine })
    }

    #[test]
    fn a_run_that_does_not_fit_is_known_before_it_begins_with_what_would_fit() {
        let workload = workload(256);
        let memory = planned(&workload, MemoryBaseline::default());
        assert!(memory.shortage(free_memory(memory.host()), None).is_none());
        let limit = free_memory(memory.host() / 2);
        let shortage = memory.shortage(limit, None).unwrap();
        assert_eq!((shortage.needed, Some(shortage.room)), (memory.host(), limit));

        let fits = |other: &Workload| planned(other, MemoryBaseline::default()).shortage(limit, None).is_none();
        let found = Alternatives::of(&workload, &fits);
        let batch = found.batch.unwrap();
        let mut smaller = workload.clone();
        smaller.recipe.batch = batch;
        assert!(fits(&smaller) && (64..256).contains(&batch), "{batch}");
        smaller.recipe.batch = batch + 8;
        assert!(!fits(&smaller), "{batch} is not the largest");
        assert!(found.recompute && found.accumulate.is_some_and(|parts| parts >= 2), "{found:?}");
    }

    #[test]
    fn every_part_is_counted_once_and_saving_never_meets_evaluation() {
        let memory = planned(&workload(64), MemoryBaseline { resident: 1 << 20, ..MemoryBaseline::default() });
        let part = |name| memory.parts.iter().find(|part| part.name == name).copied().unwrap();
        let model = memory.state.model;
        // AdamW has two state tensors per parameter; averages are optional.
        assert!(part("optimiser").host >= 2 * model && part("weights").host >= model, "{:?}", memory.parts);
        assert_eq!(part("saving").host, memory.state.optimiser);
        assert_eq!(part("batches").host, 4 * 7 * 64 * (3 * 32 * 32 + 10));
        // A thousand images of 3 KiB exceed the cache.
        assert_eq!(part("decoded images").host, (1 << 20) + 2 * 3 * 3072);
        let always: u64 = memory.parts.iter().filter(|p| p.when == MemoryPhase::Always).map(|p| p.host).sum();
        assert_eq!(memory.host(), always + part("evaluated images").host.max(part("saving").host));
    }

    #[test]
    fn a_device_with_memory_of_its_own_is_asked_about_its_own() {
        let gpu = FreeMemory { free: 70_000_000_000, total: 80_000_000_000, limit: MemoryLimit::Gpu };
        let memory = planned(&workload(64), MemoryBaseline { resident: 0, device: Some(gpu), own_memory: true });
        assert!(memory.device() > 10_000_000_000 && memory.host() < 1_000_000_000, "{:?}", memory.parts);
        assert!(memory.shortage(None, Some(gpu)).is_none());
        let full = FreeMemory { free: 1_000_000, ..gpu };
        assert_eq!(memory.shortage(None, Some(full)).unwrap().room, full);
    }
}
