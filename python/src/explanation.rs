//! The explanation of one image: its maps and its figure.

use std::path::PathBuf;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use vit::data::{ApplyPreprocess, Region};
use vit::explain::{InsightError, Map, explanation_sheet};
use vit::{Explain, Image};

use crate::array;
use crate::error::exception;

/// What a model's answer depends on in an image: maps over it, class-independent ones first.
#[pyclass(frozen, module = "vit")]
pub struct Explanation {
    title: String,
    subtitle: String,
    image: Image,
    region: Region,
    maps: Vec<Map>,
    captions: Vec<(String, String)>,
}

impl Explanation {
    pub fn new(
        model: &Explain,
        title: String,
        subtitle: String,
        image: Image,
        found: vit::explain::Explanation,
    ) -> Result<Explanation, vit::Error> {
        let region = model.preprocess().region(image.width(), image.height())?;
        let captions = model.captions(&found);
        let maps = found.maps.into_iter().map(|(_, map)| map).collect();
        Ok(Explanation { title, subtitle, image, region, maps, captions })
    }

    fn draw(&self) -> Result<Vec<u8>, vit::Error> {
        let named =
            self.captions.iter().zip(&self.maps).map(|((name, figure), map)| (name.clone(), figure.clone(), map));
        let named: Vec<_> = named.collect();
        let sheet = explanation_sheet(&self.title, &self.subtitle, &self.image, self.region, &named);
        Ok(sheet.png(2.0).map_err(InsightError::from)?)
    }
}

#[pymethods]
impl Explanation {
    /// The figure as the bytes of a PNG file: the image, and every map over it with its scale.
    #[getter]
    fn png<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let png = py.detach(|| self.draw()).map_err(exception)?;
        Ok(PyBytes::new(py, &png))
    }

    /// The first map, float32 of shape [rows, columns].
    #[getter]
    fn map<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let (grid, values) = self.maps.first().map_or(([0, 0], &[][..]), |map| (map.grid(), map.values()));
        array::floats(py, grid.to_vec(), values.to_vec())
    }

    /// All maps, float32 of shape [maps, rows, columns].
    #[getter]
    fn maps<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let [rows, columns] = self.maps.first().map_or([0, 0], Map::grid);
        let values = self.maps.iter().flat_map(|map| map.values().to_vec()).collect();
        array::floats(py, vec![self.maps.len(), rows, columns], values)
    }

    /// What each map is about: the method, or the class.
    #[getter]
    fn names(&self) -> Vec<&str> {
        self.captions.iter().map(|(name, _)| name.as_str()).collect()
    }

    /// Shows the figure: in the notebook, or elsewhere in the system's viewer of images.
    fn show(slf: &Bound<'_, Self>) -> PyResult<()> {
        slf.py().import("vit._show")?.call_method1("show", (slf,)).map(drop)
    }

    /// Writes the figure as a PNG file.
    fn save(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        let png = py.detach(|| self.draw()).map_err(exception)?;
        Ok(std::fs::write(path, png)?)
    }

    fn _repr_png_<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        self.png(py)
    }

    fn __repr__(&self) -> String {
        let about: Vec<String> =
            self.captions.iter().map(|(name, figure)| format!("{name} {figure}").trim_end().into()).collect();
        format!("Explanation({}: {})", self.title, about.join(", "))
    }
}
