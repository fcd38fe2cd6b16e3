//! The learning rate as a pure function of the step: a linear warm-up, a decay, and an optional linear cool-down.
//! The curves are those of Google's vision_transformer and big_vision.

use std::f64::consts::PI;

/// The decay of the learning rate after the warm-up.
#[derive(Debug, Clone, PartialEq)]
pub enum Decay {
    /// None.
    Constant,
    /// Half a period of the cosine, down to `end`.
    Cosine {
        /// The last rate.
        end: f64,
    },
    /// A power of the time left, down to `end`; linear for the power 1.
    Polynomial {
        /// The last rate.
        end: f64,
        /// The exponent.
        power: f64,
    },
    /// One over the square root of the time since the warm-up, independent of the number of steps.
    ReciprocalSqrt {
        /// Steps after which the rate has fallen by the square root of two.
        timescale: f64,
        /// Steps that are added to the time since the warm-up.
        shift: f64,
    },
    /// From each of these steps on, the base rate times a factor.
    Stair(Vec<(u64, f64)>),
}

/// A learning-rate schedule.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// The highest rate.
    pub base: f64,
    /// All steps.
    pub steps: u64,
    /// Steps in which the rate rises from zero.
    pub warmup: u64,
    /// Last steps, in which the rate falls to zero.
    pub cooldown: u64,
    /// The decay in between.
    pub decay: Decay,
}

/// A value that goes from one to another along half a period of the cosine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CosineRamp {
    /// The first value.
    pub from: f64,
    /// The value after the last step.
    pub to: f64,
    /// All steps.
    pub steps: u64,
}

impl CosineRamp {
    /// The value at a step, counted from 0.
    pub fn at(&self, step: u64) -> f64 {
        let progress = (step as f64 / self.steps.max(1) as f64).min(1.0);
        self.to + (self.from - self.to) * 0.5 * (1.0 + (PI * progress).cos())
    }
}

impl Schedule {
    /// The rate at a step, counted from 0.
    pub fn rate(&self, step: u64) -> f64 {
        let (base, since) = (self.base, step.saturating_sub(self.warmup) as f64);
        let length = self.steps.saturating_sub(self.warmup).max(1) as f64;
        let progress = (since / length).min(1.0);
        let decayed = match &self.decay {
            Decay::Constant => base,
            Decay::Cosine { end } => end + (base - end) * 0.5 * (1.0 + (PI * progress).cos()),
            Decay::Polynomial { end, power } => end + (base - end) * (1.0 - progress).powf(*power),
            Decay::ReciprocalSqrt { timescale, shift } => base / (1.0 + (since + shift) / timescale).sqrt(),
            Decay::Stair(stairs) => {
                base * stairs.iter().rev().find(|(from, _)| step >= *from).map_or(1.0, |(_, factor)| *factor)
            }
        };
        let up = if self.warmup > 0 { (step as f64 / self.warmup as f64).min(1.0) } else { 1.0 };
        let left = self.steps.saturating_sub(step) as f64;
        let down = if self.cooldown > 0 { (left / self.cooldown as f64).min(1.0) } else { 1.0 };
        decayed * up * down
    }
}
