//! The Python module `vit._vit`: Python's objects in, the facade's answers out. `vit/__init__.py` makes its names the package's.
//!
//! The interpreter is released while anything is computed, and asked for signals between batches, so that Ctrl-C works.

mod array;
mod dataset;
mod error;
mod explanation;
mod images;
mod model;
mod options;
mod progress;
mod training;
mod weights;

use pyo3::prelude::*;

#[pymodule]
mod _vit {
    #[pymodule_export]
    use crate::dataset::{Dataset, DatasetIterator, load_dataset};
    #[pymodule_export]
    use crate::explanation::Explanation;
    #[pymodule_export]
    use crate::model::{Model, open};
    #[pymodule_export]
    use crate::options::devices;
    #[pymodule_export]
    use crate::training::{Run, RunIterator, resume, train, wait_for_runs};
    #[pymodule_export]
    use crate::weights::from_state_dict;

    use crate::{error, warn};
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        vit::on_cpu_fallback(warn);
        error::report_panics();
        module.add("Error", module.py().get_type::<error::Error>())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}

/// Warns as Python does.
fn warn(message: &str) {
    let warned = Python::attach(|py| py.import("warnings")?.call_method1("warn", (message,)).map(drop));
    // A filter that makes errors of warnings has nowhere to raise them here.
    drop(warned);
}
