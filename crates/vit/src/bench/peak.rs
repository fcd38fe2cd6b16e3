//! The fastest that a processor multiplies and adds.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use vit_cpu::{Cpu, fma_peak};
use vit_cuda::{Cuda, Precision};
use vit_graph::device::{Device, Elements, Executable};
use vit_graph::{DType, Init, Tensor};

use super::quantile;
use crate::{Error, Processor};

/// What is measured: a CPU's registers, or a GPU's largest usual matrix product.
pub(super) enum Peak {
    Registers(Cpu),
    Product { executable: Box<dyn Executable>, side: usize },
}

impl Peak {
    pub fn new(processor: &Processor) -> Result<Self, Error> {
        match processor {
            Processor::Cpu(cpu) => Ok(Peak::Registers(cpu.clone())),
            Processor::Cuda(cuda) => Self::product(cuda),
        }
    }

    fn product(cuda: &Cuda) -> Result<Self, Error> {
        let side = if cuda.precision() == Precision::F32 { 4096 } else { 8192 };
        let x = Tensor::input("x", DType::F32, [side, side]);
        let [weight, gamma, beta] = [("weight", vec![side, side]), ("gamma", vec![side]), ("beta", vec![side])]
            .map(|(name, shape)| x.parameter(name, shape, Init::Zeros));
        // Several products in a row: the first also converts the input, the others show what the units can do. The norms
        // keep numbers in a range, which eight bits need.
        let layer = |x: &Tensor| x.layer_norm(&gamma, &beta, 1e-6).linear(&weight, None);
        layer(&layer(&layer(&x))).output("y");
        let mut row = vec![0.0; side];
        Init::Normal { std: 1.0 }.fill(0, "row", &mut row);
        // Zeros would need less power than numbers do.
        let noise: Vec<f32> = (0..side * side).map(|i| row[(i % side * 3 + i / side * 7) % side]).collect();
        let mut parameters = BTreeMap::from([("weight".to_string(), noise)]);
        parameters.extend([("gamma", 1.0), ("beta", 0.0)].map(|(name, start)| (name.to_string(), vec![start; side])));
        let mut executable = cuda.compile(&x.finish()?, &mut parameters)?;
        executable.write("x", Elements::F32(&parameters["weight"]))?;
        Ok(Peak::Product { executable, side })
    }

    /// FLOP/s, measured for this long.
    pub fn flops(&mut self, time: Duration) -> Result<f64, Error> {
        let (executable, side) = match self {
            Peak::Registers(cpu) => return Ok(fma_peak(cpu, time)),
            Peak::Product { executable, side } => (executable, *side),
        };
        let steps = executable.steps();
        let (mut seconds, mut fastest, start) = (vec![0.0; steps.len()], Vec::new(), Instant::now());
        while start.elapsed() < time || fastest.len() < 3 {
            executable.run_timed(&mut seconds)?;
            let products = steps.iter().zip(&seconds).filter(|(step, _)| step.flops > 0);
            fastest.push(products.map(|(_, &seconds)| seconds).fold(f64::INFINITY, f64::min));
        }
        Ok(2.0 * (side as f64).powi(3) / quantile(&fastest, 0.5))
    }
}
