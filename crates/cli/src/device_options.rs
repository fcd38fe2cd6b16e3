//! The options about devices, the same for every command that runs a model.

use std::sync::Arc;

use clap::Args;
use vit::{DeviceChoice, DeviceOptions, Precision};
use vit_graph::device::Device;
use vit_graph::exchange::Exchange;

/// Where a command runs.
#[derive(Args, Clone, Copy)]
pub struct Placement {
    /// Where to run: auto, cpu, cuda or cuda:N [default: auto; a resumed run
    /// continues where it began]
    #[arg(long, help_heading = "How to run")]
    pub device: Option<DeviceChoice>,
    /// CPU threads [default: all cores]
    #[arg(long, value_name = "N", help_heading = "How to run", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub threads: Option<u32>,
}

/// In which precision a command computes.
#[derive(Args, Clone, Copy)]
pub struct PrecisionArgument {
    /// f32; tf32 or bf16 on GPUs; for inference also f16 or fp8 on GPUs, int8 on
    /// CPUs [default: f32; for training on a GPU bf16]
    #[arg(long, help_heading = "How to run")]
    precision: Option<Precision>,
}

/// Where and in which precision a command runs a model.
#[derive(Args, Clone, Copy)]
pub struct DeviceArguments {
    #[command(flatten)]
    pub placement: Placement,
    #[command(flatten)]
    precision: PrecisionArgument,
}

impl Placement {
    /// The device in a precision.
    pub fn in_precision(self, precision: Precision) -> DeviceOptions {
        let options = DeviceOptions::new().device(self.device.unwrap_or_default()).precision(precision);
        self.threads.map_or(options, |threads| options.threads(threads as usize))
    }

    /// The number of threads: as given, or all cores.
    pub fn threads(self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, |n| n.get());
        self.threads.map_or_else(cores, |n| n as usize)
    }
}

impl DeviceArguments {
    /// The device for inference.
    pub fn inference(self) -> DeviceOptions {
        self.placement.in_precision(self.precision.precision.unwrap_or_default())
    }

    /// The precision for training.
    pub fn training(self) -> anyhow::Result<TrainingPrecision> {
        self.precision.for_training()
    }
}

impl PrecisionArgument {
    /// The precision for training: as given, else bf16 on a GPU and f32 on the CPU.
    pub fn for_training(self) -> anyhow::Result<TrainingPrecision> {
        if let Some(precision) = self.precision.filter(|precision| !precision.trains()) {
            anyhow::bail!("--precision {precision} is for inference; train in f32, tf32 or bf16");
        }
        Ok(TrainingPrecision(self.precision))
    }
}

/// A precision that trains, or the device's default.
#[derive(Clone, Copy)]
pub struct TrainingPrecision(Option<Precision>);

impl TrainingPrecision {
    /// The precision on a GPU.
    pub fn on_gpu(self) -> Precision {
        self.0.unwrap_or(Precision::Bf16)
    }

    /// Opens the device, with the exchange of several processes.
    pub fn open(
        self,
        placement: Placement,
        exchange: Option<&Arc<dyn Exchange>>,
    ) -> Result<(Arc<dyn Device>, Precision), vit::Error> {
        let open = |precision| Ok((placement.in_precision(precision).open_with_exchange(exchange)?, precision));
        match (self.0, placement.device.unwrap_or_default()) {
            (Some(precision), _) => open(precision),
            (None, DeviceChoice::Cpu) => open(Precision::F32),
            (None, DeviceChoice::Cuda(_)) => open(self.on_gpu()),
            (None, DeviceChoice::Auto) => open(self.on_gpu()).or_else(|_| open(Precision::F32)),
        }
    }
}
