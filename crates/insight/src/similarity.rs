//! Cosine similarity of position embeddings (the paper's Figure 7, centre).

use crate::InsightError;

/// Cosine similarity of all pairs of rows: `[rows, rows]` of `vectors [rows, dim]`.
pub fn cosine_similarity(vectors: &[f32], dim: usize) -> Result<Vec<f32>, InsightError> {
    if dim == 0 || vectors.is_empty() || !vectors.len().is_multiple_of(dim) {
        let expected = vectors.len().next_multiple_of(dim.max(1)).max(dim);
        return Err(InsightError::Length { what: "rows of vectors", found: vectors.len(), expected });
    }
    let dot = |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum() };
    let rows: Vec<&[f32]> = vectors.chunks(dim).collect();
    let lengths: Vec<f64> = rows.iter().map(|row| dot(row, row).sqrt()).collect();
    let mut similarity = Vec::with_capacity(rows.len() * rows.len());
    for (a, length_a) in rows.iter().zip(&lengths) {
        for (b, length_b) in rows.iter().zip(&lengths) {
            // The similarity with a zero vector is defined as 0.
            let product = length_a * length_b;
            similarity.push(if product > 0.0 { (dot(a, b) / product) as f32 } else { 0.0 });
        }
    }
    Ok(similarity)
}
