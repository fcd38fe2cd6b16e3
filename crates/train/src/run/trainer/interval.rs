//! What happened since the last logged step.

use std::time::{Duration, Instant};

use super::session::{Losses, Session};
use crate::run::folder::{MetricsRow, columns};
use crate::run::progress::{Pace, Progress};

/// Sums and times since the last logged step.
pub(super) struct Interval {
    began: Instant,
    excluded: Duration,
    images: u64,
    waited: Duration,
    loss: f64,
    grad_norm: f64,
    steps: u32,
}

impl Interval {
    pub fn new(session: &Session) -> Interval {
        Interval::at(Instant::now(), session.position.images, session.waiting)
    }

    fn at(began: Instant, images: u64, waited: Duration) -> Interval {
        Interval { began, excluded: Duration::ZERO, images, waited, loss: 0.0, grad_norm: 0.0, steps: 0 }
    }

    /// Excludes time in which no step ran, such as that of an evaluation.
    pub fn exclude(&mut self, time: Duration) {
        self.excluded += time;
    }

    fn seconds(&self, now: Instant) -> f64 {
        (now - self.began).saturating_sub(self.excluded).as_secs_f64().max(1e-9)
    }

    pub fn add(&mut self, losses: &Losses) {
        if losses.non_finite().is_none() {
            self.loss += losses.loss;
            self.grad_norm += losses.grad_norm;
            self.steps += 1;
        }
    }

    pub fn progress(&self, session: &Session, pace: &mut Pace, elapsed: Duration) -> Progress {
        let seconds = self.seconds(Instant::now());
        let (step, per_epoch) = (session.position.step, session.steps_per_epoch);
        Progress {
            epoch: step.saturating_sub(1) / per_epoch + 1,
            epochs: session.steps.div_ceil(per_epoch),
            step,
            steps: session.steps,
            steps_per_epoch: per_epoch,
            loss: (self.steps > 0).then(|| self.loss / f64::from(self.steps)),
            rate: session.rate(),
            images_per_second: Some((session.position.images - self.images) as f64 / seconds),
            waiting: (session.waiting.saturating_sub(self.waited)).as_secs_f64() / seconds,
            memory: Some(session.memory_bytes()),
            elapsed,
            remaining: pace.observe(step, elapsed),
        }
    }

    pub fn row(&self, session: &Session, progress: &Progress) -> MetricsRow {
        let epoch = progress.step as f64 / session.steps_per_epoch as f64;
        let mut row = MetricsRow::new(progress.step).epoch(epoch).with(columns::RATE, progress.rate);
        if self.steps > 0 {
            let mean = |sum: f64| sum / f64::from(self.steps);
            row = row.with(columns::TRAIN_LOSS, mean(self.loss)).with("train/grad_norm", mean(self.grad_norm));
        }
        row.with(columns::IMAGES_PER_SECOND, progress.images_per_second.unwrap_or(0.0))
            .with("train/waiting", progress.waiting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_an_evaluation_is_not_part_of_the_speed() {
        let began = Instant::now();
        let mut interval = Interval::at(began, 0, Duration::ZERO);
        interval.exclude(Duration::from_secs(3590));
        assert_eq!(interval.seconds(began + Duration::from_secs(3600)), 10.0);
    }
}
