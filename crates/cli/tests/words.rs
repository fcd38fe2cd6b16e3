//! Image-text models on the command line: labels in words, texts as vectors, and where in an image a text is.

mod support;

use support::{image, images, vit};

/// A recorded model of the library's tests.
fn model(name: &str) -> String {
    support::model(name).display().to_string()
}

fn photo() -> String {
    image("preprocess/tiny.jpg").display().to_string()
}

fn refused(arguments: &[&str], sentence: &str) {
    let run = vit(arguments.iter().copied()).code(1);
    assert!(run.err.contains(sentence), "{arguments:?}: {}", run.err);
    assert_eq!(run.err.trim_end().lines().count(), 1, "{}", run.err);
}

#[test]
fn labels_in_words_give_a_softmax_or_sigmoids() {
    let images = photo();
    let clip = model("hf_clip");
    let labels = ["classify", &images, "--model", &clip, "--labels", "a cat, a dog, a red car", "--json"];
    for line in vit(labels).code(0).json_lines() {
        let predictions = line["predictions"].as_array().unwrap();
        assert_eq!(predictions.len(), 3);
        let sum: f64 = predictions.iter().map(|p| p["probability"].as_f64().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-5);
        let logits: Vec<f64> = predictions.iter().map(|p| p["logit"].as_f64().unwrap()).collect();
        assert!(logits.windows(2).all(|pair| pair[0] >= pair[1]), "{logits:?}");
    }
    let siglip = model("hf_siglip");
    let labels = ["classify", &images, "--model", &siglip, "--labels", "a cat,a dog", "--threshold", "0", "--json"];
    for line in vit(labels).code(0).json_lines() {
        for p in line["predictions"].as_array().unwrap() {
            let (probability, logit) = (p["probability"].as_f64().unwrap(), p["logit"].as_f64().unwrap());
            assert!((probability - 1.0 / (1.0 + (-logit).exp())).abs() < 1e-5);
        }
    }
    let averaged = ["classify", &images, "--model", &clip, "--labels", "cat,dog", "--template", "a red {}"];
    vit(averaged.into_iter().chain(["--templates", "imagenet", "--truncate"])).code(0);
}

#[test]
fn what_does_not_suit_is_said_in_one_sentence() {
    let images = photo();
    let clip = model("hf_clip");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("labels.txt").display().to_string();
    std::fs::write(&file, "a cat\n\na dog\n").unwrap();
    let classify = ["classify", &images, "--model", &clip];
    let with = |more: &[&'static str]| [&classify[..], more].concat();
    refused(&with(&["--labels", ""]), "--labels: the list is empty; give at least one, as in --labels 'a cat, a dog'");
    refused(&with(&["--labels", "a cat,,a dog"]), "--labels: label 2 is empty");
    refused(&[&classify[..], &["--labels-file", &file]].concat(), "labels.txt:2: the line is empty");
    refused(&with(&[]), "this model compares images with texts; give the labels to choose from, as in --labels");
    refused(&with(&["--labels", "a cat", "--template", "a photo"]), "has no {} where the label goes");
    refused(&with(&["--template", "a {}"]), "--template and --templates need labels");
    let long = "a very long caption about a red car that was parked in the street for years";
    refused(&with(&["--labels", long]), "tokens, and the model reads at most 16; shorten it; --truncate cuts it");
    refused(
        &["classify", &images, "--labels", "a cat"],
        "this model has no text tower; texts need an image-text model",
    );
    let open_clip = model("open_clip");
    let missing = "there is no tokenizer.json, and CLIP's tokeniser does not suit a vocabulary of 90 tokens";
    refused(&["classify", &images, "--model", &open_clip, "--labels", "a cat"], missing);
    let out = folder.path().join("v.npy").display().to_string();
    refused(&["embed", "--text", "a cat", "-o", &out], "this model has no text tower");
    refused(
        &["embed", &images, "--model", &clip, "--text", "a", "--pool", "mean", "-o", &out],
        "texts have one vector each",
    );
}

#[test]
fn texts_and_images_are_embedded_into_one_file() {
    let images = photo();
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("v.npy");
    let arguments =
        ["embed", &images, "--model", &model("hf_clip"), "--text", "a dog", "--text", "a cat", "--normalise"];
    let run = vit(arguments.into_iter().chain(["--json", "-o", out.to_str().unwrap()])).code(0);
    let names = std::fs::read_to_string(folder.path().join("v.files.txt")).unwrap();
    let names: Vec<&str> = names.lines().collect();
    assert_eq!(run.json()["shape"], serde_json::json!([names.len(), 32]));
    assert_eq!(names[names.len() - 2..], ["a dog", "a cat"]);
    let texts = ["embed", "--text", "a dog", "--model", &model("hf_siglip"), "--json", "-o", out.to_str().unwrap()];
    assert_eq!(vit(texts).code(0).json()["shape"], serde_json::json!([1, 48]));
}

#[test]
fn a_model_is_trained_on_pairs_and_chooses_among_labels_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    let (data, out) = (folder.path().join("data"), folder.path().join("trained"));
    images(&data, &[("cat", 20), ("dog", 200)], 8);
    let (data, out) = (data.to_str().unwrap(), out.to_str().unwrap());
    let clip = model("hf_clip");
    let template = ["--template", "a {}"];
    let finetune = ["finetune", &clip, "--pairs", "--data", data, "--batch", "4", "--epochs", "2", "--device", "cpu"];
    let options = ["--freeze", "image", "--out", out];
    vit(finetune.into_iter().chain(template).chain(options)).code(0);
    let metrics = std::fs::read_to_string(format!("{out}/metrics.csv")).unwrap();
    assert!(metrics.lines().next().unwrap().contains("val/text_to_image_r1"), "{metrics}");
    let resumed = vit(["resume", out]).code(0);
    assert!(resumed.err.contains("this run is finished"), "{}", resumed.err);
    vit(["classify", data, "--model", out, "--labels", "cat, dog"].into_iter().chain(template)).code(0);
    let zero_shot = vit(["eval", out, "--data", data, "--split", "all", "--json"].into_iter().chain(template)).code(0);
    assert_eq!(zero_shot.json()["samples"], 16);

    refused(&["eval", "cifar10", "--data", data, "--template", "a {}"], "need a model with a text tower");
    let image_model = ["finetune", "cifar10", "--pairs", "--data", data];
    refused(&image_model, "this model has no text tower, which --pairs trains");
    refused(&["train", "--data", data, "--template", "a {}"], "is for an image-text model");
    let no_place = [&finetune[..], &["--template", "a photo"]].concat();
    refused(&no_place, "the template `a photo` has no {} where the label goes");
}

#[test]
fn a_text_has_a_place_in_an_image() {
    for name in ["hf_clip", "hf_siglip"] {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().to_str().unwrap();
        let arguments = ["explain", &photo(), "--model", &model(name), "--text", "a dog", "-o", out];
        vit(arguments).code(0);
        let about = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let about = about.into_iter().find(|path| path.extension().is_some_and(|e| e == "json")).unwrap();
        let about: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(about).unwrap()).unwrap();
        assert!(about["maps"].as_array().unwrap().iter().any(|map| map["about"] == "a dog"), "{about}");
    }
}
