//! Opens a dataset, prints its report, and measures how fast one core reads its images:
//! `cargo run --release -p vit-data --example dataset -- PATH [SAMPLES]`

use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;
use vit_data::Samples;
use vit_data::dataset::{DatasetOptions, open};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args_os().skip(1);
    let path = PathBuf::from(arguments.next().ok_or("which dataset? usage: dataset PATH [SAMPLES]")?);
    let most = arguments.next().map_or(Ok(usize::MAX), |count| count.to_string_lossy().parse())?;

    let start = Instant::now();
    let splits = open(&path, &DatasetOptions::default())?;
    println!("{}", splits.report);
    println!("opened in {:.3} s", start.elapsed().as_secs_f64());

    let count = splits.train.len().min(most);
    let (mut pixels, mut failures) = (0, 0);
    let start = Instant::now();
    for index in 0..count {
        match splits.train.image(index) {
            Ok(image) => pixels += image.width() * image.height(),
            Err(error) => {
                failures += 1;
                eprintln!("{error}");
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{count} images, {failures} unreadable, {pixels} pixels in {seconds:.3} s: {:.0} images/s",
        count as f64 / seconds
    );
    Ok(())
}
