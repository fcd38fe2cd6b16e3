//! Differential attention (Ye et al., 2024): the difference of two attentions, which cancels what both have in common.

use vit_graph::ops::{Attention, Constant};
use vit_graph::{Init, Shape, Tensor};

use super::Vit;
use crate::layers::{Forward, NormKind};

/// Of the norm of each head's result.
const EPSILON: f32 = 1e-5;

impl Forward<'_, Vit> {
    /// `A₁ v - λ A₂ v` in every head, normalised, and the weights `A₁ - λ A₂`: queries and keys of a head are two halves, of
    /// which the first gives `A₁` and the second `A₂`.
    pub(super) fn differential(&self, [q, k, v]: [Tensor; 3], depth: usize) -> [Tensor; 2] {
        let vit = self.net;
        let (head_dim, half) = (vit.dim / vit.heads, vit.dim / vit.heads / 2);
        // Zeros in one half of the queries leave the scores of the other half.
        let attend = |first: bool| {
            let mask = (0..vit.dim).map(|channel| f32::from((channel % head_dim < half) == first)).collect();
            let (dropout, seed) = self.building.attention_dropout(&q, vit.attention_dropout);
            let scale = 1.0 / (half as f32).sqrt();
            let op = Attention { heads: vit.heads, scale, packed: false, bias: false, dropout };
            let masked = &q * &q.constant(Constant::f32([vit.dim], mask));
            masked.attention(op, &[&k, &v].into_iter().chain(seed).collect::<Vec<_>>())
        };
        let ([first, first_weights], [second, second_weights]) = (attend(true), attend(false));
        let initial = 0.8 - 0.6 * (-0.3 * depth as f32).exp();
        let lambda = self.lambda(&q, half, initial);
        let y = first - second * &lambda;
        let shape = y.shape();
        let heads = y.reshape([shape[0], shape[1], vit.heads, head_dim]);
        let y = NormKind::Rms.apply(&heads, EPSILON, "sub_norm").reshape(shape).scale(1.0 - initial);
        [y, first_weights - second_weights * &lambda]
    }

    /// `exp(q₁ · k₁) - exp(q₂ · k₂) + initial`, from learned vectors.
    fn lambda(&self, x: &Tensor, width: usize, initial: f32) -> Tensor {
        let vector = |name: &str| x.parameter(name, [width], Init::Normal { std: 0.1 });
        let dot = |q, k| (vector(q) * vector(k)).sum([0]).exp();
        let difference = dot("lambda_q1", "lambda_k1") - dot("lambda_q2", "lambda_k2");
        difference + x.constant(Constant::filled(Shape::default(), initial))
    }
}
