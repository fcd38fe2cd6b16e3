//! Arguments of functions as options of the library, and the devices.

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use vit::{DeviceOptions, Precision};

/// The device of arguments.
pub fn device(device: &str, precision: Precision, threads: Option<usize>) -> PyResult<DeviceOptions> {
    let options = DeviceOptions::new().device(device.parse().map_err(PyValueError::new_err)?).precision(precision);
    Ok(match threads {
        Some(0) => return Err(PyValueError::new_err("threads is 0; give at least 1, or None for all cores")),
        Some(threads) => options.threads(threads),
        None => options,
    })
}

/// A precision by its name.
pub fn precision(name: &str) -> PyResult<Precision> {
    name.parse().map_err(PyValueError::new_err)
}

/// Threads for decoding beside a device with so many.
pub fn threads(given: Option<usize>) -> usize {
    given.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
}

/// The sides of an image: one number for both, or height and width.
#[derive(FromPyObject)]
pub enum ImageSize {
    Square(usize),
    Sides([usize; 2]),
}

impl ImageSize {
    pub fn sides(self) -> [usize; 2] {
        match self {
            ImageSize::Square(side) => [side, side],
            ImageSize::Sides(sides) => sides,
        }
    }
}

/// The devices that models can run on: the CPU, and NVIDIA GPUs where they can be used.
///
/// ```python
/// >>> vit.devices()
/// [{'device': 'cpu', 'name': 'avx512', 'threads': 8}, {'device': 'cuda:0', 'name': 'NVIDIA H200', 'memory': 150754820096}]
/// ```
#[pyfunction]
pub fn devices(py: Python<'_>) -> PyResult<Vec<Bound<'_, PyDict>>> {
    let described = |device: vit::DeviceDescription| {
        let entry = PyDict::new(py);
        entry.set_item("device", device.id)?;
        entry.set_item("name", device.name)?;
        device.threads.map_or(Ok(()), |threads| entry.set_item("threads", threads))?;
        device.memory_bytes.map_or(Ok(()), |bytes| entry.set_item("memory", bytes))?;
        Ok(entry)
    };
    py.detach(vit::devices).into_iter().map(described).collect()
}
