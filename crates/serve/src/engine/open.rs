//! Opens models on all devices and starts their threads.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, Once};
use std::thread;

use vit::explain::{attention_heads, suitable_methods};
use vit::graph::Device;
use vit::models::{Checkpoint, Mode, OpenOptions};
use vit::{DeviceOptions, Error, Model, ModelOptions};

use super::batching::{batch_sizes, default_delay};
use super::cpu_turns::CpuTurns;
use super::decoding::{DecodePool, DecodeTarget};
use super::explaining::ExplainWorker;
use super::health::ReplicaHealth;
use super::measuring::measure;
use super::queue::{Lane, ModelQueue};
use super::reopen::{Reopen, version};
use super::replica::{Replica, ReplicaContext};
use super::statistics::Counters;
use super::watchdog::Watchdog;
use super::{EngineError, EngineOptions, ModelCard, ModelSource, ServedModel};

/// The devices and threads that all models share.
pub(super) struct Opener {
    options: EngineOptions,
    devices: Vec<(DeviceOptions, Arc<dyn Device>)>,
    turns: Arc<CpuTurns>,
    decoders: Arc<DecodePool>,
    watchdog: Watchdog,
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
        Ok(Opener { options, devices, turns, decoders, watchdog: Watchdog::start()?, draining })
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
        let opened = Checkpoint::open_image_model(&source.path, OpenOptions::default());
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
        let queue =
            Arc::new(ModelQueue::new(self.options.queue.max(1), self.options.max_batch.max(1), counters.clone()));
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
                model.check_finite().map_err(failed)?;
                drop(turn);
                let context = ReplicaContext {
                    device: device.clone(),
                    options: *options,
                    max_delay: self.options.max_delay.unwrap_or_else(|| default_delay(&times)),
                    times,
                    queue: queue.clone(),
                    turns: turns.clone(),
                    counters: counters.clone(),
                    health: Arc::new(ReplicaHealth::new(queue.clone(), working.clone())),
                };
                replicas.push(Replica { model, lane: Lane::Head, context });
            }
        }
        let Some(first) = replicas.first() else { return Err(EngineError::NoDevices) };
        if let Some((size, time)) = first.context.times.last() {
            queue.bound_wait(*time / (size * replicas.len()) as u32);
        }
        let card = ModelCard {
            name: source.name.clone(),
            version: version(&checkpoint),
            parameters: parameters(&checkpoint).map_err(failed)?,
            embedding: first.model.outputs().last().and_then(|(_, shape)| shape.last().copied()).unwrap_or(0),
            heads: attention_heads(&checkpoint.config.architecture).map_err(failed)?,
            methods: suitable_methods(&checkpoint.config.architecture).map_err(|error| failed(error.into()))?,
            devices: replicas.iter().map(|replica| replica.context.device.description()).collect(),
            precision: first.context.options.precision.to_string(),
            batches: first.context.times.iter().map(|(size, time)| (*size, time.as_secs_f64())).collect(),
            max_delay: first.context.max_delay,
            memory_bytes: replicas.iter().map(|replica| replica.model.memory_bytes()).sum(),
            config: checkpoint.config,
        };
        let reopen = Reopen { path: source.path.clone(), version: card.version.clone() };
        let target = Arc::new(DecodeTarget { queue, preprocess: card.config.preprocessing.clone() });
        let contexts: Vec<ReplicaContext> = replicas.iter().map(|replica| replica.context.clone()).collect();
        contexts.iter().for_each(|context| self.watchdog.add(&context.health));
        let worker = ExplainWorker { context: first.context.clone(), reopen: reopen.clone(), compiled: Vec::new() };
        let served = Arc::new(ServedModel {
            card,
            target,
            decoders: self.decoders.clone(),
            counters,
            contexts,
            reopen,
            tokens: Once::new(),
            working,
            draining: self.draining.clone(),
        });
        for (index, replica) in replicas.into_iter().enumerate() {
            spawn(format!("{}-{index}", source.name), move || replica.run())?;
        }
        spawn(format!("{}-explain", source.name), move || worker.run())?;
        Ok(served)
    }
}

pub(super) fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> Result<(), EngineError> {
    let started = thread::Builder::new().name(name).spawn(run);
    started.map(drop).map_err(|error| EngineError::Thread(error.to_string()))
}

/// The number of trainable parameters.
fn parameters(checkpoint: &Checkpoint) -> Result<u64, Error> {
    let graph = checkpoint.config.architecture.build(1, Mode::Inference)?;
    let trainable = graph.parameters().filter(|(_, parameter)| parameter.trainable);
    Ok(trainable.map(|(_, parameter)| parameter.shape.elements() as u64).sum())
}
