//! The outputs of a model that an answer needs, and the answer from them.

use vit::models::Architecture;
use vit::{Error, Pool, PooledOutput};

use super::queue::Lane;
use super::{Answer, WorkError, WorkOutput};

/// The outputs of the model that an answer needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct NeededOutputs {
    logits: bool,
    /// The output to pool, and whether the embedding is scaled to length 1.
    embedding: Option<(PooledOutput, bool)>,
}

impl NeededOutputs {
    /// An error if the model has no such output.
    pub fn new(architecture: &Architecture, output: WorkOutput) -> Result<Self, WorkError> {
        let unsuitable = |error: Error| WorkError::Unsuitable(error.to_string());
        let has_head = architecture.classes() > 0;
        let pooled = |pool| PooledOutput::new(architecture, pool).map_err(unsuitable);
        match output {
            WorkOutput::Logits if !has_head => Err(unsuitable(Error::NoHead)),
            WorkOutput::Logits => Ok(NeededOutputs { logits: true, embedding: None }),
            WorkOutput::Embedding { pool, normalise } => {
                Ok(NeededOutputs { logits: false, embedding: Some((pooled(pool)?, normalise)) })
            }
            WorkOutput::All => {
                Ok(NeededOutputs { logits: has_head, embedding: Some((pooled(Pool::Features)?, false)) })
            }
        }
    }

    /// Whether an answer needs this output.
    pub fn contains(&self, name: &str) -> bool {
        (self.logits && name == "logits") || self.embedding.is_some_and(|(pooled, _)| pooled.output == name)
    }

    pub fn lane(&self) -> Lane {
        match self.embedding {
            Some((pooled, _)) if pooled.output != "features" => Lane::Tokens,
            _ => Lane::Head,
        }
    }
}

/// The outputs of one batch.
pub(super) struct BatchOutputs {
    pub images: usize,
    /// Name, elements, and shape for a full batch.
    pub outputs: Vec<(String, Vec<f32>, Vec<usize>)>,
}

impl BatchOutputs {
    /// The answer for one image of the batch, without its timing.
    pub fn answer(&self, needed: NeededOutputs, index: usize) -> Result<Answer, WorkError> {
        let mut answer = Answer::default();
        if needed.logits {
            answer.logits = self.of("logits", index)?.0.to_vec();
        }
        if let Some((pooled, normalise)) = needed.embedding {
            let (values, shape) = self.of(pooled.output, index)?;
            let dim = shape.last().copied().unwrap_or(1);
            answer.embedding = pooled.embedding(values, dim, normalise);
            answer.embedding_shape = pooled.shape(shape);
        }
        Ok(answer)
    }

    fn of(&self, name: &str, index: usize) -> Result<(&[f32], &[usize]), WorkError> {
        let missing = || WorkError::Internal(format!("the output {name} was not computed"));
        let (_, values, shape) = self.outputs.iter().find(|(n, ..)| n == name).ok_or_else(missing)?;
        let each = values.len() / self.images;
        let values = &values[index * each..(index + 1) * each];
        match values.iter().all(|value| value.is_finite()) {
            true => Ok((values, shape)),
            false => Err(WorkError::NonFinite(Error::NonFinite { output: name.into() }.to_string())),
        }
    }
}
