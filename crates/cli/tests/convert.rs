//! `vit convert` and `vit verify`.

mod support;

use std::fs;

use support::{image, model, vit};

#[test]
fn a_round_trip_through_hugging_face_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let (there, back) = (folder.path().join("there"), folder.path().join("back"));
    for (from, to, layout) in [(&model("timm_vit"), &there, "hugging-face"), (&there, &back, "timm")] {
        let run = vit(arguments!["convert", from, to, "--layout", layout, "--json"]).code(0).json();
        for (output, difference) in run["differences"].as_object().unwrap() {
            assert_eq!(difference.as_f64(), Some(0.0), "{output}");
        }
    }
    assert!(there.join("preprocessor_config.json").exists());
    fs::copy(model("timm_vit").join("io.safetensors"), back.join("io.safetensors")).unwrap();
    vit(arguments!["verify", &back]).code(0);
    let classify = |model| vit(arguments!["classify", "-m", model, image("preprocess"), "--json"]).code(0).out;
    assert_eq!(classify(back), classify(model("timm_vit")));
}

#[test]
fn other_formats_and_halves_are_converted() {
    let folder = tempfile::tempdir().unwrap();
    let (from_jax, half) = (folder.path().join("jax"), folder.path().join("half"));
    let run = vit(arguments!["convert", model("jax_vit").join("model.npz"), &from_jax]).code(0);
    assert!(run.out.contains("(JAX) ->") && run.out.contains("LARGEST DIFFERENCE"), "{}", run.out);
    let run = vit(arguments!["convert", &from_jax, &half, "--dtype", "f16", "--json"]).code(0).json();
    let difference = run["differences"]["logits"].as_f64().unwrap();
    assert!(difference > 0.0 && difference < 0.05, "{difference}");
    let size = |folder: &std::path::Path| fs::metadata(folder.join("model.safetensors")).unwrap().len() as f64;
    assert!(size(&half) < 0.6 * size(&from_jax));
}

#[test]
fn a_model_is_adapted_on_the_way() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let changes = ["--image-size", "64", "--classes", "3", "--channels", "1", "--json"];
    let arguments = arguments!["convert", model("timm_vit"), &out];
    let run = vit(arguments.into_iter().chain(changes.map(Into::into))).code(0).json();
    assert_eq!(run["report"].as_array().unwrap().len(), 3, "{run}");
    let info = vit(arguments!["info", &out, "--json"]).code(0).json();
    assert_eq!(info["classes"], 3);
    assert_eq!(info["channels"], 1);
    assert_eq!(info["image_size"], serde_json::json!([64, 64]));
}

#[test]
fn nothing_is_replaced_by_accident() {
    let folder = tempfile::tempdir().unwrap();
    let (out, file) = (folder.path().join("out"), folder.path().join("file"));
    let convert = |more: &[&str]| {
        let arguments = arguments!["convert", model("timm_vit"), &out];
        vit(arguments.into_iter().chain(more.iter().map(Into::into)))
    };
    convert(&[]).code(0);
    let before = fs::read(out.join("model.safetensors")).unwrap();
    assert!(convert(&["--dtype", "f16"]).code(1).err.contains("--overwrite"));
    assert_eq!(fs::read(out.join("model.safetensors")).unwrap(), before);
    convert(&["--dtype", "f16", "--overwrite"]).code(0);
    let itself = vit(arguments!["convert", &out, &out, "--overwrite"]).code(1);
    assert!(itself.err.contains("the weights come from this folder"), "{}", itself.err);
    fs::write(&file, "").unwrap();
    let onto = vit(arguments!["convert", model("timm_vit"), &file]).code(1);
    assert!(onto.err.contains("this is a file"), "{}", onto.err);
}

#[test]
fn what_a_layout_cannot_express_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let run = vit(arguments!["convert", model("timm_vit_modern"), &out, "--layout", "hf"]).code(1);
    assert!(run.err.contains("Hugging Face") && run.err.contains("no option for"), "{}", run.err);
    assert!(!out.exists());
}

#[test]
fn verify_passes_fails_and_says_why() {
    let run = vit(arguments!["verify", model("timm_vit")]).code(0);
    assert!(run.out.contains("all 6 arrays agree") && run.err.is_empty(), "{}", run.out);

    let strict = vit(arguments!["verify", model("timm_vit"), "--tolerance", "1e-12", "--json"]).code(1).json();
    assert_eq!(strict["passes"], false);
    assert!(strict["arrays"].as_array().unwrap().iter().all(|a| a["difference"].is_f64() && a["passes"] == false));
    let strict = vit(arguments!["verify", model("timm_vit"), "--tolerance", "1e-12"]).code(1);
    assert!(strict.out.contains("6 of 6 arrays do not agree"), "{}", strict.out);

    let folder = tempfile::tempdir().unwrap();
    assert!(vit(arguments!["verify", folder.path()]).code(1).err.contains("there are no weights here"));
    assert!(vit(arguments!["verify", folder.path().join("x")]).code(1).err.contains("no such file or folder"));
    let file = model("timm_vit").join("model.safetensors");
    assert!(vit(arguments!["verify", &file]).code(0).out.contains("all 6 arrays agree"));
    let two = vit(arguments!["verify", &file, "--weights", &file]).code(1);
    assert!(two.err.contains("this is a file; give the folder"), "{}", two.err);
    for name in ["model.safetensors", "config.json"] {
        fs::copy(model("timm_vit").join(name), folder.path().join(name)).unwrap();
    }
    let unrecorded = vit(arguments!["verify", folder.path()]).code(1);
    assert!(unrecorded.err.contains("there is nothing to compare with"), "{}", unrecorded.err);
    fs::write(folder.path().join("model.safetensors"), b"cut").unwrap();
    assert!(vit(arguments!["verify", folder.path()]).code(1).err.contains("model.safetensors"));
}

#[test]
fn weights_are_found_by_their_name_in_the_folder() {
    vit(arguments!["verify", model("jax_vit"), "--weights", "model_linen.npz"]).code(0);
}
