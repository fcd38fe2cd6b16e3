//! Classification by nearest neighbours, whose votes are weighted as by Wu et al. (2018) and in DINO.

use nalgebra::DMatrix;

use super::parallel;

/// The vote of the nearest neighbours by cosine: each votes with the exponential of its cosine divided by the temperature.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NearestNeighbours {
    /// Neighbours that vote.
    pub neighbours: usize,
    /// What cosines are divided by.
    pub temperature: f64,
}

impl Default for NearestNeighbours {
    /// 20 neighbours and a temperature of 0.07, as in DINO.
    fn default() -> Self {
        Self { neighbours: 20, temperature: 0.07 }
    }
}

impl NearestNeighbours {
    /// Writes the votes for each class, given the cosines with all references and the class of each. Of equally near
    /// references the first ones vote.
    pub fn vote(&self, similarities: &[f32], class: impl Fn(usize) -> usize, votes: &mut [f64]) {
        votes.fill(0.0);
        let mut order: Vec<usize> = (0..similarities.len()).collect();
        let nearer = |a: &usize, b: &usize| similarities[*b].total_cmp(&similarities[*a]).then(a.cmp(b));
        let voters = self.neighbours.clamp(1, order.len().max(1)).min(order.len());
        if voters < order.len() {
            order.select_nth_unstable_by(voters - 1, nearer);
        }
        order.truncate(voters);
        // Added in a fixed order.
        order.sort_unstable_by(nearer);
        for reference in order {
            if let Some(vote) = votes.get_mut(class(reference)) {
                *vote += (f64::from(similarities[reference]) / self.temperature).exp();
            }
        }
    }

    /// The shares of the votes of all classes, `[queries, classes]`, for rows of features of this width.
    pub fn shares(
        &self,
        references: &[f32],
        labels: &[u32],
        queries: &[f32],
        width: usize,
        classes: usize,
    ) -> Vec<f64> {
        // Queries that are compared at once.
        const BLOCK: usize = 64;
        let references = DMatrix::from_vec(width, labels.len(), unit_rows(references, width)).transpose();
        let queries = unit_rows(queries, width);
        let blocks: Vec<&[f32]> = queries.chunks(BLOCK * width).collect();
        let shares = parallel(blocks.len(), |block| {
            let block = blocks[block];
            let cosines = &references * DMatrix::from_column_slice(width, block.len() / width, block);
            let mut shares = vec![0.0; cosines.ncols() * classes];
            for (cosines, shares) in cosines.as_slice().chunks_exact(labels.len()).zip(shares.chunks_mut(classes)) {
                self.vote(cosines, |reference| labels[reference] as usize, shares);
                let all: f64 = shares.iter().sum();
                shares.iter_mut().for_each(|votes| *votes /= all);
            }
            shares
        });
        shares.concat()
    }
}

/// Rows scaled to length 1.
fn unit_rows(values: &[f32], width: usize) -> Vec<f32> {
    let mut rows = values.to_vec();
    for row in rows.chunks_exact_mut(width) {
        let length = row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt().max(1e-12);
        row.iter_mut().for_each(|v| *v = (f64::from(*v) / length) as f32);
    }
    rows
}
