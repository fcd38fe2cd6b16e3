//! Planning of a graph before any memory of the GPU is allocated: storage types, fusion, addresses.

pub(crate) mod fp8;
mod fusion;
mod group;
pub(crate) mod prepare;
pub(crate) mod storage;
