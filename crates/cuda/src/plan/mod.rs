//! Planning of a graph before GPU memory is allocated: storage types, fusion, and offsets in the two buffers of an
//! executable, the arena and that of stored values.

pub(crate) mod fp8;
mod fusion;
mod group;
pub(crate) mod prepare;
pub(crate) mod storage;
