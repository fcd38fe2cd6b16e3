//! Whether an image has one label or several.

use serde_json::{Map, Value};

/// How logits become probabilities, by Hugging Face's `problem_type`.
///
/// It follows from the dataset, not from the loss: DeiT III trains on ImageNet's single labels with a sigmoid loss, and its
/// probabilities are still softmax, as in timm.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ProblemType {
    /// Every image has exactly one label: softmax over the classes.
    #[default]
    SingleLabel,
    /// Every image has any number of labels: a sigmoid for each class.
    MultiLabel,
}

impl ProblemType {
    /// The key of `config.json`, in every layout.
    pub(crate) const KEY: &str = "problem_type";

    /// The value in `config.json`.
    pub fn name(self) -> &'static str {
        match self {
            ProblemType::SingleLabel => "single_label_classification",
            ProblemType::MultiLabel => "multi_label_classification",
        }
    }

    /// The value in a `config.json`; single without one.
    pub(crate) fn parse(config: &Map<String, Value>) -> Result<ProblemType, String> {
        let known = [ProblemType::SingleLabel, ProblemType::MultiLabel];
        match config.get(Self::KEY) {
            None | Some(Value::Null) => Ok(ProblemType::default()),
            Some(value) => known.into_iter().find(|known| value == known.name()).ok_or_else(|| {
                format!("`{}` should be {} or {}, not {value}", Self::KEY, known[0].name(), known[1].name())
            }),
        }
    }

    /// The probabilities of one image's logits: they sum to 1 for a single label, and are independent for several.
    pub fn probabilities(self, logits: &[f32]) -> Vec<f32> {
        match self {
            ProblemType::SingleLabel => {
                let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let total: f32 = logits.iter().map(|l| (l - largest).exp()).sum();
                logits.iter().map(|l| (l - largest).exp() / total).collect()
            }
            ProblemType::MultiLabel => logits.iter().map(|l| 1.0 / (1.0 + (-l).exp())).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn probabilities_of_several_labels_do_not_compete() {
        let logits = [2.0, 2.0, -200.0, 200.0];
        let several = ProblemType::MultiLabel.probabilities(&logits);
        assert!((several[0] - 0.880_797).abs() < 1e-6 && several[0] == several[1]);
        assert_eq!(several[2..], [0.0, 1.0]);
        let one = ProblemType::SingleLabel.probabilities(&logits[..2]);
        assert_eq!(one, [0.5, 0.5]);
    }

    #[test]
    fn a_configuration_says_the_problem_type_or_means_a_single_label() {
        let parse = |json: Value| ProblemType::parse(json.as_object().unwrap());
        assert_eq!(parse(json!({})), Ok(ProblemType::SingleLabel));
        assert_eq!(parse(json!({ "problem_type": null })), Ok(ProblemType::SingleLabel));
        for known in [ProblemType::SingleLabel, ProblemType::MultiLabel] {
            assert_eq!(parse(json!({ "problem_type": known.name() })), Ok(known));
        }
        let error = parse(json!({ "problem_type": "regression" })).unwrap_err();
        assert!(error.contains("multi_label_classification") && error.contains("regression"), "{error}");
    }
}
