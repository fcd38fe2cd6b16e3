//! Tables of paths and labels.

use super::images::{expected, listed, png, write};
use tempfile::{TempDir, tempdir};
use vit_data::dataset::{
    Dataset, DatasetFormat, DatasetOptions, LabelRequirement, ReadOptions, Validation, open, open_split,
};
use vit_data::{DatasetError, Samples};

fn folder() -> TempDir {
    let folder = tempdir().unwrap();
    for (name, value) in [("images/a b.png", 1), ("images/ü.png", 2), ("c.png", 3)] {
        write(folder.path(), name, png(value));
    }
    folder
}

fn all(folder: &TempDir, name: &str, text: &str) -> Result<std::sync::Arc<Dataset>, DatasetError> {
    write(folder.path(), name, text);
    open_split(&folder.path().join(name), None, None, &ReadOptions::default()).map(|opened| opened.samples)
}

#[test]
fn the_same_table_in_every_dress() {
    let folder = folder();
    let tables = [
        ("comma.csv", "path,label\nimages/a b.png,cat\n\"images/ü.png\",dog\nc.png,cat\n"),
        ("bom.csv", "\u{feff}id;Filename;Class\r\n1;images/a b.png;cat\r\n2;images/ü.png;dog\r\n3;c.png;cat\r\n"),
        ("bare.csv", "images/a b.png,cat\nimages/ü.png,dog\nc.png,cat\n"),
        ("tabs.tsv", "target\timage\ncat\timages/a b.png\ndog\timages/ü.png\ncat\tc.png\n"),
        (
            "lines.jsonl",
            "{\"file_name\": \"images/a b.png\", \"label\": \"cat\"}\n\n{\"file_name\": \"images/ü.png\", \"label\": \"dog\"}\n\
             {\"file_name\": \"c.png\", \"label\": \"cat\"}\n",
        ),
    ];
    for (name, text) in tables {
        let samples = all(&folder, name, text).unwrap();
        assert_eq!(listed(&*samples), expected(&[("cat", 1), ("dog", 2), ("cat", 3)]), "{name}");
        assert!(!samples.is_multi_label());
    }
}

#[test]
fn the_column_of_labels_may_be_missing_where_images_need_none() {
    let folder = folder();
    let optional = ReadOptions { labels: LabelRequirement::Optional, ..ReadOptions::default() };
    let tables = [
        ("one.csv", "path\nimages/a b.png\nimages/ü.png\nc.png\n"),
        ("split.csv", "split,image\ntrain,images/a b.png\ntrain,images/ü.png\ntrain,c.png\n"),
        ("bare.csv", "images/a b.png\nimages/ü.png\nc.png\n"),
        ("gaps.csv", "path,label\nimages/a b.png,\nimages/ü.png,-1\nc.png,\n"),
        ("lines.jsonl", "{\"path\": \"images/a b.png\"}\n{\"path\": \"images/ü.png\"}\n{\"path\": \"c.png\"}\n"),
    ];
    for (name, text) in tables {
        let required = all(&folder, name, text).unwrap_err().to_string();
        assert!(required.contains("label"), "{name}: {required}");
        let samples = open_split(&folder.path().join(name), None, None, &optional).unwrap().samples;
        assert_eq!((samples.len(), samples.classes().len()), (3, 0), "{name}");
        assert!((0..3).all(|index| samples.labels(index).is_empty() && samples.image(index).is_ok()), "{name}");
    }
    let error = |text: &str| {
        write(folder.path(), "wrong.csv", text);
        open_split(&folder.path().join("wrong.csv"), None, None, &optional).err().unwrap().to_string()
    };
    assert!(error("name,class\na,b\n").contains("a column for the path"), "{}", error("name,class\na,b\n"));
    // In a folder, such a table is a manifest by its name.
    write(folder.path(), "train.csv", "path\nc.png\n");
    let opened = open_split(folder.path(), None, None, &optional).unwrap();
    assert_eq!((opened.format, opened.samples.len()), (DatasetFormat::Manifest, 1));
}

#[test]
fn shares_of_classes_in_lines_and_in_a_table() {
    let folder = folder();
    let tables = [
        (
            "lines.jsonl",
            "{\"path\": \"c.png\", \"label\": {\"dog\": 0.6, \"cat\": 1.8, \"ant\": 0}}\n\
             {\"path\": \"images/ü.png\", \"label\": \"dog\"}\n",
        ),
        ("table.csv", "path,label\nc.png,\"{\"\"cat\"\": 3, \"\"dog\"\": 1, \"\"ant\"\": 0}\"\nimages/ü.png,dog\n"),
    ];
    for (name, text) in tables {
        let samples = all(&folder, name, text).unwrap();
        assert_eq!(samples.classes(), ["ant", "cat", "dog"], "{name}");
        assert!(!samples.is_multi_label());
        assert_eq!((samples.labels(0), samples.labels(1)), (&[1][..], &[2][..]), "{name}");
        assert_eq!(samples.shares(0), Some((&[1, 2, 0][..], &[0.75, 0.25, 0.0][..])), "{name}");
        assert_eq!(samples.shares(1), Some((&[2][..], &[1.0][..])), "{name}");
        assert_eq!(samples.class_counts(), [0, 1, 1]);
        assert_eq!(samples.file(0), Some(folder.path().join("c.png")));
    }
    for wrong in ["{\"cat\": -1, \"dog\": 3}", "{\"cat\": 0}", "{\"cat\": \"much\"}", "{}"] {
        let line = format!("{{\"path\": \"c.png\", \"label\": {wrong}}}\n");
        let error = all(&folder, "wrong.jsonl", &line).unwrap_err().to_string();
        assert!(error.contains("line 1") && error.contains("is no label"), "{error}");
    }
}

#[test]
fn numbers_are_indices_and_get_names_from_a_list() {
    let folder = folder();
    let text = "path,label\nimages/a b.png,2\nc.png,0\n";
    let samples = all(&folder, "numbers.csv", text).unwrap();
    assert_eq!(samples.classes(), ["0", "1", "2"]);
    assert_eq!((samples.labels(0), samples.labels(1)), (&[2][..], &[0][..]));

    let model: Vec<String> = ["x", "y", "z"].map(str::to_owned).to_vec();
    let path = folder.path().join("numbers.csv");
    let mapped = open_split(&path, None, Some(&model), &ReadOptions::default()).unwrap();
    assert_eq!((mapped.samples.labels(0), mapped.samples.classes()), (&[2][..], &model[..]));
    assert!(open_split(&path, None, Some(&model[..2]), &ReadOptions::default()).is_err());

    write(folder.path(), "classes.txt", "zero\none\ntwo\n");
    assert_eq!(listed(&*all(&folder, "numbers.csv", text).unwrap()), expected(&[("two", 1), ("zero", 3)]));
    let error = all(&folder, "numbers.csv", "path,label\nc.png,3\n").unwrap_err();
    assert!(error.to_string().contains("c.png: label 3 is outside of the 3 classes"), "{error}");
}

#[test]
fn huge_numbers_are_refused_and_odd_ones_are_names() {
    let folder = folder();
    let error = all(&folder, "huge.csv", "path,label\nc.png,4000000000\n").unwrap_err();
    assert!(matches!(error, DatasetError::Label { .. }), "{error}");
    let samples = all(&folder, "odd.csv", "path,label\nc.png,007\nimages/ü.png,1.5\n").unwrap();
    assert_eq!(samples.classes(), ["007", "1.5"]);
}

#[test]
fn several_labels() {
    let folder = folder();
    let csv = "path,label\nimages/a b.png,cat|dog\nimages/ü.png,\nc.png,dog\n";
    let json = "{\"path\": \"images/a b.png\", \"labels\": [\"dog\", \"cat\", \"dog\"]}\n\
                {\"path\": \"images/ü.png\", \"labels\": []}\n{\"path\": \"c.png\", \"labels\": [\"dog\"]}\n";
    let list = "path\tlabel\nimages/a b.png\t[\"cat\", \"dog\"]\nimages/ü.png\t[]\nc.png\t[\"dog\"]\n";
    for (name, text) in [("m.csv", csv), ("m.jsonl", json), ("m.tsv", list)] {
        let samples = all(&folder, name, text).unwrap();
        assert!(samples.is_multi_label(), "{name}");
        assert_eq!(samples.classes(), ["cat", "dog"], "{name}");
        let labels: Vec<&[u32]> = (0..3).map(|index| samples.labels(index)).collect();
        assert_eq!(labels, [&[0, 1][..], &[], &[1]], "{name}");
        assert_eq!(samples.class_counts(), [1, 2], "{name}");
    }
    let numbers = all(&folder, "n.jsonl", "{\"path\": \"c.png\", \"label\": [2, 0]}\n").unwrap();
    assert_eq!((numbers.labels(0), numbers.classes().len()), (&[0, 2][..], 3));
}

#[test]
fn splits_in_a_column_and_in_file_names() {
    let folder = folder();
    write(folder.path(), "set.csv", "path,label,split\nc.png,x,train\nimages/ü.png,x,val\nimages/a b.png,x,TEST\n");
    let splits = open(&folder.path().join("set.csv"), &DatasetOptions::default()).unwrap();
    assert_eq!(splits.report.format, DatasetFormat::Manifest);
    assert_eq!(listed(&*splits.train), expected(&[("x", 3)]));
    assert_eq!(listed(&**splits.validation.as_ref().unwrap()), expected(&[("x", 2)]));
    assert_eq!(listed(&**splits.test.as_ref().unwrap()), expected(&[("x", 1)]));

    write(folder.path(), "train.csv", "path,label\nc.png,x\n");
    write(folder.path(), "val.csv", "path,label\nimages/ü.png,x\n");
    let splits = open(folder.path(), &DatasetOptions::default()).unwrap();
    assert_eq!(listed(&*splits.train), expected(&[("x", 3)]));
    assert_eq!(listed(&**splits.validation.as_ref().unwrap()), expected(&[("x", 2)]));

    let error = all(&folder, "bad.csv", "path,label,split\nc.png,x,train\nc.png,x,holdout\n").unwrap_err();
    assert!(error.to_string().contains("line 3: the split \"holdout\""), "{error}");
}

#[test]
fn a_manifest_inside_each_split() {
    let folder = tempdir().unwrap();
    for (split, value) in [("train", 1), ("test", 2)] {
        write(folder.path(), &format!("{split}/1.png"), png(value));
        write(folder.path(), &format!("{split}/metadata.csv"), "file_name,label\n1.png,x\n");
    }
    let splits = open(folder.path(), &DatasetOptions::default()).unwrap();
    assert_eq!(listed(&*splits.train), expected(&[("x", 1)]));
    assert_eq!(listed(&**splits.test.as_ref().unwrap()), expected(&[("x", 2)]));
}

#[test]
fn other_tables_in_a_folder_of_classes_do_not_matter() {
    let folder = tempdir().unwrap();
    write(folder.path(), "cat/1.png", png(1));
    write(folder.path(), "predictions.csv", "path,label\ncat/1.png,dog\n");
    write(folder.path(), "train.csv", "ImageId,Box\n1,2\n");
    let options = DatasetOptions { validation: Validation::Nowhere, ..DatasetOptions::default() };
    let splits = open(folder.path(), &options).unwrap();
    assert_eq!((splits.report.format, splits.train.classes()), (DatasetFormat::Folders, &["cat".to_owned()][..]));
}

#[test]
fn what_is_wrong_is_said_with_its_line() {
    let folder = folder();
    let cases = [
        ("columns.csv", "foo,bar\n1,2\n", "the header is: foo, bar"),
        ("short.csv", "path,label\nc.png,x\nc.png\n", "line 3: has only 1 columns"),
        ("empty.csv", "path,label\n,x\n", "line 2: the path is empty"),
        ("json.jsonl", "{\"path\": \"c.png\", \"label\": \"x\"}\n{\"path\": \n", "line 2: "),
        ("nopath.jsonl", "{\"label\": \"x\"}\n", "line 1: a field for the path is needed"),
        ("object.jsonl", "{\"path\": \"c.png\", \"label\": {}}\n", "line 1: {} is no label"),
        ("missing.csv", "path,label\nnowhere/1.png,x\n", "none of the first 1 images exists"),
        ("nothing.csv", "path,label\n", "no labelled images"),
        ("unlabelled.csv", "path,label\nc.png,\nimages/ü.png,-1\n", "2 left out, without a label: c.png"),
    ];
    for (name, text, reason) in cases {
        let error = all(&folder, name, text).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains(name), "{error}");
    }
    write(folder.path(), "latin.csv", b"path,label\nc.png,\xfcber\n");
    let error = open_split(&folder.path().join("latin.csv"), None, None, &ReadOptions::default()).err().unwrap();
    assert!(error.to_string().contains("UTF-8") || error.to_string().contains("no known kind"), "{error}");
}
