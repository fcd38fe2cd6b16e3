//! Durations in training.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A duration: `"5 epochs"`, `"500 steps"`, `"3%"` of the run; a number alone counts steps.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub enum Span {
    Steps(u64),
    Epochs(f64),
    /// A share of the run, from 0 to 1.
    Share(f64),
}

impl Span {
    /// The number of steps, given those of an epoch and of the run.
    pub fn steps(self, per_epoch: u64, whole: u64) -> u64 {
        match self {
            Span::Steps(steps) => steps,
            Span::Epochs(epochs) => (epochs * per_epoch as f64).round() as u64,
            Span::Share(share) => (share * whole as f64).round() as u64,
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = |one: bool| if one { "" } else { "s" };
        match *self {
            Span::Steps(steps) => write!(f, "{steps} step{}", s(steps == 1)),
            Span::Epochs(epochs) => write!(f, "{epochs} epoch{}", s(epochs == 1.0)),
            Span::Share(share) => write!(f, "{}%", (share * 1e10).round() / 1e8),
        }
    }
}

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = (text[..split].parse::<f64>().ok(), text[split..].trim());
        match (number, unit) {
            (Some(steps), "" | "step" | "steps") if steps.fract() == 0.0 => Ok(Span::Steps(steps as u64)),
            (Some(epochs), "epoch" | "epochs") => Ok(Span::Epochs(epochs)),
            (Some(share), "%") if share <= 100.0 => Ok(Span::Share(share / 100.0)),
            _ => Err(format!("`{text}` should be a time like \"5 epochs\", \"500 steps\" or \"3%\"")),
        }
    }
}

impl Serialize for Span {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Span;
            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a time like \"5 epochs\", \"500 steps\" or \"3%\"")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Span, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: de::Error>(self, steps: i64) -> Result<Span, E> {
                u64::try_from(steps).map(Span::Steps).map_err(|_| E::custom("a duration must not be negative"))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_read_and_written() {
        for (text, span, steps) in [
            ("5 epochs", Span::Epochs(5.0), 50),
            ("1 epoch", Span::Epochs(1.0), 10),
            ("0.25 epochs", Span::Epochs(0.25), 3),
            ("500 steps", Span::Steps(500), 500),
            ("3%", Span::Share(0.03), 6),
            ("12.5%", Span::Share(0.125), 25),
        ] {
            assert_eq!(text.parse(), Ok(span));
            assert_eq!(span.to_string(), text);
            assert_eq!(span.steps(10, 200), steps);
        }
        assert_eq!("10000".parse(), Ok(Span::Steps(10_000)));
        for wrong in ["", "epochs", "5 weeks", "-1 steps", "1.5 steps", "101%", "5  %%"] {
            assert!(wrong.parse::<Span>().is_err(), "{wrong}");
        }
    }
}
