//! What each last token adds to a class's logit, where the answer is made of the mean of the patches. There the logit is a
//! sum over tokens: behind a norm of the tokens and one linear head exactly, behind a norm of the mean with its mean and
//! deviation taken as they are (its plain gradient would say that nothing changes when all tokens grow alike).

use vit_graph::ops::{Binary, Op, Reshape};
use vit_graph::{Graph, NodeId, Value};
use vit_models::vit::{FinalNorm, Pooling, Vit};

use crate::InsightError;
use crate::runner::Runner;

const TOKENS: &str = "last.tokens";
const SLOPES: &str = "last.slopes";

/// The value whose gradient says what the last tokens contribute.
pub(super) enum Last {
    /// The tokens themselves.
    Tokens(Value),
    /// The result of a norm after the mean, and the tokens.
    Norm(NodeId, Value),
}

impl Last {
    /// Where a model takes the mean of its patches.
    pub fn find(graph: &Graph, vit: &Vit) -> Result<Option<Last>, InsightError> {
        if vit.pooling != Pooling::Mean {
            return Ok(None);
        }
        let tokens = graph.output("tokens")?;
        if vit.final_norm != FinalNorm::AfterPooling {
            return Ok(Some(Last::Tokens(tokens)));
        }
        // The first norm behind the last tokens is the one of their mean.
        let norm = (tokens.node..graph.nodes().len()).find(|&node| matches!(graph.node(node).op, Op::LayerNorm(_)));
        Ok(Some(norm.map_or(Last::Tokens(tokens), |norm| Last::Norm(norm, tokens))))
    }

    /// What the logit is to be differentiated by.
    pub fn value(&self) -> Value {
        match *self {
            Last::Tokens(tokens) => tokens,
            Last::Norm(node, _) => Value { node, output: 0 },
        }
    }

    /// Asks for what [`read`] needs, given the gradient.
    pub fn request(self, graph: &mut Graph, slope: Value) -> Result<(), InsightError> {
        let (tokens, slopes) = match self {
            Last::Tokens(tokens) => (tokens, slope),
            Last::Norm(node, tokens) => {
                let factors = graph.node(node).inputs[1];
                let batch = graph.shape(slope)[0];
                let deviation = graph.value(Reshape([batch, 1].into()), &[Value { node, output: 2 }])?;
                let scaled = graph.value(Binary::Mul, &[slope, factors])?;
                (tokens, graph.value(Binary::Mul, &[scaled, deviation])?)
            }
        };
        graph.set_output(TOKENS, tokens)?;
        Ok(graph.set_output(SLOPES, slopes)?)
    }
}

/// The positive part of every token's contribution, for each picture of the last run; tokens before the patches, which are
/// not part of the mean, have none.
pub(super) fn read(runner: &Runner, prefix: usize) -> Result<Vec<Vec<f32>>, InsightError> {
    let (tokens, slopes) = (runner.read(TOKENS)?, runner.read(SLOPES)?);
    let dim = runner.shape(TOKENS).map_or(1, |shape| shape.last());
    let batch = runner.batch();
    let pictures = tokens.chunks(tokens.len() / batch).zip(slopes.chunks(slopes.len() / batch));
    Ok(pictures.map(|(tokens, slopes)| contributions(tokens, slopes, dim, prefix)).collect())
}

/// Tokens times slopes, which are a row for each token, or one row for the mean of the patches, from behind its norm.
fn contributions(tokens: &[f32], slopes: &[f32], dim: usize, prefix: usize) -> Vec<f32> {
    let (count, of_mean) = (tokens.len() / dim, slopes.len() < tokens.len());
    // A norm takes the mean over channels away from its input, or, which is the same, from its slopes.
    let (centre, share) = match of_mean {
        true => (slopes.iter().map(|&s| f64::from(s)).sum::<f64>() / dim as f64, 1.0 / (count - prefix) as f64),
        false => (0.0, 1.0),
    };
    let contribution = |(index, token): (usize, &[f32])| {
        let slopes = if of_mean { slopes } else { &slopes[index * dim..][..dim] };
        let sum: f64 = token.iter().zip(slopes).map(|(&x, &s)| f64::from(x) * (f64::from(s) - centre)).sum();
        if index < prefix { 0.0 } else { (share * sum).max(0.0) as f32 }
    };
    tokens.chunks(dim).enumerate().map(contribution).collect()
}
