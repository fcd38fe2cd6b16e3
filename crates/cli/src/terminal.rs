//! Colours and messages. Colours only on a terminal, and not where `NO_COLOR` is set.

use std::io::IsTerminal;

/// What a piece of text means; its colour follows from that.
#[derive(Clone, Copy)]
pub enum Meaning {
    Good,
    Bad,
    Heading,
    Aside,
}

fn coloured(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

fn paint(text: &str, meaning: Meaning) -> String {
    let code = match meaning {
        Meaning::Good => "32",
        Meaning::Bad => "31",
        Meaning::Heading => "1",
        Meaning::Aside => "2",
    };
    format!("\x1b[{code}m{text}\x1b[0m")
}

/// Text for standard output.
pub fn styled(text: &str, meaning: Meaning) -> String {
    if coloured(&std::io::stdout()) { paint(text, meaning) } else { text.to_string() }
}

/// Says on standard error what went wrong.
pub fn error(message: &str) {
    let label = if coloured(&std::io::stderr()) { paint("error:", Meaning::Bad) } else { "error:".into() };
    eprintln!("{label} {message}");
}

/// Says something on standard error that is not a result.
pub fn note(message: &str) {
    eprintln!("{message}");
}
