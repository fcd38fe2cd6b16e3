//! An index that is read.

use std::io;
use std::path::{Path, PathBuf};

use crate::kernels::Kernels;
use crate::manifest::{IndexManifest, IndexSettings};
use crate::scan::best_rows;
use crate::segment::{RowElements, VectorSegment};
use crate::vectors::normalised;
use crate::{IndexedFile, SearchError};

/// How often an index is opened anew because a writer has replaced its segments meanwhile.
const ATTEMPTS: usize = 10;

/// A file and its similarity.
#[derive(Debug, Clone, PartialEq)]
pub struct Hit {
    /// The path in the indexed folder.
    pub file: String,
    /// The dot product of the query, at length 1, with the stored vector: the cosine, up to the rounding of storage.
    pub score: f64,
}

/// An open index. A writer may change it meanwhile; what was open stays as it was.
#[derive(Debug)]
pub struct Index {
    path: PathBuf,
    manifest: IndexManifest,
    segments: Vec<VectorSegment>,
}

impl Index {
    /// Opens an index.
    pub fn open(path: &Path) -> Result<Index, SearchError> {
        let mut attempt = 1;
        loop {
            let Some(manifest) = IndexManifest::read(path)? else {
                return Err(SearchError::NotAnIndex { path: path.into(), missing: !path.exists() });
            };
            let open = |segment| VectorSegment::open(path, segment, &manifest.settings);
            match manifest.segments.iter().map(open).collect() {
                Ok(segments) => return Ok(Index { path: path.into(), manifest, segments }),
                Err(SearchError::File { error, .. })
                    if error.kind() == io::ErrorKind::NotFound && attempt < ATTEMPTS =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// What the index is made of and with.
    pub fn settings(&self) -> &IndexSettings {
        &self.manifest.settings
    }

    /// The number of files.
    pub fn len(&self) -> usize {
        self.segments.iter().map(|segment| segment.rows).sum()
    }

    /// Whether it holds no file.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    /// The folder of the index.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The `top` files whose vectors have the largest dot products with the query, which is scaled to length 1; the best
    /// first, equal ones by their paths.
    pub fn search(&self, query: &[f32], top: usize, threads: usize) -> Result<Vec<Hit>, SearchError> {
        let IndexSettings { dim, vectors, .. } = *self.settings();
        if query.len() != dim {
            return Err(SearchError::Dimension { found: query.len(), expected: dim });
        }
        let query = normalised(query)?;
        let best = best_rows(&self.segments(), vectors, &query, top, threads, Kernels::detect());
        let hit = |(score, id): (f64, crate::scan::RowId)| {
            Ok(Hit { file: self.segments[id.segment].file(id.row)?.stamp.file, score })
        };
        let mut hits = best.into_iter().map(hit).collect::<Result<Vec<Hit>, SearchError>>()?;
        hits.sort_by(|a, b| b.score.total_cmp(&a.score).then_with(|| a.file.cmp(&b.file)));
        hits.truncate(top);
        Ok(hits)
    }

    /// Calls `each` with every file and its vector, in the order of the index.
    pub fn for_each<E: From<SearchError>>(
        &self,
        mut each: impl FnMut(IndexedFile, &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut vector = Vec::with_capacity(self.settings().dim);
        for segment in &self.segments {
            for row in 0..segment.rows {
                vector.clear();
                match segment.elements(row..row + 1) {
                    RowElements::F16(row) => vector.extend(row.iter().map(|v| v.to_f32())),
                    RowElements::Int8(row, scale) => vector.extend(row.iter().map(|v| f32::from(*v) * scale[0])),
                }
                each(segment.file(row)?, &vector)?;
            }
        }
        Ok(())
    }

    pub(crate) fn segments(&self) -> Vec<&VectorSegment> {
        self.segments.iter().collect()
    }
}
