//! Drawing samples at random: the validation part where a set has none, and the share of the training samples that
//! `fraction` keeps.
//!
//! Every sample has a rank that depends on the seed and its name alone; of each class the lowest ranks are drawn. So the
//! order in which files are found does not matter, every class gives its share, and a small share lies inside a larger.

use super::listing::Listing;
use std::collections::BTreeMap;
use vit_graph::random::philox;
use vit_system::hash::fnv1a;

/// What is drawn; each has ranks of its own.
#[derive(Clone, Copy)]
enum Draw {
    Validation = 0,
    Fraction = 1,
}

/// Divides `samples` into those for training and those for validation: of each class `fraction` of them, at least one
/// if there are two, never all.
pub(super) fn carve(listing: &Listing, samples: &[u32], fraction: f64, seed: u64) -> (Vec<u32>, Vec<u32>) {
    let count = |of: usize| (share(of, fraction).max(1)).min(of - 1);
    let (validation, train) = draw(listing, samples, Draw::Validation, seed, count);
    (train, validation)
}

/// Divides `samples` into `fraction` of each class, at least one sample, and the others.
pub(super) fn keep(listing: &Listing, samples: &[u32], fraction: f64, seed: u64) -> (Vec<u32>, Vec<u32>) {
    draw(listing, samples, Draw::Fraction, seed, |of| share(of, fraction).clamp(1, of))
}

fn share(of: usize, fraction: f64) -> usize {
    (of as f64 * fraction).round() as usize
}

/// Those drawn, and the others; both in their old order. `count` says how many to draw of how many.
fn draw(
    listing: &Listing,
    samples: &[u32],
    draw: Draw,
    seed: u64,
    count: impl Fn(usize) -> usize,
) -> (Vec<u32>, Vec<u32>) {
    // A sample with several labels counts for the first of them, one without any for the class of those.
    let mut classes: BTreeMap<Option<u32>, Vec<u32>> = BTreeMap::new();
    for sample in samples {
        classes.entry(listing.labels_of(*sample as usize).first().copied()).or_default().push(*sample);
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

fn rank(key: &str, draw: Draw, seed: u64) -> u64 {
    let hash = fnv1a(key.as_bytes());
    let words = philox([hash as u32, (hash >> 32) as u32, draw as u32, 0], [seed as u32, (seed >> 32) as u32]);
    u64::from(words[0]) << 32 | u64::from(words[1])
}
