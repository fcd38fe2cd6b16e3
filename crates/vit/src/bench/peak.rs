//! The fastest that a processor multiplies and adds.

use std::time::{Duration, Instant};

use vit_cpu::fma_peak;
use vit_cuda::{Cuda, Precision};
use vit_graph::device::{Device, Initial};
use vit_graph::{DType, Init, Tensor};

use super::quantile;
use crate::{Error, Processor};

/// FLOP/s: of a CPU's registers, of a GPU's largest usual matrix product.
pub(super) fn flops(processor: &Processor, time: Duration) -> Result<f64, Error> {
    match processor {
        Processor::Cpu(cpu) => Ok(fma_peak(cpu, time)),
        Processor::Cuda(cuda) => product(cuda, time),
    }
}

fn product(cuda: &Cuda, time: Duration) -> Result<f64, Error> {
    let side = if cuda.precision() == Precision::F32 { 4096 } else { 8192 };
    let x = Tensor::input("x", DType::F32, [side, side]);
    let weight = x.parameter("weight", [side, side], Init::Normal { std: 1.0 });
    let [gamma, beta] =
        [("gamma", 1.0), ("beta", 0.0)].map(|(name, start)| x.parameter(name, [side], Init::Constant(start)));
    // Several products in a row: the first also converts the input, the others show what the units can do. The norms keep
    // numbers in a range, which eight bits need.
    let layer = |x: &Tensor| x.layer_norm(&gamma, &beta, 1e-6).linear(&weight, None);
    layer(&layer(&layer(&x))).output("y");
    let mut executable = cuda.compile(&x.finish()?, &mut Initial { seed: 0 })?;
    let steps = executable.steps();
    let (mut seconds, mut fastest, start) = (vec![0.0; steps.len()], Vec::new(), Instant::now());
    while start.elapsed() < time || fastest.len() < 3 {
        executable.run_timed(&mut seconds)?;
        let products = steps.iter().zip(&seconds).filter(|(step, _)| step.flops > 0);
        fastest.push(products.map(|(_, &seconds)| seconds).fold(f64::INFINITY, f64::min));
    }
    Ok(2.0 * (side as f64).powi(3) / quantile(&fastest, 0.5))
}
