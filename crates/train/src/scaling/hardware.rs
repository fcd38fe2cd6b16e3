//! GPUs and networks by their data sheets.

use std::time::Duration;

/// A kind of GPU and the node that holds it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GpuModel {
    /// Its name.
    pub name: &'static str,
    /// FLOPs per second of dense bf16 products at the peak.
    pub flops: f64,
    /// Bytes per second of its memory.
    pub bandwidth: f64,
    /// Bytes of its memory.
    pub memory: u64,
    /// Watts of one GPU with its share of the node.
    pub watts: f64,
    /// Bytes per second to the other GPUs of a node, in each direction.
    pub link: f64,
    /// GPUs of a node.
    pub per_node: usize,
}

/// Nodes of eight GPUs with NVLink; watts are those of a DGX divided by eight.
const GPUS: [GpuModel; 4] = [
    GpuModel {
        name: "a100",
        flops: 312e12,
        bandwidth: 2.04e12,
        memory: 80 << 30,
        watts: 812.0,
        link: 300e9,
        per_node: 8,
    },
    GpuModel {
        name: "h100",
        flops: 989e12,
        bandwidth: 3.35e12,
        memory: 80 << 30,
        watts: 1275.0,
        link: 450e9,
        per_node: 8,
    },
    GpuModel {
        name: "h200",
        flops: 989e12,
        bandwidth: 4.8e12,
        memory: 141 << 30,
        watts: 1275.0,
        link: 450e9,
        per_node: 8,
    },
    GpuModel {
        name: "b200",
        flops: 2250e12,
        bandwidth: 8e12,
        memory: 180 << 30,
        watts: 1790.0,
        link: 900e9,
        per_node: 8,
    },
];

impl GpuModel {
    /// The GPU of this name.
    pub fn named(name: &str) -> Option<GpuModel> {
        GPUS.into_iter().find(|gpu| gpu.name.eq_ignore_ascii_case(name))
    }

    /// All names.
    pub fn names() -> impl Iterator<Item = &'static str> {
        GPUS.iter().map(|gpu| gpu.name)
    }
}

/// The network between nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Network {
    /// Bytes per second of each GPU, in each direction.
    pub bandwidth: f64,
    /// The time of an empty message.
    pub latency: Duration,
}

impl Network {
    /// A network that gives each GPU so many gigabits per second.
    pub fn with_gigabits(gigabits: f64) -> Network {
        Network { bandwidth: gigabits * 1e9 / 8.0, latency: Duration::from_micros(5) }
    }
}
