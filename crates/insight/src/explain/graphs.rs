//! The graphs behind explanations: a model's graph with more outputs, and its gradients with respect to intermediates.

use vit_graph::ops::{Activation, Attention, Binary, Input, MatMul, Op, Permute, Reduce, Reshape, Slice};
use vit_graph::{Graph, GraphError, Type, Value, autodiff};
use vit_models::vit::{Pooling, Vit};
use vit_models::{Architecture, Mode};

use super::contributions::{self, ContributionSource};
use super::{Method, flows_of, patches, read_flows};
use crate::layers::{Layer, attention_layers, covered};
use crate::runner::Runner;
use crate::{InsightError, Map, relevance_of};

/// The input `[batch, classes]`: one-hot rows choose the class of each image.
pub(super) const CLASS: &str = "class";
/// The output that holds a single layer's attention.
pub(super) const ONE: &str = "attention";
const POOL: &str = "flow.pool";
const POOL_WEIGHTS: &str = "attn_pool.weights";
const FEATURES: &str = "evidence.features";
const GRADIENTS: &str = "evidence.gradients";

/// The name of the output with a layer's attention matrix (or attention times gradient), heads averaged.
pub(super) fn flow(layer: usize) -> String {
    format!("flow.{layer}")
}

/// The initial relevance: the weight of each final token in the output.
pub(super) enum InitialRelevance {
    /// The same for every image.
    Fixed(Vec<f32>),
    /// The weights of attention pooling, read from an output; `prefix` tokens precede those that are pooled.
    Pooled { prefix: usize },
    /// The contribution of each final token to a class's logit; `prefix` tokens precede those that are pooled.
    Contributed { prefix: usize },
}

impl InitialRelevance {
    fn of(vit: &Vit) -> InitialRelevance {
        let [rows, columns] = vit.grid();
        let prefix = vit.unpooled_tokens();
        let mut start = vec![0.0; vit.prefix_tokens() + rows * columns];
        let pooled = start.len() - prefix;
        match vit.pooling {
            Pooling::Map => return InitialRelevance::Pooled { prefix },
            Pooling::Token if vit.distillation_head => start[..2].fill(0.5),
            Pooling::Token => start[0] = 1.0,
            Pooling::TokenAndMean => {
                start[0] = 0.5;
                start[prefix..].fill(0.5 / pooled as f32);
            }
            // A maximum takes each channel from another token; attention without parameters is not followed back.
            Pooling::Refined if vit.class_token => start[0] = 1.0,
            Pooling::Mean | Pooling::Max | Pooling::MeanMax | Pooling::Refined | Pooling::None => {
                start[prefix..].fill(1.0 / pooled as f32);
            }
        }
        InitialRelevance::Fixed(start)
    }

    /// The relevance of every token, for each image of the batch.
    pub fn read(&self, runner: &Runner, architecture: &Architecture) -> Result<Vec<Vec<f32>>, InsightError> {
        match self {
            InitialRelevance::Fixed(start) => Ok(vec![start.clone(); runner.batch()]),
            InitialRelevance::Contributed { prefix } => contributions::read(runner, *prefix),
            InitialRelevance::Pooled { prefix } => {
                let tokens = architecture.tokens().map_or(0, |tokens| tokens.prefix + tokens.grid[0] * tokens.grid[1]);
                let pooled = runner.read(POOL)?;
                let whole = |part: &[f32]| [vec![0.0; *prefix], part.to_vec()].concat();
                Ok(pooled.chunks(tokens.saturating_sub(*prefix).max(1)).map(whole).collect())
            }
        }
    }
}

/// Rollout multiplies the layers' attention matrices, so all layers must have the same tokens: a Vision Transformer.
fn tokens_throughout<'a>(
    architecture: &'a Architecture,
    layers: &[Layer],
    method: Method,
) -> Result<&'a Vit, InsightError> {
    match architecture.downcast_ref::<Vit>() {
        Some(vit) if !layers.is_empty() => Ok(vit),
        _ if layers.is_empty() => {
            let reason = "this model has no attention";
            Err(InsightError::Method { method, reason, instead: &[Method::GradCam] })
        }
        _ => Err(InsightError::Method {
            method,
            reason: "it needs the same tokens in all layers, and the stages of this model have different ones",
            instead: &[Method::GradCam, Method::Attention { layer: None, head: None }],
        }),
    }
}

/// Adds an output for every layer's attention, heads averaged.
pub(super) fn rollout(
    graph: &mut Graph,
    architecture: &Architecture,
    layers: &[Layer],
) -> Result<InitialRelevance, InsightError> {
    let vit = tokens_throughout(architecture, layers, Method::Rollout)?;
    for (index, layer) in layers.iter().enumerate() {
        let mean = graph.value(Reduce::mean([1]), &[layer.weights])?;
        graph.set_output(&flow(index), mean)?;
    }
    if let Some(&weights) = graph.taps().get(POOL_WEIGHTS) {
        let mean = graph.value(Reduce::mean([1]), &[weights])?;
        graph.set_output(POOL, mean)?;
    }
    Ok(InitialRelevance::of(vit))
}

/// Adds an output for one layer's attention: one head, or the mean over heads.
pub(super) fn one_layer(graph: &mut Graph, layer: &Layer, head: Option<usize>) -> Result<(), InsightError> {
    let part = match head {
        Some(start) => graph.value(Slice { axis: 1, start, length: 1 }, &[layer.weights])?,
        None => layer.weights,
    };
    let mean = graph.value(Reduce::mean([1]), &[part])?;
    Ok(graph.set_output(ONE, mean)?)
}

/// What the outputs of a class-specific graph hold.
pub(super) enum Evidence {
    /// The positive part of attention times gradient, for this many layers.
    Attention(usize, InitialRelevance),
    /// A feature map `[batch, rows, columns, channels]`, or tokens `[batch, prefix + patches, channels]`, and its gradient.
    Features { grid: [usize; 2], prefix: usize },
}

/// The model's graph with the gradients of the chosen classes' logits.
pub(super) fn by_class(
    architecture: &Architecture,
    batch: usize,
    method: Method,
) -> Result<(Graph, Evidence), InsightError> {
    let mut graph = architecture.build(batch, Mode::Inference)?;
    let Ok(logits) = graph.output("logits") else {
        return Err(InsightError::Method {
            method,
            reason: "this model has no classification head, so it has no classes",
            instead: &[Method::Rollout, Method::Attention { layer: None, head: None }],
        });
    };
    let last = match (architecture.downcast_ref::<Vit>(), method) {
        (Some(vit), Method::Gradient) => ContributionSource::find(&graph, vit)?,
        _ => None,
    };
    // The logits stay an output: devices require that a norm whose statistics are used also has its result used.
    graph.retain_outputs(|name| name == "logits");
    let ty = Type::f32(graph.shape(logits).clone());
    let chosen = graph.value(Input { name: CLASS.into(), ty }, &[])?;
    let product = graph.value(Binary::Mul, &[logits, chosen])?;
    let score = graph.value(Reduce::sum([0, 1]), &[product])?;
    let evidence = match method {
        Method::Gradient => attention_evidence(&mut graph, architecture, score, last)?,
        _ => feature_evidence(&mut graph, architecture, score)?,
    };
    Ok((graph, evidence))
}

fn attention_evidence(
    graph: &mut Graph,
    architecture: &Architecture,
    score: Value,
    last: Option<ContributionSource>,
) -> Result<Evidence, InsightError> {
    let layers = attention_layers(architecture, graph);
    let vit = tokens_throughout(architecture, &layers, Method::Gradient)?;
    let mut weights: Vec<(String, Value)> =
        layers.iter().enumerate().map(|(index, layer)| (flow(index), layer.weights)).collect();
    weights.extend(graph.taps().get(POOL_WEIGHTS).map(|&value| (POOL.to_string(), value)));
    let mut results: Vec<Value> = weights.iter().map(|(_, w)| Value { node: w.node, output: 0 }).collect();
    results.extend(last.as_ref().map(ContributionSource::value));
    let mut gradients = autodiff::gradients(graph, score, &results)?;
    let start = match last {
        Some(last) => {
            last.request(graph, gradients.split_off(weights.len())[0])?;
            InitialRelevance::Contributed { prefix: vit.unpooled_tokens() }
        }
        None => InitialRelevance::of(vit),
    };
    for ((name, weights), gradient) in weights.into_iter().zip(gradients) {
        let by_weight = weight_gradient(graph, weights, gradient)?;
        let product = graph.value(Binary::Mul, &[weights, by_weight])?;
        let positive = graph.value(Activation::Relu, &[product])?;
        let mean = graph.value(Reduce::mean([1]), &[positive])?;
        graph.set_output(&name, mean)?;
    }
    Ok(Evidence::Attention(layers.len(), start))
}

/// The gradient with respect to attention weights `[b, h, n, m]`, from that of the attention's result: the result is
/// weights times values, so it is `dy Vᵀ` in every head. The attention operation itself never materialises it.
fn weight_gradient(graph: &mut Graph, weights: Value, dy: Value) -> Result<Value, GraphError> {
    let node = graph.node(weights.node).clone();
    let Op::Attention(Attention { heads, packed, .. }) = node.op else {
        return Err(GraphError::Gradient {
            op: "attention",
            scope: node.scope,
            reason: "the value is not the attention weights of an attention operation".into(),
        });
    };
    let width = graph.shape(dy)[2];
    let values = match packed {
        true => graph.value(Slice { axis: 2, start: 2 * width, length: width }, &[node.inputs[0]])?,
        false => node.inputs[2],
    };
    let mut by_head = |x: Value| {
        let [batch, tokens] = [graph.shape(x)[0], graph.shape(x)[1]];
        let split = graph.value(Reshape([batch, tokens, heads, width / heads].into()), &[x])?;
        graph.value(Permute(vec![0, 2, 1, 3]), &[split])
    };
    let (dy, values) = (by_head(dy)?, by_head(values)?);
    graph.value(MatMul { transpose_a: false, transpose_b: true }, &[dy, values])
}

fn feature_evidence(graph: &mut Graph, architecture: &Architecture, score: Value) -> Result<Evidence, InsightError> {
    let (tap, prefix) = match architecture.downcast_ref::<Vit>() {
        // With token pooling the last block's patch tokens have no gradient, so take those before it.
        Some(vit) => match vit.depth.checked_sub(if vit.pooling == Pooling::Token { 2 } else { 1 }) {
            Some(block) => (format!("blocks.{block}"), vit.prefix_tokens()),
            None => ("patch_embed".to_string(), 0),
        },
        _ => ("feature_map".to_string(), 0),
    };
    graph.request(&tap)?;
    let features = graph.output(&tap)?;
    graph.retain_outputs(|name| name == "logits");
    let gradients = autodiff::gradients(graph, score, &[features])?[0];
    graph.set_output(FEATURES, features)?;
    graph.set_output(GRADIENTS, gradients)?;
    let grid = match architecture.tokens() {
        Some(tokens) => tokens.grid,
        None => [graph.shape(features)[1], graph.shape(features)[2]],
    };
    Ok(Evidence::Features { grid, prefix })
}

impl Evidence {
    /// The maps of the first `count` images of the last run.
    pub fn maps(&self, runner: &Runner, architecture: &Architecture, count: usize) -> Result<Vec<Map>, InsightError> {
        match self {
            Evidence::Attention(layers, start) => {
                let flows = read_flows(runner, *layers)?;
                let start = start.read(runner, architecture)?;
                let map = |i: usize| {
                    let row = relevance_of(&start[i], &flows_of(&flows, runner.batch(), i))?;
                    patches(architecture, row)
                };
                (0..count).map(map).collect()
            }
            Evidence::Features { grid, prefix } => {
                let (features, gradients) = (runner.read(FEATURES)?, runner.read(GRADIENTS)?);
                let channels = runner.shape(FEATURES).map_or(1, |shape| shape.last());
                let each = (features.len() / runner.batch()).max(1);
                let images = features.chunks(each).zip(gradients.chunks(each)).take(count);
                images
                    .map(|(features, gradients)| {
                        let skip = prefix * channels;
                        let values = grad_cam(&features[skip..], &gradients[skip..], channels);
                        Map::new(*grid, values, architecture.image_size(), covered(architecture, *grid))
                    })
                    .collect()
            }
        }
    }
}

/// `relu(sum over channels of feature x mean gradient)` at every position.
fn grad_cam(features: &[f32], gradients: &[f32], channels: usize) -> Vec<f32> {
    let positions = (gradients.len() / channels).max(1) as f64;
    let mut weights = vec![0.0f64; channels];
    for row in gradients.chunks(channels) {
        weights.iter_mut().zip(row).for_each(|(w, &s)| *w += f64::from(s) / positions);
    }
    let value = |row: &[f32]| row.iter().zip(&weights).map(|(&f, w)| f64::from(f) * w).sum::<f64>().max(0.0) as f32;
    features.chunks(channels).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vit_graph::ops::{Scale, Softmax};
    use vit_graph::reference::{self, Array, Bindings};
    use vit_graph::{DType, Shape, Tensor};
    use vit_models::variants;

    const HEADS: usize = 2;
    const SHAPE: [usize; 3] = [2, 5, 8];

    /// Attention as one operation, and from matrix products and a softmax, where the weights are a value.
    fn fused_and_explicit(packed: bool) -> (Tensor, Tensor, Tensor) {
        let [batch, tokens, width] = SHAPE;
        let head = width / HEADS;
        let qkv = Tensor::input("qkv", DType::F32, [batch, tokens, 3 * width]);
        let part = |i: usize| qkv.slice(2, i * width, width);
        let scale = 1.0 / (head as f32).sqrt();
        let op = Attention { heads: HEADS, scale, packed, bias: false, dropout: None };
        let [y, _] = match packed {
            true => qkv.attention(op, &[]),
            false => part(0).attention(op, &[&part(1), &part(2)]),
        };
        let by_head = |x: Tensor| x.reshape([batch, tokens, HEADS, head]).permute([0, 2, 1, 3]);
        let [q, k, v] = [0, 1, 2].map(|i| by_head(part(i)));
        let transposed = MatMul { transpose_a: false, transpose_b: true };
        let weights = q.apply(transposed, &[&k]).apply(Scale(scale), &[]).apply(Softmax, &[]);
        let explicit = weights.matmul(&v).permute([0, 2, 1, 3]).reshape(SHAPE);
        (y, explicit, weights)
    }

    #[test]
    fn the_gradient_of_attention_weights_is_that_of_attention_from_parts() {
        for packed in [true, false] {
            let (fused, explicit, weights) = fused_and_explicit(packed);
            let mix = fused.another_input("mix", DType::F32, SHAPE);
            let loss = |y: &Tensor| (&(y * y) * &mix).sum([0, 1, 2]);
            let (one, other) = (loss(&fused).value().unwrap(), loss(&explicit).value().unwrap());
            let mut graph = fused.finish().unwrap();
            let result = fused.value().unwrap();
            let gradient = autodiff::gradients(&mut graph, one, &[result]).unwrap()[0];
            let found = weight_gradient(&mut graph, Value { node: result.node, output: 2 }, gradient).unwrap();
            let expected = autodiff::gradients(&mut graph, other, &[weights.value().unwrap()]).unwrap()[0];
            graph.set_output("found", found).unwrap();
            graph.set_output("expected", expected).unwrap();
            let array = |shape: &Shape, step: f64| Array::from_fn(shape, |i| (i as f64 * step).sin());
            let values = Bindings::new()
                .with("qkv", array(&Shape::from([2, 5, 24]), 0.7))
                .with("mix", array(&Shape::from(SHAPE), 1.3));
            let outputs = reference::run(&graph, &values).unwrap();
            for (found, expected) in outputs["found"].data().iter().zip(outputs["expected"].data()) {
                assert!((found - expected).abs() < 1e-12, "{found}, from parts {expected}");
            }
            assert!(outputs["expected"].data().iter().any(|v| v.abs() > 0.1));
        }
    }

    #[test]
    fn every_named_model_has_a_graph_for_its_explanation() {
        for variant in variants() {
            let (name, mut architecture) = (variant.name, variant.architecture);
            if architecture.classes() == 0 {
                architecture.set_classes(7);
            }
            let is_vit = architecture.downcast_ref::<Vit>().is_some();
            // The gradient of attention weights needs attention as one operation.
            let is_fused = architecture.downcast_ref::<Vit>().is_some_and(|vit| !vit.differential);
            by_class(&architecture, 1, Method::GradCam).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(by_class(&architecture, 1, Method::Gradient).is_ok(), is_fused, "{name}");
            let mut graph = architecture.build(1, Mode::Inference).unwrap();
            let layers = attention_layers(&architecture, &graph);
            assert_eq!(rollout(&mut graph, &architecture, &layers).is_ok(), is_vit, "{name}");
        }
    }
}
