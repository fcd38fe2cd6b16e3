//! Principal components of filters (the paper's Figure 7, left).

use nalgebra::{DMatrix, SymmetricEigen};

use crate::InsightError;

/// Principal components.
#[derive(Debug, Clone, PartialEq)]
pub struct Components {
    /// Unit vectors `[count, dim]`, in descending order of variance; the largest entry of each is positive.
    pub vectors: Vec<f32>,
    /// The share of the variance that each explains.
    pub shares: Vec<f32>,
}

/// The first principal components of `rows [n, dim]`, centred.
pub fn principal_components(rows: &[f32], dim: usize, count: usize) -> Result<Components, InsightError> {
    if dim == 0 || rows.is_empty() || !rows.len().is_multiple_of(dim) {
        let expected = rows.len().next_multiple_of(dim.max(1)).max(dim);
        return Err(InsightError::Length { what: "filters", found: rows.len(), expected });
    }
    let n = rows.len() / dim;
    let mut centred = DMatrix::from_row_iterator(n, dim, rows.iter().map(|&v| f64::from(v)));
    for mut column in centred.column_iter_mut() {
        let mean = column.mean();
        column.add_scalar_mut(-mean);
    }
    // The smaller of the two Gram matrices has the same non-zero eigenvalues.
    let by_rows = n < dim;
    let gram = if by_rows { &centred * centred.transpose() } else { centred.tr_mul(&centred) };
    let total = gram.trace();
    let SymmetricEigen { eigenvalues, eigenvectors } = gram.symmetric_eigen();
    let mut order: Vec<usize> = (0..eigenvalues.len()).collect();
    order.sort_by(|&a, &b| eigenvalues[b].total_cmp(&eigenvalues[a]));
    let mut components = Components { vectors: Vec::new(), shares: Vec::new() };
    for &index in order.iter().take(count) {
        let vector = eigenvectors.column(index);
        let direction = if by_rows { centred.tr_mul(&vector) } else { vector.into_owned() };
        let length = direction.norm();
        let scale = if length > 0.0 { direction[direction.iamax()].signum() / length } else { 0.0 };
        components.vectors.extend(direction.iter().map(|v| (v * scale) as f32));
        components.shares.push(if total > 0.0 { (eigenvalues[index].max(0.0) / total) as f32 } else { 0.0 });
    }
    Ok(components)
}
