//! Manifests: a table of paths and labels, as CSV, TSV or JSON lines. Paths are relative to the manifest; a column may
//! contain the split. Where images need no label, the column of labels may be missing.

use super::error::DatasetError;
use super::labels::{self, LabelledRow, WrittenLabels};
use super::listing::{ImagePlace, LabelText, Listing};
use super::recognise::SourceFile;
use super::split::Split;
use super::store::{check_entries, read_small, start_of, unpack};
use super::{DatasetFormat, LabelRequirement};
use crate::files::has_image_extension;
use csv::{Reader, ReaderBuilder, StringRecord};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use vit_storage::is_url;

const PATH: [&str; 7] = ["path", "file", "filename", "file_name", "filepath", "image", "image_path"];
const LABEL: [&str; 8] = ["label", "labels", "class", "classes", "target", "targets", "caption", "text"];
const SPLIT: [&str; 3] = ["split", "subset", "set"];

const ENDINGS: [&str; 4] = ["csv", "tsv", "jsonl", "ndjson"];

/// Ten million lines of a hundred characters.
const MAX_BYTES: u64 = 1 << 30;
const MAX_CLASSES_BYTES: u64 = 1 << 26;

/// Whether a table in a folder is named like a manifest of the folder or of a split. Other tables may be results.
pub(super) fn is_conventional(path: &Path) -> bool {
    let text = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    let (stem, ending) = (text(path.file_stem()), text(path.extension()));
    let is_known = ["metadata", "labels", "manifest", "annotations"].contains(&stem.as_str());
    let folder = path.parent().filter(|folder| *folder != Path::new(""));
    ENDINGS.contains(&ending.as_str())
        && (is_known || Split::from_name(&stem).is_some())
        && folder.is_none_or(|folder| folder.to_str().and_then(Split::from_name).is_some())
}

/// Whether the first line of a table has the columns of a manifest.
pub(super) fn describes_images(path: &Path, labels: LabelRequirement) -> bool {
    let start = unpack(path).ok().and_then(|mut file| start_of(&mut file, 1 << 16).ok()).unwrap_or_default();
    let start = String::from_utf8_lossy(&start);
    let first = start.trim_start_matches('\u{feff}').lines().next().unwrap_or_default();
    if first.starts_with('{') {
        let object: Value = serde_json::from_str(first).unwrap_or_default();
        let labelled = labels == LabelRequirement::Optional || field(&object, &LABEL).is_some();
        return field(&object, &PATH).is_some() && labelled;
    }
    reader(first)
        .records()
        .next()
        .is_some_and(|record| record.is_ok_and(|record| ManifestColumns::of(&record, labels).is_some()))
}

/// The class names in `classes.txt` beside a file, one per line, for numeric labels.
pub(super) fn classes_beside(file: &Path) -> Result<Option<Vec<String>>, DatasetError> {
    let path = file.with_file_name("classes.txt");
    if !vit_storage::is_file(&path) {
        return Ok(None);
    }
    let bytes = read_small(&path, MAX_CLASSES_BYTES)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| DatasetError::damaged(&path, "is not text in UTF-8"))?;
    Ok(Some(text.trim_start_matches('\u{feff}').lines().map(|line| line.trim().to_owned()).collect()))
}

pub(super) fn read(path: &Path, sources: &[SourceFile], labels: LabelRequirement) -> Result<Listing, DatasetError> {
    // The dataset's root is where the paths in it begin.
    let root =
        sources.first().and_then(|source| source.path.ancestors().nth(Path::new(&source.key).components().count()));
    let root = root.unwrap_or(path).to_owned();
    let mut listing = Listing::new(DatasetFormat::Manifest, path.to_owned(), root.clone(), LabelText::NumberOrName);
    listing.labels_required = labels;
    let mut rows = Vec::new();
    for source in sources {
        let bytes = read_small(&source.path, MAX_BYTES)?;
        let text = std::str::from_utf8(&bytes)
            .map_err(|_| DatasetError::damaged(&source.path, "the manifest is not text in UTF-8"))?;
        let text = text.trim_start_matches('\u{feff}');
        let folder = Path::new(&source.key).parent().unwrap_or(Path::new(""));
        let on_disk = vit_storage::size(&source.path).map_err(DatasetError::io(&source.path))?;
        // Counted before they are stored: a few compressed bytes expand to any number of short lines.
        check_entries(&source.path, "lines", text.lines().count() as u64, on_disk)?;
        let table = ManifestTable { path: &source.path, folder, split: source.split, labels };
        match text.trim_start().starts_with('{') {
            true => table.read_json(text, &mut rows)?,
            false => table.read_csv(text, &mut rows)?,
        }
    }
    check_paths(path, &root, &rows)?;
    labels::add(&mut listing, rows);
    listing.class_names = sources.first().map_or(Ok(None), |source| classes_beside(&source.path))?;
    Ok(listing)
}

/// Missing files are reported when they are read, unless all are missing.
fn check_paths(manifest: &Path, root: &Path, rows: &[LabelledRow]) -> Result<(), DatasetError> {
    let mut files = rows.iter().filter_map(|row| match &row.place {
        ImagePlace::File(file) => Some(file),
        ImagePlace::Range { .. } | ImagePlace::Row { .. } | ImagePlace::Custom { .. } => None,
    });
    let sample: Vec<&PathBuf> = files.by_ref().take(100).collect();
    match sample.first() {
        Some(first) if sample.iter().all(|file| !exists(root, file)) => {
            let reason = format!(
                "none of the first {} images exists, such as {}; paths are relative to the folder of the manifest",
                sample.len(),
                root.join(first).display()
            );
            Err(DatasetError::damaged(manifest, reason))
        }
        _ => Ok(()),
    }
}

fn exists(root: &Path, file: &Path) -> bool {
    if is_url(file) { vit_storage::is_file(file) } else { vit_storage::is_file(&root.join(file)) }
}

struct ManifestTable<'a> {
    path: &'a Path,
    /// Its folder, relative to the root of the dataset.
    folder: &'a Path,
    split: Option<Split>,
    labels: LabelRequirement,
}

impl ManifestTable<'_> {
    fn damaged(&self, line: u64, reason: impl std::fmt::Display) -> DatasetError {
        DatasetError::damaged(self.path, format!("line {line}: {reason}"))
    }

    fn row(
        &self,
        line: u64,
        path: &str,
        labels: WrittenLabels,
        split: Option<&str>,
    ) -> Result<LabelledRow, DatasetError> {
        if path.is_empty() {
            return Err(self.damaged(line, "the path is empty"));
        }
        let split = match split.map(str::trim).filter(|split| !split.is_empty()) {
            None => self.split,
            Some(name) => Some(Split::from_name(name).ok_or_else(|| {
                self.damaged(line, format!("the split \"{name}\" is none of train, validation and test"))
            })?),
        };
        let file = if is_url(path.as_ref()) { path.into() } else { self.folder.join(path) };
        Ok(LabelledRow { place: ImagePlace::File(file), split, labels })
    }

    fn read_csv(&self, text: &str, rows: &mut Vec<LabelledRow>) -> Result<(), DatasetError> {
        let mut reader = reader(text);
        let mut columns = None;
        for record in reader.records() {
            let record = record.map_err(|error| DatasetError::damaged(self.path, error))?;
            let line = record.position().map_or(0, csv::Position::line);
            let Some(columns) = &columns else {
                let (found, is_header) = ManifestColumns::of(&record, self.labels).ok_or_else(|| {
                    let header = record.iter().collect::<Vec<_>>().join(", ");
                    let (paths, labels) = (PATH.join(", "), LABEL.join(", "));
                    let wanted = match self.labels {
                        LabelRequirement::Required | LabelRequirement::Captions => {
                            format!("a column for the path ({paths}) and one for the label ({labels}) are needed")
                        }
                        LabelRequirement::Optional => format!("a column for the path ({paths}) is needed"),
                    };
                    self.damaged(line, format!("{wanted}, the header is: {header}"))
                })?;
                if !is_header {
                    rows.push(self.csv_row(line, &record, &found)?);
                }
                columns = Some(found);
                continue;
            };
            rows.push(self.csv_row(line, &record, columns)?);
        }
        Ok(())
    }

    fn csv_row(
        &self,
        line: u64,
        record: &StringRecord,
        columns: &ManifestColumns,
    ) -> Result<LabelledRow, DatasetError> {
        let short = || self.damaged(line, format!("has only {} columns", record.len()));
        let path = record.get(columns.path).ok_or_else(short)?;
        let labels = match columns.label {
            Some(column) => WrittenLabels::of_text(record.get(column).ok_or_else(short)?),
            None => WrittenLabels::None,
        };
        let split = columns.split.and_then(|column| record.get(column));
        self.row(line, path, labels, split)
    }

    fn read_json(&self, text: &str, rows: &mut Vec<LabelledRow>) -> Result<(), DatasetError> {
        for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
            let object: Value = serde_json::from_str(text).map_err(|error| self.damaged(line, error))?;
            let path = field(&object, &PATH).and_then(Value::as_str).ok_or_else(|| {
                self.damaged(line, format!("a field for the path is needed, one of {}", PATH.join(", ")))
            })?;
            let labels = match field(&object, &LABEL) {
                None => WrittenLabels::None,
                Some(value) => WrittenLabels::of_json(value).ok_or_else(|| {
                    self.damaged(
                        line,
                        format!("{value} is no label; give a text, a number, a list, or classes with their shares"),
                    )
                })?,
            };
            rows.push(self.row(line, path, labels, field(&object, &SPLIT).and_then(Value::as_str))?);
        }
        Ok(())
    }
}

fn reader(text: &str) -> Reader<&[u8]> {
    let first = text.lines().next().unwrap_or_default();
    // A path may contain a comma, but hardly a tab.
    let separator = ['\t', ',', ';'].into_iter().find(|separator| first.contains(*separator)).unwrap_or(',');
    ReaderBuilder::new().delimiter(separator as u8).has_headers(false).flexible(true).from_reader(text.as_bytes())
}

fn field<'a>(object: &'a Value, names: &[&str]) -> Option<&'a Value> {
    names.iter().find_map(|name| object.get(name))
}

/// The columns by meaning.
struct ManifestColumns {
    path: usize,
    label: Option<usize>,
    split: Option<usize>,
}

impl ManifestColumns {
    /// From the header; or by their order, if the first line starts with the path of an image. Also returns whether
    /// there is a header.
    fn of(first: &StringRecord, labels: LabelRequirement) -> Option<(Self, bool)> {
        let optional = labels == LabelRequirement::Optional;
        let find = |names: &[&str]| {
            names.iter().find_map(|name| first.iter().position(|column| column.trim().eq_ignore_ascii_case(name)))
        };
        match (find(&PATH), find(&LABEL)) {
            (Some(path), label) if optional || label.is_some() => {
                Some((Self { path, label, split: find(&SPLIT) }, true))
            }
            _ if (optional || first.len() > 1)
                && first.get(0).is_some_and(|path| has_image_extension(Path::new(path))) =>
            {
                let split = first.get(2).and_then(|name| Split::from_name(name.trim())).map(|_| 2);
                Some((Self { path: 0, label: (first.len() > 1).then_some(1), split }, false))
            }
            _ => None,
        }
    }
}
