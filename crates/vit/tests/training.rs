//! Recorded training runs of timm and PyTorch, replayed; `verify` detects every setting that differs from the recorded one.

mod support;

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use support::{scratch, write};
use vit::{Comparison, DeviceOptions, Error, VerifyOptions, verify};
use vit_models::weights;

fn recorded(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../train/tests/fixtures").join(case)
}

fn compare(folder: &Path) -> Vec<Comparison> {
    verify(folder, &VerifyOptions { device: DeviceOptions::new().threads(2), ..VerifyOptions::default() })
        .unwrap()
        .arrays
}

/// A copy of a recording to be changed.
fn copy(case: &str, name: &str) -> PathBuf {
    let folder = scratch(name);
    for entry in std::fs::read_dir(recorded(case)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
    }
    folder
}

fn change(folder: &Path, change: impl FnOnce(&mut Value)) {
    let path = folder.join("config.json");
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(path, config.to_string()).unwrap();
}

/// The kinds of arrays that differ: `loss`, `grad`, `final`, and so on.
fn wrong(folder: &Path) -> Vec<String> {
    let kind = |name: &str| name.split('.').next().unwrap_or_default().to_string();
    let mut wrong: Vec<String> = compare(folder).iter().filter(|a| !a.passes()).map(|a| kind(&a.name)).collect();
    wrong.sort();
    wrong.dedup();
    wrong
}

#[test]
fn recorded_runs_are_made_again() {
    // 32 parameters: 4 before the blocks, 12 in each of two, 4 behind.
    for (case, others, finals) in [("train_step", 2, 32), ("train_step_sgd", 2, 32), ("train_step_mixup", 8, 0)] {
        let arrays = compare(&recorded(case));
        for array in &arrays {
            assert!(array.passes(), "{case}: {array:?}");
        }
        let count = |prefix: &str| arrays.iter().filter(|a| a.name.starts_with(prefix)).count();
        assert_eq!((count("grad."), count("final.")), (32, finals), "{case}");
        assert_eq!(arrays.len(), 32 + finals + others, "{case}");
    }
}

#[test]
fn every_setting_matters() {
    type Change = fn(&mut Value);
    let changes: [(&str, &str, Change); 9] = [
        ("train_step", "lr", |c| c["optimizer"]["lr"] = json!(1.2e-3)),
        ("train_step", "beta1", |c| c["optimizer"]["betas"] = json!([0.8, 0.999])),
        ("train_step", "weight_decay", |c| c["optimizer"]["weight_decay"] = json!(0.5)),
        ("train_step", "adam", |c| c["optimizer"] = json!({ "optimizer": "Adam", "lr": 1e-3, "weight_decay": 0.1 })),
        ("train_step", "clip", |c| c["grad_clip"] = json!({ "global_norm": 0.01 })),
        ("train_step_sgd", "momentum", |c| c["optimizer"]["momentum"] = json!(0.8)),
        ("train_step_sgd", "nesterov", |c| c["optimizer"]["nesterov"] = json!(true)),
        ("train_step_sgd", "decay", |c| c["optimizer"]["weight_decay"] = json!(0.01)),
        ("train_step_sgd", "no clip", |c| c["grad_clip"] = Value::Null),
    ];
    for (case, name, modify) in changes {
        let folder = copy(case, &format!("setting_{}", name.replace(' ', "_")));
        change(&folder, modify);
        let wrong = wrong(&folder);
        assert!(wrong.contains(&"final".to_string()), "{case}, {name}: {wrong:?}");
        assert!(!wrong.contains(&"grad".to_string()), "{case}, {name}: the first gradient is before the first update");
    }
    let folder = copy("train_step", "setting_smoothing");
    change(&folder, |c| c["label_smoothing"] = json!(0.0));
    assert_eq!(wrong(&folder), ["final", "grad", "grad_norm", "loss"]);
    let folder = copy("train_step_mixup", "setting_lam");
    change(&folder, |c| c["mixup"]["lam"] = json!(0.4));
    assert_eq!(wrong(&folder), ["grad", "mixup_images", "mixup_logits", "mixup_loss", "mixup_targets"]);
    let folder = copy("train_step_mixup", "setting_box");
    change(&folder, |c| c["cutmix"]["bbox_yl_yh_xl_xh"] = json!([0, 22, 0, 21]));
    assert_eq!(wrong(&folder), ["cutmix_images", "cutmix_logits", "cutmix_loss"]);
}

#[test]
fn one_wrong_gradient_is_found() {
    let folder = copy("train_step_sgd", "wrong_gradient");
    let path = folder.join("io.safetensors");
    let mut io = weights::read(&path).unwrap();
    io.tensors.get_mut("grad.blocks.1.attn.proj.weight").unwrap().data[7] += 3e-5;
    write(&path, &io);
    let arrays = compare(&folder);
    let wrong: Vec<&str> = arrays.iter().filter(|a| !a.passes()).map(|a| a.name.as_str()).collect();
    assert_eq!(wrong, ["grad.blocks.1.attn.proj.weight"]);
}

#[test]
fn what_cannot_be_replayed_is_refused() {
    let refusal = |folder: &Path| match verify(folder, &VerifyOptions::default()) {
        Err(error @ Error::Recording { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    let folder = copy("train_step", "unknown_optimiser");
    change(&folder, |c| c["optimizer"]["optimizer"] = json!("Adagrad"));
    let what = refusal(&folder);
    assert!(what.contains("io.safetensors") && what.contains("`adagrad` is not known"), "{what}");

    let folder = copy("train_step", "wrong_labels");
    let path = folder.join("io.safetensors");
    let mut io = weights::read(&path).unwrap();
    io.tensors.get_mut("labels").unwrap().data[3] = 6.0;
    write(&path, &io);
    assert!(refusal(&folder).contains("the label 6 is none of 6 classes"));
    io.tensors.remove("labels");
    write(&path, &io);
    assert!(refusal(&folder).contains("no array named `labels`"));
}
