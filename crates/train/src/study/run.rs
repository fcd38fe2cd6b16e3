//! A run of a study: what it trains, and where it stands in the grid.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use vit_models::Config;

use super::StudyData;
use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::run::setup::{RunSettings, add_pretraining};

/// What a run is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stage {
    /// Its model is fine-tuned or probed by other runs.
    Pretraining,
    /// Its accuracy is measured.
    Training,
}

/// The amount of training data.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SampleSize {
    /// A share of the images of each class.
    Fraction(f64),
    /// A number of images.
    Images(usize),
}

impl SampleSize {
    /// All amounts of a stage, the smallest first.
    pub(super) fn all(fractions: &[f64], images: &[usize]) -> Result<Vec<SampleSize>, TrainError> {
        let wrong = |what: String| Err(TrainError::Unsuitable(what));
        if !fractions.is_empty() && !images.is_empty() {
            return wrong("a study has `fractions` or `images`, not both".into());
        }
        if let Some(fraction) = fractions.iter().find(|f| !(**f > 0.0 && **f <= 1.0)) {
            return wrong(format!("a fraction of {fraction} of the images; fractions are above 0 and at most 1"));
        }
        if images.contains(&0) {
            return wrong("a study cannot train on 0 images".into());
        }
        let (mut fractions, mut images) = (fractions.to_vec(), images.to_vec());
        fractions.sort_by(f64::total_cmp);
        fractions.dedup();
        images.sort_unstable();
        images.dedup();
        let numbers = images.into_iter().map(SampleSize::Images);
        let sizes: Vec<SampleSize> = fractions.into_iter().map(SampleSize::Fraction).chain(numbers).collect();
        Ok(if sizes.is_empty() { vec![SampleSize::Fraction(1.0)] } else { sizes })
    }

    /// As a share of a dataset's training images.
    pub(super) fn fraction(self, data: &StudyData) -> Result<f64, TrainError> {
        match self {
            SampleSize::Fraction(fraction) => Ok(fraction),
            SampleSize::Images(images) if images <= data.images => Ok(images as f64 / data.images as f64),
            SampleSize::Images(images) => Err(TrainError::Unsuitable(format!(
                "{}: there are {} training images, and the study has runs on {images}",
                data.path.display(),
                data.images
            ))),
        }
    }

    /// In names of folders.
    pub(crate) fn slug(self) -> String {
        match self {
            SampleSize::Fraction(fraction) => fraction.to_string(),
            SampleSize::Images(images) => format!("{images}-images"),
        }
    }
}

impl fmt::Display for SampleSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // Without the rounding errors of binary fractions.
            SampleSize::Fraction(share) => write!(f, "{}%", (share * 1e10).round() / 1e8),
            SampleSize::Images(images) => write!(f, "{images}"),
        }
    }
}

/// A run of a study.
#[derive(Debug, Clone, PartialEq)]
pub struct StudyRun {
    /// Its name, which is that of its folder.
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// What it is for.
    pub stage: Stage,
    /// The model's name.
    pub model: String,
    /// The model's family.
    pub family: String,
    /// The name of its dataset.
    pub data: String,
    /// The amount of data.
    pub size: SampleSize,
    /// Its seed.
    pub seed: u64,
    /// Its place in the grid: the dimensions of the study and its values there, as text.
    pub place: Vec<(String, String)>,
    /// Its recipe.
    pub recipe: Recipe,
    /// Its settings.
    pub settings: RunSettings,
    /// Another image size than the model's.
    pub image_size: Option<[usize; 2]>,
    /// Its teacher.
    pub teacher: Option<String>,
    /// Runs that must be finished before it, by name: its teacher, its pre-training.
    pub needs: Vec<String>,
    /// The run whose model it fine-tunes.
    pub start: Option<String>,
    /// Whether it starts from a checkpoint, which its settings name.
    pub(super) finetunes: bool,
    /// The model with its options.
    pub(super) base: Config,
    /// The dataset's index in the study.
    pub(super) data_index: usize,
    /// Settings of the recipe without effect on the model, one line each.
    pub left_out: Vec<String>,
}

impl StudyRun {
    /// Its value in a dimension of the study.
    pub fn at(&self, dimension: &str) -> &str {
        self.place.iter().find(|(name, _)| name == dimension).map_or("", |(_, value)| value)
    }

    /// The model that it trains, for this many classes.
    pub(super) fn config(&self, classes: usize) -> Result<Config, TrainError> {
        let mut config = self.base.clone();
        if let Some(size) = self.image_size {
            config.architecture.set_image_size(size);
            config.preprocessing.image_size = size;
        }
        match self.recipe.is_pretraining() {
            true => add_pretraining(&mut config, &self.recipe)?,
            false => config.architecture.set_classes(classes),
        }
        self.recipe.apply_to(&mut config.architecture);
        Ok(config)
    }

    /// Everything that its result depends on, as text that is compared when a study goes on.
    pub(super) fn planned(&self) -> String {
        let mut study = toml::Table::new();
        study.insert("stage".into(), toml::Value::try_from(self.stage).unwrap_or_else(|_| "".into()));
        study.insert("start".into(), self.start.clone().unwrap_or_default().into());
        if let Some([height, width]) = self.image_size {
            study.insert("image_size".into(), vec![height as i64, width as i64].into());
        }
        let [settings, study] =
            [toml::to_string(&self.settings), toml::to_string(&study)].map(Result::unwrap_or_default);
        format!("{}\n[run]\n{settings}\n[study]\n{study}", self.recipe.to_toml())
    }
}

/// A text as part of a folder's name.
pub(crate) fn slug(text: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || "._-=+".contains(c) { c } else { '_' };
    text.chars().map(plain).collect()
}

/// The difference between a run as it was begun and as it is planned now, if there is one.
pub(super) fn difference(before: &str, now: &str) -> Option<(String, String)> {
    let (before, now) = (normalised(before), normalised(now));
    (before != now).then(|| first_difference(&before, &now))
}

/// Settings without comments and the recipe's description, in which versions of this library differ.
fn normalised(text: &str) -> String {
    let parse = || {
        let mut table: toml::Table = toml::from_str(text).ok()?;
        let sections = ["run", "study"].into_iter().filter_map(|name| Some((name.to_string(), table.remove(name)?)));
        let sections: toml::Table = sections.collect();
        let recipe = Recipe { about: String::new(), ..Recipe::parse(&table.to_string()).ok()? };
        Some(format!("{}\n{}", toml::to_string(&recipe).ok()?, toml::to_string(&sections).ok()?))
    };
    parse().unwrap_or_else(|| text.to_string())
}

/// The first line that differs between two texts, in both.
fn first_difference(before: &str, now: &str) -> (String, String) {
    let (mut a, mut b) = (before.lines(), now.lines());
    loop {
        match (a.next(), b.next()) {
            (None, None) => return Default::default(),
            (was, is) if was == is => {}
            (was, is) => return (was.unwrap_or_default().to_string(), is.unwrap_or_default().to_string()),
        }
    }
}

/// The folder of a run.
pub(super) fn folder(study: &Path, name: &str) -> PathBuf {
    study.join("runs").join(name)
}
