//! The CUDA driver: finding it and its libraries, one GPU's context, memory, and its errors as sentences.

pub(crate) mod failure;
mod gpu;
pub(crate) mod info;
pub(crate) mod libraries;
pub(crate) mod memory;

pub(crate) use gpu::{Gpu, KernelFunction, NAME, check, error, error_with_hints, message};
