//! Steps with recomputed activations: the same losses, gradient norms and weights to the bit, in less memory.

use vit_cpu::Cpu;
use vit_graph::Init;
use vit_graph::device::{Device, Elements, Initial};
use vit_models::{Architecture, variant};
use vit_train::{StepOptions, TrainingStep};

fn model(name: &str, size: usize) -> Architecture {
    let mut architecture = variant(name).unwrap().architecture;
    architecture.set_image_size([size, size]);
    architecture.set_classes(5);
    architecture
}

/// Three steps: their outputs, all parameters afterwards, and the size of a larger batch's arena.
fn train(architecture: &Architecture, options: StepOptions) -> (Vec<u32>, Vec<Vec<u32>>, usize) {
    let step = TrainingStep::new(architecture, 4, options.clone()).unwrap();
    let device = Cpu::new(Some(1));
    let mut executable = device.compile(&step.graph, &mut StepParameters(&step.state)).unwrap();
    for (_, input) in step.graph.inputs() {
        let mut data = vec![1e-3; input.ty.shape.elements()];
        match input.name.as_str() {
            "seed" => executable.write("seed", Elements::I32(&[5, 6, 7, 8])).unwrap(),
            "image" | "targets" => {
                Init::Normal { std: 1.0 }.fill(3, &input.name, &mut data);
                executable.write(&input.name, Elements::F32(&data)).unwrap();
            }
            name => executable.write(name, Elements::F32(&data)).unwrap(),
        }
    }
    let mut reported = Vec::new();
    for number in 1..=3 {
        executable.write("step", Elements::F32(&[number as f32])).unwrap();
        executable.run().unwrap();
        for name in ["loss", "grad_norm"] {
            let mut value = [0.0];
            executable.read(name, &mut value).unwrap();
            assert!(value[0].is_finite());
            reported.push(value[0].to_bits());
        }
    }
    let parameters = step.gradients.iter().map(|(name, _)| {
        let (_, parameter) = step.graph.parameters().find(|(_, p)| p.name == *name).unwrap();
        let mut data = vec![0.0; parameter.shape.elements()];
        executable.read_parameter(name, &mut data).unwrap();
        data.iter().map(|v| v.to_bits()).collect()
    });
    // With a small batch, gradients take most of the memory.
    let large = TrainingStep::new(architecture, 64, options).unwrap().graph;
    (reported, parameters.collect(), device.plan(&large).unwrap().arena_bytes)
}

/// Initial weights, and zeros for the optimiser's state.
struct StepParameters<'a>(&'a [String]);

impl vit_graph::device::Parameters for StepParameters<'_> {
    fn take(&mut self, parameter: &vit_graph::ops::Parameter) -> Option<std::borrow::Cow<'_, [f32]>> {
        if self.0.contains(&parameter.name) {
            return Some(vec![0.0; parameter.shape.elements()].into());
        }
        Initial { seed: 2 }.take(parameter).map(|data| data.into_owned().into())
    }
}

fn same(architecture: &Architecture, options: StepOptions, share: f64) {
    let kept = train(architecture, options.clone());
    let again = train(architecture, StepOptions { recompute: true, ..options });
    assert_eq!(kept.0, again.0);
    assert!(kept.1 == again.1, "weights differ");
    assert!((again.2 as f64) < share * kept.2 as f64, "{} of {} bytes", again.2, kept.2);
}

#[test]
fn a_vit_with_everything_random() {
    let mut architecture = model("vit_tiny_patch16_224", 64);
    architecture.set_drop_path(0.2);
    architecture.set_dropout(0.1);
    same(&architecture, StepOptions::default(), 0.5);
}

#[test]
fn micro_batches_have_blocks_of_their_own() {
    same(&model("vit_tiny_patch16_224", 64), StepOptions { accumulate: 2, ..StepOptions::default() }, 0.7);
}

#[test]
fn a_convnext_with_global_response_norms() {
    same(&model("convnextv2_atto", 32), StepOptions::default(), 1.0);
}

#[test]
fn a_network_with_running_statistics() {
    same(&model("resnet18", 64), StepOptions::default(), 1.0);
}
