//! The forward pass in every precision against f32: the error of the logits, and the same bits in two runs.

use vit_cuda::{Cuda, Precision};
use vit_graph::device::{Device, Elements, Initial};
use vit_graph::rewrite::eliminate_dead_code;
use vit_graph::{Graph, GraphError, Init};
use vit_models::{Architecture, Mode};

/// The largest error in standard deviations of the f32 logits.
const TOLERANCES: [(Precision, f64); 4] =
    [(Precision::Tf32, 5e-3), (Precision::Bf16, 1e-1), (Precision::F16, 2e-2), (Precision::Fp8, 1.0)];

pub fn check(architecture: &Architecture) -> Result<usize, GraphError> {
    let mut graph = architecture.build(8, Mode::Inference)?;
    graph.retain_outputs(|name| name == "logits");
    let graph = eliminate_dead_code(&graph)?;
    let exact = logits(&Cuda::new(0, Precision::F32).map_err(unavailable)?, &graph, 1)?;
    let mean = exact.iter().sum::<f64>() / exact.len() as f64;
    let deviation = (exact.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / exact.len() as f64).sqrt();
    let mut failures = 0;
    for (precision, tolerance) in TOLERANCES {
        let device = Cuda::new(0, precision).map_err(unavailable)?;
        let (found, again) = (logits(&device, &graph, 1)?, logits(&device, &graph, 3)?);
        let errors: Vec<f64> = exact.iter().zip(&found).map(|(a, b)| (a - b).abs() / deviation).collect();
        let largest = errors.iter().fold(0.0, |m: f64, e| m.max(*e));
        let mean = (errors.iter().map(|e| e * e).sum::<f64>() / errors.len() as f64).sqrt();
        let near = errors.iter().all(|error| *error <= tolerance);
        let wrong = !near || found != again;
        failures += usize::from(wrong);
        println!(
            "inference in {precision}: logits off by {mean:.1e} of their deviation (root mean square), {largest:.1e} at \
             most; {}",
            if wrong { "WRONG" } else { "the same bits twice" }
        );
    }
    Ok(failures)
}

fn unavailable(reason: vit_cuda::Unavailable) -> GraphError {
    GraphError::device("cuda", reason.to_string())
}

/// The logits of the last of several runs on noise, with initial weights.
fn logits(device: &Cuda, graph: &Graph, runs: usize) -> Result<Vec<f64>, GraphError> {
    let mut executable = device.compile(graph, &mut Initial { seed: 0 })?;
    for (_, input) in graph.inputs() {
        let mut noise = vec![0.0; input.ty.shape.elements()];
        Init::Normal { std: 1.0 }.fill(0, &input.name, &mut noise);
        executable.write(&input.name, Elements::F32(&noise))?;
    }
    for _ in 0..runs {
        executable.run()?;
    }
    let mut found = vec![0.0; graph.shape(graph.output("logits")?).elements()];
    executable.read("logits", &mut found)?;
    Ok(found.into_iter().map(f64::from).collect())
}
