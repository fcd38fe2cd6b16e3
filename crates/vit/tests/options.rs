//! Every option of a Vision Transformer, alone and with the others: it builds, the CPU computes what the reference
//! interpreter does, every parameter has a gradient that finite differences confirm, and timm's configuration form
//! holds it.

use std::collections::BTreeMap;

use vit_cpu::Cpu;
use vit_graph::device::{Device, Elements};
use vit_graph::ops::{Activation, Data, Op, Reduce};
use vit_graph::reference::{self, Array, Bindings};
use vit_graph::{Graph, Init, autodiff};
use vit_models::config::{Config, parse, timm_config};
use vit_models::layers::{ContinuousBias, ContinuousForm, Gate, NormKind};
use vit_models::vit::{
    BiasSharing, BlockKind, CoordinateAugmentation, FinalNorm, Lineage, Pooling, Positions, PositionsOn, Qkv, QkvBias,
    RelativeBias, RelativeBiasKind, RotaryAngles, RotaryPositions, Vit,
};
use vit_models::{Mode, Network, Preprocess, ProblemType};

const POSITIONS: [(Positions, Option<RelativeBias>); 8] = [
    (Positions::None, None),
    (Positions::Learned, None),
    (Positions::Learned2d, None),
    (Positions::SinCos, None),
    (Positions::None, Some(RelativeBias::TABLES)),
    (Positions::Learned, Some(RelativeBias { kind: RelativeBiasKind::Table, sharing: BiasSharing::Both })),
    (Positions::None, Some(continuous(ContinuousForm::Natural, BiasSharing::Shared))),
    (Positions::None, Some(continuous(ContinuousForm::Swin { pretrained: None }, BiasSharing::PerBlock))),
];
const QKV_BIASES: [QkvBias; 3] = [QkvBias::None, QkvBias::All, QkvBias::QueryValue];
const SEED: [i32; 4] = [3, 1, 4, 1];

const fn continuous(form: ContinuousForm, sharing: BiasSharing) -> RelativeBias {
    RelativeBias { kind: RelativeBiasKind::Continuous(ContinuousBias { hidden: 5, form }), sharing }
}

/// The prefix tokens: class token, distillation token with its head or without, registers.
const TOKENS: [(bool, bool, bool, usize); 7] = [
    (true, false, false, 0),
    (false, false, false, 0),
    (true, false, false, 2),
    (false, false, false, 2),
    (true, true, true, 0),
    (true, true, false, 0),
    (true, true, true, 1),
];

/// All combinations of positions, prefix tokens, pooling and norms; the options of single layers take turns.
fn models() -> Vec<Vit> {
    const ACTIVATIONS: [Activation; 7] = [
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::Relu,
        Activation::Silu,
        Activation::Tanh,
        Activation::Sigmoid,
        Activation::QuickGelu,
    ];
    let mut all = Vec::new();
    let mut turn = 0usize;
    for (positions, relative_bias) in POSITIONS {
        for positions_on in [PositionsOn::AllTokens, PositionsOn::Patches] {
            for (class_token, distillation_token, distillation_head, registers) in TOKENS {
                for pooling in [Pooling::Token, Pooling::Mean, Pooling::Map] {
                    for final_norm in [FinalNorm::BeforePooling, FinalNorm::AfterPooling, FinalNorm::Absent] {
                        let possible = (class_token || pooling != Pooling::Token)
                            && (!distillation_head
                                || (pooling == Pooling::Token && final_norm != FinalNorm::AfterPooling));
                        if !possible {
                            continue;
                        }
                        // 37 is coprime to the powers of two below, so all combinations of their bits occur.
                        turn += 37;
                        let on = |bit: usize| turn >> bit & 1 == 1;
                        all.push(Vit {
                            image_size: [8, 12],
                            patch_size: if on(6) { [4, 4] } else { [4, 3] },
                            channels: 2,
                            classes: 3,
                            dim: 8,
                            depth: 2,
                            heads: 2,
                            mlp_dim: 11,
                            class_token,
                            distillation_token,
                            distillation_head,
                            registers,
                            pooling,
                            positions,
                            positions_on,
                            final_norm,
                            qk_norm: on(0),
                            layer_scale: on(1).then_some(0.5),
                            pre_norm: on(2),
                            qkv: Qkv::packed(QKV_BIASES[turn / 8 % 3]),
                            relative_bias,
                            pre_logits: (on(4) && !distillation_head).then_some(6),
                            activation: ACTIVATIONS[turn % ACTIVATIONS.len()],
                            norm_epsilon: if on(5) { 1e-3 } else { 1e-6 },
                            ..Vit::default()
                        });
                    }
                }
            }
        }
    }
    all
}

/// Models with every kind of block, of MLP, of norm and of pooling.
fn block_models() -> Vec<Vit> {
    const BLOCKS: [BlockKind; 4] =
        [BlockKind::PreNorm, BlockKind::PostNorm, BlockKind::Parallel, BlockKind::Branches(2)];
    const POOLING: [Pooling; 6] =
        [Pooling::Token, Pooling::Mean, Pooling::Max, Pooling::MeanMax, Pooling::Map, Pooling::Refined];
    let mut all = Vec::new();
    for (turn, (block, gate)) in BLOCKS
        .into_iter()
        .flat_map(|block| [Gate::None, Gate::Packed, Gate::Separate].map(|gate| (block, gate)))
        .chain([(BlockKind::PreNorm, Gate::None); 6])
        .chain([(BlockKind::Parallel, Gate::None); 6])
        .enumerate()
    {
        let on = |bit: usize| (turn * 5 + 3) >> bit & 1 == 1;
        let (parallel, differential) = (block == BlockKind::Parallel, turn > 11 || on(2));
        let gate = if parallel { Gate::None } else { gate };
        all.push(Vit {
            image_size: [8, 12],
            patch_size: [4, 4],
            channels: 2,
            classes: 3,
            dim: 8,
            depth: 2,
            // The difference of two attentions over few channels, or a norm of two channels, would amplify rounding.
            heads: if differential { 1 } else { 2 },
            mlp_dim: 11,
            gate,
            activation: if gate == Gate::None { Activation::Gelu } else { Activation::Silu },
            mlp_norm: !parallel && on(0),
            attention_norm: !parallel && on(1),
            block,
            differential,
            registers: turn % 3,
            pooling: POOLING[turn % POOLING.len()],
            pool_prefix: on(3),
            patch_norm: on(1),
            pre_norm: on(4),
            projection_bias: !on(2),
            qk_norm: on(0) && !differential,
            qkv: Qkv::packed(if on(3) { QkvBias::All } else { QkvBias::None }),
            layer_scale: on(4).then_some(0.5),
            norm: if on(2) { NormKind::Rms } else { NormKind::Layer },
            norm_epsilon: if on(0) { 1e-5 } else { 1e-6 },
            ..Vit::default()
        });
    }
    all
}

/// Models with rotary positions, and with the other options that only timm's `Eva` has.
fn rotary_models() -> Vec<Vit> {
    let axial = RotaryPositions::eva02([3, 2]);
    let augmentation = CoordinateAugmentation { shift: Some(0.2), jitter: Some(1.2), rescale: Some(2.0) };
    let centred = RotaryAngles::Centred { augmentation, bf16_periods: true };
    let plain = RotaryAngles::Axial { reference: None };
    let rotaries = [
        Some(axial),
        Some(RotaryPositions { angles: plain, columns_first: true, offset: 1.0, temperature: 100.0, ..axial }),
        Some(RotaryPositions { angles: centred, ..RotaryPositions::dinov3() }),
        Some(RotaryPositions { angles: RotaryAngles::Mixed, temperature: 10.0, ..axial }),
        None,
    ];
    let projections = [
        Qkv::packed(QkvBias::None),
        Qkv::packed(QkvBias::QueryValue),
        Qkv::packed(QkvBias::All),
        Qkv { bias: QkvBias::QueryValue, separate: true },
        Qkv { bias: QkvBias::All, separate: true },
    ];
    let poolings = [
        (Pooling::Mean, FinalNorm::AfterPooling),
        (Pooling::Token, FinalNorm::BeforePooling),
        (Pooling::Map, FinalNorm::BeforePooling),
    ];
    let mut all = Vec::new();
    for (i, rotary) in rotaries.into_iter().enumerate() {
        for (j, qkv) in projections.into_iter().enumerate() {
            let turn = 5 * i + j;
            let on = |bit: usize| turn >> bit & 1 == 1;
            let learned = rotary.is_some_and(|rotary| rotary.angles == RotaryAngles::Mixed);
            let gate = [Gate::None, Gate::Packed, Gate::Separate][turn % 3];
            let (pooling, final_norm) = poolings[turn / 2 % 3];
            all.push(Vit {
                lineage: Lineage::Eva,
                image_size: [8, 12],
                patch_size: [4, 4],
                channels: 2,
                classes: 3,
                dim: 8,
                depth: 2,
                heads: 2,
                mlp_dim: 11,
                gate,
                activation: if gate == Gate::None { Activation::Gelu } else { Activation::Silu },
                mlp_norm: gate == Gate::Separate && on(1),
                registers: [0, 2][turn % 2],
                pooling,
                final_norm,
                pool_prefix: pooling == Pooling::Map,
                pool_heads: (pooling == Pooling::Map).then_some(4),
                pool_mlp_dim: (pooling == Pooling::Map).then_some(16),
                positions: if on(2) { Positions::Learned } else { Positions::None },
                positions_on: if on(0) { PositionsOn::Patches } else { PositionsOn::AllTokens },
                rotary,
                qkv,
                key_value_heads: if qkv.separate && qkv.bias == QkvBias::All && !learned {
                    vec![2, 1]
                } else {
                    Vec::new()
                },
                qk_norm: on(3),
                attention_norm: on(1),
                layer_scale: on(2).then_some(0.5),
                attention_only_layer_scale: on(0),
                norm: if on(4) { NormKind::Rms } else { NormKind::Layer },
                norm_epsilon: if on(3) { 1e-5 } else { 1e-6 },
                ..Vit::default()
            });
        }
    }
    all
}

/// Initial parameters with noise, so that zeros and ones hide no mistake; and an image.
fn values(graph: &Graph) -> BTreeMap<String, Vec<f32>> {
    let mut values = BTreeMap::new();
    for (_, parameter) in graph.parameters() {
        let mut data = vec![0.0; parameter.shape.elements()];
        let mut noise = data.clone();
        parameter.init.fill(1, &parameter.name, &mut data);
        Init::Normal { std: 0.25 }.fill(2, &parameter.name, &mut noise);
        values.insert(parameter.name.clone(), data.iter().zip(&noise).map(|(a, b)| a + b).collect());
    }
    for (_, input) in graph.inputs().filter(|(_, i)| i.name == "image") {
        let mut data = vec![0.0; input.ty.shape.elements()];
        Init::Normal { std: 1.0 }.fill(3, "image", &mut data);
        values.insert("image".into(), data);
    }
    values
}

fn bindings(graph: &Graph, values: &BTreeMap<String, Vec<f32>>) -> Bindings {
    let seed = Array::new([4], SEED.map(f64::from).to_vec());
    let mut bindings = Bindings::new().with("seed", seed);
    for (_, parameter) in graph.parameters() {
        bindings = bindings.with(&parameter.name, Array::from_f32(parameter.shape.clone(), &values[&parameter.name]));
    }
    let (_, image) = graph.inputs().find(|(_, i)| i.name == "image").unwrap();
    bindings.with("image", Array::from_f32(image.ty.shape.clone(), &values["image"]))
}

/// Runs a graph on the CPU and in the reference interpreter; every output must agree.
fn compare(device: &Cpu, graph: &Graph, tolerance: f64, what: &dyn std::fmt::Debug) -> BTreeMap<String, Array> {
    let mut values = values(graph);
    let expected = reference::run(graph, &bindings(graph, &values)).unwrap();
    let image = values.remove("image").unwrap();
    let mut executable = device.compile(graph, &mut values).unwrap();
    executable.write("image", Elements::F32(&image)).unwrap();
    if graph.inputs().any(|(_, i)| i.name == "seed") {
        executable.write("seed", Elements::I32(&SEED)).unwrap();
    }
    executable.run().unwrap();
    for (name, expected) in &expected {
        let mut found = vec![0.0; expected.data().len()];
        executable.read(name, &mut found).unwrap();
        for (a, b) in expected.data().iter().zip(&found) {
            let difference = (a - f64::from(*b)).abs();
            assert!(difference <= tolerance * (1.0 + a.abs()), "{name}: {a} and {b} in {what:?}");
        }
    }
    expected
}

#[test]
fn the_cpu_computes_what_the_reference_does() {
    let device = Cpu::new(Some(2));
    let all = [models(), rotary_models(), block_models()].concat();
    assert!(all.len() > 350, "{}", all.len());
    for vit in &all {
        let mut graph = vit.build(2, Mode::Inference).unwrap_or_else(|e| panic!("{e} in {vit:?}"));
        let taps: Vec<String> = graph.taps().keys().cloned().collect();
        for tap in taps {
            graph.request(&tap).unwrap();
        }
        let outputs = compare(&device, &graph, 2e-5, vit);
        let [rows, columns] = vit.grid();
        let tokens = rows * columns + vit.prefix_tokens();
        assert_eq!(outputs["tokens"].shape(), [2, tokens, 8]);
        assert_eq!(outputs["features"].shape(), [2, vit.pre_logits.unwrap_or(8)]);
        assert_eq!(outputs["logits"].shape(), [2, 3]);
        let branch = if matches!(vit.block, BlockKind::Branches(_)) { "attns.1." } else { "" };
        assert_eq!(outputs[&format!("blocks.1.{branch}attn.weights")].shape(), [2, vit.heads, tokens, tokens]);
        assert_eq!(outputs.contains_key("logits_dist"), vit.distillation_head);
    }
}

/// A training graph with all kinds of dropout, whose outputs are a loss and its gradients.
fn training(vit: &Vit) -> Graph {
    let added = vit.rotary.is_none() && vit.relative_bias.is_none();
    let patch_drop = if added { 0.3 } else { 0.0 };
    let vit = Vit { dropout: 0.1, attention_dropout: 0.1, patch_drop, drop_path: 0.2, ..vit.clone() };
    // With fewer samples, stochastic depth might drop a branch for all of them.
    let mut graph = vit.build(6, Mode::Training).unwrap();
    let logits = graph.output("logits").unwrap();
    let loss = graph.value(Reduce::sum(vec![0, 1]), &[logits]).unwrap();
    let names: Vec<String> = graph.parameters().map(|(_, p)| p.name.clone()).collect();
    let wrt: Vec<_> = names.iter().map(|name| graph.parameter(name).unwrap()).collect();
    let gradients = autodiff::gradients(&mut graph, loss, &wrt).unwrap_or_else(|e| panic!("{e} in {vit:?}"));
    graph.retain_outputs(|_| false);
    graph.set_output("loss", loss).unwrap();
    for (name, gradient) in names.iter().zip(gradients) {
        graph.set_output(&format!("grad.{name}"), gradient).unwrap();
    }
    graph
}

#[test]
fn every_parameter_has_a_gradient() {
    let device = Cpu::new(Some(2));
    for vit in models().iter().step_by(3).chain(&rotary_models()).chain(&block_models()) {
        let graph = training(vit);
        let found = compare(&device, &graph, 2e-4, vit);
        for (_, parameter) in graph.parameters() {
            let gradient = &found[&format!("grad.{}", parameter.name)];
            let largest = gradient.data().iter().fold(0.0, |m: f64, g| m.max(g.abs()));
            // A bias common to all keys does not change the attention weights; and in the last block only the class token is
            // read, which has none by an MLP.
            let none = (parameter.name.ends_with(".k_norm.bias") && vit.rotary.is_none())
                || (parameter.name.ends_with(".k_proj.bias") && vit.rotary.is_none() && !vit.qk_norm)
                || (parameter.name.ends_with("rel_pos.mlp.fc2.bias") && vit.prefix_tokens() == 0)
                || (parameter.name.starts_with("blocks.1.attn.rel_pos.mlp") && vit.pooling == Pooling::Token);
            assert_eq!(largest < 1e-9, none, "{} has up to {largest:e} in {vit:?}", parameter.name);
            assert!(gradient.data().iter().all(|g| g.is_finite()));
        }
    }
}

#[test]
fn gradients_agree_with_finite_differences() {
    let blocks = block_models();
    for vit in models().iter().step_by(29).chain(rotary_models().iter().step_by(3)).chain(blocks.iter().step_by(2)) {
        // Finite differences are wrong across the kink of a ReLU.
        let smooth = if vit.activation == Activation::Relu { Activation::Gelu } else { vit.activation };
        let vit = Vit { activation: smooth, ..vit.clone() };
        let graph = training(&vit);
        let bindings = bindings(&graph, &values(&graph));
        let found = reference::run(&graph, &bindings).unwrap();
        let mut only_loss = graph.clone();
        only_loss.retain_outputs(|name| name == "loss");
        let only_loss = vit_graph::rewrite::eliminate_dead_code(&only_loss).unwrap();
        let loss = |bindings: &Bindings| reference::run(&only_loss, bindings).unwrap()["loss"].data()[0];
        for (index, (_, parameter)) in graph.parameters().enumerate() {
            let gradient = &found[&format!("grad.{}", parameter.name)];
            let at = (7 * index + 3) % gradient.data().len();
            let step = 1e-5;
            let mut moved = bindings.clone();
            moved.get_mut(&parameter.name).unwrap().data_mut()[at] += step;
            let above = loss(&moved);
            moved.get_mut(&parameter.name).unwrap().data_mut()[at] -= 2.0 * step;
            let expected = (above - loss(&moved)) / (2.0 * step);
            let difference = (gradient.data()[at] - expected).abs();
            assert!(
                difference < 1e-6 * (1.0 + expected.abs()),
                "{}[{at}]: {} and {expected} in {vit:?}",
                parameter.name,
                gradient.data()[at]
            );
        }
    }
}

#[test]
fn nothing_is_random_in_inference() {
    let vit = Vit { dropout: 0.5, attention_dropout: 0.5, patch_drop: 0.5, drop_path: 0.5, ..models()[0].clone() };
    let graph = vit.build(1, Mode::Inference).unwrap();
    assert!(graph.inputs().all(|(_, input)| input.name == "image"));
    assert!(graph.nodes().iter().all(|node| !matches!(node.op, Op::Dropout(_) | Op::RandomPartition(_))));
}

#[test]
fn timms_form_holds_every_option() {
    for vit in [models(), rotary_models(), block_models()].concat() {
        let preprocessing = Preprocess { image_size: vit.image_size, ..Preprocess::inception() };
        let config = Config {
            name: None,
            architecture: vit.into(),
            preprocessing,
            labels: Vec::new(),
            problem_type: ProblemType::default(),
        };
        let read = parse(&timm_config(&config), None).unwrap_or_else(|e| panic!("{e} in {config:?}"));
        assert_eq!(read.architecture, config.architecture);
        assert_eq!(read.preprocessing, config.preprocessing);
    }
}

/// The indices into a table of relative positions for a grid of 2x3.
fn relative_indices(class_token: bool) -> Vec<i32> {
    let vit = Vit {
        image_size: [8, 12],
        patch_size: [4, 4],
        dim: 8,
        heads: 2,
        depth: 1,
        class_token,
        pooling: Pooling::Mean,
        positions: Positions::None,
        relative_bias: Some(RelativeBias::TABLES),
        ..Vit::default()
    };
    let graph = vit.build(1, Mode::Inference).unwrap();
    let index = graph.nodes().iter().find_map(|node| match &node.op {
        Op::Constant(constant) => match &constant.data {
            Data::I32(data) => Some(data.to_vec()),
            Data::F32(_) => None,
        },
        _ => None,
    });
    index.unwrap()
}

/// `timm.layers.gen_relative_position_index((2, 3), class_token=...)` of timm 1.0.30.
#[test]
fn relative_positions_are_numbered_as_in_timm() {
    #[rustfmt::skip]
    assert_eq!(relative_indices(false), [
         7,  6,  5,  2,  1,  0,
         8,  7,  6,  3,  2,  1,
         9,  8,  7,  4,  3,  2,
        12, 11, 10,  7,  6,  5,
        13, 12, 11,  8,  7,  6,
        14, 13, 12,  9,  8,  7,
    ]);
    #[rustfmt::skip]
    assert_eq!(relative_indices(true), [
        17, 15, 15, 15, 15, 15, 15,
        16,  7,  6,  5,  2,  1,  0,
        16,  8,  7,  6,  3,  2,  1,
        16,  9,  8,  7,  4,  3,  2,
        16, 12, 11, 10,  7,  6,  5,
        16, 13, 12, 11,  8,  7,  6,
        16, 14, 13, 12,  9,  8,  7,
    ]);
}

#[test]
fn impossible_choices_are_refused_with_their_reason() {
    let base = models()[0].clone();
    for (vit, reason) in [
        (Vit { heads: 3, ..base.clone() }, "cannot be divided among 3 heads"),
        (Vit { heads: 0, ..base.clone() }, "cannot be divided among 0 heads"),
        (Vit { patch_size: [16, 16], ..base.clone() }, "is smaller than a patch of 16x16"),
        (Vit { patch_size: [0, 4], ..base.clone() }, "the patch height is 0, it must be from 1 to 65536"),
        (Vit { class_token: false, ..base.clone() }, "needs a class token"),
        (Vit { distillation_head: true, ..base.clone() }, "needs a distillation token"),
        (
            Vit { class_token: false, pooling: Pooling::Mean, distillation_token: true, ..base.clone() },
            "needs a class token",
        ),
        (Vit { dim: 6, heads: 2, positions: Positions::SinCos, ..base.clone() }, "a width that 4 divides"),
        (Vit { dim: 7, heads: 1, positions: Positions::Learned2d, ..base.clone() }, "a width that 2 divides"),
        (Vit { dim: 1 << 20, heads: 1, ..base.clone() }, "the width is 1048576, it must be from 1 to 65536"),
    ] {
        let error = vit.build(1, Mode::Inference).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}
