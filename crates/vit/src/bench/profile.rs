//! The time of every step of a run: by operation, by layer, and as a trace for a viewer.

use std::time::Instant;

use serde_json::{Value, json};
use vit_graph::device::{Initial, StepInfo};

use super::peak::Peak;
use super::steps::{fill_inputs, inference_graph, training_graph};
use super::{BenchOptions, PEAK_TIME, quantile};
use crate::Error;

/// The steps of a run with their times. A step runs the kernels of one node of the rewritten graph, or of several that
/// the device fused.
#[derive(Debug, Clone, PartialEq)]
pub struct Profile {
    /// The steps in the order in which they run.
    pub steps: Vec<ProfiledStep>,
    /// Runs measured.
    pub runs: usize,
    /// The measured peak of the machine in GFLOP/s.
    pub peak_gflops: f64,
}

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfiledStep {
    /// What it computes.
    pub info: StepInfo,
    /// Its median time in seconds.
    pub seconds: f64,
}

/// Steps that belong together.
#[derive(Debug, Clone, PartialEq)]
pub struct ProfileRow {
    /// What they have in common: operation and shapes, or the layer.
    pub name: String,
    /// The shapes of the operands; empty for a layer.
    pub shapes: String,
    /// How many steps of a run.
    pub count: usize,
    /// Milliseconds of all of them: the sum of their medians.
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

/// Times every step of the forward pass, or of a training step.
pub fn profile(options: &BenchOptions, training: bool) -> Result<Profile, Error> {
    let graph = if training { training_graph(options)? } else { inference_graph(options)? };
    let opened = options.open()?;
    let mut executable = opened.device.compile(&graph, &mut Initial { seed: 0 })?;
    fill_inputs(&graph, executable.as_mut())?;
    let steps = executable.steps();
    let mut seconds = vec![0.0; steps.len()];
    executable.run_timed(&mut seconds)?;
    let (mut all, mut runs, start) = (vec![Vec::new(); steps.len()], 0, Instant::now());
    while start.elapsed() < options.time || runs < 5 {
        executable.run_timed(&mut seconds)?;
        all.iter_mut().zip(&seconds).for_each(|(all, &s)| all.push(s));
        runs += 1;
    }
    let peak = Peak::new(&opened, options)?.flops(PEAK_TIME)?;
    let steps =
        steps.into_iter().zip(&all).map(|(info, times)| ProfiledStep { info, seconds: quantile(times, 0.5) }).collect();
    Ok(Profile { steps, runs, peak_gflops: peak / 1e9 })
}

impl Profile {
    /// The time of a run: the sum of the steps' medians.
    pub fn total_ms(&self) -> f64 {
        1e3 * self.steps.iter().map(|step| step.seconds).sum::<f64>()
    }

    /// Every operation at every shape, the slowest first.
    pub fn by_operation(&self) -> Vec<ProfileRow> {
        let mut rows = self.grouped(|info| (info.op.clone(), info.shapes.clone()));
        rows.sort_by(|a, b| b.ms.total_cmp(&a.ms));
        rows
    }

    /// Every layer, in the order of the run.
    pub fn by_layer(&self) -> Vec<ProfileRow> {
        self.grouped(|info| (layer(&info.scope), String::new()))
    }

    /// The run as a trace in the format of Chrome's `about:tracing`, which Perfetto also reads: a bar for every layer and,
    /// below it, one for every step, end to end.
    pub fn chrome_trace(&self) -> Value {
        let event = |name: &str, start: f64, end: f64, arguments: Value| {
            json!({
                "name": name, "ph": "X", "pid": 1, "tid": 1, "ts": 1e6 * start, "dur": 1e6 * (end - start),
                "args": arguments,
            })
        };
        let (mut events, mut now) = (Vec::new(), 0.0);
        let same_layer = |a: &ProfiledStep, b: &ProfiledStep| layer(&a.info.scope) == layer(&b.info.scope);
        for steps in self.steps.chunk_by(same_layer) {
            let (start, at) = (now, events.len());
            for ProfiledStep { info, seconds } in steps {
                let arguments = json!({
                    "scope": info.scope, "shapes": info.shapes, "flops": info.flops, "bytes": info.bytes,
                });
                events.push(event(&info.op, now, now + seconds, arguments));
                now += seconds;
            }
            events.insert(at, event(&layer(&steps[0].info.scope), start, now, json!({})));
        }
        json!({ "traceEvents": events, "displayTimeUnit": "ms" })
    }

    fn grouped(&self, key: impl Fn(&StepInfo) -> (String, String)) -> Vec<ProfileRow> {
        let total = self.total_ms();
        let mut groups: Vec<((String, String), Vec<&ProfiledStep>)> = Vec::new();
        for step in &self.steps {
            let key = key(&step.info);
            match groups.iter_mut().find(|(other, _)| *other == key) {
                Some((_, steps)) => steps.push(step),
                None => groups.push((key, vec![step])),
            }
        }
        let row = |((name, shapes), steps): ((String, String), Vec<&ProfiledStep>)| {
            let seconds: f64 = steps.iter().map(|step| step.seconds).sum();
            let sum = |of: fn(&StepInfo) -> u64| steps.iter().map(|step| of(&step.info)).sum::<u64>() as f64;
            // A step that is too short for the clock has no rate.
            let rate = |amount: f64| if seconds > 0.0 { amount / seconds / 1e9 } else { 0.0 };
            let gflops = rate(sum(|info| info.flops));
            ProfileRow {
                name,
                shapes,
                count: steps.len(),
                ms: 1e3 * seconds,
                share: 1e3 * seconds / total,
                gflops,
                peak_share: gflops / self.peak_gflops,
                gbytes: rate(sum(|info| info.bytes)),
            }
        };
        groups.into_iter().map(row).collect()
    }
}

/// The layer of a scope: up to its last number (`stages.1.blocks.0` of `stages.1.blocks.0.attn.qkv`), or the first name
/// where there is none. A phase other than forward is in front, as in `backward.blocks.3`.
fn layer(scope: &str) -> String {
    let names: Vec<&str> = scope.split('.').collect();
    let phase = usize::from(matches!(names[0], "backward" | "recompute" | "update"));
    let last_number = names.iter().rposition(|name| name.parse::<usize>().is_ok());
    let end = last_number.map_or((phase + 1).min(names.len()), |at| at + 1);
    match names[..end].join(".") {
        whole if whole.is_empty() => "the model".into(),
        layer => layer,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(op: &str, scope: &str, seconds: f64) -> ProfiledStep {
        let info = StepInfo { op: op.into(), shapes: "[2]".into(), scope: scope.into(), flops: 8_000_000, bytes: 4 };
        ProfiledStep { info, seconds }
    }

    fn three_steps() -> Profile {
        let steps = vec![
            step("linear", "patch_embed", 0.001),
            step("norm", "blocks.0.norm1", 0.002),
            step("linear", "blocks.0.mlp.fc1", 0.005),
        ];
        Profile { steps, runs: 1, peak_gflops: 16.0 }
    }

    #[test]
    fn layers_end_at_the_last_number() {
        let layers = ["stages.1.blocks.0.attn.qkv", "patch_embed.proj", "backward.blocks.3.attn", "update.head", ""];
        let expected = ["stages.1.blocks.0", "patch_embed", "backward.blocks.3", "update.head", "the model"];
        assert_eq!(layers.map(layer), expected);
    }

    #[test]
    fn rows_add_times_and_rates() {
        let rows = three_steps().by_operation();
        assert_eq!((rows[0].name.as_str(), rows[0].count), ("linear", 2));
        // 16 MFLOP in 6 ms of 8.
        assert!((rows[0].ms - 6.0).abs() < 1e-9 && (rows[0].share - 0.75).abs() < 1e-9);
        assert!((rows[0].gflops - 16.0 / 6.0).abs() < 1e-9 && (rows[0].peak_share - 1.0 / 6.0).abs() < 1e-9);
        let layers: Vec<(String, usize)> =
            three_steps().by_layer().into_iter().map(|row| (row.name, row.count)).collect();
        assert_eq!(layers, [("patch_embed".into(), 1), ("blocks.0".into(), 2)]);
    }

    #[test]
    fn a_trace_has_steps_end_to_end_inside_their_layers() {
        let trace = three_steps().chrome_trace();
        let bars: Vec<(&str, f64, f64)> = trace["traceEvents"]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| (e["name"].as_str().unwrap(), e["ts"].as_f64().unwrap(), e["dur"].as_f64().unwrap()))
            .collect();
        let names: Vec<&str> = bars.iter().map(|bar| bar.0).collect();
        assert_eq!(names, ["patch_embed", "linear", "blocks.0", "norm", "linear"]);
        let close = |a: f64, b: f64| (a - b).abs() < 1e-6;
        assert!(close(bars[2].1, 1000.0) && close(bars[2].2, 7000.0));
        assert!(close(bars[4].1, 3000.0) && close(bars[4].2, 5000.0));
    }
}
