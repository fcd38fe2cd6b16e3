//! The exponential moving average of weights (EMA).

use super::schedule::CosineRamp;

/// An exponential moving average of the trained weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Average {
    /// The decay after the warm-up.
    pub decay: CosineRamp,
    /// Let the decay rise from 0 to `decay`, so that the random initial weights are soon forgotten.
    pub warmup: bool,
}

impl Average {
    /// An average whose decay is the same in all steps.
    pub fn constant(decay: f64) -> Self {
        Average { decay: CosineRamp { from: decay, to: decay, steps: 0 }, warmup: false }
    }

    /// The input `average_decay` of a step, counted from 1, as in timm's `ModelEmaV3`: the first step copies the weights.
    pub fn decay_at(&self, step: u64) -> f32 {
        let before = step.saturating_sub(1);
        let decay = self.decay.at(before);
        match (step, self.warmup) {
            (0 | 1, _) => 0.0,
            (_, true) => (1.0 - (1.0 + before as f64).powf(-2.0 / 3.0)).min(decay) as f32,
            (_, false) => decay as f32,
        }
    }
}
