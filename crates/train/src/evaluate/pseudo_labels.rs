//! Selection of pseudo-labels (Noisy Student, Xie et al., 2020) by confidence, balanced over classes.

/// A teacher's label of one image.
#[derive(Debug, Clone, PartialEq)]
pub struct PseudoLabel {
    /// The index of the image.
    pub image: usize,
    /// The most probable class.
    pub class: usize,
    /// Its probability.
    pub confidence: f32,
}

/// Which pseudo-labels are used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PseudoLabelChoice {
    /// The lowest confidence.
    pub min_confidence: f32,
    /// The number of labels of each class: the most confident ones, repeated if there are fewer.
    pub per_class: Option<usize>,
}

impl PseudoLabelChoice {
    /// The indices of the chosen labels in the order of the images, with repetitions.
    pub fn of(&self, labels: &[PseudoLabel]) -> Vec<usize> {
        let sure = |place: &usize| labels[*place].confidence >= self.min_confidence;
        let mut chosen: Vec<usize> = (0..labels.len()).filter(sure).collect();
        if let Some(count) = self.per_class {
            // By class, the most confident first.
            chosen.sort_by(|&a, &b| {
                let (a, b) = (&labels[a], &labels[b]);
                a.class.cmp(&b.class).then(b.confidence.total_cmp(&a.confidence)).then(a.image.cmp(&b.image))
            });
            let classes = chosen.chunk_by(|&a, &b| labels[a].class == labels[b].class);
            chosen = classes.flat_map(|class| class.iter().copied().cycle().take(count)).collect();
        }
        chosen.sort_by_key(|&place| labels[place].image);
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels() -> Vec<PseudoLabel> {
        let all = [(0, 0.9), (1, 0.2), (0, 0.5), (1, 0.6), (0, 0.7), (2, 0.1)];
        let label = |(image, (class, confidence))| PseudoLabel { image, class, confidence };
        all.into_iter().enumerate().map(label).collect()
    }

    #[test]
    fn labels_below_the_lowest_confidence_are_dropped() {
        let choice = PseudoLabelChoice { min_confidence: 0.5, per_class: None };
        assert_eq!(choice.of(&labels()), [0, 2, 3, 4]);
    }

    #[test]
    fn classes_are_balanced_by_selection_and_repetition() {
        let choice = PseudoLabelChoice { min_confidence: 0.15, per_class: Some(2) };
        assert_eq!(choice.of(&labels()), [0, 1, 3, 4]);
        // The second class has one confident image, which is repeated.
        let choice = PseudoLabelChoice { min_confidence: 0.3, per_class: Some(2) };
        assert_eq!(choice.of(&labels()), [0, 3, 3, 4]);
        let choice = PseudoLabelChoice { min_confidence: 0.95, per_class: Some(2) };
        assert!(choice.of(&labels()).is_empty());
    }
}
