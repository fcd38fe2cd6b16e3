//! Attention in bf16 in the shapes of real models, against the reference: all kernels of its gradient, with and without
//! bias, padded heads, more streamed tiles than slots of shared memory.

use vit_conformance::Case;
use vit_cuda::Cuda;
use vit_graph::autodiff::gradients;
use vit_graph::ops::Attention;
use vit_graph::reference::{self, Array, Bindings};
use vit_graph::{DType, GraphError, Init, Shape, Tensor, Value};

/// Relative to the largest expected value.
const TOLERANCE: f64 = 1e-2;

/// Samples, heads, tokens, head size, groups of samples with a bias each.
const SHAPES: [(usize, usize, usize, usize, usize); 22] = [
    (8, 3, 49, 32, 4),
    (40, 3, 49, 32, 1),
    (6, 2, 64, 64, 3),
    (3, 2, 9, 24, 1),
    (2, 2, 65, 32, 1),
    (2, 3, 196, 32, 1),
    (4, 1, 144, 32, 2),
    (2, 1, 256, 64, 1),
    (1, 1, 130, 128, 1),
    (3, 12, 197, 64, 0),
    (12, 12, 197, 64, 0),
    (70, 3, 65, 32, 0),
    (70, 3, 65, 64, 0),
    (40, 12, 50, 64, 0),
    (2, 2, 5, 24, 0),
    (3, 2, 1, 8, 0),
    (1, 12, 197, 64, 0),
    (2, 3, 577, 64, 0),
    (2, 4, 257, 80, 0),
    (1, 2, 1025, 64, 0),
    (1, 2, 197, 128, 0),
    (1, 2, 1025, 128, 0),
];

/// The number of failures: wrong outputs, bits that differ, and kernels on Hopper without tensor cores.
pub fn check(device: &Cuda) -> Result<usize, GraphError> {
    let (mut failures, mut worst) = (0, (0.0f64, String::new()));
    for shape in SHAPES {
        for packed in [true, false] {
            let case = case(shape, packed)?;
            println!("  {}", case.name);
            let expected = reference::run(&case.graph, &case.bindings)?;
            let (first, second) = (case.bits(device, 1)?, case.bits(device, 4)?);
            if first != second {
                failures += 1;
                println!("  WRONG {}: not the same bits twice", case.name);
            }
            if device.info().compute_capability.0 == 9 && !on_tensor_cores(device, &case)? {
                failures += 1;
                println!("  WRONG {}: not computed on tensor cores", case.name);
            }
            // Outputs cancel in the loss, so that it has no scale to compare with.
            for ((name, _), found) in case.graph.outputs().iter().zip(&first).filter(|((name, _), _)| name != "loss") {
                let difference = difference(expected[name].data(), found);
                let text = format!("{}: {name} differs by {difference:.1e}", case.name);
                if difference.is_nan() || difference > TOLERANCE {
                    failures += 1;
                    println!("  WRONG {text}");
                } else if difference > worst.0 {
                    worst = (difference, text);
                }
            }
        }
    }
    println!("attention in bf16: {failures} wrong; worst that passed: {}", worst.1);
    Ok(failures)
}

/// The largest difference relative to the largest value, or absolute for gradients that are zero up to rounding (those
/// of the queries of a single key).
fn difference(expected: &[f64], found: &[u32]) -> f64 {
    let largest = expected.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    let differences = expected.iter().zip(found).map(|(e, f)| (e - f64::from(f32::from_bits(*f))).abs());
    // `f64::max` would drop a NaN.
    let worst = differences.fold(0.0f64, |m, d| if d.is_nan() || d > m { d } else { m });
    if largest > 1e-9 { worst / largest } else { worst }
}

fn on_tensor_cores(device: &Cuda, case: &Case) -> Result<bool, GraphError> {
    let steps = case.compile(device)?.steps();
    let mut attention = steps.iter().filter(|step| step.op.starts_with("attention")).peekable();
    Ok(attention.peek().is_some() && attention.all(|step| step.op.ends_with("mma")))
}

/// An input with random values that are exact in bf16, and a value computed from it, which is stored as bf16.
fn input(seed: &Tensor, name: &str, shape: impl Into<Shape>, bindings: &mut Bindings) -> (Tensor, Tensor) {
    let shape = shape.into();
    let mut values = vec![0.0; shape.elements()];
    Init::Normal { std: 2.0 }.fill(9, name, &mut values);
    let rounded = values.iter().map(|v| f64::from(f32::from_bits(v.to_bits() & 0xffff_0000))).collect();
    *bindings = std::mem::take(bindings).with(name, Array::new(shape.clone(), rounded));
    let tensor = seed.another_input(name, DType::F32, shape);
    let half = tensor.scale(0.5);
    (tensor, half)
}

/// One attention and the gradients of its operands and of its bias.
fn case(
    (batch, heads, tokens, head, groups): (usize, usize, usize, usize, usize),
    packed: bool,
) -> Result<Case, GraphError> {
    let seed = Tensor::input("seed", DType::I32, [4]);
    let mut bindings = Bindings::new().with("seed", Array::new(Shape::from([4]), vec![1.0; 4]));
    let width = heads * head;
    let op = Attention { heads, scale: 1.0 / (head as f32).sqrt(), packed, bias: groups > 0, dropout: None };
    let mut parts = if packed { vec!["qkv"] } else { vec!["q", "k", "v"] };
    let mut operands: Vec<(Tensor, Tensor)> = (parts.iter())
        .map(|name| input(&seed, name, [batch, tokens, if packed { 3 * width } else { width }], &mut bindings))
        .collect();
    if op.bias {
        parts.push("bias");
        operands.push(input(&seed, "bias", [groups, heads, tokens, tokens], &mut bindings));
    }
    let others: Vec<&Tensor> = operands[1..].iter().map(|(_, half)| half).collect();
    let y = operands[0].1.attention(op, &others)[0].scale(0.5);
    y.output("y");
    let (_, dy) = input(&seed, "dy", [batch, tokens, width], &mut bindings);
    (&y * &dy).sum(vec![0, 1, 2]).output("loss");
    let given: Vec<Value> = operands.iter().filter_map(|(tensor, _)| tensor.value()).collect();
    let mut graph = seed.finish()?;
    let loss = graph.output("loss").unwrap_or(given[0]);
    for (name, gradient) in parts.iter().zip(gradients(&mut graph, loss, &given)?) {
        graph.set_output(&format!("grad.{name}"), gradient)?;
    }
    let layout = if packed { "packed" } else { "separate" };
    let name = format!("b{batch} h{heads} n{tokens} d{head} {layout}, {groups} biases");
    let names = parts.iter().map(|name| name.to_string()).chain(["dy".to_string()]).collect();
    Ok(Case { name, graph, bindings, names })
}
