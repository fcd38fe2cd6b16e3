//! Results over seeds: means, standard deviations, and the choice of swept settings by validation.

use std::collections::BTreeMap;

use super::{StudyResult, StudyRun};

/// A mean and, of two values and more, their standard deviation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// The mean.
    pub mean: f64,
    /// The standard deviation of a sample.
    pub deviation: Option<f64>,
    /// The number of values.
    pub count: usize,
}

impl Spread {
    /// That of some values; `None` without any.
    pub fn of(values: &[f64]) -> Option<Spread> {
        let count = values.len();
        if count == 0 {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count as f64;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let deviation = (count > 1).then(|| (squares / (count as f64 - 1.0)).sqrt());
        Some(Spread { mean, deviation, count })
    }

    /// As a percentage: `85.20 ± 0.31%`.
    pub fn percent(&self) -> String {
        match self.deviation {
            Some(deviation) => format!("{:.2} ± {:.2}%", 100.0 * self.mean, 100.0 * deviation),
            None => format!("{:.2}%", 100.0 * self.mean),
        }
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Measure {
    /// The score on the test images.
    Test,
    /// Few-shot accuracy from so many images of each class.
    FewShot(usize),
}

impl Measure {
    pub fn of(self, result: &StudyResult) -> Option<f64> {
        match self {
            Measure::Test => result.score,
            Measure::FewShot(shots) => result.few_shot.get(&shots).copied(),
        }
    }
}

/// The runs that differ in their seed alone.
#[derive(Debug, Clone)]
pub(super) struct Point<'a> {
    /// The values of the study's dimensions.
    pub place: &'a [(String, String)],
    pub results: Vec<&'a StudyResult>,
    /// Whether its swept settings are those with the best validation score; always without a sweep.
    pub chosen: bool,
}

impl Point<'_> {
    pub fn at(&self, dimension: &str) -> &str {
        self.place.iter().find(|(name, _)| name == dimension).map_or("", |(_, value)| value)
    }

    pub fn spread(&self, measure: Measure) -> Option<Spread> {
        let values: Vec<f64> = self.results.iter().filter_map(|result| measure.of(result)).collect();
        Spread::of(&values)
    }

    pub fn validation(&self) -> Option<Spread> {
        Spread::of(&self.results.iter().filter_map(|result| result.validation).collect::<Vec<f64>>())
    }

    pub fn diverged(&self) -> usize {
        self.results.iter().filter(|result| result.diverged).count()
    }

    pub fn mean(&self, value: impl Fn(&StudyResult) -> f64) -> f64 {
        self.results.iter().map(|result| value(result)).sum::<f64>() / self.results.len().max(1) as f64
    }
}

/// The points of a study in the order of its runs. `sweep` are the dimensions that validation chooses.
pub(super) fn points<'a>(results: &'a [(&'a StudyRun, StudyResult)], sweep: &[String]) -> Vec<Point<'a>> {
    let mut points: Vec<Point> = Vec::new();
    for (run, result) in results {
        match points.iter_mut().find(|point| point.place == run.place) {
            Some(point) => point.results.push(result),
            None => points.push(Point { place: &run.place, results: vec![result], chosen: sweep.is_empty() }),
        }
    }
    if sweep.is_empty() {
        return points;
    }
    // Of points that differ in swept settings alone, the best by validation; one with a diverged run comes last.
    let mut best: BTreeMap<Vec<&str>, (usize, (bool, f64))> = BTreeMap::new();
    for (index, point) in points.iter().enumerate() {
        let fixed = point.place.iter().filter(|(name, _)| !sweep.contains(name));
        let key: Vec<&str> = fixed.map(|(_, value)| value.as_str()).collect();
        let score = (point.diverged() == 0, point.validation().map_or(f64::NEG_INFINITY, |spread| spread.mean));
        let entry = best.entry(key).or_insert((index, score));
        if score > entry.1 {
            *entry = (index, score);
        }
    }
    for (index, _) in best.into_values() {
        points[index].chosen = true;
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_the_mean_and_the_sample_deviation() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[0.5]).unwrap().percent(), "50.00%");
        let spread = Spread::of(&[0.5, 0.6, 0.7]).unwrap();
        assert!((spread.mean - 0.6).abs() < 1e-12 && (spread.deviation.unwrap() - 0.1).abs() < 1e-12);
        assert_eq!(spread.percent(), "60.00 ± 10.00%");
    }
}
