//! The peak of a device in FLOP/s.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use vit_cpu::{Cpu, measure_peak_flops};
use vit_graph::device::{Device, Elements, Executable};
use vit_graph::{DType, Init, Precision, Tensor};

use super::{BenchDevice, BenchOptions, quantile};
use crate::Error;

/// The measurement: multiply-adds in registers on a CPU, a large matrix product on a GPU.
pub(super) enum Peak {
    Registers(Cpu),
    Product { executable: Box<dyn Executable>, side: usize },
}

impl Peak {
    pub fn new(opened: &BenchDevice, options: &BenchOptions) -> Result<Self, Error> {
        match &opened.cpu {
            Some(cpu) => Ok(Peak::Registers(cpu.clone())),
            None => Self::product(opened.device.as_ref(), options.device.precision),
        }
    }

    fn product(device: &dyn Device, precision: Precision) -> Result<Self, Error> {
        let side = if precision == Precision::F32 { 4096 } else { 8192 };
        let x = Tensor::input("x", DType::F32, [side, side]);
        let [weight, gamma, beta] = [("weight", vec![side, side]), ("gamma", vec![side]), ("beta", vec![side])]
            .map(|(name, shape)| x.parameter(name, shape, Init::Zeros));
        // Several products in a row: the first also converts the input, the others run at full rate. The norms keep
        // values in the range of fp8.
        let layer = |x: &Tensor| x.layer_norm(&gamma, &beta, 1e-6).linear(&weight, None);
        layer(&layer(&layer(&x))).output("y");
        let mut row = vec![0.0; side];
        Init::Normal { std: 1.0 }.fill(0, "row", &mut row);
        // Noise, since zeros draw less power and so allow higher clocks.
        let noise: Vec<f32> = (0..side * side).map(|i| row[(i % side * 3 + i / side * 7) % side]).collect();
        let mut parameters = BTreeMap::from([("weight".to_string(), noise)]);
        parameters.extend([("gamma", 1.0), ("beta", 0.0)].map(|(name, start)| (name.to_string(), vec![start; side])));
        let mut executable = device.compile(&x.finish()?, &mut parameters)?;
        executable.write("x", Elements::F32(&parameters["weight"]))?;
        Ok(Peak::Product { executable, side })
    }

    /// FLOP/s, measured for this long.
    pub fn flops(&mut self, time: Duration) -> Result<f64, Error> {
        let (executable, side) = match self {
            Peak::Registers(cpu) => return Ok(measure_peak_flops(cpu, time)),
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
