//! Draws: the samples held out for validation, and those of a fraction.

use super::images::{names, png, write};
use std::collections::BTreeSet;
use std::path::Path;
use tempfile::{TempDir, tempdir};
use vit_data::dataset::{DatasetOptions, LabelRequirement, ReadOptions, Splits, Validation, ValidationFrom, open};
use vit_data::{DatasetError, Samples};

const SIZES: [(&str, usize); 4] = [("a", 100), ("b", 40), ("c", 2), ("d", 1)];

fn folder() -> TempDir {
    let folder = tempdir().unwrap();
    for (class, count) in SIZES {
        for number in 0..count {
            write(folder.path(), &format!("{class}/{number}.png"), png(1));
        }
    }
    folder
}

fn counts(samples: &dyn Samples) -> Vec<usize> {
    (0..SIZES.len() as u32).map(|c| (0..samples.len()).filter(|i| samples.labels(*i) == [c]).count()).collect()
}

/// The files relative to their folder.
fn files(root: &Path, samples: &dyn Samples) -> BTreeSet<String> {
    let root = root.display().to_string();
    names(samples).into_iter().map(|name| name.strip_prefix(&root).unwrap().replace('\\', "/")).collect()
}

fn held_out(splits: &Splits) -> &dyn Samples {
    &**splits.validation.as_ref().unwrap()
}

#[test]
fn every_class_gives_its_share() {
    let folder = folder();
    let splits = open(folder.path(), &DatasetOptions::default()).unwrap();
    assert_eq!(splits.report.validation, ValidationFrom::HeldOut { fraction: 0.1 });
    assert_eq!(counts(held_out(&splits)), [10, 4, 1, 0]);
    assert_eq!(counts(&*splits.train), [90, 36, 1, 1]);
    let (train, validation) = (files(folder.path(), &*splits.train), files(folder.path(), held_out(&splits)));
    assert!(train.is_disjoint(&validation));
    assert_eq!(train.len() + validation.len(), 143);
    assert_eq!((splits.report.samples.train, splits.report.samples.validation), (128, 15));
    assert_eq!((splits.report.classes[1].train, splits.report.classes[1].validation), (36, 4));
}

#[test]
fn captions_are_no_classes_in_the_draw() {
    let folder = folder();
    let read = ReadOptions { labels: LabelRequirement::Captions, ..ReadOptions::default() };
    let of_captions = DatasetOptions { read, ..DatasetOptions::default() };
    let splits = open(folder.path(), &of_captions).unwrap();
    assert_eq!((splits.train.len(), held_out(&splits).len()), (129, 14));
    assert!(splits.report.to_string().contains("4 captions"), "{}", splits.report);
    // Another dataset has its own captions.
    let other = tempdir().unwrap();
    for caption in ["one", "two"] {
        write(other.path(), &format!("{caption}/1.png"), png(1));
    }
    let validation = Validation::Path(other.path().into());
    let splits = open(folder.path(), &DatasetOptions { validation, ..of_captions }).unwrap();
    assert_eq!(held_out(&splits).classes(), ["one", "two"]);
    assert_eq!((splits.train.len(), splits.report.samples.validation), (143, 2));
}

#[test]
fn the_draw_depends_on_names_and_seed_alone() {
    let (folder, elsewhere) = (folder(), tempdir().unwrap());
    // The same dataset elsewhere, written in another order, with one more class.
    for (class, count) in SIZES.iter().rev() {
        for number in (0..*count).rev() {
            write(elsewhere.path(), &format!("{class}/{number}.png"), png(1));
        }
    }
    write(elsewhere.path(), "A/1.png", png(1));
    let options = DatasetOptions { seed: 7, fraction: 0.5, ..DatasetOptions::default() };
    let (one, other) = (open(folder.path(), &options).unwrap(), open(elsewhere.path(), &options).unwrap());
    assert_eq!(files(folder.path(), held_out(&one)), files(elsewhere.path(), held_out(&other)));
    let mut kept = files(elsewhere.path(), &*other.train);
    assert!(kept.remove("/A/1.png"));
    assert_eq!(files(folder.path(), &*one.train), kept);

    let reseeded = open(folder.path(), &DatasetOptions { seed: 8, ..options }).unwrap();
    assert_ne!(files(folder.path(), held_out(&one)), files(folder.path(), held_out(&reseeded)));
}

#[test]
fn the_draw_is_the_same_in_every_version() {
    let folder = folder();
    let splits = open(folder.path(), &DatasetOptions { seed: 1, ..DatasetOptions::default() }).unwrap();
    // Computed by an independent program from the definitions of FNV-1a and Philox.
    let of_b: Vec<String> =
        files(folder.path(), held_out(&splits)).into_iter().filter(|f| f.starts_with("/b/")).collect();
    assert_eq!(of_b, ["/b/12.png", "/b/32.png", "/b/36.png", "/b/37.png"]);
}

#[test]
fn a_list_in_another_order_gives_the_same_draw() {
    let folder = folder();
    let lines: Vec<String> =
        SIZES.iter().flat_map(|(class, count)| (0..*count).map(move |n| format!("{class}/{n}.png,{class}"))).collect();
    let backwards: Vec<String> = lines.iter().rev().cloned().collect();
    write(folder.path(), "one.csv", format!("path,label\n{}\n", lines.join("\n")));
    write(folder.path(), "two.csv", format!("path,label\n{}\n", backwards.join("\n")));
    let opened = |name: &str| open(&folder.path().join(name), &DatasetOptions::default()).unwrap();
    let (one, two) = (opened("one.csv"), opened("two.csv"));
    assert_eq!(files(folder.path(), held_out(&one)), files(folder.path(), held_out(&two)));
    assert_ne!(names(held_out(&one)), names(held_out(&two)));
    // Independent of the format, too.
    assert_eq!(
        files(folder.path(), held_out(&one)),
        files(folder.path(), held_out(&open(folder.path(), &DatasetOptions::default()).unwrap()))
    );
}

#[test]
fn smaller_fractions_lie_inside_larger_ones() {
    let folder = folder();
    let kept = |fraction| {
        let splits = open(folder.path(), &DatasetOptions { fraction, ..DatasetOptions::default() }).unwrap();
        assert_eq!(splits.report.unused, 128 - splits.train.len());
        (files(folder.path(), &*splits.train), counts(&*splits.train), files(folder.path(), held_out(&splits)))
    };
    let (small, medium, whole) = (kept(0.1), kept(0.3), kept(1.0));
    assert_eq!(small.1, [9, 4, 1, 1]);
    assert_eq!(medium.1, [27, 11, 1, 1]);
    assert!(small.0.is_subset(&medium.0) && medium.0.is_subset(&whole.0));
    assert_eq!((&small.2, &medium.2), (&whole.2, &whole.2));
}

#[test]
fn where_validation_comes_from() {
    let (folder, other) = (tempdir().unwrap(), tempdir().unwrap());
    for number in 0..4 {
        write(folder.path(), &format!("train/a/{number}.png"), png(1));
    }
    write(folder.path(), "train/b/1.png", png(1));
    write(folder.path(), "test/a/1.png", png(2));
    write(other.path(), "b/1.png", png(3));
    let opened = |validation: Validation| {
        let splits = open(folder.path(), &DatasetOptions { validation, ..DatasetOptions::default() }).unwrap();
        assert_eq!(splits.test.as_ref().unwrap().len(), 1);
        let value = splits.validation.as_ref().map(|v| (v.labels(0).to_vec(), v.image(0).unwrap().pixels()[0]));
        (splits.report.validation, value, splits.train.len())
    };
    use ValidationFrom as From;
    assert_eq!(opened(Validation::Automatic), (From::TestForLackOfValidation, Some((vec![0], 2)), 5));
    let path = other.path().to_owned();
    assert_eq!(opened(Validation::from_argument(&path)), (From::Path(path), Some((vec![1], 3)), 5));
    let test = Validation::from_argument(Path::new("test"));
    assert_eq!(opened(test).1, Some((vec![0], 2)));
    assert_eq!(opened(Validation::HeldOut), (From::HeldOut { fraction: 0.1 }, Some((vec![0], 1)), 4));
    assert_eq!(opened(Validation::Nowhere), (From::Nowhere, None, 5));
    let missing =
        DatasetOptions { validation: Validation::from_argument(Path::new("val")), ..DatasetOptions::default() };
    assert!(matches!(open(folder.path(), &missing), Err(DatasetError::NoSplit { .. })));
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let folder = folder();
    for (fraction, validation_fraction) in [(0.0, 0.1), (1.5, 0.1), (f64::NAN, 0.1), (1.0, 1.0), (1.0, -0.1)] {
        let options = DatasetOptions { fraction, validation_fraction, ..DatasetOptions::default() };
        assert!(matches!(open(folder.path(), &options), Err(DatasetError::Option { .. })));
    }
    let none = DatasetOptions { validation_fraction: 0.0, ..DatasetOptions::default() };
    assert!(open(folder.path(), &none).unwrap().validation.is_none());
}

#[test]
fn an_order_of_classes_is_taken_in_one_opening_where_it_has_the_same_classes() {
    let folder = folder();
    let with = |order: &[&str]| {
        let class_order = Some(order.iter().map(|name| name.to_string()).collect());
        open(folder.path(), &DatasetOptions { class_order, ..DatasetOptions::default() }).unwrap()
    };
    let own = open(folder.path(), &DatasetOptions::default()).unwrap();
    let reordered = with(&["d", "b", "a", "c"]);
    assert_eq!(reordered.train.classes(), ["d", "b", "a", "c"]);
    assert_eq!(counts(&*reordered.train), [1, 36, 90, 1]);
    assert_eq!(names(&*reordered.train), names(&*own.train));
    for other in [&["a", "b", "c"][..], &["a", "b", "c", "d", "e"], &["a", "b", "c", "x"]] {
        assert_eq!(with(other).train.classes(), ["a", "b", "c", "d"]);
    }
}
