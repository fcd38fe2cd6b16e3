//! Training steps: micro-batches give the same gradients, frozen parameters have no backward pass, averages follow the
//! weights, and steps that are not finite change nothing and are explained.

use std::collections::BTreeMap;

use vit_cpu::Cpu;
use vit_data::loader::BatchParts;
use vit_graph::device::{Device, Elements, Executable, Memory};
use vit_graph::ops::Operation;
use vit_graph::ops::{Op, Parameter};
use vit_graph::{Graph, Init, Phase};
use vit_models::Architecture;
use vit_models::resnet::{ResNet, ResNetBlock};
use vit_models::vit::Vit;
use vit_train::{
    Average, Distillation, Freeze, Loss, Objective, Optimiser, OptimiserMethod, Sharding, StepError, StepOptions,
    StepParameters, TrainingStep, first_non_finite,
};

const BATCH: usize = 6;
const CLASSES: usize = 5;

fn model() -> Vit {
    Vit {
        image_size: [16, 16],
        patch_size: [8, 8],
        classes: CLASSES,
        dim: 24,
        depth: 2,
        heads: 3,
        mlp_dim: 40,
        ..Vit::default()
    }
}

/// Random values for every parameter of the model, so that no gradient is zero.
fn parameters(graph: &Graph, state: &[String]) -> BTreeMap<String, Vec<f32>> {
    let fill = |p: &Parameter| {
        let mut data = vec![0.0; p.shape.elements()];
        Init::Normal { std: 0.3 }.fill(5, &p.name, &mut data);
        (p.name.clone(), data)
    };
    graph.parameters().filter(|(_, p)| !state.contains(&p.name)).map(|(_, p)| fill(p)).collect()
}

fn noise(name: &str, count: usize) -> Vec<f32> {
    let mut data = vec![0.0; count];
    Init::Normal { std: 1.0 }.fill(9, name, &mut data);
    data
}

struct Run {
    executable: Box<dyn Executable>,
    step: TrainingStep,
}

impl Run {
    fn new(model: &Architecture, options: &StepOptions) -> Run {
        let mut step = TrainingStep::new(model, BATCH, options.clone()).unwrap();
        for (name, gradient) in step.gradients.clone() {
            step.graph.set_output(&format!("grad.{name}"), gradient).unwrap();
        }
        let mut weights = parameters(&step.graph, &step.state);
        let mut start = StepParameters { model: &mut weights, state: &step.state };
        let executable = Cpu::new(Some(2)).compile(&step.graph, &mut start).unwrap();
        Run { executable, step }
    }

    fn run(&mut self, number: u64) {
        self.write(number);
        self.executable.run().unwrap();
    }

    fn write(&mut self, number: u64) {
        for (_, input) in self.step.graph.inputs() {
            let count = input.ty.shape.elements();
            let data = match input.name.as_str() {
                "seed" => {
                    self.executable.write("seed", Elements::I32(&[1, 2, 3, number as i32])).unwrap();
                    continue;
                }
                "rate" => vec![0.01],
                "step" => vec![number as f32],
                "average_decay" => vec![Average::constant(0.5).decay_at(number)],
                "targets" => (0..count).map(|i| if i % CLASSES == i / CLASSES % 3 { 0.9 } else { 0.025 }).collect(),
                name => noise(name, count),
            };
            self.executable.write(&input.name, Elements::F32(&data)).unwrap();
        }
    }

    /// The bits of all parameters and state.
    fn state(&self) -> BTreeMap<String, Vec<u32>> {
        let names = self.step.graph.parameters().map(|(_, p)| p.name.clone());
        names.map(|name| (name.clone(), self.parameter(&name).iter().map(|v| v.to_bits()).collect())).collect()
    }

    fn read(&self, output: &str) -> Vec<f32> {
        let value = self.step.graph.output(output).unwrap();
        let mut data = vec![0.0; self.step.graph.shape(value).elements()];
        self.executable.read(output, &mut data).unwrap();
        data
    }

    fn parameter(&self, name: &str) -> Vec<f32> {
        let value = self.step.graph.parameter(name).unwrap();
        let mut data = vec![0.0; self.step.graph.shape(value).elements()];
        self.executable.read_parameter(name, &mut data).unwrap();
        data
    }
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, |m, d| if d.is_nan() || d > m { d } else { m })
}

#[test]
fn micro_batches_give_the_whole_batchs_gradient() {
    let distilled = Vit { distillation_token: true, distillation_head: true, ..model() };
    let soft = Objective { loss: Loss::Softmax, distillation: Some((Distillation::Soft { temperature: 2.0 }, 0.4)) };
    let sigmoid = Objective { loss: Loss::Sigmoid, distillation: None };
    for (model, objective) in [(model(), Objective::default()), (distilled, soft), (model(), sigmoid)] {
        let model = Architecture::from(model);
        let run = |accumulate| {
            let options = StepOptions { objective, accumulate, ..StepOptions::default() };
            let mut run = Run::new(&model, &options);
            run.run(1);
            run
        };
        let whole = run(1);
        assert!(whole.read("grad_norm")[0] > 0.1);
        for parts in [2, 3, 6] {
            let split = run(parts);
            for name in whole.step.graph.outputs().iter().map(|(name, _)| name) {
                let (a, b) = (whole.read(name), split.read(name));
                let scale = a.iter().fold(1.0f32, |m, v| m.max(v.abs()));
                let difference = largest_difference(&a, &b);
                assert!(difference <= 2e-6 * scale, "{parts} parts: {name} differs by {difference:e}");
            }
        }
    }
}

#[test]
fn micro_batches_need_less_memory_and_an_even_batch() {
    let model = Architecture::from(model());
    let arena = |accumulate| {
        let step = TrainingStep::new(&model, 48, StepOptions { accumulate, ..StepOptions::default() }).unwrap();
        Cpu::new(Some(1)).plan(&step.graph).unwrap().arena_bytes
    };
    assert!(arena(8) * 2 < arena(1), "{} and {}", arena(8), arena(1));
    let error = TrainingStep::new(&model, 6, StepOptions { accumulate: 4, ..StepOptions::default() }).err();
    assert_eq!(error, Some(StepError::Uneven { batch: 6, parts: 4 }));
}

#[test]
fn micro_batches_drop_different_things() {
    let model = Architecture::from(Vit { dropout: 0.3, attention_dropout: 0.2, drop_path: 0.4, ..model() });
    let step = TrainingStep::new(&model, 4, StepOptions { accumulate: 2, ..StepOptions::default() }).unwrap();
    let mut streams: Vec<u32> = Vec::new();
    for node in step.graph.nodes().iter().filter(|n| n.phase == Phase::Forward) {
        match &node.op {
            Op::Dropout(d) => streams.push(d.stream),
            Op::Attention(a) => streams.extend(a.dropout.map(|d| d.stream)),
            _ => {}
        }
    }
    let all = streams.len();
    assert!(all > 10, "{all}");
    streams.sort_unstable();
    streams.dedup();
    assert_eq!(streams.len(), all, "two dropouts share their random numbers");

    let run = |accumulate| {
        let mut run = Run::new(&model, &StepOptions { accumulate, ..StepOptions::default() });
        run.run(1);
        run.read("loss")[0]
    };
    assert_eq!(run(2), run(2), "the same seed gives the same step");
}

#[test]
fn a_frozen_backbone_gets_no_backward_pass() {
    let model = Architecture::from(model());
    let options = StepOptions { freeze: Freeze(vec!["backbone".into()]), ..StepOptions::default() };
    let mut run = Run::new(&model, &options);
    let names: Vec<&str> = run.step.gradients.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["head.weight", "head.bias"]);
    assert_eq!(run.step.state.len(), 4);
    let backward: Vec<&str> =
        run.step.graph.nodes().iter().filter(|n| n.phase == Phase::Backward).map(|n| n.scope.as_str()).collect();
    assert!(!backward.is_empty() && backward.iter().all(|s| !s.contains("blocks")), "{backward:?}");
    run.run(1);

    let mut free = Run::new(&model, &StepOptions::default());
    free.run(1);
    for name in ["loss", "grad.head.weight", "grad.head.bias"] {
        assert!(largest_difference(&run.read(name), &free.read(name)) <= 1e-6, "{name}");
    }
    let nothing = StepOptions { freeze: Freeze(vec!["*".into()]), ..StepOptions::default() };
    assert_eq!(TrainingStep::new(&model, 2, nothing).err(), Some(StepError::Frozen));
}

#[test]
fn values_without_effect_on_logits_are_not_computed() {
    let drop_path = Vit { drop_path: 0.3, ..model() };
    let two_tokens = Vit { distillation_head: true, distillation_token: true, ..model() };
    for (model, read) in [(model(), 1), (drop_path, 1), (two_tokens, 2)] {
        let depth = model.depth;
        let step = TrainingStep::new(&Architecture::from(model), 2, StepOptions::default()).unwrap();
        let hidden = step.graph.nodes().iter().filter(|node| node.op.name() == "gelu");
        let tokens: Vec<usize> = hidden.map(|node| node.outputs[0].shape[1]).collect();
        let (last, others) = tokens.split_last().unwrap();
        assert_eq!((*last, tokens.len()), (read, depth));
        assert!(others.iter().all(|&tokens| tokens > 2), "{tokens:?}");
    }
}

#[test]
fn averages_follow_the_weights() {
    let model = Architecture::from(model());
    let mut run = Run::new(&model, &StepOptions { average: true, ..StepOptions::default() });
    let name = "blocks.1.mlp.fc1.weight";
    let average = format!("{name}.average");
    run.run(1);
    let first = run.parameter(name);
    assert_eq!(run.parameter(&average), first, "the first step copies");
    run.run(2);
    let second = run.parameter(name);
    assert_ne!(first, second);
    let expected: Vec<f32> = first.iter().zip(&second).map(|(a, b)| 0.5 * a + 0.5 * b).collect();
    assert!(largest_difference(&run.parameter(&average), &expected) <= 1e-7);
}

#[test]
fn lower_layers_learn_slower() {
    let model = Architecture::from(model());
    let moved = |layer_decay: f32| {
        let method = OptimiserMethod::Sgd { momentum: 0.0, dampening: 0.0, nesterov: false };
        let optimiser = Optimiser { method, weight_decay: 0.0, layer_decay, clip: None, ..Optimiser::default() };
        let mut run = Run::new(&model, &optimiser.into());
        let before = parameters(&run.step.graph, &run.step.state);
        run.run(1);
        ["patch_embed.proj.weight", "blocks.0.mlp.fc2.weight", "blocks.1.mlp.fc2.weight", "norm.weight", "head.weight"]
            .map(|name| largest_difference(&run.parameter(name), &before[name]))
    };
    let (even, uneven) = (moved(1.0), moved(0.5));
    for (i, factor) in [0.125, 0.25, 0.5, 0.5, 1.0].into_iter().enumerate() {
        assert!(even[i] > 1e-4, "{even:?}");
        assert!((uneven[i] / even[i] - factor).abs() < 2e-3, "{i}: {} of {}", uneven[i], even[i]);
    }
}

#[test]
fn a_step_that_is_not_finite_changes_nothing_and_is_explained() {
    let model = Architecture::from(model());
    let step = TrainingStep::new(&model, BATCH, StepOptions::default()).unwrap();
    let device = Cpu::new(Some(2));
    let mut weights = parameters(&step.graph, &step.state);
    let image = noise("image", BATCH * 3 * 256);
    let targets = vec![0.2; BATCH * CLASSES];
    let inputs = [
        ("image", Elements::F32(&image)),
        ("targets", Elements::F32(&targets)),
        ("rate", Elements::F32(&[0.1])),
        ("step", Elements::F32(&[1.0])),
    ];
    let find = |weights: &mut BTreeMap<String, Vec<f32>>| {
        let mut start = StepParameters { model: weights, state: &step.state };
        first_non_finite(&device, &step.graph, &inputs, &mut start).unwrap().map(|found| found.to_string())
    };
    assert_eq!(find(&mut weights), None);

    // Finite, but the product of two overflows.
    weights.get_mut("blocks.1.mlp.fc1.weight").unwrap().fill(1e30);
    weights.get_mut("blocks.1.norm2.bias").unwrap().fill(1e10);
    let what = find(&mut weights).unwrap();
    assert!(what.starts_with("linear in blocks.1.mlp.fc1: "), "{what}");

    let before = weights.clone();
    let mut start = StepParameters { model: &mut weights, state: &step.state };
    let mut executable = device.compile(&step.graph, &mut start).unwrap();
    inputs.iter().for_each(|(name, elements)| executable.write(name, *elements).unwrap());
    executable.run().unwrap();
    let mut norm = [0.0];
    executable.read("grad_norm", &mut norm).unwrap();
    assert!(!norm[0].is_finite());
    for (name, expected) in &before {
        let mut found = vec![0.0; expected.len()];
        executable.read_parameter(name, &mut found).unwrap();
        assert_eq!(found, *expected, "{name}");
    }
    weights.get_mut("head.bias").unwrap()[2] = f32::NAN;
    assert_eq!(find(&mut weights).unwrap(), "parameter head.bias: 1 of 5 elements are not finite");
}

/// A small network with batch norms, max-pooling and relus.
fn resnet() -> Architecture {
    ResNet {
        image_size: [32, 32],
        classes: CLASSES,
        block: ResNetBlock::Basic,
        depths: vec![1, 1],
        widths: vec![8, 16],
        ..ResNet::default()
    }
    .into()
}

#[test]
fn batch_norms_of_all_parts_give_the_gradient_and_the_statistics_of_the_whole_batch() {
    let run = |parts: usize, recompute| {
        let parts = BatchParts::all(parts);
        let options = StepOptions { parts, recompute, sync_batch_norm: true, ..StepOptions::default() };
        let mut run = Run::new(&resnet(), &options);
        run.run(1);
        run
    };
    let whole = run(1, false);
    for (parts, recompute) in [(2, false), (3, false), (6, false), (2, true)] {
        let split = run(parts, recompute);
        let close = |name: &str, a: Vec<f32>, b: Vec<f32>| {
            let scale = a.iter().fold(1.0f32, |m, v| m.max(v.abs()));
            let difference = largest_difference(&a, &b);
            assert!(difference <= 1e-5 * scale, "{parts} parts: {name} differs by {difference:e}");
        };
        for name in whole.step.graph.outputs().iter().map(|(name, _)| name) {
            close(name, whole.read(name), split.read(name));
        }
        for (_, running) in whole.step.graph.parameters().filter(|(_, p)| p.name.contains("running")) {
            close(&running.name, whole.parameter(&running.name), split.parameter(&running.name));
        }
    }
    assert_eq!(run(2, false).state(), run(2, true).state());
}

#[test]
fn divided_state_takes_less_memory() {
    let model: Architecture = Vit { dim: 256, mlp_dim: 1024, depth: 8, heads: 4, ..model() }.into();
    let planned = |sharding: Option<Sharding>| {
        let parts = BatchParts::of_process(2, 0, 2);
        let options = StepOptions { parts, exchange: true, sharding, ..StepOptions::default() };
        let step = TrainingStep::new(&model, 2, options).unwrap();
        Cpu::new(Some(1)).plan(&step.graph).unwrap()
    };
    let sharding = |parameters| Some(Sharding { parameters, rank: 0, processes: 2 });
    let [whole, optimiser, all] = [None, sharding(false), sharding(true)].map(planned);
    let parameters = whole.stored_bytes as f64 / 3.0;
    let stored = |memory: Memory| memory.stored_bytes as f64 / parameters;
    // AdamW has two state tensors per parameter.
    assert!((stored(optimiser) - 2.0).abs() < 0.05 && (stored(all) - 1.5).abs() < 0.05, "{optimiser:?}, {all:?}");
    // Gradients, too, and whole parameters for a short time only.
    assert!(all.arena_bytes < whole.arena_bytes, "{all:?}, {whole:?}");
}

#[test]
fn a_skipped_step_changes_neither_running_statistics_nor_averages() {
    for (accumulate, recompute) in [(1, false), (1, true), (3, false)] {
        let options = StepOptions { average: true, accumulate, recompute, ..StepOptions::default() };
        let (mut run, mut undisturbed) = (Run::new(&resnet(), &options), Run::new(&resnet(), &options));
        run.run(1);
        let before = run.state();
        assert!(before.keys().any(|name| name.ends_with("running_var")));
        run.write(2);
        let mut image = noise("image", BATCH * 3 * 1024);
        // The last pixel of the last sample is in the last micro-batch only.
        *image.last_mut().unwrap() = f32::NAN;
        run.executable.write("image", Elements::F32(&image)).unwrap();
        run.executable.run().unwrap();
        assert!(run.read("grad_norm")[0].is_nan() && run.read("loss")[0].is_nan());
        assert_eq!(run.state(), before, "{accumulate} micro-batches");
        // Later steps are the same as without the skipped one.
        undisturbed.run(1);
        run.run(2);
        undisturbed.run(2);
        assert_eq!(run.state(), undisturbed.state(), "{accumulate} micro-batches");
        assert_ne!(run.state(), before);
    }
}

#[test]
fn a_loss_that_is_not_finite_changes_nothing_even_if_its_gradients_are_finite() {
    let model = Architecture::from(model());
    let step = TrainingStep::new(&model, BATCH, StepOptions::default()).unwrap();
    let mut weights = parameters(&step.graph, &step.state);
    weights.get_mut("head.bias").unwrap()[0] = f32::NEG_INFINITY;
    let mut start = StepParameters { model: &mut weights, state: &step.state };
    let executable = Cpu::new(Some(2)).compile(&step.graph, &mut start).unwrap();
    let mut run = Run { executable, step };
    let before = run.state();
    run.run(1);
    assert!(run.read("loss")[0].is_infinite() && run.read("grad_norm")[0].is_finite());
    assert_eq!(run.state(), before);
}

#[test]
fn every_recipe_builds_a_step() {
    for name in vit_train::Recipe::names() {
        let recipe = vit_train::Recipe::named(name).unwrap();
        let mut model = Architecture::from(model());
        recipe.apply_to(&mut model);
        let options = StepOptions { accumulate: 1, ..recipe.step_options() };
        let mut run = Run::new(&model, &options);
        run.run(1);
        assert!(run.read("loss")[0].is_finite() && run.read("grad_norm")[0] > 0.0, "{name}");
    }
}
