//! Rewrites preserve the results of a graph.

use proptest::prelude::*;
use vit_graph::autodiff::gradients;
use vit_graph::ops::{Attention, Binary, Conv2d, Granularity, Op, Operation, Reduce};
use vit_graph::reference::{self, Array, Bindings};

use vit_graph::{DType, Graph, Init, Tensor, Value, rewrite};

fn count(graph: &Graph, name: &str) -> usize {
    graph.nodes().iter().filter(|n| n.op.name() == name).count()
}

fn ramp(shape: &[usize], offset: f64) -> Array {
    Array::from_fn(&shape.into(), |i| ((i as f64 + offset) * 0.37).sin())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn patch_embedding_as_convolution_and_as_one_matrix_product_are_the_same_bits(
        batch in 1usize..3, channels in 1usize..4, rows in 1usize..4, columns in 1usize..4,
        patch in (1usize..5, 1usize..5), extra in (0usize..3, 0usize..3), dim in 1usize..9,
        first in any::<bool>(), bias in any::<bool>(),
    ) {
        let size = [rows * patch.0 + extra.0 % patch.0, columns * patch.1 + extra.1 % patch.1];
        let shape = if first { [batch, channels, size[0], size[1]] } else { [batch, size[0], size[1], channels] };
        let x = Tensor::input("image", DType::F32, shape);
        let weight = x.parameter("weight", [dim, channels, patch.0, patch.1], Init::Zeros);
        let b = bias.then(|| x.parameter("bias", [dim], Init::Zeros));
        let image = if first { x.permute([0, 2, 3, 1]) } else { x.clone() };
        image.conv2d(Conv2d::patches([patch.0, patch.1], bias), &weight, b.as_ref()).output("y");
        let graph = x.finish().unwrap();
        let rewritten = rewrite::eliminate_dead_code(&rewrite::patchify(&graph).unwrap()).unwrap();
        prop_assert_eq!(count(&rewritten, "conv2d"), 0);
        prop_assert_eq!(count(&rewritten, "permute"), 0);
        prop_assert_eq!(count(&rewritten, "linear"), 1);

        let bindings = Bindings::new()
            .with("image", ramp(&shape, 0.0))
            .with("weight", ramp(&[dim, channels, patch.0, patch.1], 0.5))
            .with("bias", ramp(&[dim], 0.25));
        let expected = reference::run(&graph, &bindings).unwrap();
        let found = reference::run(&rewritten, &bindings).unwrap();
        let bits = |a: &Array| a.data().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
        prop_assert_eq!(bits(&expected["y"]), bits(&found["y"]));
    }
}

#[test]
fn convolutions_that_are_no_patch_embeddings_stay() {
    let x = Tensor::input("image", DType::F32, [1, 8, 8, 2]);
    let weight = x.parameter("weight", [4, 2, 3, 3], Init::Zeros);
    let conv = Conv2d { stride: [2, 2], ..Conv2d::patches([3, 3], false) };
    x.conv2d(conv, &weight, None).output("y");
    assert_eq!(count(&rewrite::patchify(&x.finish().unwrap()).unwrap(), "conv2d"), 1);
}

/// A transformer block, as models write it.
fn block() -> Graph {
    let x = Tensor::input("x", DType::F32, [2, 3, 8]);
    let p = |name: &str, shape: &[usize]| x.parameter(name, shape, Init::Zeros);
    let norm =
        |t: &Tensor, name: &str| t.layer_norm(&p(&format!("{name}.w"), &[8]), &p(&format!("{name}.b"), &[8]), 1e-6);
    let branch = norm(&x, "norm1").linear(&p("proj", &[8, 8]), Some(&p("proj.bias", &[8])));
    let y = &x + &(&branch * &p("ls1", &[8]));
    let h = norm(&y, "norm2").linear(&p("fc1", &[16, 8]), Some(&p("fc1.bias", &[16]))).gelu();
    let y = y + h.linear(&p("fc2", &[8, 16]), None);
    y.output("y");
    x.finish().unwrap()
}

fn bindings(graph: &Graph) -> Bindings {
    bindings_of(graph, [2, 3, 8])
}

fn bindings_of(graph: &Graph, shape: [usize; 3]) -> Bindings {
    let mut bindings = Bindings::new().with("x", ramp(&shape, 0.0));
    for (i, (_, p)) in graph.parameters().enumerate() {
        bindings = bindings.with(&p.name, ramp(&p.shape, i as f64 + 1.0));
    }
    bindings
}

#[test]
fn epilogues_fuse_into_linear_layers() {
    let graph = block();
    let fused = rewrite::fuse_linear(&graph).unwrap();
    assert_eq!(
        (count(&fused, "linear"), count(&fused, "gelu"), count(&fused, "mul"), count(&fused, "add")),
        (3, 0, 0, 0)
    );
    let values = bindings(&graph);
    assert_eq!(reference::run(&graph, &values).unwrap(), reference::run(&fused, &values).unwrap());
}

#[test]
fn sums_fuse_with_the_norms_after_them() {
    let graph = block();
    let fused = rewrite::fuse_add_norm(&graph).unwrap();
    assert_eq!((count(&fused, "add_layer_norm"), count(&fused, "layer_norm"), count(&fused, "add")), (1, 1, 1));
    let values = bindings(&graph);
    assert_eq!(reference::run(&graph, &values).unwrap(), reference::run(&fused, &values).unwrap());
}

#[test]
fn two_linear_layers_that_are_summed_fuse_only_once() {
    let x = Tensor::input("x", DType::F32, [2, 8]);
    let (a, b) = (x.parameter("a", [8, 8], Init::Zeros), x.parameter("b", [8, 8], Init::Zeros));
    (x.linear(&a, None) + x.linear(&b, None)).output("y");
    let graph = x.finish().unwrap();
    let fused = rewrite::fuse_linear(&graph).unwrap();
    let values =
        Bindings::new().with("x", ramp(&[2, 8], 0.0)).with("a", ramp(&[8, 8], 1.0)).with("b", ramp(&[8, 8], 2.0));
    assert_eq!((count(&fused, "linear"), count(&fused, "add")), (2, 0));
    assert_eq!(reference::run(&graph, &values).unwrap(), reference::run(&fused, &values).unwrap());
}

#[test]
fn an_activation_that_is_also_an_output_does_not_fuse() {
    let x = Tensor::input("x", DType::F32, [2, 8]);
    let y = x.linear(&x.parameter("a", [8, 8], Init::Zeros), None);
    y.output("before");
    y.gelu().output("after");
    let fused = rewrite::fuse_linear(&x.finish().unwrap()).unwrap();
    assert_eq!(count(&fused, "gelu"), 1);
}

/// The block with the gradients of its parameters.
fn block_with_gradients() -> Graph {
    with_gradients_of_sum(block())
}

fn with_gradients_of_sum(mut graph: Graph) -> Graph {
    let y = graph.output("y").unwrap();
    let loss = graph.value(Reduce::sum([0, 1, 2]), &[y]).unwrap();
    let (names, wrt): (Vec<String>, Vec<Value>) =
        graph.parameters().map(|(node, p)| (p.name.clone(), Value { node, output: 0 })).unzip();
    let found = gradients(&mut graph, loss, &wrt).unwrap();
    for (name, gradient) in names.iter().zip(found) {
        graph.set_output(&format!("grad.{name}"), gradient).unwrap();
    }
    rewrite::eliminate_dead_code(&graph).unwrap()
}

#[test]
fn the_derivative_of_an_activation_is_kept_for_its_gradient() {
    let graph = block_with_gradients();
    let kept = rewrite::save_activation_derivative(&graph).unwrap();
    let counts = ["gelu", "activation_grad", "linear_with_derivative", "matmul_times"].map(|name| count(&kept, name));
    assert_eq!(counts, [0, 0, 1, 1]);
    let values = bindings(&graph);
    assert_eq!(reference::run(&graph, &values).unwrap(), reference::run(&kept, &values).unwrap());
}

#[test]
fn gradients_of_norms_fuse_with_the_residual_connection() {
    let graph = block_with_gradients();
    let fused = rewrite::fuse_norm_grad_add(&graph).unwrap();
    // The gradient of the first norm's input is unused.
    let counts = ["layer_norm_grad", "layer_norm_grad_add"].map(|name| count(&fused, name));
    assert_eq!(counts, [1, 1]);
    let values = bindings(&graph);
    assert_eq!(reference::run(&graph, &values).unwrap(), reference::run(&fused, &values).unwrap());
}

#[test]
fn every_rewrite_preserves_the_results_of_every_conformance_case() {
    for seed in 20..23 {
        for case in vit_conformance::cases(seed).unwrap() {
            let expected = reference::run(&case.graph, &case.bindings).unwrap();
            for pass in [
                rewrite::patchify,
                rewrite::fuse_linear,
                rewrite::fuse_add_norm,
                rewrite::fuse_conv,
                rewrite::fuse_norm_grad_add,
                rewrite::save_activation_derivative,
                rewrite::eliminate_dead_tokens,
                rewrite::eliminate_dead_code,
            ] {
                let found = reference::run(&pass(&case.graph).unwrap(), &case.bindings).unwrap();
                assert_eq!(expected, found, "{}", case.name);
            }
        }
    }
}

#[test]
fn layer_scale_becomes_a_factor_of_weights_where_they_are_smaller_than_the_activations() {
    for (tokens, folds) in [(4, false), (5, true)] {
        let x = Tensor::input("x", DType::F32, [2, tokens, 8]);
        let p = |name: &str, shape: &[usize]| x.parameter(name, shape, Init::Zeros);
        let with_bias = x.linear(&p("a", &[6, 8]), Some(&p("a.bias", &[6]))) * p("a.scale", &[6]);
        let without = p("b.scale", &[6]) * x.linear(&p("b", &[6, 8]), None);
        (with_bias * without).output("y");
        let graph = x.finish().unwrap();
        let folded = rewrite::fold_layer_scale(&graph).unwrap();
        let scaled = |graph: &Graph| {
            graph.nodes().iter().filter(|n| n.op.name() == "mul" && n.outputs[0].shape.len() == 3).count()
        };
        assert_eq!((scaled(&graph), scaled(&folded)), (3, if folds { 1 } else { 3 }));
        let values = bindings_of(&graph, [2, tokens, 8]);
        let results = |graph: Graph| reference::run(&with_gradients_of_sum(graph), &values).unwrap();
        let (expected, found) = (results(graph), results(folded));
        assert_eq!(expected.len(), 6);
        for (name, expected) in &expected {
            let pairs = expected.data().iter().zip(found[name].data());
            assert!(pairs.into_iter().all(|(a, b)| (a - b).abs() <= 1e-12 * a.abs().max(1.0)), "{name}");
        }
    }
}

/// Two convolutions with batch norms in inference mode as models write them, a residual and activations.
fn convolutions() -> Graph {
    let x = Tensor::input("x", DType::F32, [2, 5, 6, 3]);
    let p = |name: &str, shape: &[usize]| x.parameter(name, shape, Init::Zeros);
    let conv = |padding: usize| Conv2d {
        stride: [1; 2],
        padding: [[padding; 2]; 2],
        dilation: [1; 2],
        groups: 1,
        bias: false,
    };
    let normed = |y: Tensor, name: &str| y * p(&format!("{name}.scale"), &[4]) + p(&format!("{name}.shift"), &[4]);
    let a = normed(x.conv2d(conv(1), &p("conv1", &[4, 3, 3, 3]), None), "norm1").relu();
    let b = normed(a.conv2d(conv(0), &p("conv2", &[4, 4, 1, 1]), None), "norm2");
    (&b + &a).relu().output("y");
    x.finish().unwrap()
}

#[test]
fn norms_and_epilogues_fuse_into_convolutions() {
    let graph = convolutions();
    let folded = rewrite::fold_batch_norm(&graph).unwrap();
    // The two products scale weights; the only sum left adds the residual.
    assert_eq!((count(&folded, "mul"), count(&folded, "add"), count(&folded, "conv2d")), (2, 1, 2));
    let fused = rewrite::eliminate_dead_code(&rewrite::fuse_conv(&folded).unwrap()).unwrap();
    assert_eq!((count(&fused, "add"), count(&fused, "relu"), count(&fused, "conv2d")), (0, 0, 2));

    let mut values = Bindings::new().with("x", ramp(&[2, 5, 6, 3], 0.0));
    for (i, (_, p)) in graph.parameters().enumerate() {
        values = values.with(&p.name, ramp(&p.shape, i as f64 + 1.0));
    }
    let (expected, found) = (reference::run(&graph, &values).unwrap(), reference::run(&fused, &values).unwrap());
    for (a, b) in expected["y"].data().iter().zip(found["y"].data()) {
        assert!((a - b).abs() <= 1e-12 * (1.0 + a.abs()), "{a} and {b}");
    }
}

#[test]
fn norms_of_updated_weights_do_not_fold() {
    let mut graph = convolutions();
    let scale = graph.parameter("norm1.scale").unwrap();
    let moved = graph.value(vit_graph::ops::Scale(0.5), &[scale]).unwrap();
    graph.update(scale, moved).unwrap();
    let folded = rewrite::fold_batch_norm(&graph).unwrap();
    assert_eq!((count(&folded, "mul"), count(&folded, "add")), (2, 2));
}

#[test]
fn dead_code_is_removed_but_inputs_stay() {
    let x = Tensor::input("x", DType::F32, [2]);
    let unused = x.another_input("unused", DType::F32, [2]);
    unused.gelu().tap("never.asked");
    x.tanh().output("y");
    let graph = rewrite::eliminate_dead_code(&x.finish().unwrap()).unwrap();
    assert_eq!(graph.nodes().len(), 3);
    assert!(graph.nodes().iter().all(|n| matches!(n.op, Op::Input(_)) || n.op.name() == "tanh"));
}

/// Two transformer blocks with attention; the head reads the tokens `read` of the last.
fn sequence(packed: bool, read: &[usize], drop_path: bool) -> Graph {
    let x = Tensor::input("x", DType::F32, [2, 5, 8]);
    let seed = drop_path.then(|| x.another_input("seed", DType::I32, [4]));
    let p = |name: String, shape: &[usize]| x.parameter(&name, shape, Init::Zeros);
    let mut y = x.clone();
    for block in 0..2 {
        let p = |name: &str, shape: &[usize]| p(format!("{block}.{name}"), shape);
        let norm = |t: &Tensor, name: &str| t.layer_norm(&p(&format!("{name}.w"), &[8]), &p(name, &[8]), 1e-6);
        let h = norm(&y, "norm1");
        let op = Attention { heads: 2, scale: 0.5, packed, bias: false, dropout: None };
        let qkv = h.linear(&p("qkv", &[24, 8]), Some(&p("qkv.bias", &[24])));
        let part = |i: usize| qkv.slice(2, 8 * i, 8);
        let [attended, weights] =
            if packed { qkv.attention(op, &[]) } else { part(0).attention(op, &[&part(1), &part(2)]) };
        weights.tap(&format!("{block}.weights"));
        let mut branch = attended.linear(&p("proj", &[8, 8]), None) * p("scale", &[8]);
        if let Some(seed) = &seed {
            branch = branch.dropout(0.5, Granularity::Sample, seed);
        }
        y = y + branch;
        let h = norm(&y, "norm2").linear(&p("fc1", &[16, 8]), Some(&p("fc1.bias", &[16]))).gelu();
        y = &y + &h.linear(&p("fc2", &[8, 16]), None);
        y.tap(&format!("{block}"));
    }
    for &token in read {
        y.slice(1, token, 1).reshape([2, 8]).output(&format!("token {token}"));
    }
    x.finish().unwrap()
}

/// The graph with the gradients of its outputs' sum of squares with respect to every parameter.
fn with_gradients(graph: &Graph) -> Graph {
    let mut graph = graph.clone();
    let outputs: Vec<Value> = graph.outputs().iter().map(|(_, value)| *value).collect();
    let sums: Vec<Value> = outputs
        .into_iter()
        .map(|y| {
            let squares = graph.value(Binary::Mul, &[y, y]).unwrap();
            graph.value(Reduce::sum([0, 1]), &[squares]).unwrap()
        })
        .collect();
    let loss = sums.into_iter().reduce(|a, b| graph.value(Binary::Add, &[a, b]).unwrap()).unwrap();
    let parameters: Vec<(Value, String)> =
        graph.parameters().map(|(node, p)| (Value { node, output: 0 }, p.name.clone())).collect();
    let wrt: Vec<Value> = parameters.iter().map(|(value, _)| *value).collect();
    let found = gradients(&mut graph, loss, &wrt).unwrap();
    for ((_, name), gradient) in parameters.iter().zip(found) {
        graph.set_output(&format!("grad.{name}"), gradient).unwrap();
    }
    graph
}

#[test]
fn the_last_block_computes_only_the_tokens_that_are_read() {
    for (packed, read, drop_path, tokens) in
        [(true, &[0][..], false, 1), (false, &[0], false, 1), (true, &[3, 2], true, 2), (true, &[0, 3], false, 5)]
    {
        let graph = sequence(packed, read, drop_path);
        let narrow = rewrite::eliminate_dead_tokens(&graph).unwrap();
        let mut values = bindings_of(&graph, [2, 5, 8]);
        if drop_path {
            values = values.with("seed", Array::from_fn(&[4].into(), |i| i as f64));
        }
        assert_eq!(reference::run(&graph, &values).unwrap(), reference::run(&narrow, &values).unwrap());
        let [whole, cut] = [&graph, &narrow].map(|g| reference::run(&with_gradients(g), &values).unwrap());
        assert!(whole.len() > 20 && whole.keys().eq(cut.keys()));
        for (name, expected) in &whole {
            let pairs = expected.data().iter().zip(cut[name].data());
            let difference = pairs.fold(0.0f64, |most, (a, b)| most.max((a - b).abs() / (1.0 + a.abs())));
            assert!(difference < 1e-12, "{name}: {difference}");
        }
        let extents = |name: &str| {
            let nodes = narrow.nodes().iter().filter(|n| n.op.name() == name);
            nodes.map(|n| n.outputs[0].shape[1]).collect::<Vec<_>>()
        };
        assert_eq!((extents("attention"), extents("gelu")), (vec![5, tokens], vec![5, tokens]));
        // Taps of whole values stay.
        let taps: Vec<&str> = narrow.taps().keys().map(String::as_str).collect();
        let all = ["0", "0.weights", "1", "1.weights"];
        assert_eq!(taps, all[..if tokens < 5 { 2 } else { 4 }]);
    }
}

#[test]
fn requested_tokens_are_all_computed() {
    for tap in ["1", "1.weights"] {
        let mut graph = sequence(true, &[0], false);
        graph.request(tap).unwrap();
        let narrow = rewrite::eliminate_dead_tokens(&graph).unwrap();
        let attention = narrow.nodes().iter().filter(|n| n.op.name() == "attention");
        assert_eq!(attention.map(|n| n.outputs[0].shape[1]).collect::<Vec<_>>(), [5, 5]);
        let values = bindings_of(&graph, [2, 5, 8]);
        assert_eq!(reference::run(&graph, &values).unwrap(), reference::run(&narrow, &values).unwrap());
    }
}
