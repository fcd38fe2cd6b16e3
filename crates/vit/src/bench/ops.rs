//! The time of every distinct operation of a model.

use std::collections::HashMap;
use std::time::Instant;

use vit_graph::device::Initial;

use super::peak::Peak;
use super::steps::{fill_inputs, inference_graph, training_graph};
use super::{BenchOptions, PEAK_TIME, quantile};
use crate::Error;

/// One operation at one shape.
#[derive(Debug, Clone, PartialEq)]
pub struct OpMeasurement {
    /// The operation, with those fused into it.
    pub op: String,
    /// Its shapes.
    pub shapes: String,
    /// How often it occurs in a run.
    pub count: usize,
    /// Milliseconds of all occurrences in one run: the sum of their medians.
    pub ms: f64,
    /// The share of the run's time.
    pub share: f64,
    /// GFLOP/s; 0 without matrix products.
    pub gflops: f64,
    /// The share of the machine's peak that is reached.
    pub peak_share: f64,
    /// GB/s, each operand counted once.
    pub gbytes: f64,
}

/// Times every operation of the forward pass, or of a training step; the slowest first.
pub fn ops(options: &BenchOptions, training: bool) -> Result<Vec<OpMeasurement>, Error> {
    let graph = if training { training_graph(options)? } else { inference_graph(options)? };
    let opened = options.open()?;
    let mut executable = opened.device.compile(&graph, &mut Initial { seed: 0 })?;
    fill_inputs(&graph, executable.as_mut())?;
    let steps = executable.steps();
    let mut seconds = vec![0.0; steps.len()];
    executable.run_timed(&mut seconds)?;
    let (mut all, start) = (vec![Vec::new(); steps.len()], Instant::now());
    while start.elapsed() < options.time || all[0].len() < 5 {
        executable.run_timed(&mut seconds)?;
        all.iter_mut().zip(&seconds).for_each(|(all, &s)| all.push(s));
    }
    let peak = Peak::new(&opened, options)?.flops(PEAK_TIME)?;
    let medians: Vec<f64> = all.iter().map(|runs| quantile(runs, 0.5)).collect();
    let total: f64 = medians.iter().sum();
    let mut groups: HashMap<(String, String), (usize, f64, u64, u64)> = HashMap::new();
    for (step, median) in steps.iter().zip(&medians) {
        let group = groups.entry((step.op.clone(), step.shapes.clone())).or_default();
        *group = (group.0 + 1, group.1 + median, group.2 + step.flops, group.3 + step.bytes);
    }
    let mut table: Vec<OpMeasurement> = groups
        .into_iter()
        .map(|((op, shapes), (count, seconds, flops, bytes))| OpMeasurement {
            op,
            shapes,
            count,
            ms: 1e3 * seconds,
            share: seconds / total,
            gflops: flops as f64 / seconds / 1e9,
            peak_share: flops as f64 / seconds / peak,
            gbytes: bytes as f64 / seconds / 1e9,
        })
        .collect();
    table.sort_by(|a, b| b.ms.total_cmp(&a.ms));
    Ok(table)
}
