//! Resizing gives Pillow's bytes and has the properties of a resampling.

use proptest::prelude::*;
use serde_json::Value;
use std::path::{Path, PathBuf};
use vit_data::{DecodeOptions, Filter, Image, open, resize, resize_box};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/resize")
}

#[test]
fn every_filter_gives_the_bytes_of_pillow() {
    let source = open(&folder().join("source.png"), &DecodeOptions::default()).unwrap();
    let cases: Value = serde_json::from_slice(&std::fs::read(folder().join("cases.json")).unwrap()).unwrap();
    let expected = std::fs::read(folder().join("expected.rgb")).unwrap();
    let mut rest = &expected[..];
    for case in cases.as_array().unwrap() {
        let filter: Filter = case["filter"].as_str().unwrap().parse().unwrap();
        let width = case["width"].as_u64().unwrap() as usize;
        let height = case["height"].as_u64().unwrap() as usize;
        let found = match case["box"].as_array() {
            None => resize(&source, width, height, filter),
            Some(edges) => {
                let edge = |i: usize| edges[i].as_f64().unwrap();
                let part = (edge(0), edge(1), edge(2), edge(3));
                resize_box(&source, part, width, height, filter).unwrap()
            }
        };
        let (this, after) = rest.split_at(width * height * 3);
        rest = after;
        let wrong = std::iter::zip(found.pixels(), this).filter(|(a, b)| a != b).count();
        assert_eq!(wrong, 0, "{case}: {wrong} of {} bytes differ", this.len());
    }
    assert!(rest.is_empty());
}

#[test]
fn a_box_outside_of_the_image_is_an_error() {
    let image = Image::from_rgb(4, 3, vec![9; 36]).unwrap();
    for part in [
        (-1.0, 0.0, 2.0, 2.0),
        (0.0, 0.0, 4.5, 2.0),
        (0.0, 0.0, 2.0, 3.5),
        (2.0, 0.0, 2.0, 2.0),
        (3.0, 0.0, 2.0, 2.0),
        (f64::NAN, 0.0, 2.0, 2.0),
        (0.0, 0.0, f64::INFINITY, 2.0),
    ] {
        let message = resize_box(&image, part, 2, 2, Filter::Bicubic).unwrap_err().to_string();
        assert!(message.contains("4 x 3"), "{message}");
    }
}

#[test]
fn a_size_of_zero_is_taken_as_one() {
    let image = Image::from_rgb(4, 3, vec![9; 36]).unwrap();
    for filter in Filter::ALL {
        let small = resize(&image, 0, 0, filter);
        assert_eq!((small.width(), small.height()), (1, 1));
    }
}

/// The definition of one pass in floating point; `value` reads the inputs of a row or column.
fn reference(input: usize, output: usize, at: usize, filter: Filter, value: impl Fn(usize) -> f64) -> f64 {
    let sinc = |x: f64| match x * std::f64::consts::PI {
        0.0 => 1.0,
        x => x.sin() / x,
    };
    let weight = |x: f64| {
        let d = x.abs();
        match filter {
            Filter::Bilinear => (1.0 - d).max(0.0),
            Filter::Hamming if d < 1.0 => sinc(d) * (0.54 + 0.46 * (std::f64::consts::PI * d).cos()),
            Filter::Bicubic if d < 1.0 => 1.5 * d * d * d - 2.5 * d * d + 1.0,
            Filter::Bicubic if d < 2.0 => -0.5 * d * d * d + 2.5 * d * d - 4.0 * d + 2.0,
            Filter::Lanczos if d < 3.0 => sinc(d) * sinc(d / 3.0),
            _ => 0.0,
        }
    };
    let scale = input as f64 / output as f64;
    let centre = (at as f64 + 0.5) * scale;
    let (mut sum, mut total) = (0.0, 0.0);
    for x in 0..input {
        let w = weight((x as f64 + 0.5 - centre) / scale.max(1.0));
        sum += w * value(x);
        total += w;
    }
    (sum / total).clamp(0.0, 255.0)
}

fn any_filter() -> impl Strategy<Value = Filter> {
    prop::sample::select(Filter::ALL.to_vec())
}

fn any_image() -> impl Strategy<Value = Image> {
    (1usize..20, 1usize..20).prop_flat_map(|(width, height)| {
        prop::collection::vec(any::<u8>(), width * height * 3)
            .prop_map(move |pixels| Image::from_rgb(width, height, pixels).unwrap())
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn one_colour_stays_one_colour(
        colour in any::<[u8; 3]>(),
        (width, height) in (1usize..40, 1usize..40),
        (new_width, new_height) in (1usize..60, 1usize..60),
        filter in any_filter(),
    ) {
        let image = Image::from_rgb(width, height, colour.repeat(width * height)).unwrap();
        let resized = resize(&image, new_width, new_height, filter);
        prop_assert_eq!(resized.pixels(), &colour.repeat(new_width * new_height)[..]);
    }

    #[test]
    fn the_same_size_is_the_same_image(image in any_image(), filter in any_filter()) {
        prop_assert_eq!(&resize(&image, image.width(), image.height(), filter), &image);
    }

    #[test]
    fn a_box_around_everything_changes_nothing(
        image in any_image(),
        (width, height) in (1usize..30, 1usize..30),
        filter in any_filter(),
    ) {
        let all = (0.0, 0.0, image.width() as f64, image.height() as f64);
        prop_assert_eq!(
            resize_box(&image, all, width, height, filter).unwrap(),
            resize(&image, width, height, filter)
        );
    }

    // One direction at a time: with both, a tie in the first pass may round either way, and the second pass may amplify
    // it to two levels. Nearest and box are excluded: at their edges the last bit of a position decides about whole
    // pixels. The test against Pillow's bytes covers them.
    #[test]
    fn fixed_point_is_within_one_level_of_the_definition(
        image in any_image(),
        length in 1usize..40,
        across in any::<bool>(),
        filter in prop::sample::select(Filter::ALL[2..].to_vec()),
    ) {
        let (width, height) = if across {
            (length, image.height())
        } else {
            (image.width(), length)
        };
        let found = resize(&image, width, height, filter);
        for (at, byte) in found.pixels().iter().enumerate() {
            let (x, y, c) = (at / 3 % width, at / 3 / width, at % 3);
            let stored = |x: usize, y: usize| f64::from(image.row(y)[x * 3 + c]);
            let expected = if across {
                reference(image.width(), width, x, filter, |x| stored(x, y))
            } else {
                reference(image.height(), height, y, filter, |y| stored(x, y))
            };
            prop_assert!((f64::from(*byte) - expected).abs() <= 1.0, "{byte} for {expected}");
        }
    }
}
