//! Parquet as Hugging Face writes image data sets: a column of encoded pictures (`image`, a struct of `bytes` and
//! `path`, or plain bytes) and one of labels, whose names are in the metadata of the file.
//!
//! The encoded pictures are copied out once when a set is opened. A page can only be unpacked whole, so reading single
//! rows in random order from where they lie would unpack every page hundreds of times.

use super::Format;
use super::error::DatasetError;
use super::labels::{self, Labels, Row};
use super::listing::{LabelText, Listing, Place};
use super::manifest;
use super::recognise::Source;
use super::store::{Budget, Spool};
use crate::decode::caught;
use ::parquet::basic::Type as Physical;
use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use ::parquet::data_type::{ByteArray, DataType};
use ::parquet::errors::ParquetError;
use ::parquet::file::reader::{FileReader, RowGroupReader};
use ::parquet::file::serialized_reader::SerializedFileReader;
use ::parquet::schema::types::{ColumnDescriptor, SchemaDescriptor};
use serde_json::Value;
use std::fs::File;
use std::path::Path;

/// Rows that are read at once; pictures may be large.
const ROWS: usize = 32;

/// A file of a few bytes can claim any number of rows that are all the same; no set of pictures has as many as this.
const MAX_ROWS: usize = 1 << 26;

const IMAGES: [&str; 6] = ["image", "img", "picture", "pixel_values", "jpg", "png"];
const LABELS: [&str; 7] = ["label", "labels", "fine_label", "class", "target", "cls", "targets"];

pub(super) fn read(path: &Path, sources: &[Source], budget: &mut Budget) -> Result<Listing, DatasetError> {
    let mut listing = Listing::new(Format::Parquet, path.to_owned(), path.to_owned(), LabelText::NumberOrName);
    let mut rows = Vec::new();
    for source in sources {
        // The crate is sturdy, but it is other people's code on hostile input.
        caught(|| read_file(&mut listing, source, budget, &mut rows))
            .unwrap_or_else(|| Err(damaged(&source.path, "the reader gave up on it")))?;
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

fn read_file(
    listing: &mut Listing,
    source: &Source,
    budget: &mut Budget,
    rows: &mut Vec<Row>,
) -> Result<(), DatasetError> {
    let path = &source.path;
    let broken = |error: ParquetError| damaged(path, error);
    let file = File::open(path).map_err(DatasetError::io(path))?;
    let reader = SerializedFileReader::new(file).map_err(broken)?;
    let metadata = reader.metadata().file_metadata();
    let features = features(metadata.key_value_metadata().map_or(&[], Vec::as_slice));
    let columns = Columns::of(metadata.schema_descr(), &features).ok_or_else(|| {
        let names: Vec<String> = metadata.schema_descr().columns().iter().map(|c| c.path().string()).collect();
        let reason = format!("no columns with images and labels among {}", names.join(", "));
        DatasetError::unrecognised(path, reason)
    })?;
    if let Some(names) = columns.class_names(&features) {
        if listing.class_names.as_ref().is_some_and(|others| *others != names) {
            return Err(damaged(path, "its class names differ from those of the files before it"));
        }
        listing.class_names = Some(names);
    }

    let store = listing.pictures.stores.len() as u32;
    let mut spool = Spool::new(path, budget);
    let mut number = 0;
    for group in 0..reader.num_row_groups() {
        let group = reader.get_row_group(group).map_err(broken)?;
        let count = usize::try_from(group.metadata().num_rows()).map_err(|error| damaged(path, error))?;
        if count > MAX_ROWS - rows.len().min(MAX_ROWS) {
            return Err(damaged(path, format!("more than {MAX_ROWS} rows are announced")));
        }
        let mut labels = labels_in(path, &*group, columns.labels, count)?.into_iter();
        let ColumnReader::ByteArrayColumnReader(images) = group.get_column_reader(columns.images).map_err(broken)?
        else {
            return Err(damaged(path, "the images are not bytes"));
        };
        let mut read = 0;
        let column = group.metadata().column(columns.images).column_descr();
        records(path, column, images, |bytes: &mut Vec<ByteArray>| {
            let (Some(bytes), Some(labels)) = (bytes.pop().filter(|bytes| !bytes.is_empty()), labels.next()) else {
                return Err(damaged(path, format!("row {number} has no image or no label, perhaps only a path")));
            };
            let (offset, length) = (spool.len(), bytes.len() as u64);
            spool.append(bytes.data())?;
            let place = Place::Range { store, offset, length, name: format!("row {number}").into() };
            rows.push(Row { place, split: source.split, labels });
            number += 1;
            read += 1;
            Ok(())
        })?;
        if read != count || labels.next().is_some() {
            return Err(damaged(path, format!("{count} rows are announced, {read} found")));
        }
    }
    let spooled = spool.finish(&source.key);
    listing.add_store(spooled);
    Ok(())
}

/// The labels of all rows of a group.
fn labels_in(
    path: &Path,
    group: &dyn RowGroupReader,
    column: usize,
    count: usize,
) -> Result<Vec<Labels>, DatasetError> {
    let reader = group.get_column_reader(column).map_err(|error| damaged(path, error))?;
    let column = group.metadata().column(column).column_descr();
    match reader {
        ColumnReader::Int32ColumnReader(reader) => labels(path, column, reader, count, |n| Ok(n.to_string())),
        ColumnReader::Int64ColumnReader(reader) => labels(path, column, reader, count, |n| Ok(n.to_string())),
        ColumnReader::ByteArrayColumnReader(reader) => labels(path, column, reader, count, |text: &ByteArray| {
            text.as_utf8().map(str::to_owned).map_err(|_| damaged(path, "a label is not text in UTF-8"))
        }),
        _ => Err(damaged(path, "its labels are neither whole numbers nor text")),
    }
}

fn labels<T: DataType>(
    path: &Path,
    column: &ColumnDescriptor,
    reader: ColumnReaderImpl<T>,
    count: usize,
    text: impl Fn(&T::T) -> Result<String, DatasetError>,
) -> Result<Vec<Labels>, DatasetError> {
    let mut labels = Vec::new();
    let is_list = column.max_rep_level() > 0;
    records(path, column, reader, |values: &mut Vec<T::T>| {
        if labels.len() == count {
            return Err(damaged(path, format!("there are more labels than the {count} rows announced")));
        }
        let mut texts = values.drain(..).map(|value| text(&value)).collect::<Result<Vec<_>, _>>()?;
        labels.push(match (is_list, texts.pop()) {
            (false, None) => Labels::None,
            (false, Some(text)) if text == "-1" => Labels::None,
            (false, Some(text)) => Labels::One(text),
            (true, last) => {
                texts.extend(last);
                Labels::Many(texts)
            }
        });
        Ok(())
    })?;
    Ok(labels)
}

/// Calls `each` with the values of every record of a column, which is one value or none unless it is a list.
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
            // Without such levels every value is there, and a record of its own.
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

/// The columns to read, by their numbers among the leaves of the schema.
struct Columns {
    images: usize,
    labels: usize,
    label_name: String,
}

impl Columns {
    /// What Hugging Face says the columns are is believed first, then their usual names.
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
        // Among several columns of classes the usual names come first: CIFAR-100 has a coarse one too.
        let usual = LABELS.iter().copied().filter(|name| of_type("ClassLabel").any(|found| found == *name));
        let mut names = usual.chain(of_type("ClassLabel")).chain(LABELS);
        let (labels, label_name) = names.find_map(|name| Some((find(name, &is_label)?, name.to_owned())))?;
        Some(Self { images, labels, label_name })
    }

    fn class_names(&self, features: &Value) -> Option<Vec<String>> {
        let feature = described(features.get(&self.label_name)?, "ClassLabel")?;
        let names = feature.get("names")?.as_array()?;
        names.iter().map(|name| name.as_str().map(str::to_owned)).collect()
    }
}

/// What the metadata of a file says about its columns.
fn features(metadata: &[::parquet::file::metadata::KeyValue]) -> Value {
    let entry = metadata.iter().find(|entry| entry.key == "huggingface");
    let text = entry.and_then(|entry| entry.value.as_deref()).unwrap_or_default();
    let mut document: Value = serde_json::from_str(text).unwrap_or_default();
    document.pointer_mut("/info/features").map(Value::take).unwrap_or_default()
}

/// The part of a feature that has this type: itself, or what it is a list of.
fn described<'a>(feature: &'a Value, kind: &str) -> Option<&'a Value> {
    let inner = [Some(feature), feature.get("feature"), feature.get(0)];
    inner.into_iter().flatten().find(|part| part.get("_type").and_then(Value::as_str) == Some(kind))
}
