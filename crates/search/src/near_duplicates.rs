//! Groups of files whose vectors are nearly the same: all pairs, in blocks that stay in the cache.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use half::slice::HalfFloatSliceExt;

use crate::kernels::{Kernels, PADDING};
use crate::scan::{LONGEST, UNIT_ROUNDOFF, row_blocks};
use crate::segment::{RowElements, VectorSegment};
use crate::{Hit, Index, SearchError};

/// Rows of a block: two blocks of 512 elements in f32 and their scores take 300 KB of a core's L2 cache.
const BLOCK_ROWS: usize = 64;

/// How to look for near duplicates.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DuplicateOptions {
    /// The least cosine of two near duplicates.
    pub threshold: f64,
    /// Threads to use.
    pub threads: usize,
}

/// Files that are connected by pairs of near duplicates.
#[derive(Debug, Clone, PartialEq)]
pub struct DuplicateGroup {
    /// The files, by path, each with its cosine with the one most similar to it.
    pub files: Vec<Hit>,
}

impl DuplicateGroup {
    fn best(&self) -> f64 {
        self.files.iter().map(|hit| hit.score).fold(0.0, f64::max)
    }
}

/// Rows in f32, padded with zeros. Integers are without their scale.
struct RowBlock {
    rows: Range<usize>,
    values: Vec<f32>,
}

impl RowBlock {
    fn new(segment: &VectorSegment, rows: Range<usize>, dim: usize, first: usize) -> Self {
        let padded = dim.next_multiple_of(PADDING);
        let mut values = vec![0.0; rows.len() * padded];
        for (row, values) in rows.clone().zip(values.chunks_exact_mut(padded)) {
            let values = &mut values[..dim];
            match segment.elements(row..row + 1) {
                RowElements::F16(row) => row.convert_to_f32_slice(values),
                RowElements::Int8(row, _) => values.iter_mut().zip(row).for_each(|(value, v)| *value = f32::from(*v)),
            }
        }
        RowBlock { rows: first + rows.start..first + rows.end, values }
    }

    /// One over the length of every row.
    fn inverse_lengths(&self, dim: usize) -> impl Iterator<Item = f32> {
        let rows = self.values.chunks_exact(dim.next_multiple_of(PADDING));
        rows.map(|row| (1.0 / row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt()) as f32)
    }
}

/// A pair of rows and its score by a kernel.
type RowPair = (usize, usize, f32);

/// Disjoint sets of rows, with every row's best score.
struct RowSets {
    parents: Vec<usize>,
    best: Vec<f32>,
}

impl RowSets {
    fn root(&mut self, mut row: usize) -> usize {
        while self.parents[row] != row {
            // Path halving.
            self.parents[row] = self.parents[self.parents[row]];
            row = self.parents[row];
        }
        row
    }

    /// Joins the sets of pairs. `verify` decides the pairs whose score is below `certain`.
    fn join(&mut self, pairs: &[RowPair], certain: f32, verify: impl Fn(usize, usize) -> bool) {
        for &(a, b, score) in pairs {
            // The largest score, verified or not, does not depend on the order of the pairs.
            for row in [a, b] {
                self.best[row] = self.best[row].max(score);
            }
            let (first, second) = (self.root(a), self.root(b));
            if first != second && (score >= certain || verify(a, b)) {
                self.parents[first.max(second)] = first.min(second);
            }
        }
    }
}

impl Index {
    /// Groups of files that are connected by pairs with a cosine of at least the threshold, the most similar first. All pairs
    /// are compared; `progress` gets the share that is done.
    pub fn near_duplicates(
        &self,
        options: DuplicateOptions,
        progress: impl Fn(f64) + Sync,
    ) -> Result<Vec<DuplicateGroup>, SearchError> {
        let DuplicateOptions { threshold, threads } = options;
        let (segments, dim, kernels) = (self.segments(), self.settings().dim, Kernels::detect());
        let mut firsts = Vec::new();
        let mut rows = 0;
        for segment in &segments {
            firsts.push(rows);
            rows += segment.rows;
        }
        let blocks = row_blocks(&segments, BLOCK_ROWS);
        let block = |index: usize| {
            let (segment, rows) = blocks[index].clone();
            RowBlock::new(segments[segment], rows, dim, firsts[segment])
        };
        let inverse_lengths: Vec<f32> =
            (0..blocks.len()).flat_map(|index| block(index).inverse_lengths(dim).collect::<Vec<f32>>()).collect();
        // Roundings of the sum, of both lengths and of the products with them; pairs closer to the threshold than this are decided in f64.
        let error = (dim + 8) as f64 * UNIT_ROUNDOFF * LONGEST;
        let (possible, certain) = ((threshold - error) as f32, (threshold + error) as f32);
        let verify = |a, b| self.cosine(&segments, &firsts, a, b) >= threshold;
        let sets = Mutex::new(RowSets { parents: (0..rows).collect(), best: vec![0.0; rows] });
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let pairs_of_blocks = blocks.len() * (blocks.len() + 1) / 2;
        let work = || {
            let (mut scores, mut pairs) = (Vec::new(), Vec::new());
            loop {
                let first = next.fetch_add(1, Ordering::Relaxed);
                if first >= blocks.len() {
                    return;
                }
                let a = block(first);
                for second in first..blocks.len() {
                    let b = block(second);
                    scores.resize(a.rows.len() * b.rows.len(), 0.0);
                    kernels.tile(dim.next_multiple_of(PADDING), &a.values, &b.values, &mut scores);
                    pairs.clear();
                    for (row, scores) in a.rows.clone().zip(scores.chunks_exact(b.rows.len())) {
                        let scale = inverse_lengths[row];
                        for ((other, score), length) in b.rows.clone().zip(scores).zip(&inverse_lengths[b.rows.clone()])
                        {
                            let cosine = score * (scale * length);
                            if cosine >= possible && other > row {
                                pairs.push((row, other, cosine));
                            }
                        }
                    }
                    if !pairs.is_empty() {
                        sets.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).join(&pairs, certain, verify);
                    }
                }
                let all = done.fetch_add(blocks.len() - first, Ordering::Relaxed) + blocks.len() - first;
                progress(all as f64 / pairs_of_blocks as f64);
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..threads.min(blocks.len()) {
                scope.spawn(work);
            }
            work();
        });
        self.groups(sets.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner()), &firsts)
    }

    /// The cosine of two stored vectors, in f64.
    fn cosine(&self, segments: &[&VectorSegment], firsts: &[usize], a: usize, b: usize) -> f64 {
        let values = |row: usize| -> Vec<f64> {
            let (segment, row) = locate(firsts, row);
            match segments[segment].elements(row..row + 1) {
                RowElements::F16(row) => row.iter().map(|v| v.to_f64()).collect(),
                RowElements::Int8(row, _) => row.iter().map(|v| f64::from(*v)).collect(),
            }
        };
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let (a, b) = (values(a), values(b));
        // For equal vectors this is 1: the root of a rounded square is the number itself.
        dot(&a, &b) / (dot(&a, &a) * dot(&b, &b)).sqrt()
    }

    fn groups(&self, mut sets: RowSets, firsts: &[usize]) -> Result<Vec<DuplicateGroup>, SearchError> {
        let mut members: std::collections::BTreeMap<usize, Vec<usize>> = Default::default();
        for row in 0..sets.parents.len() {
            // Rows without a similar one are alone.
            if sets.best[row] > 0.0 {
                members.entry(sets.root(row)).or_default().push(row);
            }
        }
        let mut groups = Vec::new();
        for rows in members.into_values().filter(|rows| rows.len() > 1) {
            let hit = |row: usize| {
                let (segment, local) = locate(firsts, row);
                let file = self.segments()[segment].file(local)?.stamp.file;
                Ok(Hit { file, score: f64::from(sets.best[row]).min(1.0) })
            };
            let mut files = rows.into_iter().map(hit).collect::<Result<Vec<Hit>, SearchError>>()?;
            files.sort_by(|a, b| a.file.cmp(&b.file));
            groups.push(DuplicateGroup { files });
        }
        groups.sort_by(|a, b| b.best().total_cmp(&a.best()).then_with(|| a.files[0].file.cmp(&b.files[0].file)));
        Ok(groups)
    }
}

/// The segment of a row among all rows, and the row in it.
fn locate(firsts: &[usize], row: usize) -> (usize, usize) {
    let segment = firsts.partition_point(|first| *first <= row) - 1;
    (segment, row - firsts[segment])
}
