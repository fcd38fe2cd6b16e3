//! Draws every kind of figure from synthetic metrics into a folder: `cargo run --example plots -- FOLDER`.

use std::error::Error;
use std::fs;
use std::path::Path;

use vit_data::Image;
use vit_graph::random::Seed;
use vit_train::metrics::Evaluation;
use vit_train::plots::{Scene, SheetEntry, confusion_matrix, contact_sheet, curves, reliability};
use vit_train::{MetricsRow, columns};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "plots".into());
    let folder = Path::new(&folder);
    fs::create_dir_all(folder)?;
    write(folder, "curves", &curves("vit_small_patch16_224 on flowers102", &run(1800)))?;
    write(folder, "curves_short", &curves("vit_small_patch16_224 on flowers102", &run(40)[..12]))?;

    let names = "airplane automobile bird cat deer dog frog horse ship truck".split(' ').map(String::from);
    let names: Vec<String> = names.collect();
    let ten = evaluation(10, 2000);
    write(folder, "confusion_10", &confusion_matrix("Which class is taken for which", ten.confusion(), &names))?;
    let many: Vec<String> = (0..30).map(|i| format!("{} of kind {i}", names[i % 10])).collect();
    let thirty = evaluation(30, 6000);
    write(folder, "confusion_30", &confusion_matrix("Which class is taken for which", thirty.confusion(), &many))?;
    let thousand = evaluation(1000, 20_000);
    write(folder, "confusion_1000", &confusion_matrix("Which class is taken for which", thousand.confusion(), &[]))?;
    write(folder, "reliability", &reliability("Can its confidence be believed?", ten.calibration()))?;

    let entries: Vec<SheetEntry> = ten
        .worst()
        .iter()
        .map(|mistake| SheetEntry {
            image: sample_image(mistake.index),
            label: names[mistake.label as usize].clone(),
            predicted: many[mistake.predicted as usize + 10].clone(),
            confidence: mistake.confidence,
        })
        .collect();
    write(folder, "worst", &contact_sheet("The mistakes it is surest of", &entries))?;
    Ok(())
}

fn write(folder: &Path, name: &str, scene: &Scene) -> Result<(), Box<dyn Error>> {
    fs::write(folder.join(name).with_extension("svg"), scene.svg())?;
    fs::write(folder.join(name).with_extension("png"), scene.png(1.0)?)?;
    Ok(())
}

/// A value between 0 and 1.
fn random(stream: u32, index: usize) -> f64 {
    f64::from(Seed::new(1, 0).word(stream, index as u64)) / f64::from(u32::MAX)
}

fn run(rows: usize) -> Vec<MetricsRow> {
    let mut all = Vec::new();
    for row in 1..=rows {
        let done = row as f64 / rows as f64;
        let rate = (done / 0.08).min(1.0) * 0.5 * (1.0 + (std::f64::consts::PI * done).cos()) * 1e-3;
        let loss = 1.1 + 3.5 * (-5.0 * done).exp() + 0.5 * (random(0, row) - 0.5);
        let new = MetricsRow::new(row as u64 * 50)
            .epoch(90.0 * done)
            .with(columns::TRAIN_LOSS, loss)
            .with(columns::RATE, rate)
            .with(columns::IMAGES_PER_SECOND, 1480.0 - 60.0 * random(1, row) - if row % 97 == 0 { 600.0 } else { 0.0 });
        all.push(if row % (rows / 40).max(1) == 0 {
            let top1 = 0.86 * (1.0 - (-6.0 * done).exp()) + 0.01 * random(2, row);
            new.with(columns::VAL_LOSS, 1.3 + 3.1 * (-6.0 * done).exp() + 0.05 * random(3, row))
                .with(columns::VAL_TOP1, top1)
                .with(columns::VAL_TOP5, top1.powf(0.35))
        } else {
            new
        });
    }
    all
}

/// The evaluation of an overconfident model with an accuracy of two thirds.
fn evaluation(classes: usize, samples: usize) -> Evaluation {
    let mut evaluation = Evaluation::new(classes, 24);
    for sample in 0..samples {
        let label = (random(4, sample) * classes as f64) as usize % classes;
        let other = (label + 1 + (random(5, sample).powi(3) * classes as f64) as usize) % classes;
        let mut logits: Vec<f32> = (0..classes).map(|class| random(6, sample * classes + class) as f32).collect();
        let strength = (2.0 + 8.0 * random(8, sample)) as f32;
        logits[if random(7, sample) < 0.25 + 0.06 * f64::from(strength) { label } else { other }] += strength;
        evaluation.add(&logits, &[label as u32], &[sample]).expect("labels are classes");
    }
    evaluation
}

/// A pattern of any size.
fn sample_image(index: usize) -> Image {
    let (width, height) = (120 + 200 * (index % 3), 160 + 90 * (index % 4));
    let pixel = |at: usize| {
        let (x, y) = ((at % width) as f32 / 40.0, (at / width) as f32 / 40.0);
        let wave = |phase: f32| (127.0 + 120.0 * (x * 1.3 + phase + (y + index as f32).sin() * 2.0).sin()) as u8;
        [wave(0.0), wave(1.0 + index as f32), wave(2.2)]
    };
    Image::from_rgb(width, height, (0..width * height).flat_map(pixel).collect()).expect("three bytes a pixel")
}
