//! A segment: vectors in a NumPy array, read through a memory map, and a line about the file of each. A segment never
//! changes; a change writes another one.

use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use half::f16;
use memmap2::Mmap;
use vit_system::{atomic_file, npy, regular_file};

use crate::manifest::{IndexSettings, SegmentName};
use crate::vectors::StoredRows;
use crate::{IndexedFile, SearchError, VectorType};

/// The files of a segment, by the ends of their names.
const VECTORS: &str = "npy";
const SCALES: &str = "scales.npy";
const FILES: &str = "jsonl";
pub(crate) const ENDINGS: [&str; 3] = [VECTORS, SCALES, FILES];

pub(crate) fn path(index: &Path, name: &str, ending: &str) -> PathBuf {
    index.join(format!("{name}.{ending}"))
}

/// Whether a text is a segment's name.
pub(crate) fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// An open segment.
#[derive(Debug)]
pub(crate) struct VectorSegment {
    pub rows: usize,
    dim: usize,
    vectors: VectorType,
    array: Mmap,
    /// Where the elements start in `array`.
    elements: usize,
    /// Empty for f16.
    scales: Vec<f32>,
    lines: Mmap,
    lines_path: PathBuf,
    /// The end of every line, found when first needed.
    line_ends: OnceLock<Vec<usize>>,
}

/// Rows of a segment as their type.
pub(crate) enum RowElements<'a> {
    F16(&'a [f16]),
    /// With the scale of every row.
    Int8(&'a [i8], &'a [f32]),
}

impl VectorSegment {
    pub fn open(index: &Path, segment: &SegmentName, settings: &IndexSettings) -> Result<Self, SearchError> {
        let IndexSettings { dim, vectors, .. } = *settings;
        let (rows, name) = (segment.rows, &segment.name);
        let vectors_path = path(index, name, VECTORS);
        let array = map(&vectors_path)?;
        let elements = elements(&vectors_path, &array, vectors.descr(), &[rows, dim], vectors.bytes())?;
        let scales = match vectors {
            VectorType::F16 => Vec::new(),
            VectorType::Int8 => {
                let path = path(index, name, SCALES);
                let bytes = regular_file::read(&path).map_err(SearchError::file(&path))?;
                let start = self::elements(&path, &bytes, "<f4", &[rows], 4)?;
                bytes[start..].as_chunks::<4>().0.iter().map(|scale| f32::from_le_bytes(*scale)).collect()
            }
        };
        let lines_path = path(index, name, FILES);
        let lines = map(&lines_path)?;
        Ok(VectorSegment { rows, dim, vectors, array, elements, scales, lines, lines_path, line_ends: OnceLock::new() })
    }

    /// Writes the files of a segment, which belong to the index once `index.json` names them.
    pub fn write(
        index: &Path,
        name: &str,
        settings: &IndexSettings,
        rows: &StoredRows,
        files: &[IndexedFile],
    ) -> Result<(), SearchError> {
        let vectors_path = path(index, name, VECTORS);
        let write = |out: &mut std::io::BufWriter<std::fs::File>| {
            npy::start(out, settings.vectors.descr(), &[files.len(), settings.dim])?;
            out.write_all(&rows.bytes)
        };
        atomic_file::write_with(&vectors_path, write).map_err(SearchError::file(&vectors_path))?;
        if settings.vectors == VectorType::Int8 {
            let path = path(index, name, SCALES);
            npy::write(&path, &[files.len()], &rows.scales).map_err(SearchError::file(&path))?;
        }
        let path = path(index, name, FILES);
        let write = |out: &mut std::io::BufWriter<std::fs::File>| -> std::io::Result<()> {
            for file in files {
                serde_json::to_writer(&mut *out, file)?;
                out.write_all(b"\n")?;
            }
            Ok(())
        };
        atomic_file::write_with(&path, write).map_err(SearchError::file(&path))
    }

    /// The bytes and the scales of some rows.
    pub fn stored(&self, rows: Range<usize>) -> (&[u8], &[f32]) {
        let row = self.dim * self.vectors.bytes();
        let bytes = &self.array[self.elements + rows.start * row..self.elements + rows.end * row];
        (bytes, self.scales.get(rows).unwrap_or_default())
    }

    /// The elements of some rows.
    pub fn elements(&self, rows: Range<usize>) -> RowElements<'_> {
        let (bytes, scales) = self.stored(rows);
        match self.vectors {
            // `npy` places the elements at a multiple of 64 bytes, and `elements` has checked it.
            VectorType::F16 => RowElements::F16(bytemuck::cast_slice(bytes)),
            VectorType::Int8 => RowElements::Int8(bytemuck::cast_slice(bytes), scales),
        }
    }

    /// The file of a row.
    pub fn file(&self, row: usize) -> Result<IndexedFile, SearchError> {
        let ends = self.line_ends.get_or_init(|| {
            self.lines.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at).collect()
        });
        if ends.len() != self.rows {
            let what = format!("it has {} lines for {} vectors", ends.len(), self.rows);
            return Err(SearchError::damaged(&self.lines_path, what));
        }
        let start = if row == 0 { 0 } else { ends[row - 1] + 1 };
        serde_json::from_slice(&self.lines[start..ends[row]])
            .map_err(|error| SearchError::damaged(&self.lines_path, format!("line {}: {error}", row + 1)))
    }
}

fn map(path: &Path) -> Result<Mmap, SearchError> {
    let file = regular_file::open(path).map_err(SearchError::file(path))?;
    // SAFETY: the files of an index are written whole and never changed, only replaced by files of other names, so the
    // mapped bytes stay as they are. Another program that truncates them meanwhile ends this one, as for every map.
    unsafe { Mmap::map(&file) }.map_err(SearchError::file(path))
}

/// Where the elements start, in a file whose array has this type and shape.
fn elements(path: &Path, bytes: &[u8], descr: &str, shape: &[usize], size: usize) -> Result<usize, SearchError> {
    let (header, data) = npy::parse(bytes).map_err(|what| SearchError::damaged(path, what))?;
    let start = bytes.len() - data.len();
    let expected = shape.iter().try_fold(size, |bytes, extent| bytes.checked_mul(*extent));
    let fits = header.descr == descr && header.shape == shape && !header.fortran && Some(data.len()) == expected;
    if !fits || !start.is_multiple_of(size) {
        let what = format!("it is not an array {shape:?} of {descr} as index.json says");
        return Err(SearchError::damaged(path, what));
    }
    Ok(start)
}
