//! What is served, where, and within which limits.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use vit::DeviceOptions;
use vit::data::DecodeOptions;

use crate::engine::{EngineOptions, ModelSource};

/// Options of a server.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Models, devices, batching and decoding.
    pub engine: EngineOptions,
    /// The address of the API and the page; port 0 takes a free one.
    pub bind: SocketAddr,
    /// An address of its own for `/metrics` and `/admin`, which then are not at `bind`.
    pub admin_bind: Option<SocketAddr>,
    /// Certificate and key; without them the server speaks plain HTTP.
    pub tls: Option<TlsFiles>,
    /// A file with one API key per line. Without it every client is admitted.
    pub api_key_file: Option<PathBuf>,
    /// Origins whose pages may use the API (`https://example.org`, or `*`).
    pub cors_origins: Vec<String>,
    /// Hosts whose URLs are fetched as images; empty refuses all URLs.
    pub url_hosts: Vec<String>,
    /// The time of one request, reading its body included. Clients can shorten it by `X-Request-Timeout`.
    pub timeout: Duration,
    /// The most bytes of one body.
    pub max_body_bytes: usize,
    /// The most bytes of all bodies that are held at a time.
    pub max_held_bytes: usize,
    /// The most images of one request.
    pub max_images: usize,
    /// The most connections at a time; further ones wait to be accepted.
    pub max_connections: usize,
    /// The time in which a client must send the header of a request; idle connections are closed after it.
    pub header_timeout: Duration,
    /// The time in which a client must send a whole body.
    pub body_timeout: Duration,
    /// The time in which requests are finished after a signal to end.
    pub shutdown_timeout: Duration,
}

/// A certificate chain and its private key, both as PEM.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The certificates, the server's own first.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            engine: EngineOptions {
                models: vec![ModelSource { name: "cifar10".into(), path: "cifar10".into() }],
                devices: vec![DeviceOptions::new()],
                replicas: 1,
                max_batch: 8,
                max_delay: None,
                queue: 256,
                decoders: std::thread::available_parallelism().map_or(1, usize::from),
                decode: DecodeOptions::default(),
            },
            bind: SocketAddr::from((Ipv4Addr::LOCALHOST, 8000)),
            admin_bind: None,
            tls: None,
            api_key_file: None,
            cors_origins: Vec::new(),
            url_hosts: Vec::new(),
            timeout: Duration::from_secs(30),
            max_body_bytes: 32 << 20,
            max_held_bytes: 512 << 20,
            max_images: 64,
            max_connections: 1024,
            header_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            shutdown_timeout: Duration::from_secs(30),
        }
    }
}
