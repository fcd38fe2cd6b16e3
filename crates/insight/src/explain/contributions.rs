//! The contribution of each final token to a class's logit under mean pooling, where the logit is a sum over tokens. After
//! a norm of the tokens and a linear head this is exact. For a norm after pooling, its mean and standard deviation are taken
//! as constants: the true gradient is zero along a common scaling of all tokens.

use vit_graph::ops::{Binary, Op, Reshape};
use vit_graph::{Graph, NodeId, Value};
use vit_models::vit::{FinalNorm, Pooling, Vit};

use crate::InsightError;
use crate::runner::Runner;

const TOKENS: &str = "last.tokens";
const GRADIENTS: &str = "last.gradients";

/// The value whose gradient gives the contributions.
pub(super) enum ContributionSource {
    /// The final tokens.
    Tokens(Value),
    /// The norm after pooling, and the final tokens.
    Norm(NodeId, Value),
}

impl ContributionSource {
    /// `None` unless the model has mean pooling.
    pub fn find(graph: &Graph, vit: &Vit) -> Result<Option<ContributionSource>, InsightError> {
        if vit.pooling != Pooling::Mean {
            return Ok(None);
        }
        let tokens = graph.output("tokens")?;
        if vit.final_norm != FinalNorm::AfterPooling {
            return Ok(Some(ContributionSource::Tokens(tokens)));
        }
        // The first norm after the final tokens is the one after pooling.
        let norm = (tokens.node..graph.nodes().len()).find(|&node| matches!(graph.node(node).op, Op::LayerNorm(_)));
        Ok(Some(norm.map_or(ContributionSource::Tokens(tokens), |norm| ContributionSource::Norm(norm, tokens))))
    }

    /// The value to differentiate the logit with respect to.
    pub fn value(&self) -> Value {
        match *self {
            ContributionSource::Tokens(tokens) => tokens,
            ContributionSource::Norm(node, _) => Value { node, output: 0 },
        }
    }

    /// Adds the outputs that [`read`] needs, given the gradient.
    pub fn request(self, graph: &mut Graph, gradient: Value) -> Result<(), InsightError> {
        let (tokens, gradients) = match self {
            ContributionSource::Tokens(tokens) => (tokens, gradient),
            ContributionSource::Norm(node, tokens) => {
                let weight = graph.node(node).inputs[1];
                let batch = graph.shape(gradient)[0];
                let inverse_deviation = graph.value(Reshape([batch, 1].into()), &[Value { node, output: 2 }])?;
                let scaled = graph.value(Binary::Mul, &[gradient, weight])?;
                (tokens, graph.value(Binary::Mul, &[scaled, inverse_deviation])?)
            }
        };
        graph.set_output(TOKENS, tokens)?;
        Ok(graph.set_output(GRADIENTS, gradients)?)
    }
}

/// The positive part of every token's contribution, for each image of the last run; zero for prefix tokens, which are not
/// pooled.
pub(super) fn read(runner: &Runner, prefix: usize) -> Result<Vec<Vec<f32>>, InsightError> {
    let (tokens, gradients) = (runner.read(TOKENS)?, runner.read(GRADIENTS)?);
    let dim = runner.shape(TOKENS).map_or(1, |shape| shape.last());
    let batch = runner.batch();
    let images = tokens.chunks(tokens.len() / batch).zip(gradients.chunks(gradients.len() / batch));
    Ok(images.map(|(tokens, gradients)| contributions(tokens, gradients, dim, prefix)).collect())
}

/// Dot products of tokens and gradients. There is a gradient per token, or a single one with respect to the normalised
/// mean.
fn contributions(tokens: &[f32], gradients: &[f32], dim: usize, prefix: usize) -> Vec<f32> {
    let (count, of_mean) = (tokens.len() / dim, gradients.len() < tokens.len());
    // The norm centres its input over channels; centring the gradient instead gives the same dot product.
    let (centre, share) = match of_mean {
        true => (gradients.iter().map(|&s| f64::from(s)).sum::<f64>() / dim as f64, 1.0 / (count - prefix) as f64),
        false => (0.0, 1.0),
    };
    let contribution = |(index, token): (usize, &[f32])| {
        let gradients = if of_mean { gradients } else { &gradients[index * dim..][..dim] };
        let sum: f64 = token.iter().zip(gradients).map(|(&x, &s)| f64::from(x) * (f64::from(s) - centre)).sum();
        if index < prefix { 0.0 } else { (share * sum).max(0.0) as f32 }
    };
    tokens.chunks(dim).enumerate().map(contribution).collect()
}
