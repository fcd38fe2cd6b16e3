//! What a training run looks like: bars and figures on a terminal, a line for every interval elsewhere.

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use vit::train::{Clock, Measured, Observer, Outcome, Progress};

use crate::table::bytes;
use crate::terminal;

/// Watches a run.
pub struct View {
    live: Option<Live>,
    /// Whether there is a line for every measurement, and for every interval where nothing can move.
    lines: bool,
}

struct Live {
    all: MultiProgress,
    run: ProgressBar,
    epoch: ProgressBar,
    figures: ProgressBar,
    evaluation: Option<ProgressBar>,
}

impl View {
    pub fn new(terminal: bool) -> View {
        View { live: terminal.then(Live::new), lines: true }
    }

    /// For one of many runs, whose results are said by someone else: no lines but what went wrong.
    pub fn brief(terminal: bool) -> View {
        View { lines: false, ..View::new(terminal) }
    }

    /// Removes what moves.
    pub fn close(&mut self) {
        if let Some(live) = self.live.take() {
            let _ = live.all.clear();
        }
    }

    /// Prints a line that stays.
    fn say(&self, line: &str) {
        match &self.live {
            Some(live) => live.all.suspend(|| terminal::note(line)),
            None => terminal::note(line),
        }
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

impl Live {
    fn new() -> Live {
        let all = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(8));
        let bar = |template| all.add(ProgressBar::no_length().with_style(style(template)));
        let run = bar("run    {bar:32} {pos}/{len} steps  {msg}");
        let epoch = bar("epoch  {bar:32} {pos}/{len}  {msg}");
        let figures = bar("       {msg}");
        Live { all, run, epoch, figures, evaluation: None }
    }
}

impl Observer for View {
    fn step(&mut self, progress: &Progress) {
        let Some(live) = &mut self.live else { return };
        if let Some(evaluation) = live.evaluation.take() {
            evaluation.finish_and_clear();
        }
        live.run.set_length(progress.steps);
        live.run.set_position(progress.step);
        let left = progress.remaining.map_or(String::new(), |left| format!("{} left", Clock(left)));
        live.run.set_message(format!("{} gone  {left}", Clock(progress.elapsed)));
        let per_epoch = progress.steps_per_epoch.max(1);
        live.epoch.set_length(per_epoch);
        live.epoch.set_position((progress.step.max(1) - 1) % per_epoch + 1);
        live.epoch.set_message(format!("epoch {} of {}", progress.epoch, progress.epochs));
        let mut figures = progress.loss.map_or(String::new(), |loss| format!("loss {loss:.4}  "));
        figures += &format!("rate {:.2e}", progress.rate);
        if let Some(speed) = progress.images_per_second {
            figures += &format!("  {speed:.0} images/s");
        }
        figures += &format!("  {:.1}% waiting for data", 100.0 * progress.waiting);
        if let Some(memory) = progress.memory {
            figures += &format!("  {}", bytes(memory));
        }
        live.figures.set_message(figures);
    }

    fn logged(&mut self, progress: &Progress) {
        if self.live.is_none() && self.lines {
            terminal::note(progress);
        }
    }

    fn evaluating(&mut self, done: usize, of: usize) {
        let Some(live) = &mut self.live else { return };
        let bar = live.evaluation.get_or_insert_with(|| {
            live.all.add(ProgressBar::no_length().with_style(style("measure {bar:31} {pos}/{len} pictures")))
        });
        bar.set_length(of as u64);
        bar.set_position(done as u64);
    }

    fn evaluated(&mut self, step: u64, outcome: &Outcome, best: bool) {
        let figures = match &outcome.measured {
            Measured::Single(evaluation) => {
                let m = evaluation.measures();
                format!("top-1 {:.2}%  top-5 {:.2}%  loss {:.4}", 100.0 * m.top1, 100.0 * m.top5, m.loss)
            }
            Measured::Multi(evaluation) => {
                let m = evaluation.measures();
                format!("mAP {:.2}%  loss {:.4}", 100.0 * m.mean_average_precision, m.loss)
            }
        };
        let best = if best { "  (best)" } else { "" };
        if self.lines {
            self.say(&format!("step {step}: validation {figures}{best}"));
        }
        for (name, reason) in outcome.unreadable.iter().take(3) {
            self.say(&format!("{name}: {reason}"));
        }
        if outcome.unreadable.len() > 3 {
            self.say(&format!("{} validation pictures could not be read", outcome.unreadable.len()));
        }
    }

    fn note(&mut self, message: &str) {
        self.say(message);
    }
}
