//! How sure an accuracy is, given the number of test images.

/// The 97.5% quantile of the normal distribution.
const QUANTILE: f64 = 1.959_963_984_540_054;

/// The 95% interval of a share of independent images by Wilson (1927). Unlike the normal approximation it stays within 0 and 1
/// and has its coverage near both; unlike a bootstrap, whose interval it approaches with many images, it needs no random
/// numbers. It says what other test images would change, not other seeds of training.
pub fn wilson_interval(share: f64, samples: u64) -> Option<[f64; 2]> {
    if samples == 0 || !(0.0..=1.0).contains(&share) {
        return None;
    }
    let n = samples as f64;
    let square = QUANTILE * QUANTILE;
    let centre = (share + square / (2.0 * n)) / (1.0 + square / n);
    let half = QUANTILE / (1.0 + square / n) * (share * (1.0 - share) / n + square / (4.0 * n * n)).sqrt();
    Some([(centre - half).max(0.0), (centre + half).min(1.0)])
}

#[cfg(test)]
mod tests {
    use super::wilson_interval;

    #[test]
    fn intervals_are_wilsons() {
        // Newcombe (1998), Table I, method 3.
        for (count, samples, expected) in [
            (81u32, 263u64, [0.2553, 0.3662]),
            (15, 148, [0.0624, 0.1605]),
            (0, 20, [0.0, 0.1611]),
            (1, 29, [0.0061, 0.1718]),
        ] {
            let [low, high] = wilson_interval(f64::from(count) / samples as f64, samples).unwrap();
            let near = |(found, expected): (f64, f64)| (found - expected).abs() < 6e-5;
            assert!([(low, expected[0]), (high, expected[1])].into_iter().all(near), "{count}: {low} {high}");
        }
        assert_eq!(wilson_interval(0.5, 0), None);
        assert_eq!(wilson_interval(f64::NAN, 3), None);
    }
}
