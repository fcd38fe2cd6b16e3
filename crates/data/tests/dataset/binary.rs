//! CIFAR's binary files and IDX.

use super::images::{expected, listed, names, write};
use super::tar::{archive, gzip};
use tempfile::tempdir;
use vit_data::Samples;
use vit_data::dataset::{DatasetFormat, DatasetOptions, ReadOptions, Split, open, open_split};

/// A record with these label bytes; the planes are `value`, `value + 1` and `value + 2`.
fn record(labels: &[u8], value: u8) -> Vec<u8> {
    let planes = (0..3).flat_map(|plane| [value + plane; 1024]);
    labels.iter().copied().chain(planes).collect()
}

const NAMES: &str = "airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n";

#[test]
fn cifar_10_in_a_folder_and_in_its_archive() {
    let folder = tempdir().unwrap();
    let files = [
        ("cifar-10-batches-bin/data_batch_1.bin", [record(&[3], 10), record(&[9], 20)].concat()),
        ("cifar-10-batches-bin/batches.meta.txt", NAMES.into()),
        ("cifar-10-batches-bin/data_batch_2.bin", record(&[0], 30)),
        ("cifar-10-batches-bin/readme.html", b"<html>".to_vec()),
        ("cifar-10-batches-bin/test_batch.bin", record(&[9], 40)),
    ];
    for (name, bytes) in &files {
        write(folder.path(), &format!("plain/{name}"), bytes);
    }
    write(folder.path(), "cifar-10-binary.tar.gz", gzip(&archive(&files)));
    for place in ["plain", "plain/cifar-10-batches-bin", "cifar-10-binary.tar.gz"] {
        let splits = open(&folder.path().join(place), &DatasetOptions::default()).unwrap();
        assert_eq!(splits.report.format, DatasetFormat::Cifar10, "{place}");
        assert_eq!(listed(&*splits.train), expected(&[("cat", 10), ("truck", 20), ("airplane", 30)]), "{place}");
        assert_eq!(listed(&**splits.test.as_ref().unwrap()), expected(&[("truck", 40)]), "{place}");
        let image = splits.train.image(1).unwrap();
        assert_eq!((image.width(), image.height(), &image.pixels()[3069..]), (32, 32, &[20, 21, 22][..]));
        assert!(names(&*splits.train)[1].contains("data_batch_1.bin: image 1"), "{:?}", names(&*splits.train));
    }
}

#[test]
fn rows_and_columns_of_a_record_are_in_their_places() {
    let folder = tempdir().unwrap();
    let mut bytes = record(&[1], 0);
    // Red of the pixel in row 2, column 5.
    bytes[1 + 2 * 32 + 5] = 200;
    write(folder.path(), "data_batch_1.bin", bytes);
    let opened = open_split(&folder.path().join("data_batch_1.bin"), None, None, &ReadOptions::default()).unwrap();
    let image = opened.samples.image(0).unwrap();
    assert_eq!(image.row(2)[15..18], [200, 1, 2]);
    assert_eq!(opened.samples.classes(), ["0", "1"]);
}

#[test]
fn cifar_100_has_fine_labels() {
    let folder = tempdir().unwrap();
    let names: String = (0..100).map(|n| format!("class {n}\n")).collect();
    write(folder.path(), "train.bin", [record(&[4, 99], 1), record(&[19, 0], 5)].concat());
    write(folder.path(), "test.bin", record(&[1, 7], 9));
    write(folder.path(), "fine_label_names.txt", names);
    let splits = open(folder.path(), &DatasetOptions::default()).unwrap();
    assert_eq!((splits.report.format, splits.train.classes().len()), (DatasetFormat::Cifar100, 100));
    assert_eq!(listed(&*splits.train), expected(&[("class 99", 1), ("class 0", 5)]));
    assert_eq!(listed(&**splits.test.as_ref().unwrap()), expected(&[("class 7", 9)]));
}

#[test]
fn cifar_files_with_wrong_sizes_or_labels_are_refused() {
    let cases = [
        (vec![0; 3072], "3072 bytes are not a whole number of records of 3073 bytes"),
        ([record(&[1], 0), record(&[10], 0)].concat(), "image 1 has label 10, labels are 0 to 9"),
    ];
    for (bytes, reason) in cases {
        let folder = tempdir().unwrap();
        write(folder.path(), "data_batch_1.bin", &bytes);
        let error = open(folder.path(), &DatasetOptions::default()).err().unwrap().to_string();
        assert!(error.contains(reason) && error.contains("data_batch_1.bin"), "{error}");
        write(folder.path(), "a.tar", archive(&[("x/data_batch_1.bin", bytes)]));
        let error = open(&folder.path().join("a.tar"), &DatasetOptions::default()).err().unwrap().to_string();
        assert!(error.contains(reason) && error.contains("x/data_batch_1.bin"), "{error}");
    }
}

/// An IDX file with these sizes.
fn idx(sizes: &[u32], bytes: &[u8]) -> Vec<u8> {
    let header = [0, 0, 8, sizes.len() as u8].into_iter().chain(sizes.iter().flat_map(|size| size.to_be_bytes()));
    header.chain(bytes.iter().copied()).collect()
}

#[test]
fn idx_plain_and_packed() {
    let folder = tempdir().unwrap();
    let images = idx(&[2, 2, 3], &[1, 1, 1, 1, 1, 1, 2, 3, 4, 5, 6, 7]);
    let labels = idx(&[2], &[5, 0]);
    write(folder.path(), "MNIST/raw/train-images-idx3-ubyte", &images);
    write(folder.path(), "MNIST/raw/train-images-idx3-ubyte.gz", gzip(&images));
    write(folder.path(), "MNIST/raw/train-labels-idx1-ubyte", &labels);
    write(folder.path(), "MNIST/raw/t10k-images-idx3-ubyte.gz", gzip(&idx(&[1, 1, 1], &[9])));
    write(folder.path(), "MNIST/raw/t10k-labels-idx1-ubyte.gz", gzip(&idx(&[1], &[3])));
    let splits = open(folder.path(), &DatasetOptions::default()).unwrap();
    assert_eq!(splits.report.format, DatasetFormat::Idx);
    assert_eq!(listed(&*splits.train), expected(&[("5", 1), ("0", 2)]));
    assert_eq!(splits.train.classes().len(), 6);
    let image = splits.train.image(1).unwrap();
    assert_eq!((image.width(), image.height()), (3, 2));
    assert_eq!(image.row(1), [5, 5, 5, 6, 6, 6, 7, 7, 7]);
    assert_eq!(listed(&**splits.test.as_ref().unwrap()), expected(&[("3", 9)]));

    let test = open_split(folder.path(), Some(Split::Test), None, &ReadOptions::default()).unwrap();
    assert_eq!(test.samples.len(), 1);
    let packed = folder.path().join("MNIST/raw/train-images-idx3-ubyte.gz");
    assert_eq!(open_split(&packed, None, None, &ReadOptions::default()).unwrap().samples.len(), 2);
}

#[test]
fn idx_files_that_contradict_themselves_are_refused() {
    let good = idx(&[2, 2, 3], &[0; 12]);
    let cases = [
        (good[..27].to_vec(), idx(&[2], &[0, 1])),
        (good[..10].to_vec(), idx(&[2], &[0, 1])),
        ([good.clone(), vec![0]].concat(), idx(&[2], &[0, 1])),
        (idx(&[2, 0, 3], &[]), idx(&[2], &[0, 1])),
        (idx(&[u32::MAX, u32::MAX, u32::MAX], &[0; 12]), idx(&[2], &[0, 1])),
        (idx(&[2, 2, 1, 3], &[0; 12]), idx(&[2], &[0, 1])),
        (good.clone(), idx(&[3], &[0, 1, 2])),
        (good.clone(), idx(&[2], &[0])),
        (good.clone(), vec![]),
        (gzip(&good)[..20].to_vec(), idx(&[2], &[0, 1])),
    ];
    for (number, (images, labels)) in cases.into_iter().enumerate() {
        let folder = tempdir().unwrap();
        write(folder.path(), "train-images-idx3-ubyte", images);
        write(folder.path(), "train-labels-idx1-ubyte", labels);
        assert!(open(folder.path(), &DatasetOptions::default()).is_err(), "case {number}");
    }
    let folder = tempdir().unwrap();
    write(folder.path(), "train-images-idx3-ubyte", good);
    let error = open(&folder.path().join("train-images-idx3-ubyte"), &DatasetOptions::default()).err().unwrap();
    assert!(error.to_string().contains("labels"), "{error}");
}
