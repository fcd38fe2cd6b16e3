//! A suite: one model on many datasets in groups, by one protocol, with the mean of every group and of all, as VTAB (Zhai et
//! al., 2019) has them. Fine-tuning is a [`Study`](crate::Study) over the datasets; a probe keeps a file for each.
//!
//! ```text
//! SUITE/results/NAME.json       what was measured on a dataset by a probe
//! SUITE/study/                  the runs of fine-tuning
//! SUITE/suite.json, suite.csv   the table
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use toml::Table;
use vit_graph::device::{Device, Parameters};
use vit_models::Config;
use vit_system::{atomic_file, csv_line, regular_file};

use crate::error::TrainError;
use crate::evaluate::interval::wilson_interval;
use crate::evaluate::probe::{ProbeOptions, probe};
use crate::json::finite_json;
use crate::study::{OneOrMany, Spread, Study, StudyData, StudyFile, StudyTable};

/// A suite as it is written in a file. Paths are relative to the working directory.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SuiteFile {
    /// Its name.
    pub name: String,
    /// Its purpose, in a sentence.
    pub about: String,
    /// What is done on every dataset.
    pub protocol: SuiteProtocol,
    /// Training images of each dataset; 0 for all.
    pub examples: usize,
    /// Seeds; each is a run.
    pub seeds: Vec<u64>,
    /// The recipe of fine-tuning.
    pub recipe: String,
    /// Settings of the recipe.
    pub set: Table,
    /// The groups.
    pub group: Vec<SuiteGroup>,
}

/// What is done on every dataset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SuiteProtocol {
    /// Fine-tuning; the last weights are measured.
    #[default]
    Finetune,
    /// A linear classifier of the features.
    Probe,
}

/// Datasets of one kind.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SuiteGroup {
    /// Its name.
    pub name: String,
    /// Its datasets.
    pub data: Vec<PathBuf>,
}

impl Default for SuiteFile {
    fn default() -> Self {
        SuiteFile {
            name: String::new(),
            about: String::new(),
            protocol: SuiteProtocol::Finetune,
            examples: 1000,
            seeds: vec![0],
            recipe: "finetune".into(),
            set: Table::new(),
            group: Vec::new(),
        }
    }
}

/// What was measured on a dataset.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuiteRow {
    /// The group.
    pub group: String,
    /// The dataset's name.
    pub data: String,
    /// Training images.
    pub images: usize,
    /// Test images.
    pub test_images: usize,
    /// The score of every seed.
    pub scores: BTreeMap<u64, f64>,
}

/// The rows of a suite with their means.
#[derive(Debug, Clone, PartialEq)]
pub struct SuiteReport {
    name: String,
    protocol: SuiteProtocol,
    rows: Vec<SuiteRow>,
}

impl SuiteFile {
    /// Parses a suite's text.
    pub fn parse(text: &str) -> Result<SuiteFile, TrainError> {
        let wrong = |what: String| Err(TrainError::Unsuitable(what));
        let file: SuiteFile = match toml::from_str(text) {
            Ok(file) => file,
            Err(error) => {
                let error: toml::de::Error = error;
                return wrong(format!("the suite: {}", error.message().replace('\n', ", ")));
            }
        };
        if file.group.iter().all(|group| group.data.is_empty()) {
            return wrong("a suite needs datasets: [[group]] with `name` and `data`".into());
        }
        if file.seeds.is_empty() {
            return wrong("a suite needs at least one seed".into());
        }
        let names: Vec<String> = file.datasets().map(|(_, path)| crate::study::data_name(path)).collect();
        if let Some((_, name)) = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
            return wrong(format!("two datasets of the suite have the name {name}; give one of them another path"));
        }
        Ok(file)
    }

    /// All datasets with their groups.
    pub fn datasets(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.group.iter().flat_map(|group| group.data.iter().map(|data| (group.name.as_str(), data.as_path())))
    }

    /// The study that fine-tunes a checkpoint on every dataset.
    pub fn study(&self, checkpoint: &Path) -> StudyFile {
        StudyFile {
            name: self.name.clone(),
            about: self.about.clone(),
            data: OneOrMany::Many(self.datasets().map(|(_, path)| path.to_owned()).collect()),
            recipe: self.recipe.clone(),
            checkpoint: Some(checkpoint.to_owned()),
            images: Some(self.examples).filter(|examples| *examples > 0).into_iter().collect(),
            seeds: self.seeds.clone(),
            x: "data".into(),
            set: self.set.clone(),
            ..StudyFile::default()
        }
    }

    /// The results of that study.
    pub fn fine_tuned(&self, study: &Study) -> Result<SuiteReport, TrainError> {
        let results = study.results()?;
        let rows = self.datasets().filter_map(|(group, path)| {
            let name = crate::study::data_name(path);
            let own: Vec<_> = results.iter().filter(|(run, _)| run.data == name).map(|(_, result)| result).collect();
            let first = own.first()?;
            Some(SuiteRow {
                group: group.into(),
                data: name,
                images: first.images,
                test_images: first.test_images,
                scores: own.iter().filter_map(|result| Some((result.seed, result.score?))).collect(),
            })
        });
        Ok(SuiteReport { name: self.name.clone(), protocol: self.protocol, rows: rows.collect() })
    }

    /// Probes a model on every dataset that has no result in the folder yet. `model` names the model in results, so that
    /// those of another are not taken for it; `begin` is told every dataset before it is measured.
    #[allow(clippy::too_many_arguments)]
    pub fn probe(
        &self,
        folder: &Path,
        model: &str,
        device: &dyn Device,
        config: &Config,
        parameters: &mut dyn FnMut() -> Result<Box<dyn Parameters>, TrainError>,
        options: &ProbeOptions,
        mut begin: impl FnMut(&str),
    ) -> Result<SuiteReport, TrainError> {
        let results = folder.join("results");
        fs::create_dir_all(&results).map_err(|error| failed(&results, error))?;
        let mut rows = Vec::new();
        for (group, path) in self.datasets() {
            let name = crate::study::data_name(path);
            let file = results.join(format!("{}.json", crate::study::file_name(&name)));
            let kept = regular_file::read_to_string(&file).ok();
            let settings = format!("{model} {} {:?}", self.examples, self.seeds);
            if let Some(kept) = kept {
                let kept: Kept = serde_json::from_str(&kept).map_err(|error| failed(&file, error.into()))?;
                if kept.settings != settings {
                    let what = format!(
                        "measured with other settings ({}, now {settings}); choose another folder",
                        kept.settings
                    );
                    return Err(TrainError::Config { path: file, what });
                }
                rows.push(SuiteRow { group: group.into(), ..kept.row });
                continue;
            }
            begin(&name);
            let data = StudyData::open(path, &StudyFile::default())?;
            let share = if self.examples == 0 { 1.0 } else { self.examples as f64 / data.images.max(1) as f64 };
            let mut row =
                SuiteRow { group: group.into(), data: name, images: 0, test_images: 0, scores: BTreeMap::new() };
            for &seed in &self.seeds {
                let images = data.images_for_probe(share, seed)?;
                let options = ProbeOptions { seed, ..options.clone() };
                let outcome = probe(device, config, parameters()?.as_mut(), &images, &options, |_, _| true)?;
                let Some(outcome) = outcome else { continue };
                (row.images, row.test_images) = (outcome.train, outcome.test);
                row.scores.insert(seed, outcome.linear.top1);
            }
            let text = serde_json::to_string_pretty(&Kept { settings, row: row.clone() }).unwrap_or_default();
            atomic_file::write(&file, text).map_err(|error| failed(&file, error))?;
            rows.push(row);
        }
        Ok(SuiteReport { name: self.name.clone(), protocol: self.protocol, rows })
    }
}

/// A result of a probe with what it depends on.
#[derive(Serialize, Deserialize)]
struct Kept {
    settings: String,
    row: SuiteRow,
}

fn failed(path: &Path, error: std::io::Error) -> TrainError {
    TrainError::Config { path: path.into(), what: error.to_string() }
}

impl SuiteReport {
    /// The mean over some rows, and its deviation over the seeds that all of them have.
    fn mean(&self, rows: &[&SuiteRow]) -> Option<Spread> {
        let first = rows.first()?;
        let by_seed = first.scores.keys().filter_map(|seed| {
            let scores: Option<Vec<f64>> = rows.iter().map(|row| row.scores.get(seed).copied()).collect();
            Some(scores?.iter().sum::<f64>() / rows.len() as f64)
        });
        Spread::of(&by_seed.collect::<Vec<f64>>())
    }

    /// The groups in their order, with their rows.
    fn groups(&self) -> Vec<(&str, Vec<&SuiteRow>)> {
        let mut groups: Vec<(&str, Vec<&SuiteRow>)> = Vec::new();
        for row in &self.rows {
            match groups.iter_mut().find(|(name, _)| *name == row.group) {
                Some((_, rows)) => rows.push(row),
                None => groups.push((&row.group, vec![row])),
            }
        }
        groups
    }

    /// Every dataset, then the mean of its group, then that of all datasets.
    pub fn table(&self) -> StudyTable {
        let score = |spread: Option<Spread>| spread.map_or(String::new(), |spread| spread.percent());
        let mut rows = Vec::new();
        for (name, own) in self.groups() {
            for row in &own {
                let spread = Spread::of(&row.scores.values().copied().collect::<Vec<f64>>());
                let interval = spread.filter(|spread| spread.count == 1);
                let interval = interval.and_then(|spread| wilson_interval(spread.mean, row.test_images as u64));
                let interval =
                    interval.map_or(String::new(), |[low, high]| format!("{:.2} to {:.2}%", 100.0 * low, 100.0 * high));
                let counts = [row.images, row.test_images].map(|count| count.to_string());
                let [images, tests] = counts;
                rows.push(vec![name.to_string(), row.data.clone(), images, tests, score(spread), interval]);
            }
            rows.push(vec![
                name.into(),
                "mean".into(),
                String::new(),
                String::new(),
                score(self.mean(&own)),
                String::new(),
            ]);
        }
        let all: Vec<&SuiteRow> = self.rows.iter().collect();
        rows.push(vec![
            "all".into(),
            "mean".into(),
            String::new(),
            String::new(),
            score(self.mean(&all)),
            String::new(),
        ]);
        let headings = ["group", "dataset", "images", "test images", "accuracy", "95% interval"];
        StudyTable { headings: headings.map(String::from).into(), names: 2, rows }
    }

    /// Datasets, groups and the mean of all as JSON.
    pub fn json(&self) -> serde_json::Value {
        let spread = |spread: Option<Spread>| {
            spread.map(|s| match s.deviation {
                Some(deviation) => serde_json::json!({"mean": s.mean, "deviation": deviation, "seeds": s.count}),
                None => serde_json::json!({"mean": s.mean, "seeds": s.count}),
            })
        };
        let groups = self.groups();
        let groups =
            groups.iter().map(|(name, rows)| serde_json::json!({"group": name, "accuracy": spread(self.mean(rows))}));
        finite_json(serde_json::json!({
            "suite": self.name, "protocol": self.protocol, "datasets": self.rows,
            "groups": groups.collect::<Vec<_>>(), "accuracy": spread(self.mean(&self.rows.iter().collect::<Vec<_>>())),
        }))
    }

    /// Writes `suite.json` and `suite.csv` into a folder and returns their names.
    pub fn write(&self, folder: &Path) -> Result<[&'static str; 2], TrainError> {
        fs::create_dir_all(folder).map_err(|error| failed(folder, error))?;
        let mut csv = csv_line(["group", "dataset", "seed", "images", "test_images", "accuracy"]);
        for row in &self.rows {
            for (seed, score) in &row.scores {
                let numbers =
                    [seed.to_string(), row.images.to_string(), row.test_images.to_string(), score.to_string()];
                csv += &csv_line([row.group.clone(), row.data.clone()].into_iter().chain(numbers));
            }
        }
        for (name, content) in [("suite.json", format!("{:#}\n", self.json())), ("suite.csv", csv)] {
            let path = folder.join(name);
            atomic_file::write(&path, content).map_err(|error| failed(&path, error))?;
        }
        Ok(["suite.json", "suite.csv"])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_and_all_have_means_and_deviations_over_seeds() {
        let row = |group: &str, data: &str, scores: [f64; 2]| SuiteRow {
            group: group.into(),
            data: data.into(),
            images: 1000,
            test_images: 500,
            scores: [0, 1].into_iter().zip(scores).collect(),
        };
        let rows =
            vec![row("natural", "a", [0.8, 0.9]), row("natural", "b", [0.6, 0.5]), row("structured", "c", [0.2, 0.4])];
        let report = SuiteReport { name: "tiny".into(), protocol: SuiteProtocol::Probe, rows };
        let cells: Vec<(String, String)> =
            report.table().rows.iter().map(|row| (format!("{} {}", row[0], row[1]), row[4].clone())).collect();
        let cell = |name: &str| cells.iter().find(|(known, _)| known == name).unwrap().1.clone();
        assert_eq!(cells.len(), 6);
        assert_eq!(cell("natural a"), "85.00 ± 7.07%");
        // Means of the seeds are 70% and 70%.
        assert_eq!(cell("natural mean"), "70.00 ± 0.00%");
        // 53.33% and 60%.
        assert_eq!(cell("all mean"), "56.67 ± 4.71%");
        let json = report.json();
        assert_eq!(json["groups"][1]["accuracy"]["seeds"], 2);
        assert!((json["accuracy"]["mean"].as_f64().unwrap() - 17.0 / 30.0).abs() < 1e-12);
    }

    #[test]
    fn suites_without_datasets_and_with_equal_names_are_refused() {
        let refused = |text: &str| SuiteFile::parse(text).unwrap_err().to_string();
        assert!(refused("name = \"x\"").contains("[[group]]"));
        assert!(refused("[[group]]\nname = \"g\"\ndata = [\"a/x.tar\", \"b/x\"]").contains("the name x"));
        assert!(refused("protocol = \"zero\"").contains("probe"));
    }
}
