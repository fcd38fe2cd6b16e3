//! The fixed binary tree in which contributions are added, and the split of a vector into one slice per rank.

use std::ops::{AddAssign, Range};

/// Elements that are added before the next ones are read: one block of every contribution fits into the L2 cache.
const BLOCK: usize = 4096;

/// The elements of a vector of `len` that `rank` of `size` owns: contiguous, in the order of the ranks, and their lengths
/// differ by at most one.
pub fn slice(len: usize, rank: usize, size: usize) -> Range<usize> {
    // In u128: `len * size` may exceed 64 bits.
    let start = |rank: usize| (len as u128 * rank as u128 / size as u128) as usize;
    start(rank)..start(rank + 1)
}

/// Adds all contributions elementwise into the first, pairwise in a binary tree: `((0+1)+(2+3))+((4+5)+(6+7))`. If their
/// number is no power of two, the left subtree is the largest power of two below it. The others hold partial sums
/// afterwards.
///
/// # Panics
/// If the contributions differ in length.
pub fn tree_sum<T: Copy + AddAssign>(contributions: &mut [&mut [T]]) {
    let len = contributions.first().map_or(0, |first| first.len());
    assert!(contributions.iter().all(|values| values.len() == len), "contributions of different lengths");
    for start in (0..len).step_by(BLOCK) {
        let block = start..(start + BLOCK).min(len);
        let mut stride = 1;
        while stride < contributions.len() {
            for left in (0..contributions.len() - stride).step_by(2 * stride) {
                let (before, from) = contributions.split_at_mut(left + stride);
                for (sum, value) in before[left][block.clone()].iter_mut().zip(&from[0][block.clone()]) {
                    *sum += *value;
                }
            }
            stride *= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The definition: the left subtree has the largest power of two of leaves that leaves something to the right.
    fn recursive(values: &[f32]) -> f32 {
        if let [value] = values {
            return *value;
        }
        let (left, right) = values.split_at(values.len().next_power_of_two() / 2);
        recursive(left) + recursive(right)
    }

    #[test]
    fn contributions_are_added_in_the_order_of_the_tree() {
        for leaves in 1..=17 {
            let value =
                |leaf: usize, i: usize| ((leaf * 7919 + i * 104_729) % 1009) as f32 * 1e-3 + 1e3 * (i % 3) as f32;
            let mut rows: Vec<Vec<f32>> =
                (0..leaves).map(|l| (0..2 * BLOCK + 5).map(|i| value(l, i)).collect()).collect();
            tree_sum(&mut rows.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
            for (i, sum) in rows[0].iter().enumerate() {
                let column: Vec<f32> = (0..leaves).map(|leaf| value(leaf, i)).collect();
                assert_eq!(sum.to_bits(), recursive(&column).to_bits(), "{leaves} leaves, element {i}");
            }
        }
    }

    #[test]
    fn slices_cover_a_vector_in_order() {
        for len in [0, 1, 2, 7, 8, 1000, 1001] {
            for size in 1..=9 {
                let ends: Vec<_> = (0..size).map(|rank| slice(len, rank, size)).collect();
                assert_eq!((ends[0].start, ends[size - 1].end), (0, len));
                assert!(ends.windows(2).all(|pair| pair[0].end == pair[1].start));
                assert!(ends.iter().all(|range| range.len().abs_diff(len / size) <= 1), "{ends:?}");
            }
        }
    }
}
