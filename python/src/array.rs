//! NumPy arrays in and out by `__array_interface__`, NumPy's protocol for memory: nothing is copied, and NumPy is imported when
//! the first array is made.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use vit::data::Batch;

/// Memory that NumPy's arrays are views of.
#[pyclass(frozen, module = "vit._vit")]
struct Memory {
    shape: Vec<usize>,
    kind: &'static str,
    address: usize,
    _owner: Owner,
}

/// What frees the memory when the last array is gone.
enum Owner {
    F32 {
        _data: Vec<f32>,
    },
    I64 {
        _data: Vec<i64>,
    },
    /// Its buffers return to the loader.
    Batch {
        _data: Box<Batch>,
    },
}

#[pymethods]
impl Memory {
    #[getter]
    fn __array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("version", 3)?;
        interface.set_item("shape", PyTuple::new(py, &self.shape)?)?;
        let order = if cfg!(target_endian = "little") { '<' } else { '>' };
        interface.set_item("typestr", format!("{order}{}", self.kind))?;
        interface.set_item("data", (self.address, false))?;
        Ok(interface)
    }
}

fn array<'py>(py: Python<'py>, memory: Memory) -> PyResult<Bound<'py, PyAny>> {
    py.import("numpy")?.call_method1("asarray", (Bound::new(py, memory)?,))
}

/// An array of float32.
pub fn floats(py: Python<'_>, shape: Vec<usize>, mut data: Vec<f32>) -> PyResult<Bound<'_, PyAny>> {
    debug_assert_eq!(shape.iter().product::<usize>(), data.len());
    let address = data.as_mut_ptr() as usize;
    array(py, Memory { shape, kind: "f4", address, _owner: Owner::F32 { _data: data } })
}

/// An array of int64.
pub fn integers(py: Python<'_>, mut data: Vec<i64>) -> PyResult<Bound<'_, PyAny>> {
    let address = data.as_mut_ptr() as usize;
    array(py, Memory { shape: vec![data.len()], kind: "i8", address, _owner: Owner::I64 { _data: data } })
}

/// The images of a batch as an array of float32.
pub fn images(py: Python<'_>, shape: Vec<usize>, mut batch: Batch) -> PyResult<Bound<'_, PyAny>> {
    debug_assert_eq!(shape.iter().product::<usize>(), batch.images.len());
    let address = batch.images.as_mut_ptr() as usize;
    array(py, Memory { shape, kind: "f4", address, _owner: Owner::Batch { _data: Box::new(batch) } })
}

/// The memory of an array of somebody else, contiguous in C's order.
pub struct ArrayView {
    pub shape: Vec<usize>,
    pub elements: Elements,
    address: usize,
    /// Keeps the memory where it is.
    _array: Py<PyAny>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Elements {
    U8,
    F32,
}

impl ArrayView {
    /// Of anything that NumPy can make an array of without copying: an array, a buffer, a tensor with DLPack.
    pub fn of(object: &Bound<'_, PyAny>) -> PyResult<ArrayView> {
        let numpy = object.py().import("numpy")?;
        let by_dlpack = object.hasattr("__dlpack__")? && !object.hasattr("__array_interface__")?;
        let array = match by_dlpack {
            true => numpy.call_method1("from_dlpack", (object,))?,
            false => object.clone(),
        };
        // A copy only where the memory is strided or not aligned.
        let options = PyDict::new(object.py());
        options.set_item("requirements", ["C", "A"])?;
        let array = numpy.call_method("require", (array,), Some(&options))?;
        let interface = array.getattr("__array_interface__")?;
        let kind: String = interface.get_item("typestr")?.extract()?;
        let little = cfg!(target_endian = "little");
        let elements = match kind.as_str() {
            "|u1" => Elements::U8,
            "<f4" if little => Elements::F32,
            ">f4" if !little => Elements::F32,
            _ => {
                let name = array.getattr("dtype")?.str()?;
                return Err(PyTypeError::new_err(format!(
                    "an array of {name}; images are uint8, [height, width, channels], or what the model's preprocess gives, \
                     float32, [channels, height, width]"
                )));
            }
        };
        let (address, _): (usize, bool) = interface.get_item("data")?.extract()?;
        let shape = interface.get_item("shape")?.extract()?;
        Ok(ArrayView { shape, elements, address, _array: array.unbind() })
    }

    /// Any array's values as float32, in C's order.
    pub fn converted(object: &Bound<'_, PyAny>) -> PyResult<ArrayView> {
        let numpy = object.py().import("numpy")?;
        ArrayView::of(&numpy.call_method1("asarray", (object, "float32"))?)
    }

    /// The number of elements.
    fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// The elements of an array of float32.
    pub fn floats(&self) -> PyResult<&[f32]> {
        self.check(Elements::F32)?;
        if self.len() == 0 {
            return Ok(&[]);
        }
        // SAFETY: NumPy says that so many floats are there, aligned, and `_array` keeps them. As with every array that a library
        // reads without the interpreter, a program must not write to it meanwhile.
        Ok(unsafe { std::slice::from_raw_parts(self.address as *const f32, self.len()) })
    }

    /// The elements of an array of uint8.
    pub fn bytes(&self) -> PyResult<&[u8]> {
        self.check(Elements::U8)?;
        if self.len() == 0 {
            return Ok(&[]);
        }
        // SAFETY: as in `floats`.
        Ok(unsafe { std::slice::from_raw_parts(self.address as *const u8, self.len()) })
    }

    fn check(&self, elements: Elements) -> PyResult<()> {
        match self.elements == elements {
            true => Ok(()),
            false => Err(PyValueError::new_err("an array of another element type")),
        }
    }
}
