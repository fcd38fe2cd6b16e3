//! Calibration: of the samples predicted with 80 % confidence, 80 % should be right (Guo et al., 2017).

use serde::Serialize;

/// Bins of equal width, each open below and closed above.
const BINS: usize = 15;

/// Confidence against accuracy, in 15 bins.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Calibration {
    bins: [Bin; BINS],
}

#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Bin {
    samples: u64,
    right: u64,
    confidence: f64,
}

/// One row of the reliability table.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ReliabilityBin {
    /// Confidences above this…
    pub above: f64,
    /// …up to and including this.
    pub upto: f64,
    /// Samples in the bin.
    pub samples: u64,
    /// Their mean confidence; zero in an empty bin.
    pub confidence: f64,
    /// The share of them that is right; zero in an empty bin.
    pub accuracy: f64,
}

impl Calibration {
    /// All bins from 0 to 1.
    pub fn table(&self) -> Vec<ReliabilityBin> {
        let mean = |sum: f64, samples: u64| if samples == 0 { 0.0 } else { sum / samples as f64 };
        let row = |(index, bin): (usize, &Bin)| ReliabilityBin {
            above: index as f64 / BINS as f64,
            upto: (index + 1) as f64 / BINS as f64,
            samples: bin.samples,
            confidence: mean(bin.confidence, bin.samples),
            accuracy: mean(bin.right as f64, bin.samples),
        };
        self.bins.iter().enumerate().map(row).collect()
    }

    /// Expected calibration error: the mean distance of confidence and accuracy, weighted by samples.
    pub fn ece(&self) -> f64 {
        let samples: u64 = self.bins.iter().map(|bin| bin.samples).sum();
        self.bins.iter().map(|bin| (bin.confidence - bin.right as f64).abs()).sum::<f64>() / samples as f64
    }

    pub(super) fn add(&mut self, confidence: f64, right: bool) {
        let index = ((confidence * BINS as f64).ceil() as usize).clamp(1, BINS) - 1;
        let bin = &mut self.bins[index];
        bin.samples += 1;
        bin.right += u64::from(right);
        bin.confidence += confidence;
    }

    pub(super) fn merge(&mut self, other: &Calibration) {
        for (bin, other) in self.bins.iter_mut().zip(&other.bins) {
            bin.samples += other.samples;
            bin.right += other.right;
            bin.confidence += other.confidence;
        }
    }
}
