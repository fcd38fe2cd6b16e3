//! Colours, messages and signs of life. Colours only on a terminal, and not where `NO_COLOR` is set; messages never
//! fail, because nobody is left to be told.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// What a piece of text means; its colour follows from that.
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

/// Text for standard output.
pub fn styled(text: &str, meaning: Meaning) -> String {
    if coloured(&std::io::stdout()) { paint(text, meaning) } else { text.to_string() }
}

/// One line that cannot disturb a terminal: control characters, which file names may hold, are spelled out.
pub fn printable(text: &str) -> Cow<'_, str> {
    spelled_out(text, char::is_control)
}

fn spelled_out(text: &str, unwanted: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&unwanted) {
        return text.into();
    }
    let spell = |c: char| if unwanted(c) { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(spell).collect::<String>().into()
}

/// Says on standard error what went wrong.
pub fn error(message: impl Display) {
    let label = if coloured(&std::io::stderr()) { paint("error:", Meaning::Bad) } else { "error:".into() };
    say(&format!("{label} "), &message.to_string());
}

/// Whether nothing but errors is said.
static QUIET: AtomicBool = AtomicBool::new(false);

/// From now on nothing but errors is said.
pub fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Says something on standard error that is not a result.
pub fn note(message: impl Display) {
    if !is_quiet() {
        say("", &message.to_string());
    }
}

/// Messages may have several lines, but nothing else that moves the cursor.
fn say(label: &str, message: &str) {
    let _ = writeln!(std::io::stderr(), "{label}{}", spelled_out(message, |c| c.is_control() && c != '\n'));
}

/// Shows on a terminal that something is going on; gone when dropped.
pub struct Busy(ProgressBar);

/// Says what takes a while.
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
