//! Models on devices: images in, answers out.
//!
//! An admitted image takes one place in its model's bounded queue. A pool of threads decodes and preprocesses it; then it
//! waits for its batch. Every replica of a model has a thread that takes batches and runs them. No lock is held while an
//! image is decoded or a batch runs.

mod batching;
mod card;
mod cpu_turns;
mod decoding;
mod error;
mod explaining;
mod health;
mod measuring;
mod open;
mod options;
mod outputs;
mod queue;
mod readiness;
mod reopen;
mod replica;
mod served;
mod statistics;
mod tokens;
mod watchdog;
mod work;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use vit::graph::Device;

pub use card::ModelCard;
pub use error::{EngineError, Refused, WorkError};
pub use options::{EngineOptions, ModelSource};
pub use readiness::Readiness;
pub use served::ServedModel;
pub use statistics::Statistics;
pub use work::{Answer, ExplainWork, Explained, Ticket, Timing, Work, WorkInput, WorkOutput};

use open::Opener;

/// All models that are served.
pub struct Engine {
    opener: Opener,
    models: RwLock<Vec<Arc<ServedModel>>>,
    draining: Arc<AtomicBool>,
    reloading: Mutex<()>,
}

impl Engine {
    /// Opens, compiles and measures all models.
    pub fn start(options: EngineOptions) -> Result<Arc<Engine>, EngineError> {
        let devices = options.devices.iter().map(|device| device.open());
        let devices = devices.collect::<Result<Vec<_>, _>>().map_err(EngineError::Device)?;
        Engine::start_on(devices, options)
    }

    /// As [`Engine::start`], on devices that are open already, one for each of `options.devices`.
    pub fn start_on(devices: Vec<Arc<dyn Device>>, options: EngineOptions) -> Result<Arc<Engine>, EngineError> {
        if options.models.is_empty() {
            return Err(EngineError::NoModels);
        }
        let mut names = HashSet::new();
        if let Some(twice) = options.models.iter().find(|model| !names.insert(model.name.clone())) {
            return Err(EngineError::SameName(twice.name.clone()));
        }
        let draining = Arc::new(AtomicBool::new(false));
        let opener = Opener::new(devices, options, draining.clone())?;
        let models = opener.sources().iter().map(|source| opener.open(source));
        let models = models.collect::<Result<Vec<_>, _>>()?;
        Ok(Arc::new(Engine { opener, models: RwLock::new(models), draining, reloading: Mutex::default() }))
    }

    /// The models, the default first.
    pub fn models(&self) -> Vec<Arc<ServedModel>> {
        self.models.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A model by name, or the default.
    pub fn model(&self, name: Option<&str>) -> Result<Arc<ServedModel>, EngineError> {
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        let found = match name {
            Some(name) => models.iter().find(|model| model.card().name == name),
            None => models.first(),
        };
        found.cloned().ok_or_else(|| EngineError::UnknownModel {
            name: name.unwrap_or_default().into(),
            known: models.iter().map(|model| model.card().name.clone()).collect(),
        })
    }

    /// Opens every model anew beside the one in use and swaps them; a model that cannot be opened leaves the old one in
    /// place. Blocks while models are opened.
    pub fn reload(&self) -> Vec<Reload> {
        let _one_at_a_time = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        self.opener.sources().iter().enumerate().map(|(index, source)| self.reload_one(index, source)).collect()
    }

    fn reload_one(&self, index: usize, source: &ModelSource) -> Reload {
        let old = self.models()[index].clone();
        let outcome = self.opener.open_changed(source, &old).map(|new| {
            let new = new.unwrap_or(old);
            let version = new.card().version.clone();
            self.models.write().unwrap_or_else(PoisonError::into_inner)[index] = new;
            version
        });
        Reload { name: source.name.clone(), outcome }
    }

    /// Whether requests can be answered now; does not block.
    pub fn readiness(&self) -> Readiness {
        if self.draining.load(Ordering::Relaxed) {
            return Readiness::Draining;
        }
        let lost =
            |model: Arc<ServedModel>| Some(Readiness::Lost { model: model.card().name.clone(), reason: model.lost()? });
        self.models().into_iter().find_map(lost).unwrap_or(Readiness::Ready)
    }

    /// Refuses new work from now on; work that was admitted is finished.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Images admitted and not yet answered, over all models.
    pub fn pending(&self) -> usize {
        self.models().iter().map(|model| model.pending()).sum()
    }
}

/// How the reload of one model ended.
#[derive(Debug)]
pub struct Reload {
    /// The model.
    pub name: String,
    /// The new version, or why the old one stays.
    pub outcome: Result<String, EngineError>,
}
