//! Augmentation throughput of one core in images per second: each operation at 224 x 224, whole recipes at 500 x 375,
//! and small cached images through the loader.
//!
//! ```text
//! cargo run --release -p vit-data --example augment
//! ```

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};
use vit_data::augment::{AugmentOp, ColourJitter, Erasing, Fill, SampleRandom, Sampling};
use vit_data::augment::{blur, enhance, geometry, hue};
use vit_data::{
    Augmentation, BatchPosition, Crop, Filter, Image, ImageError, Loader, LoaderSettings, Mix, Preprocess, Samples,
    TrainTransform,
};

/// Measuring time per line.
const TIME: Duration = Duration::from_millis(400);

/// Batches of the loader per measurement.
const BATCHES: u32 = 12;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("one operation, 224 x 224");
    let image = smooth_image(224, 224)?;
    for operation in [
        AugmentOp::AutoContrast,
        AugmentOp::Equalize,
        AugmentOp::Invert,
        AugmentOp::Rotate,
        AugmentOp::PosterizeIncreasing,
        AugmentOp::SolarizeIncreasing,
        AugmentOp::SolarizeAdd,
        AugmentOp::ColorIncreasing,
        AugmentOp::ContrastIncreasing,
        AugmentOp::BrightnessIncreasing,
        AugmentOp::SharpnessIncreasing,
        AugmentOp::ShearX,
        AugmentOp::ShearY,
        AugmentOp::TranslateXRel,
        AugmentOp::TranslateYRel,
    ] {
        let mut random = SampleRandom::new(1, 0, 0, 0);
        let mut apply = |sampling| {
            let mut copy = image.clone();
            operation.apply(&mut copy, 9.0, sampling, [124, 116, 104], &mut random);
            copy
        };
        report(&format!("{operation:?}"), || apply(Sampling::Bicubic));
        if format!("{operation:?}").contains("ate") {
            report(&format!("{operation:?}, bilinear"), || apply(Sampling::Bilinear));
        }
    }
    let each = |name: &str, work: fn(&mut Image)| {
        report(name, || {
            let mut copy = image.clone();
            work(&mut copy);
            copy
        });
    };
    each("copy alone", |_| {});
    each("hue", |image| hue::hue(image, 0.1));
    each("grey", enhance::to_grey);
    each("Gaussian blur of 1.0", |image| blur::gaussian_blur(image, 1.0));
    each("flip", geometry::flip);

    println!("\nwhole recipes, 500 x 375 to 224 x 224, decoded");
    let photo = smooth_image(500, 375)?;
    let preprocess = Preprocess { interpolation: Filter::Bicubic, ..Preprocess::default() };
    let crop = Augmentation { crop: Crop::usual(), flip: 0.5, ..Augmentation::default() };
    let rand = Some("rand-m9-mstd0.5-inc1".to_owned());
    let erasing = Erasing { probability: 0.25, ..Erasing::default() };
    let deit = Augmentation { auto_augment: rand.clone(), erasing, ..crop.clone() };
    let three = Augmentation { three_augment: true, colour_jitter: ColourJitter::uniform(0.3), ..crop.clone() };
    for (name, augmentation) in [
        ("centre (evaluation)", Augmentation::default()),
        ("resized crop, flip", crop.clone()),
        ("the same, RandAugment", Augmentation { auto_augment: rand.clone(), ..crop }),
        ("the same, erasing (DeiT)", deit),
        ("the same, three-augment, jitter (DeiT III)", three),
    ] {
        let transform = TrainTransform::new(&preprocess, &augmentation)?;
        let mut values = vec![0.0; transform.output_len()];
        // Random choices vary in cost: the mean over many images, each at its fastest.
        let mut fastest = [Duration::MAX; 100];
        for _ in 0..12 {
            for (sample, fastest) in fastest.iter_mut().enumerate() {
                let run = Instant::now();
                transform.apply(&photo, &mut SampleRandom::new(1, 0, sample as u64, 0), &mut values)?;
                *fastest = run.elapsed().min(*fastest);
            }
        }
        print_speed(name, fastest.iter().sum::<Duration>() / 100);
    }

    println!("\nloader with one thread, 32 x 32, cached, batches of 128");
    let preprocess = Preprocess { image_size: [32, 32], crop_pct: 1.0, ..Preprocess::default() };
    let padded = Crop::Padded { pixels: 4, fill: Fill::Black };
    let small = Augmentation { crop: padded, flip: 0.5, ..Augmentation::default() };
    let strong = Augmentation { auto_augment: rand, erasing, ..small.clone() };
    let mix = Mix { mixup: 0.8, cutmix: 1.0, smoothing: 0.1, ..Mix::default() };
    for (name, augmentation, mix) in [
        ("normalise", Augmentation { crop: Crop::Centre, ..Augmentation::default() }, Mix::default()),
        ("padded crop, flip, normalise", small.clone(), Mix::default()),
        ("the same, mixup and cutmix", small, mix),
        ("the same, RandAugment, erasing, mix", strong, mix),
    ] {
        let transform = TrainTransform::new(&preprocess, &augmentation)?;
        let settings =
            LoaderSettings { threads: 1, cache_bytes: 1 << 30, mix, ..LoaderSettings::training(transform, 128, 1) };
        let mut loader = Loader::new(Arc::new(Small::new()?), settings, BatchPosition::default())?;
        // The first epoch fills the cache.
        for _ in 0..loader.batches_per_epoch() {
            loader.next()?;
        }
        let mut fastest = Duration::MAX;
        let start = Instant::now();
        while start.elapsed() < 3 * TIME {
            // More batches than the loader prepares ahead.
            let run = Instant::now();
            for _ in 0..BATCHES {
                black_box(loader.next()?);
            }
            fastest = fastest.min(run.elapsed() / (BATCHES * 128));
        }
        print_speed(name, fastest);
    }
    Ok(())
}

/// Reports the fastest of many short runs, which interruptions affect least.
fn report<R>(name: &str, mut work: impl FnMut() -> R) {
    let start = Instant::now();
    let mut fastest = Duration::MAX;
    while start.elapsed() < TIME {
        let (run, mut count) = (Instant::now(), 0);
        while run.elapsed() < TIME / 400 {
            black_box(work());
            count += 1;
        }
        fastest = fastest.min(run.elapsed() / count);
    }
    print_speed(name, fastest);
}

fn print_speed(name: &str, each: Duration) {
    println!("  {name:<44} {:>9.1} us {:>10.0} images/s", each.as_secs_f64() * 1e6, 1.0 / each.as_secs_f64());
}

/// Gradients with noise, similar to a photograph.
fn smooth_image(width: usize, height: usize) -> Result<Image, vit_data::ShapeError> {
    let mut random = SampleRandom::new(0, 0, 0, 0);
    let mut pixels = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        for x in 0..width {
            for channel in 1..=3 {
                let wave = ((x * channel) as f64 / 40.0).sin() + (y as f64 / (30 * channel) as f64).cos();
                pixels.push((128.0 + 55.0 * wave + random.range(-12.0, 12.0)) as u8);
            }
        }
    }
    Image::from_rgb(width, height, pixels)
}

/// Small images for the loader.
struct Small {
    image: Image,
    classes: Vec<String>,
}

impl Small {
    fn new() -> Result<Self, vit_data::ShapeError> {
        Ok(Self { image: smooth_image(32, 32)?, classes: (0..10).map(|i| i.to_string()).collect() })
    }
}

impl Samples for Small {
    fn len(&self) -> usize {
        10_000
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn labels(&self, index: usize) -> &[u32] {
        &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9][index % 10..index % 10 + 1]
    }

    fn name(&self, index: usize) -> String {
        index.to_string()
    }

    fn image(&self, _: usize) -> Result<Image, ImageError> {
        Ok(self.image.clone())
    }
}
