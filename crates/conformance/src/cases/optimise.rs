//! Optimisers and other updates of parameters.

use vit_graph::ops::{Adam, GlobalNorm, GuardedUpdate, Lion, MovingAverage, OptimiserUpdate, Sgd};

use crate::build::{CaseBuilder, Outputs, Table, forward};

const ADAM: Adam = Adam {
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.1,
    decoupled: true,
    scheduled_decay: false,
    trust_ratio: false,
    clip: None,
};
const LION: Lion = Lion { beta1: 0.9, beta2: 0.99, weight_decay: 0.1, scheduled_decay: false, clip: None };
const SGD: Sgd = Sgd { momentum: 0.9, dampening: 0.0, nesterov: false, weight_decay: 0.0, clip: Some(0.5) };

/// Each optimiser with the step number and a factor of the gradients' norm; where that is not finite, nothing may
/// change.
pub(super) fn table(t: &mut Table) {
    let adam: [(OptimiserUpdate, f32, f32); 8] = [
        (ADAM.into(), 7.0, 1.0),
        (Adam { clip: Some(0.5), ..ADAM }.into(), 7.0, 1.0),
        (Adam { decoupled: false, ..ADAM }.into(), 1.0, 1.0),
        (Adam { trust_ratio: true, ..ADAM }.into(), 2.0, 1.0),
        (Adam { trust_ratio: true, weight_decay: 0.0, clip: Some(0.5), ..ADAM }.into(), 7.0, 1.0),
        (Adam { trust_ratio: true, ..ADAM }.into(), 7.0, f32::NAN),
        (Adam { scheduled_decay: true, clip: Some(0.5), ..ADAM }.into(), 7.0, 1.0),
        (Adam { scheduled_decay: true, trust_ratio: true, ..ADAM }.into(), 2.0, 1.0),
    ];
    let lion: [(OptimiserUpdate, f32, f32); 4] = [
        (LION.into(), 3.0, 1.0),
        (Lion { weight_decay: 0.0, clip: Some(0.5), ..LION }.into(), 1.0, 1.0),
        (LION.into(), 3.0, f32::NAN),
        (Lion { scheduled_decay: true, ..LION }.into(), 3.0, 1.0),
    ];
    let sgd: [(OptimiserUpdate, f32, f32); 5] = [
        (SGD.into(), 3.0, 1.0),
        (Sgd { nesterov: true, weight_decay: 0.1, clip: None, ..SGD }.into(), 3.0, 1.0),
        (Sgd { dampening: 0.5, ..SGD }.into(), 1.0, 1.0),
        (Sgd { dampening: 0.5, ..SGD }.into(), 2.0, 1.0),
        (SGD.into(), 3.0, f32::INFINITY),
    ];
    t.each("adam", adam, optimiser);
    t.each("lion", lion, optimiser);
    t.each("sgd", sgd, optimiser);
    t.one("moving_average", moving_average);
    t.one("guarded_update", guarded_update);
}

fn optimiser(c: &mut CaseBuilder, (rule, step, norm_factor): (OptimiserUpdate, f32, f32)) -> Outputs {
    let shape = [c.rng.extent(), c.rng.pick(&[1, 7, 33, 1500])];
    let [parameter, gradient, state] = c.floats(shape);
    let norm = gradient.apply(GlobalNorm, &[&state]) * c.scalar(norm_factor);
    let mut others = vec![gradient, state];
    // A second state tensor is a variance.
    if rule.state_len() == 2 {
        let root = c.float(shape);
        others.push(&root * &root);
    }
    others.extend([c.scalar(1e-2), c.scalar(step), norm]);
    if rule.scheduled_decay() {
        others.push(c.scalar(2.5));
    }
    // A device that updates in place must also handle unused outputs.
    let used = c.rng.pick(&[1, 1 + rule.state_len()]);
    forward(parameter.apply_outputs(rule, &others.iter().collect::<Vec<_>>(), used))
}

fn moving_average(c: &mut CaseBuilder) -> Outputs {
    let shape = [c.rng.extent(), c.rng.wide()];
    let [average, value] = c.floats(shape);
    let norms = [average.apply(GlobalNorm, &[&value]), c.scalar(f32::NAN)];
    forward(norms.map(|norm| average.apply(MovingAverage, &[&value, &c.scalar(0.99), &norm])))
}

fn guarded_update(c: &mut CaseBuilder) -> Outputs {
    let shape = [c.rng.extent(), c.rng.wide()];
    let [old, new] = c.floats(shape);
    let norms = [new.apply(GlobalNorm, &[]), c.scalar(f32::INFINITY)];
    forward(norms.map(|norm| old.apply(GuardedUpdate, &[&new, &norm])))
}
