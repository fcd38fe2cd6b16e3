//! Labels in words, for image-text models: CLIP and SigLIP.

use std::path::{Path, PathBuf};

use anyhow::{bail, ensure};
use clap::{Args, ValueEnum};
use vit::ModelOptions;
use vit::text::{imagenet_templates, zero_shot};
use vit_models::Checkpoint;
use vit_system::regular_file;

/// The labels that an image-text model chooses from.
#[derive(Args)]
pub struct WordArguments {
    /// The labels to choose from, with commas between them
    #[arg(long, value_name = "LABELS", help_heading = HEADING, conflicts_with = "labels_file")]
    labels: Option<String>,
    /// A file with one label per line
    #[arg(long, value_name = "FILE", help_heading = HEADING)]
    labels_file: Option<PathBuf>,
    #[command(flatten)]
    templates: TemplateArguments,
}

/// The sentences that labels are put into.
#[derive(Args)]
pub struct TemplateArguments {
    /// A sentence with {} for the label, as in 'a photo of a {}'; may be repeated:
    /// the embeddings are averaged
    #[arg(long, value_name = "TEXT", help_heading = HEADING)]
    template: Vec<String>,
    /// imagenet: the CLIP paper's 80 sentences for ImageNet
    #[arg(long, value_enum, value_name = "SET", help_heading = HEADING, hide_possible_values = true)]
    templates: Option<TemplateSet>,
    /// Cut texts that are longer than the model reads
    #[arg(long, help_heading = HEADING)]
    truncate: bool,
}

impl TemplateArguments {
    /// Whether there are sentences.
    pub fn are_given(&self) -> bool {
        !self.template.is_empty() || self.templates.is_some()
    }

    /// An image-text model as a classifier of labels.
    pub fn classifier(
        &self,
        checkpoint: Checkpoint,
        labels: &[String],
        options: &ModelOptions,
    ) -> anyhow::Result<Checkpoint> {
        let mut templates = self.template.clone();
        if let Some(TemplateSet::Imagenet) = self.templates {
            templates.extend(imagenet_templates().into_iter().map(String::from));
        }
        Ok(zero_shot(checkpoint, labels, &templates, self.truncate, options)?)
    }
}

const HEADING: &str = "Labels in words (CLIP, SigLIP)";

#[derive(Clone, Copy, ValueEnum)]
enum TemplateSet {
    Imagenet,
}

impl WordArguments {
    /// A classifier of the labels, if there are any; otherwise the checkpoint as it is.
    pub fn classifier(&self, checkpoint: Checkpoint, options: &ModelOptions) -> anyhow::Result<Checkpoint> {
        let Some(labels) = self.labels()? else {
            ensure!(
                !self.templates.are_given(),
                "--template and --templates need labels; add --labels or --labels-file"
            );
            ensure!(
                !checkpoint.has_text_tower(),
                "this model compares images with texts; give the labels to choose from, as in --labels 'a cat, a dog'"
            );
            return Ok(checkpoint);
        };
        self.templates.classifier(checkpoint, &labels, options)
    }

    /// Whether there are labels.
    pub fn are_given(&self) -> bool {
        self.labels.is_some() || self.labels_file.is_some()
    }

    fn labels(&self) -> anyhow::Result<Option<Vec<String>>> {
        match (&self.labels, &self.labels_file) {
            (Some(list), _) => listed(list).map(Some),
            (None, Some(file)) => in_file(file).map(Some),
            (None, None) => Ok(None),
        }
    }
}

fn listed(list: &str) -> anyhow::Result<Vec<String>> {
    ensure!(!list.trim().is_empty(), "--labels: the list is empty; give at least one, as in --labels 'a cat, a dog'");
    let labels: Vec<String> = list.split(',').map(|label| label.trim().to_string()).collect();
    if let Some(empty) = labels.iter().position(String::is_empty) {
        bail!("--labels: label {} is empty; write it, or remove its comma", empty + 1);
    }
    Ok(labels)
}

fn in_file(file: &Path) -> anyhow::Result<Vec<String>> {
    let text = regular_file::read_to_string(file).map_err(|error| anyhow::anyhow!("{}: {error}", file.display()))?;
    let labels: Vec<String> = text.lines().map(|line| line.trim().to_string()).collect();
    ensure!(
        labels.iter().any(|label| !label.is_empty()),
        "{}: there are no labels; write one per line",
        file.display()
    );
    if let Some(empty) = labels.iter().position(String::is_empty) {
        bail!("{}:{}: the line is empty; write a label there, or remove the line", file.display(), empty + 1);
    }
    Ok(labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(list: &str) -> String {
        listed(list).unwrap_err().to_string()
    }

    #[test]
    fn labels_are_listed_with_commas() {
        assert_eq!(listed("a cat,  a dog ,bicycle").unwrap(), ["a cat", "a dog", "bicycle"]);
        assert!(refusal(" ").contains("the list is empty"));
        assert_eq!(refusal("a cat, ,a dog"), "--labels: label 2 is empty; write it, or remove its comma");
    }

    #[test]
    fn labels_files_have_no_empty_lines() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("labels.txt");
        std::fs::write(&file, "a cat\r\na dog\n").unwrap();
        assert_eq!(in_file(&file).unwrap(), ["a cat", "a dog"]);
        std::fs::write(&file, "a cat\n\na dog\n").unwrap();
        assert!(
            in_file(&file)
                .unwrap_err()
                .to_string()
                .ends_with("labels.txt:2: the line is empty; write a label there, or remove the line")
        );
        std::fs::write(&file, "\n").unwrap();
        assert!(in_file(&file).unwrap_err().to_string().contains("there are no labels"));
    }
}
