//! A figure: a drawing, its caption, and the data it was drawn from.

use std::path::Path;

use serde_json::Value;
use vit_plot::Scene;
use vit_system::{atomic_file, npy};

use crate::InsightError;

/// The data behind a figure, as a file.
#[derive(Debug, Clone)]
pub enum FigureData {
    /// A table with a heading line.
    Csv(String),
    /// A JSON document.
    Json(Value),
    /// An array.
    Npy(Vec<usize>, Vec<f32>),
}

/// A drawing with its caption and data.
#[derive(Debug, Clone)]
pub struct Figure {
    /// The name of its files.
    pub name: &'static str,
    /// The title.
    pub title: String,
    /// How to read it, in a few sentences.
    pub text: String,
    /// The drawing.
    pub scene: Scene,
    /// What it was drawn from.
    pub data: Vec<FigureData>,
}

impl Figure {
    /// Writes NAME.png, NAME.svg and the data into a folder; returns the files' names.
    pub fn write(&self, folder: &Path) -> Result<Vec<String>, InsightError> {
        let mut files = Vec::new();
        let mut write = |ending: &str, content: &[u8]| {
            let name = format!("{}.{ending}", self.name);
            let path = folder.join(&name);
            files.push(name);
            atomic_file::write(&path, content).map_err(InsightError::of(&path))
        };
        write("png", &self.scene.png(2.0)?)?;
        write("svg", self.scene.svg().as_bytes())?;
        for data in &self.data {
            match data {
                FigureData::Csv(text) => write("csv", text.as_bytes())?,
                FigureData::Json(value) => write("json", format!("{value:#}\n").as_bytes())?,
                FigureData::Npy(shape, values) => {
                    let mut bytes = Vec::new();
                    let array = npy::start(&mut bytes, "<f4", shape).and_then(|()| npy::append(&mut bytes, values));
                    array.map_err(InsightError::of(folder))?;
                    write("npy", &bytes)?;
                }
            }
        }
        Ok(files)
    }
}
