//! The server as clients see it: over real sockets, with the built-in model.

mod answers;
mod client;
mod errors;
mod grpc;
mod kserve;
mod limits;
mod operation;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::OnceLock;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use vit_serve::{ServeOptions, Server};

/// Options of a server on a free port.
fn options() -> ServeOptions {
    let mut options = ServeOptions { bind: "127.0.0.1:0".parse().unwrap(), ..ServeOptions::default() };
    options.engine.devices[0].threads = Some(1);
    options.engine.max_batch = 4;
    options
}

/// The server that most tests share.
fn server() -> SocketAddr {
    static SERVER: OnceLock<Server> = OnceLock::new();
    SERVER.get_or_init(|| Server::start(ServeOptions { max_images: 8, ..options() }).unwrap()).address()
}

fn example(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../examples/images").join(name)
}

fn image(name: &str) -> Vec<u8> {
    std::fs::read(example(name)).unwrap()
}

fn base64(bytes: &[u8]) -> String {
    BASE64_STANDARD.encode(bytes)
}
