//! An index of embedding vectors on disk, searched exactly.
//!
//! [`IndexWriter`] keeps an index equal to a folder of files: new and changed files are added, missing ones leave, and a
//! process that is killed at any instant leaves a consistent index. [`Index`] searches it through memory maps on all cores.
//! The crate does not know what the files are, nor how vectors are made of them.
//!
//! ```
//! use vit_search::{FileStamp, Index, IndexSettings, IndexWriter, ModelId, VectorType};
//!
//! let folder = tempfile::tempdir()?;
//! let settings = IndexSettings {
//!     files: "photos".into(),
//!     model: ModelId { path: "clip".into(), fingerprint: "1f".into() },
//!     dim: 3,
//!     vectors: VectorType::F16,
//! };
//! let mut writer = IndexWriter::open(folder.path(), settings)?;
//! for (file, hash, vector) in [("cat.jpg", 1, [1.0, 0.0, 0.0]), ("dog.jpg", 2, [0.6, 0.8, 0.0])] {
//!     writer.add(FileStamp { file: file.into(), size: 100, modified: 0 }, hash, &vector)?;
//! }
//! writer.finish(|_| true)?;
//!
//! let hits = Index::open(folder.path())?.search(&[2.0, 0.1, 0.0], 1, 2)?;
//! assert_eq!(hits[0].file, "cat.jpg");
//! assert!(hits[0].score > 0.99);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Files
//! An index is a folder of segments, each a few files that never change once they have their names:
//!
//! - `000001.npy`: an array `[rows, dim]` of float16 or int8 vectors of length 1
//! - `000001.scales.npy`: for int8, the float32 by which every row is multiplied
//! - `000001.jsonl`: one JSON object per row: file, size, time of modification in nanoseconds since 1970, XXH3 of the content
//!
//! and `index.json`, which names the segments, the model and the folder of the files. Replacing that file is the commit of
//! a change: files that it does not name are leftovers, which the next writer removes.

mod error;
mod index;
mod kernels;
mod manifest;
mod near_duplicates;
mod scan;
mod segment;
mod vectors;
mod writer;

pub use error::SearchError;
pub use index::{Hit, Index};
pub use manifest::{FileStamp, IndexSettings, IndexedFile, ModelId};
pub use near_duplicates::{DuplicateGroup, DuplicateOptions};
pub use vectors::VectorType;
pub use writer::{FolderChanges, IndexWriter};
