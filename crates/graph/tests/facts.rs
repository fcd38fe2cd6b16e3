//! The facts that operations state about themselves hold for the nodes of the conformance cases.

use vit_conformance::{Rng, cases};
use vit_graph::ops::Operation;
use vit_graph::reference::Array;
use vit_graph::{DType, Graph, Node, Shape, Type};

fn graphs() -> Vec<(Graph, String)> {
    (0..3).flat_map(|seed| cases(seed).unwrap()).map(|case| (case.graph, case.name)).collect()
}

fn inputs(graph: &Graph, node: &Node) -> Vec<Type> {
    node.inputs.iter().map(|&v| graph.ty(v).clone()).collect()
}

/// Row `row` of axis 1 of `[batch, rows, width]`.
fn row_of(array: &Array, row: usize) -> Array {
    let &[batch, rows, width] = array.shape() else { unreachable!("only sequences have rows") };
    let at = |i: usize| array.data()[(i / width * rows + row) * width + i % width];
    Array::from_fn(&Shape::from([batch, 1, width]), at)
}

#[test]
fn rows_can_be_computed_alone() {
    let mut compared = 0;
    let mut rng = Rng::new(5, 0);
    for (graph, case) in graphs() {
        for node in graph.nodes().iter().filter(|node| node.op.computes() && node.outputs[0].shape.len() == 3) {
            let types = inputs(&graph, node);
            let Some(by_row) = node.op.row_inputs(&types, &node.outputs[0]).filter(|by_row| by_row.contains(&true))
            else {
                continue;
            };
            let value =
                |ty: &Type| Array::from_fn(&ty.shape, |_| if ty.dtype == DType::I32 { 0.0 } else { rng.value() });
            let values: Vec<Array> = types.iter().map(value).collect();
            let whole = &node.op.evaluate(&values.iter().collect::<Vec<_>>(), &node.outputs)[0];
            for row in [0, whole.shape()[1] - 1] {
                let narrow =
                    |(value, by_row): (&Array, &bool)| if *by_row { row_of(value, row) } else { value.clone() };
                let narrow: Vec<Array> = values.iter().zip(&by_row).map(narrow).collect();
                let types: Vec<Type> =
                    types.iter().zip(&narrow).map(|(ty, value)| Type::new(ty.dtype, value.shape())).collect();
                let outputs = node.op.infer(&types).unwrap();
                let found = &node.op.evaluate(&narrow.iter().collect::<Vec<_>>(), &outputs)[0];
                assert_eq!(found.data(), row_of(whole, row).data(), "{} of {case}", node.op.name());
                compared += 1;
            }
        }
    }
    assert!(compared > 100, "only {compared} rows were compared");
}

#[test]
fn an_output_has_the_type_of_the_input_that_it_may_overwrite() {
    let mut pairs = 0;
    for (graph, case) in graphs() {
        for node in graph.nodes() {
            for &(input, output) in node.op.in_place() {
                assert_eq!(inputs(&graph, node)[input], node.outputs[output], "{} of {case}", node.op.name());
                pairs += 1;
            }
        }
    }
    assert!(pairs > 0);
}

#[test]
fn elementwise_outputs_have_the_broadcast_shape_of_the_inputs() {
    for (graph, case) in graphs() {
        for node in graph.nodes().iter().filter(|node| node.op.is_elementwise()) {
            let shape = inputs(&graph, node).iter().try_fold(Shape::default(), |s, ty| s.broadcast(&ty.shape));
            assert_eq!(shape.as_ref(), Some(&node.outputs[0].shape), "{} of {case}", node.op.name());
        }
    }
}
