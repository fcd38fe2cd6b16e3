//! The CUDA driver: its libraries, the context of a GPU, memory, streams, and its errors as sentences.

pub(crate) mod failure;
mod gpu;
pub(crate) mod info;
pub(crate) mod libraries;
pub(crate) mod memory;
mod stream;

pub(crate) use gpu::{Gpu, KernelFunction, NAME, check, error, error_with_hints, message};
pub(crate) use stream::{Event, Stream};
