//! `vit serve`: an HTTP server for Vision Transformers, and its page.

pub mod engine;
pub mod page;
