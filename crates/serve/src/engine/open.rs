//! Opens models on all devices and starts their threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::thread;
use std::time::Duration;

use vit::graph::Device;
use vit::models::{Checkpoint, Mode, OpenOptions};
use vit::{DeviceOptions, Error, Model, ModelOptions};

use super::batching::{batch_sizes, default_delay};
use super::cpu_turns::CpuTurns;
use super::decoding::{DecodePool, DecodeTarget};
use super::health::ReplicaHealth;
use super::measuring::measure;
use super::queue::{Lane, ModelQueue};
use super::replica::Replica;
use super::statistics::Counters;
use super::{EngineError, EngineOptions, ModelCard, ModelSource, ServedModel};

/// Digits of a model's version.
const VERSION_DIGITS: usize = 12;

/// The devices and threads that all models share.
pub(super) struct Opener {
    options: EngineOptions,
    devices: Vec<(DeviceOptions, Arc<dyn Device>)>,
    turns: Arc<CpuTurns>,
    decoders: Arc<DecodePool>,
    draining: Arc<AtomicBool>,
}

impl Opener {
    pub fn new(
        devices: Vec<Arc<dyn Device>>,
        options: EngineOptions,
        draining: Arc<AtomicBool>,
    ) -> Result<Self, EngineError> {
        let devices: Vec<_> = options.devices.iter().copied().zip(devices).collect();
        let turns = Arc::<CpuTurns>::default();
        let cpu = devices.iter().any(|(_, device)| device.name() == "cpu").then(|| turns.clone());
        let decoders = Arc::new(DecodePool::start(options.decoders, options.decode.clone(), cpu)?);
        Ok(Opener { options, devices, turns, decoders, draining })
    }

    pub fn sources(&self) -> &[ModelSource] {
        &self.options.models
    }

    /// Opens a model.
    pub fn open(&self, source: &ModelSource) -> Result<Arc<ServedModel>, EngineError> {
        self.serve(source, self.checkpoint(source)?, Arc::default())
    }

    /// Opens a model anew; `None` if it has not changed and all its replicas work.
    pub fn open_changed(
        &self,
        source: &ModelSource,
        old: &ServedModel,
    ) -> Result<Option<Arc<ServedModel>>, EngineError> {
        let checkpoint = self.checkpoint(source)?;
        if version(&checkpoint) == old.card.version && old.works() {
            return Ok(None);
        }
        self.serve(source, checkpoint, old.counters.clone()).map(Some)
    }

    fn checkpoint(&self, source: &ModelSource) -> Result<Checkpoint, EngineError> {
        let opened = Checkpoint::open(&source.path, OpenOptions::default());
        opened.map_err(|error| EngineError::Model { name: source.name.clone(), error: error.into() })
    }

    /// Compiles and measures a model on all devices, and starts its threads.
    fn serve(
        &self,
        source: &ModelSource,
        checkpoint: Checkpoint,
        counters: Arc<Counters>,
    ) -> Result<Arc<ServedModel>, EngineError> {
        let failed = |error: Error| EngineError::Model { name: source.name.clone(), error };
        let sizes = batch_sizes(self.options.max_batch);
        let classes = checkpoint.config.architecture.classes();
        let outputs = if classes > 0 { ["logits", "features"].as_slice() } else { &["features"] };
        let queue = Arc::new(ModelQueue::new(self.options.queue.max(1), counters.clone()));
        let working = Arc::new(AtomicUsize::new(0));
        let mut replicas = Vec::new();
        for (options, device) in &self.devices {
            let turns = (device.name() == "cpu").then(|| self.turns.clone());
            for _ in 0..self.options.replicas.max(1) {
                let mut wanted = ModelOptions::new().batches(sizes.iter().copied()).device(*options);
                wanted.outputs = outputs.iter().map(|name| name.to_string()).collect();
                let mut model = Model::of(&checkpoint, device.as_ref(), &wanted).map_err(failed)?;
                let turn = turns.as_ref().map(|turns| turns.begin());
                let times = measure(&mut model, &sizes).map_err(failed)?;
                drop(turn);
                replicas.push(Replica {
                    model,
                    lane: Lane::Head,
                    times,
                    max_delay: Duration::ZERO,
                    queue: queue.clone(),
                    turns: turns.clone(),
                    counters: counters.clone(),
                    health: Arc::new(ReplicaHealth::new(queue.clone(), working.clone())),
                });
            }
        }
        let times = replicas.first().map_or_else(Vec::new, |replica| replica.times.clone());
        let max_delay = self.options.max_delay.unwrap_or_else(|| default_delay(&times));
        let card = ModelCard {
            name: source.name.clone(),
            version: version(&checkpoint),
            parameters: parameters(&checkpoint).map_err(failed)?,
            embedding: replicas.first().and_then(|r| Some(*r.model.outputs().last()?.1.last()?)).unwrap_or(0),
            heads: Vec::new(),
            methods: Vec::new(),
            devices: self.devices.iter().map(|(_, device)| device.description()).collect(),
            precision: self.devices.first().map_or_else(String::new, |(options, _)| options.precision.to_string()),
            batches: times.iter().map(|(size, time)| (*size, time.as_secs_f64())).collect(),
            max_delay,
            memory_bytes: replicas.iter().map(|replica| replica.model.memory_bytes()).sum(),
            config: checkpoint.config,
        };
        let target = Arc::new(DecodeTarget { queue, preprocess: card.config.preprocessing.clone() });
        let served = Arc::new(ServedModel {
            card,
            target,
            decoders: self.decoders.clone(),
            counters,
            replicas: replicas.iter().map(|replica| replica.health.clone()).collect(),
            working,
            draining: self.draining.clone(),
        });
        for (index, replica) in replicas.into_iter().enumerate() {
            let replica = Replica { max_delay, ..replica };
            let name = format!("{}-{index}", source.name);
            let started = thread::Builder::new().name(name).spawn(move || replica.run());
            started.map_err(|error| EngineError::Thread(error.to_string()))?;
        }
        Ok(served)
    }
}

fn version(checkpoint: &Checkpoint) -> String {
    checkpoint.fingerprint()[..VERSION_DIGITS].into()
}

/// The number of trainable parameters.
fn parameters(checkpoint: &Checkpoint) -> Result<u64, Error> {
    let graph = checkpoint.config.architecture.build(1, Mode::Inference)?;
    let trainable = graph.parameters().filter(|(_, parameter)| parameter.trainable);
    Ok(trainable.map(|(_, parameter)| parameter.shape.elements() as u64).sum())
}
