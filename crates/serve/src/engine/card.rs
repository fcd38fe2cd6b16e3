//! The description of a served model.

use std::time::Duration;

use vit::explain::Method;
use vit::models::Config;

/// What a client may know about a model.
#[derive(Debug, Clone)]
pub struct ModelCard {
    /// Its name in requests.
    pub name: String,
    /// The first 12 hexadecimal digits of a hash of its weights and configuration.
    pub version: String,
    /// Configuration: architecture, labels, problem type, preprocessing.
    pub config: Config,
    /// The number of parameters.
    pub parameters: u64,
    /// Elements of its features.
    pub embedding: usize,
    /// Layers with attention, and heads of each; empty for models without attention.
    pub heads: Vec<usize>,
    /// Methods of explanation that suit it.
    pub methods: Vec<Method>,
    /// Its devices, one per replica: `cpu (avx512)`.
    pub devices: Vec<String>,
    /// The precision's name.
    pub precision: String,
    /// Compiled batch sizes with the seconds of one run, measured at start.
    pub batches: Vec<(usize, f64)>,
    /// How long an image waits for others.
    pub max_delay: Duration,
    /// Bytes of all replicas.
    pub memory_bytes: usize,
}
