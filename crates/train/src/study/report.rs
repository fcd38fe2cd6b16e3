//! The results of a study: CSV with a row for every run, a table with a row for every model, and the plot.

use std::fmt::Display;
use std::path::Path;

use vit_system::csv_line;

use super::{StudyResult, TrainError};
use crate::plots::{ScalingLine, scaling};
use crate::run::progress::Clock;

const FILES: [&str; 4] = ["results.csv", "results.md", "results.svg", "results.png"];

/// The table of a study: a row for every model, a column for every fraction.
#[derive(Debug, Clone, PartialEq)]
pub struct StudyTable {
    /// The headings; the first is over names, the others over numbers.
    pub headings: Vec<String>,
    /// The cells.
    pub rows: Vec<Vec<String>>,
}

pub(super) fn write(
    folder: &Path,
    title: &str,
    results: &[StudyResult],
) -> Result<([&'static str; 4], StudyTable), TrainError> {
    let keep = |name: &str, content: &[u8]| {
        let path = folder.join(name);
        vit_system::atomic_file::write(&path, content)
            .map_err(|error| TrainError::Config { path, what: error.to_string() })
    };
    let table = table(results);
    keep(FILES[0], csv(results).as_bytes())?;
    keep(FILES[1], format!("# {title}\n\n{}", markdown(&table)).as_bytes())?;
    let metric = results.first().map_or("top-1", StudyResult::metric_name);
    let scene = scaling(title, metric, &lines(results));
    keep(FILES[2], scene.svg().as_bytes())?;
    if let Ok(png) = scene.png(2.0) {
        keep(FILES[3], &png)?;
    }
    Ok((FILES, table))
}

fn models(results: &[StudyResult]) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for result in results {
        if !names.contains(&result.model.as_str()) {
            names.push(&result.model);
        }
    }
    names
}

fn lines(results: &[StudyResult]) -> Vec<ScalingLine> {
    let line = |name: &str| ScalingLine {
        name: name.into(),
        points: results.iter().filter(|r| r.model == name).map(|r| (r.images as f64, r.score)).collect(),
    };
    models(results).into_iter().map(line).collect()
}

fn table(results: &[StudyResult]) -> StudyTable {
    let mut fractions: Vec<f64> = results.iter().map(|r| r.fraction).collect();
    fractions.sort_by(f64::total_cmp);
    fractions.dedup();
    let mut headings = vec!["model".to_string(), "parameters".to_string()];
    for fraction in &fractions {
        let images = results.iter().find(|r| r.fraction == *fraction).map_or(0, |r| r.images);
        headings.push(format!("{} ({images})", percent(*fraction)));
    }
    headings.push("time".into());
    let row = |name: &str| {
        let own: Vec<&StudyResult> = results.iter().filter(|r| r.model == name).collect();
        let mut cells = vec![name.to_string(), own.first().map_or(String::new(), |r| millions(r.parameters))];
        for fraction in &fractions {
            let found = own.iter().find(|r| r.fraction == *fraction);
            cells.push(found.map_or(String::new(), |r| format!("{:.2}%", 100.0 * r.score)));
        }
        let seconds: f64 = own.iter().map(|r| r.seconds).sum();
        cells.push(Clock(std::time::Duration::try_from_secs_f64(seconds).unwrap_or_default()).to_string());
        cells
    };
    StudyTable { headings, rows: models(results).into_iter().map(row).collect() }
}

/// A share as a percentage, without the rounding errors of binary fractions.
pub(super) fn percent(share: f64) -> String {
    format!("{}%", (share * 1e10).round() / 1e8)
}

fn millions(parameters: u64) -> String {
    format!("{:.2} M", parameters as f64 / 1e6)
}

fn markdown(table: &StudyTable) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let mut text = line(&table.headings);
    text += &format!("|---|{}\n", "---:|".repeat(table.headings.len().saturating_sub(1)));
    table.rows.iter().for_each(|row| text += &line(row));
    text
}

fn csv(results: &[StudyResult]) -> String {
    let mut text =
        String::from("model,family,teacher,parameters,fraction,pictures,steps,seen,seconds,metric,score,loss\n");
    for r in results {
        let fields: [&dyn Display; 12] = [
            &r.model,
            &r.family,
            &r.teacher.as_deref().unwrap_or_default(),
            &r.parameters,
            &r.fraction,
            &r.images,
            &r.steps,
            &r.seen,
            &format_args!("{:.1}", r.seconds),
            &r.metric,
            &r.score,
            &r.loss,
        ];
        text += &csv_line(fields);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(model: &str, fraction: f64, score: f64) -> StudyResult {
        StudyResult {
            model: model.into(),
            family: "ViT".into(),
            teacher: None,
            parameters: 3_720_000,
            fraction,
            images: (50_000.0 * fraction) as usize,
            steps: 4000,
            seen: 1_024_000,
            seconds: 42.0,
            metric: "val/top1".into(),
            score,
            loss: 1.0,
        }
    }

    #[test]
    fn the_table_has_a_row_for_every_model_and_gaps_where_runs_are_missing() {
        let results = [result("a", 0.1, 0.51), result("b", 0.1, 0.62), result("a", 1.0, 0.8)];
        let table = table(&results);
        assert_eq!(table.headings, ["model", "parameters", "10% (5000)", "100% (50000)", "time"]);
        assert_eq!(table.rows[0], ["a", "3.72 M", "51.00%", "80.00%", "1m 24s"]);
        assert_eq!(table.rows[1], ["b", "3.72 M", "62.00%", "", "42s"]);
        assert!(markdown(&table).contains("|---|---:|---:|---:|---:|\n| a | 3.72 M |"));
        assert_eq!(csv(&results).lines().nth(3).unwrap(), "a,ViT,,3720000,1,50000,4000,1024000,42.0,val/top1,0.8,1");
        assert_eq!(percent(0.07), "7%");
    }
}
