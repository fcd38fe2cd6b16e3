//! Named pipes in place of a dataset or in one are skipped with a message and never opened, which would block for ever.

use super::images::{png, write};
use super::tar::archive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc::channel;
use std::time::Duration;
use tempfile::tempdir;
use vit_data::Samples;
use vit_data::dataset::{DatasetOptions, Splits, open};

fn pipe(root: &Path, name: &str) {
    let path = root.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    assert!(Command::new("mkfifo").arg(path).status().is_ok_and(|status| status.success()));
}

/// The opened dataset or its error, on a separate thread in case it blocks.
fn opened(path: PathBuf) -> Result<Splits, String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let _ = sender.send(open(&path, &DatasetOptions::default()).map_err(|error| error.to_string()));
    });
    receiver.recv_timeout(Duration::from_secs(60)).expect("it waits for a pipe")
}

#[test]
fn a_pipe_named_as_a_dataset_is_refused() {
    let folder = tempdir().unwrap();
    pipe(folder.path(), "labels.csv");
    for name in ["labels.csv", "*.csv"] {
        let error = opened(folder.path().join(name)).err().unwrap();
        assert!(error.ends_with("labels.csv: it is a named pipe (FIFO), and only regular files are read"), "{error}");
    }
    let error = opened(folder.path().to_owned()).err().unwrap();
    assert!(error.contains("1 left out, neither a regular file nor a folder: labels.csv"), "{error}");
}

#[test]
fn pipes_in_a_dataset_are_left_out_with_a_word() {
    let folder = tempdir().unwrap();
    let root = folder.path();
    for (number, name) in ["cat/1.png", "cat/2.png", "dog/1.png", "dog/2.png"].into_iter().enumerate() {
        write(&root.join("folders"), name, png(number as u8));
    }
    pipe(root, "folders/cat/3.png");
    pipe(root, "folders/labels.csv");
    let shard = archive(&[("cat/1.png", png(1)), ("cat/2.png", png(1)), ("dog/2.png", png(2)), ("dog/3.png", png(3))]);
    write(root, "shards/a.tar", shard);
    pipe(root, "shards/b.tar");
    for (path, count) in [("folders", 2), ("shards", 1), ("shards/*.tar", 1)] {
        let splits = opened(root.join(path)).unwrap();
        let skipped = &splits.report.skipped;
        assert_eq!(splits.report.samples.train + splits.report.samples.validation, 4, "{path}");
        assert_eq!(skipped.len(), 1, "{skipped:?}");
        assert_eq!((skipped[0].reason, skipped[0].count), ("neither a regular file nor a folder", count));
    }
}

#[test]
fn a_pipe_in_a_manifest_is_an_unreadable_image() {
    let folder = tempdir().unwrap();
    write(folder.path(), "1.png", png(1));
    pipe(folder.path(), "2.png");
    write(folder.path(), "labels.csv", "path,label\n1.png,cat\n2.png,cat\n");
    let (sender, receiver) = channel();
    let train = opened(folder.path().join("labels.csv")).unwrap().train;
    std::thread::spawn(move || sender.send((0..train.len()).map(|index| train.image(index)).collect::<Vec<_>>()));
    let images = receiver.recv_timeout(Duration::from_secs(60)).expect("it waits for a pipe");
    let errors: Vec<String> = images.into_iter().filter_map(Result::err).map(|error| error.to_string()).collect();
    assert_eq!(errors.len(), 1);
    assert!(errors[0].ends_with("2.png: cannot be read: it is a named pipe (FIFO), and only regular files are read"));
}
