//! Mixing gives timm's values; its choices are a function of seed and step and have the right probabilities.

use serde_json::Value;
use std::path::Path;
use vit_data::augment::CropBox;
use vit_data::mix::{Target, cutmix, mixup, write_targets};
use vit_data::{Mix, Mixing};

fn assert_close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let error = std::iter::zip(found, expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(error <= 1e-6, "{what}: {error}");
}

#[test]
fn mixed_batches_are_those_of_timm() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mix");
    let case: Value = serde_json::from_slice(&std::fs::read(folder.join("case.json")).unwrap()).unwrap();
    let bytes = std::fs::read(folder.join("arrays.f32")).unwrap();
    let values: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let shape: Vec<usize> = case["shape"].as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as usize).collect();
    let labels: Vec<[u32; 1]> =
        case["labels"].as_array().unwrap().iter().map(|v| [v.as_u64().unwrap() as u32]).collect();
    let classes = case["classes"].as_u64().unwrap() as usize;
    let (count, height, width) = (shape[0], shape[2], shape[3]);
    let mut rest = &values[..];
    let mut take = |count: usize| {
        let (this, after) = rest.split_at(count);
        rest = after;
        this
    };
    let all = shape.iter().product();
    let images = take(all);
    let number = |name: &str| case[name].as_f64().unwrap();
    let targets = |lambda: f64| {
        let mut targets = vec![f32::NAN; count * classes];
        write_targets(&mut targets, classes, |place| &labels[place], number("smoothing"), lambda);
        targets
    };

    let mut mixed = images.to_vec();
    mixup(&mut mixed, count, number("mixup_lam"));
    assert_close(&mixed, take(all), "mixup_images");
    assert_close(&targets(number("mixup_lam")), take(count * classes), "mixup_targets");

    let edge = |i: usize| case["cutmix_box_yl_yh_xl_xh"][i].as_u64().unwrap() as usize;
    let region = CropBox { top: edge(0), height: edge(1) - edge(0), left: edge(2), width: edge(3) - edge(2) };
    let mut mixed = images.to_vec();
    cutmix(&mut mixed, count, height, width, region);
    assert_close(&mixed, take(all), "cutmix_images");
    assert_close(&targets(number("cutmix_lam")), take(count * classes), "cutmix_targets");
    assert!(rest.is_empty());
}

#[test]
fn the_middle_of_an_odd_batch_is_its_own_partner() {
    let mut images: Vec<f32> = (0..12).map(|v| v as f32).collect();
    mixup(&mut images, 3, 0.25);
    assert_eq!(images, [6.0, 7.0, 8.0, 9.0, 4.0, 5.0, 6.0, 7.0, 2.0, 3.0, 4.0, 5.0]);
    let mut images: Vec<f32> = (0..12).map(|v| v as f32).collect();
    cutmix(&mut images, 3, 2, 2, CropBox { left: 1, top: 0, width: 1, height: 2 });
    assert_eq!(images, [0.0, 9.0, 2.0, 11.0, 4.0, 5.0, 6.0, 7.0, 8.0, 1.0, 10.0, 3.0]);
}

#[test]
fn any_number_of_labels_makes_a_target() {
    let labels: [&[u32]; 3] = [&[], &[1, 3], &[3]];
    let mut targets = [f32::NAN; 12];
    write_targets(&mut targets, 4, |place| labels[place], 0.0, 1.0);
    assert_eq!(targets, [0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
    write_targets(&mut targets, 4, |place| labels[place], 0.0, 0.75);
    assert_eq!(targets, [0.0, 0.0, 0.0, 0.25, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.75]);
    write_targets(&mut targets, 4, |place| labels[place], 0.4, 1.0);
    assert_eq!(targets[4..8], [0.1, 0.7, 0.1, 0.7]);
}

#[test]
fn shares_of_classes_make_a_target() {
    let shares = Target { classes: &[2, 0], shares: Some(&[0.75, 0.25]) };
    let of = |place: usize| if place == 0 { shares } else { Target::from(&[1]) };
    let mut targets = [f32::NAN; 8];
    write_targets(&mut targets, 4, of, 0.0, 1.0);
    assert_eq!(targets, [0.25, 0.0, 0.75, 0.0, 0.0, 1.0, 0.0, 0.0]);
    // Mixed half and half with its partner, then with a smoothing of 0.1 over four classes.
    write_targets(&mut targets, 4, of, 0.0, 0.5);
    assert_eq!(targets, [0.125, 0.5, 0.375, 0.0, 0.125, 0.5, 0.375, 0.0]);
    write_targets(&mut targets, 4, of, 0.1, 1.0);
    let expected = [0.25, 0.025, 0.7, 0.025, 0.025, 0.925, 0.025, 0.025];
    assert!(targets.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{targets:?}");
}

#[test]
fn choices_belong_to_seed_and_step_and_have_their_shares() {
    let mix = Mix { mixup: 0.8, cutmix: 1.0, probability: 0.7, switch: 0.25, ..Mix::default() };
    let steps = 8000;
    let choices: Vec<Mixing> = (0..steps).map(|step| mix.choose(9, step, 32, 24)).collect();
    assert_eq!(choices, (0..steps).map(|step| mix.choose(9, step, 32, 24)).collect::<Vec<_>>());
    assert_ne!(choices, (0..steps).map(|step| mix.choose(10, step, 32, 24)).collect::<Vec<_>>());
    let share = |is: &dyn Fn(&Mixing) -> bool| choices.iter().filter(|m| is(m)).count() as f64 / steps as f64;
    assert!((share(&|m| *m == Mixing::None) - 0.3).abs() < 0.02);
    assert!((share(&|m| matches!(m, Mixing::Mixup { .. })) - 0.525).abs() < 0.02);
    assert!((share(&|m| matches!(m, Mixing::CutMix { .. })) - 0.175).abs() < 0.02);
    for mixing in choices {
        assert!((0.0..=1.0).contains(&mixing.lambda()));
        if let Mixing::CutMix { lambda, region } = mixing {
            assert!(region.left + region.width <= 24 && region.top + region.height <= 32);
            let area = (region.width * region.height) as f64 / (32.0 * 24.0);
            assert!((lambda - (1.0 - area)).abs() < 1e-12);
        }
    }
}

#[test]
fn only_what_is_on_happens() {
    assert!((0..100).all(|step| Mix::default().choose(1, step, 8, 8) == Mixing::None));
    let only_mixup = Mix { mixup: 0.2, ..Mix::default() };
    assert!((0..100).all(|step| matches!(only_mixup.choose(1, step, 8, 8), Mixing::Mixup { .. })));
    let only_cutmix = Mix { cutmix: 0.2, ..Mix::default() };
    assert!((0..100).all(|step| matches!(only_cutmix.choose(1, step, 8, 8), Mixing::CutMix { .. } | Mixing::None)));
}

#[test]
fn impossible_settings_are_refused_by_name() {
    let message = |mix: Mix| mix.validate().unwrap_err().to_string();
    assert!(message(Mix { mixup: -1.0, ..Mix::default() }).contains("mix.mixup is -1"));
    assert!(message(Mix { cutmix: f64::NAN, ..Mix::default() }).contains("mix.cutmix"));
    assert!(message(Mix { probability: 1.5, ..Mix::default() }).contains("mix.probability"));
    assert!(message(Mix { smoothing: 1.0, ..Mix::default() }).contains("mix.smoothing"));
    assert!(serde_json::from_str::<Mix>(r#"{"mixup": 0.8, "cutmixx": 1}"#).is_err());
    assert_eq!(serde_json::from_str::<Mix>(r#"{"mixup": 0.8}"#).unwrap(), Mix { mixup: 0.8, ..Mix::default() });
}
