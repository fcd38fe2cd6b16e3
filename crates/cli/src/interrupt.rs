//! Signals that make a run save and stop: Ctrl-C (SIGINT), SIGTERM, and SIGUSR1, by which Slurm warns of a time limit. A
//! second one ends the process at once.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::{Outcome, terminal};

/// A batch system signals all processes of a job, and the one that started the others passes the signal on: within this time
/// they are one.
const ONE_SIGNAL: Duration = Duration::from_secs(1);

/// The exit status of SIGTERM.
const TERMINATED: u8 = 128 + 15;

/// The first signal to stop, if there was one.
pub struct Interrupt {
    /// Set by the first signal.
    pub stop: Arc<AtomicBool>,
    status: Arc<AtomicU8>,
}

impl Interrupt {
    /// From now on signals set a flag instead of ending the process.
    pub fn listen() -> anyhow::Result<Interrupt> {
        let (stop, status) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU8::new(0)));
        let (flag, first) = (stop.clone(), status.clone());
        let since = OnceLock::new();
        on_signal(move |status| {
            if flag.swap(true, Ordering::Relaxed) {
                if since.get().is_none_or(|first: &Instant| first.elapsed() < ONE_SIGNAL) {
                    return;
                }
                std::process::exit(status.into());
            }
            since.get_or_init(Instant::now);
            first.store(status, Ordering::Relaxed);
            terminal::note("stopping after this step and saving; a second signal stops at once");
        })
        .context("cannot listen for Ctrl-C")?;
        Ok(Interrupt { stop, status })
    }

    /// The outcome of a command that a signal stopped: as in shells, 128 plus the signal's number.
    pub fn outcome(&self) -> Outcome {
        match self.status.load(Ordering::Relaxed) {
            // Another process of the run got the signal.
            0 => Outcome::Interrupted(TERMINATED),
            status => Outcome::Interrupted(status),
        }
    }
}

/// Calls `act` with the exit status of each signal.
#[cfg(unix)]
fn on_signal(act: impl Fn(u8) + Send + 'static) -> anyhow::Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGUSR1])?;
    std::thread::Builder::new().name("vit-signals".into()).spawn(move || {
        signals.forever().for_each(|signal| act(128 + signal as u8));
    })?;
    Ok(())
}

/// Calls `act` with the exit status of Ctrl-C.
#[cfg(not(unix))]
fn on_signal(act: impl Fn(u8) + Send + 'static) -> anyhow::Result<()> {
    Ok(ctrlc::set_handler(move || act(130))?)
}
