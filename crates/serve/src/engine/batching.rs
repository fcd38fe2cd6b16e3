//! How many images a batch takes, and how long images wait for others.

use std::time::Duration;

/// Compiled batch sizes, ascending, with the time of one run.
pub(super) type BatchTimes = Vec<(usize, Duration)>;

/// A larger batch is preferred if it gives this share of the most images per second: measured times are noisy, and every
/// run has its own overhead.
const NEARLY_BEST: f64 = 0.9;

/// How many of the images that are ready run together: as many as possible at nearly the most images per second. On a CPU,
/// five images are faster as four and one than as five of eight; on a GPU, eight take hardly longer than four.
pub(super) fn batch_of(ready: usize, times: &[(usize, Duration)]) -> usize {
    let rate = |&(size, time): &(usize, Duration)| {
        let images = size.min(ready);
        (images, images as f64 / time.as_secs_f64().max(1e-9))
    };
    let best = times.iter().map(|run| rate(run).1).fold(0.0, f64::max);
    let good = times.iter().map(rate).filter(|(_, rate)| *rate >= NEARLY_BEST * best);
    good.map(|(images, _)| images).max().unwrap_or(0)
}

/// The default of the delay: half of the time that a full batch saves against single images, since longer waiting costs
/// more than it gains; at most half the time of a full batch. The lower bound is about the time in which decoders fill a
/// batch; a single image never waits for it, since then no other is being decoded.
pub(super) fn default_delay(times: &[(usize, Duration)]) -> Duration {
    let (Some(&(_, one)), Some(&(full, all))) = (times.first(), times.last()) else { return Duration::ZERO };
    let saved = (one * full as u32).saturating_sub(all);
    (saved.min(all) / 2).clamp(Duration::from_millis(10), Duration::from_millis(50))
}

/// Powers of two up to the largest batch, which is one of the sizes.
pub(super) fn batch_sizes(largest: usize) -> Vec<usize> {
    let largest = largest.max(1);
    let powers = std::iter::successors(Some(1), |size| Some(2 * size)).take_while(|&size| size < largest);
    powers.chain([largest]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(of: &[(usize, u64)]) -> BatchTimes {
        of.iter().map(|&(size, ms)| (size, Duration::from_millis(ms))).collect()
    }

    #[test]
    fn batch_sizes_are_powers_of_two_and_the_largest() {
        assert_eq!(batch_sizes(0), [1]);
        assert_eq!(batch_sizes(1), [1]);
        assert_eq!(batch_sizes(8), [1, 2, 4, 8]);
        assert_eq!(batch_sizes(12), [1, 2, 4, 8, 12]);
    }

    #[test]
    fn padding_is_worth_it_where_larger_batches_cost_little() {
        let cpu = times(&[(1, 20), (2, 38), (4, 74), (8, 144)]);
        assert_eq!([1, 2, 3, 5, 7, 8, 20].map(|ready| batch_of(ready, &cpu)), [1, 2, 2, 4, 4, 8, 8]);
        let gpu = times(&[(1, 10), (2, 11), (4, 12), (8, 13)]);
        assert_eq!([1, 2, 3, 5, 7, 8, 20].map(|ready| batch_of(ready, &gpu)), [1, 2, 3, 5, 7, 8, 8]);
        assert_eq!(batch_of(0, &cpu), 0);
        let noisy = times(&[(1, 13), (2, 30), (4, 56), (8, 116)]);
        assert_eq!(batch_of(8, &noisy), 4);
        assert_eq!(batch_of(8, &times(&[(1, 14), (8, 118)])), 8);
    }

    #[test]
    fn the_default_delay_follows_from_what_batches_save() {
        assert_eq!(default_delay(&times(&[(1, 30), (8, 144)])), Duration::from_millis(48));
        assert_eq!(default_delay(&times(&[(1, 10), (8, 44)])), Duration::from_millis(18));
        assert_eq!(default_delay(&times(&[(1, 10), (8, 13)])), Duration::from_millis(10));
        assert_eq!(default_delay(&times(&[(1, 10)])), Duration::from_millis(10));
    }
}
