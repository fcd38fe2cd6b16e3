//! The log of a run: every row goes to `metrics.jsonl`, `metrics.csv` and TensorBoard's events. The CSV is rewritten from
//! the JSON lines when a column is new or a run resumes.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use vit_system::{atomic_file, regular_file};

use super::row::{EPOCH, STEP, csv_header};
use super::{MetricsRow, ROWS, RunError, RunFolder, TABLE, events};
use crate::json::NOT_FINITE;

/// Writes the rows of a run.
#[derive(Debug)]
pub struct MetricsLog {
    rows: Output,
    table: Output,
    events: Output,
    columns: Vec<String>,
}

#[derive(Debug)]
struct Output {
    path: PathBuf,
    file: File,
}

impl Output {
    fn append(path: PathBuf) -> Result<Self, RunError> {
        let file = OpenOptions::new().create(true).append(true).open(&path);
        file.map(|file| Self { file, path: path.clone() }).map_err(|error| RunError::io(&path, error))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), RunError> {
        // One write per row, so that a killed process rarely leaves an incomplete one.
        self.file.write_all(bytes).map_err(|error| RunError::io(&self.path, error))
    }

    fn sync(&self) -> Result<(), RunError> {
        self.file.sync_data().map_err(|error| RunError::io(&self.path, error))
    }
}

impl MetricsLog {
    /// The log of a new run.
    pub fn create(run: &RunFolder) -> Result<Self, RunError> {
        Self::open(run, &[])
    }

    /// The log of a run that continues after `step`. Rows of later steps, logged after the checkpoint, are removed from all
    /// files, since they will be logged again.
    pub fn resume(run: &RunFolder, step: u64) -> Result<Self, RunError> {
        let mut rows = run.rows()?;
        rows.retain(|row| row.step <= step);
        let text: String = rows.iter().map(|row| row.to_json() + "\n").collect();
        write_whole(&run.path.join(ROWS), text.as_bytes())?;
        for path in events::files(&run.path).map_err(|error| RunError::io(&run.path, error))? {
            let file = regular_file::read(&path).map_err(|error| RunError::io(&path, error))?;
            write_whole(&path, &events::cut_after(&file, step))?;
        }
        Self::open(run, &rows)
    }

    fn open(run: &RunFolder, rows: &[MetricsRow]) -> Result<Self, RunError> {
        let mut columns = Vec::new();
        rows.iter().for_each(|row| add_columns(&mut columns, row));
        let table = run.path.join(TABLE);
        write_whole(&table, table_text(&columns, rows).as_bytes())?;
        let before = events::files(&run.path).map_err(|error| RunError::io(&run.path, error))?;
        let events_path = before.into_iter().next_back().unwrap_or_else(|| run.path.join(events::new_name()));
        let mut log = Self {
            rows: Output::append(run.path.join(ROWS))?,
            table: Output::append(table)?,
            events: Output::append(events_path)?,
            columns,
        };
        let length = log.events.file.metadata().map_err(|error| RunError::io(&log.events.path, error))?.len();
        if length == 0 {
            log.events.write(&events::first_record(events::now()))?;
        }
        Ok(log)
    }

    /// Adds a row, which survives the end of the process; after [`sync`](Self::sync), also a power cut.
    pub fn append(&mut self, row: &MetricsRow) -> Result<(), RunError> {
        if let Some((name, _)) = row.values.iter().find(|(name, _)| [STEP, EPOCH, NOT_FINITE].contains(&name.as_str()))
        {
            return Err(RunError::Reserved { name: name.clone() });
        }
        self.rows.write((row.to_json() + "\n").as_bytes())?;
        let known = self.columns.len();
        add_columns(&mut self.columns, row);
        if self.columns.len() == known {
            self.table.write(row.to_csv(&self.columns).as_bytes())?;
        } else {
            self.rewrite_table()?;
        }
        self.events.write(&events::scalars(row, events::now()))
    }

    /// Flushes all rows to the disk. Must be called before a checkpoint is saved, so that no row before it is missing.
    pub fn sync(&self) -> Result<(), RunError> {
        self.rows.sync()?;
        self.table.sync()?;
        self.events.sync()
    }

    fn rewrite_table(&mut self) -> Result<(), RunError> {
        let text =
            regular_file::read_to_string(&self.rows.path).map_err(|error| RunError::io(&self.rows.path, error))?;
        let rows: Vec<MetricsRow> = text.lines().filter_map(MetricsRow::from_json).collect();
        write_whole(&self.table.path, table_text(&self.columns, &rows).as_bytes())?;
        self.table = Output::append(self.table.path.clone())?;
        Ok(())
    }
}

fn add_columns(columns: &mut Vec<String>, row: &MetricsRow) {
    for (name, _) in &row.values {
        if !columns.contains(name) {
            columns.push(name.clone());
        }
    }
}

fn table_text(columns: &[String], rows: &[MetricsRow]) -> String {
    let mut text = csv_header(columns);
    text.extend(rows.iter().map(|row| row.to_csv(columns)));
    text
}

fn write_whole(path: &Path, content: &[u8]) -> Result<(), RunError> {
    atomic_file::write(path, content).map_err(|error| RunError::io(path, error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::folder::{Existing, columns};
    use std::fs;

    fn new_run() -> (tempfile::TempDir, RunFolder) {
        let folder = tempfile::tempdir().unwrap();
        let run = RunFolder::create(folder.path(), "", Existing::Refuse).unwrap();
        (folder, run)
    }

    fn row(step: u64) -> MetricsRow {
        MetricsRow::new(step).epoch(step as f64 / 10.0).with(columns::TRAIN_LOSS, 1.0 / step as f64)
    }

    #[test]
    fn rows_come_back_exactly_and_what_is_not_finite_is_named_and_no_text() {
        let (folder, run) = new_run();
        let mut log = MetricsLog::create(&run).unwrap();
        let rows = [
            row(3),
            MetricsRow::new(4).with("a", f64::NAN).with("b", f64::INFINITY).with("c", f64::NEG_INFINITY),
            MetricsRow::new(5).with("a", 0.1 + 0.2).with("a", 5e-324),
        ];
        rows.iter().for_each(|row| log.append(row).unwrap());
        let read = run.rows().unwrap();
        assert_eq!(read[0], rows[0]);
        assert!(["a", "b", "c"].iter().all(|name| read[1].get(name).unwrap().is_nan()));
        let text = fs::read_to_string(folder.path().join(ROWS)).unwrap();
        let written: serde_json::Value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
        assert_eq!(written, serde_json::json!({ "step": 4, "not_finite": ["a", "b", "c"] }));
        let before = MetricsRow::from_json(r#"{"step":4,"a":"NaN","b":"inf"}"#).unwrap();
        assert!(before.get("a").unwrap().is_nan() && before.get("b") == Some(f64::INFINITY), "older runs have text");
        assert_eq!(read[2].values, [("a".to_string(), 5e-324)]);
    }

    #[test]
    fn a_new_column_widens_the_table() {
        let (folder, run) = new_run();
        let mut log = MetricsLog::create(&run).unwrap();
        log.append(&row(1)).unwrap();
        log.append(&row(2)).unwrap();
        log.append(&MetricsRow::new(2).with("val/top1", 0.25).with("a \"b\", c", 1.0)).unwrap();
        log.append(&row(4)).unwrap();
        let table = fs::read_to_string(folder.path().join(TABLE)).unwrap();
        let expected =
            "step,epoch,train/loss,val/top1,\"a \"\"b\"\", c\"\n1,0.1,1,,\n2,0.2,0.5,,\n2,,,0.25,1\n4,0.4,0.25,,\n";
        assert_eq!(table, expected);
    }

    #[test]
    fn a_resumed_run_logs_no_step_twice() {
        let (folder, run) = new_run();
        let mut log = MetricsLog::create(&run).unwrap();
        (1..=5).for_each(|step| log.append(&row(step)).unwrap());
        drop(log);
        // As left by a killed process.
        let rows = folder.path().join(ROWS);
        let text = fs::read_to_string(&rows).unwrap() + "{\"step\":6,\"trai";
        fs::write(&rows, text).unwrap();
        let events_path = &events::files(folder.path()).unwrap()[0];
        let mut bytes = fs::read(events_path).unwrap();
        bytes.extend([7; 9]);
        fs::write(events_path, bytes).unwrap();

        let mut log = MetricsLog::resume(&run, 3).unwrap();
        (4..=6).for_each(|step| log.append(&row(step)).unwrap());
        log.sync().unwrap();
        assert_eq!(run.rows().unwrap(), (1..=6).map(row).collect::<Vec<_>>());
        let table = fs::read_to_string(folder.path().join(TABLE)).unwrap();
        assert_eq!(
            table.lines().map(|line| line.split(',').next().unwrap()).collect::<Vec<_>>(),
            ["step", "1", "2", "3", "4", "5", "6"]
        );
        let files = events::files(folder.path()).unwrap();
        let bytes = fs::read(&files[0]).unwrap();
        assert_eq!((files.len(), events::cut_after(&bytes, 6).len()), (1, bytes.len()));
        let records = |upto| events::cut_after(&bytes, upto).len();
        let sizes: Vec<usize> = (1..=6).map(|step| records(step) - records(step - 1)).collect();
        assert!(sizes.iter().all(|&size| size == sizes[0] && size > 0), "one record for every step: {sizes:?}");
    }

    #[test]
    fn a_measurement_cannot_be_named_step() {
        let (_folder, run) = new_run();
        let mut log = MetricsLog::create(&run).unwrap();
        assert!(matches!(log.append(&MetricsRow::new(1).with("step", 1.0)), Err(RunError::Reserved { .. })));
    }
}
