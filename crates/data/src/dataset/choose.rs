//! Random draws of samples: the held-out validation samples, and the `fraction` of the training samples.
//!
//! The rank of a sample is a function of the seed and its name; the lowest ranks of each class are drawn. So the order
//! of files does not matter, draws are stratified by class, and a smaller draw is a subset of a larger one.

use super::listing::Listing;
use std::collections::BTreeMap;
use vit_graph::random::philox;
use vit_system::hash::fnv1a;

/// The purpose of a draw; their ranks are independent.
#[derive(Clone, Copy)]
enum DrawPurpose {
    Validation = 0,
    Fraction = 1,
}

/// Divides `samples` into training and validation: of each class `fraction` for validation, at least one of two, never
/// all. Captions are no classes.
pub(super) fn hold_out(
    listing: &Listing,
    samples: &[u32],
    fraction: f64,
    seed: u64,
    captions: bool,
) -> (Vec<u32>, Vec<u32>) {
    let count = |of: usize| (share(of, fraction).max(1)).min(of - 1);
    let (validation, train) = draw(listing, samples, DrawPurpose::Validation, seed, captions, count);
    (train, validation)
}

/// Divides `samples` into `fraction` of each class, at least one sample, and the rest.
pub(super) fn keep(
    listing: &Listing,
    samples: &[u32],
    fraction: f64,
    seed: u64,
    captions: bool,
) -> (Vec<u32>, Vec<u32>) {
    draw(listing, samples, DrawPurpose::Fraction, seed, captions, |of| share(of, fraction).clamp(1, of))
}

fn share(of: usize, fraction: f64) -> usize {
    (of as f64 * fraction).round() as usize
}

/// Divides `samples` into those drawn and the others, both in order. `count` gives the number to draw of a class's
/// samples.
fn draw(
    listing: &Listing,
    samples: &[u32],
    draw: DrawPurpose,
    seed: u64,
    captions: bool,
    count: impl Fn(usize) -> usize,
) -> (Vec<u32>, Vec<u32>) {
    // A sample with several labels counts for its first one; samples without labels form a class.
    let mut classes: BTreeMap<Option<u32>, Vec<u32>> = BTreeMap::new();
    for sample in samples {
        let label = listing.labels_of(*sample as usize).first().copied();
        classes.entry(label.filter(|_| !captions)).or_default().push(*sample);
    }
    let mut drawn = vec![false; listing.len()];
    for members in classes.into_values() {
        let count = count(members.len());
        let mut ranked: Vec<(u64, String, u32)> = members
            .into_iter()
            .map(|sample| {
                let key = listing.images.key(sample as usize);
                (rank(&key, draw, seed), key, sample)
            })
            .collect();
        ranked.sort_unstable();
        for (_, _, sample) in &ranked[..count] {
            drawn[*sample as usize] = true;
        }
    }
    samples.iter().partition(|sample| drawn[**sample as usize])
}

fn rank(key: &str, draw: DrawPurpose, seed: u64) -> u64 {
    let hash = fnv1a(key.as_bytes());
    let words = philox([hash as u32, (hash >> 32) as u32, draw as u32, 0], [seed as u32, (seed >> 32) as u32]);
    u64::from(words[0]) << 32 | u64::from(words[1])
}
