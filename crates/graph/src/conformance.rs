//! The device test-suite, written once: random small graphs that cover every operation, forward and backward.
//!
//! [`cases`] makes them, [`check`] runs one on a device and compares every output with the reference interpreter.
//! The gradients in them are checked against finite differences by this crate's own tests.

use std::collections::BTreeMap;

use crate::autodiff::gradients;
use crate::device::{Device, Elements};
use crate::ops::*;
use crate::random::{Seed, philox};
use crate::reference::{self, Array, Bindings};
use crate::{DType, Graph, GraphError, Init, Op, Shape, Tensor, Value};

/// One graph with values for everything it needs.
pub struct Case {
    /// What it covers, with its shapes.
    pub name: String,
    /// Outputs `y0`, `y1`, … and, where the operation has a gradient, `loss` and `grad.NAME` for each of `names`.
    pub graph: Graph,
    /// The inputs and parameters.
    pub bindings: Bindings,
    /// The names of the floating-point inputs and parameters.
    pub names: Vec<String>,
}

/// A reproducible source of shapes and numbers.
pub struct Dice(u32, u32);

impl Dice {
    /// Dice for one seed.
    pub fn new(seed: u32) -> Self {
        Dice(seed, 0)
    }

    fn word(&mut self) -> u32 {
        self.1 += 1;
        philox([self.1, 0, 0, 0], [self.0, 0x7e57])[0]
    }

    /// An extent: often 1, odd, or around a vector's length.
    pub fn extent(&mut self) -> usize {
        *self.pick(&[1, 1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17])
    }

    /// A larger extent, with all of the above.
    pub fn wide(&mut self) -> usize {
        *self.pick(&[1, 3, 7, 8, 15, 16, 17, 24, 31, 32, 33, 47, 64, 65])
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.word() as usize % from.len()]
    }

    /// A yes or a no.
    pub fn flip(&mut self) -> bool {
        self.word() & 1 == 1
    }

    /// A number near zero, about normal.
    pub fn number(&mut self) -> f64 {
        let sum: f64 = (0..4).map(|_| f64::from(self.word()) / 4294967296.0).sum();
        // Rounded, so that a device that takes f32 sees the same number.
        f64::from(((sum - 2.0) * 1.7) as f32)
    }
}

/// Builds a case: hands out inputs and parameters with random values.
struct Maker<'a> {
    dice: &'a mut Dice,
    seed: Tensor,
    bindings: Bindings,
    given: Vec<(String, Value)>,
}

impl Maker<'_> {
    fn float(&mut self, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        let name = format!("p{}", self.given.len());
        let value = Array::from_fn(&shape, |_| self.dice.number());
        self.bindings = std::mem::take(&mut self.bindings).with(&name, value);
        // Devices may treat parameters otherwise: pack them, compute what depends on them alone only once.
        let tensor = if *self.dice.pick(&[true, true, false]) {
            self.seed.another_input(&name, DType::F32, shape)
        } else {
            self.seed.parameter(&name, shape, Init::Zeros)
        };
        self.given.extend(tensor.value().map(|value| (name, value)));
        tensor
    }

    fn weights_like(&mut self, y: &Tensor) -> Tensor {
        let shape = y.shape();
        // Small enough that the loss is of the size of one element: a sum of many would cancel and hide its error.
        let scale = 1.0 / (shape.elements() as f32).sqrt().max(1.0);
        let numbers = (0..shape.elements()).map(|_| scale * self.dice.number() as f32).collect();
        y.constant(Constant::f32(shape, numbers))
    }
}

/// What a case's outputs are for.
enum Outputs {
    /// The loss is a random combination of these, and gradients are wanted.
    Differentiable(Vec<Tensor>),
    /// As above for the first; the others are only compared.
    FirstDifferentiable(Vec<Tensor>),
    /// Forward only.
    Forward(Vec<Tensor>),
}

fn case(name: &str, dice: &mut Dice, build: impl Fn(&mut Maker) -> Outputs) -> Result<Case, GraphError> {
    let seed = Tensor::input("seed", DType::I32, [4]);
    let words = Seed::new(u64::from(dice.word()), 3).0;
    let bindings = Bindings::new().with("seed", Array::new([4], words.map(f64::from).to_vec()));
    let mut maker = Maker { dice, seed: seed.clone(), bindings, given: Vec::new() };
    let (outputs, differentiable) = match build(&mut maker) {
        Outputs::Differentiable(all) => {
            let count = all.len();
            (all, count)
        }
        Outputs::FirstDifferentiable(all) => (all, 1),
        Outputs::Forward(all) => (all, 0),
    };
    let mut shapes = Vec::new();
    let mut loss: Option<Tensor> = None;
    for (i, y) in outputs.iter().enumerate() {
        y.output(&format!("y{i}"));
        shapes.push(y.shape().to_string());
        if i < differentiable {
            let weighted = (y * &maker.weights_like(y)).sum((0..y.shape().len()).collect::<Vec<_>>());
            loss = Some(loss.map_or(weighted.clone(), |l| l + weighted));
        }
    }
    if let Some(loss) = &loss {
        loss.output("loss");
    }
    let mut graph = seed.finish()?;
    if loss.is_some() {
        let loss = graph.output("loss")?;
        let wrt: Vec<Value> = maker.given.iter().map(|(_, value)| *value).collect();
        let found = gradients(&mut graph, loss, &wrt)?;
        for ((name, _), gradient) in maker.given.iter().zip(found) {
            graph.set_output(&format!("grad.{name}"), gradient)?;
        }
    }
    let name = format!("{name} {}", shapes.join(" "));
    let names = maker.given.into_iter().map(|(name, _)| name).collect();
    Ok(Case { name, graph, bindings: maker.bindings, names })
}

/// Cases for every operation, different for every seed.
pub fn cases(seed: u32) -> Result<Vec<Case>, GraphError> {
    use Outputs::{Differentiable, FirstDifferentiable, Forward};
    let dice = &mut Dice::new(seed);
    let mut all = Vec::new();

    for leading in [0usize, 1, 2] {
        let bias = dice.flip();
        all.push(case("linear", dice, |m| {
            let (k, n) = (m.dice.wide(), m.dice.wide());
            let mut shape: Vec<usize> = (0..leading).map(|_| m.dice.extent()).collect();
            shape.push(k);
            let (x, w) = (m.float(shape), m.float([n, k]));
            let b = bias.then(|| m.float([n]));
            Differentiable(vec![x.linear(&w, b.as_ref())])
        })?);
    }
    for activation in ACTIVATIONS.into_iter().map(Some).chain([None]) {
        let (bias, scale, residual) = (dice.flip(), dice.flip(), dice.flip());
        all.push(case("fused linear", dice, |m| {
            let (rows, k, n) = (m.dice.extent(), m.dice.wide(), m.dice.wide());
            let mut others = vec![m.float([n, k])];
            others.extend(bias.then(|| m.float([n])));
            others.extend(scale.then(|| m.float([n])));
            others.extend(residual.then(|| m.float([rows, n])));
            let op = Linear { bias, activation, scale, residual, int8: false };
            Forward(vec![m.float([rows, k]).apply(op, &others.iter().collect::<Vec<_>>())])
        })?);
    }
    for activation in ACTIVATIONS {
        let bias = dice.flip();
        all.push(case("linear with derivative", dice, |m| {
            let (rows, k, n) = (m.dice.extent(), m.dice.wide(), m.dice.wide());
            let mut others = vec![m.float([n, k])];
            others.extend(bias.then(|| m.float([n])));
            let op = LinearWithDerivative { bias, activation };
            Forward(m.float([rows, k]).apply_outputs(op, &others.iter().collect::<Vec<_>>(), 2))
        })?);
        // Devices may keep the derivative of the activation, and multiply by it where its gradient is computed.
        all.push(case("perceptron", dice, |m| {
            let (b, rows, k, n) = (m.dice.extent(), m.dice.extent(), m.dice.wide(), m.dice.wide());
            let (x, up, down) = (m.float([b, rows, k]), m.float([n, k]), m.float([k, n]));
            let bias = bias.then(|| m.float([n]));
            let h = x.linear(&up, bias.as_ref()).activation(activation);
            Differentiable(vec![if m.dice.flip() { h.linear(&down, None) } else { h.scale(1.5) }])
        })?);
    }
    for activation in [None, Some(Activation::Gelu)] {
        let (bias, residual) = (dice.flip(), dice.flip());
        all.push(case("linear in eight bits", dice, |m| {
            let (rows, k, n) = (m.dice.extent(), m.dice.wide(), m.dice.wide());
            // Devices may ask for weights that never change.
            let numbers = (0..n * k).map(|_| m.dice.number() as f32).collect();
            let mut others = vec![m.seed.constant(Constant::f32([n, k], numbers))];
            others.extend(bias.then(|| m.float([n])));
            others.extend(residual.then(|| m.float([rows, n])));
            let op = Linear { bias, activation, residual, int8: true, ..Linear::default() };
            Forward(vec![m.float([rows, k]).apply(op, &others.iter().collect::<Vec<_>>())])
        })?);
    }
    for (transpose_a, transpose_b) in [(false, false), (false, true), (true, false), (true, true)] {
        let batched = dice.flip();
        all.push(case("matmul", dice, |m| {
            let (b, i, j, k) = (m.dice.extent(), m.dice.wide(), m.dice.wide(), m.dice.wide());
            let matrix = |transposed: bool, rows, columns| if transposed { [columns, rows] } else { [rows, columns] };
            let shape = |s: [usize; 2]| if batched { vec![b, s[0], s[1]] } else { s.to_vec() };
            let x = m.float(shape(matrix(transpose_a, i, k)));
            let y = m.float(shape(matrix(transpose_b, k, j)));
            let product = MatMul { transpose_a, transpose_b };
            let factor = m.float(shape([i, j]));
            let times = x.apply(MatMulTimes(product), &[&y, &factor]);
            FirstDifferentiable(vec![x.apply(product, &[&y]), times])
        })?);
    }
    for groups in [1, 1, 2, 3] {
        all.push(case("conv2d", dice, |m| {
            let d = &mut m.dice;
            let (b, kernel) = (*d.pick(&[1, 2, 3]), [*d.pick(&[1, 2, 3]), *d.pick(&[1, 2, 3])]);
            let conv = Conv2d {
                stride: [*d.pick(&[1, 2, 3]), *d.pick(&[1, 2])],
                padding: [[*d.pick(&[0, 1]), *d.pick(&[0, 1, 2])], [*d.pick(&[0, 1]), *d.pick(&[0, 2])]],
                dilation: [*d.pick(&[1, 2]), *d.pick(&[1, 1, 2])],
                groups,
                bias: d.flip(),
            };
            let (channels, filters) = (groups * *d.pick(&[1, 2, 5]), groups * *d.pick(&[1, 3, 17]));
            let size = [*d.pick(&[5, 8, 9]), *d.pick(&[5, 6, 11])];
            let x = m.float([b, size[0], size[1], channels]);
            let w = m.float([filters, channels / groups, kernel[0], kernel[1]]);
            let bias = conv.bias.then(|| m.float([filters]));
            Differentiable(vec![x.conv2d(conv, &w, bias.as_ref())])
        })?);
    }
    // Channels in whole vectors, for which devices have kernels of their own.
    for kernel in [[1, 1], [3, 3], [2, 5]] {
        all.push(case("conv2d of many channels", dice, |m| {
            let d = &mut m.dice;
            let stride = *d.pick(&[1, 2, 3]);
            let padding = kernel.map(|k| [*d.pick(&[0, k / 2]), k / 2]);
            let conv = Conv2d { stride: [stride; 2], padding, dilation: [1; 2], groups: 1, bias: d.flip() };
            // Sums of a few hundred terms, as in the other cases.
            let channels = *d.pick(if kernel == [1, 1] { &[8, 64, 72] } else { &[8, 16, 24] });
            let filters = *d.pick(&[8, 24, 72]);
            let shape = [*d.pick(&[1, 2]), *d.pick(&[4, 7]), *d.pick(&[5, 8, 9]), channels];
            let x = m.float(shape);
            let w = m.float([filters, channels, kernel[0], kernel[1]]);
            let bias = conv.bias.then(|| m.float([filters]));
            Differentiable(vec![x.conv2d(conv, &w, bias.as_ref())])
        })?);
    }
    for (order, activation) in
        [(0, Activation::Relu), (1, Activation::Relu), (2, Activation::Silu), (3, Activation::Gelu)]
    {
        all.push(case("conv2d and what follows", dice, |m| {
            let d = &mut m.dice;
            let (b, kernel, stride) = (*d.pick(&[1, 2]), *d.pick(&[1, 3]), *d.pick(&[1, 2]));
            let (channels, filters) = (*d.pick(&[1, 3, 8, 17]), *d.pick(&[1, 7, 16, 50, 65]));
            let padding = [[kernel / 2, kernel / 2], [0, kernel / 2]];
            let conv = Conv2d { stride: [stride; 2], padding, dilation: [1; 2], groups: 1, bias: d.flip() };
            let size = [*d.pick(&[5, 8]), *d.pick(&[6, 11])];
            let x = m.float([b, size[0], size[1], channels]);
            let w = m.float([filters, channels, kernel, kernel]);
            let bias = conv.bias.then(|| m.float([filters]));
            let y = x.conv2d(conv, &w, bias.as_ref());
            let (scale, shift) = (m.float([filters]), m.float([filters]));
            let y = if order == 3 { y * scale + shift } else { y };
            let residual = m.float(y.shape());
            Differentiable(vec![match order {
                0 => y.activation(activation),
                1 => (y + residual).activation(activation),
                2 => residual + y.activation(activation),
                _ => y + residual,
            }])
        })?);
    }
    for depthwise in [3, 16, 33] {
        all.push(case("depthwise conv2d", dice, |m| {
            let d = &mut m.dice;
            let (kernel, stride) = (*d.pick(&[3, 5]), *d.pick(&[1, 2]));
            let padding = [[*d.pick(&[0, 1, 2]), *d.pick(&[1, 2])], [*d.pick(&[1, 2]), *d.pick(&[0, 1, 2])]];
            let conv = Conv2d { stride: [stride; 2], padding, dilation: [1; 2], groups: depthwise, bias: d.flip() };
            let size = [*d.pick(&[5, 8, 9]), *d.pick(&[5, 6, 19])];
            let batch = *d.pick(&[1, 2]);
            let x = m.float([batch, size[0], size[1], depthwise]);
            let w = m.float([depthwise, 1, kernel, kernel]);
            let bias = conv.bias.then(|| m.float([depthwise]));
            Differentiable(vec![x.conv2d(conv, &w, bias.as_ref())])
        })?);
    }
    for (pooling, count_padding) in
        [(PoolMode::Max, false), (PoolMode::Max, true), (PoolMode::Mean, false), (PoolMode::Mean, true)]
    {
        all.push(case("pool", dice, |m| {
            let d = &mut m.dice;
            let kernel = [*d.pick(&[1, 2, 3]), *d.pick(&[2, 3])];
            let pool = Pool2d {
                pooling,
                kernel,
                stride: [*d.pick(&[1, 2, 3]), *d.pick(&[1, 2])],
                padding: [
                    [*d.pick(&[0, 1]) % kernel[0], *d.pick(&[0, 2]) % kernel[0]],
                    [*d.pick(&[0, 1]), *d.pick(&[0, 1])],
                ],
                count_padding,
            };
            let shape = [*d.pick(&[1, 2]), *d.pick(&[3, 5, 8]), *d.pick(&[4, 7]), d.wide()];
            Differentiable(vec![m.float(shape).pool2d(pool)])
        })?);
    }
    for layout in [ImageLayout::ChannelsFirst, ImageLayout::ChannelsLast] {
        all.push(case("patchify", dice, |m| {
            let patch = [*m.dice.pick(&[1, 2, 3]), *m.dice.pick(&[1, 2, 4, 8])];
            let (b, c) = (m.dice.extent(), *m.dice.pick(&[1, 3, 4]));
            let size = [patch[0] * 2 + *m.dice.pick(&[0, 1]) % patch[0], patch[1] * 3];
            let shape = match layout {
                ImageLayout::ChannelsFirst => [b, c, size[0], size[1]],
                ImageLayout::ChannelsLast => [b, size[0], size[1], c],
            };
            let image = m.float(shape);
            let patchify = Patchify { patch, layout };
            let patches = image.apply(patchify, &[]);
            let again = patches.apply(Unpatchify { patchify, image: Shape::from(shape) }, &[]);
            Differentiable(vec![patches, again])
        })?);
    }
    for (packed, bias, dropout) in [
        (true, false, false),
        (true, true, false),
        (false, false, false),
        (false, true, false),
        (false, true, true),
        (true, false, true),
    ] {
        all.push(case("attention", dice, |m| {
            let (heads, head_dim) = (*m.dice.pick(&[1, 2, 3]), *m.dice.pick(&[1, 3, 8, 16, 20, 64]));
            let groups = *m.dice.pick(&[1, 2]);
            let batch = groups * *m.dice.pick(&[1, 2]);
            let queries = *m.dice.pick(&[1, 2, 5, 17, 37]);
            let keys = if packed { queries } else { *m.dice.pick(&[1, 3, 16, 35]) };
            let width = heads * head_dim;
            let dropout = dropout.then(|| Dropout {
                rate: 0.3,
                stream: m.seed.random_stream(),
                granularity: Granularity::Element,
            });
            let op = Attention { heads, scale: 1.0 / (head_dim as f32).sqrt(), packed, bias, dropout };
            let q = m.float([batch, queries, if packed { 3 * width } else { width }]);
            let mut others = Vec::new();
            if !packed {
                others.extend([m.float([batch, keys, width]), m.float([batch, keys, width])]);
            }
            others.extend(bias.then(|| m.float([groups, heads, queries, keys])));
            others.extend(dropout.map(|_| m.seed.clone()));
            let [out, weights] = q.attention(op, &others.iter().collect::<Vec<_>>());
            FirstDifferentiable(vec![out, weights])
        })?);
    }
    for _ in 0..2 {
        all.push(case("layer_norm", dice, |m| {
            let (rows, extra, dim) = (m.dice.extent(), m.dice.extent(), *m.dice.pick(&[2, 3, 16, 17, 48, 65]));
            let (x, gamma, beta) = (m.float([rows, extra, dim]), m.float([dim]), m.float([dim]));
            Differentiable(vec![x.layer_norm(&gamma, &beta, 1e-3)])
        })?);
        all.push(case("add_layer_norm", dice, |m| {
            let (rows, dim) = (m.dice.extent(), *m.dice.pick(&[2, 3, 16, 17, 48, 65]));
            let (x, y, gamma, beta) = (m.float([rows, dim]), m.float([rows, dim]), m.float([dim]), m.float([dim]));
            let node = x.apply(AddLayerNorm(LayerNorm { epsilon: 1e-3 }), &[&y, &gamma, &beta]);
            Forward(vec![node])
        })?);
        all.push(case("group_norm", dice, |m| {
            let (b, h, w, groups) =
                (m.dice.extent(), *m.dice.pick(&[1, 2, 5]), *m.dice.pick(&[1, 3]), *m.dice.pick(&[1, 2, 4]));
            let channels = groups * *m.dice.pick(&[2, 3, 4, 8, 17]);
            let (x, gamma, beta) = (m.float([b, h, w, channels]), m.float([channels]), m.float([channels]));
            Differentiable(vec![x.group_norm(GroupNorm { groups, epsilon: 1e-3 }, &gamma, &beta)])
        })?);
        all.push(case("batch_norm", dice, |m| {
            let (b, h, channels) = (*m.dice.pick(&[2, 3, 8, 33]), m.dice.extent(), m.dice.wide());
            let (x, gamma, beta) = (m.float([b, h, channels]), m.float([channels]), m.float([channels]));
            let running = [m.weights_like(&gamma), m.weights_like(&gamma)];
            let op = BatchNorm { epsilon: 1e-3, momentum: 0.1 };
            // The running statistics leave a model as updates, and a device may be asked for one of them alone.
            let all = x.apply_outputs(op, &[&gamma, &beta, &running[0], &running[1]], 5);
            FirstDifferentiable(vec![all[0].clone(), all[3].clone(), all[4].clone()])
        })?);
        // Devices may join a batch norm with the relu after it and the sum between them, and their gradients.
        all.push(case("batch_norm and relu", dice, |m| {
            let (b, h, channels) = (*m.dice.pick(&[3, 8, 33]), m.dice.extent(), m.dice.wide());
            let normed = |m: &mut Maker, x: &Tensor| {
                let (gamma, beta) = (m.float([channels]), m.float([channels]));
                let running = [m.weights_like(&gamma), m.weights_like(&gamma)];
                let op = BatchNorm { epsilon: 1e-3, momentum: 0.1 };
                x.apply_outputs(op, &[&gamma, &beta, &running[0], &running[1]], 5)[0].clone()
            };
            let [x, y, z] = [0; 3].map(|_| m.float([b, h, channels]));
            let alone = normed(m, &x).activation(Activation::Relu);
            let two = (normed(m, &y) + normed(m, &x)).activation(Activation::Relu);
            let sum = (&z + &normed(m, &y)).activation(Activation::Relu);
            // Read twice: its gradient is a sum.
            Differentiable(vec![alone, two, sum.scale(0.5), sum])
        })?);
        all.push(case("windows", dice, |m| {
            let (b, c) = (*m.dice.pick(&[1, 2]), m.dice.extent());
            let size = [*m.dice.pick(&[1, 2, 3]), *m.dice.pick(&[2, 4])];
            let image = [*m.dice.pick(&[4, 6, 7]), *m.dice.pick(&[4, 5, 8])];
            let shift = [*m.dice.pick(&[0, 1]), *m.dice.pick(&[0, 1, 2])];
            let windows = Windows { size, shift };
            let x = m.float([b, image[0], image[1], c]);
            let cut = x.apply(windows, &[]);
            let put = m.float(cut.shape()).apply(Unwindows { windows, image: x.shape() }, &[]);
            Differentiable(vec![cut, put])
        })?);
        all.push(case("power", dice, |m| {
            let shape = [m.dice.extent(), m.dice.wide()];
            let x = m.float(shape);
            let positive = &(&x * &x) + &x.constant(Constant::filled(Shape::default(), 0.5));
            Differentiable([-0.5, 0.5, -1.0, 1.7].map(|p| positive.power(p)).to_vec())
        })?);
        all.push(case("layer_norm_grad_add", dice, |m| {
            let (rows, dim) = (m.dice.extent(), *m.dice.pick(&[2, 3, 16, 17, 48, 65]));
            let (dy, x, residual) = (m.float([rows, dim]), m.float([rows, dim]), m.float([rows, dim]));
            let (gamma, mean, rstd) = (m.float([dim]), m.float([rows]), m.float([rows]));
            let others = [&x, &gamma, &mean, &rstd, &residual];
            let wanted = *m.dice.pick(&[1, 3]);
            Forward(dy.apply_outputs(LayerNormGradAdd, &others, wanted))
        })?);
        all.push(case("residual branch", dice, |m| {
            let (rows, dim) = (m.dice.extent(), *m.dice.pick(&[2, 3, 16, 17, 48, 65]));
            let (x, gamma, beta) = (m.float([rows, dim]), m.float([dim]), m.float([dim]));
            Differentiable(vec![&x + &x.layer_norm(&gamma, &beta, 1e-3)])
        })?);
        all.push(case("softmax", dice, |m| {
            let shape = [m.dice.extent(), m.dice.wide()];
            Differentiable(vec![m.float(shape).softmax()])
        })?);
        all.push(case("permute", dice, |m| {
            let shape = [m.dice.extent(), m.dice.extent(), m.dice.extent(), m.dice.extent()];
            let order = m.dice.pick(&[[0, 2, 3, 1], [3, 1, 0, 2], [0, 2, 1, 3], [1, 0, 2, 3]]).to_vec();
            Differentiable(vec![m.float(shape).permute(order)])
        })?);
        all.push(case("slice, pad, concat", dice, |m| {
            let axis = *m.dice.pick(&[0, 1, 2]);
            let shape = Shape::from([m.dice.extent(), m.dice.extent(), m.dice.extent()]).with(axis, 5);
            let x = m.float(shape.clone());
            let slice = x.slice(axis, 1, 3);
            let padded = slice.apply(Pad { axis, before: 2, after: 1 }, &[]);
            let extra = m.float(shape.with(axis, 2));
            Differentiable(vec![Tensor::concat(&[&x, &slice, &extra], axis), padded])
        })?);
        all.push(case("gather", dice, |m| {
            let (rows, inner, count) = (m.dice.extent(), m.dice.extent(), m.dice.wide());
            let indices = (0..count).map(|_| (m.dice.word() as usize % rows) as i32).collect();
            let table = m.float([rows, inner]);
            let indices = table.constant(Constant::i32([count], indices));
            Differentiable(vec![table.gather(&indices)])
        })?);
        all.push(case("sum, mean, broadcast, reshape", dice, |m| {
            let shape = [m.dice.extent(), m.dice.extent(), m.dice.extent()];
            let x = m.float(shape);
            let axes =
                m.dice.pick(&[vec![0], vec![1], vec![2], vec![0, 1], vec![0, 2], vec![0, 1, 2], vec![1, 2]]).clone();
            let y = m.float([1, shape[1], 1]).broadcast(shape).reshape([shape[0] * shape[1], shape[2]]);
            Differentiable(vec![x.sum(axes.clone()), x.mean(axes), y])
        })?);
    }
    for activation in ACTIVATIONS {
        all.push(case(activation.name(), dice, |m| {
            let shape = [m.dice.extent(), m.dice.wide()];
            Differentiable(vec![m.float(shape).scale(1.5).activation(activation)])
        })?);
    }
    for op in [Binary::Add, Binary::Sub, Binary::Mul] {
        all.push(case("broadcasting arithmetic", dice, |m| {
            let shape = [m.dice.extent(), m.dice.extent(), m.dice.wide()];
            let (x, same, row) = (m.float(shape), m.float(shape), m.float([shape[2]]));
            let (one, column) = (m.float([1, shape[1], 1]), m.float([shape[0], 1, 1]));
            Differentiable(vec![
                x.apply(op, &[&same]),
                x.apply(op, &[&row]),
                one.apply(op, &[&x]),
                column.apply(op, &[&one]),
            ])
        })?);
    }
    all.push(case("cross_entropy", dice, |m| {
        let shape = [m.dice.extent(), m.dice.wide()];
        let targets = m.weights_like(&m.seed.constant(Constant::filled(shape, 0.0)));
        Differentiable(vec![m.float(shape).apply(CrossEntropy, &[&targets])])
    })?);
    for granularity in [Granularity::Element, Granularity::Sample] {
        all.push(case("dropout", dice, |m| {
            let shape = [m.dice.extent(), m.dice.extent(), m.dice.wide()];
            let seed = m.seed.clone();
            Differentiable(vec![m.float(shape).dropout(0.4, granularity, &seed)])
        })?);
    }
    optimisers(dice, &mut all)?;
    all.push(case("sigmoid_cross_entropy, one_hot_max", dice, |m| {
        let shape = [m.dice.extent(), m.dice.wide()];
        let teacher = m.weights_like(&m.seed.constant(Constant::filled(shape, 0.0)));
        let targets = teacher.apply(OneHotMax, &[]);
        // Wide enough to reach the flat ends of the sigmoid.
        let logits = m.float(shape).scale(9.0);
        FirstDifferentiable(vec![logits.apply(SigmoidCrossEntropy, &[&targets]), targets])
    })?);
    // As windows have it: a bias for each group of samples, and lengths that fill no tile.
    for groups in [1, 3] {
        all.push(case("attention in windows", dice, |m| {
            let (heads, head_dim) = (*m.dice.pick(&[1, 2]), *m.dice.pick(&[24, 32, 64]));
            let (tokens, each) = (*m.dice.pick(&[9, 49, 49, 64, 65]), *m.dice.pick(&[1, 2, 3]));
            let op =
                Attention { heads, scale: 1.0 / (head_dim as f32).sqrt(), packed: true, bias: true, dropout: None };
            // Inputs and outputs are f32 everywhere; what lies between them may be stored in fewer bits.
            let qkv = m.float([groups * each, tokens, 3 * heads * head_dim]).scale(0.5);
            let bias = m.float([groups, heads, tokens, tokens]);
            let bias = if m.dice.flip() { bias.scale(0.5) } else { bias };
            let [out, _] = qkv.attention(op, &[&bias]);
            Differentiable(vec![out.scale(2.0)])
        })?);
    }
    // What an operation says besides its result can be asked for alone.
    all.push(case("attention, its weights alone", dice, |m| {
        let (heads, tokens) = (*m.dice.pick(&[1, 3]), *m.dice.pick(&[1, 5, 37]));
        let op = Attention { heads, scale: 0.5, packed: true, bias: false, dropout: None };
        let [_, weights] = m.float([2, tokens, 3 * heads * 8]).attention(op, &[]);
        Forward(vec![weights])
    })?);
    all.push(case("layer_norm, its statistics alone", dice, |m| {
        let (rows, dim) = (m.dice.extent(), *m.dice.pick(&[2, 16, 65]));
        let (x, gamma, beta) = (m.float([rows, dim]), m.float([dim]), m.float([dim]));
        let mut outputs = x.apply_outputs(LayerNorm { epsilon: 1e-3 }, &[&gamma, &beta], 3);
        Forward(outputs.split_off(1))
    })?);
    for _ in 0..2 {
        all.push(case("residual branch that samples lose", dice, |m| {
            let (samples, rows, dim) = (*m.dice.pick(&[2, 5, 9]), m.dice.extent(), *m.dice.pick(&[16, 17, 48, 65]));
            let [x, y] = [(); 2].map(|()| m.float([samples, rows, dim]));
            let (weight, bias, gamma, beta) = (m.float([dim, dim]), m.float([dim]), m.float([dim]), m.float([dim]));
            let seed = m.seed.clone();
            // The branch is of the size of what it is added to, so that the loss is of the size of one element.
            let y = y.scale(1.0 / (dim as f32).sqrt());
            let branch = y.linear(&weight, Some(&bias)).dropout(0.3, Granularity::Sample, &seed);
            let sum = if m.dice.flip() { &x + &branch } else { &branch + &x };
            Differentiable(vec![&sum + &sum.layer_norm(&gamma, &beta, 1e-3)])
        })?);
    }
    Ok(all)
}

/// Updates of parameters, with and without clipping; the last two have a norm that is not finite, so nothing changes.
fn optimisers(dice: &mut Dice, all: &mut Vec<Case>) -> Result<(), GraphError> {
    let adam = Adam {
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.1,
        decoupled: true,
        trust_ratio: false,
        clip: None,
    };
    let sgd = Sgd { momentum: 0.9, dampening: 0.0, nesterov: false, weight_decay: 0.0, clip: Some(0.5) };
    let rules: [(OptimiserUpdate, f32, f32); 10] = [
        (adam.into(), 7.0, 1.0),
        (Adam { clip: Some(0.5), ..adam }.into(), 7.0, 1.0),
        (Adam { decoupled: false, ..adam }.into(), 1.0, 1.0),
        (Adam { trust_ratio: true, ..adam }.into(), 2.0, 1.0),
        (Adam { trust_ratio: true, weight_decay: 0.0, clip: Some(0.5), ..adam }.into(), 7.0, 1.0),
        (sgd.into(), 3.0, 1.0),
        (Sgd { nesterov: true, weight_decay: 0.1, clip: None, ..sgd }.into(), 3.0, 1.0),
        (Sgd { dampening: 0.5, ..sgd }.into(), *dice.pick(&[1.0, 2.0]), 1.0),
        (sgd.into(), 3.0, f32::INFINITY),
        (Adam { trust_ratio: true, ..adam }.into(), 7.0, f32::NAN),
    ];
    for (rule, step, finite) in rules {
        all.push(case(rule.name(), dice, |m| {
            let shape = [m.dice.extent(), *m.dice.pick(&[1, 7, 33, 1500])];
            let (p, g, state) = (m.float(shape), m.float(shape), m.float(shape));
            let number = |n: f32| p.constant(Constant::filled(Shape::default(), n));
            let norm = g.apply(GlobalNorm, &[&state]) * number(finite);
            let mut others = vec![g, state.clone()];
            // A second state tensor is a variance.
            if rule.state_len() == 2 {
                let root = m.float(shape);
                others.push(&root * &root);
            }
            others.extend([number(1e-2), number(step), norm]);
            // A device that works in place must also cope with outputs that nobody wants.
            let wanted = *m.dice.pick(&[1, 1 + rule.state_len()]);
            Outputs::Forward(p.apply_outputs(rule, &others.iter().collect::<Vec<_>>(), wanted))
        })?);
    }
    all.push(case("moving_average", dice, |m| {
        let shape = [m.dice.extent(), m.dice.wide()];
        let (average, value) = (m.float(shape), m.float(shape));
        let number = |n: f32| average.constant(Constant::filled(Shape::default(), n));
        let norms = [average.apply(GlobalNorm, &[&value]), number(f32::NAN)];
        let average = |norm| average.apply(MovingAverage, &[&value, &number(0.99), norm]);
        Outputs::Forward(norms.iter().map(average).collect())
    })?);
    all.push(case("guarded_update", dice, |m| {
        let shape = [m.dice.extent(), m.dice.wide()];
        let (old, new) = (m.float(shape), m.float(shape));
        let infinite = old.constant(Constant::filled(Shape::default(), f32::INFINITY));
        let norms = [new.apply(GlobalNorm, &[]), infinite];
        Outputs::Forward(norms.iter().map(|norm| old.apply(GuardedUpdate, &[&new, norm])).collect())
    })?);
    Ok(())
}

/// A graph that updates its parameters in every way: in place, from one another, past a guard, and not at all. What a run
/// reads are the values before it, whatever the order in which updates are declared and kernels write.
pub fn updates(finite: bool) -> Result<Case, GraphError> {
    let x = Tensor::input("x", DType::F32, [5, 3]);
    let gradient = x.another_input("gradient", DType::F32, [3]);
    let [rate, step] = ["rate", "step"].map(|name| x.another_input(name, DType::F32, Shape::default()));
    let parameter = |name: &str| x.parameter(name, [3], Init::Zeros);
    let number = x.constant(Constant::filled(Shape::default(), if finite { 1.0 } else { f32::NAN }));
    let norm = gradient.apply(GlobalNorm, &[]) * number;

    let [gamma, beta, mean, variance] = ["gamma", "beta", "mean", "variance"].map(parameter);
    let op = BatchNorm { epsilon: 1e-3, momentum: 0.1 };
    let normed = x.apply_outputs(op, &[&gamma, &beta, &mean, &variance], 5);
    normed[0].output("y");
    mean.update(&mean.apply(GuardedUpdate, &[&normed[3], &norm]));
    variance.update(&variance.apply(GuardedUpdate, &[&normed[4], &norm]));

    // Written in place, between two that take what it was.
    let [moved, buffer, early, late, average] = ["moved", "buffer", "early", "late", "average"].map(parameter);
    early.update(&moved);
    let sgd = Sgd { momentum: 0.9, dampening: 0.0, nesterov: false, weight_decay: 0.1, clip: None };
    let new = moved.apply_outputs(sgd, &[&gradient, &buffer, &rate, &step, &norm], 2);
    moved.update(&new[0]);
    buffer.update(&new[1]);
    late.update(&moved);
    moved.output("moved before");
    average.update(&average.apply(MovingAverage, &[&new[0], &rate, &norm]));

    // Two that change places, and one of which nothing reads what it was.
    let [left, right, replaced] = ["left", "right", "replaced"].map(parameter);
    left.output("left before");
    left.update(&right);
    right.update(&left);
    replaced.update(&gradient.scale(0.5));

    let graph = x.finish()?;
    let dice = &mut Dice::new(77);
    let inputs = graph.inputs().map(|(_, input)| (&input.name, &input.ty.shape));
    let all = inputs.chain(graph.parameters().map(|(_, parameter)| (&parameter.name, &parameter.shape)));
    let (mut bindings, mut names) = (Bindings::new(), Vec::new());
    for (name, shape) in all {
        bindings = bindings.with(name, Array::from_fn(shape, |_| dice.number()));
        names.push(name.clone());
    }
    Ok(Case { name: format!("updates with {} norm", if finite { "a finite" } else { "no" }), graph, bindings, names })
}

/// Runs a graph that updates parameters several times on a device and in the reference interpreter, and gives the largest
/// difference of every output and every updated parameter after each run.
pub fn check_updates(device: &dyn Device, case: &Case, runs: usize) -> Result<Vec<(String, f64)>, GraphError> {
    let mut bindings = case.bindings.clone();
    let mut values: BTreeMap<String, Vec<f32>> =
        case.names.iter().filter_map(|name| Some((name.clone(), bindings.get(name)?.to_f32()))).collect();
    let mut executable = device.compile(&case.graph, &mut values)?;
    for (_, input) in case.graph.inputs() {
        executable.write(&input.name, Elements::F32(&values[&input.name]))?;
    }
    let mut differences = Vec::new();
    let mut compare = |what: String, expected: &[f64], found: &[f32]| {
        let difference = expected.iter().zip(found).map(|(e, f)| (e - f64::from(*f)).abs());
        differences.push((what, difference.fold(0.0, |m, d| if d.is_nan() || d > m { d } else { m })));
    };
    for run in 1..=runs {
        let outputs = reference::step(&case.graph, &mut bindings)?;
        executable.run()?;
        for (name, expected) in &outputs {
            let mut found = vec![f32::NAN; expected.data().len()];
            executable.read(name, &mut found)?;
            compare(format!("{name} of run {run}"), expected.data(), &found);
        }
        for (parameter, _) in case.graph.updates() {
            let Op::Parameter(parameter) = &case.graph.node(parameter.node).op else { continue };
            let Some(expected) = bindings.get(&parameter.name) else { continue };
            let mut found = vec![f32::NAN; expected.data().len()];
            executable.read_parameter(&parameter.name, &mut found)?;
            compare(format!("{} after run {run}", parameter.name), expected.data(), &found);
        }
    }
    Ok(differences)
}

const ACTIVATIONS: [Activation; 6] =
    [Activation::Gelu, Activation::GeluTanh, Activation::Relu, Activation::Silu, Activation::Tanh, Activation::Sigmoid];

/// A case for each of its inputs and parameters in which one element is this, a number that is not finite.
pub fn spoilt(case: &Case, seed: u32, with: f64) -> Vec<Case> {
    let mut dice = Dice::new(seed);
    let spoil = |name: &String| {
        let mut bindings = case.bindings.clone();
        let elements = bindings.get_mut(name).map(Array::data_mut).unwrap_or_default();
        if let Some(count) = elements.len().checked_sub(1) {
            elements[dice.word() as usize % (count + 1)] = with;
        }
        let (graph, names) = (case.graph.clone(), case.names.clone());
        Case { name: format!("{} with {with} in {name}", case.name), graph, bindings, names }
    };
    case.names.iter().map(spoil).collect()
}

/// Whether a convolution reaches over the border of its image.
fn has_padding(graph: &Graph) -> bool {
    graph.nodes().iter().any(|node| matches!(&node.op, Op::Conv2d(conv) if conv.padding != [[0; 2]; 2]))
}

/// Runs a case on a device and gives, for every output, its name and its largest difference from the reference
/// interpreter relative to `1 + |largest expected|`. From NaN and from an infinity anything finite is infinitely far, and
/// from NaN an infinity too. Where there was no NaN and NaN is expected, an infinity was subtracted from one or multiplied
/// by zero: a device that does the same otherwise may find a limit, so there anything goes. A filter's NaN over the border
/// of an image gives NaN if a device multiplies it by the padding's zeros, and nothing if it leaves them out: it may do either.
pub fn check(device: &dyn Device, case: &Case) -> Result<Vec<(String, f64)>, GraphError> {
    let expected = reference::run(&case.graph, &case.bindings)?;
    let values: BTreeMap<String, Vec<f32>> =
        case.names.iter().filter_map(|name| Some((name.clone(), case.bindings.get(name)?.to_f32()))).collect();
    let mut executable = device.compile(&case.graph, &mut values.clone())?;
    for (_, input) in case.graph.inputs() {
        match values.get(&input.name) {
            Some(elements) => executable.write(&input.name, Elements::F32(elements))?,
            None => {
                let words = case.bindings.get(&input.name).map(Array::data).unwrap_or_default();
                executable.write(&input.name, Elements::I32(&words.iter().map(|&w| w as i32).collect::<Vec<_>>()))?;
            }
        }
    }
    executable.run()?;
    let limits = !values.values().flatten().any(|v| v.is_nan());
    let borders = !values.values().flatten().all(|v| v.is_finite()) && has_padding(&case.graph);
    let mut differences = Vec::new();
    for (name, expected) in &expected {
        let mut found = vec![f32::NAN; expected.data().len()];
        executable.read(name, &mut found)?;
        let finite = expected.data().iter().filter(|v| v.is_finite());
        let largest = finite.fold(0.0f64, |m, v| m.max(v.abs()));
        let difference = expected.data().iter().zip(&found).map(|(e, f)| {
            let allowed = if e.is_nan() { f.is_nan() || limits } else { !f.is_finite() };
            match (e.is_finite(), allowed) {
                (true, _) if borders && f.is_nan() => 0.0,
                (true, _) => (e - f64::from(*f)).abs(),
                (false, true) => 0.0,
                (false, false) => f64::INFINITY,
            }
        });
        // `max` would lose a NaN.
        let worst = difference.fold(0.0f64, |m, d| if d.is_nan() || d > m { d } else { m });
        differences.push((name.clone(), worst / (1.0 + largest)));
    }
    Ok(differences)
}
