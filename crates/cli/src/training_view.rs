//! The progress of a training run: bars on a terminal, otherwise a line per interval; for programs, one JSON object per
//! line on standard output.

use std::io::{IsTerminal, Write};

use clap::Args;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use vit_train::{Clock, EvaluationOutcome, Observer, Progress, TaskEvaluation, finite_json};

use crate::table::bytes;
use crate::terminal;

/// The options about a run's output.
#[derive(Args, Clone, Copy)]
pub struct Reporting {
    /// Print only errors
    #[arg(long, short)]
    quiet: bool,
    /// Print a JSON object per line: logged steps, evaluations and the end
    #[arg(long)]
    json: bool,
}

impl Reporting {
    /// Makes `--quiet` effective for all messages.
    pub fn apply(self) {
        if self.quiet {
            terminal::be_quiet();
        }
    }

    /// Prints an event as JSON. If standard output is closed, the run continues.
    pub fn event(self, event: &Value) {
        if self.json {
            let mut out = std::io::stdout().lock();
            let _ = writeln!(out, "{event}").and_then(|()| out.flush());
        }
    }
}

/// Shows the progress of a run.
pub struct View {
    live: Option<Live>,
    /// Whether to print a line per evaluation and, without bars, per interval.
    lines: bool,
    reporting: Reporting,
}

struct Live {
    all: MultiProgress,
    run: ProgressBar,
    epoch: ProgressBar,
    figures: ProgressBar,
    evaluation: Option<ProgressBar>,
}

impl View {
    pub fn new(reporting: Reporting) -> View {
        let terminal = std::io::stderr().is_terminal() && !reporting.quiet;
        View { live: terminal.then(Live::new), lines: true, reporting }
    }

    /// For one of many runs, whose result the caller prints: no lines but notes.
    pub fn brief() -> View {
        View { lines: false, ..View::new(Reporting { quiet: false, json: false }) }
    }

    /// Removes the bars.
    pub fn close(&mut self) {
        if let Some(live) = self.live.take() {
            let _ = live.all.clear();
        }
    }

    /// Prints a line above the bars.
    fn print(&self, line: &str) {
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
        self.reporting.event(&finite_json(json!({
            "event": "step", "step": progress.step, "steps": progress.steps,
            "epoch": progress.step as f64 / progress.steps_per_epoch.max(1) as f64,
            "loss": progress.loss, "rate": progress.rate, "images_per_second": progress.images_per_second,
            "waiting": progress.waiting, "seconds": progress.elapsed.as_secs_f64(),
        })));
        if self.live.is_none() && self.lines {
            terminal::note(progress);
        }
    }

    fn evaluating(&mut self, done: usize, of: usize) {
        let Some(live) = &mut self.live else { return };
        let bar = live.evaluation.get_or_insert_with(|| {
            live.all.add(ProgressBar::no_length().with_style(style("measure {bar:31} {pos}/{len} images")))
        });
        bar.set_length(of as u64);
        bar.set_position(done as u64);
    }

    fn evaluated(&mut self, step: u64, outcome: &EvaluationOutcome, best: bool) {
        let mut event = json!({"event": "evaluation", "step": step, "best": best, "loss": outcome.evaluation.loss()});
        let percent = |share: f64| if share.is_finite() { format!("{:.2}%", 100.0 * share) } else { "unknown".into() };
        let figures = match &outcome.evaluation {
            _ if !outcome.non_finite.is_empty() => "not finite".into(),
            TaskEvaluation::Single(evaluation) => {
                let m = evaluation.metrics();
                (event["top1"], event["top5"]) = (m.top1.into(), m.top5.into());
                format!("top-1 {}  top-5 {}  loss {:.4}", percent(m.top1), percent(m.top5), m.loss)
            }
            TaskEvaluation::Pairs(evaluation) => {
                let m = evaluation.metrics();
                (event["image_to_text_r1"], event["image_to_text_r5"]) =
                    (m.image_to_text_r1.into(), m.image_to_text_r5.into());
                (event["text_to_image_r1"], event["text_to_image_r5"]) =
                    (m.text_to_image_r1.into(), m.text_to_image_r5.into());
                let [i1, i5] = [m.image_to_text_r1, m.image_to_text_r5].map(percent);
                let [t1, t5] = [m.text_to_image_r1, m.text_to_image_r5].map(percent);
                format!("image to text R@1 {i1} R@5 {i5}  text to image R@1 {t1} R@5 {t5}  loss {:.4}", m.loss)
            }
            TaskEvaluation::Neighbours(evaluation) => {
                event["knn"] = evaluation.metrics().top1.into();
                format!("nearest neighbours {}", percent(evaluation.metrics().top1))
            }
            TaskEvaluation::Multi(evaluation) => {
                let m = evaluation.metrics();
                (event["map"], event["micro_f1"]) = (m.mean_average_precision.into(), m.micro_f1.into());
                let (map, micro_f1) = (percent(m.mean_average_precision), percent(m.micro_f1));
                format!("mAP {map}  micro F1 {micro_f1}  loss {:.4}", m.loss)
            }
        };
        event["unreadable"] = outcome.unreadable.len().into();
        self.reporting.event(&finite_json(event));
        let best = if best { "  (best)" } else { "" };
        if self.lines {
            self.print(&format!("step {step}: validation {figures}{best}"));
        }
    }

    fn note(&mut self, message: &str) {
        self.reporting.event(&json!({"event": "note", "message": message}));
        self.print(message);
    }
}
