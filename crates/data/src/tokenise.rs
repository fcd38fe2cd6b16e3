//! Texts as tokens: by a model's `tokenizer.json`, or by CLIP's byte-pair vocabulary where there is none.
//!
//! ```
//! use vit_data::tokenise::Tokeniser;
//!
//! let tokens = Tokeniser::clip(77).encode("a photo of a cat")?;
//! assert_eq!((&tokens.ids[..8], tokens.length), (&[49406, 320, 1125, 539, 320, 2368, 49407, 0][..], 7));
//! # Ok::<(), vit_data::tokenise::TokeniseError>(())
//! ```

mod byte_pairs;
mod clean;
mod entities;
mod mojibake;

use std::io::Read;

use serde_json::Value;
use tokenizers::Tokenizer;

use byte_pairs::BytePairs;
pub use clean::Cleaning;

/// Tokens of CLIP's vocabulary.
const CLIP_VOCABULARY: usize = 49408;

/// A tokeniser that cannot be read, or a text that it refuses.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TokeniseError(String);

/// The tokens of one text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokens {
    /// The ids, cut and padded to the context.
    pub ids: Vec<i32>,
    /// How many tokens the whole text has; it was cut if they are more than the context.
    pub length: usize,
}

/// Turns texts into the ids that a text tower reads.
pub struct Tokeniser {
    vocabulary: Vocabulary,
    cleaning: Option<Cleaning>,
    context: usize,
    padding: u32,
}

enum Vocabulary {
    Clip(Box<BytePairs>),
    Json(Box<Tokenizer>),
}

impl Tokeniser {
    /// OpenAI's and OpenCLIP's, with OpenCLIP's cleaning.
    pub fn clip(context: usize) -> Self {
        let vocabulary = Vocabulary::Clip(Box::new(BytePairs::clip()));
        Tokeniser { vocabulary, cleaning: Some(Cleaning::Lower), context, padding: 0 }
    }

    /// That of a `tokenizer.json`, with the padding that it or its `tokenizer_config.json` names. `open_clip_clean` in the
    /// latter is OpenCLIP's cleaning before it.
    pub fn from_json(tokenizer: &str, config: &Value, context: usize) -> Result<Self, TokeniseError> {
        let mut tokenizer: Tokenizer =
            tokenizer.parse().map_err(|error| TokeniseError(format!("the tokeniser cannot be read: {error}")))?;
        let stated = tokenizer.get_padding().map(|padding| padding.pad_id);
        let named = config.get("pad_token").and_then(|token| token.as_str().or_else(|| token.get("content")?.as_str()));
        let padding = named.and_then(|token| tokenizer.token_to_id(token)).or(stated).unwrap_or(0);
        let cleaning = match config.get("open_clip_clean").and_then(Value::as_str) {
            None => None,
            Some(name) => Some(name.parse().map_err(TokeniseError)?),
        };
        // Texts are cut and padded here, so that their whole length is known.
        tokenizer.with_padding(None);
        let cut = tokenizer.with_truncation(None).map(drop);
        cut.map_err(|error| TokeniseError(format!("the tokeniser cannot be used: {error}")))?;
        Ok(Tokeniser { vocabulary: Vocabulary::Json(Box::new(tokenizer)), cleaning, context, padding })
    }

    /// That of a model: of its files, or CLIP's if it has none and the vocabulary is as large. `None` if neither suits.
    pub fn of_model(
        files: Option<(&str, &Value)>,
        vocabulary: usize,
        context: usize,
    ) -> Result<Option<Self>, TokeniseError> {
        match files {
            Some((tokenizer, config)) => Self::from_json(tokenizer, config, context).map(Some),
            None => Ok((vocabulary == CLIP_VOCABULARY).then(|| Self::clip(context))),
        }
    }

    /// Tokens of a text, padding included.
    pub fn context(&self) -> usize {
        self.context
    }

    /// The id that texts are padded with.
    pub fn padding(&self) -> i32 {
        self.padding as i32
    }

    /// The tokens of a text. One that is too long is cut as the libraries do it: the end of the text is kept.
    pub fn encode(&self, text: &str) -> Result<Tokens, TokeniseError> {
        let cleaned = self.cleaning.map(|cleaning| cleaning.apply(text));
        let text = cleaned.as_deref().unwrap_or(text);
        let (mut ids, kept) = match &self.vocabulary {
            Vocabulary::Clip(pairs) => (pairs.encode(text)?, 1),
            Vocabulary::Json(tokenizer) => {
                let encoding = tokenizer
                    .encode_fast(text, true)
                    .map_err(|error| TokeniseError(format!("the text cannot be tokenised: {error}")))?;
                let special = encoding.get_special_tokens_mask().iter().rev().take_while(|&&special| special == 1);
                (encoding.get_ids().to_vec(), special.count())
            }
        };
        let length = ids.len();
        if length > self.context {
            let end = ids.split_off(length - kept.min(self.context));
            ids.truncate(self.context - end.len());
            ids.extend(end);
        }
        ids.resize(self.context, self.padding);
        Ok(Tokens { ids: ids.into_iter().map(|id| id as i32).collect(), length })
    }
}

/// A text that is stored compressed.
fn decompressed(bytes: &[u8]) -> String {
    let mut text = String::new();
    // The tables are part of the program.
    let read = zstd::Decoder::new(bytes).and_then(|mut decoder| decoder.read_to_string(&mut text));
    read.expect("a table of this crate is damaged");
    text
}
