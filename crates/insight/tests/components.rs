//! Principal components against what linear algebra promises.

use vit_insight::principal_components;

/// Numbers without structure that are the same every time.
fn numbers(count: usize) -> Vec<f32> {
    let mut state = 12345u64;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn components_are_orthonormal_and_shares_are_the_variance_along_them() {
    for (n, dim) in [(40, 12), (9, 30), (7, 7), (5, 1), (2, 3)] {
        let rows = numbers(n * dim);
        let found = principal_components(&rows, dim, dim).unwrap();
        let count = found.shares.len();
        let mean: Vec<f32> = (0..dim).map(|c| (0..n).map(|r| rows[r * dim + c]).sum::<f32>() / n as f32).collect();
        let spread = |direction: &[f32]| -> f32 {
            let along = |r: usize| (0..dim).map(|c| (rows[r * dim + c] - mean[c]) * direction[c]).sum::<f32>();
            (0..n).map(|r| along(r).powi(2)).sum()
        };
        let total: f32 = (0..n * dim).map(|i| (rows[i] - mean[i % dim]).powi(2)).sum();
        let vectors: Vec<&[f32]> = found.vectors.chunks(dim).collect();
        for i in 0..count.min(n - 1) {
            for j in 0..=i {
                let dot: f32 = vectors[i].iter().zip(vectors[j]).map(|(a, b)| a * b).sum();
                assert!((dot - f32::from(i == j)).abs() < 1e-4, "{n}x{dim}: {i}.{j} = {dot}");
            }
            assert!((spread(vectors[i]) / total - found.shares[i]).abs() < 1e-4, "{n}x{dim}: share {i}");
        }
        assert!(found.shares.windows(2).all(|w| w[0] >= w[1]));
        assert!((found.shares.iter().sum::<f32>() - 1.0).abs() < 1e-4, "{n}x{dim}: {:?}", found.shares);
    }
}

#[test]
fn filters_of_the_wrong_length_are_refused() {
    assert!(principal_components(&[0.0; 7], 3, 2).is_err());
    assert!(principal_components(&[], 3, 2).is_err());
}
