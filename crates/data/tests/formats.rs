//! Every variety of every format, compared with Pillow's `convert("RGB")`.

use serde_json::Value;
use std::path::{Path, PathBuf};
use vit_data::{DecodeOptions, Image, open};

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(name)
}

fn largest_difference(found: &[u8], expected: &[u8]) -> u8 {
    assert_eq!(found.len(), expected.len());
    std::iter::zip(found, expected).map(|(a, b)| a.abs_diff(*b)).max().unwrap()
}

fn check(name: &str, allowed: u8) {
    let path = folder("formats").join(name);
    let image = open(&path, &DecodeOptions::default()).unwrap();
    assert_eq!((image.width(), image.height()), (37, 22), "{name}");
    let expected = std::fs::read(folder("formats").join(format!("{name}.rgb"))).unwrap();
    let worst = largest_difference(image.pixels(), &expected);
    println!("{name:30} max {worst}");
    assert!(worst <= allowed, "{name}: off by {worst}");
}

#[test]
fn every_variety_agrees_with_pillow() {
    let list: Value = serde_json::from_slice(&std::fs::read(folder("formats").join("list.json")).unwrap()).unwrap();
    for entry in list.as_array().unwrap() {
        // Decoders of lossy formats may differ by a few levels.
        let allowed = if entry["compare"] == "exact" { 0 } else { 6 };
        check(entry["file"].as_str().unwrap(), allowed);
    }
}

#[test]
fn sixteen_bit_grey_keeps_its_high_byte() {
    check("grey16.png", 0);
}

#[test]
fn jpeg_inside_tiff_is_refused_with_a_way_out() {
    let error = open(&folder("formats").join("jpeg.tiff"), &DecodeOptions::default()).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("JPEG is unsupported; convert it to PNG"), "{message}");
}

fn read(name: &str, apply_orientation: bool) -> Image {
    let options = DecodeOptions { apply_orientation, ..DecodeOptions::default() };
    open(&folder("orientation").join(name), &options).unwrap()
}

#[test]
fn all_eight_orientations_are_applied_in_every_format_that_has_them() {
    let upright = read("1.png", false);
    for number in 1..=8 {
        let expected = read(&format!("{number}.expected.png"), false);
        for extension in ["png", "webp", "tiff", "jpg"] {
            let name = format!("{number}.{extension}");
            let allowed = if extension == "jpg" { 6 } else { 0 };
            let turned = read(&name, true);
            assert_eq!(turned.width(), expected.width(), "{name}");
            let worst = largest_difference(turned.pixels(), expected.pixels());
            assert!(worst <= allowed, "{name}: off by {worst}");
            let stored = read(&name, false);
            let worst = largest_difference(stored.pixels(), upright.pixels());
            assert!(worst <= allowed, "{name} as stored: off by {worst}");
        }
    }
}
