//! A study as a TOML file: what is varied, what stays the same, and how it is drawn. Some have names.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use crate::error::TrainError;

/// A study as it is written in a file. Paths are relative to the working directory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StudyFile {
    /// Its name; that of its folder.
    pub name: String,
    /// Its purpose, in a sentence.
    pub about: String,
    /// The dataset, or several.
    #[serde(skip_serializing_if = "OneOrMany::is_empty")]
    pub data: OneOrMany,
    /// What accuracy is measured on: a split or a dataset. By default the test split, else the validation split, else held-out
    /// images.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test: Option<PathBuf>,
    /// What runs are evaluated on while they train: a split, a dataset, or `held-out`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation: Option<PathBuf>,
    /// The share of each class that is held out for validation.
    pub validation_fraction: f64,
    /// The recipe's name or file.
    pub recipe: String,
    /// Models by name.
    pub models: Vec<String>,
    /// A checkpoint or run that is fine-tuned, beside or instead of models by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<PathBuf>,
    /// The model of the study that distilled ones follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub teacher: Option<String>,
    /// Shares of the training images, of each class.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fractions: Vec<f64>,
    /// Numbers of training images, instead of shares.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<usize>,
    /// Seeds; each is a run.
    pub seeds: Vec<u64>,
    /// The figure's horizontal axis: `images`, `pretrain.images`, `flops`, `parameters`, `model`, `data` or the name of an axis.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub x: String,
    /// What the figure's lines differ in; by default everything that is varied but `x`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<String>,
    /// Whether pre-trained models are fine-tuned on the data; otherwise they are only probed.
    pub finetune: bool,
    /// Settings of the recipe for all runs.
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub set: Table,
    /// What is varied: a setting, or a name of one's own, and its values.
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub axes: Table,
    /// Settings that are chosen for each combination of the others, by their validation score.
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub sweep: Table,
    /// Models with settings of their own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub model: Vec<StudyModel>,
    /// Pre-training before the runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pretrain: Option<PretrainStage>,
    /// Few-shot classification with the features that training (or pre-training) ended with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<StudyProbe>,
}

/// A model with settings of its own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StudyModel {
    /// The model's name.
    pub name: String,
    /// Its name in tables and figures, if it is another.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label: String,
    /// Its settings.
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub set: Table,
}

/// Pre-training: every model on every amount of data, before it is fine-tuned or probed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PretrainStage {
    /// The dataset.
    pub data: PathBuf,
    /// The recipe's name or file.
    pub recipe: String,
    /// Shares of the training images.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub fractions: Vec<f64>,
    /// Numbers of training images, instead of shares.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub images: Vec<usize>,
    /// Settings of the recipe.
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub set: Table,
    /// What is varied in pre-training.
    #[serde(skip_serializing_if = "Table::is_empty")]
    pub axes: Table,
}

/// Few-shot classification by ridge regression, as in the ViT paper.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StudyProbe {
    /// Training images of each class.
    pub shots: Vec<usize>,
    /// How often these are drawn.
    pub draws: usize,
}

/// A path or a list of paths.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[allow(missing_docs)]
pub enum OneOrMany {
    One(PathBuf),
    Many(Vec<PathBuf>),
    #[default]
    None,
}

impl OneOrMany {
    /// All of them.
    pub fn paths(&self) -> &[PathBuf] {
        match self {
            OneOrMany::One(path) => std::slice::from_ref(path),
            OneOrMany::Many(paths) => paths,
            OneOrMany::None => &[],
        }
    }

    fn is_empty(&self) -> bool {
        self.paths().is_empty()
    }
}

impl Default for StudyFile {
    fn default() -> Self {
        StudyFile {
            name: String::new(),
            about: String::new(),
            data: OneOrMany::None,
            test: None,
            validation: None,
            validation_fraction: 0.1,
            recipe: "study".into(),
            models: Vec::new(),
            checkpoint: None,
            teacher: None,
            fractions: Vec::new(),
            images: Vec::new(),
            seeds: vec![0],
            x: String::new(),
            lines: Vec::new(),
            finetune: true,
            set: Table::new(),
            axes: Table::new(),
            sweep: Table::new(),
            model: Vec::new(),
            pretrain: None,
            probe: None,
        }
    }
}

impl Default for StudyProbe {
    fn default() -> Self {
        StudyProbe { shots: vec![5], draws: 5 }
    }
}

/// The named studies and their files.
const NAMED: [(&str, &str); 8] = [
    ("data-size", include_str!("../../studies/data-size.toml")),
    ("compute", include_str!("../../studies/compute.toml")),
    ("positions", include_str!("../../studies/positions.toml")),
    ("pooling", include_str!("../../studies/pooling.toml")),
    ("depth-width", include_str!("../../studies/depth-width.toml")),
    ("optimiser", include_str!("../../studies/optimiser.toml")),
    ("resolution", include_str!("../../studies/resolution.toml")),
    ("augmentation", include_str!("../../studies/augmentation.toml")),
];

impl StudyFile {
    /// The names of studies.
    pub fn names() -> impl Iterator<Item = &'static str> {
        NAMED.iter().map(|(name, _)| *name)
    }

    /// The text of a named study.
    pub fn text_of(name: &str) -> Result<&'static str, TrainError> {
        let found = NAMED.iter().find(|(known, _)| *known == name).map(|(_, text)| *text);
        found.ok_or_else(|| {
            let known: Vec<&str> = Self::names().collect();
            TrainError::Unsuitable(format!("there is no study named `{name}`; there are {}", known.join(", ")))
        })
    }

    /// Parses a study's text.
    pub fn parse(text: &str) -> Result<StudyFile, TrainError> {
        toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start.min(text.len()));
            let line = 1 + text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count();
            TrainError::Unsuitable(format!("line {line} of the study: {}", error.message().replace('\n', ", ")))
        })
    }

    /// The study as TOML.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).unwrap_or_default()
    }
}

/// Something that is varied, and its values.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Axis {
    pub name: String,
    pub values: Vec<AxisValue>,
}

/// A value of an axis: the settings that it stands for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AxisValue {
    pub label: String,
    pub settings: Vec<(String, Value)>,
}

impl Axis {
    /// The axes of a section, `prefix` before their names.
    pub fn all(section: &Table, prefix: &str) -> Result<Vec<Axis>, TrainError> {
        leaves("", section).into_iter().map(|(name, value)| Axis::of(name, value, prefix)).collect()
    }

    fn of(name: String, value: Value, prefix: &str) -> Result<Axis, TrainError> {
        let wrong = |what: &str| TrainError::Unsuitable(format!("the study's axis `{prefix}{name}` {what}"));
        let Value::Array(values) = value else { return Err(wrong("should be a list of values")) };
        if values.is_empty() {
            return Err(wrong("has no values"));
        }
        let value = |value: Value| match value {
            Value::Table(mut table) => {
                let label = match table.remove("label") {
                    Some(Value::String(label)) if !label.is_empty() => label,
                    _ => return Err(wrong("has a value without a `label`")),
                };
                Ok(AxisValue { label, settings: leaves("", &table) })
            }
            plain => {
                let label = label(&plain);
                Ok(AxisValue { label, settings: vec![(name.clone(), plain)] })
            }
        };
        let values = values.into_iter().map(value).collect::<Result<Vec<AxisValue>, _>>()?;
        for (index, value) in values.iter().enumerate() {
            if values[..index].iter().any(|before| before.label == value.label) {
                return Err(wrong(&format!("has the value {} twice", value.label)));
            }
        }
        Ok(Axis { name: format!("{prefix}{name}"), values })
    }
}

/// A value as text, short numbers for rates.
fn label(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Float(number) if *number != 0.0 && !(1e-3..1e6).contains(&number.abs()) => format!("{number:e}"),
        other => other.to_string(),
    }
}

/// The keys of a table with their values, nested ones as `section.key`.
pub(super) fn leaves(prefix: &str, table: &Table) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    for (key, value) in table {
        let key = format!("{prefix}{key}");
        match value {
            Value::Table(inner) => found.extend(leaves(&format!("{key}."), inner)),
            value => found.push((key, value.clone())),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_studies_are_valid_and_say_what_they_are_for() {
        for name in StudyFile::names() {
            let file = StudyFile::parse(StudyFile::text_of(name).unwrap()).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert_eq!(file.name, name);
            let models = file.models.len() + file.model.len();
            assert!(!file.about.is_empty() && models > 0, "{name}");
            assert_eq!(StudyFile::parse(&file.to_toml()).unwrap(), file);
        }
        assert!(StudyFile::text_of("position").unwrap_err().to_string().contains("positions"));
    }

    #[test]
    fn axes_have_plain_values_or_named_groups_of_settings() {
        let file = StudyFile::parse(
            "[axes]\n\"schedule.rate\" = [1e-3, 3e-4]\nposition = [{ label = \"1-D\" }, { label = \"none\", \
             \"options.pos_embed\" = \"none\" }]",
        );
        let axes = Axis::all(&file.unwrap().axes, "").unwrap();
        assert_eq!(axes.iter().map(|axis| axis.name.as_str()).collect::<Vec<_>>(), ["position", "schedule.rate"]);
        assert_eq!(axes[0].values[0], AxisValue { label: "1-D".into(), settings: vec![] });
        assert_eq!(axes[0].values[1].settings, [("options.pos_embed".to_string(), Value::from("none"))]);
        assert_eq!((axes[1].values[0].label.as_str(), axes[1].values[1].label.as_str()), ("0.001", "3e-4"));
        for (wrong, why) in
            [("[axes]\na = 3", "a list"), ("[axes]\na = []", "no values"), ("[axes]\na = [1, 1]", "twice")]
        {
            let error = Axis::all(&StudyFile::parse(wrong).unwrap().axes, "").unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let error = StudyFile::parse("name = \"x\"\nmodles = []").unwrap_err().to_string();
        assert!(error.contains("line 2") && error.contains("modles"), "{error}");
    }
}
