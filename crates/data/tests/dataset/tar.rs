//! Tar shards: class folders, WebDataset, plain and compressed.

use super::images::{expected, listed, names, png, write};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use std::path::Path;
use tempfile::tempdir;
use vit_data::Samples;
use vit_data::dataset::{DatasetFormat, DatasetOptions, Limits, ReadOptions, Split, Validation, open, open_split};

/// An archive with these files; names that end in `/` are folders.
pub fn archive(files: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        if name.ends_with('/') {
            header.set_entry_type(tar::EntryType::Directory);
        }
        builder.append_data(&mut header, name, bytes.as_slice()).unwrap();
    }
    builder.into_inner().unwrap()
}

pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn all() -> DatasetOptions {
    DatasetOptions { validation: Validation::Nowhere, ..DatasetOptions::default() }
}

#[test]
fn class_folders_plain_and_packed() {
    let folder = tempdir().unwrap();
    let long = format!("train/dog/{}.png", "ü".repeat(90));
    let bytes = archive(&[
        ("train/", vec![]),
        ("./train/großer Hund/1.png", png(1)),
        ("train/dog/.hidden.png", png(9)),
        (&long, png(2)),
        ("test/dog/1.png", png(3)),
        ("test/emu/", vec![]),
        ("README.md", b"text".to_vec()),
    ]);
    let packed =
        [("a.tar", bytes.clone()), ("a.tar.gz", gzip(&bytes)), ("a.tar.zst", zstd::encode_all(&bytes[..], 1).unwrap())];
    for (name, bytes) in packed {
        write(folder.path(), name, bytes);
        let splits = open(&folder.path().join(name), &all()).unwrap();
        assert_eq!(splits.report.format, DatasetFormat::Tar);
        assert_eq!(listed(&*splits.train), expected(&[("großer Hund", 1), ("dog", 2)]), "{name}");
        assert_eq!(listed(&**splits.test.as_ref().unwrap()), expected(&[("dog", 3)]), "{name}");
        assert_eq!(splits.train.classes(), ["dog", "großer Hund"]);
        assert_eq!(splits.report.empty, ["test/emu"]);
        assert_eq!(splits.report.skipped[0].example, "README.md");
        assert!(names(&*splits.train)[1].ends_with(&format!("{name}: {long}")));
    }
}

/// Python's `tarfile` writes long and non-ASCII names as pax headers.
#[test]
fn an_archive_written_by_python() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/datasets/python.tar.gz");
    let splits = open(&path, &all()).unwrap();
    let long = format!("großer Hund {}", "x".repeat(120));
    let samples: Vec<(&str, u8)> = (0..20).flat_map(|n| [(long.as_str(), n), ("cat", n)]).collect();
    assert_eq!(listed(&*splits.train), expected(&samples));
}

#[test]
fn the_content_counts_and_not_the_ending() {
    let folder = tempdir().unwrap();
    write(folder.path(), "data.bin", gzip(&archive(&[("cat/1.png", png(1))])));
    let opened = open_split(&folder.path().join("data.bin"), None, None, &ReadOptions::default()).unwrap();
    assert_eq!(listed(&*opened.samples), expected(&[("cat", 1)]));
}

#[test]
fn what_does_not_fit_into_memory_goes_to_a_temporary_file() {
    let folder = tempdir().unwrap();
    let bytes = archive(&[("cat/1.png", png(1)), ("dog/2.png", png(2))]);
    write(folder.path(), "a.tar.gz", gzip(&bytes));
    let path = folder.path().join("a.tar.gz");
    let limited = |memory, disk| {
        let options = ReadOptions { limits: Limits { memory, disk }, ..ReadOptions::default() };
        open_split(&path, None, None, &options)
    };
    let opened = limited(100, 1 << 20).unwrap();
    assert_eq!(listed(&*opened.samples), expected(&[("cat", 1), ("dog", 2)]));
    let error = limited(100, bytes.len() as u64 - 1).err().unwrap();
    assert!(error.to_string().contains("unpacks to more than"), "{error}");
    assert!(limited(bytes.len() as u64, 0).is_ok());
}

#[test]
fn many_shards_plain_and_packed_in_one_temporary_file() {
    let folder = tempdir().unwrap();
    let mut all = Vec::new();
    for number in 0..140 {
        let bytes = archive(&[("cat/1.png", png(number)), ("dog/2.png", png(number + 100))]);
        write(folder.path(), &format!("plain/{number}.tar"), &bytes);
        write(folder.path(), &format!("packed/{number}.tar.zst"), zstd::encode_all(&bytes[..], 1).unwrap());
        all.extend([("cat", number), ("dog", number + 100)]);
    }
    // Memory for the first few only.
    let options = ReadOptions { limits: Limits { memory: 10_000, disk: 1 << 20 }, ..ReadOptions::default() };
    for name in ["plain", "packed"] {
        let opened = open_split(&folder.path().join(name), None, None, &options).unwrap();
        assert_eq!(listed(&*opened.samples), expected(&all), "{name}");
    }
}

#[test]
fn the_draw_does_not_depend_on_packing_or_order() {
    let folder = tempdir().unwrap();
    let files: Vec<(String, Vec<u8>)> = (0..30).map(|n| (format!("{}/{n}.png", n % 2), png(n))).collect();
    let mut files: Vec<(&str, Vec<u8>)> = files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    write(folder.path(), "a.tar", archive(&files));
    files.reverse();
    write(folder.path(), "b.tar.gz", gzip(&archive(&files)));
    let held_out = |name: &str| {
        let splits = open(&folder.path().join(name), &DatasetOptions::default()).unwrap();
        let mut held_out = listed(&**splits.validation.as_ref().unwrap());
        held_out.sort();
        held_out
    };
    assert_eq!(held_out("a.tar").len(), 4);
    assert_eq!(held_out("a.tar"), held_out("b.tar.gz"));
}

#[test]
fn shards_with_labels_beside_the_images() {
    let folder = tempdir().unwrap();
    let first = archive(&[
        ("0001.png", png(1)),
        ("0001.cls", b"2\n".to_vec()),
        ("0001.json", b"{\"label\": 0}".to_vec()),
        ("0002.cls", b"0".to_vec()),
        ("0002.png", png(2)),
    ]);
    let second =
        archive(&[("0001.png", png(3)), ("0001.json", b"{\"id\": 7, \"label\": 1}".to_vec()), ("x.png", png(9))]);
    let third =
        archive(&[("0001.json", b"{\"caption\": \"?\"}".to_vec()), ("0001.png", png(4)), ("0001.txt", b"2".to_vec())]);
    write(folder.path(), "shards/set-train-10.tar", second);
    write(folder.path(), "shards/set-train-9.tar", first);
    write(folder.path(), "shards/set-val-0.tar", third);
    let splits = open(&folder.path().join("shards"), &DatasetOptions::default()).unwrap();
    assert_eq!(splits.report.format, DatasetFormat::WebDataset);
    assert_eq!(listed(&*splits.train), expected(&[("2", 1), ("0", 2), ("1", 3)]));
    assert_eq!(listed(&**splits.validation.as_ref().unwrap()), expected(&[("2", 4)]));
    assert_eq!((splits.report.skipped[0].reason, splits.report.skipped[0].count), ("without a label", 1));

    write(folder.path(), "shards/classes.txt", "a\nb\nc\nd\n");
    let pattern = folder.path().join("shards").join("set-train-*.tar");
    let opened = open_split(&pattern, None, None, &ReadOptions::default()).unwrap();
    assert_eq!(listed(&*opened.samples), expected(&[("c", 1), ("a", 2), ("b", 3)]));
    assert_eq!(opened.samples.classes().len(), 4);
}

#[test]
fn labels_as_text_and_lists() {
    let folder = tempdir().unwrap();
    let named = archive(&[
        ("a/1.png", png(1)),
        ("a/1.json", b"{\"labels\": [\"x\", \"y\"]}".to_vec()),
        ("a/2.png", png(2)),
        ("a/2.json", b"{\"labels\": []}".to_vec()),
    ]);
    write(folder.path(), "many.tar", named);
    let opened = open_split(&folder.path().join("many.tar"), None, None, &ReadOptions::default()).unwrap();
    assert!(opened.samples.is_multi_label());
    assert_eq!((opened.samples.labels(0), opened.samples.labels(1)), (&[0, 1][..], &[][..]));

    write(folder.path(), "text.tar", archive(&[("1.png", png(1)), ("1.txt", "großer Hund\n".into())]));
    let opened = open_split(&folder.path().join("text.tar"), None, None, &ReadOptions::default()).unwrap();
    assert_eq!(listed(&*opened.samples), expected(&[("großer Hund", 1)]));
}

#[test]
fn captions_beside_images_in_class_folders_are_no_labels() {
    let folder = tempdir().unwrap();
    write(folder.path(), "a.tar", archive(&[("cat/1.png", png(1)), ("cat/1.txt", b"a cat on a mat".to_vec())]));
    let opened = open_split(&folder.path().join("a.tar"), None, None, &ReadOptions::default()).unwrap();
    assert_eq!((opened.format, listed(&*opened.samples)), (DatasetFormat::Tar, expected(&[("cat", 1)])));
}

#[test]
fn shards_in_a_folder_for_each_split() {
    let folder = tempdir().unwrap();
    write(folder.path(), "train/0.tar", archive(&[("cat/1.png", png(1)), ("dog/1.png", png(2))]));
    write(folder.path(), "test/0.tar.gz", gzip(&archive(&[("dog/1.png", png(3))])));
    let splits = open(folder.path(), &DatasetOptions::default()).unwrap();
    assert_eq!(listed(&*splits.train), expected(&[("cat", 1), ("dog", 2)]));
    assert_eq!(listed(&**splits.test.as_ref().unwrap()), expected(&[("dog", 3)]));

    // Only the requested split is unpacked.
    write(folder.path(), "train/1.tar.gz", b"\x1f\x8bbroken");
    let test = open_split(folder.path(), Some(Split::Test), None, &ReadOptions::default()).unwrap();
    assert_eq!(listed(&*test.samples), expected(&[("dog", 3)]));
    let pattern = folder.path().join("*").join("0.tar*");
    assert_eq!(open(Path::new(&pattern), &all()).unwrap().test.unwrap().len(), 1);
    assert!(open(folder.path(), &all()).is_err());
}
