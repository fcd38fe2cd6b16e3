//! The progress of a run and the estimate of its remaining time, without any output to a terminal.

use std::fmt;
use std::time::Duration;

/// The progress of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Progress {
    /// The current epoch, from 1.
    pub epoch: u64,
    /// Epochs of the whole run.
    pub epochs: u64,
    /// Steps taken.
    pub step: u64,
    /// Steps of the whole run.
    pub steps: u64,
    /// Steps of an epoch.
    pub steps_per_epoch: u64,
    /// Mean loss since the last logged step.
    pub loss: Option<f64>,
    /// Learning rate.
    pub rate: f64,
    /// Training speed since the last logged step.
    pub images_per_second: Option<f64>,
    /// Share of the time in which the device waited for data, 0 to 1.
    pub waiting: f64,
    /// Memory of the step on its device in bytes, if known.
    pub memory: Option<u64>,
    /// Time since the session began.
    pub elapsed: Duration,
    /// Estimated time until the end of the run.
    pub remaining: Option<Duration>,
}

impl Progress {
    /// Share of the run that is done, 0 to 1.
    pub fn share(&self) -> f64 {
        if self.steps == 0 { 0.0 } else { (self.step as f64 / self.steps as f64).min(1.0) }
    }
}

impl fmt::Display for Progress {
    /// One line for a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}/{}  step {}/{}", self.epoch, self.epochs, self.step, self.steps)?;
        if let Some(loss) = self.loss {
            write!(f, "  loss {loss:.4}")?;
        }
        write!(f, "  lr {:.2e}", self.rate)?;
        if let Some(speed) = self.images_per_second {
            write!(f, "  {speed:.0} images/s")?;
        }
        // A smaller share is not worth a faster loader.
        if self.waiting >= 0.05 {
            write!(f, "  waiting for data {:.0} %", 100.0 * self.waiting)?;
        }
        if let Some(memory) = self.memory {
            write!(f, "  {:.1} GB", memory as f64 / 1e9)?;
        }
        match self.remaining {
            Some(remaining) => write!(f, "  {} left", Clock(remaining)),
            None => Ok(()),
        }
    }
}

/// A duration as text: `42s`, `3m 05s`, `2h 07m`, `5d 03h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock(pub Duration);

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs() + u64::from(self.0.subsec_millis() >= 500);
        let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
        match (days, hours, minutes) {
            (0, 0, 0) => write!(f, "{seconds}s"),
            (0, 0, _) => write!(f, "{minutes}m {:02}s", seconds % 60),
            (0, _, _) => write!(f, "{hours}h {:02}m", minutes % 60),
            _ => write!(f, "{days}d {:02}h", hours % 24),
        }
    }
}

/// Estimates the remaining time of a run from the latter half of this session: a slow start is excluded, evaluations and
/// saves are included, and one slow step has little weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Pace {
    steps: u64,
    /// Times and steps, evenly spaced and never more than [`Self::POINTS`].
    points: Vec<(Duration, u64)>,
    /// Every how many observations one is kept.
    every: u64,
    observed: u64,
}

impl Pace {
    const POINTS: usize = 512;

    /// The pace of a run of `steps` steps of which `step` are taken.
    pub fn new(step: u64, steps: u64) -> Self {
        Self { steps, points: vec![(Duration::ZERO, step)], every: 1, observed: 0 }
    }

    /// Adds that `step` steps are taken `elapsed` after the session began, and estimates the remaining time, if two steps
    /// were taken in this session: its first step takes longer than all others.
    pub fn observe(&mut self, step: u64, elapsed: Duration) -> Option<Duration> {
        self.observed += 1;
        let first = self.points[0].1;
        let half = elapsed / 2;
        let after_half = self.points.partition_point(|(time, _)| *time < half);
        // The first step fills caches, so it is excluded as soon as there is a second point.
        let from = after_half.clamp(usize::from(self.points.len() > 1), self.points.len() - 1);
        let (since, before) = self.points[from];
        if self.observed.is_multiple_of(self.every) {
            self.points.push((elapsed, step));
        }
        if self.points.len() == Self::POINTS {
            let mut index = 0;
            self.points.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.every *= 2;
        }
        let (taken, steps) = (elapsed.checked_sub(since)?, step.checked_sub(before)?);
        if step < first + 2 || steps == 0 {
            return None;
        }
        let left = self.steps.saturating_sub(step) as f64 * taken.as_secs_f64() / steps as f64;
        Duration::try_from_secs_f64(left).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(value: f64) -> Duration {
        Duration::from_secs_f64(value)
    }

    /// Runs `steps` steps that take `time(step)` each and gives the errors of all estimates, in seconds.
    fn errors(steps: u64, time: impl Fn(u64) -> f64) -> Vec<Option<f64>> {
        let total: f64 = (0..steps).map(&time).sum();
        let mut pace = Pace::new(0, steps);
        let mut now = 0.0;
        (0..steps)
            .map(|step| {
                now += time(step);
                pace.observe(step + 1, seconds(now)).map(|left| left.as_secs_f64() - (total - now))
            })
            .collect()
    }

    #[test]
    fn even_steps_are_estimated_exactly() {
        let errors = errors(5000, |_| 0.25);
        assert_eq!(errors[0], None);
        assert!(errors[1..].iter().all(|error| error.unwrap().abs() < 1e-3));
    }

    #[test]
    fn a_slow_first_step_is_excluded() {
        let errors = errors(1000, |step| if step == 0 { 30.0 } else { 0.1 });
        assert!(errors[1..].iter().all(|error| error.unwrap().abs() < 1e-3));
    }

    #[test]
    fn a_change_of_speed_is_followed() {
        let errors = errors(3000, |step| if step < 1000 { 0.1 } else { 0.3 });
        // 1000 steps of 0.1 s, then 2000 of 0.3 s: at step 2000 half of the time so far was slow, and all of it counts.
        assert!(errors[1999].unwrap().abs() < 1.0, "{:?}", errors[1999]);
        assert!(errors[2999].unwrap().abs() < 1e-3);
    }

    #[test]
    fn evaluation_between_epochs_is_counted() {
        let errors = errors(2000, |step| if step % 100 == 99 { 10.1 } else { 0.1 });
        // Half of the 400 seconds are evaluation: an estimate without it would be wrong by half of what is left. One
        // evaluation more or less in the latter half of the session is what may be off: a quarter, then an eighth.
        let worst = |from: usize| errors[from..].iter().map(|error| error.unwrap().abs()).fold(0.0, f64::max);
        assert!(worst(200) < 100.0 && worst(1000) < 25.0, "{} s and {} s off", worst(200), worst(1000));
    }

    #[test]
    fn a_resumed_run_does_not_count_steps_of_other_sessions() {
        let mut pace = Pace::new(900, 1000);
        assert_eq!(pace.observe(901, seconds(5.0)), None);
        let left = pace.observe(902, seconds(6.0)).unwrap();
        assert!((left.as_secs_f64() - 98.0).abs() < 1e-6, "{left:?}");
        assert_eq!(pace.observe(1000, seconds(104.0)), Some(Duration::ZERO));
    }

    #[test]
    fn clocks_that_stand_still_or_run_backwards_give_no_estimate() {
        let mut pace = Pace::new(0, 10);
        pace.observe(1, seconds(1.0));
        pace.observe(2, seconds(1.0));
        pace.observe(2, seconds(0.5));
        assert_eq!(Pace::new(5, 3).observe(7, seconds(1.0)), Some(Duration::ZERO));
    }

    #[test]
    fn a_line_says_what_matters() {
        let mut progress =
            Progress { epoch: 3, epochs: 90, step: 1200, steps: 36000, rate: 0.001, ..Progress::default() };
        assert_eq!(progress.to_string(), "epoch 3/90  step 1200/36000  lr 1.00e-3");
        progress.loss = Some(2.34567);
        progress.images_per_second = Some(812.4);
        progress.waiting = 0.21;
        progress.memory = Some(12_340_000_000);
        progress.remaining = Some(seconds(7630.0));
        let line = "epoch 3/90  step 1200/36000  loss 2.3457  lr 1.00e-3  812 images/s  waiting for data 21 %  12.3 GB  2h 07m left";
        assert_eq!(progress.to_string(), line);
        assert_eq!(progress.share(), 1.0 / 30.0);
    }

    #[test]
    fn durations_read_well() {
        let cases =
            [(0.0, "0s"), (59.4, "59s"), (59.6, "1m 00s"), (185.0, "3m 05s"), (86399.0, "23h 59m"), (4.5e5, "5d 05h")];
        for (value, text) in cases {
            assert_eq!(Clock(seconds(value)).to_string(), text);
        }
    }
}
