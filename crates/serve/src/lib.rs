//! `vit serve`: an HTTP server for Vision Transformers, and its page.
//!
//! ```no_run
//! use vit_serve::{ServeOptions, Server};
//!
//! let server = Server::start(ServeOptions { bind: "127.0.0.1:0".parse().unwrap(), ..ServeOptions::default() })?;
//! println!("http://{}", server.address());
//! server.run()?; // until a signal
//! # Ok::<(), vit_serve::ServeError>(())
//! ```

pub mod engine;
mod http;
mod logs;
mod options;
pub mod page;
mod server;

pub use logs::{LogFormat, log_to_stderr};
pub use options::{ServeOptions, TlsFiles};
pub use server::{ServeError, Server, serve};
