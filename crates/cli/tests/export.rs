//! `vit export`.

mod support;

use std::fs;

use support::{command, finished, model, vit};

#[test]
fn a_model_is_written_once() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.onnx");
    let run = vit(arguments!["export", model("timm_vit"), &file]).code(0);
    assert!(run.out.contains("pixel_values -> logits") && run.out.contains("opset 17"), "{}", run.out);
    assert!(run.err.is_empty(), "{}", run.err);
    let before = fs::read(&file).unwrap();
    let again = vit(arguments!["export", model("timm_vit"), &file, "--precision", "f16"]).code(1);
    assert!(again.err.contains("this file is there already; give another, or --overwrite"), "{}", again.err);
    assert_eq!(fs::read(&file).unwrap(), before);
    let run = vit(arguments!["export", "-m", model("timm_vit"), &file, "--precision", "f16", "--overwrite", "--json"])
        .code(0);
    assert_eq!(run.json()["input"], "pixel_values");
    assert!(fs::metadata(&file).unwrap().len() < before.len() as u64);
}

#[test]
fn a_place_that_cannot_be_written_is_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |file: &std::path::Path, sentence: &str| {
        let run = vit(arguments!["export", model("timm_vit"), file]).code(1);
        assert!(run.err.contains(sentence), "{}", run.err);
        assert_eq!(run.err.trim_end().lines().count(), 1, "{}", run.err);
    };
    refused(folder.path(), "this is a folder; give a file to write");
    refused(&folder.path().join("none/model.onnx"), "there is no folder");
    #[cfg(target_os = "linux")]
    refused("/dev/full".as_ref(), "/dev/full: No space left on device");
    let itself =
        vit(arguments!["export", model("timm_vit"), model("timm_vit").join("model.safetensors"), "--overwrite"]);
    assert!(itself.code(1).err.contains("the weights come from this file"));
}

#[test]
fn a_check_without_runtimes_says_what_to_install() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = arguments!["export", model("timm_vit"), folder.path().join("model.onnx"), "--check"];
    // No Python on an empty path.
    let run = finished(command().args(arguments).env("PATH", folder.path()).output().unwrap()).code(1);
    assert!(run.err.contains("pip install onnxruntime"), "{}", run.err);
    assert_eq!(run.err.trim_end().lines().count(), 1, "{}", run.err);
}
