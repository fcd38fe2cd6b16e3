//! Measurements: how fast a model runs, what in it takes the time, and how fast pictures are loaded.
//!
//! Every figure of a run is a median over repeated runs, beside the fastest that the machine multiplies and adds, which
//! is measured before and after.

mod data;
mod ops;
mod peak;
mod steps;

pub use data::{DataMeasurement, data};
pub use ops::{OpMeasurement, ops};
pub use steps::{Measurement, infer, train};

use std::time::{Duration, Instant};

use vit_cpu::Cpu;
pub use vit_cpu::Isa;
use vit_models::Architecture;

use crate::{DeviceChoice, Error, Precision, Processor, config_of};
use peak::Peak;

/// What to measure.
#[derive(Debug, Clone)]
pub struct BenchOptions {
    /// A model's name, a checkpoint or a run. Weights are random: they do not change the time.
    pub model: String,
    /// Pictures at once.
    pub batch: usize,
    /// Another image size.
    pub image_size: Option<[usize; 2]>,
    /// The processor.
    pub device: DeviceChoice,
    /// Threads of the CPU.
    pub threads: Option<usize>,
    /// The CPU's instructions, where not the best are meant.
    pub isa: Option<Isa>,
    /// How precisely to compute, in inference.
    pub precision: Precision,
    /// How long to measure.
    pub time: Duration,
    /// In training, compute activations again in the backward pass instead of keeping them.
    pub recompute: bool,
}

impl BenchOptions {
    fn architecture(&self) -> Result<Architecture, Error> {
        let mut architecture = config_of(&self.model)?.architecture;
        if let Some(size) = self.image_size {
            architecture.set_image_size(size);
        }
        Ok(architecture)
    }

    fn processor(&self) -> Result<Processor, Error> {
        match self.isa {
            Some(isa) if !isa.is_available() => Err(Error::Unsuitable(format!("this CPU has no {isa}"))),
            // Whoever names instructions of the CPU means the CPU.
            Some(isa) => Ok(Processor::Cpu(Cpu::with_isa(isa, self.threads))),
            None => Processor::open(self.device, self.precision, self.threads),
        }
    }
}

/// How long one of the two looks at the machine's peak takes.
const PEAK_TIME: Duration = Duration::from_millis(400);

/// Runs something until the time is over, at least a few times, after warming up; gives the seconds of each run and
/// the peak around them in FLOP/s.
fn repeat(
    processor: &Processor,
    time: Duration,
    mut run: impl FnMut() -> Result<(), Error>,
) -> Result<(Vec<f64>, f64), Error> {
    let mut seconds = Vec::new();
    let warm = Instant::now();
    run()?;
    while warm.elapsed() < time / 8 {
        run()?;
    }
    let mut peak = Peak::new(processor)?;
    let before = peak.flops(PEAK_TIME)?;
    let start = Instant::now();
    while start.elapsed() < time || seconds.len() < 5 {
        let begin = Instant::now();
        run()?;
        seconds.push(begin.elapsed().as_secs_f64());
    }
    Ok((seconds, before.max(peak.flops(PEAK_TIME)?)))
}

/// The value below which a share of the others lie.
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[((sorted.len() - 1) as f64 * share).round() as usize]
}
