//! A whole model on a GPU against the CPU: losses and gradient norms step by step, and logits.

use vit_cpu::Cpu;
use vit_cuda::{Cuda, Precision};
use vit_graph::device::{Device, Elements, Executable, Initial};
use vit_graph::{Graph, Init};
use vit_models::{Architecture, Mode, variant};
use vit_train::{Optimiser, StepOptions, TrainingStep};

fn architecture() -> Architecture {
    let mut architecture = variant("vit_tiny_patch16_224").unwrap().architecture;
    architecture.set_image_size([48, 32]);
    architecture.set_classes(13);
    architecture
}

fn executable(device: &dyn Device, graph: &Graph) -> Box<dyn Executable> {
    let mut executable = device.compile(graph, &mut Initial { seed: 1 }).unwrap();
    for (_, input) in graph.inputs() {
        let count = input.ty.shape.elements();
        match input.name.as_str() {
            "seed" => executable.write("seed", Elements::I32(&[1, 2, 3, 0])).unwrap(),
            "rate" => executable.write("rate", Elements::F32(&[1e-3])).unwrap(),
            "targets" => {
                let one_hot: Vec<f32> = (0..count).map(|i| f32::from(u8::from(i % 13 == i / 13 * 5 % 13))).collect();
                executable.write("targets", Elements::F32(&one_hot)).unwrap();
            }
            name => {
                let mut noise = vec![1.0; count];
                Init::Normal { std: 1.0 }.fill(0, name, &mut noise);
                executable.write(name, Elements::F32(&noise)).unwrap();
            }
        }
    }
    executable
}

fn scalar(executable: &dyn Executable, name: &str) -> f64 {
    let mut value = [0.0];
    executable.read(name, &mut value).unwrap();
    value[0].into()
}

fn close(precision: Precision, what: &str, expected: f64, found: f64, tolerance: f64) {
    let difference = (expected - found).abs() / (1.0 + expected.abs());
    assert!(difference <= tolerance, "{precision}, {what}: {expected} on the CPU, {found} on the GPU");
}

#[test]
fn training_on_the_gpu_follows_the_cpu() {
    for (precision, tolerance) in [(Precision::F32, 2e-5), (Precision::Bf16, 3e-2)] {
        let device = match Cuda::new(0, precision) {
            Ok(device) => device,
            Err(reason) => return eprintln!("skipped: {reason}"),
        };
        let mut architecture = architecture();
        architecture.set_drop_path(0.3);
        let graph = TrainingStep::new(&architecture, 2, Optimiser::default()).unwrap().graph;
        let (mut cpu, mut gpu) = (executable(&Cpu::new(Some(1)), &graph), executable(&device, &graph));
        for step in 1..=4 {
            for executable in [&mut cpu, &mut gpu] {
                executable.write("step", Elements::F32(&[step as f32])).unwrap();
                executable.run().unwrap();
            }
            for what in ["loss", "grad_norm"] {
                let (expected, found) = (scalar(cpu.as_ref(), what), scalar(gpu.as_ref(), what));
                close(precision, &format!("{what} of step {step}"), expected, found, tolerance);
            }
        }
        let planned = device.plan(&graph).unwrap();
        assert_eq!(gpu.memory_bytes(), planned.stored_bytes + planned.arena_bytes);
    }
}

#[test]
fn scalars_are_read_back_while_the_next_run_is_under_way() {
    let device = match Cuda::new(0, Precision::F32) {
        Ok(device) => device,
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    let graph = TrainingStep::new(&architecture(), 2, Optimiser::default()).unwrap().graph;
    let [mut one_by_one, mut ahead] = [(); 2].map(|()| executable(&device, &graph));
    let (names, mut expected) = (["loss", "grad_norm"], Vec::new());
    for step in 1..=5 {
        one_by_one.write("step", Elements::F32(&[step as f32])).unwrap();
        one_by_one.run().unwrap();
        expected.push(names.map(|name| scalar(one_by_one.as_ref(), name)));
    }
    assert!(expected.windows(2).all(|pair| pair[0] != pair[1]), "steps differ: {expected:?}");
    let mut found = Vec::new();
    let mut collect = |ahead: &mut dyn Executable| {
        let mut values = [0.0; 2];
        ahead.collect(&mut values).unwrap();
        found.push(values.map(f64::from));
    };
    for step in 1..=5 {
        ahead.write("step", Elements::F32(&[step as f32])).unwrap();
        ahead.run().unwrap();
        ahead.read_async(&names).unwrap();
        if step > 1 {
            collect(ahead.as_mut());
        }
    }
    collect(ahead.as_mut());
    assert_eq!(found, expected);
    assert!(ahead.collect(&mut [0.0; 2]).is_err());
    assert!(ahead.read_async(&["logits"]).is_err());
    (0..2).for_each(|_| ahead.read_async(&names).unwrap());
    assert!(ahead.read_async(&names).is_err());
}

#[test]
fn recomputing_takes_less_memory_and_changes_no_bit() {
    for precision in [Precision::F32, Precision::Bf16] {
        let device = match Cuda::new(0, precision) {
            Ok(device) => device,
            Err(reason) => return eprintln!("skipped: {reason}"),
        };
        let mut found = Vec::new();
        for recompute in [false, true] {
            let options = StepOptions { recompute, ..StepOptions::default() };
            let graph = TrainingStep::new(&architecture(), 4, options.clone()).unwrap().graph;
            let mut gpu = executable(&device, &graph);
            let values: Vec<f64> = (1..=4)
                .flat_map(|step| {
                    gpu.write("step", Elements::F32(&[step as f32])).unwrap();
                    gpu.run().unwrap();
                    ["loss", "grad_norm"].map(|name| scalar(gpu.as_ref(), name))
                })
                .collect();
            // With a small batch, gradients take most of the memory.
            let large = TrainingStep::new(&architecture(), 64, options).unwrap().graph;
            found.push((values, device.plan(&large).unwrap().arena_bytes));
        }
        assert_eq!(found[0].0, found[1].0, "{precision}");
        assert!(found[1].1 < found[0].1, "{precision}: {} of {} bytes", found[1].1, found[0].1);
    }
}

#[test]
fn logits_on_the_gpu_agree_with_the_cpu() {
    for (precision, tolerance) in
        [(Precision::F32, 2e-6), (Precision::Bf16, 2e-2), (Precision::F16, 3e-3), (Precision::Fp8, 1e-1)]
    {
        let device = match Cuda::new(0, precision) {
            Ok(device) => device,
            Err(reason) => return eprintln!("skipped: {reason}"),
        };
        let graph = architecture().build(3, Mode::Inference).unwrap();
        let (mut cpu, mut gpu) = (executable(&Cpu::new(Some(1)), &graph), executable(&device, &graph));
        let (mut expected, mut found) = (vec![0.0; 39], vec![0.0; 39]);
        cpu.run().unwrap();
        cpu.read("logits", &mut expected).unwrap();
        for run in 0..3 {
            gpu.run().unwrap();
            gpu.read("logits", &mut found).unwrap();
            for (e, f) in expected.iter().zip(&found) {
                close(precision, &format!("logits of run {run}"), (*e).into(), (*f).into(), tolerance);
            }
        }
    }
}
