//! A training run: its setup, its planned memory and disk space, the training loop, and its folder.

pub(crate) mod disk_space;
pub(crate) mod folder;
pub(crate) mod memory;
pub(crate) mod progress;
pub(crate) mod saving;
pub(crate) mod setup;
pub(crate) mod teacher;
pub(crate) mod trainer;
