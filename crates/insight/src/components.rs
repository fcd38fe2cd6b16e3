//! Principal components of the patch-embedding filters (the paper's Figure 7, left): the plausible basis functions for
//! the fine structure within a patch.

use crate::InsightError;

/// The directions in which filters differ most.
#[derive(Debug, Clone, PartialEq)]
pub struct Components {
    /// Unit vectors `[count, dim]`, the most important first; the largest entry of each is positive.
    pub vectors: Vec<f32>,
    /// The share of the variance along each.
    pub shares: Vec<f32>,
}

/// The first principal components of `rows [n, dim]`: the mean over rows is taken off first.
pub fn principal_components(rows: &[f32], dim: usize, count: usize) -> Result<Components, InsightError> {
    if dim == 0 || rows.is_empty() || !rows.len().is_multiple_of(dim) {
        let expected = rows.len().next_multiple_of(dim.max(1)).max(dim);
        return Err(InsightError::Length { what: "filters", found: rows.len(), expected });
    }
    let n = rows.len() / dim;
    let mut centred: Vec<f64> = rows.iter().map(|&v| f64::from(v)).collect();
    for column in 0..dim {
        let mean = (0..n).map(|row| centred[row * dim + column]).sum::<f64>() / n as f64;
        (0..n).for_each(|row| centred[row * dim + column] -= mean);
    }
    // The smaller of the two Gram matrices has the same non-zero eigenvalues.
    let by_rows = n < dim;
    let size = n.min(dim);
    let entry = |i: usize, j: usize| -> f64 {
        if by_rows {
            (0..dim).map(|c| centred[i * dim + c] * centred[j * dim + c]).sum()
        } else {
            (0..n).map(|r| centred[r * dim + i] * centred[r * dim + j]).sum()
        }
    };
    let mut gram = vec![0.0; size * size];
    for i in 0..size {
        for j in 0..=i {
            let value = entry(i, j);
            (gram[i * size + j], gram[j * size + i]) = (value, value);
        }
    }
    let total: f64 = (0..size).map(|i| gram[i * size + i]).sum();
    let (values, vectors) = symmetric_eigen(gram, size);
    let mut order: Vec<usize> = (0..size).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]));
    let mut components = Components { vectors: Vec::new(), shares: Vec::new() };
    for &index in order.iter().take(count) {
        let vector = |i: usize| vectors[i * size + index];
        let direction: Vec<f64> = if by_rows {
            (0..dim).map(|c| (0..n).map(|r| centred[r * dim + c] * vector(r)).sum()).collect()
        } else {
            (0..dim).map(vector).collect()
        };
        let length = direction.iter().map(|v| v * v).sum::<f64>().sqrt();
        let largest = direction.iter().fold(0.0f64, |m, &v| if v.abs() > m.abs() { v } else { m });
        let scale = if length > 0.0 { largest.signum() / length } else { 0.0 };
        components.vectors.extend(direction.iter().map(|v| (v * scale) as f32));
        components.shares.push(if total > 0.0 { (values[index].max(0.0) / total) as f32 } else { 0.0 });
    }
    Ok(components)
}

/// Eigenvalues and eigenvectors (in columns) of a symmetric matrix: Householder's reduction to a tridiagonal matrix,
/// then implicit QL steps. Robust and quick enough for the thousand values of a patch.
fn symmetric_eigen(mut a: Vec<f64>, n: usize) -> (Vec<f64>, Vec<f64>) {
    let (mut diagonal, mut off) = tridiagonal(&mut a, n);
    for left in 0..n {
        for _ in 0..64 {
            let negligible = |m: usize| off[m].abs() <= f64::EPSILON * (diagonal[m].abs() + diagonal[m + 1].abs());
            let split = (left..n - 1).find(|&m| negligible(m)).unwrap_or(n - 1);
            if split == left {
                break;
            }
            ql_step(&mut diagonal, &mut off, &mut a, n, left, split);
        }
    }
    (diagonal, a)
}

/// Turns a symmetric matrix into the orthogonal matrix that makes it tridiagonal; gives diagonal and off-diagonal.
fn tridiagonal(a: &mut [f64], n: usize) -> (Vec<f64>, Vec<f64>) {
    let mut off = vec![0.0; n];
    // The product of all reflections, built up column by column.
    let mut q: Vec<f64> = (0..n * n).map(|i| if i / n == i % n { 1.0 } else { 0.0 }).collect();
    for k in 0..n.saturating_sub(2) {
        let column: Vec<f64> = (k + 1..n).map(|i| a[i * n + k]).collect();
        let norm = column.iter().map(|v| v * v).sum::<f64>().sqrt();
        if norm == 0.0 {
            continue;
        }
        let mut v = column;
        v[0] += if v[0] >= 0.0 { norm } else { -norm };
        let square: f64 = v.iter().map(|x| x * x).sum();
        // A <- H A H with H = I - 2 v vᵀ / vᵀv on the rows and columns after k.
        for j in 0..n {
            let s: f64 = v.iter().enumerate().map(|(i, x)| x * a[(k + 1 + i) * n + j]).sum::<f64>() * 2.0 / square;
            v.iter().enumerate().for_each(|(i, x)| a[(k + 1 + i) * n + j] -= s * x);
        }
        for row in a.chunks_mut(n).chain(q.chunks_mut(n)) {
            let s: f64 = v.iter().zip(&row[k + 1..]).map(|(x, r)| x * r).sum::<f64>() * 2.0 / square;
            v.iter().zip(&mut row[k + 1..]).for_each(|(x, r)| *r -= s * x);
        }
    }
    let diagonal = (0..n).map(|i| a[i * n + i]).collect();
    (0..n.saturating_sub(1)).for_each(|i| off[i] = a[(i + 1) * n + i]);
    a.copy_from_slice(&q);
    (diagonal, off)
}

/// One QL step with Wilkinson's shift on the block from `left` to `right`.
fn ql_step(d: &mut [f64], e: &mut [f64], vectors: &mut [f64], n: usize, left: usize, right: usize) {
    let g = (d[left + 1] - d[left]) / (2.0 * e[left]);
    let r = g.hypot(1.0);
    let mut g = d[right] - d[left] + e[left] / (g + if g >= 0.0 { r } else { -r });
    let (mut s, mut c, mut p) = (1.0, 1.0, 0.0);
    for i in (left..right).rev() {
        let (f, b) = (s * e[i], c * e[i]);
        let r = f.hypot(g);
        e[i + 1] = r;
        if r == 0.0 {
            d[i + 1] -= p;
            e[right] = 0.0;
            return;
        }
        (s, c) = (f / r, g / r);
        g = d[i + 1] - p;
        let t = (d[i] - g) * s + 2.0 * c * b;
        p = s * t;
        d[i + 1] = g + p;
        g = c * t - b;
        for row in vectors.chunks_mut(n) {
            let (x, y) = (row[i], row[i + 1]);
            row[i + 1] = s * x + c * y;
            row[i] = c * x - s * y;
        }
    }
    d[left] -= p;
    e[left] = g;
    e[right] = 0.0;
}
