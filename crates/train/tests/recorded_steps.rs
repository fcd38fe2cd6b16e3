//! Five AdamW steps recorded from timm and PyTorch, replayed: losses, gradient norms, every gradient of the first step,
//! and the final weights.

use std::path::{Path, PathBuf};

use vit_cpu::{Cpu, Isa};
use vit_graph::device::{Device, Elements};
use vit_models::weights::safetensors;
use vit_models::{Checkpoint, OpenOptions};
use vit_train::{DecayOn, Optimiser, StepParameters, TrainingStep};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/train_step")
}

fn largest(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |m, d| if d.is_nan() || d > m { d } else { m })
}

#[test]
fn five_steps_of_adamw_end_where_pytorch_ends() {
    let io = safetensors::read(&folder().join("io.safetensors")).unwrap();
    let last = safetensors::read(&folder().join("final.safetensors")).unwrap();
    let weights = folder().join("model.safetensors");
    let options = OpenOptions { weights: Some(&weights), ..OpenOptions::default() };
    let checkpoint = Checkpoint::open(&folder(), options).unwrap();
    let classes = checkpoint.config.architecture.classes();
    let images = &io.tensors["images"];
    let (steps, batch) = (images.shape[0], images.shape[1]);

    // The recording has weight decay on tokens and positions, too.
    let optimiser = Optimiser { decay_on: DecayOn::Matrices, ..Optimiser::default() };
    let mut step = TrainingStep::new(&checkpoint.config.architecture, batch, optimiser).unwrap();
    for (name, gradient) in step.gradients.clone() {
        step.graph.set_output(&format!("grad.{name}"), gradient).unwrap();
    }
    for (isa, threads) in Isa::available().into_iter().zip([2, 1, 3, 2]) {
        let device = Cpu::with_isa(isa, Some(threads));
        let mut weights = checkpoint.weights.clone();
        let mut start = StepParameters { model: &mut weights, state: &step.state };
        let mut executable = device.compile(&step.graph, &mut start).unwrap();
        for s in 0..steps {
            let size = images.data.len() / steps;
            let smoothing = 0.1;
            let labels = &io.tensors["labels"].data[s * batch..][..batch];
            let targets: Vec<f32> = (0..batch * classes)
                .map(|i| {
                    let off = smoothing / classes as f32;
                    if labels[i / classes] as usize == i % classes { 1.0 - smoothing + off } else { off }
                })
                .collect();
            executable.write("image", Elements::F32(&images.data[s * size..][..size])).unwrap();
            executable.write("targets", Elements::F32(&targets)).unwrap();
            executable.write("rate", Elements::F32(&[1e-3])).unwrap();
            executable.write("step", Elements::F32(&[(s + 1) as f32])).unwrap();
            executable.run().unwrap();
            for (output, recorded, tolerance) in [("loss", "loss", 1e-5), ("grad_norm", "grad_norm", 1e-4)] {
                let mut found = [0.0];
                executable.read(output, &mut found).unwrap();
                let expected = io.tensors[recorded].data[s];
                assert!((found[0] - expected).abs() <= tolerance, "{isa}, step {s}: {output} {} {expected}", found[0]);
            }
            if s == 0 {
                for (name, _) in &step.gradients {
                    let expected = &io.tensors[&format!("grad.{name}")];
                    let mut found = vec![0.0; expected.data.len()];
                    executable.read(&format!("grad.{name}"), &mut found).unwrap();
                    let difference = largest(&found, &expected.data);
                    assert!(difference <= 1e-5, "{isa}: the gradient of {name} differs by {difference:e}");
                }
            }
        }
        for (name, expected) in &last.tensors {
            let mut found = vec![0.0; expected.data.len()];
            executable.read_parameter(name, &mut found).unwrap();
            let mut expected = expected.data.clone();
            if name.ends_with("attn.qkv.bias") {
                // The gradient of a key's bias is rounding error, which Adam magnifies.
                let dim = expected.len() / 3;
                expected[dim..2 * dim].copy_from_slice(&found[dim..2 * dim]);
            }
            let difference = largest(&found, &expected);
            assert!(difference <= 1e-4, "{isa}: {name} ends {difference:e} away");
        }
    }
}
