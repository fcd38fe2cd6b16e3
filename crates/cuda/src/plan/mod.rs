//! Planning of a graph before GPU memory is allocated: storage types, fusion, and offsets in the two buffers.

pub(crate) mod fp8;
mod fusion;
mod group;
pub(crate) mod prepare;
pub(crate) mod storage;
