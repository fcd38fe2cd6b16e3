//! `vit embed`: the content of the files.

mod support;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::{Field, RowAccessor};
use support::{hostile, image, model, vit};
use vit_models::weights::safetensors;

fn images() -> [PathBuf; 3] {
    [image("preprocess/tiny.jpg"), hostile("notes.jpg"), image("preprocess/rgb.png")]
}

/// Embeds two good images and a damaged one.
#[track_caller]
fn embed(out: &Path, more: &[&str]) {
    let [one, bad, two] = images();
    let arguments = arguments!["embed", "-m", model("timm_vit"), one, bad, two, "--out", out];
    let run = vit(arguments.into_iter().chain(more.iter().map(Into::into))).code(1);
    assert!(run.out.is_empty());
    assert!(run.err.contains("notes.jpg") && run.err.contains("1 of 3 images could not be read"), "{}", run.err);
}

/// Header and values of a .npy file.
fn npy(path: &Path) -> (String, Vec<f32>) {
    let bytes = fs::read(path).unwrap();
    assert_eq!(&bytes[..8], b"\x93NUMPY\x01\x00");
    let length = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    assert_eq!((10 + length) % 64, 0);
    let header = String::from_utf8(bytes[10..10 + length].to_vec()).unwrap();
    let values = bytes[10 + length..].chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    (header, values)
}

fn lengths(values: &[f32], dim: usize) -> Vec<f32> {
    values.chunks(dim).map(|v| v.iter().map(|x| x * x).sum::<f32>().sqrt()).collect()
}

#[test]
fn numpy_safetensors_and_parquet_hold_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    for name in ["x.npy", "x.safetensors", "x.parquet"] {
        embed(&file(name), &[]);
    }
    let [one, _, two] = images().map(|p| p.to_str().unwrap().to_owned());

    let (header, values) = npy(&file("x.npy"));
    assert!(header.starts_with("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 72,), }"), "{header}");
    assert!(header.ends_with('\n'));
    assert_eq!(values.len(), 2 * 72);
    assert_eq!(fs::read_to_string(file("x.files.txt")).unwrap(), format!("{one}\n{two}\n"));

    let read = safetensors::read(&file("x.safetensors")).unwrap();
    let tensor = &read.tensors["embeddings"];
    assert_eq!((tensor.shape.as_slice(), &tensor.data), (&[2, 72][..], &values));
    let names: Vec<String> = serde_json::from_str(&read.metadata["files"]).unwrap();
    assert_eq!(names, [one.clone(), two.clone()]);

    let reader = SerializedFileReader::new(File::open(file("x.parquet")).unwrap()).unwrap();
    let mut rows = Vec::new();
    for row in reader.get_row_iter(None).unwrap() {
        let row = row.unwrap();
        let list = row.get_list(1).unwrap();
        let vector = list.elements().iter().map(|f| if let Field::Float(v) = f { *v } else { panic!("{f}") });
        rows.push((row.get_string(0).unwrap().clone(), vector.collect::<Vec<f32>>()));
    }
    assert_eq!(rows, [(one, values[..72].to_vec()), (two, values[72..].to_vec())]);

    let left: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "nothing else is left behind: {left:?}");
}

#[test]
fn class_mean_and_patch_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let get = |name: &str, pool: &[&str]| {
        let out = folder.path().join(name);
        embed(&out, pool);
        npy(&out)
    };
    let (header, patches) = get("patches.npy", &["--pool", "patches"]);
    assert!(header.contains("(2, 16, 72,)"), "{header}");
    let (_, mean) = get("mean.npy", &["--pool", "mean"]);
    for (i, mean) in mean.iter().enumerate() {
        let (image, channel) = (i / 72, i % 72);
        let sum: f32 = (0..16).map(|patch| patches[(image * 16 + patch) * 72 + channel]).sum();
        assert!((sum / 16.0 - mean).abs() < 1e-5);
    }
    let (_, class) = get("class.npy", &["--pool", "class"]);
    let (_, features) = get("features.npy", &[]);
    assert_eq!(class, features, "the head of this model sees the class token");

    let (_, unit) = get("unit.npy", &["--normalise"]);
    assert!(lengths(&features, 72).iter().all(|l| (l - 1.0).abs() > 0.1));
    assert!(lengths(&unit, 72).iter().all(|l| (l - 1.0).abs() < 1e-5));
}

#[test]
fn json_says_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let ([one, bad, _], out) = (images(), folder.path().join("x.npy"));
    let written = vit(arguments!["embed", "-m", model("timm_vit"), one, &bad, "-o", &out, "--json"]).code(1).json();
    assert_eq!(written["shape"], serde_json::json!([1, 72]));
    assert_eq!(written["failed"][0]["file"].as_str(), bad.to_str());
}

#[test]
fn what_cannot_be_written_is_said_before_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let embed = |out: &Path, more: &[&str]| {
        let arguments = arguments!["embed", "-m", model("timm_vit"), image("preprocess/tiny.jpg"), "-o", out];
        vit(arguments.into_iter().chain(more.iter().map(Into::into))).code(1).err
    };
    let nowhere = folder.path().join("nowhere/x.npy");
    assert!(embed(&nowhere, &[]).contains("there is no folder"));
    let taken = folder.path().join("folder.npy");
    fs::create_dir(&taken).unwrap();
    assert!(embed(&taken, &[]).contains("this is a folder"));

    let out = folder.path().join("x.npy");
    let notes = vit(arguments!["embed", "-m", model("timm_vit"), hostile("notes.jpg"), "-o", &out]).code(1);
    assert!(notes.err.contains("no image could be read") && !out.exists(), "{}", notes.err);
    let tokenless = model("timm_vit_gap_notoken");
    let tiny = image("preprocess/tiny.jpg");
    let none = vit(arguments!["embed", "-m", tokenless, tiny, "-o", &out, "--pool", "class"]).code(1);
    assert!(none.err.contains("no class token") && !out.exists(), "{}", none.err);
}
