//! The moving average of weights: how much of it stays at each step.

/// An exponential moving average of the trained weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Average {
    /// How much of the average stays at each step, once warm.
    pub decay: f32,
    /// Start with less and approach `decay`, so that the first random weights are soon forgotten.
    pub warmup: bool,
}

impl Average {
    /// The input `average_decay` of a step, counted from 1, as timm's `ModelEmaV3` has it: the first step copies the
    /// weights.
    pub fn decay_at(&self, step: u64) -> f32 {
        let before = step.saturating_sub(1) as f64;
        match (step, self.warmup) {
            (0 | 1, _) => 0.0,
            (_, true) => (1.0 - (1.0 + before).powf(-2.0 / 3.0)).min(f64::from(self.decay)) as f32,
            (_, false) => self.decay,
        }
    }
}
