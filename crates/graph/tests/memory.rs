//! Values with overlapping live ranges never share memory, and others do.

use vit_graph::memory::{ALIGNMENT, ArenaRange, MemoryPlan, MemoryRequirements, root_of};
use vit_graph::ops::{Attention, Constant, Op, Rotary, RotaryPairs};
use vit_graph::{DType, Graph, Init, Tensor, Value};

/// All ranges of the arena, each with its first and last live node.
fn live_ranges(graph: &Graph, plan: &MemoryPlan) -> Vec<(usize, usize, ArenaRange)> {
    let end = graph.nodes().len();
    let mut ranges = Vec::new();
    for (node, n) in graph.nodes().iter().enumerate() {
        if let Some(range) = plan.workspace(node) {
            ranges.push((node, node, range));
        }
        for output in 0..n.outputs.len() {
            let value = Value { node, output };
            if root_of(graph, value) != value {
                continue;
            }
            let Some(range) = plan.range(graph, value) else { continue };
            let mut last = node;
            for (consumer, c) in graph.nodes().iter().enumerate() {
                if c.inputs.iter().any(|&v| root_of(graph, v) == value) {
                    last = last.max(consumer);
                }
            }
            if graph.outputs().iter().any(|(_, v)| root_of(graph, *v) == value) {
                last = end;
            }
            let first = if matches!(n.op, Op::Input(_)) { 0 } else { node };
            ranges.push((first, last, range));
        }
    }
    ranges
}

fn assert_sound(graph: &Graph, plan: &MemoryPlan) {
    let ranges = live_ranges(graph, plan);
    for (i, (first, last, a)) in ranges.iter().enumerate() {
        assert_eq!(a.offset % ALIGNMENT, 0);
        assert!(a.offset + a.bytes <= plan.arena_bytes);
        for (other_first, other_last, b) in &ranges[i + 1..] {
            let together = first <= other_last && other_first <= last;
            let overlap = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
            assert!(!(together && overlap), "{a:?} and {b:?}");
        }
    }
}

fn with_exact_fit(graph: &Graph, workspace: &dyn Fn(usize) -> usize, exact_fit_from: usize) -> MemoryPlan {
    let requirements = MemoryRequirements {
        bytes: &|value| graph.ty(value).bytes(),
        workspace,
        outside: &|_| false,
        in_place: &|_| false,
        runs_with: &|node| node,
        exact_fit_from,
    };
    MemoryPlan::with_requirements(graph, requirements)
}

#[test]
fn values_alive_at_once_never_overlap() {
    for seed in 40..44 {
        for case in vit_conformance::cases(seed).unwrap() {
            for large in [0, 256, usize::MAX] {
                let plan = with_exact_fit(&case.graph, &|node| node * 100 % 700, large);
                assert_sound(&case.graph, &plan);
            }
        }
    }
}

#[test]
fn a_chain_needs_two_buffers_however_long_it_is() {
    let x = Tensor::input("x", DType::F32, [64, 64]);
    let w = x.parameter("w", [64, 64], Init::Zeros);
    let y = (0..20).fold(x.clone(), |y, _| y.linear(&w, None).reshape([4096]).reshape([64, 64]));
    y.output("y");
    let graph = x.finish().unwrap();
    let plan = MemoryPlan::new(&graph, |_| 0, |_| false);
    assert_sound(&graph, &plan);
    // The input is live throughout, so that the run can be repeated.
    assert_eq!(plan.arena_bytes, 3 * 64 * 64 * 4);
}

#[test]
fn unused_outputs_get_no_memory() {
    let x = Tensor::input("x", DType::F32, [2, 3, 4]);
    let (g, b) = (x.parameter("g", [4], Init::Ones), x.parameter("b", [4], Init::Zeros));
    let y = x.layer_norm(&g, &b, 1e-6);
    y.output("y");
    let graph = x.finish().unwrap();
    let plan = MemoryPlan::new(&graph, |_| 0, |_| false);
    let node = y.value().unwrap().node;
    assert!(plan.range(&graph, Value { node, output: 0 }).is_some());
    assert!(plan.range(&graph, Value { node, output: 1 }).is_none());
}

#[test]
fn large_values_share_memory_only_with_values_of_their_size() {
    let x = Tensor::input("x", DType::F32, [64]);
    let long = Tensor::concat(&[&x.tanh(), &x.gelu()], 0).tanh();
    long.slice(0, 0, 64).gelu().tanh().output("y");
    let graph = x.finish().unwrap();
    let plan = with_exact_fit(&graph, &|_| 0, 256);
    let ranges = live_ranges(&graph, &plan);
    for (_, _, a) in &ranges {
        for (_, _, b) in ranges.iter().filter(|(_, _, b)| b.bytes != a.bytes) {
            assert!(a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset, "{a:?} and {b:?}");
        }
    }
    assert!(plan.arena_bytes > MemoryPlan::new(&graph, |_| 0, |_| false).arena_bytes);
}

#[test]
fn a_value_without_later_consumers_is_updated_in_place() {
    let x = Tensor::input("x", DType::F32, [1, 4, 64]);
    let tables = [(); 2].map(|()| x.constant(Constant::filled([1, 4, 16], 0.5)));
    let op = Rotary { heads: 2, pairs: RotaryPairs::Halves, inverse: false };
    let y = x.gelu();
    let once = y.rotary(op, &tables);
    let twice = once.rotary(op, &tables);
    // The input of the third rotation is read again, and that of the fourth is the graph's.
    let third = twice.rotary(op, &tables);
    (&third + &twice).output("sum");
    x.rotary(op, &tables).output("fourth");
    let graph = x.finish().unwrap();
    let plan = |in_place: bool| {
        let requirements = MemoryRequirements {
            bytes: &|value| graph.ty(value).bytes(),
            workspace: &|_| 0,
            outside: &|_| false,
            in_place: &|_| in_place,
            runs_with: &|node| node,
            exact_fit_from: usize::MAX,
        };
        MemoryPlan::with_requirements(&graph, requirements)
    };
    let range = |plan: &MemoryPlan, tensor: &Tensor| plan.range(&graph, tensor.value().unwrap()).unwrap();
    let (in_place, apart) = (plan(true), plan(false));
    assert_eq!(range(&in_place, &y), range(&in_place, &once));
    assert_eq!(range(&in_place, &once), range(&in_place, &twice));
    assert_ne!(range(&in_place, &twice), range(&in_place, &third));
    assert_ne!(range(&apart, &y), range(&apart, &once));
    assert_sound(&graph, &apart);
    assert_ne!(in_place.range(&graph, Value { node: 0, output: 0 }), Some(range(&in_place, &third)));
}

#[test]
fn an_unused_output_that_its_kernel_writes_gets_memory() {
    let x = Tensor::input("x", DType::F32, [2, 5, 12]);
    let op = Attention { heads: 2, scale: 0.5, packed: true, bias: false, dropout: None };
    let [result, weights] = x.attention(op, &[]);
    weights.output("weights");
    let graph = x.finish().unwrap();
    let plan = MemoryPlan::new(&graph, |_| 0, |_| false);
    assert_sound(&graph, &plan);
    assert!(plan.range(&graph, result.value().unwrap()).is_some());
}

#[test]
fn a_node_fused_into_an_earlier_one_is_live_from_there_on() {
    let x = Tensor::input("x", DType::F32, [64, 64]);
    let first = x.gelu();
    let second = first.gelu();
    let sums = first.sum([0]);
    (&second.sum([0]) + &sums).output("y");
    let [first, second, sums] = [&first, &second, &sums].map(|tensor| tensor.value().unwrap());
    let graph = x.finish().unwrap();
    let plan = MemoryPlan::with_requirements(
        &graph,
        MemoryRequirements {
            bytes: &|value| graph.ty(value).bytes(),
            workspace: &|_| 0,
            outside: &|_| false,
            in_place: &|_| false,
            runs_with: &|node| if node == sums.node { first.node } else { node },
            exact_fit_from: usize::MAX,
        },
    );
    let [first, second, sums] = [first, second, sums].map(|value| plan.range(&graph, value).unwrap());
    for other in [first, second] {
        assert!(sums.offset >= other.offset + other.bytes || other.offset >= sums.offset + sums.bytes);
    }
}
