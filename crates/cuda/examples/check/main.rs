//! Correctness and speed of this GPU: the conformance suite in f32, tf32 and bf16, the same bits twice, attention in
//! bf16 in the shapes of real models, then a training step with the time of each operation.
//!
//! `check [MODEL [BATCH]]`; the exit status is 1 if anything was wrong.

mod attention;
mod inference;

use std::collections::{BTreeMap, HashMap};
use std::process::ExitCode;
use std::time::Instant;

use vit_conformance::{Case, cases, check};
use vit_cuda::{Cuda, Precision};
use vit_graph::device::{Device, Elements, Executable};
use vit_graph::{Graph, GraphError, Init};
use vit_models::{Architecture, variant};
use vit_train::{Optimiser, StepOptions, TrainingStep};

const SEEDS: std::ops::Range<u32> = 100..112;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let model = arguments.first().map_or("vit_base_patch16_224", String::as_str);
    let batch = arguments.get(1).and_then(|b| b.parse().ok()).unwrap_or(64);
    match run(model, batch) {
        Ok(0) => {
            println!("PASSED");
            ExitCode::SUCCESS
        }
        Ok(failures) => {
            println!("FAILED: {failures} failures");
            ExitCode::FAILURE
        }
        Err(error) => {
            println!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(model: &str, batch: usize) -> Result<usize, Box<dyn std::error::Error>> {
    for device in vit_cuda::devices()? {
        println!("cuda:{} {device}", device.ordinal);
    }
    let start = Instant::now();
    let exact = Cuda::new(0, Precision::F32)?;
    println!("opened in {:.2} s", start.elapsed().as_secs_f64());
    let mut failures = 0;
    for (precision, tolerance) in [(Precision::F32, 3e-6), (Precision::Tf32, 3e-3), (Precision::Bf16, 2e-2)] {
        failures += agreement(&Cuda::new(0, precision)?, tolerance)?;
    }
    failures += determinism(&exact)?;
    failures += determinism(&Cuda::new(0, Precision::Bf16)?)?;
    failures += attention::check(&Cuda::new(0, Precision::Bf16)?)?;
    let architecture = variant(model).ok_or("there is no such model")?.architecture;
    let step = TrainingStep::new(&architecture, batch, Optimiser::default())?;
    let weights = weights(&step.graph);
    for precision in [Precision::F32, Precision::Tf32, Precision::Bf16] {
        println!("\n{model}, batch {batch}, {precision}");
        failures += training(&Cuda::new(0, precision)?, &step.graph, weights.clone())?;
    }
    failures += recomputing(&Cuda::new(0, Precision::Bf16)?, &architecture, batch, weights)?;
    failures += inference::check(&architecture)?;
    Ok(failures)
}

/// Every case of the suite against the reference.
fn agreement(device: &Cuda, tolerance: f64) -> Result<usize, GraphError> {
    let (mut compared, mut refused, mut wrong, mut failures) = (0, 0, BTreeMap::new(), 0);
    let mut worst = (0.0f64, String::new());
    let start = Instant::now();
    for seed in SEEDS {
        for case in cases(seed)? {
            match check(device, &case) {
                Err(error) if error.to_string().contains("only for the CPU") => refused += 1,
                Err(error) => {
                    failures += 1;
                    wrong.entry(name(&case)).or_insert_with(|| format!("seed {seed}, {}: {error}", case.name));
                }
                Ok(differences) => {
                    for (output, difference) in differences {
                        compared += 1;
                        let text = || format!("seed {seed}, {}: {output} differs by {difference:.1e}", case.name);
                        if difference.is_nan() || difference > tolerance {
                            failures += 1;
                            wrong.entry(name(&case)).or_insert_with(text);
                        } else if difference > worst.0 {
                            worst = (difference, text());
                        }
                    }
                }
            }
        }
    }
    println!(
        "{}: {compared} outputs compared, {failures} wrong, {refused} cases are for the CPU only; {:.1} s",
        device.precision(),
        start.elapsed().as_secs_f64()
    );
    println!("  worst that passed: {}", worst.1);
    wrong.values().for_each(|text| println!("  WRONG {text}"));
    Ok(failures)
}

/// The operation of a case.
fn name(case: &Case) -> String {
    case.name.split(" [").next().unwrap_or_default().to_string()
}

/// The same bits from a plain run and from a captured CUDA graph.
fn determinism(device: &Cuda) -> Result<usize, GraphError> {
    let mut failures = 0;
    for case in cases(7)? {
        match (case.bits(device, 1), case.bits(device, 4)) {
            (Err(error), _) if error.to_string().contains("only for the CPU") => {}
            (first, second) => {
                if first? != second? {
                    failures += 1;
                    println!("  WRONG {}: not the same bits twice: {}", device.precision(), case.name);
                }
            }
        }
    }
    println!("{}: {failures} cases differ between a plain and a captured run", device.precision());
    Ok(failures)
}

/// Training steps of a real model: finite and repeatable losses, the time of a step and of its operations.
fn training(device: &Cuda, graph: &Graph, mut weights: Weights) -> Result<usize, GraphError> {
    let planned = device.plan(graph)?;
    let (_, first) = losses(device, graph, &mut weights)?;
    let (mut executable, second) = losses(device, graph, &mut weights)?;
    let mut failures = usize::from(first.iter().any(|l| !l.is_finite()) || first[4] >= first[0]);
    failures += usize::from(first.iter().map(|l| l.to_bits()).ne(second.iter().map(|l| l.to_bits())));
    let slow = executable.steps().iter().any(|step| step.op == "attention" || step.op == "attention_grad");
    if slow && device.precision() == Precision::Bf16 && device.info().compute_capability.0 == 9 {
        failures += 1;
        println!("  WRONG attention is not computed on tensor cores");
    }
    let bytes = planned.stored_bytes + planned.arena_bytes;
    failures += usize::from(executable.memory_bytes() != bytes);
    println!("losses {first:?}, again {second:?}, {:.2} GB: {failures} wrong", bytes as f64 / 1e9);
    let mut seconds = Vec::new();
    for _ in 0..10 {
        let start = Instant::now();
        executable.run()?;
        executable.wait()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    let median = median(&mut seconds);
    println!("step {:.3} ms", 1e3 * median);
    operations(executable.as_mut(), 10)?;
    Ok(failures)
}

/// Recomputing activations takes less memory and gives the same bits.
fn recomputing(
    device: &Cuda,
    architecture: &Architecture,
    batch: usize,
    mut weights: Weights,
) -> Result<usize, Box<dyn std::error::Error>> {
    let mut found = Vec::new();
    for recompute in [false, true] {
        let step = TrainingStep::new(architecture, batch, StepOptions { recompute, ..StepOptions::default() })?;
        let memory = device.plan(&step.graph)?;
        let (_, losses) = losses(device, &step.graph, &mut weights)?;
        println!("recompute {recompute}: arena of {:.2} GB, losses {losses:?}", memory.arena_bytes as f64 / 1e9);
        found.push((memory.arena_bytes, losses.iter().map(|l| l.to_bits()).collect::<Vec<_>>()));
    }
    let wrong = found[0].1 != found[1].1 || found[1].0 >= found[0].0;
    if wrong {
        println!("  WRONG recomputing changes losses or takes no less memory");
    }
    Ok(usize::from(wrong))
}

type Weights = BTreeMap<String, Vec<f32>>;

/// Initial parameters, generated once, since that takes longer than compiling.
fn weights(graph: &Graph) -> Weights {
    let fill = |p: &vit_graph::ops::Parameter| {
        let mut data = vec![0.0; p.shape.elements()];
        p.init.fill(0, &p.name, &mut data);
        (p.name.clone(), data)
    };
    graph.parameters().map(|(_, p)| fill(p)).collect()
}

/// A fresh executable and the losses of its first five steps on one batch.
fn losses(device: &Cuda, graph: &Graph, weights: &mut Weights) -> Result<(Box<dyn Executable>, Vec<f32>), GraphError> {
    let start = Instant::now();
    let mut executable = device.compile(graph, weights)?;
    println!("compiled in {:.2} s", start.elapsed().as_secs_f64());
    for (_, input) in graph.inputs() {
        let count = input.ty.shape.elements();
        match input.name.as_str() {
            "seed" => executable.write("seed", Elements::I32(&[0; 4]))?,
            "rate" => executable.write("rate", Elements::F32(&[1e-4]))?,
            "step" => executable.write("step", Elements::F32(&[1.0]))?,
            "targets" => {
                let classes = input.ty.shape.last();
                let one_hot: Vec<f32> =
                    (0..count).map(|i| f32::from(u8::from(i % classes == 7 * (i / classes) % classes))).collect();
                executable.write("targets", Elements::F32(&one_hot))?;
            }
            name => {
                let mut noise = vec![0.0; count];
                Init::Normal { std: 1.0 }.fill(0, name, &mut noise);
                executable.write(name, Elements::F32(&noise))?;
            }
        }
    }
    let mut losses = Vec::new();
    for step in 1..=5 {
        executable.write("step", Elements::F32(&[step as f32]))?;
        executable.run()?;
        let mut loss = [0.0];
        executable.read("loss", &mut loss)?;
        losses.push(loss[0]);
    }
    Ok((executable, losses))
}

/// The time of a run's operations by kind and shape, slowest first.
fn operations(executable: &mut dyn Executable, runs: usize) -> Result<(), GraphError> {
    let steps = executable.steps();
    let (mut seconds, mut all) = (vec![0.0; steps.len()], vec![Vec::new(); steps.len()]);
    for _ in 0..runs {
        executable.run_timed(&mut seconds)?;
        all.iter_mut().zip(&seconds).for_each(|(all, &s)| all.push(s));
    }
    let mut groups: HashMap<(String, String), (usize, f64, u64, u64)> = HashMap::new();
    for (step, runs) in steps.iter().zip(&mut all) {
        let group = groups.entry((step.op.clone(), step.shapes.clone())).or_default();
        *group = (group.0 + 1, group.1 + median(runs), group.2 + step.flops, group.3 + step.bytes);
    }
    let total: f64 = groups.values().map(|g| g.1).sum();
    let mut rows: Vec<_> = groups.into_iter().collect();
    rows.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
    println!(
        "{:<22} {:<36} {:>5} {:>9} {:>6} {:>8} {:>7}",
        "operation", "shapes", "count", "ms", "share", "TFLOP/s", "GB/s"
    );
    for ((op, shapes), (count, seconds, flops, bytes)) in rows.iter().take(22) {
        println!(
            "{op:<22} {shapes:<36} {count:>5} {:>9.3} {:>5.1}% {:>8.1} {:>7.0}",
            1e3 * seconds,
            100.0 * seconds / total,
            *flops as f64 / seconds / 1e12,
            *bytes as f64 / seconds / 1e9
        );
    }
    println!("{:.3} ms in all", 1e3 * total);
    Ok(())
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
