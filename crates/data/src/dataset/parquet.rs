//! Parquet as Hugging Face writes image datasets: a column of encoded images (`image`, a struct of `bytes` and `path`,
//! or plain bytes) and one of labels, whose names are in the metadata of the file. Where images need no label, that column may be
//! missing.
//!
//! The images of a small dataset are copied into memory when it is opened; those of a large one are read from the file.

mod pages;
mod rows;
mod snappy;

use super::error::DatasetError;
use super::labels::{self, LabelledRow, WrittenLabels};
use super::listing::{ImagePlace, LabelText, Listing};
use super::manifest;
use super::recognise::SourceFile;
use super::store::{Budget, Store, check_entries, most_entries};
use super::{DatasetFormat, LabelRequirement};
use crate::decode::catch_panic;
use ::parquet::basic::Type as Physical;
use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl, get_column_reader};
use ::parquet::data_type::{ByteArray, ByteArrayType, DataType};
use ::parquet::errors::ParquetError;
use ::parquet::file::metadata::{ColumnChunkMetaData, KeyValue, ParquetMetaData, ParquetMetaDataReader};
use ::parquet::schema::types::{ColumnDescriptor, SchemaDescriptor};
use pages::{CheckedFile, FileBytes, Pages};
pub(super) use rows::ParquetRows;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use vit_storage::WindowedFile;

/// ParquetRows per read; images may be large.
const ROWS: usize = 32;

const IMAGES: [&str; 6] = ["image", "img", "picture", "pixel_values", "jpg", "png"];
const LABELS: [&str; 9] = ["label", "labels", "fine_label", "class", "target", "cls", "targets", "caption", "text"];

pub(super) fn read(
    path: &Path,
    sources: &[SourceFile],
    budget: &mut Budget,
    labels: LabelRequirement,
) -> Result<Listing, DatasetError> {
    let mut listing = Listing::new(DatasetFormat::Parquet, path.to_owned(), path.to_owned(), LabelText::NumberOrName);
    listing.labels_required = labels;
    // The `parquet` crate may panic on hostile input.
    let gave_up = |source: &SourceFile| damaged(&source.path, "the reader gave up on it");
    let mut tables = Vec::with_capacity(sources.len());
    for source in sources {
        let table = catch_panic(|| ParquetTable::open(source, labels)).unwrap_or_else(|| Err(gave_up(source)))?;
        if let Some(names) = &table.class_names {
            if listing.class_names.as_ref().is_some_and(|others| others != names) {
                return Err(damaged(&source.path, "its class names differ from those of the files before it"));
            }
            listing.class_names = Some(names.clone());
        }
        tables.push(table);
    }
    let bytes = tables.iter().try_fold(0u64, |bytes, table| bytes.checked_add(table.image_bytes()));
    let in_memory = bytes.is_some_and(|bytes| bytes <= budget.memory());
    let mut rows = Vec::new();
    for table in tables {
        let store = listing.images.stores.len() as u32;
        let opened = catch_panic(|| match in_memory {
            true => table.copy(store, budget, &mut rows),
            false => table.list(store, &mut rows),
        });
        listing.add_store(opened.unwrap_or_else(|| Err(gave_up(table.source)))?);
    }
    labels::add(&mut listing, rows);
    if listing.class_names.is_none() {
        listing.class_names = manifest::classes_beside(sources.first().map_or(path, |source| &source.path))?;
    }
    Ok(listing)
}

fn damaged(path: &Path, reason: impl std::fmt::Display) -> DatasetError {
    DatasetError::damaged(path, format!("Parquet file is damaged or of a kind that vit cannot read: {reason}"))
}

/// The metadata of a file.
struct ParquetTable<'a> {
    source: &'a SourceFile,
    metadata: ParquetMetaData,
    columns: ParquetColumns,
    class_names: Option<Vec<String>>,
    /// The length of the file.
    length: u64,
}

impl<'a> ParquetTable<'a> {
    fn open(source: &'a SourceFile, labels: LabelRequirement) -> Result<Self, DatasetError> {
        let path = &source.path;
        let broken = |error: ParquetError| damaged(path, error);
        let file = FileBytes(WindowedFile::open(path).map_err(DatasetError::io(path))?);
        let length = file.0.len();
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&file).map_err(broken)?;
        let about = metadata.file_metadata();
        let features = features(about.key_value_metadata().map_or(&[], Vec::as_slice));
        let columns = ParquetColumns::of(about.schema_descr(), &features);
        let columns = columns.filter(|columns| columns.labels.is_some() || labels == LabelRequirement::Optional);
        let columns = columns.ok_or_else(|| {
            let names: Vec<String> = about.schema_descr().columns().iter().map(|c| c.path().string()).collect();
            let wanted = match labels {
                LabelRequirement::Required | LabelRequirement::Captions => "columns with images and labels",
                LabelRequirement::Optional => "column with images",
            };
            DatasetError::unrecognised(path, format!("no {wanted} among {}", names.join(", ")))
        })?;
        let class_names = columns.class_names(&features);
        let mut rows = 0u64;
        for group in metadata.row_groups() {
            let count = u64::try_from(group.num_rows()).map_err(|error| damaged(path, error))?;
            rows = rows.saturating_add(count);
            if group.num_columns() != about.schema_descr().num_columns() {
                return Err(damaged(path, "a row group has another number of columns than the file"));
            }
        }
        check_entries(path, "rows", rows, length)?;
        Ok(Self { source, metadata, columns, class_names, length })
    }

    /// The size of all images according to the metadata.
    fn image_bytes(&self) -> u64 {
        let chunks = self.metadata.row_groups().iter().map(|group| group.column(self.columns.images));
        chunks.map(|chunk| u64::try_from(chunk.uncompressed_size()).unwrap_or(u64::MAX)).fold(0, u64::saturating_add)
    }

    /// Opens the file again: a dataset may have more files than a process may keep open.
    fn file(&self) -> Result<Arc<CheckedFile>, DatasetError> {
        let file = WindowedFile::open(&self.source.path).map_err(DatasetError::io(&self.source.path))?;
        Ok(CheckedFile::new(file))
    }

    /// For each row group its number of rows, their labels, and the column chunk of its images.
    fn groups(
        &self,
        file: &Arc<CheckedFile>,
    ) -> impl Iterator<Item = Result<(usize, Vec<WrittenLabels>, &ColumnChunkMetaData), DatasetError>> {
        self.metadata.row_groups().iter().map(move |group| {
            // CheckedFile when the file was opened.
            let count = group.num_rows() as usize;
            let labels = match &self.columns.labels {
                Some((column, _)) => self.labels(file, group.column(*column), count)?,
                None => vec![WrittenLabels::None; count],
            };
            let found = labels.len();
            if found != count {
                return Err(damaged(&self.source.path, format!("{count} rows are announced, {found} labels found")));
            }
            Ok((count, labels, group.column(self.columns.images)))
        })
    }

    /// Lists the rows; their images stay in the file.
    fn list(&self, store: u32, rows: &mut Vec<LabelledRow>) -> Result<Store, DatasetError> {
        let path = &self.source.path;
        let file = self.file()?;
        let mut images = ParquetRows::new(path);
        let mut number = 0;
        for group in self.groups(&file) {
            let (count, labels, column) = group?;
            images.add(count, column);
            for labels in labels {
                let row = u32::try_from(number).map_err(|error| damaged(path, error))?;
                rows.push(LabelledRow { place: ImagePlace::Row { store, row }, split: self.source.split, labels });
                number += 1;
            }
        }
        // A dataset with only the paths of its images fails here and not during training.
        if store == 0 && number > 0 {
            images.read(0).map_err(|error| damaged(path, format!("row 0: {error}")))?;
        }
        Ok(Store::rows(path, &self.source.key, images))
    }

    /// Lists the rows and copies their images into memory.
    fn copy(&self, store: u32, budget: &mut Budget, rows: &mut Vec<LabelledRow>) -> Result<Store, DatasetError> {
        let path = &self.source.path;
        let broken = |error: ParquetError| damaged(path, error);
        let file = self.file()?;
        let mut content = Vec::new();
        let mut number = 0;
        for group in self.groups(&file) {
            let (count, labels, column) = group?;
            let mut labels = labels.into_iter();
            let pages = Pages::new(&file, column, count, count as u64).map_err(broken)?;
            let reader = ColumnReaderImpl::<ByteArrayType>::new(column.column_descr_ptr(), Box::new(pages));
            records(path, column.column_descr(), reader, |bytes: &mut Vec<ByteArray>| {
                let (Some(bytes), Some(labels)) = (bytes.pop().filter(|bytes| !bytes.is_empty()), labels.next()) else {
                    return Err(damaged(path, format!("row {number} has no image or no label, perhaps only a path")));
                };
                let (offset, length) = (content.len() as u64, bytes.len() as u64);
                if offset + length > budget.memory() {
                    return Err(damaged(path, "its images are larger than it says"));
                }
                content.extend_from_slice(bytes.data());
                let place = ImagePlace::Range { store, offset, length, name: format!("row {number}").into() };
                rows.push(LabelledRow { place, split: self.source.split, labels });
                number += 1;
                Ok(())
            })?;
            if let Some(missing) = Some(labels.count()).filter(|missing| *missing > 0) {
                return Err(damaged(path, format!("{count} rows are announced, {} images found", count - missing)));
            }
        }
        Ok(Store::in_memory(path, &self.source.key, content, budget))
    }

    /// The labels of all rows of a group.
    fn labels(
        &self,
        file: &Arc<CheckedFile>,
        column: &ColumnChunkMetaData,
        count: usize,
    ) -> Result<Vec<WrittenLabels>, DatasetError> {
        let path = &self.source.path;
        let pages = Pages::new(file, column, count, most_entries(self.length));
        let pages = pages.map_err(|error| damaged(path, error))?;
        let reader = get_column_reader(column.column_descr_ptr(), Box::new(pages));
        let column = column.column_descr();
        match reader {
            ColumnReader::Int32ColumnReader(reader) => labels(path, column, reader, count, |n| Ok(n.to_string())),
            ColumnReader::Int64ColumnReader(reader) => labels(path, column, reader, count, |n| Ok(n.to_string())),
            ColumnReader::ByteArrayColumnReader(reader) => labels(path, column, reader, count, |text: &ByteArray| {
                text.as_utf8().map(str::to_owned).map_err(|_| damaged(path, "a label is not text in UTF-8"))
            }),
            _ => Err(damaged(path, "its labels are neither whole numbers nor text")),
        }
    }
}

fn labels<T: DataType>(
    path: &Path,
    column: &ColumnDescriptor,
    reader: ColumnReaderImpl<T>,
    count: usize,
    text: impl Fn(&T::T) -> Result<String, DatasetError>,
) -> Result<Vec<WrittenLabels>, DatasetError> {
    let mut labels = Vec::new();
    let is_list = column.max_rep_level() > 0;
    records(path, column, reader, |values: &mut Vec<T::T>| {
        if labels.len() == count {
            return Err(damaged(path, format!("there are more labels than the {count} rows announced")));
        }
        let mut texts = values.drain(..).map(|value| text(&value)).collect::<Result<Vec<_>, _>>()?;
        labels.push(match (is_list, texts.pop()) {
            (false, None) => WrittenLabels::None,
            (false, Some(text)) if text == "-1" => WrittenLabels::None,
            (false, Some(text)) => WrittenLabels::One(text),
            (true, last) => {
                texts.extend(last);
                WrittenLabels::Many(texts)
            }
        });
        Ok(())
    })?;
    Ok(labels)
}

/// Calls `each` with the values of every record of a column: at most one value unless it is a list.
fn records<T: DataType>(
    path: &Path,
    column: &ColumnDescriptor,
    mut reader: ColumnReaderImpl<T>,
    mut each: impl FnMut(&mut Vec<T::T>) -> Result<(), DatasetError>,
) -> Result<(), DatasetError> {
    let (mut definitions, mut repetitions, mut values) = (Vec::new(), Vec::new(), Vec::new());
    let mut record = Vec::new();
    loop {
        definitions.clear();
        repetitions.clear();
        values.clear();
        let (count, _, levels) = reader
            .read_records(ROWS, Some(&mut definitions), Some(&mut repetitions), &mut values)
            .map_err(|error| damaged(path, error))?;
        if count == 0 {
            return Ok(());
        }
        let mut values = values.drain(..);
        for level in 0..levels {
            // Without levels, every value is present and a record of its own.
            if level > 0 && repetitions.get(level).is_none_or(|repetition| *repetition == 0) {
                each(&mut record)?;
                record.clear();
            }
            if definitions.get(level).is_none_or(|definition| *definition == column.max_def_level()) {
                record.extend(values.next());
            }
        }
        each(&mut record)?;
        record.clear();
    }
}

/// The columns to read, by their index among the leaves of the schema.
struct ParquetColumns {
    images: usize,
    /// With their name.
    labels: Option<(usize, String)>,
}

impl ParquetColumns {
    /// Hugging Face's feature types decide first, then the usual names.
    fn of(schema: &SchemaDescriptor, features: &Value) -> Option<Self> {
        let top = |column: &ColumnDescriptor| column.path().parts().first().cloned().unwrap_or_default();
        let is_image = |column: &ColumnDescriptor| {
            let parts = column.path().parts();
            let is_bytes = parts.len() == 1 || (parts.len() == 2 && parts[1] == "bytes");
            is_bytes && column.physical_type() == Physical::BYTE_ARRAY && column.max_rep_level() == 0
        };
        let is_label = |column: &ColumnDescriptor| {
            [Physical::INT32, Physical::INT64, Physical::BYTE_ARRAY].contains(&column.physical_type())
                && column.max_rep_level() < 2
        };
        let find = |name: &str, fits: &dyn Fn(&ColumnDescriptor) -> bool| {
            schema.columns().iter().position(|column| top(column) == name && fits(column))
        };
        let of_type = |kind: &'static str| {
            let fields = features.as_object().into_iter().flatten();
            fields.filter(move |(_, feature)| described(feature, kind).is_some()).map(|(name, _)| name.as_str())
        };
        let images = of_type("Image").chain(IMAGES).find_map(|name| find(name, &is_image))?;
        // Among several class columns, the usual names come first: CIFAR-100 also has a coarse one.
        let usual = LABELS.iter().copied().filter(|name| of_type("ClassLabel").any(|found| found == *name));
        let mut names = usual.chain(of_type("ClassLabel")).chain(LABELS);
        let labels = names.find_map(|name| Some((find(name, &is_label)?, name.to_owned())));
        Some(Self { images, labels })
    }

    fn class_names(&self, features: &Value) -> Option<Vec<String>> {
        let (_, name) = self.labels.as_ref()?;
        let feature = described(features.get(name)?, "ClassLabel")?;
        let names = feature.get("names")?.as_array()?;
        names.iter().map(|name| name.as_str().map(str::to_owned)).collect()
    }
}

/// The feature types in the metadata of a file.
fn features(metadata: &[KeyValue]) -> Value {
    let entry = metadata.iter().find(|entry| entry.key == "huggingface");
    let text = entry.and_then(|entry| entry.value.as_deref()).unwrap_or_default();
    let mut document: Value = serde_json::from_str(text).unwrap_or_default();
    document.pointer_mut("/info/features").map(Value::take).unwrap_or_default()
}

/// The part of a feature with this type: itself, or its element if it is a list.
fn described<'a>(feature: &'a Value, kind: &str) -> Option<&'a Value> {
    let inner = [Some(feature), feature.get("feature"), feature.get(0)];
    inner.into_iter().flatten().find(|part| part.get("_type").and_then(Value::as_str) == Some(kind))
}
