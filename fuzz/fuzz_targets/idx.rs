//! Any bytes as MNIST's files: as the images with fitting labels, and as images and labels one after the other.
#![no_main]

#[path = "../exercise.rs"]
mod exercise;

use libfuzzer_sys::fuzz_target;

const IMAGES: &str = "train-images-idx3-ubyte";
const LABELS: &str = "train-labels-idx1-ubyte";

fuzz_target!(|data: &[u8]| {
    let count = data.get(4..8).and_then(|count| count.first_chunk::<4>()).copied().unwrap_or_default();
    let mut labels = vec![0, 0, 8, 1];
    labels.extend(count);
    labels.extend((0..u32::from_be_bytes(count).min(1 << 12)).map(|label| (label % 10) as u8));
    exercise::exercise(&[(IMAGES, data), (LABELS, &labels)], "");
    let (images, labels) = data.split_at(data.len() / 2);
    exercise::exercise(&[(IMAGES, images), (LABELS, labels)], IMAGES);
});
