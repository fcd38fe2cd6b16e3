//! What is decided about a graph before any memory of the GPU is allocated: storage types, fusions, memory.

pub(crate) mod fp8;
pub(crate) mod fusion;
pub(crate) mod prepare;
pub(crate) mod storage;
