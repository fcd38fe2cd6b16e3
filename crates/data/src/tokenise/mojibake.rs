//! Texts that were decoded in the wrong encoding, as ftfy's `fix_encoding` restores them.
//!
//! `mojibake.txt.zst` has ftfy's two patterns (of unlikely sequences, and of what looks like UTF-8) and the upper half of each
//! single-byte encoding: Copyright (c) 2023 Robyn Speer, Apache licence 2.0.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::LazyLock;

use fancy_regex::{Captures, Regex};

use super::clean::pattern;
use super::decompressed;

/// ftfy's tables.
struct Tables {
    /// Sequences of characters that are seldom meant.
    unlikely: Regex,
    /// Sequences that look like UTF-8 in a single-byte encoding.
    looks_like_utf8: Regex,
    encodings: Vec<Encoding>,
}

/// A single-byte encoding whose lower half is ASCII.
struct Encoding {
    name: String,
    /// The characters of the bytes from 0x80.
    upper: Vec<char>,
    bytes: HashMap<char, u8>,
}

/// Stands for a byte that was lost, in encodings that ftfy calls sloppy.
const LOST: u8 = 0x1a;

static TABLES: LazyLock<Tables> = LazyLock::new(|| {
    let table = decompressed(include_bytes!("mojibake.txt.zst"));
    let mut lines = table.lines();
    let mut next = || pattern(lines.next().unwrap_or_default());
    let (unlikely, looks_like_utf8) = (next(), next());
    Tables { unlikely, looks_like_utf8, encodings: lines.map(Encoding::new).collect() }
});

impl Encoding {
    fn new(line: &str) -> Self {
        let mut words = line.split(' ');
        let name = words.next().unwrap_or_default().to_string();
        let character = |code: &str| u32::from_str_radix(code, 16).ok().and_then(char::from_u32);
        let upper: Vec<char> = words.filter_map(character).collect();
        let mut bytes: HashMap<char, u8> = upper.iter().copied().zip(0x80..=0xff).collect();
        bytes.extend((0..0x80).filter(|&byte| byte != LOST).map(|byte| (char::from(byte), byte)));
        let sloppy = name.starts_with("sloppy");
        bytes.insert(if sloppy { '\u{fffd}' } else { char::from(LOST) }, LOST);
        Encoding { name, upper, bytes }
    }

    /// The bytes of a text, if it has no other characters.
    fn encode(&self, text: &str) -> Option<Vec<u8>> {
        text.chars().map(|c| self.bytes.get(&c).copied()).collect()
    }
}

/// The character of a byte in Windows-1252, whose unassigned bytes are control characters.
pub(super) fn windows_1252(byte: u8) -> char {
    let encoding = TABLES.encodings.iter().find(|encoding| encoding.name == "sloppy-windows-1252");
    let upper = |encoding: &Encoding| encoding.upper.get(usize::from(byte).wrapping_sub(0x80)).copied();
    encoding.and_then(upper).unwrap_or(char::from(byte))
}

/// C1 control characters as what they are in Windows-1252.
pub(super) fn fix_c1_controls(text: &str) -> String {
    let fixed = |c: char| if ('\u{80}'..='\u{9f}').contains(&c) { windows_1252(c as u8) } else { c };
    text.chars().map(fixed).collect()
}

/// Undoes wrong decodings until there is none.
pub(super) fn fix_encoding(mut text: String) -> String {
    loop {
        let fixed = fix_one_step(&text);
        if fixed == text {
            return text;
        }
        text = fixed;
    }
}

fn is_bad(text: &str) -> bool {
    TABLES.unlikely.is_match(text).unwrap_or(false)
}

fn fix_one_step(text: &str) -> String {
    if text.is_ascii() || !is_bad(text) {
        return text.to_string();
    }
    let mut latin_1 = None;
    for encoding in &TABLES.encodings {
        let Some(bytes) = encoding.encode(text) else { continue };
        if encoding.name == "latin-1" {
            latin_1 = Some(bytes.clone());
        }
        let bytes = if encoding.name == "macroman" { bytes } else { restore_spaces(bytes) };
        let bytes = if encoding.name.starts_with("sloppy") { replace_lossy(&bytes) } else { bytes };
        if let Some(decoded) = decode_utf8(&bytes) {
            return decoded;
        }
    }
    let fixed = decode_inconsistent(text);
    if fixed != text {
        return fixed;
    }
    if let Some(bytes) = latin_1 {
        let unassigned = [0x81, 0x8d, 0x8f, 0x90, 0x9d];
        if !bytes.iter().any(|byte| unassigned.contains(byte)) {
            let decoded: String = bytes.iter().map(|&byte| windows_1252(byte)).collect();
            if decoded != text {
                return decoded;
            }
        }
    }
    fix_c1_controls(text)
}

/// Parts that look like UTF-8, each by itself.
fn decode_inconsistent(text: &str) -> String {
    let fixed = |found: &Captures| {
        let part = found.get(0).map_or("", |group| group.as_str());
        // A shorter part, so that this ends.
        if part.len() < text.len() && is_bad(part) { fix_encoding(part.to_string()) } else { part.to_string() }
    };
    // A text on which the search takes too many steps stays as it is.
    TABLES.looks_like_utf8.try_replacen(text, 0, fixed).map_or_else(|_| text.to_string(), Cow::into_owned)
}

/// Puts bytes 0xA0 back that have become spaces inside of UTF-8, if there are any.
fn restore_spaces(bytes: Vec<u8>) -> Vec<u8> {
    if (0..bytes.len()).all(|at| altered(&bytes[at..]).is_none()) {
        return bytes;
    }
    // "Ã la mode" keeps its space, but for some Portuguese words.
    let mut kept = Vec::with_capacity(bytes.len() + 8);
    for (at, &byte) in bytes.iter().enumerate() {
        kept.push(byte);
        if byte == 0xc3 && bytes.get(at + 1) == Some(&b' ') {
            let after = &bytes[at + 2..];
            if ![&b" "[..], b"quele", b"quela", b"quilo", b"s "].iter().any(|word| after.starts_with(word)) {
                kept.push(0xa0);
            }
        }
    }
    let mut at = 0;
    while at < kept.len() {
        let Some(length) = altered(&kept[at..]) else {
            at += 1;
            continue;
        };
        kept[at..at + length].iter_mut().filter(|byte| **byte == b' ').for_each(|byte| *byte = 0xa0);
        at += length;
    }
    kept
}

/// The length of a sequence at the beginning that would be UTF-8 with 0xA0 for its space.
fn altered(bytes: &[u8]) -> Option<usize> {
    let continues = |byte: u8| matches!(byte, 0x80..=0x84 | 0x86..=0x9f | 0xa1..=0xbf);
    let any = |byte: u8| (0x80..=0xbf).contains(&byte);
    match *bytes {
        [0xc2 | 0xc3 | 0xc5 | 0xce | 0xd0 | 0xd9, b' ', ..] => Some(2),
        [0xe2 | 0xe3, b' ', c, ..] if continues(c) => Some(3),
        [0xe0..=0xe3, c, b' ', ..] if continues(c) => Some(3),
        [0xf0, b' ', c, d, ..] if any(c) && any(d) => Some(4),
        [0xf0, b, b' ', d, ..] if any(b) && any(d) => Some(4),
        [0xf0, b, c, b' ', ..] if any(b) && any(c) => Some(4),
        _ => None,
    }
}

/// Sequences of UTF-8 with lost bytes become U+FFFD.
fn replace_lossy(bytes: &[u8]) -> Vec<u8> {
    let mut replaced = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match lossy(&bytes[at..]) {
            Some(length) => {
                replaced.extend("\u{fffd}".as_bytes());
                at += length;
            }
            None => {
                replaced.push(bytes[at]);
                at += 1;
            }
        }
    }
    replaced
}

/// The length of a sequence at the beginning that has lost bytes; a question mark may stand for one of them.
fn lossy(bytes: &[u8]) -> Option<usize> {
    let lost = |byte: u8| byte == LOST;
    let asked = |byte: u8| byte == LOST || byte == b'?';
    let any = |byte: u8| byte == LOST || (0x80..=0xbf).contains(&byte);
    let all = |byte: u8| any(byte) || byte == b'?';
    let (high, low) = (0xa0..=0xaf, 0xb0..=0xbf);
    match *bytes {
        [0xc2..=0xdf, b, ..] if lost(b) => Some(2),
        [0xc2 | 0xc3, b'?', ..] => Some(2),
        [0xed, b, c, 0xed, e, f, ..]
            if high.contains(&b) && low.contains(&e) && ((asked(c) && all(f)) || (all(c) && asked(f))) =>
        {
            Some(6)
        }
        [0xe0..=0xef, b, c, ..] if (asked(b) && any(c)) || (any(b) && asked(c)) => Some(3),
        [0xf0..=0xf4, b, c, d, ..]
            if (asked(b) && any(c) && any(d)) || (any(b) && asked(c) && any(d)) || (any(b) && any(c) && asked(d)) =>
        {
            Some(4)
        }
        [LOST, ..] => Some(1),
        _ => None,
    }
}

/// UTF-8, also with Java's zero and pairs of surrogates (CESU-8).
fn decode_utf8(bytes: &[u8]) -> Option<String> {
    let mut decoded = String::with_capacity(bytes.len());
    let mut start = 0;
    let mut at = 0;
    while at < bytes.len() {
        let (c, length) = match bytes[at..] {
            [0xc0, 0x80, ..] => ('\0', 2),
            [0xed, b @ 0xa0..=0xaf, c @ 0x80..=0xbf, 0xed, e @ 0xb0..=0xbf, f @ 0x80..=0xbf, ..] => {
                let bits = [(b & 0x0f, 16), (c & 0x3f, 10), (e & 0x0f, 6), (f & 0x3f, 0)];
                let code = bits.iter().map(|&(bits, shift)| u32::from(bits) << shift).sum::<u32>() + 0x1_0000;
                (char::from_u32(code)?, 6)
            }
            _ => {
                at += 1;
                continue;
            }
        };
        decoded.push_str(std::str::from_utf8(&bytes[start..at]).ok()?);
        decoded.push(c);
        at += length;
        start = at;
    }
    decoded.push_str(std::str::from_utf8(&bytes[start..]).ok()?);
    Some(decoded)
}
