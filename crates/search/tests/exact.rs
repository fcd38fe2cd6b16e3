//! Searches give what f64 arithmetic over the stored vectors gives, ties included.

mod support;

use std::collections::BTreeSet;

use support::{Random, index_of, stored};
use vit_search::{DuplicateOptions, Index, IndexWriter, VectorType};

/// The best files by f64 over the stored vectors, equal ones by path.
fn brute_force(index: &Index, query: &[f32], top: usize) -> Vec<(String, f64)> {
    let length = query.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
    let query: Vec<f32> = query.iter().map(|v| (f64::from(*v) / length) as f32).collect();
    let mut all: Vec<(String, f64)> = stored(index)
        .into_iter()
        .map(|(file, vector)| (file, query.iter().zip(&vector).map(|(q, v)| f64::from(*q) * v).sum()))
        .collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    all.truncate(top);
    all
}

#[test]
fn the_best_are_those_of_f64() {
    let mut random = Random(1);
    for (dim, rows) in [(512, 3000), (7, 500), (33, 1), (256, 70)] {
        for vectors in [VectorType::F16, VectorType::Int8] {
            // Clusters, so that many scores are close to one another.
            let centre = random.vector(dim);
            let near = |random: &mut Random| -> Vec<f32> {
                random.vector(dim).iter().zip(&centre).map(|(v, c)| 0.01 * v + c).collect()
            };
            let all: Vec<Vec<f32>> =
                (0..rows).map(|i| if i % 2 == 0 { near(&mut random) } else { random.vector(dim) }).collect();
            let folder = tempfile::tempdir().unwrap();
            let index = index_of(folder.path(), vectors, &all);
            for top in [1, 10, rows + 5] {
                let query = near(&mut random);
                let expected = brute_force(&index, &query, top);
                for threads in [1, 3] {
                    let found = index.search(&query, top, threads).unwrap();
                    assert_eq!(found.len(), expected.len());
                    for (hit, (file, score)) in found.iter().zip(&expected) {
                        assert_eq!(&hit.file, file, "{dim} {vectors} {top}");
                        assert!((hit.score - score).abs() < 1e-12);
                    }
                }
            }
        }
    }
}

#[test]
fn equal_vectors_are_ordered_by_path() {
    let folder = tempfile::tempdir().unwrap();
    let mut vectors = vec![vec![0.5f32, 0.25, -0.25]; 300];
    vectors.push(vec![1.0, 0.0, 0.0]);
    let index = index_of(folder.path(), VectorType::F16, &vectors);
    let found = index.search(&[0.5, 0.25, -0.25], 5, 2).unwrap();
    let files: Vec<&str> = found.iter().map(|hit| hit.file.as_str()).collect();
    assert_eq!(files, ["000.jpg", "001.jpg", "002.jpg", "003.jpg", "004.jpg"]);
}

#[test]
fn groups_of_near_duplicates_are_the_connected_ones() {
    let mut random = Random(5);
    for vectors in [VectorType::F16, VectorType::Int8] {
        let mut all: Vec<Vec<f32>> = (0..400).map(|_| random.vector(40)).collect();
        for (copy, original, noise) in [(17, 3, 0.0), (399, 3, 0.05), (200, 150, 0.05), (201, 151, 0.9)] {
            all[copy] = all[original].iter().zip(random.vector(40)).map(|(v, n)| v + noise * n).collect();
        }
        let folder = tempfile::tempdir().unwrap();
        let index = index_of(folder.path(), vectors, &all);
        for threads in [1, 4] {
            let options = DuplicateOptions { threshold: 0.95, threads };
            let groups = index.near_duplicates(options, |share| assert!(share <= 1.0)).unwrap();
            let names: Vec<Vec<&str>> =
                groups.iter().map(|g| g.files.iter().map(|f| f.file.as_str()).collect()).collect();
            assert_eq!(names, [vec!["003.jpg", "017.jpg", "399.jpg"], vec!["150.jpg", "200.jpg"]]);
            assert_eq!((groups[0].files[0].score * 1e6).round(), 1e6, "the same vector");
            assert!(groups[0].files[2].score < 0.9999);
        }
        // Equal vectors are found at a threshold of 1, and nothing else.
        let same = index.near_duplicates(DuplicateOptions { threshold: 1.0, threads: 2 }, |_| ()).unwrap();
        assert_eq!(same.len(), 1);
        assert_eq!(same[0].files.len(), 2);
    }
}

#[test]
fn near_duplicates_are_decided_in_f64() {
    let folder = tempfile::tempdir().unwrap();
    let mut random = Random(9);
    let base = random.vector(64);
    let all: Vec<Vec<f32>> =
        (0..90).map(|_| base.iter().zip(random.vector(64)).map(|(v, n)| v + 0.3 * n).collect()).collect();
    let index = index_of(folder.path(), VectorType::F16, &all);
    let vectors: Vec<Vec<f64>> = stored(&index).into_iter().map(|(_, vector)| vector).collect();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let cosine = |a: &[f64], b: &[f64]| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
    let mut pairs = Vec::new();
    for a in 0..vectors.len() {
        pairs.extend((a + 1..vectors.len()).map(|b| (cosine(&vectors[a], &vectors[b]), a, b)));
    }
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
    // A threshold at a pair's own cosine includes it, and one above excludes it.
    for &(threshold, a, b) in pairs.iter().take(20) {
        let members = |threshold: f64| -> BTreeSet<String> {
            let groups = index.near_duplicates(DuplicateOptions { threshold, threads: 2 }, |_| ()).unwrap();
            groups.into_iter().flat_map(|group| group.files).map(|hit| hit.file).collect()
        };
        let names = [a, b].map(|row| format!("{row:03}.jpg"));
        assert!(names.iter().all(|name| members(threshold).contains(name)));
        let above: BTreeSet<String> = pairs
            .iter()
            .take_while(|p| p.0 > threshold)
            .flat_map(|p| [p.1, p.2])
            .map(|r| format!("{r:03}.jpg"))
            .collect();
        assert_eq!(members(threshold * (1.0 + 1e-15)), above);
    }
}

#[test]
fn queries_without_a_direction_or_of_another_length_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let index = index_of(folder.path(), VectorType::F16, &[vec![1.0, 0.0]]);
    assert!(index.search(&[0.0, 0.0], 1, 1).unwrap_err().to_string().contains("no direction"));
    let other = index.search(&[1.0], 1, 1).unwrap_err().to_string();
    assert_eq!(other, "a vector of 1 elements, where those of the index have 2");
    assert!(index.search(&[1.0, 1.0], 0, 1).unwrap().is_empty());
    let empty = tempfile::tempdir().unwrap();
    let writer = IndexWriter::open(empty.path(), support::settings(2, VectorType::Int8)).unwrap();
    assert_eq!(writer.finish(|_| true).unwrap(), 0);
    let empty = Index::open(empty.path()).unwrap();
    assert!(empty.search(&[1.0, 1.0], 3, 2).unwrap().is_empty());
    assert!(empty.near_duplicates(DuplicateOptions { threshold: 0.9, threads: 2 }, |_| ()).unwrap().is_empty());
}
