//! A run from its setup to its last checkpoint: what it needs of memory and disk, the loop, and the folder it leaves.

pub(crate) mod disk_space;
pub(crate) mod folder;
pub(crate) mod memory;
pub(crate) mod progress;
pub(crate) mod saving;
pub(crate) mod setup;
pub(crate) mod teacher;
pub(crate) mod trainer;
