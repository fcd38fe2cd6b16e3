//! Invalid graphs are errors that say what is wrong, never panics.

use vit_graph::ops::*;
use vit_graph::rewrite::eliminate_dead_code;
use vit_graph::{DType, Graph, GraphError, Init, Op, Shape, Tensor, Type, Value};

fn input(graph: &mut Graph, name: &str, shape: &[usize]) -> Value {
    graph.value(Input { name: name.into(), ty: Type::f32(shape) }, &[]).unwrap()
}

fn parameter(graph: &mut Graph, name: &str, shape: &[usize]) -> Value {
    graph.value(Parameter::new(name, shape, Init::Zeros), &[]).unwrap()
}

/// The error of one operation on inputs of these shapes.
fn refusal(op: impl Into<Op>, shapes: &[&[usize]]) -> String {
    let mut graph = Graph::new();
    let inputs: Vec<Value> =
        shapes.iter().enumerate().map(|(i, shape)| input(&mut graph, &format!("x{i}"), shape)).collect();
    graph.add(op, &inputs).unwrap_err().to_string()
}

#[test]
fn a_filter_without_axes_was_a_panic() {
    let conv = Conv2d::patches([2, 2], true);
    let error = refusal(conv, &[&[1, 4, 4, 3], &[], &[]]);
    assert_eq!(
        error,
        "conv2d in the model: the weight should have 4 axes, not 0 (inputs f32[1, 4, 4, 3], f32[], f32[])"
    );
}

#[test]
fn extents_that_overflow_or_are_missing_were_panics() {
    let huge = usize::MAX;
    let pool = Pool2d {
        pooling: PoolMode::Max,
        kernel: [huge; 2],
        stride: [1; 2],
        padding: [[huge - 1; 2]; 2],
        count_padding: false,
    };
    let attention = Attention { heads: huge, scale: 1.0, packed: true, bias: false, dropout: None };
    let fused =
        FusedConv2d { conv: Conv2d::patches([1, 1], false), kernel: [huge, 1], activation: None, residual: None };
    let norm = [&[2, 4][..], &[2, 4], &[3], &[2], &[2]];
    for (op, shapes) in [
        (Op::from(pool), &[&[1, 4, 4, 3][..]][..]),
        (attention.into(), &[&[1, 4, 6]]),
        (fused.into(), &[&[1, 4, 4, 3], &[5, 3]]),
        (Windows { size: [huge, 2], shift: [0; 2] }.into(), &[&[1, 4, 4, 3]]),
        (LayerNormGrad { centred: true }.into(), &norm),
        (BatchNormGrad.into(), &norm),
        (GroupNormGrad { groups: 0 }.into(), &norm),
    ] {
        let name = op.name();
        assert!(refusal(op, shapes).starts_with(&format!("{name} in the model: ")), "{name}");
    }
    let x = Tensor::input("x", DType::F32, [1]);
    let indices = x.constant(Constant::i32([1], vec![0]));
    x.apply(GatherGrad { table: Shape::default() }, &[&indices]);
    assert!(x.finish().unwrap_err().to_string().contains("the table has no rows"));
}

#[test]
fn concat_of_nothing_was_a_panic() {
    let nothing = Tensor::concat(&[], 0);
    let expected = "concat in the model: there is nothing to concatenate (inputs [])";
    assert_eq!(nothing.finish().unwrap_err().to_string(), expected);
    // The error reaches the graph in which the result is used.
    let x = Tensor::input("x", DType::F32, [2]);
    (&x + &nothing).output("y");
    assert_eq!(x.finish().unwrap_err().to_string(), expected);
}

#[test]
fn values_of_two_graphs_do_not_mix() {
    let (x, y) = (Tensor::input("x", DType::F32, [2]), Tensor::input("y", DType::F32, [2]));
    (&x + &y.relu()).output("sum");
    assert!(x.finish().unwrap_err().to_string().contains("values of two graphs"));

    let mut graph = Graph::new();
    input(&mut graph, "x", &[2]);
    let foreign = Value { node: 3, output: 0 };
    let errors = [
        graph.add(Activation::Relu, &[foreign]).unwrap_err(),
        graph.set_output("y", foreign).unwrap_err(),
        graph.update(foreign, foreign).unwrap_err(),
    ];
    errors.iter().for_each(|error| assert!(error.to_string().contains("has no such value"), "{error}"));
}

#[test]
fn outputs_that_an_operation_does_not_have_were_a_panic() {
    let x = Tensor::input("x", DType::F32, [2]);
    let outputs = x.apply_outputs(Activation::Relu, &[], 2);
    assert_eq!(outputs[1].shape(), Shape::default());
    assert!(x.finish().unwrap_err().to_string().contains("it has 1 outputs, not 2"));
}

#[test]
fn dead_code_panicked_at_an_update_that_does_not_read_its_parameter() {
    let mut graph = Graph::new();
    let x = input(&mut graph, "x", &[2]);
    let p = parameter(&mut graph, "p", &[2]);
    let new = graph.value(Scale(2.0), &[x]).unwrap();
    graph.update(p, new).unwrap();
    let alive = eliminate_dead_code(&graph).unwrap();
    assert_eq!(alive.updates().len(), 1);
    assert_eq!(alive.parameters().next().unwrap().1.name, "p");
}

#[test]
fn a_parameter_is_updated_once() {
    let mut graph = Graph::new();
    let x = input(&mut graph, "x", &[2]);
    let p = parameter(&mut graph, "p", &[2]);
    graph.update(p, x).unwrap();
    let error: GraphError = graph.update(p, x).unwrap_err();
    assert!(error.to_string().contains("`p` is already updated"), "{error}");
}
