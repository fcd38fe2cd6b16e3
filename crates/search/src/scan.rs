//! The rows that are most similar to a query, exactly.
//!
//! All vectors are read once, at the speed of memory, by kernels whose rounding errors are bounded. Every row that might
//! belong to the best ones within that bound is compared again in f64. The result is that of f64 throughout, with the same
//! bits on any number of threads and for any instruction set.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::VectorType;
use crate::kernels::{Kernels, largest_element};
use crate::segment::{RowElements, VectorSegment};

/// Bytes of vectors that a thread takes at a time.
const BLOCK_BYTES: usize = 1 << 18;
/// The most that rounding in storage may lengthen a vector of length 1.
pub(crate) const LONGEST: f64 = 1.01;
/// Half the distance between 1 and the next f32.
pub(crate) const UNIT_ROUNDOFF: f64 = 1.0 / (1 << 24) as f64;

/// A row of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowId {
    pub segment: usize,
    pub row: usize,
}

/// A query in the form that its kernel takes.
struct ScanQuery<'a> {
    query: &'a [f32],
    /// The query in integers, for int8 vectors.
    integers: Vec<i16>,
    /// The value of 1 in the integers.
    scale: f64,
    /// A bound of the error of a score.
    error: f64,
}

impl<'a> ScanQuery<'a> {
    fn new(query: &'a [f32], vectors: VectorType) -> Self {
        let dim = query.len();
        match vectors {
            // Any order of summation: Higham, Accuracy and Stability of Numerical Algorithms, section 3.1.
            VectorType::F16 => {
                let error = (dim + 2) as f64 * UNIT_ROUNDOFF * LONGEST;
                ScanQuery { query, integers: Vec::new(), scale: 1.0, error }
            }
            VectorType::Int8 => {
                let largest = query.iter().fold(0.0f32, |largest, v| largest.max(v.abs()));
                let scale = f64::from(largest) / f64::from(largest_element(dim));
                let integers: Vec<i16> = query.iter().map(|v| (f64::from(*v) / scale).round() as i16).collect();
                // The sums are exact. What remains is the rounding of the query (Cauchy-Schwarz) and that of the score.
                let rounding =
                    query.iter().zip(&integers).map(|(v, i)| (f64::from(*v) - scale * f64::from(*i)).powi(2));
                let error = rounding.sum::<f64>().sqrt() * LONGEST + 4.0 * UNIT_ROUNDOFF;
                ScanQuery { query, integers, scale, error }
            }
        }
    }

    fn scores(&self, kernels: Kernels, rows: RowElements, scores: &mut [f32], sums: &mut Vec<i32>) {
        match rows {
            RowElements::F16(rows) => kernels.dot_f16(self.query, rows, scores),
            RowElements::Int8(rows, scales) => {
                sums.resize(scores.len(), 0);
                kernels.dot_i8(&self.integers, rows, sums);
                for ((score, sum), scale) in scores.iter_mut().zip(sums).zip(scales) {
                    *score = (f64::from(*sum) * self.scale * f64::from(*scale)) as f32;
                }
            }
        }
    }
}

/// The dot product of a query with one row, in f64.
fn exact_score(query: &[f32], row: RowElements) -> f64 {
    match row {
        RowElements::F16(row) => query.iter().zip(row).map(|(q, v)| f64::from(*q) * v.to_f64()).sum(),
        RowElements::Int8(row, scale) => {
            query.iter().zip(row).map(|(q, v)| f64::from(*q) * f64::from(*v)).sum::<f64>() * f64::from(scale[0])
        }
    }
}

/// Rows that may be among the `top` best: those whose score is not below the `top`th best by more than a margin.
struct Candidates {
    top: usize,
    margin: f32,
    /// No row below this is needed.
    threshold: f32,
    rows: Vec<(f32, RowId)>,
    /// The number of rows at which the needless ones are dropped.
    full: usize,
}

impl Candidates {
    fn new(top: usize, error: f64) -> Self {
        // Both scores that are compared may be wrong; one more bit for the rounding of the margin itself.
        let margin = (2.0 * error * (1.0 + 1e-6)) as f32;
        Candidates { top, margin, threshold: f32::NEG_INFINITY, rows: Vec::new(), full: 2 * top + 64 }
    }

    fn offer(&mut self, segment: usize, first: usize, scores: &[f32]) {
        for (index, &score) in scores.iter().enumerate() {
            if score >= self.threshold {
                self.rows.push((score, RowId { segment, row: first + index }));
                if self.rows.len() >= self.full {
                    self.prune();
                }
            }
        }
    }

    fn prune(&mut self) {
        if self.rows.len() > self.top {
            let (_, last, _) = self.rows.select_nth_unstable_by(self.top - 1, |a, b| b.0.total_cmp(&a.0));
            self.threshold = last.0 - self.margin;
            let threshold = self.threshold;
            self.rows.retain(|(score, _)| *score >= threshold);
        }
        // Rows that are all alike cannot be dropped.
        self.full = self.full.max(2 * self.rows.len());
    }
}

/// The `top` rows with the largest dot products with `query`, of length 1, and all that equal the last of them; in order of
/// their scores.
pub(crate) fn best_rows(
    segments: &[&VectorSegment],
    vectors: VectorType,
    query: &[f32],
    top: usize,
    threads: usize,
    kernels: Kernels,
) -> Vec<(f64, RowId)> {
    if top == 0 {
        return Vec::new();
    }
    let blocks = row_blocks(segments, (BLOCK_BYTES / (query.len() * vectors.bytes())).max(1));
    let query = ScanQuery::new(query, vectors);
    let next = AtomicUsize::new(0);
    let all = Mutex::new(Candidates::new(top, query.error));
    let scan = || {
        let (mut candidates, mut scores, mut sums) = (Candidates::new(top, query.error), Vec::new(), Vec::new());
        while let Some((segment, rows)) = blocks.get(next.fetch_add(1, Ordering::Relaxed)) {
            scores.resize(rows.len(), 0.0);
            query.scores(kernels, segments[*segment].elements(rows.clone()), &mut scores, &mut sums);
            candidates.offer(*segment, rows.start, &scores);
        }
        candidates.prune();
        all.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).rows.append(&mut candidates.rows);
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(blocks.len()) {
            scope.spawn(scan);
        }
        scan();
    });
    let mut candidates = all.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    candidates.prune();
    let exact =
        |(_, id): (f32, RowId)| (exact_score(query.query, segments[id.segment].elements(id.row..id.row + 1)), id);
    let mut best: Vec<(f64, RowId)> = candidates.rows.into_iter().map(exact).collect();
    best.sort_by(|a, b| b.0.total_cmp(&a.0));
    if let Some(&(last, _)) = best.get(top - 1) {
        best.retain(|(score, _)| *score >= last);
    }
    best
}

/// All rows in blocks of at most `rows`, none across segments.
pub(crate) fn row_blocks(segments: &[&VectorSegment], rows: usize) -> Vec<(usize, Range<usize>)> {
    let mut blocks = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        let starts = (0..segment.rows).step_by(rows);
        blocks.extend(starts.map(|start| (index, start..segment.rows.min(start + rows))));
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_keep_all_that_might_be_best() {
        let mut candidates = Candidates::new(2, 0.048);
        let scores: Vec<f32> = (0..1000).map(|i| (i % 100) as f32 / 100.0).collect();
        candidates.offer(0, 0, &scores);
        candidates.prune();
        // The best two are 0.99, of which there are ten; 0.9 and above are within twice the error.
        assert_eq!(candidates.rows.len(), 10 * 10);
        assert!(candidates.rows.iter().all(|(score, _)| *score > 0.885));
        let mut equal = Candidates::new(1, 0.0);
        equal.offer(0, 0, &[0.5; 3000]);
        assert_eq!(equal.rows.len(), 3000);
    }
}
