//! Parquet as Hugging Face writes it.

use super::images::{expected, listed, png, write};
use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, Int64Type};
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::path::Path;
use std::sync::Arc;
use tempfile::tempdir;
use vit_data::Samples;
use vit_data::dataset::{
    DatasetFormat, DatasetOptions, LabelRequirement, Limits, ReadOptions, Split, open, open_split,
};

/// The content of a column: bytes, numbers or text, with definition and repetition levels if the column has them.
pub enum Column {
    Bytes(Vec<Vec<u8>>, Vec<i16>),
    Numbers(Vec<i64>, Vec<i16>, Vec<i16>),
}

/// A file with this schema, these columns per row group, and Hugging Face's metadata.
pub fn table(schema: &str, features: Option<&str>, compression: Compression, groups: &[Vec<Column>]) -> Vec<u8> {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let entry =
        |features: &str| KeyValue::new("huggingface".to_owned(), format!("{{\"info\": {{\"features\": {features}}}}}"));
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_key_value_metadata(features.map(|features| vec![entry(features)]))
        .build();
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, schema, Arc::new(properties)).unwrap();
    for group in groups {
        let mut rows = writer.next_row_group().unwrap();
        for column in group {
            let mut open = rows.next_column().unwrap().unwrap();
            match column {
                Column::Bytes(values, levels) => {
                    let values: Vec<ByteArray> = values.iter().cloned().map(ByteArray::from).collect();
                    open.typed::<ByteArrayType>().write_batch(&values, some(levels), None).unwrap();
                }
                Column::Numbers(values, levels, repeats) => {
                    open.typed::<Int64Type>().write_batch(values, some(levels), some(repeats)).unwrap();
                }
            }
            open.close().unwrap();
        }
        rows.close().unwrap();
    }
    writer.close().unwrap();
    bytes
}

fn some(levels: &[i16]) -> Option<&[i16]> {
    Some(levels).filter(|levels| !levels.is_empty())
}

pub const SCHEMA: &str = "message schema {
    optional group image { optional binary bytes; optional binary path (UTF8); }
    optional int64 label;
}";

pub const FEATURES: &str = "{\"image\": {\"_type\": \"Image\"}, \"label\": {\"names\": [\"großer Hund\", \"cat\", \"emu\"], \
     \"_type\": \"ClassLabel\"}}";

/// Rows with an image, a path and a label.
pub fn rows(samples: &[(u8, i64)]) -> Vec<Column> {
    let (count, paths) =
        (samples.len(), samples.iter().map(|(value, _)| format!("{value}.png").into_bytes()).collect());
    vec![
        Column::Bytes(samples.iter().map(|(value, _)| png(*value)).collect(), vec![2; count]),
        Column::Bytes(paths, vec![2; count]),
        Column::Numbers(samples.iter().map(|(_, label)| *label).collect(), vec![1; count], vec![]),
    ]
}

#[test]
fn a_repository_with_splits() {
    let folder = tempdir().unwrap();
    let zstd = Compression::ZSTD(ZstdLevel::default());
    let many: Vec<(u8, i64)> = (0..100).map(|n| (n, i64::from(n) % 3)).collect();
    let files = [
        ("data/train-00000-of-00002.parquet", Compression::SNAPPY, vec![rows(&many[..40]), rows(&many[40..])]),
        ("data/train-00001-of-00002.parquet", zstd, vec![rows(&[(101, 1)])]),
        ("data/validation-00000-of-00001.parquet", Compression::UNCOMPRESSED, vec![rows(&[(102, 2)])]),
        ("data/test-00000-of-00001.parquet", Compression::LZ4_RAW, vec![rows(&[(103, -1)])]),
    ];
    for (name, compression, groups) in files {
        write(folder.path(), name, table(SCHEMA, Some(FEATURES), compression, &groups));
    }
    let splits = open(folder.path(), &DatasetOptions::default()).unwrap();
    assert_eq!(splits.report.format, DatasetFormat::Parquet);
    assert_eq!(splits.train.classes(), ["großer Hund", "cat", "emu"]);
    let mut all: Vec<(&str, u8)> = many.iter().map(|(n, l)| (["großer Hund", "cat", "emu"][*l as usize], *n)).collect();
    all.push(("cat", 101));
    assert_eq!(listed(&*splits.train), expected(&all));
    assert_eq!(listed(&**splits.validation.as_ref().unwrap()), expected(&[("emu", 102)]));
    // The labels of the test split are hidden.
    assert!(splits.test.is_none());
    assert_eq!((splits.report.skipped[0].reason, splits.report.skipped[0].count), ("without a label", 1));
    assert!(splits.train.name(41).ends_with("train-00000-of-00002.parquet: row 41"));

    let one = folder.path().join("data").join("train-*.parquet");
    assert_eq!(open_split(&one, None, None, &ReadOptions::default()).unwrap().samples.len(), 101);
}

#[test]
fn the_column_of_labels_may_be_missing_where_images_need_none() {
    let folder = tempdir().unwrap();
    let schema = "message schema { optional group image { optional binary bytes; optional binary path (UTF8); } }";
    let samples: Vec<(u8, i64)> = (0..7).map(|n| (n, 0)).collect();
    let columns = || rows(&samples).into_iter().take(2).collect::<Vec<_>>();
    write(folder.path(), "images.parquet", table(schema, None, Compression::SNAPPY, &[columns(), columns()]));
    let file = folder.path().join("images.parquet");
    let required = open_split(&file, None, None, &ReadOptions::default()).err().unwrap().to_string();
    assert!(required.contains("no columns with images and labels among image.bytes, image.path"), "{required}");
    // In memory, and read from the file.
    for limits in [Limits::default(), Limits { memory: 0, ..Limits::default() }] {
        let options = ReadOptions { labels: LabelRequirement::Optional, limits, ..ReadOptions::default() };
        let opened = open_split(&file, None, None, &options).unwrap().samples;
        assert_eq!((opened.len(), opened.classes().len()), (14, 0));
        assert!((0..14).all(|index| opened.labels(index).is_empty() && opened.image(index).is_ok()));
    }
    let other = table("message schema { optional int64 label; }", None, Compression::SNAPPY, &[]);
    write(folder.path(), "labels.parquet", other);
    let options = ReadOptions { labels: LabelRequirement::Optional, ..ReadOptions::default() };
    let error = open_split(&folder.path().join("labels.parquet"), None, None, &options).err().unwrap().to_string();
    assert!(error.contains("no column with images among label"), "{error}");
}

/// Written by Hugging Face's `datasets` 5 from images like those of [`png`].
#[test]
fn files_written_by_hugging_face() {
    let fixture = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/datasets").join(name);
    let one = open_split(&fixture("one_label.parquet"), None, None, &ReadOptions::default()).unwrap().samples;
    let classes = ["großer Hund", "cat", "emu"];
    assert_eq!(one.classes(), classes);
    let all: Vec<(&str, u8)> = (0..12).map(|n| (classes[usize::from(n) % 3], n)).collect();
    assert_eq!(listed(&*one), expected(&all));

    let lists = open_split(&fixture("label_lists.parquet"), None, None, &ReadOptions::default()).unwrap().samples;
    assert!(lists.is_multi_label());
    let labels: Vec<&[u32]> = (0..4).map(|index| lists.labels(index)).collect();
    assert_eq!(labels, [&[0, 2][..], &[], &[1], &[2]]);
}

#[test]
fn only_the_split_asked_for_is_read_and_nothing_is_unpacked_to_disk() {
    let folder = tempdir().unwrap();
    let bytes = table(SCHEMA, Some(FEATURES), Compression::SNAPPY, &[rows(&[(1, 0), (2, 1)])]);
    write(folder.path(), "test-0.parquet", &bytes);
    write(folder.path(), "train-0.parquet", &bytes[..bytes.len() - 1]);
    let test = open_split(folder.path(), Some(Split::Test), None, &ReadOptions::default()).unwrap();
    assert_eq!(listed(&*test.samples), expected(&[("großer Hund", 1), ("cat", 2)]));
    let nothing = ReadOptions { limits: Limits { memory: 0, disk: 0 }, ..ReadOptions::default() };
    let in_place = open_split(folder.path(), Some(Split::Test), None, &nothing).unwrap();
    assert_eq!(listed(&*in_place.samples), expected(&[("großer Hund", 1), ("cat", 2)]));
}

#[test]
fn plain_bytes_and_labels_as_text() {
    let folder = tempdir().unwrap();
    let schema = "message schema { required binary label (UTF8); required binary img; }";
    let columns = vec![
        Column::Bytes(vec![b"dog".to_vec(), b"cat".to_vec()], vec![]),
        Column::Bytes(vec![png(1), png(2)], vec![]),
    ];
    write(folder.path(), "x.parquet", table(schema, None, Compression::SNAPPY, &[columns]));
    let opened = open_split(&folder.path().join("x.parquet"), None, None, &ReadOptions::default()).unwrap();
    assert_eq!(listed(&*opened.samples), expected(&[("dog", 1), ("cat", 2)]));
    assert_eq!(opened.samples.classes(), ["cat", "dog"]);
}

#[test]
fn lists_of_labels() {
    let folder = tempdir().unwrap();
    let schema = "message schema {
        required binary image;
        optional group labels (LIST) { repeated group list { optional int64 element; } }
    }";
    let features = "{\"image\": {\"_type\": \"Image\"}, \"labels\": {\"feature\": {\"names\": [\"a\", \"b\", \"c\"], \
                    \"_type\": \"ClassLabel\"}, \"_type\": \"List\"}}";
    // [2, 0], [], null, [1]
    let labels = Column::Numbers(vec![2, 0, 1], vec![3, 3, 1, 0, 3], vec![0, 1, 0, 0, 0]);
    let columns = vec![Column::Bytes((1..5).map(png).collect(), vec![]), labels];
    write(folder.path(), "x.parquet", table(schema, Some(features), Compression::SNAPPY, &[columns]));
    let samples = open_split(&folder.path().join("x.parquet"), None, None, &ReadOptions::default()).unwrap().samples;
    assert!(samples.is_multi_label());
    assert_eq!(samples.classes(), ["a", "b", "c"]);
    let labels: Vec<&[u32]> = (0..4).map(|index| samples.labels(index)).collect();
    assert_eq!(labels, [&[0, 2][..], &[], &[], &[1]]);
    assert_eq!(samples.image(3).unwrap().pixels()[0], 4);
}

#[test]
fn fine_labels_come_before_coarse_ones() {
    let folder = tempdir().unwrap();
    let schema = "message schema { required binary img; required int64 coarse_label; required int64 fine_label; }";
    let features = "{\"img\": {\"_type\": \"Image\"}, \"coarse_label\": {\"names\": [\"x\"], \"_type\": \"ClassLabel\"}, \
                    \"fine_label\": {\"names\": [\"p\", \"q\"], \"_type\": \"ClassLabel\"}}";
    let columns = vec![
        Column::Bytes(vec![png(1)], vec![]),
        Column::Numbers(vec![0], vec![], vec![]),
        Column::Numbers(vec![1], vec![], vec![]),
    ];
    write(folder.path(), "x.parquet", table(schema, Some(features), Compression::SNAPPY, &[columns]));
    let opened = open_split(&folder.path().join("x.parquet"), None, None, &ReadOptions::default()).unwrap();
    assert_eq!(listed(&*opened.samples), expected(&[("q", 1)]));
}

#[test]
fn what_is_missing_or_wrong_is_said() {
    let folder = tempdir().unwrap();
    let failure = |schema: &str, columns: Vec<Column>| {
        write(folder.path(), "x.parquet", table(schema, Some(FEATURES), Compression::SNAPPY, &[columns]));
        open_split(&folder.path().join("x.parquet"), None, None, &ReadOptions::default()).err().unwrap().to_string()
    };
    let numbers = |values: &[i64]| Column::Numbers(values.to_vec(), vec![], vec![]);
    let error = failure("message schema { required int64 x; }", vec![numbers(&[1])]);
    assert!(error.contains("no columns with images and labels among x"), "{error}");

    let error = failure(SCHEMA, rows(&[(1, 7)]));
    assert!(error.contains("row 0: label 7 is outside of the 3 classes"), "{error}");

    let path_only = vec![
        Column::Bytes(vec![], vec![1]),
        Column::Bytes(vec![b"a.png".to_vec()], vec![2]),
        Column::Numbers(vec![0], vec![1], vec![]),
    ];
    let error = failure(SCHEMA, path_only);
    assert!(error.contains("row 0 has no image"), "{error}");
}

/// The same file copied into memory and read in place, with every codec.
#[test]
fn images_are_the_same_in_memory_and_where_they_lie() {
    let folder = tempdir().unwrap();
    // Incompressible noise, several pages of 64 KiB, and compressible runs.
    let image = |row: u8| -> Vec<u8> {
        let mut state = u32::from(row);
        let mut bytes = png(row);
        bytes.extend((0..9000u32 * u32::from(row % 5)).map(|at| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if at / 100 % 4 == 0 { row } else { (state >> 24) as u8 }
        }));
        bytes
    };
    let groups: Vec<Vec<Column>> = [0..20u8, 20..21, 21..60]
        .map(|rows| {
            let count = rows.len();
            vec![
                Column::Bytes(rows.clone().map(image).collect(), vec![2; count]),
                Column::Bytes(rows.clone().map(|row| vec![row]).collect(), vec![2; count]),
                Column::Numbers(rows.map(|row| i64::from(row) % 3).collect(), vec![1; count], vec![]),
            ]
        })
        .into();
    let zstd = Compression::ZSTD(ZstdLevel::default());
    for compression in [Compression::UNCOMPRESSED, Compression::SNAPPY, zstd, Compression::LZ4_RAW] {
        write(folder.path(), "a.parquet", table(SCHEMA, Some(FEATURES), compression, &groups));
        let opened = |memory: u64| {
            let limits = Limits { memory, disk: 0 };
            let options = ReadOptions { limits, ..ReadOptions::default() };
            open_split(&folder.path().join("a.parquet"), None, None, &options).unwrap().samples
        };
        let (copied, in_place) = (opened(1 << 30), opened(0));
        assert_eq!(listed(&*in_place), listed(&*copied), "{compression:?}");
        assert_eq!(listed(&*in_place), listed(&*in_place), "a second time, {compression:?}");
        assert_eq!(in_place.len(), 60);
        assert!(in_place.name(30).ends_with("a.parquet: row 30"));
    }
}

#[test]
fn images_that_are_only_paths_are_noticed_before_the_training() {
    let folder = tempdir().unwrap();
    let columns = vec![
        Column::Bytes(vec![], vec![1; 2]),
        Column::Bytes(vec![b"a".to_vec(), b"b".to_vec()], vec![2; 2]),
        Column::Numbers(vec![0, 1], vec![1; 2], vec![]),
    ];
    write(folder.path(), "a.parquet", table(SCHEMA, Some(FEATURES), Compression::SNAPPY, &[columns]));
    for memory in [0, 1 << 20] {
        let options = ReadOptions { limits: Limits { memory, disk: 0 }, ..ReadOptions::default() };
        let error = open_split(&folder.path().join("a.parquet"), None, None, &options).err().unwrap().to_string();
        assert!(error.contains("row 0") && error.contains("perhaps only a path"), "{error}");
    }
}
