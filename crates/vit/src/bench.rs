//! Benchmarks of models, of their operations, and of loading images.
//!
//! Times are medians over repeated runs. Rates are compared with the machine's peak, which is measured before and after.

mod data;
mod peak;
mod profile;
mod steps;

pub use data::{DataMeasurement, data, drawn as drawn_data};
pub use profile::{Profile, ProfileRow, ProfiledStep, profile};
pub use steps::{Measurement, infer, train};

use std::sync::Arc;
use std::time::{Duration, Instant};

use vit_cpu::Cpu;
pub use vit_cpu::Isa;
use vit_graph::device::Device;
use vit_models::{Architecture, Config};
use vit_train::Recipe;

use crate::{DeviceOptions, Error, config_of};
use peak::Peak;

/// What to measure.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// A model's name, a checkpoint or a run. Its weights are random, since they do not change the time.
    pub model: String,
    /// Images in one run.
    pub batch: usize,
    /// Another image size.
    pub image_size: Option<[usize; 2]>,
    /// The device and its precision.
    pub device: DeviceOptions,
    /// The CPU's instruction set, if not the best; it implies the CPU.
    pub isa: Option<Isa>,
    /// How long to measure.
    pub time: Duration,
    /// In training, recompute activations in the backward pass instead of keeping them.
    pub recompute: bool,
    /// In training on a GPU, pass gradients through NCCL, as its only rank.
    pub nccl: bool,
    /// In training, the step of this recipe instead of one of a classifier with AdamW.
    pub recipe: Option<Recipe>,
    /// In inference, measure the text tower of an image-text model, on as many texts.
    pub text: bool,
}

impl BenchOptions {
    fn architecture(&self) -> Result<Architecture, Error> {
        Ok(self.config()?.architecture)
    }

    fn config(&self) -> Result<Config, Error> {
        let mut config = config_of(&self.model)?;
        if let Some(size) = self.image_size {
            config.architecture.set_image_size(size);
        }
        Ok(config)
    }

    fn open(&self) -> Result<BenchDevice, Error> {
        if let Some(isa) = self.isa.filter(|isa| !isa.is_available()) {
            return Err(Error::Device {
                device: format!("cpu ({isa})"),
                reason: "this CPU lacks the instructions".into(),
            });
        }
        let device = match (self.isa, self.nccl) {
            (_, true) => Some(self.device.open_with_one_nccl_rank()?),
            (None, false) => Some(self.device.open()?),
            (Some(_), false) => None,
        };
        match device {
            Some(device) if device.name() != "cpu" => Ok(BenchDevice { device, cpu: None }),
            _ => {
                let cpu = Cpu::with_isa(self.isa.unwrap_or_else(Isa::detect), self.device.threads);
                Ok(BenchDevice { device: Arc::new(cpu.clone()), cpu: Some(cpu) })
            }
        }
    }
}

/// An open device. The CPU's peak is measured by a function of the CPU, a GPU's by a graph.
struct BenchDevice {
    device: Arc<dyn Device>,
    cpu: Option<Cpu>,
}

/// How long the machine's peak is measured, before and after.
const PEAK_TIME: Duration = Duration::from_millis(400);

/// Runs a function until the time is over, at least five times, after a warm-up; returns the seconds of each run and the
/// peak in FLOP/s.
fn repeat(
    device: &BenchDevice,
    options: &BenchOptions,
    mut run: impl FnMut() -> Result<(), Error>,
) -> Result<(Vec<f64>, f64), Error> {
    let (mut seconds, time) = (Vec::new(), options.time);
    let warm = Instant::now();
    run()?;
    while warm.elapsed() < time / 8 {
        run()?;
    }
    let mut peak = Peak::new(device, options)?;
    let before = peak.flops(PEAK_TIME)?;
    let start = Instant::now();
    while start.elapsed() < time || seconds.len() < 5 {
        let begin = Instant::now();
        run()?;
        seconds.push(begin.elapsed().as_secs_f64());
    }
    Ok((seconds, before.max(peak.flops(PEAK_TIME)?)))
}

/// The value below which this share of the values lies.
pub fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}
