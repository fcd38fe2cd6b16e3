//! Convolutions for tensor cores with strides, kernels, padding, dilation, pixels, channels and filters that are no
//! multiple of a tile. Skipped without a GPU.

use vit_conformance::{Case, check};
use vit_cuda::{Cuda, Precision};
use vit_graph::autodiff::gradients;
use vit_graph::ops::{Constant, Conv2d};
use vit_graph::reference::{Array, Bindings};
use vit_graph::{DType, Init, Shape, Tensor, Value};

/// A convolution of `image [batch, height, width, channels]`.
struct ConvCase {
    image: [usize; 4],
    filters: usize,
    kernel: [usize; 2],
    stride: usize,
    padding: [[usize; 2]; 2],
    dilation: usize,
    bias: bool,
}

impl ConvCase {
    fn square(image: [usize; 4], filters: usize, kernel: usize, stride: usize) -> Self {
        let padding = [[kernel / 2; 2]; 2];
        ConvCase { image, filters, kernel: [kernel; 2], stride, padding, dilation: 1, bias: false }
    }
}

fn all() -> Vec<ConvCase> {
    let square = ConvCase::square;
    vec![
        square([2, 9, 11, 64], 64, 3, 1),
        square([3, 9, 11, 64], 136, 3, 2),
        square([2, 8, 8, 128], 72, 3, 2),
        square([2, 7, 10, 64], 128, 1, 2),
        square([2, 6, 5, 128], 8, 1, 3),
        square([2, 9, 8, 24], 40, 3, 1),
        square([2, 9, 8, 8], 16, 5, 2),
        square([1, 5, 5, 512], 72, 3, 1),
        square([2, 30, 29, 3], 64, 7, 2),
        ConvCase { bias: true, ..square([2, 12, 9, 3], 16, 3, 1) },
        ConvCase { bias: true, ..square([2, 12, 9, 1], 24, 5, 1) },
        ConvCase { bias: true, padding: [[0, 1], [2, 0]], kernel: [2, 4], ..square([2, 10, 9, 16], 80, 3, 2) },
        ConvCase { dilation: 2, padding: [[2, 2], [1, 3]], ..square([2, 11, 10, 64], 64, 3, 1) },
        // Few channels, and rows of a filter that fill whole steps of the reduction.
        ConvCase { padding: [[0; 2]; 2], ..square([2, 40, 41, 3], 64, 16, 8) },
        ConvCase { bias: true, ..square([2, 19, 18, 3], 24, 8, 1) },
        // Not supported by the gradient of the image.
        ConvCase { dilation: 2, padding: [[2, 2], [1, 3]], ..square([2, 11, 10, 16], 16, 3, 2) },
        // The stride is larger than the kernel: some pixels are under no tap.
        ConvCase { padding: [[0, 0], [0, 1]], kernel: [2, 1], ..square([2, 11, 10, 16], 16, 3, 4) },
    ]
}

/// The convolution and its gradients; with `rounded`, of computed values, which the device may store in fewer bits.
fn case(s: &ConvCase, rounded: bool) -> Case {
    let seed = Tensor::input("seed", DType::I32, [4]);
    let mut bindings = Bindings::new().with("seed", Array::new(Shape::from([4]), vec![0.0; 4]));
    let mut given: Vec<(String, Value)> = Vec::new();
    let mut float = |shape: Shape, std: f32| {
        let name = format!("p{}", given.len());
        let mut values = vec![0.0; shape.elements()];
        Init::Normal { std }.fill(5, &name, &mut values);
        let array = Array::new(shape.clone(), values.into_iter().map(f64::from).collect());
        bindings = std::mem::take(&mut bindings).with(&name, array);
        let tensor = seed.another_input(&name, DType::F32, shape);
        given.extend(tensor.value().map(|value| (name, value)));
        if rounded { tensor.scale(0.5) } else { tensor }
    };
    let channels = s.image[3];
    let row = (channels * s.kernel[0] * s.kernel[1]) as f32;
    let (x, w) =
        (float(s.image.into(), 1.0), float([s.filters, channels, s.kernel[0], s.kernel[1]].into(), 1.0 / row.sqrt()));
    let bias = s.bias.then(|| float([s.filters].into(), 1.0));
    let conv = Conv2d { stride: [s.stride; 2], padding: s.padding, dilation: [s.dilation; 2], groups: 1, bias: s.bias };
    let y = x.conv2d(conv, &w, bias.as_ref());
    let y = if rounded { y.scale(0.5) } else { y };
    y.output("y");
    let shape = y.shape();
    let mut weights = vec![0.0; shape.elements()];
    Init::Normal { std: 1.0 / (shape.elements() as f32).sqrt() }.fill(6, "weights", &mut weights);
    (&y * &y.constant(Constant::f32(shape, weights))).sum((0..4).collect::<Vec<_>>()).output("loss");
    let mut graph = seed.finish().unwrap();
    let loss = graph.output("loss").unwrap();
    let wrt: Vec<Value> = given.iter().map(|(_, value)| *value).collect();
    let found = gradients(&mut graph, loss, &wrt).unwrap();
    for ((name, _), gradient) in given.iter().zip(found) {
        graph.set_output(&format!("grad.{name}"), gradient).unwrap();
    }
    let name = format!("{:?} with {} filters {:?}, stride {}", s.image, s.filters, s.kernel, s.stride);
    Case { name, graph, bindings, names: given.into_iter().map(|(name, _)| name).collect() }
}

#[test]
fn convolutions_of_every_kind_agree_with_the_reference() {
    for (precision, tolerance) in [(Precision::Bf16, 1e-2), (Precision::F32, 1e-5)] {
        let device = match Cuda::new(0, precision) {
            Ok(device) => device,
            Err(reason) => return eprintln!("skipped: {reason}"),
        };
        for shapes in all() {
            for rounded in [false, true] {
                let case = case(&shapes, rounded);
                for (output, difference) in check(&device, &case).unwrap() {
                    // Outputs cancel in the loss, their rounding errors do not.
                    let tolerance = if output == "loss" { 5.0 * tolerance } else { tolerance };
                    assert!(difference <= tolerance, "{precision}, {}: {output} differs by {difference:e}", case.name);
                }
            }
        }
    }
}
