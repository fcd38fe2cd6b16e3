//! The step of an image-text model: pairs are contrasted over the whole batch, of all parts and all processes.

use vit_graph::autodiff::{continue_gradients, gradients};
use vit_graph::ops::{
    AllGather, Concat, Constant, CrossEntropy, Input, MatMul, Parameter, Reshape, Shards, SigmoidCrossEntropy, Slice,
};
use vit_graph::{DType, Graph, GraphError, Inlining, Tensor, Type, Value};
use vit_models::clip::{Clip, Pairing};

use super::StepError;
use super::part_sums::PartTree;
use super::passes::{BatchSums, Passes, Statistics};
use super::sharding::GradientSlices;

/// The towers' outputs.
pub(super) const EMBEDDINGS: [&str; 2] = ["image_embeds", "text_embeds"];

/// Elements of a caption's code.
const CODE: usize = 24;

/// The input `captions` of a step: of each sample the bits of its caption's number, as 1 and -1.
pub(crate) fn caption_codes(captions: &[u32]) -> Vec<f32> {
    let bit = |caption: u32, bit: usize| if caption >> bit & 1 == 1 { 1.0 } else { -1.0 };
    captions.iter().flat_map(|&caption| (0..CODE).map(move |at| bit(caption, at))).collect()
}

/// The most captions that have codes of their own.
pub(crate) const MAX_CAPTIONS: usize = 1 << CODE;

/// The name of the input `ids` or `ends` of a part.
pub(crate) fn input_of_part(name: &str, part: usize) -> String {
    format!("{name}.{part}")
}

/// The inputs of a step besides the images.
pub(super) struct PairInputs {
    /// `ids` and `ends` of each of this process's parts, by the names that the model's forward pass has for them.
    texts: Vec<Vec<(String, Value)>>,
    captions: Value,
}

impl PairInputs {
    /// Adds those of so many parts; `forward` is the pass of one.
    pub fn add(graph: &mut Graph, forward: &Graph, parts: usize) -> Result<PairInputs, GraphError> {
        let of_texts: Vec<&Input> =
            forward.inputs().map(|(_, input)| input).filter(|i| i.ty.dtype == DType::I32).collect();
        let of_texts: Vec<&Input> = of_texts.into_iter().filter(|input| input.name != "seed").collect();
        let mut texts = Vec::with_capacity(parts);
        for part in 0..parts {
            let mut add = |input: &&Input| {
                let whole = Input { name: input_of_part(&input.name, part), ty: input.ty.clone() };
                Ok((input.name.clone(), graph.value(whole, &[])?))
            };
            texts.push(of_texts.iter().map(&mut add).collect::<Result<_, GraphError>>()?);
        }
        let pairs = forward.shape(forward.output(EMBEDDINGS[0])?)[0] * parts;
        let captions = graph.value(Input { name: "captions".into(), ty: Type::f32([pairs, CODE]) }, &[])?;
        Ok(PairInputs { texts, captions })
    }

    /// Those of one of this process's parts.
    pub fn of_part(&self, part: usize) -> impl Iterator<Item = (&str, Value)> {
        self.texts[part].iter().map(|(name, value)| (name.as_str(), *value))
    }
}

impl Passes<'_> {
    /// The forward passes of all parts, the loss of all embeddings, and the backward passes, which begin with the gradients
    /// of the embeddings. Every process computes the loss of the whole batch, so its gradients need no exchange.
    pub(super) fn contrasted(&self, graph: &mut Graph, clip: &Clip) -> Result<BatchSums, StepError> {
        let own = self.options.parts.own.clone();
        let Some(inputs) = self.inputs.pairs.as_ref().filter(|_| !own.is_empty()) else {
            return Err(StepError::NoPart);
        };
        let none = Statistics::default();
        let mut of_parts: [Vec<Value>; 2] = Default::default();
        for part in own.clone() {
            let micro_batch = self.micro_batch(graph, part, &none, self.wrt)?;
            let inlined = graph.inline(self.forward, &micro_batch.inlining)?;
            for (tower, name) in of_parts.iter_mut().zip(EMBEDDINGS) {
                tower.push(inlined.value(self.forward.output(name)?));
            }
        }
        let mut whole = [self.of_batch(graph, &of_parts[0])?, self.of_batch(graph, &of_parts[1])?];
        for value in &mut whole {
            // Gradients end at the embeddings, also where they are those of a single part.
            let shape = graph.shape(*value).clone();
            *value = graph.value(Reshape(shape), &[*value])?;
        }
        let captions = self.of_batch(graph, &[inputs.captions])?;
        let pairs = graph.shape(whole[0])[0];
        let judged = loss(clip, pairs, graph.shape(whole[0]).last())?;
        let given = EMBEDDINGS.into_iter().zip(whole).chain([("captions", captions)]).chain(self.named(self.wrt));
        let inlined = graph.inline(&judged, &Inlining { given: given.collect(), streams: 0 })?;
        let loss = inlined.value(judged.output("loss")?);

        // The parameters of the loss itself, and those of the towers.
        let is_judging = |name: &str| judged.parameters().any(|(_, parameter)| parameter.name == name);
        let (judging, towers): (Vec<usize>, Vec<usize>) =
            (0..self.trained.len()).partition(|&i| is_judging(&self.trained[i].parameter.name));
        let wrt: Vec<Value> = whole.into_iter().chain(judging.iter().map(|&i| self.wrt[i])).collect();
        let found = gradients(graph, loss, &wrt)?;
        let (of_embeddings, of_judging) = found.split_at(2);

        let wrt: Vec<Value> = towers.iter().map(|&i| self.wrt[i]).collect();
        let mut trees = vec![PartTree::default(); wrt.len()];
        let mut slices = GradientSlices::new(self.trained);
        let mut sums = Vec::new();
        let first = if self.options.exchange { own.start } else { 0 };
        for at in 0..own.len() {
            let mut starts = Vec::new();
            for (embeddings, gradient) in of_parts.iter().zip(of_embeddings) {
                let length = graph.shape(embeddings[at])[0];
                let slice = Slice { axis: 0, start: (first + at) * length, length };
                starts.push((embeddings[at], graph.value(slice, &[*gradient])?));
            }
            let last = at + 1 == own.len();
            let mut finish = |graph: &mut Graph, i: usize, gradient: Value| {
                let sum = trees[i].add(graph, gradient, last)?;
                if last { self.exchanged_gradient(graph, towers[i], sum, &mut slices) } else { Ok(sum) }
            };
            sums = continue_gradients(graph, &starts, &wrt, &mut finish)?;
        }
        let places = towers.iter().chain(&judging).copied();
        let mut placed: Vec<(usize, Value)> = places.zip(sums.into_iter().chain(of_judging.iter().copied())).collect();
        placed.sort_by_key(|(place, _)| *place);
        let all: Vec<Value> = placed.into_iter().map(|(_, gradient)| gradient).collect();
        Ok(BatchSums { loss, gradients: slices.finish(graph, &all)?, statistics: Vec::new() })
    }

    /// The rows of the whole batch from those of this process's parts.
    fn of_batch(&self, graph: &mut Graph, of_parts: &[Value]) -> Result<Value, GraphError> {
        let own = if let [only] = of_parts { *only } else { graph.value(Concat { axis: 0 }, of_parts)? };
        let parts = &self.options.parts;
        if !self.options.exchange {
            return Ok(own);
        }
        let shape = graph.shape(own).clone();
        let (processes, elements) = (parts.count / parts.own.len(), shape.elements());
        let shards = Shards { rank: parts.own.start / parts.own.len(), lengths: vec![elements; processes] };
        let flat = graph.value(Reshape::to([elements]), &[own])?;
        graph.value(AllGather { shape: shape.with(0, shape[0] * processes), shards }, &[flat])
    }
}

/// The parameters of the loss, which the towers do not read: scale and bias of the logits.
pub(super) fn loss_parameters(clip: &Clip) -> Result<Vec<Parameter>, GraphError> {
    Ok(loss(clip, 1, clip.text.embed_dim)?.parameters().map(|(_, parameter)| parameter.clone()).collect())
}

/// The loss of a batch: of CLIP the mean of the cross-entropies of rows and columns, of SigLIP the sigmoid cross-entropy of
/// all pairs, divided by the number of images. Samples with the same caption are pairs of each other; where no caption occurs
/// twice, these are the papers' losses.
fn loss(clip: &Clip, pairs: usize, width: usize) -> Result<Graph, GraphError> {
    let images = Tensor::input(EMBEDDINGS[0], DType::F32, [pairs, width]);
    let texts = images.another_input(EMBEDDINGS[1], DType::F32, [pairs, width]);
    let codes = images.another_input("captions", DType::F32, [pairs, CODE]);
    let logits = clip.logits(&images, &texts);
    // The inner product of two codes is their length if they are the same, otherwise at least 2 less.
    let products = codes.apply(MatMul { transpose_a: false, transpose_b: true }, &[&codes]);
    let limit = codes.constant(Constant::filled([1], (CODE - 1) as f32));
    let alike = (products - limit).relu();
    match clip.pairing {
        Pairing::Sigmoid => logits.apply(SigmoidCrossEntropy, &[&alike]),
        Pairing::Softmax => {
            // Which samples belong together is symmetric.
            let targets = alike.clone() * alike.sum([1]).power(-1.0).reshape([pairs, 1]);
            let of_images = logits.apply(CrossEntropy, &[&targets]);
            let of_texts = logits.permute([1, 0]).apply(CrossEntropy, &[&targets]);
            (of_images + of_texts).scale(0.5)
        }
    }
    .output("loss");
    images.finish()
}

#[cfg(test)]
mod tests {
    use vit_graph::reference::{self, Array, Bindings};

    use super::*;

    /// The losses and their gradients, from the papers' formulas.
    #[test]
    fn the_losses_are_those_of_clip_and_siglip() {
        const N: usize = 4;
        let scale: f64 = 1.3;
        let values: Vec<f64> = (0..N * N).map(|i| (1.7 * i as f64).sin() * 3.0).collect();
        let identity: Vec<f64> = (0..N * N).map(|i| if i / N == i % N { 1.0 } else { 0.0 }).collect();
        for (name, bias) in [("ViT-B-32", 0.0), ("ViT-B-16-SigLIP", -0.7)] {
            let variant = vit_models::variant(name).unwrap();
            let clip: &Clip = variant.architecture.downcast_ref().unwrap();
            for captions in [[0, 1, 2, 3], [5, 9, 5, 1 << 20]] {
                let alike = |i: usize, j: usize| if captions[i] == captions[j] { 1.0 } else { 0.0 };
                // With an identity as the embeddings of texts, those of images are the cosines.
                let expected = |cosines: &[f64]| -> f64 {
                    let z: Vec<f64> = cosines.iter().map(|c| scale.exp() * c + bias).collect();
                    let row = |i: usize, at: &dyn Fn(usize) -> f64| {
                        let total = (0..N).map(|j| at(j).exp()).sum::<f64>().ln();
                        let share = 1.0 / (0..N).map(|j| alike(i, j)).sum::<f64>();
                        (0..N).map(|j| share * alike(i, j) * (total - at(j))).sum::<f64>()
                    };
                    match clip.pairing {
                        Pairing::Softmax => {
                            let both = |i| row(i, &|j| z[i * N + j]) + row(i, &|j| z[j * N + i]);
                            (0..N).map(both).sum::<f64>() / (2 * N) as f64
                        }
                        Pairing::Sigmoid => {
                            let sign = |i: usize| 2.0 * alike(i / N, i % N) - 1.0;
                            let pair = |(i, z): (usize, &f64)| (1.0 + (-z * sign(i)).exp()).ln();
                            z.iter().enumerate().map(pair).sum::<f64>() / N as f64
                        }
                    }
                };
                let mut graph = loss(clip, N, N).unwrap();
                let images = graph.inputs().find(|(_, input)| input.name == EMBEDDINGS[0]).unwrap().0;
                let output = graph.output("loss").unwrap();
                let gradient = gradients(&mut graph, output, &[Value { node: images, output: 0 }]).unwrap()[0];
                graph.set_output("gradient", gradient).unwrap();
                let codes: Vec<f64> = caption_codes(&captions).into_iter().map(f64::from).collect();
                let inputs = Bindings::new()
                    .with(EMBEDDINGS[0], Array::new([N, N], values.clone()))
                    .with(EMBEDDINGS[1], Array::new([N, N], identity.clone()))
                    .with("captions", Array::new([N, CODE], codes))
                    .with("logit_scale", Array::new([1], vec![scale]))
                    .with("logit_bias", Array::new([1], vec![bias]));
                let outputs = reference::run(&graph, &inputs).unwrap();
                assert!((outputs["loss"].data()[0] - expected(&values)).abs() < 1e-7, "{name}");
                for i in 0..N * N {
                    let moved = |by: f64| {
                        let mut values = values.clone();
                        values[i] += by;
                        expected(&values)
                    };
                    let expected = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                    assert!((outputs["gradient"].data()[i] - expected).abs() < 1e-7, "{name}");
                }
            }
        }
    }
}
