//! Aligned columns of text.

use std::io::{self, Write};

use crate::terminal::{Meaning, styled};

/// How a column is aligned.
#[derive(Clone, Copy, PartialEq)]
pub enum Align {
    Left,
    Right,
}

/// A table with a heading.
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new<T: ToString>(columns: &[(T, Align)]) -> Self {
        let columns = columns.iter().map(|(name, align)| (name.to_string(), *align)).collect();
        Table { columns, rows: Vec::new() }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Prints the table; `meaning` decides the colour of each row.
    pub fn print(&self, out: &mut impl Write, meaning: impl Fn(usize) -> Option<Meaning>) -> io::Result<()> {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.chain([self.columns[column].0.chars().count()]).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |cells: &[String]| -> String {
            let padded = cells.iter().zip(&widths).zip(&self.columns).map(|((cell, &width), (_, align))| {
                let space = " ".repeat(width.saturating_sub(cell.chars().count()));
                if *align == Align::Right { format!("{space}{cell}") } else { format!("{cell}{space}") }
            });
            padded.collect::<Vec<_>>().join("  ").trim_end().to_string()
        };
        let heading: Vec<String> = self.columns.iter().map(|(name, _)| name.clone()).collect();
        writeln!(out, "{}", styled(&line(&heading), Meaning::Heading))?;
        for (i, row) in self.rows.iter().enumerate() {
            let text = line(row);
            writeln!(out, "{}", meaning(i).map_or(text.clone(), |m| styled(&text, m)))?;
        }
        Ok(())
    }
}

/// `86567656` as `86,567,656`.
pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number with three digits and a decimal prefix: `35.1 G`.
pub fn short(number: u64) -> String {
    let mut value = number as f64;
    for unit in ["", "k", "M", "G", "T", "P"] {
        if value < 999.5 || unit == "P" {
            let decimals = if unit.is_empty() || value >= 99.95 { 0 } else { 1 };
            return format!("{value:.decimals$} {unit}").trim_end().to_string();
        }
        value /= 1000.0;
    }
    String::new()
}

/// A difference: `3.6e-7`, or `0`.
pub fn difference(value: f64) -> String {
    if value == 0.0 { "0".into() } else { format!("{value:.1e}") }
}

/// Bytes in decimal units: `346 MB`.
pub fn bytes(count: u64) -> String {
    let text = short(count);
    if text.ends_with(|c: char| c.is_ascii_digit()) { format!("{text} B") } else { format!("{text}B") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_units_and_separators() {
        assert_eq!(thousands(86_567_656), "86,567,656");
        assert_eq!(thousands(12), "12");
        assert_eq!(short(35_127_000_000), "35.1 G");
        assert_eq!(short(632_000_000), "632 M");
        assert_eq!(short(7), "7");
        assert_eq!(bytes(346_270_000), "346 MB");
        assert_eq!(bytes(512), "512 B");
        assert_eq!(short(40_712_000_000_000_000), "40.7 P");
        assert_eq!(difference(0.0), "0");
        assert_eq!(difference(3.6e-7), "3.6e-7");
    }
}
