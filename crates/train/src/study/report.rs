//! The results of a study: CSV with a row for every run, tables over seeds, figures, and a page of all.

use std::time::Duration;

use vit_system::csv_line;

use super::data::TestImages;
use super::grid::{DATA, FLOPS, IMAGES, MODEL, PARAMETERS, PRETRAIN_IMAGES, short};
use super::page;
use super::summary::{Measure, Point, points};
use super::{Study, StudyResult, StudyRun, TrainError};
use crate::plots::{ScalingAxis, ScalingLine, ScalingPoint, scaling};
use crate::run::progress::Clock;

/// A table of a study: mean and standard deviation over seeds.
#[derive(Debug, Clone, PartialEq)]
pub struct StudyTable {
    /// The headings.
    pub headings: Vec<String>,
    /// Columns of text; the others, which follow, are of numbers.
    pub names: usize,
    /// The cells.
    pub rows: Vec<Vec<String>>,
}

/// A figure and the table of its numbers.
pub(super) struct Figure {
    pub name: String,
    pub title: String,
    pub svg: String,
    pub table: Option<StudyTable>,
}

pub(super) fn write(
    study: &Study,
    results: &[(&StudyRun, StudyResult)],
) -> Result<(Vec<String>, StudyTable), TrainError> {
    let mut files = Vec::new();
    let mut keep = |name: &str, content: &[u8]| {
        let path = study.path.join(name);
        files.push(name.to_string());
        vit_system::atomic_file::write(&path, content)
            .map_err(|error| TrainError::Config { path, what: error.to_string() })
    };
    let points = points(results, &study.grid.sweep);
    let report = Report { study, points: &points };
    let metric = results.first().map_or("top-1", |(_, result)| result.metric_name()).to_string();
    keep("results.csv", csv(study, results, &points).as_bytes())?;
    let mut figures = Vec::new();
    for measure in report.measures() {
        let (name, what) = match measure {
            Measure::Test => ("results".to_string(), metric.clone()),
            Measure::FewShot(shots) => (format!("few-shot-{shots}"), format!("{shots}-shot accuracy")),
        };
        let scene = report.scene(measure, &what);
        let svg = scene.svg();
        keep(&format!("{name}.svg"), svg.as_bytes())?;
        if let Ok(png) = scene.png(2.0) {
            keep(&format!("{name}.png"), &png)?;
        }
        let title = match study.data() {
            [data] => format!("{what} on {}", data.test_name()),
            _ => format!("{what} on test images"),
        };
        figures.push(Figure { name, title, svg, table: report.pivot(measure) });
    }
    let all = report.list(&metric);
    let described = report.described(results.len());
    keep("results.md", markdown(&study.file.name, &described, &figures, &all).as_bytes())?;
    keep("index.html", page::page(&study.file.name, &described, &figures, &all, &study.file.to_toml()).as_bytes())?;
    let table = figures.into_iter().next().and_then(|figure| figure.table).unwrap_or(all);
    Ok((files, table))
}

struct Report<'a> {
    study: &'a Study,
    points: &'a [Point<'a>],
}

impl Report<'_> {
    fn measures(&self) -> Vec<Measure> {
        let file = &self.study.file;
        let test = file.finetune.then_some(Measure::Test);
        let shots = file.probe.iter().flat_map(|probe| probe.shots.iter().map(|shots| Measure::FewShot(*shots)));
        test.into_iter().chain(shots).collect()
    }

    /// Points that are drawn: those whose swept settings validation chose.
    fn chosen(&self) -> impl Iterator<Item = &Point<'_>> {
        self.points.iter().filter(|point| point.chosen)
    }

    /// The dimensions with several values, without those that a sweep chooses.
    fn varied(&self) -> Vec<&(String, Vec<String>)> {
        let grid = &self.study.grid;
        let varied = |(name, values): &&(String, Vec<String>)| values.len() > 1 && !grid.sweep.contains(name);
        grid.dimensions.iter().filter(varied).collect()
    }

    /// The dimensions that lines differ in.
    fn line_dimensions(&self) -> Vec<&str> {
        let grid = &self.study.grid;
        let names: Vec<&str> = match (grid.lines.is_empty(), grid.x.as_str()) {
            (false, _) => grid.lines.iter().map(String::as_str).collect(),
            (true, FLOPS | PARAMETERS) => vec![MODEL],
            (true, x) => self.varied().iter().map(|(name, _)| name.as_str()).filter(|name| *name != x).collect(),
        };
        // Without any, all points are one line.
        if names.is_empty() && grid.x != MODEL { vec![MODEL] } else { names }
    }

    fn line_of(&self, point: &Point) -> String {
        let values: Vec<String> = self.line_dimensions().into_iter().map(|name| named(name, point.at(name))).collect();
        if values.is_empty() { self.study.file.name.clone() } else { values.join(", ") }
    }

    /// The names of all lines, in the order of the runs.
    fn lines(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for point in self.chosen() {
            let name = self.line_of(point);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    fn axis(&self) -> ScalingAxis {
        let grid = &self.study.grid;
        let name = |name: &str| ScalingAxis::Logarithmic { name: name.into() };
        match grid.x.as_str() {
            IMAGES => name("training images"),
            PRETRAIN_IMAGES => name("images of pre-training"),
            FLOPS if self.study.file.pretrain.is_some() => name("FLOPs of pre-training"),
            FLOPS => name("FLOPs of training"),
            PARAMETERS => name("parameters"),
            x => {
                let labels = grid.dimensions.iter().find(|(name, _)| name == x).map(|(_, values)| values.clone());
                ScalingAxis::Labelled { name: x.into(), labels: labels.unwrap_or_default() }
            }
        }
    }

    /// Where a point is on the axis.
    fn x(&self, point: &Point, axis: &ScalingAxis) -> f64 {
        match axis {
            ScalingAxis::Labelled { name, labels } => {
                labels.iter().position(|label| label == point.at(name)).map_or(f64::NAN, |at| at as f64)
            }
            ScalingAxis::Logarithmic { .. } => point.mean(|result| match self.study.grid.x.as_str() {
                FLOPS => result.spent(),
                PARAMETERS => result.parameters as f64,
                PRETRAIN_IMAGES => result.pretraining.as_ref().map_or(result.images, |before| before.images) as f64,
                _ => result.images as f64,
            }),
        }
    }

    fn scene(&self, measure: Measure, what: &str) -> crate::plots::Scene {
        let axis = self.axis();
        let line = |name: String| {
            let own = self.chosen().filter(|point| self.line_of(point) == name);
            let points = own.filter_map(|point| {
                let spread = point.spread(measure)?;
                Some(ScalingPoint { x: self.x(point, &axis), score: spread.mean, deviation: spread.deviation })
            });
            ScalingLine { points: points.collect(), name }
        };
        let lines: Vec<ScalingLine> = self.lines().into_iter().map(line).collect();
        scaling(&self.title(), what, &axis, &lines)
    }

    fn title(&self) -> String {
        let (file, data) = (&self.study.file, &self.study.data()[0].name);
        let training = self.study.runs().iter().filter(|run| run.stage == super::Stage::Training);
        let mut lengths: Vec<String> =
            training.map(|run| format!(": {} of {} images", run.recipe.length, run.recipe.batch)).collect();
        lengths.dedup();
        let length = Some(lengths).filter(|lengths| lengths.len() == 1).and_then(|mut lengths| lengths.pop());
        match file.name == *data {
            true => format!("{data}{}", length.unwrap_or_default()),
            false => format!("{} on {data}{}", file.name, length.unwrap_or_default()),
        }
    }

    /// A row for every line, a column for every value of the horizontal axis, if these are few.
    fn pivot(&self, measure: Measure) -> Option<StudyTable> {
        let grid = &self.study.grid;
        let (_, values) = grid.dimensions.iter().find(|(name, values)| *name == grid.x && values.len() <= 12)?;
        let by_model = self.line_dimensions() == [MODEL];
        let mut headings = vec![self.line_dimensions().iter().map(|name| short(name)).collect::<Vec<_>>().join(", ")];
        headings.extend(by_model.then(|| "parameters".to_string()));
        for value in values {
            let images = self.chosen().find(|point| point.at(&grid.x) == value).map(|point| match grid.x.as_str() {
                IMAGES => point.mean(|result| result.images as f64),
                _ => f64::NAN,
            });
            headings.push(match images.filter(|images| images.is_finite() && value.ends_with('%')) {
                Some(images) => format!("{value} ({images:.0})"),
                None => value.clone(),
            });
        }
        headings.push("time".into());
        let row = |name: String| {
            let own: Vec<&Point> = self.chosen().filter(|point| self.line_of(point) == name).collect();
            let parameters = own.first().map_or(0.0, |point| point.mean(|result| result.parameters as f64));
            let seconds: f64 = own.iter().flat_map(|point| &point.results).map(|result| result.seconds).sum();
            let mut cells = vec![name];
            cells.extend(by_model.then(|| millions(parameters)));
            for value in values {
                cells.push(
                    own.iter().find(|point| point.at(&grid.x) == value).map_or(String::new(), |p| cell(p, measure)),
                );
            }
            cells.push(clock(seconds));
            cells
        };
        let rows = self.lines().into_iter().map(row).collect();
        Some(StudyTable { headings, names: 1, rows })
    }

    /// A row for every combination, swept settings that were not chosen included.
    fn list(&self, metric: &str) -> StudyTable {
        let grid = &self.study.grid;
        let shown: Vec<&str> = (grid.dimensions.iter())
            .filter(|(name, values)| values.len() > 1 || name == MODEL)
            .map(|(name, _)| name.as_str())
            .collect();
        let pretrained = self.study.file.pretrain.is_some() && self.study.file.finetune;
        let sweeps = !grid.sweep.is_empty();
        let mut headings: Vec<String> = shown.iter().map(|name| short_heading(name)).collect();
        headings.extend(sweeps.then(|| "chosen".to_string()));
        let names = headings.len();
        let measures = self.measures();
        headings.extend(measures.iter().map(|measure| match measure {
            Measure::Test => format!("test {metric}"),
            Measure::FewShot(shots) => format!("{shots}-shot"),
        }));
        headings.extend([format!("validation {metric}"), "runs".into()]);
        headings.extend(["parameters", "images", "seen", "FLOPs"].map(String::from));
        headings.extend(pretrained.then(|| "FLOPs of pre-training".to_string()));
        let row = |point: &Point| {
            let mut cells: Vec<String> = shown.iter().map(|name| point.at(name).to_string()).collect();
            cells.extend(sweeps.then(|| if point.chosen { "yes".into() } else { String::new() }));
            cells.extend(measures.iter().map(|measure| cell(point, *measure)));
            cells.push(point.validation().map_or(String::new(), |spread| spread.percent()));
            cells.push(match point.diverged() {
                0 => point.results.len().to_string(),
                diverged => format!("{} ({diverged} diverged)", point.results.len()),
            });
            cells.push(millions(point.mean(|result| result.parameters as f64)));
            cells.push(format!("{:.0}", point.mean(|result| result.images as f64)));
            cells.push(format!("{:.0}", point.mean(|result| result.seen as f64)));
            cells.push(format!("{:.2e}", point.mean(|result| result.flops)));
            cells.extend(pretrained.then(|| format!("{:.2e}", point.mean(StudyResult::spent))));
            cells
        };
        StudyTable { headings, names, rows: self.points.iter().map(row).collect() }
    }

    /// What was done, in a few sentences.
    fn described(&self, finished: usize) -> Vec<String> {
        let (study, file) = (self.study, &self.study.file);
        let last = if file.finetune { super::Stage::Training } else { super::Stage::Pretraining };
        let all = study.runs().iter().filter(|run| run.stage == last).count();
        let mut lines: Vec<String> = Some(file.about.clone()).filter(|about| !about.is_empty()).into_iter().collect();
        lines.push(format!("{finished} of {all} runs are finished."));
        for data in study.data() {
            let several = study.data().len() > 1;
            let accuracy = if several { format!("{}: accuracy", data.name) } else { "Accuracy".into() };
            lines.push(match &data.test {
                TestImages::HeldOut => format!(
                    "{accuracy} is that of the last weights on {} images held out of training, for lack of test images; they \
                     are looked at once, and nothing is chosen by them.",
                    data.validation_images
                ),
                _ => format!(
                    "{accuracy} is that of the last weights on {}, measured once. Test images choose nothing; {} \
                     validation images are held out of training.",
                    data.test_name(),
                    data.validation_images
                ),
            });
        }
        if file.seeds.len() > 1 {
            lines.push(format!("Mean ± standard deviation of {} seeds.", file.seeds.len()));
        }
        if !study.grid.sweep.is_empty() {
            let swept: Vec<&str> = study.grid.sweep.iter().map(String::as_str).collect();
            lines.push(format!("{}: the value with the best validation accuracy is shown.", swept.join(", ")));
        }
        if let Some(probe) = &file.probe {
            let of = if file.pretrain.is_some() { "pre-trained" } else { "trained" };
            lines.push(format!(
                "Few-shot: ridge regression on the features of the {of} model, mean of {} draws.",
                probe.draws
            ));
        }
        lines
    }
}

/// A value with the name of its dimension where it does not speak for itself.
fn named(dimension: &str, value: &str) -> String {
    match dimension {
        MODEL | DATA => value.into(),
        IMAGES => format!("{value} images"),
        PRETRAIN_IMAGES => format!("pre-trained on {value}"),
        _ if value.parse::<f64>().is_ok() || ["true", "false"].contains(&value) => {
            format!("{} {value}", short(dimension))
        }
        _ => value.into(),
    }
}

fn short_heading(name: &str) -> String {
    match name {
        IMAGES => "size".into(),
        PRETRAIN_IMAGES => "pre-training images".into(),
        other => short(other).to_string(),
    }
}

fn cell(point: &Point, measure: Measure) -> String {
    match point.spread(measure) {
        Some(spread) => spread.percent(),
        None if point.diverged() > 0 => "diverged".into(),
        None => String::new(),
    }
}

fn clock(seconds: f64) -> String {
    Clock(Duration::try_from_secs_f64(seconds).unwrap_or_default()).to_string()
}

fn millions(parameters: f64) -> String {
    format!("{:.2} M", parameters / 1e6)
}

fn markdown(name: &str, described: &[String], figures: &[Figure], all: &StudyTable) -> String {
    let mut text = format!("# {name}\n\n{}\n", described.join("\n"));
    for figure in figures {
        text += &format!("\n## {}\n\n![{}]({}.svg)\n", figure.title, figure.title, figure.name);
        if let Some(table) = &figure.table {
            text += &format!("\n{}", markdown_table(table));
        }
    }
    text + &format!("\n## All\n\n{}", markdown_table(all))
}

fn markdown_table(table: &StudyTable) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(&table.headings);
    let numbers = table.headings.len().saturating_sub(table.names);
    text += &format!("|{}{}\n", "---|".repeat(table.names), "---:|".repeat(numbers));
    table.rows.iter().for_each(|row| text += &line(row));
    text
}

fn csv(study: &Study, results: &[(&StudyRun, StudyResult)], points: &[Point]) -> String {
    let axes: Vec<&str> = (study.grid.dimensions.iter().map(|(name, _)| name.as_str()))
        .filter(|name| ![MODEL, DATA, IMAGES].contains(name))
        .collect();
    let pretrained = study.file.pretrain.is_some() && study.file.finetune;
    let shots: Vec<usize> = study.file.probe.iter().flat_map(|probe| probe.shots.clone()).collect();
    let mut header: Vec<String> = ["run", "model", "family", "teacher", "data", "size"].map(String::from).into();
    header.extend(axes.iter().map(|axis| axis.to_string()));
    header.extend(["seed", "parameters", "fraction", "images", "steps", "seen", "flops"].map(String::from));
    if pretrained {
        header.extend(["pretrain_images", "pretrain_seen", "pretrain_flops", "pretrain_seconds"].map(String::from));
    }
    header.extend(["seconds", "metric", "validation", "score", "loss", "test_images"].map(String::from));
    header.extend(shots.iter().map(|shots| format!("few_shot_{shots}")));
    header.extend(["diverged", "chosen"].map(String::from));
    let mut text = csv_line(&header);
    let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    for (run, r) in results {
        let chosen = points.iter().any(|point| point.chosen && point.place == run.place);
        let mut fields = vec![run.name.clone(), run.at(MODEL).into(), r.family.clone()];
        fields.extend([r.teacher.clone().unwrap_or_default(), run.at(DATA).into(), run.at(IMAGES).into()]);
        fields.extend(axes.iter().map(|axis| run.at(axis).to_string()));
        fields.extend([r.seed.to_string(), r.parameters.to_string(), r.fraction.to_string(), r.images.to_string()]);
        fields.extend([r.steps.to_string(), r.seen.to_string(), r.flops.to_string()]);
        if pretrained {
            let before = r.pretraining.as_ref();
            fields.push(before.map_or(String::new(), |before| before.images.to_string()));
            fields.push(before.map_or(String::new(), |before| before.seen.to_string()));
            fields.push(number(before.map(|before| before.flops)));
            fields.push(before.map_or(String::new(), |before| format!("{:.1}", before.seconds)));
        }
        fields.extend([format!("{:.1}", r.seconds), r.metric.clone(), number(r.validation), number(r.score)]);
        fields.extend([number(r.loss), r.test_images.to_string()]);
        fields.extend(shots.iter().map(|shots| number(r.few_shot.get(shots).copied())));
        fields.extend([r.diverged.to_string(), chosen.to_string()]);
        text += &csv_line(fields);
    }
    text
}
