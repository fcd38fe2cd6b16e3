//! Truncated, damaged and malicious files give an error or other samples, never a panic or unbounded memory.

use super::images::{png, write};
use super::parquet::{FEATURES, SCHEMA, rows, table};
use super::tar::{archive, gzip};
use parquet::basic::Compression;
use std::path::Path;
use tempfile::tempdir;
use vit_data::Samples;
use vit_data::dataset::{DatasetOptions, Limits, ReadOptions, open, open_split};

/// Opens a dataset and reads all samples that can be read.
fn exercise(path: &Path) -> Result<usize, String> {
    let limits = Limits { memory: 1 << 20, disk: 1 << 20 };
    let options = ReadOptions { limits, ..ReadOptions::default() };
    let opened = open_split(path, None, None, &options).map_err(|error| error.to_string())?;
    for index in 0..opened.samples.len() {
        let _ = (opened.samples.image(index), opened.samples.name(index), opened.samples.labels(index));
    }
    Ok(opened.samples.len())
}

fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let tar =
        archive(&[("train/cat/1.png", png(1)), ("b/1.png", png(2)), (&"x/".repeat(80), vec![]), ("c.cls", vec![b'1'])]);
    let table = table(SCHEMA, Some(FEATURES), Compression::SNAPPY, &[rows(&[(1, 0), (2, 1)]), rows(&[(3, 2)])]);
    vec![
        ("a.tar.gz", gzip(&tar)),
        ("a.tar.zst", zstd::encode_all(&tar[..], 3).unwrap()),
        ("a.tar", tar),
        ("a.parquet", table),
    ]
}

#[test]
fn files_cut_short() {
    let folder = tempdir().unwrap();
    for (name, bytes) in seeds() {
        let path = folder.path().join(name);
        write(folder.path(), name, &bytes);
        assert!(exercise(&path).is_ok(), "{name}");
        for length in (0..bytes.len()).step_by(37) {
            write(folder.path(), name, &bytes[..length]);
            let result = exercise(&path);
            // An uncompressed archive may end where a member ends.
            assert!(result.is_err() || name == "a.tar", "{name} cut to {length} gives {result:?}");
        }
    }
}

#[test]
fn an_archive_cut_inside_of_a_member_says_so() {
    let folder = tempdir().unwrap();
    let bytes = archive(&[("cat/1.png", png(1)), ("dog/2.png", vec![7; 2000])]);
    // A header and a block of content, a header and four blocks.
    write(folder.path(), "a.tar", &bytes[..2 * 512]);
    assert_eq!(exercise(&folder.path().join("a.tar")), Ok(1));
    for length in [2 * 512 + 100, 3 * 512, 3 * 512 + 1999] {
        write(folder.path(), "a.tar", &bytes[..length]);
        let error = exercise(&folder.path().join("a.tar"));
        assert!(error.as_ref().is_err_and(|error| error.contains("cut short")), "{length}: {error:?}");
    }
}

#[test]
fn files_with_changed_bytes() {
    let folder = tempdir().unwrap();
    for (name, bytes) in seeds() {
        let path = folder.path().join(name);
        // The Parquet reader panics on some of these; that must not escape.
        for position in (0..bytes.len()).step_by(4) {
            let mut changed = bytes.clone();
            changed[position] ^= [0xff, 0x80, 0x01][position % 3];
            write(folder.path(), name, &changed);
            let _ = exercise(&path);
        }
    }
}

#[test]
fn names_that_climb_out_are_only_names() {
    let folder = tempdir().unwrap();
    let mut builder = tar::Builder::new(Vec::new());
    for name in ["../../etc/passwd.png", "/etc/cat/1.png", "cat/../../2.png", "dog/3.png"] {
        let mut header = tar::Header::new_gnu();
        let bytes = png(1);
        header.set_size(bytes.len() as u64);
        // The builder refuses such names, so they are written directly.
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        builder.append(&header, bytes.as_slice()).unwrap();
    }
    write(folder.path(), "in/a.tar", builder.into_inner().unwrap());
    let opened = open_split(&folder.path().join("in/a.tar"), None, None, &ReadOptions::default()).unwrap();
    let classes: Vec<&str> = opened.samples.classes().iter().map(String::as_str).collect();
    assert_eq!(classes, ["dog", "etc"]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

#[test]
fn links_in_archives_are_not_followed() {
    let folder = tempdir().unwrap();
    let mut builder = tar::Builder::new(archive(&[("cat/1.png", png(1))])[..2 * 512].to_vec());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Symlink);
    header.set_size(0);
    builder.append_link(&mut header, "cat/2.png", "/etc/passwd").unwrap();
    write(folder.path(), "a.tar", builder.into_inner().unwrap());
    assert_eq!(exercise(&folder.path().join("a.tar")), Ok(1));
}

#[test]
fn a_small_file_that_unpacks_to_a_large_one_is_refused() {
    let folder = tempdir().unwrap();
    let bomb = archive(&[("cat/1.png", vec![0; 8 << 20])]);
    for (name, bytes) in [("a.tar.gz", gzip(&bomb)), ("a.tar.zst", zstd::encode_all(&bomb[..], 1).unwrap())] {
        write(folder.path(), name, &bytes);
        assert!(bytes.len() < 100_000);
        let error = exercise(&folder.path().join(name));
        assert!(error.as_ref().is_err_and(|error| error.contains("unpacks to more than")), "{error:?}");
    }
}

#[test]
fn members_that_claim_sizes_beyond_the_archive_are_refused() {
    let folder = tempdir().unwrap();
    for kind in [tar::EntryType::Regular, tar::EntryType::GNULongName, tar::EntryType::XHeader] {
        for size in [1 << 20, 1 << 40, u64::MAX] {
            let mut header = tar::Header::new_gnu();
            header.set_path("cat/1.png").unwrap();
            header.set_entry_type(kind);
            header.set_size(size);
            header.set_cksum();
            write(folder.path(), "a.tar", [header.as_bytes().as_slice(), &[0; 1024]].concat());
            assert!(exercise(&folder.path().join("a.tar")).is_err());
        }
    }
}

#[test]
fn files_that_are_something_else_are_refused() {
    let folder = tempdir().unwrap();
    let others: [(&str, &[u8]); 6] = [
        ("image.png", &png(1)),
        ("empty", b""),
        ("fake.parquet", b"PAR1 and nothing more PAR1"),
        ("fake.tar.gz", &gzip(b"hello")),
        ("fake.tar", b"hello"),
        ("readme.txt", b"This is a text about cats.\n"),
    ];
    for (name, bytes) in others {
        write(folder.path(), name, bytes);
        let error = open(&folder.path().join(name), &DatasetOptions::default()).err().unwrap().to_string();
        assert!(error.contains(name), "{error}");
    }
}

/// A claimed table of contents takes no memory: a few compressed bytes hold any number of empty members or lines.
#[test]
fn more_entries_than_a_file_can_hold_are_refused() {
    let folder = tempdir().unwrap();
    let mut header = tar::Header::new_gnu();
    header.set_path("cat/1.png").unwrap();
    header.set_size(0);
    header.set_cksum();
    let members = header.as_bytes().repeat(20_000);
    let images = [&[0, 0, 8, 3, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1][..], &[0; 1 << 16]].concat();
    let labels = [&[0, 0, 8, 1, 0, 1, 0, 0][..], &[0; 1 << 16]].concat();
    write(folder.path(), "a.tar.zst", zstd::encode_all(&members[..], 1).unwrap());
    write(folder.path(), "train-images-idx3-ubyte.gz", gzip(&images));
    write(folder.path(), "train-labels-idx1-ubyte.gz", gzip(&labels));
    write(folder.path(), "in/labels.csv", gzip("path,label\n".repeat(100_000).as_bytes()));
    for name in ["a.tar.zst", "train-images-idx3-ubyte.gz", "in"] {
        let limits = Limits { memory: 1 << 30, disk: 0 };
        let options = ReadOptions { limits, ..ReadOptions::default() };
        let error = open_split(&folder.path().join(name), None, None, &options).err().unwrap().to_string();
        assert!(error.contains("are announced, too many for"), "{error}");
    }
}

/// Sizes and counts in the page headers of Parquet, which its reader trusts.
#[test]
fn pages_that_claim_more_than_they_hold_are_refused() {
    let folder = tempdir().unwrap();
    let bytes = table(SCHEMA, Some(FEATURES), Compression::SNAPPY, &[rows(&[(1, 0), (2, 1)])]);
    // The first page begins after the magic number: its type, its uncompressed size, its compressed size.
    assert_eq!((bytes[4], bytes[6]), (0x15, 0x15));
    let length = bytes[7..].iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
    let mut changed = bytes.clone();
    changed[7..7 + length].copy_from_slice(&[vec![0xff; length - 1], vec![0x7e]].concat());
    for memory in [0, 1 << 20] {
        write(folder.path(), "a.parquet", &changed);
        let options = ReadOptions { limits: Limits { memory, disk: 0 }, ..ReadOptions::default() };
        assert!(open_split(&folder.path().join("a.parquet"), None, None, &options).is_err());
    }
}
