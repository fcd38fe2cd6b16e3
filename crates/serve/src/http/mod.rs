//! Everything between the socket and the engine.

mod admin;
mod answers;
mod assets;
mod body;
mod classify;
mod deadline;
mod embed;
mod explain;
mod fields;
mod health;
#[cfg(test)]
mod hostile;
mod images;
mod keys;
mod kserve;
pub mod listener;
pub mod metrics;
mod models;
mod observe;
mod openai;
mod openapi;
mod problem;
pub mod router;
mod tls;
mod urls;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use body::{BodyLimits, HeldBytes};
pub use keys::ApiKeys;
use metrics::ServerMetrics;
use problem::{Problem, ProblemKind};
pub use tls::Tls;
use tokio::sync::Mutex;
use urls::Fetcher;

use crate::engine::{Engine, Reload};
use crate::{ServeError, ServeOptions};

/// Bytes that are parsed in less time than it takes to hand them to another thread and back, or not much more.
const PARSED_HERE: usize = 256 << 10;

/// What all requests share.
pub struct App {
    pub engine: Arc<Engine>,
    pub options: ServeOptions,
    pub metrics: ServerMetrics,
    pub keys: ApiKeys,
    pub tls: Option<Tls>,
    fetcher: Fetcher,
    body_limits: BodyLimits,
    draining: AtomicBool,
    /// Held while models are reloaded.
    reloading: Mutex<()>,
}

impl App {
    pub fn new(engine: Arc<Engine>, options: ServeOptions, keys: ApiKeys, tls: Option<Tls>) -> Arc<Self> {
        let ServeOptions { max_body_bytes, max_held_bytes, body_timeout, .. } = options;
        let held = HeldBytes::new(max_held_bytes);
        let fetcher = Fetcher::new(&options.url_hosts);
        Arc::new(App {
            engine,
            options,
            metrics: ServerMetrics::new(),
            keys,
            tls,
            fetcher,
            body_limits: BodyLimits { bytes: max_body_bytes, time: body_timeout, held },
            draining: AtomicBool::new(false),
            reloading: Mutex::new(()),
        })
    }

    /// From now on the server is not ready; requests are still answered.
    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Parses so many bytes: here if they are few, else on a thread for blocking work.
    async fn parse<T: Send + 'static>(
        &self,
        bytes: usize,
        parse: impl FnOnce() -> Result<T, Problem> + Send + 'static,
    ) -> Result<T, Problem> {
        if bytes <= PARSED_HERE { parse() } else { self.blocking(parse).await? }
    }

    /// Runs what would keep a thread of the runtime too long.
    async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Problem> {
        let failed = |error| {
            tracing::error!(%error, "blocking work failed");
            Problem::new(ProblemKind::Internal, "The server failed; its log has the cause.")
        };
        tokio::task::spawn_blocking(work).await.map_err(failed)
    }

    /// Loads models, keys and certificates anew. Fails if another reload is running.
    pub async fn reload(self: &Arc<Self>) -> Result<Vec<Reload>, Problem> {
        let Ok(_running) = self.reloading.try_lock() else {
            return Err(Problem::new(ProblemKind::ReloadRunning, "Try again when the running reload has ended."));
        };
        let app = self.clone();
        let outcomes = self.blocking(move || (app.reload_files(), app.engine.reload())).await?;
        let (files, models) = outcomes;
        for error in files {
            tracing::error!(%error, "the old keys or certificates stay in use");
        }
        for Reload { name, outcome } in &models {
            match outcome {
                Ok(version) => tracing::info!(model = name, version, "reloaded"),
                Err(error) => tracing::error!(model = name, %error, "the old model stays in use"),
            }
        }
        Ok(models)
    }

    fn reload_files(&self) -> Vec<ServeError> {
        let keys = self.options.api_key_file.as_deref().map(|file| self.keys.reload(file));
        let tls = self.options.tls.as_ref().zip(self.tls.as_ref()).map(|(files, tls)| tls.reload(files));
        [keys, tls].into_iter().flatten().filter_map(Result::err).collect()
    }
}

/// The client's address, in the extensions of every request.
#[derive(Debug, Clone, Copy)]
struct Peer(SocketAddr);
