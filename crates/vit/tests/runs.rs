//! Runs that are prepared, observed, stopped and resumed by a program.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use vit::train::{MetricsRow, Observer, PreparedRun, free_folder, metrics};
use vit::{DeviceChoice, DeviceOptions, Trainer};

/// The rows of a run as they come.
#[derive(Default)]
struct Rows(Vec<MetricsRow>);

impl Observer for Rows {
    fn recorded(&mut self, row: &MetricsRow) {
        self.0.push(row.clone());
    }
}

fn trainer() -> Trainer {
    Trainer::new("contours:2x10")
        .model("lenet5_relu_cifar")
        .set("batch=4")
        .set("length=6 steps")
        .set("evaluate_every=3 steps")
        .device(DeviceOptions::new().device(DeviceChoice::Cpu).threads(1))
}

fn weights(run: &Path) -> Vec<u8> {
    fs::read(run.join("checkpoints/last/model.safetensors")).unwrap()
}

#[test]
fn a_run_hands_on_its_metrics_and_continues_after_a_stop() {
    let folder = tempfile::tempdir().unwrap();
    let [whole, stopped] = ["whole", "stopped"].map(|name| folder.path().join(name));
    let mut rows = Rows::default();
    let run = trainer().prepare(&whole).unwrap().train(&mut rows, &AtomicBool::new(false)).unwrap();
    assert!(run.finished.complete && run.best().is_some());
    assert_eq!(rows.0, metrics(&whole).unwrap());
    assert!(rows.0.iter().any(|row| row.get("val/top1").is_some()));

    let early = trainer().prepare(&stopped).unwrap().train(&mut (), &AtomicBool::new(true)).unwrap();
    assert!(!early.finished.complete && early.finished.position.step < 6);
    let mut rest = Rows::default();
    let resumed = PreparedRun::resume(&stopped).unwrap().train(&mut rest, &AtomicBool::new(false)).unwrap();
    assert!(resumed.finished.complete);
    assert!(weights(&whole) == weights(&stopped), "other bits than those of an uninterrupted run");
    assert_eq!(rest.0.last().map(|row| row.step), Some(6));
}

#[test]
fn what_is_no_run_or_holds_one_is_refused_with_its_kind() {
    let folder = tempfile::tempdir().unwrap();
    let nothing = PreparedRun::resume(folder.path()).err().unwrap();
    assert_eq!(nothing.io_kind(), Some(ErrorKind::NotFound), "{nothing}");
    let run = folder.path().join("run");
    drop(trainer().prepare(&run).unwrap());
    let again = trainer().prepare(&run).err().unwrap();
    assert_eq!(again.io_kind(), Some(ErrorKind::AlreadyExists), "{again}");
    let unfinished = PreparedRun::resume(&run).err().unwrap().to_string();
    assert!(unfinished.contains("before its first checkpoint"), "{unfinished}");
    assert!(free_folder("data/photos.tar.zst".as_ref()).ends_with("runs/photos-1"));
}
