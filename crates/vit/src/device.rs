//! Which processor runs a model.

use std::str::FromStr;
use std::sync::Arc;

use vit_cpu::Cpu;
use vit_graph::device::Device;
use vit_graph::{Graph, rewrite};

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

/// How precisely a model computes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Precision {
    /// 32-bit floating point.
    #[default]
    F32,
    /// Linear layers in eight bits, the rest in 32: faster, a little less exact.
    Int8,
}

impl FromStr for Precision {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "f32" => Ok(Precision::F32),
            "int8" => Ok(Precision::Int8),
            other => Err(format!("`{other}` is not a precision; use f32 or int8")),
        }
    }
}

impl Precision {
    /// The graph in this precision.
    pub fn apply(self, graph: Graph) -> Result<Graph, Error> {
        match self {
            Precision::F32 => Ok(graph),
            // A convolution that is a matrix product must have become one for the first layer to be recognised.
            Precision::Int8 => Ok(rewrite::int8(&rewrite::patchify(&graph)?)?),
        }
    }
}

/// Opens a device; `threads` limits the CPU's.
pub fn device(choice: DeviceChoice, threads: Option<usize>) -> Result<Arc<dyn Device>, Error> {
    match choice {
        DeviceChoice::Auto | DeviceChoice::Cpu => Ok(Arc::new(Cpu::new(threads))),
    }
}
