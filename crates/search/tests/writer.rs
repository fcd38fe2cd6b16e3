//! An index follows its folder, and survives the end of its writer at any instant.

mod support;

use std::fs;
use std::path::Path;

use support::{Random, index_of, settings, stamp, stored};
use vit_search::{FileStamp, Index, IndexSettings, IndexWriter, ModelId, SearchError, VectorType};

fn files(folder: &Path) -> Vec<String> {
    stored(&Index::open(folder).unwrap()).into_iter().map(|(file, _)| file).collect()
}

fn vector(file: &str) -> [f32; 3] {
    let byte = f32::from(file.as_bytes()[0]);
    [byte, 100.0, 1.0]
}

/// What indexing a folder with these files does.
fn update(folder: &Path, listing: &[FileStamp]) -> usize {
    let mut writer = IndexWriter::open(folder, settings(3, VectorType::F16)).unwrap();
    let update = writer.compare(listing);
    let read = update.to_read.len();
    for file in update.to_read {
        let (hash, vector) = (file.modified as u128, vector(&file.file));
        writer.add(file, hash, &vector).unwrap();
    }
    writer.finish(|file| listing.iter().any(|listed| listed.file == file)).unwrap();
    read
}

#[test]
fn only_new_and_changed_files_are_read_and_missing_ones_leave() {
    let folder = tempfile::tempdir().unwrap();
    let path = &folder.path().join("new/index");
    let mut listing: Vec<FileStamp> = ["a", "b", "c", "d"].iter().map(|file| stamp(file, 1)).collect();
    assert_eq!(update(path, &listing), 4);
    assert_eq!(update(path, &listing), 0);
    listing[1].modified = 2;
    listing.remove(3);
    listing.push(stamp("e", 1));
    let writer = IndexWriter::open(path, settings(3, VectorType::F16)).unwrap();
    let changes = writer.compare(&listing);
    assert_eq!((changes.unchanged, changes.missing, changes.to_read.len()), (2, 1, 2));
    drop(writer);
    assert_eq!(update(path, &listing), 2);
    assert_eq!(files(path), ["a", "b", "c", "e"]);
    assert_eq!(update(path, &listing), 0);
    assert_eq!(update(path, &[]), 0);
    assert!(Index::open(path).unwrap().is_empty());
    let left: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "index.json and the lock: {left:?}");
}

#[test]
fn moved_files_keep_their_vectors_without_being_embedded() {
    for vectors in [VectorType::F16, VectorType::Int8] {
        let folder = tempfile::tempdir().unwrap();
        let before = stored(&index_of(folder.path(), vectors, &[vec![1.0, 2.0], vec![3.0, -1.0]]));
        let mut writer = IndexWriter::open(folder.path(), settings(2, vectors)).unwrap();
        assert!(writer.contents().contains(&1));
        assert!(writer.add_known(stamp("moved.jpg", 5), 1).unwrap());
        assert!(!writer.add_known(stamp("other.jpg", 5), 77).unwrap());
        writer.finish(|file| file != "001.jpg").unwrap();
        let after = stored(&Index::open(folder.path()).unwrap());
        assert_eq!(after, [before[0].clone(), ("moved.jpg".into(), before[1].1.clone())]);
    }
}

#[test]
fn many_small_commits_leave_few_segments() {
    let folder = tempfile::tempdir().unwrap();
    let mut writer = IndexWriter::open(folder.path(), settings(4, VectorType::Int8)).unwrap();
    let mut random = Random(3);
    for row in 0..40 {
        writer.add(stamp(&format!("{row:03}"), 0), row, &random.vector(4)).unwrap();
        writer.commit().unwrap();
    }
    drop(writer);
    let arrays = fs::read_dir(folder.path()).unwrap().filter(|e| {
        let name = e.as_ref().unwrap().file_name().into_string().unwrap();
        name.ends_with(".scales.npy")
    });
    assert!(arrays.count() <= 6);
    assert_eq!(files(folder.path()), (0..40).map(|row| format!("{row:03}")).collect::<Vec<_>>());
}

/// Every state that the end of a writer can leave: some files of a new segment, whole or unfinished, and the old or the new
/// `index.json`.
#[test]
fn leftovers_of_a_killed_writer_do_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    update(path, &[stamp("a", 1), stamp("b", 1), stamp("c", 1)]);
    let manifest = fs::read(path.join("index.json")).unwrap();
    let before: Vec<_> = fs::read_dir(path).unwrap().map(|e| e.unwrap().path()).collect();
    let saved: Vec<_> = before.iter().map(|file| (file.clone(), fs::read(file).unwrap())).collect();
    update(path, &[stamp("a", 1), stamp("b", 2), stamp("d", 1)]);
    // The new segment is complete, and index.json is still the old one; the old segment is not removed yet.
    for (file, content) in saved {
        fs::write(file, content).unwrap();
    }
    fs::write(path.join("index.json"), manifest).unwrap();
    fs::write(path.join(".000007.npyAbCdEf.part"), "half an arr").unwrap();
    fs::write(path.join(".index.jsonAbCdEf.part"), "{").unwrap();
    fs::write(path.join("000099.jsonl"), "half a li").unwrap();
    assert_eq!(files(path), ["a", "b", "c"], "readers see the old state");
    assert_eq!(update(path, &[stamp("a", 1), stamp("b", 2), stamp("d", 1)]), 2);
    assert_eq!(files(path), ["a", "b", "d"]);
    let mut left: Vec<_> = fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    left.sort();
    assert_eq!(left.len(), 4, "index.json, the lock and one segment: {left:?}");
}

#[test]
fn another_index_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    index_of(path, VectorType::F16, &[vec![1.0, 2.0]]);
    let open = |settings: IndexSettings| IndexWriter::open(path, settings).map(drop).unwrap_err().to_string();
    let base = settings(2, VectorType::F16);
    let other = ModelId { path: "other".into(), fingerprint: "1".into() };
    assert!(open(IndexSettings { model: other, ..base.clone() }).contains("made with the model model, not with other"));
    assert!(open(IndexSettings { vectors: VectorType::Int8, ..base.clone() }).contains("as f16, not as int8"));
    // A folder that does not exist any more was moved.
    IndexWriter::open(path, IndexSettings { files: path.into(), ..base.clone() }).unwrap().finish(|_| true).unwrap();
    assert!(open(base.clone()).contains("is of the files in"));

    let occupied = tempfile::tempdir().unwrap();
    fs::write(occupied.path().join("thesis.txt"), "").unwrap();
    let error = IndexWriter::open(occupied.path(), base.clone()).map(drop).unwrap_err();
    assert!(matches!(error, SearchError::Occupied { .. }), "{error}");
    assert!(matches!(Index::open(occupied.path()), Err(SearchError::NotAnIndex { missing: false, .. })));
    assert!(matches!(Index::open(&path.join("none")), Err(SearchError::NotAnIndex { missing: true, .. })));

    let settings = IndexSettings { files: path.into(), ..base };
    let writer = IndexWriter::open(path, settings.clone()).unwrap();
    assert!(matches!(IndexWriter::open(path, settings), Err(SearchError::Locked { .. })));
    drop(writer);
}

#[test]
fn damaged_files_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    index_of(path, VectorType::Int8, &[vec![1.0, 2.0], vec![0.5, 1.0]]);
    for entry in fs::read_dir(path).unwrap().map(|entry| entry.unwrap()) {
        let name = entry.file_name().into_string().unwrap();
        if name == "lock" {
            continue;
        }
        let content = fs::read(entry.path()).unwrap();
        for damage in [Vec::new(), content[..content.len() - 3].to_vec(), [&content[..], b"x\n"].concat()] {
            fs::write(entry.path(), damage).unwrap();
            let search = Index::open(path).and_then(|index| index.search(&[1.0, 1.0], 2, 1));
            assert!(search.is_err(), "{name}");
        }
        fs::write(entry.path(), content).unwrap();
    }
    let text = fs::read_to_string(path.join("index.json")).unwrap();
    fs::write(path.join("index.json"), text.replace("\"version\": 1", "\"version\": 2")).unwrap();
    assert!(Index::open(path).unwrap_err().to_string().contains("version"));
    fs::write(path.join("index.json"), text.replace("\"name\": \"0", "\"name\": \"../0")).unwrap();
    assert!(Index::open(path).is_err());
}
