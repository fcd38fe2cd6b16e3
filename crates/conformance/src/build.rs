//! How a case is built: a function draws shapes, gets inputs with random values, and says which outputs to compare.

use std::collections::BTreeMap;

use vit_graph::autodiff::gradients;
use vit_graph::device::{Device, Elements, Executable};
use vit_graph::ops::Constant;
use vit_graph::random::Seed;
use vit_graph::reference::{Array, Bindings};
use vit_graph::{DType, Graph, GraphError, Init, Shape, Tensor, Value};

use crate::Rng;

/// A graph with values for its inputs and parameters.
#[derive(Clone)]
pub struct Case {
    /// What it covers, with the shapes of its outputs.
    pub name: String,
    /// Outputs `y0`, `y1`, … and, where the operation has a gradient, `loss` and `grad.NAME` for the `names` that are
    /// differentiated.
    pub graph: Graph,
    /// The inputs and parameters.
    pub bindings: Bindings,
    /// The names of the floating-point inputs and parameters.
    pub names: Vec<String>,
}

impl Case {
    /// The floating-point inputs and parameters in f32.
    pub fn values(&self) -> BTreeMap<String, Vec<f32>> {
        self.names.iter().filter_map(|name| Some((name.clone(), self.bindings.get(name)?.to_f32()))).collect()
    }

    /// Compiles the graph for a device and writes its inputs.
    pub fn compile(&self, device: &dyn Device) -> Result<Box<dyn Executable>, GraphError> {
        let mut executable = device.compile(&self.graph, &mut self.values())?;
        self.write_inputs(executable.as_mut())?;
        Ok(executable)
    }

    fn write_inputs(&self, executable: &mut dyn Executable) -> Result<(), GraphError> {
        for (_, input) in self.graph.inputs() {
            let data = self.bindings.get(&input.name).map(Array::data).unwrap_or_default();
            match input.ty.dtype {
                DType::I32 => {
                    let words: Vec<i32> = data.iter().map(|&word| word as i32).collect();
                    executable.write(&input.name, Elements::I32(&words))?;
                }
                _ => {
                    let values: Vec<f32> = data.iter().map(|&value| value as f32).collect();
                    executable.write(&input.name, Elements::F32(&values))?;
                }
            }
        }
        Ok(())
    }

    /// Writes the inputs, runs several times, and returns the bits of all outputs.
    pub fn run(&self, executable: &mut dyn Executable, runs: usize) -> Result<Vec<Vec<u32>>, GraphError> {
        self.write_inputs(executable)?;
        for _ in 0..runs {
            executable.run()?;
        }
        let read = self.graph.outputs().iter().map(|(name, value)| {
            let mut found = vec![0.0; self.graph.shape(*value).elements()];
            executable.read(name, &mut found)?;
            Ok(found.iter().map(|v| v.to_bits()).collect())
        });
        read.collect()
    }

    /// The bits of all outputs after several runs on a device.
    pub fn bits(&self, device: &dyn Device, runs: usize) -> Result<Vec<Vec<u32>>, GraphError> {
        let mut executable = device.compile(&self.graph, &mut self.values())?;
        self.run(executable.as_mut(), runs)
    }
}

/// Hands out inputs and parameters with random values.
pub(crate) struct CaseBuilder {
    pub rng: Rng,
    pub seed: Tensor,
    bindings: Bindings,
    given: Vec<(String, Value)>,
}

impl CaseBuilder {
    pub fn float(&mut self, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        let name = format!("p{}", self.given.len());
        let value = Array::from_fn(&shape, |_| self.rng.value());
        self.bindings = std::mem::take(&mut self.bindings).with(&name, value);
        // Devices treat parameters differently: they pack them, and compute what depends on them alone only once.
        let tensor = if self.rng.pick(&[true, true, false]) {
            self.seed.another_input(&name, DType::F32, shape)
        } else {
            self.seed.parameter(&name, shape, Init::Zeros)
        };
        self.given.extend(tensor.value().map(|value| (name, value)));
        tensor
    }

    pub fn floats<const N: usize>(&mut self, shape: impl Into<Shape>) -> [Tensor; N] {
        let shape = shape.into();
        std::array::from_fn(|_| self.float(shape.clone()))
    }

    /// A constant of this shape whose weighted sum of values near 1 is itself near 1: a larger loss would cancel and
    /// hide errors of single elements.
    pub fn constant(&mut self, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        let scale = 1.0 / (shape.elements() as f32).sqrt().max(1.0);
        let values = (0..shape.elements()).map(|_| scale * self.rng.value() as f32).collect();
        self.seed.constant(Constant::f32(shape, values))
    }

    pub fn scalar(&self, value: f32) -> Tensor {
        self.seed.constant(Constant::filled(Shape::default(), value))
    }
}

/// The outputs of a case, and how many of them the loss depends on.
pub(crate) struct Outputs {
    all: Vec<Tensor>,
    differentiable: usize,
}

/// The loss is a random linear combination of all outputs.
pub(crate) fn differentiable(outputs: impl Into<Vec<Tensor>>) -> Outputs {
    let all = outputs.into();
    Outputs { differentiable: all.len(), all }
}

/// The loss depends on the first output; the others are only compared.
pub(crate) fn first_differentiable(outputs: impl Into<Vec<Tensor>>) -> Outputs {
    Outputs { all: outputs.into(), differentiable: 1 }
}

/// There is no loss.
pub(crate) fn forward(outputs: impl Into<Vec<Tensor>>) -> Outputs {
    Outputs { all: outputs.into(), differentiable: 0 }
}

/// Which inputs and parameters are differentiated.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Differentiated {
    All,
    /// A random choice of at least one: operations have outputs that nothing reads.
    Some,
}

/// The cases of one seed. Every case has its own random stream, so that a new one leaves the others as they are.
pub(crate) struct Table {
    seed: u32,
    differentiated: Differentiated,
    cases: Result<Vec<Case>, GraphError>,
}

impl Table {
    pub fn new(seed: u32, differentiated: Differentiated) -> Self {
        Table { seed, differentiated, cases: Ok(Vec::new()) }
    }

    pub fn finish(self) -> Result<Vec<Case>, GraphError> {
        self.cases
    }

    /// One case of this name.
    pub fn one(&mut self, name: &str, build: impl Fn(&mut CaseBuilder) -> Outputs) {
        self.each(name, [()], |c, ()| build(c));
    }

    /// Two cases of this name, with different shapes.
    pub fn two(&mut self, name: &str, build: impl Fn(&mut CaseBuilder) -> Outputs) {
        self.each(name, [(); 2], |c, ()| build(c));
    }

    /// A case for each of the variants.
    pub fn each<T>(
        &mut self,
        name: &str,
        variants: impl IntoIterator<Item = T>,
        build: impl Fn(&mut CaseBuilder, T) -> Outputs,
    ) {
        // FNV-1a.
        let hash = |h: u32, byte: u8| (h ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        for (index, variant) in variants.into_iter().enumerate() {
            let stream = name.bytes().chain([index as u8]).fold(0x811c_9dc5, hash);
            let rng = Rng::new(self.seed, stream);
            let Ok(cases) = &mut self.cases else { return };
            match case(name, rng, self.differentiated, |c| build(c, variant)) {
                Ok(case) => cases.push(case),
                Err(error) => self.cases = Err(error),
            }
        }
    }
}

fn case(
    name: &str,
    mut rng: Rng,
    differentiated: Differentiated,
    build: impl FnOnce(&mut CaseBuilder) -> Outputs,
) -> Result<Case, GraphError> {
    let seed = Tensor::input("seed", DType::I32, [4]);
    let words = Seed::new(u64::from(rng.word()), 3).0;
    let bindings = Bindings::new().with("seed", Array::new([4], words.map(f64::from).to_vec()));
    let mut builder = CaseBuilder { rng, seed: seed.clone(), bindings, given: Vec::new() };
    let Outputs { all, differentiable } = build(&mut builder);
    let mut shapes = Vec::new();
    let mut loss: Option<Tensor> = None;
    for (i, y) in all.iter().enumerate() {
        y.output(&format!("y{i}"));
        shapes.push(y.shape().to_string());
        if i < differentiable {
            let weighted = (y * &builder.constant(y.shape())).sum((0..y.shape().len()).collect::<Vec<_>>());
            loss = Some(loss.map_or(weighted.clone(), |l| l + weighted));
        }
    }
    if let Some(loss) = &loss {
        loss.output("loss");
    }
    let mut graph = seed.finish()?;
    if loss.is_some() {
        let loss = graph.output("loss")?;
        let mut chosen: Vec<&(String, Value)> = builder.given.iter().collect();
        if differentiated == Differentiated::Some && chosen.len() > 1 {
            let always = builder.rng.word() as usize % chosen.len();
            let mut index = 0..;
            chosen.retain(|_| index.next() == Some(always) || builder.rng.pick(&[true, false, false]));
        }
        let wrt: Vec<Value> = chosen.iter().map(|(_, value)| *value).collect();
        let found = gradients(&mut graph, loss, &wrt)?;
        for ((name, _), gradient) in chosen.into_iter().zip(found) {
            graph.set_output(&format!("grad.{name}"), gradient)?;
        }
    }
    let name = format!("{name} {}", shapes.join(" "));
    let names = builder.given.into_iter().map(|(name, _)| name).collect();
    Ok(Case { name, graph, bindings: builder.bindings, names })
}
