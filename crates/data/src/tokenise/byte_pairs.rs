//! CLIP's byte-pair encoding (Sennrich et al., 2016, on bytes): OpenCLIP's `SimpleTokenizer`.
//!
//! The merges in `merges.txt.zst` are lines 1 to 48,894 of `bpe_simple_vocab_16e6.txt.gz` of OpenCLIP, which has it from
//! OpenAI's CLIP: Copyright (c) 2021 OpenAI, MIT licence (`LICENSE-CLIP`).

use fancy_regex::Regex;
use tokenizers::Model;
use tokenizers::models::bpe::{BPE, Vocab};

use super::{TokeniseError, decompressed};

const MERGES: &[u8] = include_bytes!("merges.txt.zst");
/// Ends the last token of a word.
const END_OF_WORD: &str = "</w>";
const SPECIAL: [&str; 2] = ["<start_of_text>", "<end_of_text>"];
const WORDS: &str = r"(?i)<start_of_text>|<end_of_text>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";

pub(super) struct BytePairs {
    words: Regex,
    /// The character that stands for each byte.
    characters: [char; 256],
    model: BPE,
    start: u32,
}

impl BytePairs {
    pub fn clip() -> Self {
        let (order, characters) = byte_characters();
        let merges: Vec<(String, String)> = decompressed(MERGES)
            .lines()
            .filter_map(|line| line.split_once(' ').map(|(a, b)| (a.to_string(), b.to_string())))
            .collect();
        let bytes = order.iter().map(char::to_string);
        let ends = order.iter().map(|character| format!("{character}{END_OF_WORD}"));
        let merged = merges.iter().map(|(a, b)| format!("{a}{b}"));
        let vocabulary: Vocab = bytes.chain(ends).chain(merged).zip(0..).collect();
        let start = 512 + merges.len() as u32;
        let builder = BPE::builder().vocab_and_merges(vocabulary, merges);
        let model = builder.end_of_word_suffix(END_OF_WORD.into()).build();
        let words = Regex::new(WORDS);
        let (model, words) = (model.expect("the merges have known tokens"), words.expect("the pattern is well-formed"));
        BytePairs { words, characters, model, start }
    }

    /// The ids of a cleaned text between those of its start and end.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokeniseError> {
        let mut ids = vec![self.start];
        for word in self.words.find_iter(text) {
            let word = word.map_err(|error| TokeniseError(format!("the text cannot be split into words: {error}")))?;
            if let Some(special) = SPECIAL.iter().position(|&special| special == word.as_str()) {
                ids.push(self.start + special as u32);
                continue;
            }
            let characters: String = word.as_str().bytes().map(|byte| self.characters[usize::from(byte)]).collect();
            let tokens = self.model.tokenize(&characters);
            let tokens = tokens.map_err(|error| TokeniseError(format!("the text cannot be tokenised: {error}")))?;
            ids.extend(tokens.into_iter().map(|token| token.id));
        }
        ids.push(self.start + 1);
        Ok(ids)
    }
}

/// A printable character for each byte: itself where it is one, else one from U+0100 on. First those of the vocabulary's
/// first 256 tokens, then by byte.
fn byte_characters() -> (Vec<char>, [char; 256]) {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let (themselves, others): (Vec<u8>, Vec<u8>) = (0..=255).partition(printable);
    let replaced = (0x100..).filter_map(char::from_u32);
    let mut characters = ['\0'; 256];
    let mut order = Vec::with_capacity(256);
    let pairs = themselves.into_iter().map(|byte| (byte, char::from(byte))).chain(others.into_iter().zip(replaced));
    for (byte, character) in pairs {
        characters[usize::from(byte)] = character;
        order.push(character);
    }
    (order, characters)
}
