//! Ridge regression in closed form: `W = (X Xᵀ + λ I)⁻¹ X Yᵀ`, or `X (Xᵀ X + λ I)⁻¹ Yᵀ` with fewer samples than features,
//! where the columns of `X` and `Y` are centred samples and targets. The intercept is not regularised.

use nalgebra::{DMatrix, DVector};

/// The part of the solution that does not depend on λ.
pub struct Ridge {
    /// Centred samples, `[width, samples]`.
    samples: DMatrix<f64>,
    /// Centred targets, `[samples, outputs]`.
    targets: DMatrix<f64>,
    /// `X Xᵀ`, or `Xᵀ X` if that is smaller.
    gram: DMatrix<f64>,
    sample_mean: DVector<f64>,
    target_mean: DVector<f64>,
}

/// A linear function of features.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearModel {
    /// `[outputs, width]`.
    pub weights: DMatrix<f64>,
    /// Of every output.
    pub intercept: DVector<f64>,
}

impl Ridge {
    /// `samples` are `[width, samples]`, `targets` `[outputs, samples]`.
    pub fn new(mut samples: DMatrix<f64>, targets: &DMatrix<f64>) -> Self {
        let (sample_mean, target_mean) = (samples.column_mean(), targets.column_mean());
        samples.column_iter_mut().for_each(|mut sample| sample -= &sample_mean);
        let mut targets = targets.clone();
        targets.column_iter_mut().for_each(|mut target| target -= &target_mean);
        let transposed = samples.transpose();
        let gram = if samples.nrows() <= samples.ncols() { &samples * &transposed } else { &transposed * &samples };
        Self { samples, targets: targets.transpose(), gram, sample_mean, target_mean }
    }

    /// The solution for one λ; `None` if the matrix is not positive definite, as for a λ of 0 and dependent features.
    pub fn solve(&self, lambda: f64) -> Option<LinearModel> {
        let mut matrix = self.gram.clone();
        for at in 0..matrix.nrows() {
            matrix[(at, at)] += lambda;
        }
        let cholesky = matrix.cholesky()?;
        let weights = if self.samples.nrows() <= self.samples.ncols() {
            cholesky.solve(&(&self.samples * &self.targets))
        } else {
            &self.samples * cholesky.solve(&self.targets)
        };
        let weights = weights.transpose();
        let intercept = &self.target_mean - &weights * &self.sample_mean;
        Some(LinearModel { weights, intercept })
    }
}

impl LinearModel {
    /// The outputs `[outputs, samples]` for samples `[width, samples]`.
    pub fn predict(&self, samples: &DMatrix<f64>) -> DMatrix<f64> {
        let mut outputs = &self.weights * samples;
        outputs.column_iter_mut().for_each(|mut output| output += &self.intercept);
        outputs
    }
}
