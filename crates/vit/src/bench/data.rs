//! Loading images on one core: decoding from memory, resizing and cropping, normalising.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use vit_data::{ApplyPreprocess, DecodeOptions, Image, Preprocess, Samples, decode};
use vit_system::regular_file;

use super::quantile;
use crate::Error;

/// How fast images are loaded on one core.
#[derive(Debug, Clone, PartialEq)]
pub struct DataMeasurement {
    /// Images measured.
    pub images: usize,
    /// Median milliseconds per image of each stage: decode or draw, resize and crop, normalise.
    pub stages_ms: [f64; 3],
    /// Images per second, all stages.
    pub images_per_s: f64,
}

/// Loads images repeatedly with one model's preprocessing.
pub fn data(files: &[PathBuf], preprocess: &Preprocess, time: Duration) -> Result<DataMeasurement, Error> {
    let mut bytes = Vec::new();
    for path in files {
        let content = regular_file::read(path).map_err(|error| Error::file(path, error))?;
        // Decoded once before the clock starts: an error of `open` names the file.
        vit_data::open(path, &DecodeOptions::default())?;
        bytes.push(content);
    }
    if bytes.is_empty() {
        return Err(Error::NoImages);
    }
    measure(bytes.len(), |index| Ok(decode(&bytes[index], &DecodeOptions::default())?), preprocess, time)
}

/// Loads images of a dataset by formula, which are drawn at the size that the preprocessing needs.
pub fn drawn(samples: &dyn Samples, preprocess: &Preprocess, time: Duration) -> Result<DataMeasurement, Error> {
    // Evenly spaced, of different classes.
    let count = samples.len().min(500);
    let image = |at: usize| Ok(samples.image_for(at * samples.len() / count, preprocess.source_side())?);
    // The classes are found before the clock starts.
    for at in 0..count {
        image(at)?;
    }
    measure(count, image, preprocess, time)
}

fn measure(
    images: usize,
    image: impl Fn(usize) -> Result<Image, Error>,
    preprocess: &Preprocess,
    time: Duration,
) -> Result<DataMeasurement, Error> {
    let mut tensor = vec![0.0; preprocess.output_len()];
    let mut stages: [Vec<f64>; 3] = Default::default();
    let (mut rounds, start) = (Vec::new(), Instant::now());
    while start.elapsed() < time || rounds.len() < 3 {
        let round = Instant::now();
        for index in 0..images {
            let begin = Instant::now();
            let image = image(index)?;
            let decoded = Instant::now();
            let cropped = preprocess.crop(&image)?;
            let resized = Instant::now();
            preprocess.normalise_into(&cropped, &mut tensor)?;
            let done = Instant::now();
            for (stage, (from, to)) in stages.iter_mut().zip([(begin, decoded), (decoded, resized), (resized, done)]) {
                stage.push((to - from).as_secs_f64());
            }
        }
        rounds.push(round.elapsed().as_secs_f64());
    }
    Ok(DataMeasurement {
        images,
        stages_ms: stages.map(|stage| 1e3 * quantile(&stage, 0.5)),
        images_per_s: images as f64 / quantile(&rounds, 0.5),
    })
}
