//! Colours, messages and spinners. Colours only on a terminal, and not if `NO_COLOR` is set; a message that cannot be
//! written is dropped.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// The meaning of a text, which decides its colour.
#[derive(Clone, Copy)]
pub enum Meaning {
    Good,
    Bad,
    Heading,
}

fn coloured(stream: &impl IsTerminal) -> bool {
    let plain = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
    stream.is_terminal() && !plain && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

fn paint(text: &str, meaning: Meaning) -> String {
    let code = match meaning {
        Meaning::Good => "32",
        Meaning::Bad => "31",
        Meaning::Heading => "1",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// Coloured text for standard output.
pub fn styled(text: &str, meaning: Meaning) -> String {
    if coloured(&std::io::stdout()) { paint(text, meaning) } else { text.to_string() }
}

/// Escapes control characters, which file names may contain, so that they cannot disturb a terminal.
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, char::is_control)
}

fn escaped(text: &str, unwanted: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&unwanted) {
        return text.into();
    }
    let spell = |c: char| if unwanted(c) { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(spell).collect::<String>().into()
}

/// Prints an error on standard error.
pub fn error(message: impl Display) {
    let label = if coloured(&std::io::stderr()) { paint("error:", Meaning::Bad) } else { "error:".into() };
    print(&format!("{label} "), &message.to_string());
}

/// Whether only errors are printed.
static QUIET: AtomicBool = AtomicBool::new(false);

/// From now on only errors are printed.
pub fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Prints a note on standard error.
pub fn note(message: impl Display) {
    if !is_quiet() {
        print("", &message.to_string());
    }
}

/// Escapes control characters other than line breaks.
fn print(label: &str, message: &str) {
    let _ = writeln!(std::io::stderr(), "{label}{}", escaped(message, |c| c.is_control() && c != '\n'));
}

/// A spinner on a terminal, removed when dropped.
pub struct Busy(ProgressBar);

/// Shows a spinner with a message.
pub fn busy(message: impl Display) -> Busy {
    if is_quiet() || !std::io::stderr().is_terminal() {
        return Busy(ProgressBar::hidden());
    }
    let style = ProgressStyle::with_template("{spinner} {msg} …").unwrap_or_else(|_| ProgressStyle::default_spinner());
    let spinner =
        ProgressBar::new_spinner().with_style(style).with_message(printable(&message.to_string()).into_owned());
    spinner.enable_steady_tick(Duration::from_millis(100));
    Busy(spinner)
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_move_the_cursor() {
        assert_eq!(printable("a\n\x1b[31m.jpg"), "a\\n\\u{1b}[31m.jpg");
        assert_eq!(printable("日本 ü.jpg"), "日本 ü.jpg");
    }
}
