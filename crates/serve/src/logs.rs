//! Logs on standard error.

use tracing::Level;

/// How log lines are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Logs events of this level and above to standard error: a line per request at `INFO`. Has no effect if the program
/// already logs.
pub fn log_to_stderr(format: LogFormat, level: Level) {
    let subscriber = tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(level).with_target(false);
    // Failing means that a subscriber is installed.
    let _ = match format {
        LogFormat::Text => subscriber.with_ansi(false).try_init(),
        LogFormat::Json => subscriber.json().flatten_event(true).try_init(),
    };
}
