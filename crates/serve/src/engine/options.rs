//! What to serve and how.

use std::path::PathBuf;
use std::time::Duration;

use vit::DeviceOptions;
use vit::data::DecodeOptions;

/// A model to serve.
#[derive(Debug, Clone)]
pub struct ModelSource {
    /// The name in requests.
    pub name: String,
    /// A checkpoint folder, a weights file, a run's folder or `cifar10`, as `Model::open` takes it.
    pub path: PathBuf,
}

/// What to serve and how.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// The models; the first is the default.
    pub models: Vec<ModelSource>,
    /// The devices; every model runs on each.
    pub devices: Vec<DeviceOptions>,
    /// Replicas of every model on each device.
    pub replicas: usize,
    /// The most images in one run.
    pub max_batch: usize,
    /// How long an image waits for others to fill its batch; `None` chooses from measured batch times.
    pub max_delay: Option<Duration>,
    /// Images of one model that may wait, being decoded included.
    pub queue: usize,
    /// Threads that decode and preprocess images.
    pub decoders: usize,
    /// Limits and options of decoding.
    pub decode: DecodeOptions,
}
