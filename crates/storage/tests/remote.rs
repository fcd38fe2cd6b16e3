//! Objects of a server on this machine, with and without faults.
#![cfg(feature = "remote")]

#[allow(dead_code, reason = "each test uses a part of the server")]
#[path = "support/s3_server.rs"]
mod s3_server;

use s3_server::S3Server;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::Ordering;
use vit_storage::{Extent, LocalCopy, MirroredFolder, PathKind, StorageError, StoredFile, WindowedFile};

/// One server for all tests, since the environment belongs to the process. Each test has its own prefix.
fn server() -> &'static S3Server {
    static SERVER: OnceLock<S3Server> = OnceLock::new();
    SERVER.get_or_init(|| {
        let server = S3Server::start(&["bucket"]);
        for (name, value) in server.environment() {
            // SAFETY: no test reads the environment before it has the server.
            unsafe { std::env::set_var(name, value) };
        }
        server
    })
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 31 % 251) as u8).collect()
}

fn cause(error: &std::io::Error) -> &StorageError {
    error.get_ref().and_then(|error| error.downcast_ref()).unwrap_or_else(|| panic!("{error}"))
}

#[test]
fn objects_are_read_whole_by_ranges_and_in_windows() {
    let server = server();
    let bytes = pattern(9_000_000);
    server.put("bucket/read/a b+c.bin", bytes.clone());
    let path = Path::new("s3://bucket/read/a b+c.bin");
    assert_eq!(vit_storage::kind(path).unwrap(), PathKind::File);
    assert_eq!(vit_storage::kind("s3://bucket/read".as_ref()).unwrap(), PathKind::Folder);
    assert!(vit_storage::read(path).unwrap() == bytes);
    let file = StoredFile::open(path).unwrap();
    assert_eq!(file.read_at(4_000_000, 1000).unwrap(), bytes[4_000_000..4_001_000]);
    assert!(file.read_at(8_999_999, 2).is_err());
    let mut read = Vec::new();
    WindowedFile::open(path).unwrap().read_to_end(&mut read).unwrap();
    assert!(read == bytes);
}

#[test]
fn lists_have_many_pages() {
    let server = server();
    for index in 0..250 {
        server.put(&format!("bucket/list/{index:03}.txt"), "x");
    }
    let listed = vit_storage::list("s3://bucket/list".as_ref()).unwrap();
    assert_eq!(listed.len(), 250);
    assert_eq!((listed[249].name.as_str(), listed[249].bytes), ("249.txt", 1));
}

#[test]
fn announced_objects_are_read_ahead_many_at_a_time() {
    let server = S3Server::start(&["bucket"]);
    server.faults().latency_ms.store(20, Ordering::Relaxed);
    let paths: Vec<PathBuf> =
        (0..300).map(|index| format!("{}/bucket/ahead/{index}", server.endpoint()).into()).collect();
    for index in 0..300 {
        server.put(&format!("bucket/ahead/{index}"), vec![index as u8; 1000]);
    }
    vit_storage::announce(paths.iter().map(|path| Extent { path: path.clone(), range: None }).collect());
    for (index, path) in paths.iter().enumerate() {
        assert_eq!(vit_storage::read(path).unwrap(), vec![index as u8; 1000]);
    }
    assert!(server.most_active() > 8, "{}", server.most_active());
}

#[test]
fn an_object_that_changes_is_an_error() {
    let server = server();
    server.put("bucket/changed", "first");
    let file = StoredFile::open("s3://bucket/changed".as_ref()).unwrap();
    assert_eq!(file.read_at(0, 2).unwrap(), b"fi");
    server.put("bucket/changed", "other");
    let error = file.read_at(2, 2).unwrap_err();
    assert_eq!(cause(&error), &StorageError::Changed);
}

#[test]
fn errors_name_the_cause() {
    server();
    let error = vit_storage::read("s3://nowhere/a".as_ref()).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    let missing = vit_storage::read("s3://bucket/missing".as_ref()).unwrap_err();
    assert_eq!(cause(&missing), &StorageError::Missing);
    let missing = vit_storage::kind("s3://bucket/missing".as_ref()).unwrap_err();
    assert_eq!(cause(&missing), &StorageError::Missing);
    let listed = vit_storage::list("s3://nowhere/a".as_ref()).unwrap_err();
    assert_eq!(cause(&listed), &StorageError::NoBucket("nowhere".into()));
    assert_eq!(cause(&vit_storage::read("s3://".as_ref()).unwrap_err()), &StorageError::Url);
}

#[test]
fn a_snapshot_is_seen_whole_or_as_before() {
    let server = server();
    let url = Path::new("s3://bucket/run");
    let run = MirroredFolder::create(url, false).unwrap().unwrap();
    let last = run.local().join("checkpoints/last");
    std::fs::create_dir_all(&last).unwrap();
    std::fs::write(run.local().join("config.toml"), "a = 1").unwrap();
    std::fs::write(run.local().join("run.lock"), "").unwrap();
    // More than one part.
    let weights = pattern(40 << 20);
    std::fs::write(last.join("model.safetensors"), &weights).unwrap();
    run.publish().unwrap();
    assert!(MirroredFolder::create(url, false).unwrap().is_none(), "there is a run");
    assert!(!server.names().iter().any(|name| name.ends_with(".lock")));

    let copy = |path: &str| LocalCopy::of(path.as_ref(), &|names| names.iter().map(|n| n.to_string()).collect(), &[]);
    let read = |copy: &LocalCopy, name: &str| std::fs::read(copy.path().join(name)).unwrap();
    let first = copy("s3://bucket/run").unwrap();
    assert!(read(&first, "checkpoints/last/model.safetensors") == weights);
    assert!(read(&copy("s3://bucket/run/checkpoints/last").unwrap(), "model.safetensors") == weights);

    // Files that are not in the list are invisible, as after a kill between two uploads.
    server.put("bucket/run/checkpoints/0000000000000000/model.safetensors", "half");
    std::fs::write(last.join("model.safetensors"), "second").unwrap();
    assert!(read(&copy("s3://bucket/run/checkpoints/last").unwrap(), "model.safetensors") == weights);
    run.publish().unwrap();
    assert_eq!(read(&copy("s3://bucket/run/checkpoints/last").unwrap(), "model.safetensors"), b"second");
    // Objects of the snapshot before stay for readers that have just opened it, those before it go.
    std::fs::write(last.join("model.safetensors"), "third").unwrap();
    run.publish().unwrap();
    std::fs::write(last.join("model.safetensors"), "fourth").unwrap();
    run.publish().unwrap();
    let weights: Vec<Vec<u8>> = server
        .names()
        .iter()
        .filter(|name| name.ends_with("model.safetensors"))
        .filter_map(|n| server.get(n))
        .collect();
    assert!(!weights.contains(&b"second".to_vec()) && weights.contains(&b"fourth".to_vec()));

    // A second process continues, and the first notices it.
    let all = |names: &[&str]| names.iter().map(|name| name.to_string()).collect();
    let second = MirroredFolder::open(url, &all).unwrap().unwrap();
    assert_eq!(std::fs::read(second.local().join("checkpoints/last/model.safetensors")).unwrap(), b"fourth");
    std::fs::write(second.local().join("config.toml"), "a = 2").unwrap();
    second.publish().unwrap();
    std::fs::write(run.local().join("config.toml"), "a = 3").unwrap();
    assert_eq!(cause(&run.publish().unwrap_err()), &StorageError::Busy);
}

#[test]
fn a_write_whose_answer_is_lost_is_not_taken_for_that_of_another_process() {
    let server = server();
    let run = MirroredFolder::create("s3://bucket/lost".as_ref(), false).unwrap().unwrap();
    for content in ["a = 1", "a = 2", "a = 3"] {
        std::fs::write(run.local().join("config.toml"), content).unwrap();
        *server.faults().lost_answer.lock().unwrap() = Some("bucket/lost/snapshot.json".into());
        run.publish().unwrap();
        assert!(server.faults().lost_answer.lock().unwrap().is_none());
        assert_eq!(server.get("bucket/lost/config.toml").unwrap(), content.as_bytes());
    }
}

#[test]
fn faults_change_only_the_time() {
    let server = S3Server::start(&["bucket"]);
    // Reached as a web server: the endpoint of the buckets belongs to the other one.
    let url = format!("{}/bucket/big.bin", server.endpoint());
    let bytes = pattern(5_000_000);
    server.put("bucket/big.bin", bytes.clone());
    server.faults().fail_every.store(7, Ordering::Relaxed);
    server.faults().cut_every.store(3, Ordering::Relaxed);
    let file = StoredFile::open(url.as_ref()).unwrap();
    for start in (0..4_900_000).step_by(490_000) {
        assert!(file.read_at(start, 100_000).unwrap() == bytes[start as usize..start as usize + 100_000]);
    }
    let mut read = Vec::new();
    WindowedFile::open(url.as_ref()).unwrap().read_to_end(&mut read).unwrap();
    assert!(read == bytes);
}

#[test]
fn an_unreachable_server_is_named() {
    // A port that was just free.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("https://127.0.0.1:{port}/x.tar");
    let error = vit_storage::size(url.as_ref()).unwrap_err();
    assert!(
        matches!(cause(&error), StorageError::Unreachable { host, .. } if host.contains(&port.to_string())),
        "{error}"
    );
}
