//! The images of a call: paths, encoded bytes, Pillow's images, arrays and tensors; one, or any iterable of them.

use std::borrow::Cow;
use std::path::PathBuf;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyIterator, PyString};
use vit::data::{ApplyPreprocess, ImageError, Preprocess};
use vit::{Error, Image};

use crate::array::{ArrayView, Elements};

/// Images that are taken from an iterable at a time; more would let files wait for the model no longer.
const CHUNK_IMAGES: usize = 1024;
/// Bytes of images in memory that are taken from an iterable at a time.
const CHUNK_BYTES: usize = 256 << 20;

/// One image, and what it is called in errors.
pub struct Source {
    name: String,
    content: Content,
}

enum Content {
    File(PathBuf),
    Encoded(Vec<u8>),
    Pixels(Image),
    /// The model's input.
    Prepared(Vec<f32>),
}

impl Source {
    /// The image before preprocessing.
    pub fn image(&self) -> Result<Cow<'_, Image>, Error> {
        match &self.content {
            Content::File(path) => Ok(Cow::Owned(Image::open(path)?)),
            Content::Encoded(bytes) => match Image::from_encoded(bytes) {
                Ok(image) => Ok(Cow::Owned(image)),
                Err(error) => Err(ImageError::File { path: self.name.clone().into(), error: error.into() }.into()),
            },
            Content::Pixels(image) => Ok(Cow::Borrowed(image)),
            Content::Prepared(values) => Err(Error::Length { found: values.len(), expected: 0 }),
        }
    }

    /// The model's input.
    pub fn prepare(&self, preprocess: &Preprocess) -> Result<Vec<f32>, Error> {
        match &self.content {
            Content::Prepared(values) => Ok(values.clone()),
            _ => Ok(preprocess.apply(&*self.image()?)?),
        }
    }

    pub fn is_prepared(&self) -> bool {
        matches!(self.content, Content::Prepared(_))
    }

    /// The file's name, for a title.
    pub fn title(&self) -> String {
        match &self.content {
            Content::File(path) => path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned(),
            _ => self.name.clone(),
        }
    }

    fn bytes(&self) -> usize {
        match &self.content {
            Content::File(_) => 0,
            Content::Encoded(bytes) => bytes.len(),
            Content::Pixels(image) => image.pixels().len(),
            Content::Prepared(values) => 4 * values.len(),
        }
    }
}

/// The images of a call.
pub enum Images<'py> {
    One(Source),
    /// Of an iterable, which is read as far as images are needed.
    Many {
        rest: Bound<'py, PyIterator>,
        taken: usize,
        total: Option<usize>,
    },
    /// An array of images, and how many of them were taken.
    Pixels {
        array: ArrayView,
        taken: usize,
    },
    /// An array of inputs of the model.
    Prepared(Option<ArrayView>),
}

/// Some of the images of a call.
pub enum Chunk {
    Sources(Vec<Source>),
    Prepared(ArrayView),
}

impl<'py> Images<'py> {
    pub fn of(object: &Bound<'py, PyAny>) -> PyResult<Images<'py>> {
        if let Some(array) = array(object)? {
            return match (array.elements, array.shape.len()) {
                (Elements::U8, 4) => Ok(Images::Pixels { array, taken: 0 }),
                (Elements::F32, 4) => Ok(Images::Prepared(Some(array))),
                _ => Ok(Images::One(of_array("the image".into(), &array)?)),
            };
        }
        if let Some(content) = single(object)? {
            return Ok(Images::One(Source { name: "the image".into(), content }));
        }
        match object.try_iter() {
            Ok(rest) => Ok(Images::Many { rest, taken: 0, total: object.len().ok() }),
            Err(_) => Err(no_image("the image", object)),
        }
    }

    pub fn is_one(&self) -> bool {
        matches!(self, Images::One(_))
    }

    /// How many there are, if that is known.
    pub fn total(&self) -> Option<usize> {
        match self {
            Images::One(_) => Some(1),
            Images::Many { total, .. } => *total,
            Images::Pixels { array, .. } => Some(array.shape[0]),
            Images::Prepared(array) => array.as_ref().map(|array| array.shape[0]),
        }
    }

    /// The next images; `None` after the last.
    pub fn next(&mut self) -> PyResult<Option<Chunk>> {
        let (mut sources, mut bytes) = (Vec::new(), 0);
        let mut add = |source: Source| {
            bytes += source.bytes();
            sources.push(source);
            sources.len() < CHUNK_IMAGES && bytes < CHUNK_BYTES
        };
        match self {
            Images::One(_) => {
                let Images::One(source) = std::mem::replace(self, Images::Prepared(None)) else { unreachable!() };
                add(source);
            }
            Images::Prepared(array) => return Ok(array.take().map(Chunk::Prepared)),
            Images::Pixels { array, taken } => {
                let [_, height, width, channels] = array.shape[..] else { unreachable!("four extents") };
                let each = height * width * channels;
                while *taken < array.shape[0] {
                    let name = format!("images[{taken}]");
                    let bytes = &array.bytes()?[*taken * each..(*taken + 1) * each];
                    *taken += 1;
                    if !add(Source { content: pixels(&name, [height, width, channels], bytes)?, name }) {
                        break;
                    }
                }
            }
            Images::Many { rest, taken, .. } => {
                while let Some(item) = rest.next().transpose()? {
                    let name = format!("images[{taken}]");
                    *taken += 1;
                    if !add(item_source(name, &item)?) {
                        break;
                    }
                }
            }
        }
        Ok(if sources.is_empty() { None } else { Some(Chunk::Sources(sources)) })
    }
}

/// One image of several.
fn item_source(name: String, item: &Bound<'_, PyAny>) -> PyResult<Source> {
    if let Some(content) = single(item)? {
        return Ok(Source { name, content });
    }
    match array(item)? {
        Some(array) => of_array(name, &array),
        None => Err(no_image(&name, item)),
    }
}

fn no_image(name: &str, object: &Bound<'_, PyAny>) -> PyErr {
    let kind = object.get_type().name().map_or_else(|_| "an object".into(), |name| name.to_string());
    PyTypeError::new_err(format!(
        "{name} is of type {kind}; images are paths, bytes, Pillow's images, arrays or tensors"
    ))
}

/// A path, bytes or an image of Pillow.
fn single(object: &Bound<'_, PyAny>) -> PyResult<Option<Content>> {
    if object.is_instance_of::<PyString>() || object.hasattr("__fspath__")? {
        return Ok(Some(Content::File(object.extract()?)));
    }
    if let Ok(bytes) = object.cast::<PyBytes>() {
        return Ok(Some(Content::Encoded(bytes.as_bytes().to_vec())));
    }
    if let Ok(bytes) = object.cast::<PyByteArray>() {
        return Ok(Some(Content::Encoded(bytes.to_vec())));
    }
    // Pillow need not be installed to recognise its images.
    if object.hasattr("getbands")? && object.hasattr("convert")? {
        let rgb = object.call_method1("convert", ("RGB",))?;
        let (width, height): (usize, usize) = rgb.getattr("size")?.extract()?;
        let bytes = rgb.call_method0("tobytes")?;
        return Ok(Some(pixels("the image", [height, width, 3], bytes.cast::<PyBytes>()?.as_bytes())?));
    }
    Ok(None)
}

/// An array, tensor or buffer, but no image of Pillow and no bytes.
fn array(object: &Bound<'_, PyAny>) -> PyResult<Option<ArrayView>> {
    if object.is_instance_of::<PyBytes>() || object.is_instance_of::<PyByteArray>() || object.hasattr("getbands")? {
        return Ok(None);
    }
    if is_list_of_objects(object) {
        return Ok(None);
    }
    for protocol in ["__array_interface__", "__dlpack__", "__array__"] {
        if object.hasattr(protocol)? {
            return ArrayView::of(object).map(Some);
        }
    }
    match object.py().import("builtins")?.call_method1("memoryview", (object,)) {
        Ok(view) => ArrayView::of(&view).map(Some),
        Err(_) => Ok(None),
    }
}

/// Whether it is an array of paths or of images, as a column of pandas.
fn is_list_of_objects(object: &Bound<'_, PyAny>) -> bool {
    let kind = object.getattr("dtype").and_then(|dtype| dtype.getattr("kind")?.extract::<String>());
    kind.is_ok_and(|kind| kind == "O" || kind == "U")
}

/// The image of an array: encoded bytes, pixels, or the model's input.
fn of_array(name: String, array: &ArrayView) -> PyResult<Source> {
    let content = match (array.elements, &array.shape[..]) {
        (Elements::U8, [_]) => Content::Encoded(array.bytes()?.to_vec()),
        (Elements::U8, &[height, width]) => pixels(&name, [height, width, 1], array.bytes()?)?,
        (Elements::U8, &[height, width, channels]) => pixels(&name, [height, width, channels], array.bytes()?)?,
        (Elements::F32, [_, _, _]) => Content::Prepared(array.floats()?.to_vec()),
        (Elements::U8, shape) => return Err(shape_error(&name, shape)),
        (Elements::F32, shape) => {
            return Err(PyValueError::new_err(format!(
                "{name} is float32 of shape {shape:?}; inputs of a model are [channels, height, width], or a batch of them"
            )));
        }
    };
    Ok(Source { name, content })
}

fn shape_error(name: &str, shape: &[usize]) -> PyErr {
    PyValueError::new_err(format!(
        "{name} is uint8 of shape {shape:?}; images are [height, width, channels] with 1, 3 or 4 channels, or [height, width]"
    ))
}

/// Grey becomes RGB, and alpha is left out, as when files are decoded.
fn pixels(name: &str, shape: [usize; 3], bytes: &[u8]) -> PyResult<Content> {
    let [height, width, channels] = shape;
    let rgb = match channels {
        1 => bytes.iter().flat_map(|grey| [*grey; 3]).collect(),
        3 => bytes.to_vec(),
        4 => bytes.chunks_exact(4).flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect(),
        _ => return Err(shape_error(name, &shape)),
    };
    let image = Image::from_rgb(width, height, rgb).map_err(|_| shape_error(name, &shape))?;
    Ok(Content::Pixels(image))
}
