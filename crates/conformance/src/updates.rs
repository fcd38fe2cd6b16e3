//! Graphs that update their parameters.

use vit_graph::device::Device;
use vit_graph::ops::{BatchNorm, Constant, GlobalNorm, GuardedUpdate, MovingAverage, Op, Sgd};
use vit_graph::reference::{self, Array, Bindings};
use vit_graph::{DType, GraphError, Init, Shape, Tensor};

use crate::check::largest_or_nan;
use crate::{Case, Rng};

/// A graph with every kind of update: in place, from another parameter, behind a guard, and none. All nodes of a run
/// read the parameters' values from before the run, in whatever order updates are declared and kernels write.
pub fn updates(finite: bool) -> Result<Case, GraphError> {
    let x = Tensor::input("x", DType::F32, [5, 3]);
    let gradient = x.another_input("gradient", DType::F32, [3]);
    let [rate, step] = ["rate", "step"].map(|name| x.another_input(name, DType::F32, Shape::default()));
    let parameter = |name: &str| x.parameter(name, [3], Init::Zeros);
    let factor = x.constant(Constant::filled(Shape::default(), if finite { 1.0 } else { f32::NAN }));
    let norm = gradient.apply(GlobalNorm, &[]) * factor;

    let [gamma, beta, mean, variance] = ["gamma", "beta", "mean", "variance"].map(parameter);
    let op = BatchNorm { epsilon: 1e-3, momentum: 0.1 };
    let normed = x.apply_outputs(op, &[&gamma, &beta, &mean, &variance], 5);
    normed[0].output("y");
    mean.update(&mean.apply(GuardedUpdate, &[&normed[3], &norm]));
    variance.update(&variance.apply(GuardedUpdate, &[&normed[4], &norm]));

    // `moved` is updated in place; `early` and `late` take its old value, declared before and after it.
    let [moved, buffer, early, late, average] = ["moved", "buffer", "early", "late", "average"].map(parameter);
    early.update(&moved);
    let sgd = Sgd { momentum: 0.9, dampening: 0.0, nesterov: false, weight_decay: 0.1, clip: None };
    let new = moved.apply_outputs(sgd, &[&gradient, &buffer, &rate, &step, &norm], 2);
    moved.update(&new[0]);
    buffer.update(&new[1]);
    late.update(&moved);
    moved.output("moved before");
    average.update(&average.apply(MovingAverage, &[&new[0], &rate, &norm]));

    // A swap, and a parameter whose old value is unused.
    let [left, right, replaced] = ["left", "right", "replaced"].map(parameter);
    left.output("left before");
    left.update(&right);
    right.update(&left);
    replaced.update(&gradient.scale(0.5));

    let graph = x.finish()?;
    let mut rng = Rng::new(77, 0);
    let inputs = graph.inputs().map(|(_, input)| (&input.name, &input.ty.shape));
    let all = inputs.chain(graph.parameters().map(|(_, parameter)| (&parameter.name, &parameter.shape)));
    let (mut bindings, mut names) = (Bindings::new(), Vec::new());
    for (name, shape) in all {
        bindings = bindings.with(name, Array::from_fn(shape, |_| rng.value()));
        names.push(name.clone());
    }
    let name = format!("updates with {} norm", if finite { "a finite" } else { "a non-finite" });
    Ok(Case { name, graph, bindings, names })
}

/// Runs a graph that updates parameters several times on a device and in the reference interpreter. Returns the largest
/// difference of every output and every updated parameter after each run.
pub fn check_updates(device: &dyn Device, case: &Case, runs: usize) -> Result<Vec<(String, f64)>, GraphError> {
    let mut bindings = case.bindings.clone();
    let mut executable = case.compile(device)?;
    let mut differences = Vec::new();
    let mut compare = |what: String, expected: &[f64], found: &[f32]| {
        let difference = expected.iter().zip(found).map(|(e, f)| (e - f64::from(*f)).abs());
        differences.push((what, largest_or_nan(difference)));
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
