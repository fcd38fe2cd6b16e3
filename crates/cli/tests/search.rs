//! `vit search`: the index follows its folder, and what is found.

mod support;

use std::fs;
use std::path::Path;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

use serde_json::Value;
use support::{command, hostile, image, images, model, vit};

/// Indexes a folder and returns the report.
#[track_caller]
fn index(folder: &Path, out: &Path, more: &[&str]) -> Value {
    let arguments = arguments!["search", "index", folder, "-o", out, "--json"];
    vit(arguments.into_iter().chain(more.iter().map(Into::into))).code(0).json()
}

#[track_caller]
fn counts(report: &Value) -> [u64; 5] {
    ["images", "embedded", "known", "unchanged", "removed"].map(|key| report[key].as_u64().unwrap())
}

fn names(hits: &Value) -> Vec<String> {
    let name = |hit: &Value| Path::new(hit["file"].as_str().unwrap()).file_name().unwrap().to_str().unwrap().to_owned();
    hits.as_array().unwrap().iter().map(name).collect()
}

/// Photographs of several formats, and one of them twice.
fn photos(folder: &Path) {
    fs::create_dir_all(folder.join("more")).unwrap();
    for (from, to) in
        [("tiny.jpg", "a.jpg"), ("rgb.png", "more/b.png"), ("tiny.jpg", "more/again.jpg"), ("gray.jpg", "c.jpg")]
    {
        let from = image(&format!("preprocess/{from}"));
        fs::copy(from, folder.join(to)).unwrap();
    }
}

#[test]
fn an_image_finds_itself_and_its_like() {
    let folder = tempfile::tempdir().unwrap();
    let (photos_folder, out) = (folder.path().join("photos"), folder.path().join("index"));
    photos(&photos_folder);
    for dtype in ["f16", "int8"] {
        let out = folder.path().join(dtype);
        let report = index(&photos_folder, &out, &["--dtype", dtype]);
        assert_eq!(counts(&report), [4, 4, 0, 0, 0]);
        let query = photos_folder.join("a.jpg");
        let found = vit(arguments!["search", &out, "--image", &query, "--json", "--top", "3"]).code(0).json();
        assert_eq!(found["searched"], 4);
        assert_eq!(names(&found["hits"])[..2], ["a.jpg", "again.jpg"]);
        let scores: Vec<f64> = found["hits"].as_array().unwrap().iter().map(|h| h["score"].as_f64().unwrap()).collect();
        assert!((scores[0] - 1.0).abs() < 1e-3 && scores[0] == scores[1] && scores[2] < scores[1], "{scores:?}");
    }
    index(&photos_folder, &out, &["-m", model("timm_vit").to_str().unwrap()]);
    let page = folder.path().join("found.html");
    let table =
        vit(arguments!["search", &out, "--image", photos_folder.join("a.jpg"), "-k", "2", "--html", &page]).code(0);
    assert_eq!(table.out.lines().count(), 3, "{}", table.out);
    assert!(table.out.lines().nth(1).unwrap().ends_with("a.jpg"));
    let page = fs::read_to_string(page).unwrap();
    assert_eq!(page.matches("data:image/jpeg").count(), 3, "the query and two hits");
    assert!(!page.contains("http:") && !page.contains("https:"));

    let groups = vit(arguments!["search", &out, "--near-duplicates", "0.999999", "--json"]).code(0).json();
    assert_eq!(groups["found"], 1);
    assert_eq!(names(&groups["groups"][0])[..2], ["a.jpg", "again.jpg"]);
}

#[test]
fn words_are_looked_for_by_models_of_texts() {
    let folder = tempfile::tempdir().unwrap();
    let (photos_folder, out) = (folder.path().join("photos"), folder.path().join("index"));
    photos(&photos_folder);
    let clip = model("hf_clip");
    index(&photos_folder, &out, &["-m", clip.to_str().unwrap()]);
    let found = vit(arguments!["search", &out, "a photo of a dog", "--json"]).code(0).json();
    // The same vectors by `vit embed`, and the same scores.
    let vectors = folder.path().join("vectors.npy");
    let embed =
        arguments!["embed", "-m", &clip, &photos_folder, "--text", "a photo of a dog", "--normalise", "-o", &vectors];
    vit(embed).code(0);
    let bytes = fs::read(&vectors).unwrap();
    let names = fs::read_to_string(vectors.with_extension("files.txt")).unwrap();
    let names: Vec<&str> = names.lines().collect();
    let dim = (bytes.len() - 128) / 4 / names.len();
    let values: Vec<f32> = bytes[bytes.len() - 4 * dim * names.len()..]
        .chunks(4)
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect();
    let rows: Vec<&[f32]> = values.chunks(dim).collect();
    let text = rows[names.len() - 1];
    for hit in found["hits"].as_array().unwrap() {
        let file = hit["file"].as_str().unwrap();
        let row = names.iter().position(|name| Path::new(name).file_name() == Path::new(file).file_name()).unwrap();
        let cosine: f32 = rows[row].iter().zip(text).map(|(a, b)| a * b).sum();
        assert!((f64::from(cosine) - hit["score"].as_f64().unwrap()).abs() < 2e-3, "{file}");
    }
    assert_eq!(found["hits"].as_array().unwrap().len(), 4);
    let both = arguments!["search", &out, "a dog", "--image", photos_folder.join("a.jpg"), "--json"];
    assert_eq!(vit(both).code(0).json()["images"].as_array().unwrap().len(), 1);
}

#[test]
fn only_what_is_new_is_embedded() {
    let folder = tempfile::tempdir().unwrap();
    let (photos, out) = (folder.path().join("photos"), folder.path().join("index"));
    images(&photos, &[("red", 10), ("blue", 90)], 5);
    assert_eq!(counts(&index(&photos, &out, &[])), [10, 10, 0, 0, 0]);
    assert_eq!(counts(&index(&photos, &out, &[])), [10, 0, 0, 10, 0]);
    fs::remove_file(photos.join("red/0.bmp")).unwrap();
    fs::rename(photos.join("red/1.bmp"), photos.join("moved.bmp")).unwrap();
    let touched = fs::read(photos.join("red/2.bmp")).unwrap();
    fs::write(photos.join("red/2.bmp"), touched).unwrap();
    fs::copy(image("preprocess/rgb.png"), photos.join("blue/0.bmp")).unwrap();
    assert_eq!(counts(&index(&photos, &out, &[])), [9, 1, 2, 6, 2]);
    let found = vit(arguments!["search", &out, "--image", photos.join("blue/0.bmp"), "--json"]).code(0).json();
    let mut all = names(&found["hits"]);
    all.sort();
    assert_eq!(all.len(), 9);
    assert!(all.contains(&"moved.bmp".to_string()));
    // A folder that was moved, with its index, is the same.
    let moved = folder.path().join("elsewhere");
    fs::rename(&photos, &moved).unwrap();
    assert_eq!(counts(&index(&moved, &out, &[])), [9, 0, 0, 9, 0]);

    // Damaged images are skipped and counted; one that was fine before leaves.
    fs::copy(hostile("notes.jpg"), moved.join("notes.jpg")).unwrap();
    fs::copy(hostile("notes.jpg"), moved.join("blue/1.bmp")).unwrap();
    let run = vit(arguments!["search", "index", &moved, "-o", &out]).code(1);
    assert!(run.err.contains("notes.jpg") && run.err.contains("2 of 10 images could not be read"), "{}", run.err);
    assert!(run.err.contains("8 images (8 unchanged)"), "{}", run.err);
}

/// The names and vectors that an index exports.
fn exported(index: &Path, folder: &Path) -> (Vec<String>, Vec<u8>) {
    let out = folder.join("vectors.npy");
    vit(arguments!["search", "export", index, &out]).code(0);
    let names = fs::read_to_string(folder.join("vectors.files.txt")).unwrap();
    let bytes = fs::read(&out).unwrap();
    let rows = names.lines().count();
    let data = &bytes[bytes.len() - rows * 256 * 4..];
    let mut rows: Vec<_> = names.lines().map(String::from).zip(data.chunks(256 * 4)).collect();
    rows.sort();
    (rows.iter().map(|row| row.0.clone()).collect(), rows.iter().flat_map(|row| row.1.to_vec()).collect())
}

#[test]
fn killed_again_and_again_it_ends_as_if_undisturbed() {
    let folder = tempfile::tempdir().unwrap();
    let (photos, out) = (folder.path().join("photos"), folder.path().join("index"));
    let classes: Vec<(String, u8)> = (0..12u8).map(|class| (format!("class{class}"), 20 * class)).collect();
    let classes: Vec<(&str, u8)> = classes.iter().map(|(name, shade)| (name.as_str(), *shade)).collect();
    images(&photos, &classes, 25);
    let content = || fs::read(out.join("index.json")).unwrap_or_default();
    for attempt in 0..5 {
        let before = content();
        let arguments = arguments!["search", "index", &photos, "-o", &out, "--batch", "4", "--threads", "1"];
        let mut child = command().args(arguments).stderr(Stdio::null()).spawn().unwrap();
        // Shortly before, during or after a commit.
        while content() == before && child.try_wait().unwrap().is_none() {
            sleep(Duration::from_millis(5));
        }
        sleep(Duration::from_millis(90 * attempt));
        let _ = child.kill();
        child.wait().unwrap();
        vit(arguments!["search", "export", &out, folder.path().join("now.npy")]);
    }
    let report = index(&photos, &out, &["--batch", "4"]);
    assert_eq!(report["images"], 300);
    let undisturbed = folder.path().join("undisturbed");
    index(&photos, &undisturbed, &["--batch", "4"]);
    let (found, expected) = (exported(&out, folder.path()), exported(&undisturbed, folder.path()));
    assert_eq!(found.0.len(), 300);
    assert!(found == expected);
}

#[test]
fn what_cannot_be_done_is_said_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let (photos_folder, out, empty) =
        (folder.path().join("photos"), folder.path().join("index"), folder.path().join("empty"));
    photos(&photos_folder);
    fs::create_dir(&empty).unwrap();
    index(&photos_folder, &out, &[]);
    let tiny = image("preprocess/tiny.jpg");
    let one = |arguments: Vec<std::ffi::OsString>, expected: &str| {
        let run = vit(arguments).code(1);
        assert!(run.err.contains(expected) && run.err.lines().count() == 1, "{}", run.err);
    };
    one(
        arguments!["search", &photos_folder, "--image", &tiny].into(),
        "this is no search index; `vit search index FOLDER",
    );
    one(arguments!["search", folder.path().join("none"), "--near-duplicates"].into(), "there is no such folder");
    one(arguments!["search", "index", &empty, "-o", &out].into(), "no images in this folder");
    one(arguments!["search", "index", folder.path().join("none"), "-o", &out].into(), "cannot be indexed");
    one(arguments!["search", "index", &photos_folder, "-o", &photos_folder].into(), "holds other files");
    one(
        arguments!["search", "index", &photos_folder, "-o", &out, "--dtype", "int8"].into(),
        "--dtype f16, or another --out",
    );
    one(
        arguments!["search", "index", &photos_folder, "-o", &out, "-m", model("timm_vit")].into(),
        "give --model cifar10, or another --out",
    );
    one(arguments!["search", &out, "--image", &tiny, "-m", model("timm_vit")].into(), "leave --model out");
    one(arguments!["search", &out, "two dogs"].into(), "cifar10: this model has no text tower");
    one(arguments!["search", &out].into(), "say what to look for");
    one(arguments!["search", &out, "--image", hostile("notes.jpg")].into(), "notes.jpg");
    one(arguments!["search", "index", photos_folder.join("more"), "-o", &out].into(), "is of the files in");
    let bad = folder.path().join("bad");
    fs::create_dir(&bad).unwrap();
    fs::copy(hostile("notes.jpg"), bad.join("notes.jpg")).unwrap();
    let run = vit(arguments!["search", "index", &bad, "-o", folder.path().join("new")]).code(1);
    assert!(run.err.contains("no image could be read"), "{}", run.err);
    vit(arguments!["search", &out, "--near-duplicates", "1.5"]).code(2);
}
