//! A run's `config.toml`: its recipe, what else it depends on, and how it was started.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use vit_data::loader::UnreadableLimit;

use super::Setup;
use crate::error::TrainError;
use crate::recipe::Recipe;
use crate::run::folder::RunFolder;
use crate::step::sharding::ShardedState;

/// What a run depends on besides its recipe: the `[run]` section of its `config.toml`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunSettings {
    /// The model's name, or the checkpoint that it starts from.
    pub model: String,
    /// The dataset.
    pub data: PathBuf,
    /// The split or the dataset for validation; chosen automatically if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub validation: Option<PathBuf>,
    /// A sentence with `{}` for the label, if an image-text model is trained on labels that are no captions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
    /// The share of each class that is held out for validation if the dataset has no split for it.
    pub validation_fraction: f64,
    /// The share of the training samples that is used.
    pub fraction: f64,
    /// The largest share of training or validation images that may be unreadable.
    #[serde(default = "usual_unreadable", skip_serializing_if = "is_usual_unreadable")]
    pub max_unreadable: f64,
    /// Skip steps whose loss or gradients are not finite instead of stopping.
    pub skip_non_finite: bool,
    /// The precision that the device computes in.
    pub precision: String,
}

fn usual_unreadable() -> f64 {
    UnreadableLimit::default().share
}

fn is_usual_unreadable(share: &f64) -> bool {
    *share == usual_unreadable()
}

/// How a run was started: the `[launch]` section of its `config.toml`, and the defaults of a resumed run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Launch {
    /// The whole command, quoted for a shell.
    pub command: String,
    /// The working directory.
    pub folder: PathBuf,
    /// The device's name; empty if unknown.
    pub device: String,
    /// CPU threads, if not all cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Memory for decoded images, in megabytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<u64>,
    /// The longest time between two saves, in minutes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub save_every: Option<f64>,
    /// Whether activations are recomputed in the backward pass.
    pub recompute: bool,
    /// The state that several processes divide among them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<ShardedState>,
}

/// The content of a run's `config.toml`.
#[derive(Debug, Clone, PartialEq)]
pub struct RunConfig {
    /// The section `[run]`.
    pub settings: RunSettings,
    /// Its recipe.
    pub recipe: Recipe,
    /// The section `[launch]`.
    pub launch: Launch,
}

impl RunConfig {
    /// Reads the configuration of a run.
    pub fn of(run: &RunFolder) -> Result<RunConfig, TrainError> {
        Self::parse(&run.config()?, &run.path().join("config.toml"))
    }

    /// Parses the text that [`Setup::to_toml`] writes.
    fn parse(text: &str, path: &Path) -> Result<RunConfig, TrainError> {
        let fail = |what: String| TrainError::Config { path: path.into(), what };
        let mut table: toml::Table = toml::from_str(text).map_err(|e| fail(e.message().to_string()))?;
        let run = table.remove("run").ok_or_else(|| fail("the section [run] is missing".into()))?;
        let settings = run.try_into().map_err(|e: toml::de::Error| fail(format!("[run]: {}", e.message())))?;
        let launch = table.remove("launch").unwrap_or_else(|| toml::Table::new().into());
        let launch = launch.try_into().map_err(|e: toml::de::Error| fail(format!("[launch]: {}", e.message())))?;
        let recipe = Recipe::parse(&table.to_string()).map_err(|e| fail(e.to_string()))?;
        Ok(RunConfig { settings, recipe, launch })
    }
}

impl Setup {
    /// The text of `config.toml`: the recipe, `[run]` and `[launch]`.
    pub fn to_toml(&self, launch: &Launch) -> String {
        let [settings, launch] =
            [toml::to_string(&self.settings), toml::to_string(launch)].map(Result::unwrap_or_default);
        format!("{}\n[run]\n{settings}\n[launch]\n{launch}", self.recipe.to_toml())
    }
}
