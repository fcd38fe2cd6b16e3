//! Which of a teacher's labels a student learns (Noisy Student, Xie et al., 2020): those that the teacher is sure enough
//! of, and as many of each class.

/// What a teacher says of one picture.
#[derive(Debug, Clone, PartialEq)]
pub struct PseudoLabel {
    /// The picture's number.
    pub picture: usize,
    /// The likeliest class.
    pub class: usize,
    /// How likely it is.
    pub confidence: f32,
}

/// Which labels are learned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PseudoLabelChoice {
    /// Labels that the teacher was less sure of are dropped.
    pub min_confidence: f32,
    /// The surest so many of each class; where there are fewer, they are repeated.
    pub per_class: Option<usize>,
}

impl PseudoLabelChoice {
    /// The labels chosen, by their places among all, in the order of the pictures; some more than once.
    pub fn of(&self, labels: &[PseudoLabel]) -> Vec<usize> {
        let sure = |place: &usize| labels[*place].confidence >= self.min_confidence;
        let mut chosen: Vec<usize> = (0..labels.len()).filter(sure).collect();
        if let Some(count) = self.per_class {
            // Classes together, the surest first; equal ones in the order of the pictures.
            chosen.sort_by(|&a, &b| {
                let (a, b) = (&labels[a], &labels[b]);
                a.class.cmp(&b.class).then(b.confidence.total_cmp(&a.confidence)).then(a.picture.cmp(&b.picture))
            });
            let classes = chosen.chunk_by(|&a, &b| labels[a].class == labels[b].class);
            chosen = classes.flat_map(|class| class.iter().copied().cycle().take(count)).collect();
        }
        chosen.sort_by_key(|&place| labels[place].picture);
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels() -> Vec<PseudoLabel> {
        let all = [(0, 0.9), (1, 0.2), (0, 0.5), (1, 0.6), (0, 0.7), (2, 0.1)];
        let label = |(picture, (class, confidence))| PseudoLabel { picture, class, confidence };
        all.into_iter().enumerate().map(label).collect()
    }

    #[test]
    fn what_a_teacher_doubts_is_dropped() {
        let choice = PseudoLabelChoice { min_confidence: 0.5, per_class: None };
        assert_eq!(choice.of(&labels()), [0, 2, 3, 4]);
    }

    #[test]
    fn classes_are_made_even_by_the_surest_and_by_repetition() {
        let choice = PseudoLabelChoice { min_confidence: 0.15, per_class: Some(2) };
        assert_eq!(choice.of(&labels()), [0, 1, 3, 4]);
        // The second class has one sure picture, which stands for two.
        let choice = PseudoLabelChoice { min_confidence: 0.3, per_class: Some(2) };
        assert_eq!(choice.of(&labels()), [0, 3, 3, 4]);
        let choice = PseudoLabelChoice { min_confidence: 0.95, per_class: Some(2) };
        assert!(choice.of(&labels()).is_empty());
    }
}
