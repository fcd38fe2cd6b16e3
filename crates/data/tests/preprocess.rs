//! Decoding, resizing, cropping and normalising agree with recordings of torchvision and Pillow.

use serde_json::Value;
use std::path::{Path, PathBuf};
use vit_data::{ApplyPreprocess, CropMode, DecodeOptions, Image, Preprocess, PreprocessError, Region, open};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

fn folder() -> PathBuf {
    fixtures().join("preprocess")
}

fn json(path: PathBuf) -> Value {
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn floats(name: &str) -> Vec<f32> {
    std::fs::read(folder().join(name))
        .unwrap()
        .chunks_exact(4)
        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
        .collect()
}

/// The settings of the recording: shorter side 256, crop 224.
fn recorded(mean: [f32; 3], std: [f32; 3]) -> Preprocess {
    Preprocess { crop_pct: 0.875, mean: mean.to_vec(), std: std.to_vec(), ..Preprocess::default() }
}

fn differences(a: &Image, b: &Image) -> (f64, u8) {
    assert_eq!((a.width(), a.height()), (b.width(), b.height()));
    let each: Vec<u8> = std::iter::zip(a.pixels(), b.pixels()).map(|(a, b)| a.abs_diff(*b)).collect();
    let total: f64 = each.iter().map(|d| f64::from(*d)).sum();
    (total / each.len() as f64, each.into_iter().max().unwrap())
}

/// Rows and columns 104..120 of a 3 x 224 x 224 tensor.
fn window(tensor: &[f32]) -> Vec<f32> {
    let mut out = Vec::new();
    for channel in 0..3 {
        for y in 104..120 {
            let at = (channel * 224 + y) * 224;
            out.extend_from_slice(&tensor[at + 104..at + 120]);
        }
    }
    out
}

fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let worst = std::iter::zip(found, expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= 1e-6, "{what}: off by {worst}");
}

#[test]
fn every_recorded_photograph_agrees() {
    let config = json(folder().join("config.json"));
    let plain = DecodeOptions { apply_orientation: false, ..DecodeOptions::default() };
    let half = recorded([0.5; 3], [0.5; 3]);
    let imagenet = recorded([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
    let images = config["images"].as_array().unwrap();
    assert!(images.len() >= 9);
    for entry in images {
        let key = entry["key"].as_str().unwrap();
        let file = entry["file"].as_str().unwrap();
        let options = DecodeOptions { apply_orientation: entry["exif_applied"].as_bool().unwrap(), ..plain.clone() };
        let image = open(&folder().join(file), &options).unwrap();
        let size = &entry["decoded_size_wh"];
        assert_eq!(size[0], image.width(), "{key}");
        assert_eq!(size[1], image.height(), "{key}");
        // The mean of each channel, independent of how the expected images below are stored.
        for channel in 0..3 {
            let values = image.pixels().iter().skip(channel).step_by(3);
            let mean = values.map(|v| f64::from(*v)).sum::<f64>() / (image.width() * image.height()) as f64;
            let expected = entry["decoded_mean_rgb"][channel].as_f64().unwrap();
            let allowed = if file.ends_with("png") { 1e-4 } else { 0.5 };
            assert!((mean - expected).abs() < allowed, "{key}: {mean} {expected}");
        }

        let expected = open(&folder().join(format!("{key}.expected.png")), &plain).unwrap();
        let cropped = half.crop(&image).unwrap();
        let (mean, max) = differences(&cropped, &expected);
        println!("{key:14} mean {mean:.4} max {max}");
        if file.ends_with("png") {
            assert_eq!(max, 0, "{key}");
        } else {
            assert!(mean <= 0.5 && max <= 6, "{key}: mean {mean}, max {max}");
        }

        for (name, settings) in [("half", &half), ("imagenet", &imagenet)] {
            let recorded = floats(&format!("{key}.{name}.f32"));
            let mut tensor = vec![0.0; settings.output_len()];
            settings.normalise_into(&expected, &mut tensor).unwrap();
            assert_close(&window(&tensor), &recorded, &format!("{key} {name}"));
            if file.ends_with("png") {
                let tensor = settings.apply(&image).unwrap();
                assert_close(&window(&tensor), &recorded, &format!("{key} {name} whole"));
            }
        }
    }
}

/// Every crop mode, square and not, with and without padding, colour and grey.
#[test]
fn the_geometry_is_that_of_timm() {
    let cases = json(fixtures().join("crops/cases.json"));
    let expected = std::fs::read(fixtures().join("crops/expected.bin")).unwrap();
    let mut rest = &expected[..];
    for case in cases.as_array().unwrap() {
        let side = |name: &str| case[name].as_u64().unwrap() as usize;
        let source = fixtures().join("crops").join(case["source"].as_str().unwrap());
        let image = open(&source, &DecodeOptions::default()).unwrap();
        let mean = case["mean"].as_array().unwrap();
        let settings = Preprocess {
            image_size: [side("height"), side("width")],
            crop_pct: case["crop_pct"].as_f64().unwrap(),
            crop_mode: case["mode"].as_str().unwrap().parse().unwrap(),
            mean: mean.iter().map(|v| v.as_f64().unwrap() as f32).collect(),
            std: vec![0.5; mean.len()],
            ..Preprocess::default()
        };
        let (this, after) = rest.split_at(settings.output_len());
        rest = after;
        let cropped = settings.crop(&image).unwrap();
        let found: Vec<u8> = match settings.channels() {
            1 => cropped.pixels().iter().copied().step_by(3).collect(),
            _ => cropped.into_pixels(),
        };
        let wrong = std::iter::zip(&found, this).filter(|(a, b)| a != b).count();
        assert_eq!(wrong, 0, "{case}: {wrong} of {} bytes", this.len());
    }
    assert!(rest.is_empty());
}

#[test]
fn a_thread_of_pixels_costs_no_more_than_a_photograph() {
    // The whole resized image would have 248 x 24,800,000 pixels.
    for (width, height) in [(1, 100_000), (100_000, 1)] {
        let image = Image::from_rgb(width, height, vec![7; width * height * 3]).unwrap();
        for interpolation in vit_data::Filter::ALL {
            for crop_mode in vit_data::CropMode::ALL {
                let settings = Preprocess { interpolation, crop_mode, ..Preprocess::default() };
                assert_eq!(settings.apply(&image).unwrap().len(), 3 * 224 * 224);
            }
        }
    }
}

#[test]
fn impossible_settings_are_errors() {
    let image = Image::from_rgb(1, 1, vec![7; 3]).unwrap();
    let fails = |change: &dyn Fn(&mut Preprocess)| {
        let mut settings = Preprocess::default();
        change(&mut settings);
        let error = settings.apply(&image).unwrap_err();
        // As text, because NaN does not equal itself.
        let again = settings.crop(&image).unwrap_err();
        assert_eq!(again.to_string(), error.to_string());
        error
    };
    use PreprocessError as E;
    assert!(matches!(fails(&|p| p.image_size[0] = 0), E::ImageSize { .. }));
    assert!(matches!(fails(&|p| p.image_size[1] = usize::MAX), E::ImageSize { .. }));
    assert!(matches!(fails(&|p| p.crop_pct = 0.0), E::CropPct(_)));
    assert!(matches!(fails(&|p| p.crop_pct = f64::NAN), E::CropPct(_)));
    assert!(matches!(fails(&|p| p.mean.truncate(2)), E::Channels { mean: 2, std: 3 }));
    assert!(matches!(fails(&|p| p.mean.clear()), E::Channels { .. }));
    assert!(matches!(fails(&|p| p.std[1] = 0.0), E::Normalisation { channel: 1, .. }));
    let short = Preprocess::default().apply_into(&image, &mut [0.0; 5]);
    assert_eq!(short, Err(E::OutputLength { expected: 3 * 224 * 224, found: 5 }));
}

/// The position in the model's input of a white square in a black image.
fn square_in_input(preprocess: &Preprocess, (width, height): (usize, usize), at: (usize, usize)) -> (f64, f64) {
    const SIDE: usize = 24;
    let mut pixels = vec![0; width * height * 3];
    for y in at.1..at.1 + SIDE {
        pixels[(y * width + at.0) * 3..(y * width + at.0 + SIDE) * 3].fill(255);
    }
    let input = preprocess.crop(&Image::from_rgb(width, height, pixels).unwrap()).unwrap();
    let (mut sum, mut x, mut y) = (0.0, 0.0, 0.0);
    for (index, pixel) in input.pixels().chunks_exact(3).enumerate() {
        let weight = f64::from(pixel[0]);
        sum += weight;
        x += weight * ((index % input.width()) as f64 + 0.5);
        y += weight * ((index / input.width()) as f64 + 0.5);
    }
    (x / sum, y / sum)
}

#[test]
fn the_region_is_where_the_input_was_taken_from() {
    for crop_mode in CropMode::ALL {
        for (size, image_size) in [((640, 480), [224, 224]), ((300, 700), [224, 224]), ((500, 375), [160, 288])] {
            let preprocess = Preprocess {
                image_size,
                crop_pct: 0.9,
                crop_mode,
                mean: vec![0.0; 3],
                std: vec![1.0; 3],
                ..Preprocess::default()
            };
            let Region { x, y, width, height } = preprocess.region(size.0, size.1).unwrap();
            for at in [(size.0 / 2 - 30, size.1 / 2 + 10), (size.0 / 2 + 25, size.1 / 2 - 40)] {
                let (in_x, in_y) = square_in_input(&preprocess, size, at);
                let (back_x, back_y) =
                    (x + in_x * width / image_size[1] as f64, y + in_y * height / image_size[0] as f64);
                let (at_x, at_y) = (at.0 as f64 + 12.0, at.1 as f64 + 12.0);
                assert!(
                    (back_x - at_x).abs() < 0.25 && (back_y - at_y).abs() < 0.25,
                    "{crop_mode} {size:?} to {image_size:?}: {at_x}, {at_y} came back as {back_x}, {back_y}"
                );
            }
        }
    }
    let whole = Preprocess { crop_pct: 1.0, ..Preprocess::default() };
    assert_eq!(whole.region(32, 32).unwrap(), Region { x: 0.0, y: 0.0, width: 32.0, height: 32.0 });
    let border = Preprocess { crop_mode: CropMode::Border, ..whole };
    assert_eq!(border.region(224, 112).unwrap(), Region { x: 0.0, y: -56.0, width: 224.0, height: 224.0 });
}
