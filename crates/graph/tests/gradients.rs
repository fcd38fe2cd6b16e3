//! Every operation's gradient against central finite differences of the reference interpreter, in f64.

use vit_conformance::{Case, Rng, cases};
use vit_graph::reference;

fn loss(case: &Case, bindings: &reference::Bindings) -> f64 {
    reference::run(&case.graph, bindings).unwrap()["loss"].data()[0]
}

#[test]
fn gradients_agree_with_finite_differences() {
    let mut compared = 0;
    for seed in 0..6 {
        for case in cases(seed).unwrap() {
            if case.graph.output("loss").is_err() {
                continue;
            }
            let found = reference::run(&case.graph, &case.bindings).unwrap();
            let mut rng = Rng::new(1000 + seed, 0);
            for parameter in &case.names {
                let gradient = &found[&format!("grad.{parameter}")];
                let every: Vec<usize> = (0..gradient.data().len()).collect();
                for _ in 0..8 {
                    let at = rng.pick(&every);
                    // Small, so that it seldom crosses the kink of a relu.
                    let step = 1e-6;
                    let mut bindings = case.bindings.clone();
                    bindings.get_mut(parameter).unwrap().data_mut()[at] += step;
                    let above = loss(&case, &bindings);
                    bindings.get_mut(parameter).unwrap().data_mut()[at] -= 2.0 * step;
                    let below = loss(&case, &bindings);
                    let expected = (above - below) / (2.0 * step);
                    let difference = (gradient.data()[at] - expected).abs();
                    let scale = 1.0 + expected.abs();
                    assert!(
                        difference < 1e-6 * scale,
                        "{} (seed {seed}): d loss / d {parameter}[{at}] = {}, finite difference {expected}",
                        case.name,
                        gradient.data()[at],
                    );
                    compared += 1;
                }
            }
        }
    }
    assert!(compared > 3000, "only {compared} gradients were compared");
}
