//! Whichever operation of a save is the last one, a complete checkpoint remains.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use vit_models::weights::Tensor;

use super::disk::{Disk, LocalDisk};
use super::*;

/// The failure after a number of operations.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// The process is killed: written data stays.
    Kill,
    /// The power fails: data that was not flushed is lost.
    PowerCut,
    /// One operation fails, and the process continues.
    Failure(io::ErrorKind),
}

struct Limited {
    left: Cell<usize>,
    end: End,
    ended: Cell<bool>,
    unflushed: RefCell<BTreeSet<PathBuf>>,
}

impl Limited {
    fn new(operations: usize, end: End) -> Rc<Self> {
        Rc::new(Self { left: Cell::new(operations), end, ended: Cell::new(false), unflushed: RefCell::default() })
    }

    /// Counts one operation; an error after the failure.
    fn operation(&self) -> io::Result<()> {
        let dead = io::Error::other("nothing happens any more");
        match self.end {
            End::Failure(_) if self.ended.get() => return Ok(()),
            _ if self.ended.get() => return Err(dead),
            _ if self.left.get() > 0 => {
                self.left.set(self.left.get() - 1);
                return Ok(());
            }
            _ => {}
        }
        self.ended.set(true);
        if self.end == End::PowerCut {
            for path in self.unflushed.borrow().iter().filter(|path| path.exists()) {
                File::create(path).unwrap();
            }
        }
        Err(if let End::Failure(kind) = self.end { kind.into() } else { dead })
    }
}

struct LimitedFile {
    path: PathBuf,
    file: File,
    disk: Rc<Limited>,
}

impl Write for LimitedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Err(error) = self.disk.operation() {
            if self.disk.end != End::PowerCut {
                // A write may be incomplete.
                self.file.write_all(&bytes[..bytes.len() / 2])?;
            }
            return Err(error);
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Disk for Rc<Limited> {
    type File = LimitedFile;

    fn create_folder(&self, path: &Path) -> io::Result<()> {
        self.operation()?;
        LocalDisk.create_folder(path)
    }

    fn create(&self, path: &Path) -> io::Result<LimitedFile> {
        self.operation()?;
        self.unflushed.borrow_mut().insert(path.into());
        Ok(LimitedFile { path: path.into(), file: File::create(path)?, disk: self.clone() })
    }

    fn sync(&self, file: LimitedFile) -> io::Result<()> {
        self.operation()?;
        self.unflushed.borrow_mut().remove(&file.path);
        Ok(())
    }

    fn sync_folder(&self, _: &Path) -> io::Result<()> {
        self.operation()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.operation()?;
        let under = |path: &PathBuf| path.starts_with(from);
        assert!(!self.unflushed.borrow().iter().any(under), "a folder is renamed before all of it is flushed");
        fs::rename(from, to)
    }

    fn remove_folder(&self, path: &Path) -> io::Result<()> {
        // File by file, since a kill may come between two.
        let mut files: Vec<PathBuf> = fs::read_dir(path)?.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        for file in files {
            self.operation()?;
            fs::remove_file(file)?;
        }
        self.operation()?;
        fs::remove_dir(path)
    }
}

fn tensors(step: u64) -> Weights {
    let values: Vec<f32> = (0..600).map(|i| (i as f32).sqrt() + step as f32).collect();
    let mut weights = Weights::default();
    weights.metadata.insert("format".into(), "pt".into());
    weights.insert("head.weight", Tensor::new(vec![20, 30], values).unwrap()).unwrap();
    weights
}

fn snapshot(step: u64) -> Snapshot {
    let variant = vit_models::variant("Ti/16@32").unwrap();
    let config = Config {
        name: Some("Ti/16@32".into()),
        architecture: variant.architecture,
        preprocessing: variant.preprocessing,
        labels: vec![],
        problem_type: vit_models::ProblemType::default(),
    };
    let best = Some(Best { metric: "val/top1".into(), value: 0.1 + 0.2, loss: Some(0.7), step });
    let mut position =
        RunPosition { step, epoch: 3, batch: 17, seed: u64::MAX, seconds: 1.0 / 3.0, best, ..RunPosition::default() };
    position.more.insert("stream".into(), serde_json::json!([1, 2]));
    Snapshot { config, tokenizer: None, weights: tensors(step), optimiser: tensors(step + 1000), position }
}

/// The names in a slot's folder.
fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_saved_checkpoint_comes_back_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let slot = Slot::new(folder.path().join("checkpoints/last"));
    assert!(slot.is_empty());
    for step in 1..=3 {
        slot.save(&snapshot(step)).unwrap();
        let opened = slot.open().unwrap();
        assert_eq!(opened.snapshot.weights, snapshot(step).weights);
        assert_eq!(opened.snapshot.optimiser, snapshot(step).optimiser);
        assert_eq!(opened.snapshot.position, snapshot(step).position);
        assert_eq!(opened.snapshot.config.architecture, snapshot(step).config.architecture);
        assert_eq!(opened.notes, Vec::<String>::new());
    }
    assert_eq!(names(&folder.path().join("checkpoints")), ["last", "last.previous"]);
}

#[test]
fn whatever_operation_is_the_last_a_whole_checkpoint_is_there() {
    for end in [End::Kill, End::PowerCut, End::Failure(io::ErrorKind::PermissionDenied)] {
        let mut operations = 0;
        loop {
            let folder = tempfile::tempdir().unwrap();
            let slot = Slot::new(folder.path().join("last"));
            slot.save(&snapshot(1)).unwrap();
            slot.save(&snapshot(2)).unwrap();
            let disk = Limited::new(operations, end);
            let saved = slot.save_on(&disk, &snapshot(3));
            let opened = slot.open().unwrap_or_else(|error| panic!("{end:?} after {operations} operations: {error}"));
            if let Err(error) = &saved {
                assert!(matches!(error, SaveError::Io { path, .. } if path.starts_with(folder.path())), "{error}");
            }
            let step = opened.snapshot.position.step;
            assert!(if saved.is_ok() { step == 3 } else { step >= 2 }, "{end:?} after {operations}: step {step}");
            assert_eq!(opened.snapshot.weights, tensors(step));

            // The next session can save.
            slot.save(&snapshot(4)).unwrap();
            let opened = slot.open().unwrap();
            assert_eq!((opened.snapshot.position.step, opened.notes), (4, vec![]));
            assert!(names(folder.path()).iter().all(|name| !name.ends_with("partial")));
            if saved.is_ok() {
                break;
            }
            operations += 1;
        }
        assert!(operations > 20, "a save has many operations, only {operations} were tried");
    }
}

#[test]
fn a_kill_while_cleaning_up_after_a_kill_loses_nothing_either() {
    let mut first = 0;
    loop {
        let mut second = 0;
        let whole = loop {
            let folder = tempfile::tempdir().unwrap();
            let slot = Slot::new(folder.path().join("last"));
            slot.save(&snapshot(1)).unwrap();
            let whole = slot.save_on(&Limited::new(first, End::Kill), &snapshot(2)).is_ok();
            let saved = slot.save_on(&Limited::new(second, End::Kill), &snapshot(3)).is_ok();
            let opened = slot.open().unwrap_or_else(|error| panic!("killed after {first}, then {second}: {error}"));
            assert_eq!(opened.snapshot.weights, tensors(opened.snapshot.position.step));
            assert!(!saved || opened.snapshot.position.step == 3);
            second += 3;
            if saved {
                break whole;
            }
        };
        first += 1;
        if whole {
            break;
        }
    }
}

#[test]
fn a_full_disk_is_named_and_leaves_no_litter() {
    let folder = tempfile::tempdir().unwrap();
    let slot = Slot::new(folder.path().join("last"));
    slot.save(&snapshot(1)).unwrap();
    let before = slot.open().unwrap();
    // The fourth operation is the first write into model.safetensors.
    let error =
        slot.save_on(&Limited::new(3, End::Failure(io::ErrorKind::StorageFull)), &snapshot(2)).unwrap_err().to_string();
    assert!(error.contains("last.partial") && error.contains("model.safetensors"), "{error}");
    assert!(error.contains("make room"), "{error}");
    assert_eq!(names(folder.path()), ["last"]);
    assert_eq!(slot.open().unwrap(), before);
}

#[test]
fn where_only_two_checkpoints_fit_the_oldest_makes_room() {
    let folder = tempfile::tempdir().unwrap();
    let slot = Slot::new(folder.path().join("last"));
    slot.save(&snapshot(1)).unwrap();
    slot.save(&snapshot(2)).unwrap();
    let full_once = || Limited::new(3, End::Failure(io::ErrorKind::StorageFull));
    slot.save_on(&full_once(), &snapshot(3)).unwrap();
    assert_eq!(slot.open().unwrap().snapshot.position.step, 3);
    assert_eq!(Slot::new(slot.previous()).open().unwrap().snapshot.position.step, 2);

    // The oldest is kept if it is the only complete one.
    fs::write(slot.path().join("state.json"), "").unwrap();
    assert!(slot.save_on(&full_once(), &snapshot(4)).unwrap_err().is_full());
    assert_eq!(slot.open().unwrap().snapshot.position.step, 2);
}

#[test]
fn any_damaged_byte_falls_back_to_the_previous_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let slot = Slot::new(folder.path().join("last"));
    slot.save(&snapshot(1)).unwrap();
    slot.save(&snapshot(2)).unwrap();
    for name in names(slot.path()) {
        let path = slot.path().join(&name);
        let whole = fs::read(&path).unwrap();
        for damage in ["first", "middle", "half", "empty", "longer"] {
            let mut bytes = whole.clone();
            let middle = bytes.len() / 2;
            match damage {
                "first" => bytes[0] ^= 1,
                "middle" => bytes[middle] ^= 0x40,
                "half" => bytes.truncate(middle),
                "empty" => bytes.clear(),
                _ => bytes.push(b'x'),
            }
            fs::write(&path, bytes).unwrap();
            let opened = slot.open().unwrap();
            assert_eq!(opened.snapshot.position.step, 1, "{name}: {damage}");
            assert!(opened.notes[0].contains(&name) && opened.notes[1].contains("step 1"), "{:?}", opened.notes);
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(slot.open().unwrap().snapshot.position.step, 1, "{name} removed");
        fs::write(&path, whole).unwrap();
        assert_eq!(slot.open().unwrap().snapshot.position.step, 2);
    }
}

#[test]
fn with_every_checkpoint_damaged_the_error_says_what_is_wrong_with_each() {
    let folder = tempfile::tempdir().unwrap();
    let slot = Slot::new(folder.path().join("last"));
    let error = slot.open().unwrap_err().to_string();
    assert!(error.contains("does not exist"), "{error}");
    slot.save(&snapshot(1)).unwrap();
    slot.save(&snapshot(2)).unwrap();
    fs::write(slot.path().join("state.json"), "{}").unwrap();
    fs::remove_file(folder.path().join("last.previous/manifest.json")).unwrap();
    let error = slot.open().unwrap_err().to_string();
    assert!(error.contains("state.json has 2 bytes") && error.contains("manifest.json is missing"), "{error}");
}

#[test]
fn half_of_a_first_checkpoint_is_nothing_and_a_whole_one_is_something() {
    let folder = tempfile::tempdir().unwrap();
    let slot = Slot::new(folder.path().join("last"));
    slot.save(&snapshot(1)).unwrap();
    // Killed between the last byte and the renaming, and before that.
    fs::rename(slot.path(), folder.path().join("last.partial")).unwrap();
    assert!(!slot.is_empty());
    assert_eq!(slot.open().unwrap().snapshot.position.step, 1);
    fs::remove_file(folder.path().join("last.partial/manifest.json")).unwrap();
    assert!(slot.is_empty());
}

#[test]
fn a_position_that_json_cannot_hold_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let slot = Slot::new(folder.path().join("last"));
    let mut snapshot = snapshot(1);
    snapshot.position.seconds = f64::NAN;
    assert!(matches!(slot.save(&snapshot), Err(SaveError::State { .. })));
    assert!(slot.is_empty());
}
