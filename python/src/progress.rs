//! Signals and a line of progress during long work: in terminals and notebooks once it has taken a while, anywhere if asked for.

use std::fmt::Display;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use vit::train::Clock;

/// Work that is done sooner shows no progress unless asked to.
const PATIENCE: Duration = Duration::from_secs(2);
const EVERY: Duration = Duration::from_millis(200);

/// A line on `sys.stderr` that is written again and again.
pub struct StatusLine {
    allowed: bool,
    /// When it may be shown first and next.
    next: Instant,
    width: usize,
}

impl StatusLine {
    /// `asked`: always or never; `None` for where somebody watches.
    pub fn new(py: Python<'_>, asked: Option<bool>) -> PyResult<StatusLine> {
        let allowed = asked.map_or_else(|| is_watched(py), Ok)?;
        let patience = if asked == Some(true) { Duration::ZERO } else { PATIENCE };
        Ok(StatusLine { allowed, next: Instant::now() + patience, width: 0 })
    }

    /// Shows another text, if the last one is old enough.
    pub fn show(&mut self, py: Python<'_>, text: impl FnOnce() -> String) -> PyResult<()> {
        let now = Instant::now();
        if !self.allowed || now < self.next {
            return Ok(());
        }
        self.next = now + EVERY;
        let text = text();
        let width = text.chars().count();
        write(py, &format!("\r{text}{}", " ".repeat(self.width.saturating_sub(width))))?;
        self.width = width;
        Ok(())
    }

    /// Removes the line.
    pub fn clear(&mut self, py: Python<'_>) -> PyResult<()> {
        match std::mem::take(&mut self.width) {
            0 => Ok(()),
            width => write(py, &format!("\r{}\r", " ".repeat(width))),
        }
    }
}

/// Whether standard error is a terminal or a notebook.
fn is_watched(py: Python<'_>) -> PyResult<bool> {
    let sys = py.import("sys")?;
    let stderr = sys.getattr("stderr")?;
    // Programs without a console have none.
    if stderr.is_none() {
        return Ok(false);
    }
    Ok(sys.getattr("modules")?.contains("ipykernel")? || stderr.call_method0("isatty")?.is_truthy()?)
}

fn write(py: Python<'_>, text: &str) -> PyResult<()> {
    let stderr = py.import("sys")?.getattr("stderr")?;
    if stderr.is_none() {
        return Ok(());
    }
    stderr.call_method1("write", (text,))?;
    stderr.call_method0("flush").map(drop)
}

/// The progress through images.
pub struct ImageProgress {
    line: StatusLine,
    done: usize,
    total: Option<usize>,
    began: Instant,
}

impl ImageProgress {
    pub fn new(py: Python<'_>, asked: Option<bool>, total: Option<usize>) -> PyResult<ImageProgress> {
        Ok(ImageProgress { line: StatusLine::new(py, asked)?, done: 0, total, began: Instant::now() })
    }

    /// Images done so far.
    pub fn done(&self) -> usize {
        self.done
    }

    /// Counts a batch, and raises what a signal's handler raises, as KeyboardInterrupt.
    pub fn add(&mut self, py: Python<'_>, images: usize) -> PyResult<()> {
        self.done += images;
        let (done, total, seconds) = (self.done, self.total, self.began.elapsed().as_secs_f64());
        self.line.show(py, || describe(done, total, seconds))?;
        py.check_signals()
    }

    pub fn finish(&mut self, py: Python<'_>) -> PyResult<()> {
        self.line.clear(py)
    }
}

fn describe(done: usize, total: Option<usize>, seconds: f64) -> String {
    let rate = done as f64 / seconds.max(1e-9);
    let speed = format!("{rate:.0} images/s");
    let Some(total) = total else { return format!("{done} images  {speed}") };
    let left: &dyn Display = match Duration::try_from_secs_f64(total.saturating_sub(done) as f64 / rate) {
        Ok(left) => &format!("  {} left", Clock(left)),
        Err(_) => &"",
    };
    format!("{done}/{total} images  {speed}{left}")
}
