//! HTML's character references, as Python's `html.unescape` and ftfy's `unescape_html` read them.
//!
//! `entities.txt.zst` has the names of the HTML standard, with a semicolon and, the older ones, without; after an `&`, those
//! in upper case that ftfy adds.

use std::collections::HashMap;
use std::sync::LazyLock;

use fancy_regex::{Captures, Regex};

use super::clean::pattern;
use super::decompressed;
use super::mojibake::windows_1252;

static NAMES: LazyLock<HashMap<String, String>> = LazyLock::new(|| {
    let table = decompressed(include_bytes!("entities.txt.zst"));
    // A name may stand for a line feed or a tab.
    let entries = table.split('\n').filter_map(|line| line.split_once('\t'));
    entries
        .map(|(name, text)| (name.to_string(), if text.is_empty() { "\n".into() } else { text.to_string() }))
        .collect()
});

/// `html.unescape`: names without a semicolon too, and the longest known beginning of an unknown one.
pub(super) fn unescape(text: &str) -> String {
    static REFERENCE: LazyLock<Regex> =
        LazyLock::new(|| pattern(r"&(#[0-9]+;?|#[xX][0-9a-fA-F]+;?|[^\t\n\x0c <&#;]{1,32};?)"));
    let replaced = |found: &Captures| {
        let reference = found.get(1).map_or("", |group| group.as_str());
        if let Some(number) = reference.strip_prefix('#') {
            return character(number);
        }
        if let Some(text) = NAMES.get(reference) {
            return text.clone();
        }
        let ends: Vec<usize> = reference.char_indices().skip(2).map(|(end, _)| end).collect();
        let beginnings = ends.into_iter().rev().map(|end| reference.split_at(end));
        let known = beginnings.filter_map(|(name, rest)| Some(NAMES.get(name)?.clone() + rest)).next();
        known.unwrap_or_else(|| format!("&{reference}"))
    };
    REFERENCE.replace_all(text, replaced).into_owned()
}

/// `unescape_html` of ftfy: whole references with their semicolon.
pub(super) fn unescape_whole(text: &str) -> String {
    static REFERENCE: LazyLock<Regex> = LazyLock::new(|| pattern("&#?[0-9A-Za-z]{1,24};"));
    let replaced = |found: &Captures| {
        let whole = found.get(0).map_or("", |group| group.as_str());
        if let Some(text) = NAMES.get(whole).or_else(|| NAMES.get(&whole[1..])) {
            return text.clone();
        }
        let unescaped = if whole.starts_with("&#") { unescape(whole) } else { whole.to_string() };
        if unescaped.contains(';') { whole.to_string() } else { unescaped }
    };
    REFERENCE.replace_all(text, replaced).into_owned()
}

/// The character of a number, as browsers read it.
fn character(number: &str) -> String {
    let digits = number.trim_end_matches(';');
    let code = match digits.strip_prefix(['x', 'X']) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => digits.parse(),
    };
    match code {
        Ok(0) => "\u{fffd}".into(),
        Ok(0x0d) => "\r".into(),
        Ok(code @ 0x80..=0x9f) => windows_1252(code as u8).to_string(),
        Ok(1..=8 | 0xb | 0xe..=0x1f | 0x7f | 0xfdd0..=0xfdef) => String::new(),
        Ok(code) if code & 0xfffe == 0xfffe && code <= 0x10_ffff => String::new(),
        Ok(code) => char::from_u32(code).unwrap_or('\u{fffd}').to_string(),
        Err(_) => "\u{fffd}".into(),
    }
}
