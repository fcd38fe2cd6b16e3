//! A running server: its threads, its signals, its end.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::ServeOptions;
use crate::engine::{Engine, EngineError};
use crate::http::{ApiKeys, App, Tls, listener, router};

/// Threads that move bytes and parse bodies: one for every two cores, up to this many. Decoding and computation have
/// their own. Of several idle threads, one waits for sockets, and an answer wakes another one and it.
const MAX_THREADS: usize = 4;
/// Blocking work that is left when the server ends.
const LEFT_OVER: Duration = Duration::from_secs(1);

/// Why a server cannot run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The models cannot be served.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// An address cannot be used.
    #[error("{address}: {error}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// Why not.
        error: io::Error,
    },
    /// The file of API keys cannot be used.
    #[error("{}: {what}", path.display())]
    ApiKeyFile {
        /// The file.
        path: PathBuf,
        /// Why not.
        what: String,
    },
    /// The certificate or its key cannot be used.
    #[error("{}: {what}", path.display())]
    Tls {
        /// The file.
        path: PathBuf,
        /// Why not.
        what: String,
    },
    /// An origin that is not of the form `https://example.org`.
    #[error("`{0}` is not an origin like https://example.org")]
    Origin(String),
    /// Threads or signals cannot be had from the system.
    #[error("the system refuses: {0}")]
    System(io::Error),
}

/// A server that accepts requests until it is shut down or dropped.
pub struct Server {
    app: Arc<App>,
    address: SocketAddr,
    admin_address: Option<SocketAddr>,
    runtime: Option<Runtime>,
    public: ListenerTask,
    admin: Option<ListenerTask>,
}

/// A listener's task and how to stop it.
struct ListenerTask {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Server {
    /// Binds the addresses, opens and measures the models, and starts to answer.
    pub fn start(options: ServeOptions) -> Result<Server, ServeError> {
        let keys = ApiKeys::open(options.api_key_file.as_deref())?;
        let tls = options.tls.as_ref().map(Tls::open).transpose()?;
        let cors = router::cors(&options.cors_origins)?;
        let (listener, address) = bind(options.bind)?;
        let admin = options.admin_bind.map(bind).transpose()?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = (cores / 2).clamp(1, MAX_THREADS);
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("vit-http")
            .enable_all()
            .build()
            .map_err(ServeError::System)?;
        let engine = Engine::start(options.engine.clone())?;
        let app = App::new(engine, options, keys, tls);
        let listen = |listener: TcpListener, routes: router::Routes| {
            let (stop, stopped) = watch::channel(false);
            let _inside = runtime.enter();
            let listener = tokio::net::TcpListener::from_std(listener).map_err(ServeError::System)?;
            let task = runtime.spawn(listener::serve(app.clone(), listener, routes.into_router(&app), stopped));
            Ok::<_, ServeError>(ListenerTask { stop, task })
        };
        let public = listen(listener, router::public(&app, cors))?;
        let (admin, admin_address) = match admin {
            None => (None, None),
            Some((listener, address)) => (Some(listen(listener, router::admin())?), Some(address)),
        };
        let metrics = app.clone();
        runtime.spawn(async move { metrics.metrics.upkeep().await });
        Ok(Server { app, address, admin_address, runtime: Some(runtime), public, admin })
    }

    /// The address of the API and the page.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of `/metrics` and `/admin`, if they have one of their own.
    pub fn admin_address(&self) -> Option<SocketAddr> {
        self.admin_address
    }

    /// The models.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.app.engine
    }

    /// Accepts no more connections, finishes the requests in flight within the time of the options, and ends.
    pub fn shutdown(self) {
        self.end(std::future::pending());
    }

    /// Ends when all requests are finished, or earlier by `hurry`.
    fn end(mut self, hurry: impl Future<Output = ()>) {
        self.app.start_draining();
        let Some(runtime) = self.runtime.take() else { return };
        let finished = async {
            self.public.end().await;
            self.app.engine.drain();
            // Readiness and metrics can be seen until the last request is finished.
            if let Some(admin) = &mut self.admin {
                admin.end().await;
            }
        };
        runtime.block_on(async {
            tokio::select! {
                () = finished => {}
                () = hurry => tracing::warn!("a second signal cuts the requests in flight"),
            }
        });
        runtime.shutdown_timeout(LEFT_OVER);
    }

    /// Answers until a signal to end (SIGTERM, or Ctrl-C), then shuts down; a second one ends at once. SIGHUP loads
    /// models, keys and certificates anew.
    pub fn run(self) -> Result<(), ServeError> {
        let app = self.app.clone();
        if let Some(runtime) = &self.runtime {
            runtime.block_on(until_signalled(&app)).map_err(ServeError::System)?;
        }
        self.end(async move { drop(until_signalled(&app).await) });
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl ListenerTask {
    async fn end(&mut self) {
        let _ = self.stop.send(true);
        let _ = (&mut self.task).await;
    }
}

/// Serves until a signal to end.
pub fn serve(options: ServeOptions) -> Result<(), ServeError> {
    Server::start(options)?.run()
}

fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), ServeError> {
    let bound = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        Ok((listener, address))
    };
    bound().map_err(|error| ServeError::Bind { address, error })
}

#[cfg(unix)]
async fn until_signalled(app: &Arc<App>) -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut hangup = signal(SignalKind::hangup())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    loop {
        tokio::select! {
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
            _ = hangup.recv() => {
                let app = app.clone();
                tokio::spawn(async move {
                    if let Err(problem) = app.reload().await {
                        tracing::warn!(problem = problem.detail, "not reloaded");
                    }
                });
            }
        }
    }
}

#[cfg(not(unix))]
async fn until_signalled(_app: &Arc<App>) -> io::Result<()> {
    tokio::signal::ctrl_c().await
}
