//! `vit classify`: images from every source, damaged ones among them.

mod support;

use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::Stdio;

use support::{command, hostile, image, model, vit, vit_with_input};

/// Good and damaged images, in natural order.
fn mixed(folder: &Path) {
    fs::write(folder.join("a note.jpg"), "not an image").unwrap();
    fs::copy(image("preprocess/tiny.jpg"), folder.join("b, \"quoted\".jpg")).unwrap();
    fs::copy(hostile("decoder_panics.jpg"), folder.join("c.jpg")).unwrap();
    fs::copy(image("preprocess/rgb.png"), folder.join("d ü 日本.png")).unwrap();
}

#[test]
fn bad_files_are_reported_and_the_others_go_on() {
    let folder = tempfile::tempdir().unwrap();
    mixed(folder.path());
    let missing = folder.path().join("missing.jpg");
    let arguments = arguments!["classify", "-m", model("timm_vit"), &missing, folder.path(), "--json"];
    let run = vit(&arguments).code(1);
    let lines = run.json_lines();
    assert_eq!(lines.len(), 5);
    for (line, (name, good)) in lines.iter().zip([
        ("missing.jpg", false),
        ("a note.jpg", false),
        ("b, \"quoted\".jpg", true),
        ("c.jpg", false),
        ("d ü 日本.png", true),
    ]) {
        assert_eq!(line["file"].as_str().unwrap(), folder.path().join(name).to_str().unwrap());
        assert_eq!(line.get("predictions").is_some(), good, "{line}");
        assert_eq!(line.get("error").is_some(), !good, "{line}");
    }
    let errors: Vec<&str> = run.err.lines().collect();
    assert_eq!(errors.len(), 4, "{}", run.err);
    assert!(errors[0].ends_with("missing.jpg: no such file or folder"), "{}", run.err);
    assert!(errors[1].contains("it starts with text"), "{}", run.err);
    assert_eq!(errors[1].matches("not an image").count(), 1, "said twice: {}", run.err);
    // The decoder's panic is caught and not printed.
    assert!(errors[2].ends_with("c.jpg: JPEG is damaged: the decoder gave up on it"), "{}", run.err);
    assert_eq!(errors[3], "3 of 5 images could not be read");
}

#[test]
fn csv_is_quoted_and_the_table_is_for_people() {
    let folder = tempfile::tempdir().unwrap();
    mixed(folder.path());
    let quoted = folder.path().join("b, \"quoted\".jpg");
    let csv = vit(arguments!["classify", "-m", model("timm_vit"), &quoted, "-k", "2", "--format", "csv"]).code(0);
    let lines: Vec<&str> = csv.out.lines().collect();
    assert_eq!(lines[0], "file,rank,class,label,probability");
    assert_eq!(lines.len(), 3);
    let file = format!("\"{}\"", quoted.to_str().unwrap().replace('"', "\"\""));
    assert!(lines[1].starts_with(&format!("{file},1,")) && lines[2].starts_with(&format!("{file},2,")), "{}", csv.out);
    let table = vit(arguments!["classify", "-m", model("timm_vit"), &quoted, "-k", "2"]).code(0);
    let lines: Vec<&str> = table.out.lines().collect();
    assert_eq!(lines[0], quoted.to_str().unwrap());
    assert!(lines.len() == 3 && lines[1].contains('%') && lines[1].contains("class "), "{}", table.out);
    assert!(table.err.is_empty());
}

#[cfg(unix)]
#[test]
fn a_name_cannot_garble_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(image("preprocess/tiny.jpg"), folder.path().join("a\n\x1b[31m.jpg")).unwrap();
    fs::write(folder.path().join("b\x1b[31m.jpg"), "text").unwrap();
    let run = vit(arguments!["classify", "-m", model("timm_vit"), folder.path(), "--top", "1"]).code(1);
    assert!(run.out.contains("a\\n\\u{1b}[31m.jpg"), "{}", run.out);
    assert!(run.err.contains("b\\u{1b}[31m.jpg"), "{}", run.err);
}

#[test]
fn batch_and_threads_do_not_change_the_results() {
    let run = |batch: &str, threads: &str| {
        let folder = image("orientation");
        let arguments = arguments!["classify", "-m", model("timm_vit"), folder, "--batch", batch, "--threads", threads];
        vit(arguments.into_iter().chain(["--json".into()])).code(0).out
    };
    let first = run("8", "2");
    assert_eq!(first.lines().count(), 40);
    for (batch, threads) in [("1", "1"), ("3", "2"), ("12", "3")] {
        assert_eq!(run(batch, threads), first, "--batch {batch} --threads {threads}");
    }
    // With AMX, products of 512 rows and more have another order of summation than smaller ones, on any number of threads.
    assert_eq!(run("64", "1"), run("64", "3"));
}

#[test]
fn probabilities_are_sorted_and_add_up() {
    let arguments = ["classify", "--json", "--top", "1000", "-m"].map(Into::into);
    let last = arguments![model("timm_vit"), image("preprocess/tiny.jpg")];
    let line = vit(arguments.into_iter().chain(last)).code(0).json_lines().remove(0);
    let all: Vec<f64> =
        line["predictions"].as_array().unwrap().iter().map(|p| p["probability"].as_f64().unwrap()).collect();
    assert_eq!(all.len(), 11);
    assert!(all.is_sorted_by(|a, b| a >= b));
    assert!((all.iter().sum::<f64>() - 1.0).abs() < 1e-5);
}

#[test]
fn standard_input_is_a_image_or_a_list_of_paths() {
    let model = model("timm_vit");
    let (one, two) = (image("preprocess/tiny.jpg"), image("preprocess/rgb.png"));
    let classify = |input: &[u8]| vit_with_input(arguments!["classify", "-m", &model, "-", "--json"], input);
    let by_name = vit(arguments!["classify", "-m", &model, &one, &two, "--json"]).code(0).json_lines();

    let piped = classify(&fs::read(&one).unwrap()).code(0).json_lines();
    assert_eq!(piped[0]["file"], "-");
    assert_eq!(piped[0]["predictions"], by_name[0]["predictions"]);
    for list in [
        format!("{}\n{}\n", one.display(), two.display()),
        format!("{}\r\n\r\n{}", one.display(), two.display()),
        format!("{}\0{}\0", one.display(), two.display()),
    ] {
        assert_eq!(classify(list.as_bytes()).code(0).json_lines(), by_name, "{list:?}");
    }
    let partly = classify(format!("nowhere.jpg\n{}", two.display()).as_bytes()).code(1).json_lines();
    assert!(partly[0]["error"].is_string() && partly[1]["predictions"].is_array());
    assert!(classify(b"").code(1).err.contains("standard input is empty"));
    assert!(classify(b"\xfe\xed\xfa\xce and so on").code(1).err.contains("standard input: not an image"));
}

#[test]
fn patterns_and_empty_folders() {
    let model = model("timm_vit");
    let pattern = image("orientation").join("*.webp");
    assert_eq!(vit(arguments!["classify", "-m", &model, pattern, "--json"]).code(0).json_lines().len(), 8);
    let empty = tempfile::tempdir().unwrap();
    assert!(vit(arguments!["classify", "-m", &model, empty.path()]).code(1).err.contains("no images in this folder"));
    let nothing = empty.path().join("*.png");
    assert!(vit(arguments!["classify", "-m", &model, nothing]).code(1).err.contains("no file matches"));
}

#[test]
fn a_reader_that_stops_is_no_failure() {
    let mut command = command();
    command.args(arguments!["classify", "-m", model("timm_vit"), image("orientation"), "--json", "--batch", "1"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut errors = String::new();
    child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
    assert_eq!((child.wait().unwrap().code(), errors.as_str()), (Some(0), ""));
}

#[test]
fn a_model_that_cannot_be_used_is_explained() {
    let (empty, image) = (tempfile::tempdir().unwrap(), image("formats/rgb.png"));
    let unknown = empty.path().join("unknown");
    fs::create_dir(&unknown).unwrap();
    fs::write(unknown.join("config.json"), r#"{"architecture": "regnety_040"}"#).unwrap();
    fs::copy(model("timm_vit").join("model.safetensors"), unknown.join("model.safetensors")).unwrap();
    let other = empty.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::copy(model("timm_vit").join("config.json"), other.join("config.json")).unwrap();
    fs::copy(model("hf_vit").join("model.safetensors"), other.join("model.safetensors")).unwrap();
    for (model, expected) in [
        ("B/16".into(), "`B/16` is an architecture without weights; give a checkpoint folder"),
        ("nowhere".into(), "nowhere: no such file or folder; give a checkpoint folder"),
        (empty.path().to_path_buf(), "there are no weights here"),
        (unknown, "config.json: the architecture `regnety_040` is not known here"),
        (other, "--allow-unmatched"),
        (image.clone(), "rgb.png: not a weights file"),
    ] {
        let run = vit(arguments!["classify", "-m", &model, &image]).code(1);
        assert!(run.err.contains(expected) && run.out.is_empty(), "{}: {}", model.display(), run.err);
    }
}

#[test]
fn another_image_size_is_used_and_reported() {
    let run = |size: &str| {
        let image = image("preprocess/tiny.jpg");
        vit(arguments!["classify", "-m", model("timm_vit"), image, "--json", "--image-size", size])
    };
    let larger = run("48x64").code(0);
    assert!(larger.err.contains("[1, 17, 72] -> [1, 49, 72]"), "{}", larger.err);
    assert_eq!(larger.json_lines().len(), 1);
    let refused = run("7").code(1);
    assert!(refused.err.contains("an image of 7x7 pixels cannot be cut into patches of 8x8"), "{}", refused.err);
}

#[test]
fn an_image_over_the_limit_of_pixels_names_the_option_that_raises_it() {
    let run = |limit: &str| {
        let image = image("preprocess/tiny.jpg");
        vit(arguments!["classify", "-m", model("timm_vit"), image, "--max-pixels", limit])
    };
    let refused = run("3").code(1).err;
    let option = refused.split("--max-pixels ").nth(1).expect(&refused);
    run(option.split_whitespace().next().unwrap()).code(0);
}
