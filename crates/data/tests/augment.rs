//! Augmentation gives the bytes of Pillow, timm and torchvision, and its random choices have the right probabilities.

use serde_json::Value;
use std::path::{Path, PathBuf};
use vit_data::augment::{AutoAugment, ColourJitter, CropBox, Erasing, ErasingMode, Fill, SampleRandom, Sampling};
use vit_data::augment::{blur, enhance, geometry, hue, point, three_augment};
use vit_data::{ApplyPreprocess, Augmentation, Crop, DecodeOptions, Image, Preprocess, TrainTransform, open};

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
    let images = open(&folder().join("images.png"), &DecodeOptions::default()).unwrap();
    let mut images = images.pixels().chunks_exact(SIDE * SIDE * 3);
    let mut input = || Image::from_rgb(SIDE, SIDE, images.next().unwrap().to_vec()).unwrap();
    let (plain, flat) = (input(), input());
    let cases: Value = serde_json::from_slice(&std::fs::read(folder().join("entries.json")).unwrap()).unwrap();
    let entries = cases["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 62);
    for entry in entries {
        let mut image = if entry["input"] == "input" { plain.clone() } else { flat.clone() };
        apply(entry, &mut image);
        assert_equal(&image, images.next().unwrap(), entry);
    }
    assert!(images.next().is_none());
}

/// Many operations on images of odd sizes, made from one table of bytes; see `tests/augment/make.py`.
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
    for case in cases.as_array().unwrap() {
        let (width, height) = (case["width"].as_u64().unwrap() as usize, case["height"].as_u64().unwrap() as usize);
        let image = Image::from_rgb(width, height, take(width * height * 3)).unwrap();
        for entry in case["entries"].as_array().unwrap() {
            let mut image = image.clone();
            apply(entry, &mut image);
            assert_equal(&image, &take(width * height * 3), entry);
        }
    }
    assert!(rest.is_empty());
}

fn gradient(width: usize, height: usize) -> Image {
    let pixels = (0..width * height * 3).map(|i| (i * 37 + i / 5 * 11) as u8).collect();
    Image::from_rgb(width, height, pixels).unwrap()
}

fn transform(side: usize, augmentation: &Augmentation) -> TrainTransform {
    let preprocess = Preprocess { image_size: [side, side], ..Preprocess::default() };
    TrainTransform::new(&preprocess, augmentation).unwrap()
}

fn random(sample: u64) -> SampleRandom {
    SampleRandom::new(5, 1, sample, 0)
}

#[test]
fn by_default_training_sees_what_evaluation_sees() {
    let image = gradient(50, 37);
    for mean in [vec![0.485, 0.456, 0.406], vec![0.5]] {
        let std = mean.iter().map(|_| 0.25).collect();
        let preprocess = Preprocess { image_size: [32, 24], mean, std, ..Preprocess::default() };
        let transform = TrainTransform::new(&preprocess, &Augmentation::default()).unwrap();
        let mut values = vec![0.0; transform.output_len()];
        transform.apply(&image, &mut random(0), &mut values).unwrap();
        assert_eq!(values, preprocess.apply(&image).unwrap());
        assert!(transform.apply(&image, &mut random(0), &mut values[1..]).is_err());
    }
}

#[test]
fn a_padded_crop_is_a_shifted_image() {
    let image = gradient(16, 16);
    let augmentation = Augmentation { crop: Crop::Padded { pixels: 2, fill: Fill::Black }, ..Augmentation::default() };
    let transform = transform(16, &augmentation);
    let mut counts = std::collections::HashMap::new();
    for sample in 0..2500 {
        let found = transform.augmented(&image, &mut random(sample)).unwrap();
        let shift = (-2..=2i64).flat_map(|y| (-2..=2i64).map(move |x| (x, y))).find(|(x, y)| {
            (0..16i64).all(|row| {
                (0..16i64).all(|column| {
                    let pixel = &found.row(row as usize)[column as usize * 3..][..3];
                    let inside = (0..16).contains(&(row + y)) && (0..16).contains(&(column + x));
                    let expected: &[u8] =
                        if inside { &image.row((row + y) as usize)[(column + x) as usize * 3..][..3] } else { &[0; 3] };
                    pixel == expected
                })
            })
        });
        *counts.entry(shift.expect("a shifted image")).or_insert(0) += 1;
    }
    // 100 expected for each of the 25 shifts.
    assert_eq!(counts.len(), 25);
    assert!(counts.values().all(|count| (55..=150).contains(count)), "{counts:?}");
}

#[test]
fn a_padded_crop_of_another_size_is_resized_first() {
    let augmentation =
        Augmentation { crop: Crop::Padded { pixels: 1, fill: Fill::Reflect }, ..Augmentation::default() };
    for (width, height) in [(1, 1), (5, 40), (40, 5), (17, 16), (16, 16), (300, 299)] {
        let found = transform(16, &augmentation).augmented(&gradient(width, height), &mut random(1)).unwrap();
        assert_eq!((found.width(), found.height()), (16, 16));
    }
}

#[test]
fn random_regions_have_the_area_and_proportion_asked_for() {
    let (scale, ratio) = ([0.2, 0.9], [0.5, 2.0]);
    let mut areas = Vec::new();
    for sample in 0..3000 {
        let region = CropBox::random(400, 300, scale, ratio, &mut random(sample));
        assert!(region.left + region.width <= 400 && region.top + region.height <= 300);
        let area = (region.width * region.height) as f64 / (400.0 * 300.0);
        let proportion = region.width as f64 / region.height as f64;
        assert!((0.19..0.91).contains(&area) && (0.49..2.03).contains(&proportion), "{region:?}");
        areas.push(area);
    }
    let mean = areas.iter().sum::<f64>() / 3000.0;
    // Below the middle of the range, because a large rectangle of extreme aspect ratio does not fit.
    assert!((0.45..0.55).contains(&mean), "{mean}");
    // Nothing fits: the centre with the nearest aspect ratio.
    let region = CropBox::random(1000, 10, [1.0, 1.0], [0.75, 1.25], &mut random(0));
    assert_eq!(region, CropBox { left: 494, top: 0, width: 12, height: 10 });
    let region = CropBox::random(10, 1000, [1.0, 1.0], [0.75, 1.25], &mut random(0));
    assert_eq!(region, CropBox { left: 0, top: 493, width: 10, height: 13 });
    for sample in 0..100 {
        assert_eq!(CropBox::random(1, 1, [0.08, 1.0], ratio, &mut random(sample)).width, 1);
    }
}

#[test]
fn flips_have_their_share() {
    let image = gradient(8, 8);
    let augmentation = Augmentation { flip: 0.3, vertical_flip: 0.6, ..Augmentation::default() };
    let transform =
        TrainTransform::new(&Preprocess { image_size: [8, 8], crop_pct: 1.0, ..Preprocess::default() }, &augmentation)
            .unwrap();
    let variant = |x: bool, y: bool| {
        let mut image = image.clone();
        if x {
            geometry::flip(&mut image);
        }
        if y {
            geometry::flip_vertically(&mut image);
        }
        image
    };
    let variants = [(false, false), (true, false), (false, true), (true, true)].map(|(x, y)| variant(x, y));
    let mut counts = [0i32; 4];
    for sample in 0..4000 {
        let found = transform.augmented(&image, &mut random(sample)).unwrap();
        counts[variants.iter().position(|v| *v == found).unwrap()] += 1;
    }
    for (count, expected) in counts.iter().zip([1120, 480, 1680, 720]) {
        assert!((count - expected).abs() < 160, "{counts:?}");
    }
}

/// What DINO adds to the crops: each operation has its share, and they follow one another in the order of its code.
#[test]
fn grey_blur_and_solarizing_have_their_shares() {
    let image = gradient(8, 8);
    let preprocess = Preprocess { image_size: [8, 8], crop_pct: 1.0, ..Preprocess::default() };
    let count = |augmentation: Augmentation, matches: &dyn Fn(&Image) -> bool| {
        let transform = TrainTransform::new(&preprocess, &augmentation).unwrap();
        (0..2000).filter(|sample| matches(&transform.augmented(&image, &mut random(*sample)).unwrap())).count()
    };
    let close = |found: usize, share: f64| assert!((found as f64 - 2000.0 * share).abs() < 110.0, "{found} {share}");
    let plain = || Augmentation::default();
    let changed = |found: &Image| *found != image;

    let mut grey = image.clone();
    enhance::to_grey(&mut grey);
    close(count(Augmentation { grey: 0.2, ..plain() }, &|found| *found == grey), 0.2);
    let mut solarized = image.clone();
    point::solarize(&mut solarized, 128.0);
    close(count(Augmentation { solarize: 0.3, ..plain() }, &|found| *found == solarized), 0.3);
    // A small deviation changes no byte.
    let softened = count(Augmentation { blur: 1.0, ..plain() }, &changed);
    assert!(softened > 1700, "{softened}");
    let half = count(Augmentation { blur: 0.5, ..plain() }, &changed);
    close(half, 0.5 * softened as f64 / 2000.0);
    let jitter = ColourJitter { brightness: 0.4, contrast: 0.4, saturation: 0.2, hue: 0.1 };
    let jittered = Augmentation { colour_jitter: jitter, colour_jitter_probability: 0.8, ..plain() };
    close(count(jittered, &changed), 0.8);
    let mut both = grey;
    point::solarize(&mut both, 128.0);
    assert_eq!(count(Augmentation { grey: 1.0, solarize: 1.0, ..plain() }, &|found| *found == both), 2000);

    for wrong in [
        Augmentation { grey: 1.5, ..plain() },
        Augmentation { blur: -0.1, ..plain() },
        Augmentation { solarize: f64::NAN, ..plain() },
        Augmentation { colour_jitter_probability: 2.0, ..plain() },
    ] {
        let error = TrainTransform::new(&preprocess, &wrong).unwrap_err().to_string();
        assert!(error.contains("must be a probability from 0 to 1"), "{error}");
    }
}

#[test]
fn erasing_overwrites_what_it_should() {
    let erased = |erasing: Erasing, sample: u64| {
        let mut values = vec![7.0f32; 3 * 40 * 40];
        erasing.apply(&mut values, 40, 40, &mut random(sample));
        values
    };
    let always = Erasing { probability: 1.0, ..Erasing::default() };
    let mut shares = Vec::new();
    for sample in 0..500 {
        let values = erased(Erasing { mode: ErasingMode::Const, ..always }, sample);
        let erased_values = values.iter().filter(|v| **v == 0.0).count();
        assert_eq!(erased_values + values.iter().filter(|v| **v == 7.0).count(), values.len());
        shares.push(erased_values as f64 / values.len() as f64);
        let values = erased(Erasing { mode: ErasingMode::Rand, ..always }, sample);
        let mut colours: Vec<u32> = values.iter().filter(|v| **v != 7.0).map(|v| v.to_bits()).collect();
        colours.dedup();
        colours.sort_unstable();
        colours.dedup();
        assert_eq!(colours.len(), 3);
    }
    assert!(shares.iter().all(|share| (0.015..0.36).contains(share)));
    let mean = shares.iter().sum::<f64>() / 500.0;
    assert!((0.15..0.2).contains(&mean), "{mean}");
    let noise: Vec<f32> = (0..50).flat_map(|sample| erased(always, sample)).filter(|v| *v != 7.0).collect();
    let mean = noise.iter().sum::<f32>() / noise.len() as f32;
    let variance = noise.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>() / noise.len() as f32;
    assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    let quarter = Erasing { probability: 0.25, ..always };
    let touched = (0..2000).filter(|sample| erased(quarter, *sample).iter().any(|v| *v != 7.0)).count();
    assert!((430..570).contains(&touched), "{touched}");
    let several = Erasing { count: 3, mode: ErasingMode::Const, ..always };
    assert!(
        (0..200).all(|sample| erased(several, sample).iter().filter(|v| **v == 0.0).count() <= 3 * 40 * 40 * 36 / 100)
    );
}

#[test]
fn policies_are_understood_or_refused_with_what_is_known() {
    for policy in [
        "rand",
        "rand-m9-mstd0.5-inc1",
        "rand-m9-n3-mstd0.5",
        "rand-mstd101-tweights",
        "rand-m15-mmax20-p0.7-n1",
        "rand-w0-n2",
        "rand-t3a",
        "rand-t3aw-n3",
        "original",
        "originalr-mstd0.5",
        "v0",
        "v0r-mstd1.0",
        "3a",
    ] {
        let policy = AutoAugment::parse(policy).unwrap_or_else(|error| panic!("{error}"));
        for sample in 0..60 {
            let mut image = gradient(9, 7);
            policy.apply(&mut image, Sampling::Bicubic, [1, 2, 3], &mut random(sample));
            assert_eq!((image.width(), image.height()), (9, 7));
        }
    }
    for (policy, expected) in [
        ("augmix-m3", "it starts with rand"),
        ("", "it starts with rand"),
        ("rand-m9-x3", "unknown part \"x3\" in the augmentation policy \"rand-m9-x3\"; known are m (magnitude)"),
        ("rand-m9-", "unknown part \"\""),
        ("rand-mstdinf", "unknown part \"mstdinf\""),
        ("rand-m9.5", "\"m9.5\" in the augmentation policy \"rand-m9.5\" needs a whole number"),
        ("rand-p1.5", "a probability"),
        ("rand-inc2", "0 or 1"),
        ("rand-m9-m8", "says m twice"),
        ("rand-tfoo", "weights, 3a or 3aw"),
        ("rand-w1", "0, the only"),
        ("rand-w0-n14", "no more than"),
        ("original-m5", "known are mstd"),
    ] {
        let message = AutoAugment::parse(policy).unwrap_err().to_string();
        assert!(message.contains(expected), "{policy}: {message}");
    }
}

#[test]
fn rand_augment_changes_the_expected_share() {
    // One operation of 15, applied half of the time. A flat image hides most of them, so the share of changed images is
    // known: inverting, both kinds of solarizing, posterizing, brightness, and the geometric operations.
    let policy = AutoAugment::parse("rand-m10-n1-p0.5").unwrap();
    let changed = |image: &Image| {
        let different = |sample: &u64| {
            let mut found = image.clone();
            policy.apply(&mut found, Sampling::Nearest, [90; 3], &mut random(*sample));
            found != *image
        };
        (0..3000).filter(different).count() as f64 / 3000.0
    };
    // At level 10 these of the 15 change it: invert, posterize to 4 bits, add 110, brightness 1.9, and rotate, shear
    // and translate with another fill; not auto contrast, equalize, solarize at 256, nor colour, contrast and sharpness
    // of a flat image.
    let share = changed(&Image::from_rgb(32, 32, vec![100; 32 * 32 * 3]).unwrap());
    assert!((share - 0.5 * 9.0 / 15.0).abs() < 0.03, "{share}");
}

#[test]
fn three_augment_takes_each_of_three() {
    let image = gradient(12, 12);
    let mut solarized = image.clone();
    point::solarize(&mut solarized, 128.0);
    let mut grey = image.clone();
    enhance::to_grey(&mut grey);
    assert_eq!(grey, image.to_grey());
    let mut counts = [0; 3];
    for sample in 0..1500 {
        let mut found = image.clone();
        three_augment(&mut found, &mut random(sample));
        counts[[&grey, &solarized].iter().position(|known| **known == found).unwrap_or(2)] += 1;
    }
    assert!(counts.iter().all(|count| (420..580).contains(count)), "{counts:?}");
}

#[test]
fn no_bits_are_black() {
    let mut image = gradient(5, 5);
    point::posterize(&mut image, 0);
    assert!(image.pixels().iter().all(|byte| *byte == 0));
}

#[test]
fn colour_jitter_stays_in_its_limits() {
    let image = Image::from_rgb(4, 4, vec![100; 48]).unwrap();
    let jitter = ColourJitter { brightness: 0.4, ..ColourJitter::default() };
    let levels: Vec<u8> = (0..500)
        .map(|sample| {
            let mut found = image.clone();
            jitter.apply(&mut found, &mut random(sample));
            found.pixels()[0]
        })
        .collect();
    assert!(levels.iter().all(|level| (60..=140).contains(level)));
    assert!(levels.iter().any(|level| *level < 65) && levels.iter().any(|level| *level > 135));
    let mut found = gradient(9, 9);
    ColourJitter::default().apply(&mut found, &mut random(0));
    assert_eq!(found, gradient(9, 9));
    ColourJitter { hue: 0.5, ..ColourJitter::uniform(1.5) }.apply(&mut found, &mut random(0));
    assert_ne!(found, gradient(9, 9));
}

#[test]
fn settings_travel_as_text_and_unknown_ones_are_refused() {
    let augmentation = Augmentation {
        crop: Crop::usual(),
        flip: 0.5,
        auto_augment: Some("rand-m9-mstd0.5-inc1".to_owned()),
        erasing: Erasing { probability: 0.25, ..Erasing::default() },
        ..Augmentation::default()
    };
    let text = serde_json::to_string(&augmentation).unwrap();
    assert_eq!(serde_json::from_str::<Augmentation>(&text).unwrap(), augmentation);
    let short = r#"{"crop": {"padded": {"pixels": 4}}, "flip": 0.5}"#;
    let crop = Crop::Padded { pixels: 4, fill: Fill::Black };
    let expected = Augmentation { crop, flip: 0.5, ..Augmentation::default() };
    assert_eq!(serde_json::from_str::<Augmentation>(short).unwrap(), expected);
    assert!(serde_json::from_str::<Augmentation>(r#"{"flipp": 0.5}"#).is_err());
    assert!(serde_json::from_str::<Augmentation>(r#"{"crop": {"padded": {"pixels": 4, "colour": 1}}}"#).is_err());
    assert!(serde_json::from_str::<Augmentation>(r#"{"erasing": {"chance": 0.5}}"#).is_err());
    for (wrong, expected) in [
        (Augmentation { flip: 1.5, ..Augmentation::default() }, "flip is 1.5"),
        (Augmentation { repeated: 0, ..Augmentation::default() }, "repeated is 0"),
        (
            Augmentation { crop: Crop::Resized { scale: [0.5, 0.2], ratio: [1.0, 1.0] }, ..Augmentation::default() },
            "crop.scale is 0.5 to 0.2",
        ),
        (
            Augmentation {
                colour_jitter: ColourJitter { hue: 0.7, ..ColourJitter::default() },
                ..Augmentation::default()
            },
            "colour_jitter.hue is 0.7",
        ),
        (Augmentation { auto_augment: Some("rnd".to_owned()), ..Augmentation::default() }, "policy \"rnd\""),
    ] {
        let message = TrainTransform::new(&Preprocess::default(), &wrong).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}
