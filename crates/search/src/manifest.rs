//! `index.json`, and the lines about files beside the vectors.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use vit_system::{atomic_file, regular_file};

use crate::segment::is_number;
use crate::{SearchError, VectorType};

/// The version of the files, which changes when older programs could not read them.
const VERSION: u32 = 1;

/// What an index is made of and with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexSettings {
    /// The folder of the indexed files.
    #[serde(rename = "folder")]
    pub files: PathBuf,
    /// The model that makes the vectors.
    pub model: ModelId,
    /// Elements of a vector.
    pub dim: usize,
    /// How vectors are stored.
    #[serde(rename = "dtype")]
    pub vectors: VectorType,
}

/// The identity of a model: vectors of different models cannot be compared.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelId {
    /// Where the model was opened.
    pub path: PathBuf,
    /// A hash of its weights and configuration.
    pub fingerprint: String,
}

/// A file in one state: a file with the same stamp is taken as unchanged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileStamp {
    /// The path in the indexed folder, with `/` between its parts.
    pub file: String,
    /// Bytes.
    pub size: u64,
    /// The time of the last modification, in nanoseconds since 1970.
    pub modified: i64,
}

/// A file whose vector is in the index.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexedFile {
    /// The file as it was.
    #[serde(flatten)]
    pub stamp: FileStamp,
    /// XXH3 of its content.
    #[serde(with = "hexadecimal")]
    pub hash: u128,
}

mod hexadecimal {
    use serde::de::{Deserialize, Deserializer, Error};
    use serde::ser::Serializer;

    pub fn serialize<S: Serializer>(hash: &u128, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{hash:032x}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u128, D::Error> {
        u128::from_str_radix(&String::deserialize(deserializer)?, 16).map_err(D::Error::custom)
    }
}

/// A segment as `index.json` names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SegmentName {
    pub name: String,
    pub rows: usize,
}

/// The content of `index.json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct IndexManifest {
    version: u32,
    #[serde(flatten)]
    pub settings: IndexSettings,
    pub segments: Vec<SegmentName>,
    /// The number of the next segment: a number is never used again, so that a reader cannot confuse two segments.
    pub next_segment: u64,
}

impl IndexManifest {
    pub fn new(settings: IndexSettings) -> Self {
        IndexManifest { version: VERSION, settings, segments: Vec::new(), next_segment: 1 }
    }

    pub fn path(index: &Path) -> PathBuf {
        index.join("index.json")
    }

    /// The manifest of an index; `None` if there is no such file.
    pub fn read(index: &Path) -> Result<Option<Self>, SearchError> {
        let path = Self::path(index);
        let text = match regular_file::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(SearchError::File { path, error }),
        };
        // Looked at before the other keys, which another version may not have.
        let version = serde_json::from_str::<serde_json::Value>(&text).ok().and_then(|json| json["version"].as_u64());
        match version {
            Some(version) if version == u64::from(VERSION) => {}
            Some(version) => {
                let what = format!("its version is {version}, and this program reads version {VERSION}");
                return Err(SearchError::damaged(&path, what));
            }
            None => return Err(SearchError::NotAnIndex { path: index.into(), missing: false }),
        }
        let manifest: Self = serde_json::from_str(&text).map_err(|error| SearchError::damaged(&path, error))?;
        if manifest.settings.dim == 0 || !manifest.segments.iter().all(|s| s.rows > 0 && is_number(&s.name)) {
            return Err(SearchError::damaged(&path, "it names a segment that cannot be"));
        }
        Ok(Some(manifest))
    }

    /// Replaces `index.json`, which commits a change.
    pub fn write(&self, index: &Path) -> Result<(), SearchError> {
        let path = Self::path(index);
        let mut text = serde_json::to_string_pretty(self).map_err(|error| SearchError::damaged(&path, error))?;
        text.push('\n');
        atomic_file::write(&path, text).map_err(SearchError::file(&path))
    }
}
