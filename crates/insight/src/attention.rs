//! The attention weights of one layer for one image.

use crate::InsightError;

/// Attention weights of one layer, `[heads, queries, keys]`; every row adds up to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attention<'a> {
    heads: usize,
    tokens: usize,
    weights: &'a [f32],
}

impl<'a> Attention<'a> {
    /// Takes weights as `[heads, tokens, tokens]`.
    pub fn new(heads: usize, tokens: usize, weights: &'a [f32]) -> Result<Self, InsightError> {
        let expected = heads.saturating_mul(tokens).saturating_mul(tokens);
        if expected != weights.len() || expected == 0 {
            return Err(InsightError::Length { what: "attention weights", found: weights.len(), expected });
        }
        Ok(Attention { heads, tokens, weights })
    }

    /// Number of heads.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Number of tokens.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// The weights of one head, `[tokens, tokens]`.
    pub fn head(&self, head: usize) -> &'a [f32] {
        let size = self.tokens * self.tokens;
        &self.weights[head * size..(head + 1) * size]
    }

    /// The mean over heads, `[tokens, tokens]`.
    pub fn mean(&self) -> Vec<f64> {
        let mut mean = vec![0.0; self.tokens * self.tokens];
        for head in 0..self.heads {
            mean.iter_mut().zip(self.head(head)).for_each(|(m, &w)| *m += f64::from(w));
        }
        mean.iter_mut().for_each(|m| *m /= self.heads as f64);
        mean
    }
}
