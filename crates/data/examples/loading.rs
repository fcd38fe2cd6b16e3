//! The time of loading an image on one core by stage, from the bytes of a file to the model's input. Reading from disk
//! is not included.
//!
//! ```text
//! cargo run --release -p vit-data --example loading -- [--json] [--repeats 20] photos/*.jpg
//! ```

use serde_json::json;
use std::error::Error;
use std::hint::black_box;
use std::time::Instant;
use vit_data::{ApplyPreprocess, DecodeOptions, Preprocess, decode};

const STAGES: [&str; 4] = ["decode", "resize", "normalise", "whole"];

/// Milliseconds of each round, for each stage.
type Times = [Vec<f64>; STAGES.len()];

struct Photo {
    path: String,
    width: usize,
    height: usize,
    bytes: Vec<u8>,
    times: Times,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut paths = Vec::new();
    let (mut as_json, mut repeats) = (false, 20);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--json" => as_json = true,
            "--repeats" => repeats = arguments.next().ok_or("--repeats needs a number")?.parse()?,
            _ => paths.push(argument),
        }
    }
    if paths.is_empty() || repeats == 0 {
        return Err("give the photos to load, and at least one repeat".into());
    }
    let mut photos = paths.into_iter().map(open).collect::<Result<Vec<_>, _>>()?;
    // A loader writes all images into reused memory.
    let mut tensor = vec![0.0; settings().output_len()];
    // Round by round over all photos: interruptions affect all of them, and the caches are as cold as in real use.
    for round in 0..=repeats {
        for photo in &mut photos {
            let times = load(&photo.bytes, &mut tensor)?;
            // The first round includes page faults and the CPU's frequency ramp.
            if round > 0 {
                photo.times.iter_mut().zip(times).for_each(|(all, time)| all.push(time));
            }
        }
    }
    if as_json {
        print_json(&mut photos, repeats)
    } else {
        print_table(&mut photos)
    }
    Ok(())
}

fn open(path: String) -> Result<Photo, Box<dyn Error>> {
    let bytes = std::fs::read(&path).map_err(|error| format!("{path}: {error}"))?;
    let image = decode(&bytes, &DecodeOptions::default()).map_err(|error| format!("{path}: {error}"))?;
    Ok(Photo { path, width: image.width(), height: image.height(), bytes, times: Times::default() })
}

/// torchvision's Resize(256), CenterCrop(224).
fn settings() -> Preprocess {
    Preprocess { crop_pct: 0.875, ..Preprocess::imagenet() }
}

/// Loads once by stages and once as a whole; returns milliseconds for each.
fn load(bytes: &[u8], tensor: &mut [f32]) -> Result<[f64; STAGES.len()], Box<dyn Error>> {
    let settings = settings();
    let options = DecodeOptions::default();
    let milliseconds = |from: Instant| from.elapsed().as_secs_f64() * 1e3;

    let start = Instant::now();
    let image = black_box(decode(black_box(bytes), &options)?);
    let decoding = milliseconds(start);
    let start = Instant::now();
    let cropped = black_box(settings.crop(&image)?);
    let resizing = milliseconds(start);
    let start = Instant::now();
    settings.normalise_into(&cropped, tensor)?;
    black_box(&tensor);
    let normalising = milliseconds(start);
    drop((image, cropped));

    let start = Instant::now();
    let image = decode(black_box(bytes), &options)?;
    settings.apply_into(&image, tensor)?;
    drop(image);
    black_box(&tensor);
    Ok([decoding, resizing, normalising, milliseconds(start)])
}

fn minimum_and_median(times: &mut [f64]) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (times[0], times[times.len() / 2])
}

fn print_table(photos: &mut [Photo]) {
    println!("milliseconds on one core, minimum (median)");
    println!("{:40} {:>11} {:>17} {:>17} {:>17} {:>17}", "photo", "pixels", "decode", "resize", "normalise", "whole");
    let mut totals = [(0.0, 0.0); STAGES.len()];
    for photo in photos.iter_mut() {
        let name = photo.path.rsplit('/').next().unwrap_or(&photo.path);
        print!("{name:40.40} {:>5} x {:<4}", photo.width, photo.height);
        for (times, total) in photo.times.iter_mut().zip(&mut totals) {
            let (minimum, median) = minimum_and_median(times);
            print!(" {:>17}", format!("{minimum:.3} ({median:.3})"));
            *total = (total.0 + minimum, total.1 + median);
        }
        println!();
    }
    let count = photos.len() as f64;
    print!("{:52}", "mean");
    for (minimum, median) in totals {
        print!(" {:>17}", format!("{:.3} ({:.3})", minimum / count, median / count));
    }
    let (minimum, median) = totals[STAGES.len() - 1];
    println!("\nimages per second: {:.0} (median {:.0})", count / minimum * 1e3, count / median * 1e3);
}

fn print_json(photos: &mut [Photo], repeats: usize) {
    let mut whole = (0.0, 0.0);
    let count = photos.len() as f64;
    let mut entries = Vec::new();
    for photo in photos.iter_mut() {
        let mut entry = json!({ "path": photo.path, "width": photo.width, "height": photo.height });
        for (stage, times) in STAGES.iter().zip(&mut photo.times) {
            let (minimum, median) = minimum_and_median(times);
            entry[format!("{stage}_ms")] = json!({ "min": minimum, "median": median });
            if *stage == "whole" {
                whole = (whole.0 + minimum, whole.1 + median);
            }
        }
        entries.push(entry);
    }
    let report = json!({
        "arch": std::env::consts::ARCH,
        "repeats": repeats,
        "images_per_s": { "min": count / whole.0 * 1e3, "median": count / whole.1 * 1e3 },
        "photos": entries,
    });
    println!("{report:#}");
}
