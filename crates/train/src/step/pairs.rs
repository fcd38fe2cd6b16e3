//! The training step of an image-text model: a batch of images and texts, and which of them belong together.

use std::collections::BTreeMap;

use vit_graph::autodiff::gradients;
use vit_graph::ops::{Binary, CrossEntropy, GlobalNorm, Input, Parameter, Permute, Scale, SigmoidCrossEntropy};
use vit_graph::rewrite::{eliminate_dead_code, eliminate_dead_tokens, patchify};
use vit_graph::{Graph, GraphError, Phase, Shape, Type, Value};
use vit_models::Mode;
use vit_models::clip::{Clip, PairExtents, Pairing};

use super::optimiser::{Optimiser, UpdateInputs};
use super::sharding::TrainedParameter;
use super::{StepError, TrainingStep};

impl TrainingStep {
    /// Builds the step of an image-text model; with a frozen image tower it is LiT's (Zhai et al., 2022).
    ///
    /// Inputs: those of [`Clip::build_pairs`], `pairs [batch, batch]` as [`pair_targets`] gives it, `rate` and `step`.
    /// Outputs: `loss` and `grad_norm`.
    pub fn of_pairs(
        clip: &Clip,
        batch: usize,
        optimiser: &Optimiser,
        frozen_image: bool,
    ) -> Result<TrainingStep, StepError> {
        let extents = PairExtents { images: batch, texts: batch, masked: false };
        let mut forward = clip.build_pairs(extents, Mode::Training)?;
        forward.retain_outputs(|name| name == "logits_per_image");
        let mut graph = eliminate_dead_tokens(&patchify(&eliminate_dead_code(&forward)?)?)?;
        let logits = graph.output("logits_per_image")?;
        let mut input = |name: &str, shape: Shape| graph.value(Input { name: name.into(), ty: Type::f32(shape) }, &[]);
        let (pairs, rate, step) = (
            input("pairs", [batch, batch].into())?,
            input("rate", Shape::default())?,
            input("step", Shape::default())?,
        );
        let loss = loss(&mut graph, logits, pairs, clip.pairing)?;
        let parameters: Vec<(Value, Parameter)> =
            graph.parameters().map(|(node, p)| (Value { node, output: 0 }, p.clone())).collect();
        let names: Vec<&str> = parameters.iter().map(|(_, p)| p.name.as_str()).collect();
        let is_trained = |p: &Parameter| !frozen_image || p.name.starts_with("text.") || p.name.starts_with("logit_");
        let trained: Vec<TrainedParameter> = parameters
            .iter()
            .filter(|(_, p)| p.trainable && is_trained(p))
            .map(|(value, p)| TrainedParameter { parameter: p.clone(), stored: *value, whole: *value, shards: None })
            .collect();
        let wrt: Vec<Value> = trained.iter().map(|trained| trained.whole).collect();
        let found = gradients(&mut graph, loss, &wrt)?;
        let norm = graph.value(GlobalNorm, &found)?;
        graph.retain_outputs(|_| false);
        graph.set_output("loss", loss)?;
        graph.set_output("grad_norm", norm)?;
        // As in the step of a classifier: a loss that is not finite stops all updates.
        let nothing = graph.value(Scale(0.0), &[loss])?;
        let guard = graph.value(Binary::Add, &[norm, nothing])?;
        graph.set_phase(Phase::Update);
        let inputs = UpdateInputs { rate, step, norm: guard, average_decay: None };
        let state = optimiser.build(&mut graph, &trained, &found, &names, &inputs)?;
        let gradients = trained.into_iter().map(|trained| trained.parameter.name).zip(found).collect();
        Ok(TrainingStep { graph, gradients, state, shards: BTreeMap::new() })
    }
}

/// The loss of `logits [images, texts]`: of CLIP the mean of the cross-entropies of rows and columns, of SigLIP the sigmoid
/// cross-entropy of all pairs, divided by the number of images.
fn loss(graph: &mut Graph, logits: Value, pairs: Value, pairing: Pairing) -> Result<Value, GraphError> {
    match pairing {
        Pairing::Sigmoid => graph.value(SigmoidCrossEntropy, &[logits, pairs]),
        Pairing::Softmax => {
            let of_texts = graph.value(Permute(vec![1, 0]), &[logits])?;
            let of_images = graph.value(CrossEntropy, &[logits, pairs])?;
            // Which samples belong together is symmetric.
            let of_texts = graph.value(CrossEntropy, &[of_texts, pairs])?;
            let both = graph.value(Binary::Add, &[of_images, of_texts])?;
            graph.value(Scale(0.5), &[both])
        }
    }
}

/// The input `pairs [batch, batch]` of a batch whose samples have these captions, by index: 1 where two samples have the same
/// caption. With a softmax, rows add up to 1; where no caption occurs twice they are CLIP's targets.
pub fn pair_targets(captions: &[u32], pairing: Pairing) -> Vec<f32> {
    let mut targets = Vec::with_capacity(captions.len() * captions.len());
    for caption in captions {
        let alike = captions.iter().filter(|other| *other == caption).count();
        let share = if pairing == Pairing::Softmax { 1.0 / alike as f32 } else { 1.0 };
        targets.extend(captions.iter().map(|other| if other == caption { share } else { 0.0 }));
    }
    targets
}

#[cfg(test)]
mod tests {
    use vit_graph::DType;
    use vit_graph::Tensor;
    use vit_graph::reference::{self, Array, Bindings};

    use super::*;

    /// The losses and their gradients, from the papers' formulas.
    #[test]
    fn the_losses_are_those_of_clip_and_siglip() {
        const N: usize = 4;
        let values: Vec<f64> = (0..N * N).map(|i| (1.7 * i as f64).sin() * 3.0).collect();
        for pairing in [Pairing::Softmax, Pairing::Sigmoid] {
            for captions in [[0, 1, 2, 3], [0, 1, 0, 2]] {
                let targets: Vec<f64> = pair_targets(&captions, pairing).into_iter().map(f64::from).collect();
                let expected = |z: &[f64]| -> f64 {
                    let row = |i: usize, at: &dyn Fn(usize) -> f64| {
                        let total = (0..N).map(|j| at(j).exp()).sum::<f64>().ln();
                        (0..N).map(|j| targets[i * N + j] * (total - at(j))).sum::<f64>()
                    };
                    match pairing {
                        Pairing::Softmax => {
                            let both = |i| row(i, &|j| z[i * N + j]) + row(i, &|j| z[j * N + i]);
                            (0..N).map(both).sum::<f64>() / (2 * N) as f64
                        }
                        Pairing::Sigmoid => {
                            let pair = |(z, t): (&f64, &f64)| (1.0 + (-z * (2.0 * t - 1.0)).exp()).ln();
                            z.iter().zip(&targets).map(pair).sum::<f64>() / N as f64
                        }
                    }
                };
                let logits = Tensor::input("logits", DType::F32, [N, N]);
                let pairs = logits.another_input("pairs", DType::F32, [N, N]);
                let (logits, pairs) = (logits.value().unwrap(), (pairs.value().unwrap(), pairs.finish().unwrap()));
                let (pairs, mut graph) = pairs;
                let found = loss(&mut graph, logits, pairs, pairing).unwrap();
                let gradient = gradients(&mut graph, found, &[logits]).unwrap()[0];
                graph.set_output("loss", found).unwrap();
                graph.set_output("gradient", gradient).unwrap();
                let inputs = Bindings::new()
                    .with("logits", Array::new([N, N], values.clone()))
                    .with("pairs", Array::new([N, N], targets.clone()));
                let outputs = reference::run(&graph, &inputs).unwrap();
                assert!((outputs["loss"].data()[0] - expected(&values)).abs() < 1e-7);
                for i in 0..N * N {
                    let moved = |by: f64| {
                        let mut values = values.clone();
                        values[i] += by;
                        expected(&values)
                    };
                    let expected = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                    assert!((outputs["gradient"].data()[i] - expected).abs() < 1e-7, "{pairing:?}");
                }
            }
        }
    }
}
