//! Augmentation gives the bytes of Pillow, timm and torchvision, and its random choices have the right shares.

use serde_json::Value;
use std::path::{Path, PathBuf};
use vit_data::augment::{Sampling, blur, enhance, geometry, hue, point};
use vit_data::{DecodeOptions, Image, open};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/augment")
}

/// torchvision's matrix for a shear by an angle or a translation, with its order of operations.
fn torchvision_matrix(shear: [f64; 2], translate: [f64; 2], centre: [f64; 2]) -> [f64; 6] {
    let [sx, sy] = shear.map(|factor| factor.atan().to_degrees().to_radians());
    let (a, c) = ((-sy).cos() / sy.cos(), (-sy).sin() / sy.cos());
    let b = -(-sy).cos() * sx.tan() / sy.cos() - 0f64.sin();
    let d = -(-sy).sin() * sx.tan() / sy.cos() + 0f64.cos();
    let mut matrix = [d, -b, 0.0, -c, a, 0.0];
    let [x, y] = [-centre[0] - translate[0], -centre[1] - translate[1]];
    matrix[2] += matrix[0] * x + matrix[1] * y;
    matrix[5] += matrix[3] * x + matrix[4] * y;
    matrix[2] += centre[0];
    matrix[5] += centre[1];
    matrix
}

fn sampling(entry: &Value) -> Sampling {
    match entry["resample"].as_str() {
        Some("nearest") => Sampling::Nearest,
        Some("bilinear") => Sampling::Bilinear,
        Some("bicubic") | None => Sampling::Bicubic,
        Some(other) => panic!("{other}"),
    }
}

fn apply(entry: &Value, image: &mut Image) {
    // Text where it must be exact: serde_json rounds numbers.
    let argument = entry["args"].get(0).map_or(0.0, |argument| match argument.as_str() {
        Some(text) => text.parse().unwrap(),
        None => argument.as_f64().unwrap(),
    });
    let fill: [u8; 3] = std::array::from_fn(|i| entry["fill"].get(i).map_or(0, |v| v.as_u64().unwrap() as u8));
    let sampling = sampling(entry);
    let (width, height) = (image.width() as f64, image.height() as f64);
    let torchvision = entry["library"] == "torchvision";
    let factor = if torchvision { 1.0 + argument } else { argument };
    match entry["op"].as_str().unwrap() {
        "Identity" => {}
        "AutoContrast" => point::auto_contrast(image),
        "Equalize" => point::equalize(image),
        "Invert" => point::invert(image),
        "Posterize" => point::posterize(image, argument as u32),
        "Solarize" => point::solarize(image, argument),
        "SolarizeAdd" => point::solarize_add(image, argument as u8),
        "Color" => enhance::colour(image, factor),
        "Contrast" => enhance::contrast(image, factor),
        "Brightness" => enhance::brightness(image, factor),
        "Sharpness" => enhance::sharpness(image, factor),
        "Hue" => hue::hue(image, argument),
        "GaussianBlur" => blur::gaussian_blur(image, argument),
        "Rotate" => geometry::rotate(image, argument, sampling, fill),
        "ShearX" if torchvision => {
            let matrix = torchvision_matrix([argument, 0.0], [0.0; 2], [0.0; 2]);
            geometry::transform(image, &matrix, sampling, fill);
        }
        "ShearY" if torchvision => {
            let matrix = torchvision_matrix([0.0, argument], [0.0; 2], [0.0; 2]);
            geometry::transform(image, &matrix, sampling, fill);
        }
        "TranslateX" if torchvision => {
            let matrix = torchvision_matrix([0.0; 2], [argument.trunc(), 0.0], [width * 0.5, height * 0.5]);
            geometry::transform(image, &matrix, sampling, fill);
        }
        "TranslateY" if torchvision => {
            let matrix = torchvision_matrix([0.0; 2], [0.0, argument.trunc()], [width * 0.5, height * 0.5]);
            geometry::transform(image, &matrix, sampling, fill);
        }
        "ShearX" => geometry::shear_x(image, argument, sampling, fill),
        "ShearY" => geometry::shear_y(image, argument, sampling, fill),
        "TranslateX" => geometry::translate(image, argument, 0.0, sampling, fill),
        "TranslateY" => geometry::translate(image, 0.0, argument, sampling, fill),
        "TranslateXRel" => geometry::translate(image, argument * width, 0.0, sampling, fill),
        "TranslateYRel" => geometry::translate(image, 0.0, argument * height, sampling, fill),
        "FlipX" => geometry::flip(image),
        "FlipY" => geometry::flip_vertically(image),
        "Grey" => enhance::to_grey(image),
        other => panic!("{other}"),
    }
}

fn assert_equal(found: &Image, expected: &[u8], case: &Value) {
    let wrong = std::iter::zip(found.pixels(), expected).filter(|(a, b)| a != b).count();
    assert_eq!(wrong, 0, "{case}: {wrong} of {} bytes differ", expected.len());
}

#[test]
fn every_operation_gives_the_bytes_of_its_library() {
    const SIDE: usize = 64;
    let pictures = open(&folder().join("pictures.png"), &DecodeOptions::default()).unwrap();
    let mut pictures = pictures.pixels().chunks_exact(SIDE * SIDE * 3);
    let mut input = || Image::from_rgb(SIDE, SIDE, pictures.next().unwrap().to_vec()).unwrap();
    let (plain, flat) = (input(), input());
    let cases: Value = serde_json::from_slice(&std::fs::read(folder().join("entries.json")).unwrap()).unwrap();
    let entries = cases["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 62);
    for entry in entries {
        let mut image = if entry["input"] == "input" { plain.clone() } else { flat.clone() };
        apply(entry, &mut image);
        assert_equal(&image, pictures.next().unwrap(), entry);
    }
    assert!(pictures.next().is_none());
}

/// Many operations on pictures of odd sizes, made from one table of bytes; see `tests/augment/make.py`.
#[test]
fn odd_sizes_give_the_bytes_of_pillow() {
    let cases: Value = serde_json::from_slice(&std::fs::read(folder().join("odd.json")).unwrap()).unwrap();
    let bytes = std::fs::read(folder().join("odd.bin")).unwrap();
    let mut rest = &bytes[..];
    let mut take = |count: usize| {
        let (this, after) = rest.split_at(count);
        rest = after;
        this.to_vec()
    };
    for picture in cases.as_array().unwrap() {
        let (width, height) =
            (picture["width"].as_u64().unwrap() as usize, picture["height"].as_u64().unwrap() as usize);
        let image = Image::from_rgb(width, height, take(width * height * 3)).unwrap();
        for entry in picture["entries"].as_array().unwrap() {
            let mut image = image.clone();
            apply(entry, &mut image);
            assert_equal(&image, &take(width * height * 3), entry);
        }
    }
    assert!(rest.is_empty());
}
