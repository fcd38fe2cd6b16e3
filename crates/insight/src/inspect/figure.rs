//! A figure: a drawing, what it shows, and the numbers behind it.

use std::path::Path;

use serde_json::Value;
use vit_models::weights::npy;
use vit_plot::Scene;
use vit_system::atomic_file;

use crate::InsightError;

/// The numbers behind a figure, as a file.
#[derive(Debug, Clone)]
pub enum Numbers {
    /// A table with a heading line.
    Csv(String),
    /// Anything.
    Json(Value),
    /// An array.
    Npy(Vec<usize>, Vec<f32>),
}

/// A drawing with its explanation and its numbers.
#[derive(Debug, Clone)]
pub struct Figure {
    /// The name of its files.
    pub name: &'static str,
    /// What it is.
    pub title: String,
    /// How to read it, in a few sentences.
    pub text: String,
    /// The drawing.
    pub scene: Scene,
    /// What it was drawn from.
    pub numbers: Vec<Numbers>,
}

impl Figure {
    /// Writes NAME.png, NAME.svg and the numbers into a folder; gives the names of the files.
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
        for numbers in &self.numbers {
            match numbers {
                Numbers::Csv(text) => write("csv", text.as_bytes())?,
                Numbers::Json(value) => write("json", format!("{value:#}\n").as_bytes())?,
                Numbers::Npy(shape, values) => {
                    let mut bytes = Vec::new();
                    let array = npy::start(&mut bytes, shape).and_then(|()| npy::append(&mut bytes, values));
                    array.map_err(InsightError::of(folder))?;
                    write("npy", &bytes)?;
                }
            }
        }
        Ok(files)
    }
}
