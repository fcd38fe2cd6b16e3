//! Shapes that are too large for the conformance suite: rows of a whole block, several tiles of tokens, sums in two
//! stages, tensors of more than one chunk.

use vit_conformance::{Case, check};
use vit_cuda::{Cuda, Precision};
use vit_graph::autodiff::gradients;
use vit_graph::ops::{Attention, Constant, Conv2d, Dropout, GlobalNorm, Granularity};
use vit_graph::reference::{Array, Bindings};
use vit_graph::{DType, Init, Shape, Tensor, Value};

/// Declares inputs with random values.
struct RandomInputs {
    seed: Tensor,
    bindings: Bindings,
    given: Vec<(String, Value)>,
}

impl RandomInputs {
    fn float(&mut self, shape: impl Into<Shape>) -> Tensor {
        let (shape, name) = (shape.into(), format!("p{}", self.given.len()));
        let mut values = vec![0.0; shape.elements()];
        Init::Normal { std: 1.0 }.fill(5, &name, &mut values);
        let array = Array::new(shape.clone(), values.into_iter().map(f64::from).collect());
        self.bindings = std::mem::take(&mut self.bindings).with(&name, array);
        let tensor = self.seed.another_input(&name, DType::F32, shape);
        self.given.extend(tensor.value().map(|value| (name, value)));
        // Inputs are stored as f32 in every precision; computed values are not.
        tensor.scale(0.5)
    }
}

/// A case with the gradients of all its inputs.
fn case(name: &str, build: impl FnOnce(&mut RandomInputs) -> Tensor) -> Case {
    let seed = Tensor::input("seed", DType::I32, [4]);
    let words = Array::new(Shape::from([4]), vec![11.0, -7.0, 3.0, 0.0]);
    let mut inputs =
        RandomInputs { seed: seed.clone(), bindings: Bindings::new().with("seed", words), given: Vec::new() };
    let y = build(&mut inputs);
    y.output("y");
    let shape = y.shape();
    let mut weights = vec![0.0; shape.elements()];
    Init::Normal { std: 1.0 / (shape.elements() as f32).sqrt() }.fill(6, "weights", &mut weights);
    let axes: Vec<usize> = (0..shape.len()).collect();
    (&y * &y.constant(Constant::f32(shape, weights))).sum(axes).output("loss");
    let mut graph = seed.finish().unwrap();
    let loss = graph.output("loss").unwrap();
    let wrt: Vec<Value> = inputs.given.iter().map(|(_, value)| *value).collect();
    let found = gradients(&mut graph, loss, &wrt).unwrap();
    for ((name, _), gradient) in inputs.given.iter().zip(found) {
        graph.set_output(&format!("grad.{name}"), gradient).unwrap();
    }
    let names = inputs.given.into_iter().map(|(name, _)| name).collect();
    Case { name: name.into(), graph, bindings: inputs.bindings, names }
}

/// Attention with a bias for each of `groups` groups of samples, or without a bias for 0.
fn attention(heads: usize, head: usize, tokens: usize, groups: usize, dropout: bool) -> Case {
    case(&format!("attention {heads}x{head} over {tokens} with {groups} biases"), |m| {
        let bias = groups > 0;
        let dropout =
            dropout.then(|| Dropout { rate: 0.2, stream: m.seed.random_stream(), granularity: Granularity::Element });
        let op = Attention { heads, scale: 1.0 / (head as f32).sqrt(), packed: true, bias, dropout };
        let qkv = m.float([2 * groups.max(1), tokens, 3 * heads * head]);
        let mut others = Vec::new();
        others.extend(bias.then(|| m.float([groups, heads, tokens, tokens])));
        others.extend(dropout.map(|_| m.seed.clone()));
        // Outputs are stored as f32 in every precision; the attention's result is not.
        qkv.attention(op, &others.iter().collect::<Vec<_>>())[0].scale(2.0)
    })
}

/// Attention of a few queries to more keys.
fn cross_attention(queries: usize, keys: usize) -> Case {
    case(&format!("attention of {queries} to {keys}"), |m| {
        let op = Attention { heads: 2, scale: 0.2, packed: false, bias: true, dropout: None };
        let (q, k, v) = (m.float([4, queries, 64]), m.float([4, keys, 64]), m.float([4, keys, 64]));
        let bias = m.float([2, 2, queries, keys]);
        q.attention(op, &[&k, &v, &bias])[0].scale(2.0)
    })
}

fn all() -> Vec<Case> {
    let mut all = Vec::new();
    for dim in [192, 768, 1280, 1664, 4100] {
        all.push(case(&format!("layer_norm of {dim}"), |m| {
            let (x, gamma, beta) = (m.float([11, dim]), m.float([dim]), m.float([dim]));
            x.layer_norm(&gamma, &beta, 1e-6)
        }));
        // The gradient of the residual sum is fused with that of the norm.
        all.push(case(&format!("residual and layer_norm of {dim}"), |m| {
            let (x, gamma, beta) = (m.float([11, dim]), m.float([dim]), m.float([dim]));
            let h = x.scale(0.5);
            h.layer_norm(&gamma, &beta, 1e-6) + h
        }));
    }
    // The column sums of a norm's gradient, which are the gradient of the bias before it, without and with a residual.
    for (rows, dim) in [(19, 96), (700, 192), (150, 768), (33, 1664)] {
        for residual in [false, true] {
            all.push(case(&format!("bias before layer_norm of {dim}, residual: {residual}"), |m| {
                let (x, w, b) = (m.float([rows, 8]), m.float([dim, 8]), m.float([dim]));
                let (gamma, beta) = (m.float([dim]), m.float([dim]));
                let h = x.linear(&w, Some(&b));
                let normed = h.layer_norm(&gamma, &beta, 1e-6);
                if residual { normed + h } else { normed }
            }));
        }
    }
    for (rows, columns) in [(700, 72), (130, 9), (1500, 8)] {
        all.push(case(&format!("bias before gelu, {rows} rows of {columns}"), |m| {
            let (x, w, b) = (m.float([rows, 16]), m.float([columns, 16]), m.float([columns]));
            // Scaled so that sums over many rows are around 1.
            x.linear(&w, Some(&b)).gelu().scale(0.1)
        }));
    }
    all.push(attention(2, 64, 101, 0, false));
    all.push(attention(1, 128, 70, 2, true));
    all.push(attention(2, 80, 65, 2, false));
    all.push(attention(3, 32, 49, 4, false));
    all.push(attention(2, 32, 49, 1, true));
    all.push(attention(1, 64, 64, 1, false));
    all.push(attention(2, 32, 196, 1, false));
    all.push(attention(1, 40, 144, 2, false));
    all.push(attention(1, 32, 257, 1, false));
    for (head, tokens) in [(64, 209), (64, 257), (80, 257), (64, 320)] {
        all.push(attention(1, head, tokens, 0, false));
    }
    all.push(cross_attention(7, 50));
    all.push(cross_attention(70, 20));
    for axes in [vec![0], vec![1], vec![2], vec![0, 2], vec![0, 1]] {
        all.push(case(&format!("sum over {axes:?}"), |m| m.float([3, 700, 9]).sum(axes.clone()).scale(0.05)));
    }
    all.push(case("norm of several chunks", |m| {
        let (x, y) = (m.float([3, 9001]), m.float([17]));
        // The global norm has no gradient, so only its value is compared.
        let norm = x.apply(GlobalNorm, &[&y]);
        norm.output("norm");
        x.scale(2.0)
    }));
    all.push(case("convolution", |m| {
        let conv = Conv2d { stride: [2, 2], padding: [[3, 3], [3, 3]], dilation: [1, 1], groups: 1, bias: true };
        let (x, w, b) = (m.float([2, 30, 30, 3]), m.float([20, 3, 7, 7]), m.float([20]));
        // Scaled to around 1, so that outputs do not cancel in the loss.
        x.conv2d(conv, &w, Some(&b)).scale(0.3)
    }));
    all.push(case("gelu after a linear layer", |m| {
        let (x, w, b) = (m.float([40, 72]), m.float([136, 72]), m.float([136]));
        x.linear(&w, Some(&b)).gelu()
    }));
    all
}

/// In bf16, the gradient of as many heads as a GPU has multiprocessors is computed a head at a time.
#[test]
fn gradients_of_whole_heads_agree_with_the_reference() {
    let device = match Cuda::new(0, Precision::Bf16) {
        Ok(device) => device,
        Err(reason) => return eprintln!("skipped: {reason}"),
    };
    let case = attention(72, 40, 257, 0, false);
    for (output, difference) in check(&device, &case).unwrap() {
        assert!(difference <= 2e-2, "{}: {output} differs by {difference:e}", case.name);
    }
}

#[test]
fn larger_shapes_agree_with_the_reference() {
    // Longer sums than in the suite: up to a thousand terms.
    for (precision, tolerance) in [(Precision::F32, 1e-5), (Precision::Bf16, 2e-2)] {
        let device = match Cuda::new(0, precision) {
            Ok(device) => device,
            Err(reason) => return eprintln!("skipped: {reason}"),
        };
        for case in all() {
            for (output, difference) in check(&device, &case).unwrap() {
                assert!(difference <= tolerance, "{precision}, {}: {output} differs by {difference:e}", case.name);
            }
        }
    }
}
