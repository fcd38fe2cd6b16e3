//! Which processor runs a model.

use std::str::FromStr;
use std::sync::Arc;

use vit_cpu::Cpu;
use vit_graph::device::Device;

use crate::Error;

/// The processor asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The fastest there is.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
}

impl FromStr for DeviceChoice {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(DeviceChoice::Auto),
            "cpu" => Ok(DeviceChoice::Cpu),
            other => Err(format!("`{other}` is not a device; use auto or cpu")),
        }
    }
}

/// Opens a device; `threads` limits the CPU's.
pub fn device(choice: DeviceChoice, threads: Option<usize>) -> Result<Arc<dyn Device>, Error> {
    match choice {
        DeviceChoice::Auto | DeviceChoice::Cpu => Ok(Arc::new(Cpu::new(threads))),
    }
}
