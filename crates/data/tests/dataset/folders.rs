//! Class folders: layouts, names, empty classes, and classes of a model.

use super::images::{expected, listed, names, png, write};
use std::fs;
use tempfile::tempdir;
use vit_data::dataset::{
    DatasetFormat, DatasetOptions, ReadOptions, Split, Validation, ValidationFrom, open, open_split,
};
use vit_data::{DatasetError, ImageError, Samples};

fn classes(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn classes_are_sorted_bytewise_and_files_naturally() {
    let folder = tempdir().unwrap();
    write(folder.path(), "class10/b.png", png(1));
    write(folder.path(), "class2/img10.png", png(2));
    write(folder.path(), "class2/img2.png", png(3));
    let options = DatasetOptions { validation: Validation::Nowhere, ..DatasetOptions::default() };
    let splits = open(folder.path(), &options).unwrap();
    assert_eq!(splits.report.format, DatasetFormat::Folders);
    assert_eq!(splits.train.classes(), ["class10", "class2"]);
    assert_eq!(listed(&*splits.train), expected(&[("class2", 3), ("class2", 2), ("class10", 1)]));
    assert!(splits.validation.is_none() && splits.test.is_none());
}

#[test]
fn names_of_all_kinds_nested_folders_and_hidden_files() {
    let folder = tempdir().unwrap();
    write(folder.path(), "großer Hund/mein Bild.PNG", png(1));
    write(folder.path(), "großer Hund/2024/März/ü.png", png(2));
    write(folder.path(), "猫/写真.png", png(3));
    write(folder.path(), "猫/.hidden.png", png(4));
    write(folder.path(), ".cache/x.png", png(5));
    write(folder.path(), "猫/notes.md", "not an image");
    write(folder.path(), "loose.png", png(6));
    let options = DatasetOptions { validation: Validation::Nowhere, ..DatasetOptions::default() };
    let splits = open(folder.path(), &options).unwrap();
    let found = expected(&[("großer Hund", 2), ("großer Hund", 1), ("猫", 3)]);
    assert_eq!(listed(&*splits.train), found);
    assert!(names(&*splits.train)[1].ends_with("mein Bild.PNG"));
    let skipped: Vec<_> = splits.report.skipped.iter().map(|skipped| (skipped.count, &*skipped.example)).collect();
    assert_eq!(skipped, [(1, "loose.png"), (1, "猫/notes.md")]);
}

#[test]
fn class_folders_that_are_numbers_are_the_indices_of_a_models_classes() {
    let folder = tempdir().unwrap();
    for class in 0..12 {
        write(folder.path(), &format!("{class}/x.png"), png(class));
    }
    let labels = |target: Option<&[String]>| {
        let opened = open_split(folder.path(), None, target, &ReadOptions::default()).unwrap();
        let samples = &opened.samples;
        let labels: Vec<(String, u32)> = (0..samples.len())
            .map(|at| (samples.name(at).rsplit('/').nth(1).unwrap().into(), samples.labels(at)[0]))
            .collect();
        (opened.numbered, labels)
    };
    let by_number: Vec<(String, u32)> = (0..12).map(|class| (class.to_string(), class)).collect();
    // Of a model with other names, and of one without: 10 comes after 9, not after 1.
    let named: Vec<String> = (0..1000).map(|class| format!("synset {class}")).collect();
    assert_eq!(labels(Some(&named)), (true, by_number.clone()));
    assert_eq!(labels(None), (true, by_number));
    // A model that was trained on these folders has them in the order of their names.
    let splits = open(folder.path(), &DatasetOptions { validation: Validation::Nowhere, ..DatasetOptions::default() });
    let trained = splits.unwrap().train.classes().to_vec();
    assert_eq!(trained[..4], ["0", "1", "10", "11"]);
    let (numbered, of_trained) = labels(Some(&trained));
    assert!(!numbered && of_trained.contains(&("10".into(), 2)), "{of_trained:?}");
    // Numbers beyond the model's classes, and a few years, are no indices.
    let few = classes(&["a", "b"]);
    assert!(open_split(folder.path(), None, Some(&few), &ReadOptions::default()).is_err());
    let years = tempdir().unwrap();
    write(years.path(), "2019/x.png", png(1));
    write(years.path(), "2020/x.png", png(2));
    assert_eq!(
        open_split(years.path(), None, None, &ReadOptions::default()).unwrap().samples.classes(),
        ["2019", "2020"]
    );
}

#[test]
fn an_empty_class_is_noted_and_kept_only_if_another_split_has_it() {
    let folder = tempdir().unwrap();
    for (name, value) in [("train/cat/1.png", 1), ("val/cat/2.png", 2), ("val/dog/3.png", 3)] {
        write(folder.path(), name, png(value));
    }
    for empty in ["train/dog", "train/emu", "val/emu"] {
        fs::create_dir_all(folder.path().join(empty)).unwrap();
    }
    let splits = open(folder.path(), &DatasetOptions::default()).unwrap();
    assert_eq!(splits.train.classes(), ["cat", "dog"]);
    assert_eq!(splits.report.empty, ["train/dog", "train/emu", "val/emu"]);
    assert_eq!(splits.report.validation, ValidationFrom::Split(Split::Validation));
    assert_eq!((splits.report.classes[1].train, splits.report.classes[1].validation), (0, 1));
    assert!(splits.report.to_string().contains("train/emu: a class folder without images"));
}

#[test]
fn every_name_of_a_split() {
    for (train, validation, test) in
        [("train", "val", "test"), ("Training", "validation", "testing"), ("train", "valid", "TEST")]
    {
        let folder = tempdir().unwrap();
        for (split, value) in [(train, 1), (validation, 2), (test, 3)] {
            write(folder.path(), &format!("{split}/a/1.png"), png(value));
        }
        let splits = open(folder.path(), &DatasetOptions::default()).unwrap();
        assert_eq!(listed(&*splits.train), expected(&[("a", 1)]));
        assert_eq!(listed(&**splits.validation.as_ref().unwrap()), expected(&[("a", 2)]));
        assert_eq!(listed(&**splits.test.as_ref().unwrap()), expected(&[("a", 3)]));
    }
}

#[test]
fn a_model_s_classes_are_found_by_name() {
    let folder = tempdir().unwrap();
    write(folder.path(), "test/cat/1.png", png(1));
    write(folder.path(), "test/dog/2.png", png(2));
    write(folder.path(), "train/emu/3.png", png(3));
    let read = ReadOptions::default();
    let model = classes(&["dog", "cow", "cat"]);
    let test = open_split(folder.path(), Some(Split::Test), Some(&model), &read).unwrap();
    assert_eq!((test.samples.labels(0), test.samples.labels(1)), (&[2][..], &[0][..]));
    assert_eq!(test.samples.classes(), model);

    let error = open_split(folder.path(), Some(Split::Train), Some(&model), &read).err().unwrap();
    assert!(matches!(&error, DatasetError::UnknownClass { class, known: 3, .. } if class == "emu"), "{error}");
    let error = open_split(folder.path(), Some(Split::Validation), None, &read).err().unwrap();
    assert!(error.to_string().ends_with("has no validation split; it has train, test"), "{error}");
}

#[test]
fn equal_lists_of_classes_need_no_search() {
    // ImageNet has two classes "crane", so names alone can be ambiguous.
    let folder = tempdir().unwrap();
    write(folder.path(), "m.csv", "path,label\na.png,1\nb.png,0\n");
    write(folder.path(), "classes.txt", "crane\ncrane\n");
    write(folder.path(), "a.png", png(1));
    write(folder.path(), "b.png", png(2));
    let (path, read) = (folder.path().join("m.csv"), ReadOptions::default());
    let same = open_split(&path, None, Some(&classes(&["crane", "crane"])), &read).unwrap();
    assert_eq!((same.samples.labels(0), same.samples.labels(1)), (&[1][..], &[0][..]));
    let other = open_split(&path, None, Some(&classes(&["crane", "crane", "swan"])), &read);
    assert!(matches!(other, Err(DatasetError::UnknownClass { .. })));
}

#[test]
fn without_a_split_everything_is_evaluated() {
    let folder = tempdir().unwrap();
    write(folder.path(), "cat/1.png", png(1));
    write(folder.path(), "dog/2.png", png(2));
    let all = open_split(folder.path(), None, None, &ReadOptions::default()).unwrap();
    assert_eq!(listed(&*all.samples), expected(&[("cat", 1), ("dog", 2)]));
    assert_eq!(all.split, None);
    let error = open_split(folder.path(), Some(Split::Test), None, &ReadOptions::default()).err().unwrap();
    assert!(error.to_string().ends_with("it is not divided into splits"), "{error}");
}

#[test]
fn a_broken_image_is_an_error_of_its_own() {
    let folder = tempdir().unwrap();
    write(folder.path(), "cat/broken.png", &png(1)[..40]);
    write(folder.path(), "cat/whole.png", png(2));
    let all = open_split(folder.path(), None, None, &ReadOptions::default()).unwrap();
    let error = all.samples.image(0).unwrap_err();
    assert!(matches!(&error, ImageError::File { .. }) && error.to_string().contains("broken.png"), "{error}");
    assert!(all.samples.image(1).is_ok());
}

#[test]
fn images_without_classes_and_nothing_at_all_are_refused() {
    let folder = tempdir().unwrap();
    let error = open(folder.path(), &DatasetOptions::default()).err().unwrap();
    assert!(matches!(error, DatasetError::Empty { .. }), "{error}");
    write(folder.path(), "1.png", png(1));
    let error = open(folder.path(), &DatasetOptions::default()).err().unwrap();
    assert!(error.to_string().contains("a folder for each class"), "{error}");
    let error = open(&folder.path().join("nowhere"), &DatasetOptions::default()).err().unwrap();
    assert!(error.to_string().contains("no such file or folder"), "{error}");

    let splits = tempdir().unwrap();
    write(splits.path(), "train/1.png", png(1));
    write(splits.path(), "test/2.png", png(1));
    let error = open(splits.path(), &DatasetOptions::default()).err().unwrap();
    assert!(error.to_string().contains("in no class folder: test/2.png"), "{error}");
}
