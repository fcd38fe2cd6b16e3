//! Few-shot linear classification by ridge regression to -1 and 1, as in big_vision and in the Vision Transformer's paper:
//! features are standardised, and the strength of the regularisation is chosen on held-out training images.

use nalgebra::DMatrix;
use vit_data::augment::SampleRandom;

use super::{Features, LinearModel, Ridge, Standardisation, parallel};

/// The accuracy of few-shot classification over several draws.
#[derive(Debug, Clone, PartialEq)]
pub struct FewShot {
    /// Training images of each class.
    pub shots: usize,
    /// The chosen strength of regularisation; `None` if a class has too few training images.
    pub l2: Option<f64>,
    /// The accuracy of each draw.
    pub top1: Vec<f64>,
}

impl FewShot {
    /// The mean over the draws.
    pub fn mean(&self) -> f64 {
        self.top1.iter().sum::<f64>() / self.top1.len() as f64
    }

    /// The standard deviation of the draws, NaN of a single one.
    pub fn deviation(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.top1.iter().map(|top1| (top1 - mean).powi(2)).sum();
        (squares / (self.top1.len() as f64 - 1.0)).sqrt()
    }
}

/// What few-shot classifiers are drawn from, chosen on and measured on.
pub(super) struct Shots<'a> {
    pub pool: &'a Features,
    pub held_out: &'a Features,
    pub test: &'a Features,
    pub draws: usize,
    pub seed: u64,
}

impl Shots<'_> {
    /// Classifiers from this many images of each class.
    pub fn classify(&self, shots: usize) -> FewShot {
        let members: Vec<Vec<usize>> = self.pool.by_class().into_iter().filter(|class| !class.is_empty()).collect();
        if shots == 0 || members.iter().any(|class| class.len() < shots) {
            return FewShot { shots, l2: None, top1: Vec::new() };
        }
        // Powers of 4 from 2⁻¹⁰ to 2²⁰.
        let strengths: Vec<f64> = (-5..=10).map(|power| 4f64.powi(power)).collect();
        let by_draw = parallel(self.draws, |draw| {
            let fit = self.fit(&members, shots, draw);
            strengths.iter().map(|l2| fit.accuracy(*l2, self.held_out)).collect::<Vec<f64>>()
        });
        let over_draws = |strength: usize| by_draw.iter().map(|draw| draw[strength]).sum::<f64>();
        let sums: Vec<f64> = (0..strengths.len()).map(over_draws).collect();
        let l2 = strengths[super::largest(&sums)];
        let top1 = parallel(self.draws, |draw| self.fit(&members, shots, draw).accuracy(l2, self.test));
        FewShot { shots, l2: Some(l2), top1 }
    }

    /// The images of a draw, those of fewer shots first.
    fn fit(&self, members: &[Vec<usize>], shots: usize, draw: usize) -> FittedShots {
        let mut chosen = Vec::with_capacity(members.len() * shots);
        for (class, members) in members.iter().enumerate() {
            let order = SampleRandom::new(self.seed, draw as u64, class as u64, 0).permutation(members.len());
            chosen.extend(order[..shots].iter().map(|&at| members[at as usize]));
        }
        let images = self.pool.rows(&chosen);
        let standardisation = Standardisation::of(&images.values, images.width);
        let target = |class: usize, image: usize| if images.labels[image] as usize == class { 1.0 } else { -1.0 };
        let targets = DMatrix::from_fn(images.classes, chosen.len(), target);
        FittedShots { ridge: Ridge::new(standardisation.apply(&images.values), &targets), standardisation }
    }
}

struct FittedShots {
    ridge: Ridge,
    standardisation: Standardisation,
}

impl FittedShots {
    /// The accuracy with one strength of regularisation; 0 if that has no solution.
    fn accuracy(&self, l2: f64, images: &Features) -> f64 {
        let score = |model: LinearModel| {
            let outputs = model.predict(&self.standardisation.apply(&images.values));
            images.accuracy(outputs.as_slice())
        };
        self.ridge.solve(l2).map_or(0.0, score)
    }
}
