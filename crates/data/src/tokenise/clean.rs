//! OpenCLIP's cleaning of texts: ftfy's `fix_text` (version 6.3), HTML unescaped twice, white space, and what follows.

use std::str::FromStr;
use std::sync::LazyLock;

use fancy_regex::Regex;
use tokenizers::NormalizedString;

use super::entities::{self, unescape};
use super::mojibake;

/// What OpenCLIP does to a text before it is tokenised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cleaning {
    /// Runs of white space become one space.
    Whitespace,
    /// The same in lower case.
    Lower,
    /// The same without ASCII's punctuation.
    Canonicalise,
}

impl FromStr for Cleaning {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "whitespace" => Ok(Cleaning::Whitespace),
            "lower" => Ok(Cleaning::Lower),
            "canonicalize" => Ok(Cleaning::Canonicalise),
            other => Err(format!("OpenCLIP's cleaning should be whitespace, lower or canonicalize, not {other}")),
        }
    }
}

impl Cleaning {
    /// The cleaned text.
    pub fn apply(self, text: &str) -> String {
        let text = unescape(&unescape(&fix_text(text)));
        let spaced = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        match self {
            Cleaning::Whitespace => spaced(&text),
            Cleaning::Lower => spaced(&text).to_lowercase(),
            Cleaning::Canonicalise => {
                let kept = text.replace('_', " ").replace(|c: char| c.is_ascii_punctuation(), "");
                spaced(&kept.to_lowercase())
            }
        }
    }
}

/// ftfy's `fix_text`: line by line, and HTML is unescaped only before the first line with a `<`.
fn fix_text(text: &str) -> String {
    let mut tagged = false;
    text.split_inclusive('\n')
        .map(|line| {
            tagged |= line.contains('<');
            fix_line(line, !tagged)
        })
        .collect()
}

/// ftfy's fixes in its order, until they change nothing.
fn fix_line(line: &str, unescape_html: bool) -> String {
    static ANSI: LazyLock<Regex> = LazyLock::new(|| pattern(r"\x1b\[[\d;]*[a-zA-Z]"));
    let mut text = line.to_string();
    loop {
        let mut fixed = if unescape_html { entities::unescape_whole(&text) } else { text.clone() };
        fixed = mojibake::fix_encoding(fixed);
        fixed = mojibake::fix_c1_controls(&fixed);
        fixed = fixed.chars().flat_map(without_ligatures_and_widths).collect();
        for (breaks, line_feed) in
            [("\r\n", "\n"), ("\r", "\n"), ("\u{2028}", "\n"), ("\u{2029}", "\n"), ("\u{85}", "\n")]
        {
            fixed = fixed.replace(breaks, line_feed);
        }
        fixed = ANSI.replace_all(&fixed, "").into_owned();
        fixed.retain(|c| !is_control(c));
        fixed = NormalizedString::from(fixed).nfc().get().to_string();
        if fixed == text {
            return text;
        }
        text = fixed;
    }
}

/// A pattern of this crate.
pub(super) fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a pattern of this crate is well-formed")
}

/// Latin ligatures and digraphs as their letters, half and full width as usual ones, curly quotes as straight ones.
fn without_ligatures_and_widths(c: char) -> impl Iterator<Item = char> {
    let letters = match c {
        'Ĳ' => "IJ",
        'ĳ' => "ij",
        // ftfy takes ʼ of ŉ for a quote afterwards.
        'ŉ' => "'n",
        'Ǳ' => "DZ",
        'ǲ' => "Dz",
        'ǳ' => "dz",
        'Ǆ' => "DŽ",
        'ǅ' => "Dž",
        'ǆ' => "dž",
        'Ǉ' => "LJ",
        'ǈ' => "Lj",
        'ǉ' => "lj",
        'Ǌ' => "NJ",
        'ǋ' => "Nj",
        'ǌ' => "nj",
        'ﬀ' => "ff",
        'ﬁ' => "fi",
        'ﬂ' => "fl",
        'ﬃ' => "ffi",
        'ﬄ' => "ffl",
        'ﬅ' => "ſt",
        'ﬆ' => "st",
        '\u{3000}' => " ",
        '\u{2bc}' | '\u{2018}'..='\u{201b}' => "'",
        '\u{201c}'..='\u{201f}' => "\"",
        _ => "",
    };
    let width = matches!(c, '\u{ff01}'..='\u{ffef}');
    let usual = if width { NormalizedString::from(c.to_string()).nfkc().get().to_string() } else { String::new() };
    let itself = (letters.is_empty() && usual.is_empty()).then_some(c);
    letters.chars().chain(usual.chars().collect::<Vec<_>>()).chain(itself)
}

/// Control characters that ftfy removes; those that are white space stay.
fn is_control(c: char) -> bool {
    matches!(c, '\0'..='\u{8}' | '\u{b}' | '\u{e}'..='\u{1f}' | '\u{7f}' | '\u{206a}'..='\u{206f}' | '\u{feff}'
        | '\u{fff9}'..='\u{fffc}')
}
