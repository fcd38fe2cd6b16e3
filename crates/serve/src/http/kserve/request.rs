//! Inference requests: a JSON header, and tensors in it or as bytes after it.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

use super::inference::OutputRequest;
use super::{IMAGE, IMAGE_BYTES};
use crate::http::fields::shortened;
use crate::http::images::{ImageSource, source};
use crate::http::problem::Problem;

/// Axes of a tensor.
pub const MAX_AXES: usize = 8;

/// The JSON header.
#[derive(Debug, Deserialize)]
pub struct InferenceRequest<'a> {
    pub id: Option<String>,
    parameters: Option<RequestParameters>,
    #[serde(borrow)]
    inputs: Vec<InputTensor<'a>>,
    #[serde(borrow)]
    outputs: Option<Vec<RequestedOutput<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
struct RequestParameters {
    binary_data_output: Option<bool>,
}

#[derive(Debug, Deserialize)]
struct InputTensor<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    shape: Axes,
    #[serde(borrow)]
    datatype: Cow<'a, str>,
    parameters: Option<InputParameters>,
    #[serde(borrow)]
    data: Option<TensorData<'a>>,
}

#[derive(Debug, Default, Deserialize)]
struct InputParameters {
    binary_data_size: Option<usize>,
}

#[derive(Debug, Deserialize)]
struct RequestedOutput<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    parameters: Option<OutputParameters>,
}

#[derive(Debug, Clone, Copy, Default, Deserialize)]
struct OutputParameters {
    binary_data: Option<bool>,
    classification: Option<usize>,
}

/// The images of a request.
#[derive(Debug, PartialEq)]
pub enum InputImages {
    /// Preprocessed, one after another, `[images, channels, height, width]`.
    Preprocessed { shape: Vec<usize>, elements: Vec<f32> },
    /// Encoded; an error concerns one image.
    Encoded(Vec<Result<ImageSource, Problem>>),
}

/// Splits a body into the header and the tensors after it; without a length all of it is the header.
pub fn split(body: &Bytes, header_length: Option<usize>) -> Result<(Bytes, Bytes), Problem> {
    match header_length {
        None => Ok((body.clone(), Bytes::new())),
        Some(length) if length <= body.len() => Ok((body.slice(..length), body.slice(length..))),
        Some(length) => Err(Problem::malformed(format!(
            "`Inference-Header-Content-Length` is {length}, and the body has {} bytes.",
            body.len()
        ))),
    }
}

/// Reads the header.
pub fn parse(header: &[u8]) -> Result<InferenceRequest<'_>, Problem> {
    serde_json::from_slice(header).map_err(|error| Problem::malformed(format!("The JSON is malformed: {error}.")))
}

impl InferenceRequest<'_> {
    /// Whether outputs that do not say otherwise are bytes.
    pub fn binary_outputs(&self) -> bool {
        self.parameters.as_ref().and_then(|parameters| parameters.binary_data_output).unwrap_or(false)
    }

    /// The outputs; none for all.
    pub fn outputs(&self) -> Vec<OutputRequest<'_>> {
        (self.outputs.iter().flatten())
            .map(|RequestedOutput { name, parameters }| {
                let OutputParameters { binary_data: binary, classification: classes } = parameters.unwrap_or_default();
                OutputRequest { name, binary, classes }
            })
            .collect()
    }

    /// The images of the only input. `tensors` are the bytes after the header.
    pub fn images(&mut self, tensors: &Bytes, most: usize) -> Result<InputImages, Problem> {
        let count = self.inputs.len();
        let input = self.inputs.pop().filter(|_| count == 1).ok_or_else(|| one_input(count))?;
        let content = match (input.parameters.unwrap_or_default().binary_data_size, input.data) {
            (Some(size), None) if size == tensors.len() => TensorContent::Raw(tensors.clone()),
            (Some(size), None) => {
                let found = tensors.len();
                let detail = format!("`binary_data_size` is {size}, and {found} bytes follow the JSON header.");
                return Err(Problem::malformed(detail));
            }
            (None, Some(TensorData::Floats(elements))) if tensors.is_empty() => TensorContent::Floats(elements),
            (None, Some(TensorData::Texts(texts))) if tensors.is_empty() => TensorContent::Texts(texts),
            (None, Some(_)) => return Err(Problem::malformed("Bytes follow the JSON header that belong to no input.")),
            (Some(_), Some(_)) => return Err(Problem::malformed("An input has both `data` and `binary_data_size`.")),
            (None, None) => return Err(Problem::malformed("An input has neither `data` nor `binary_data_size`.")),
        };
        input_images(&input.name, &input.datatype, input.shape.0, content, most)
    }
}

/// The problem of a request without input or with several.
pub fn one_input(count: usize) -> Problem {
    Problem::malformed(format!("One input is needed, `{IMAGE}` or `{IMAGE_BYTES}`; {count} are given."))
}

/// The images of an input.
pub fn input_images(
    name: &str,
    datatype: &str,
    shape: Vec<usize>,
    content: TensorContent,
    most: usize,
) -> Result<InputImages, Problem> {
    let images = shape.first().copied().unwrap_or(0);
    if images == 0 {
        return Err(Problem::malformed("The shape of the input should begin with the number of images."));
    }
    if images > most {
        return Err(Problem::too_many_images(most));
    }
    match (name, datatype) {
        (IMAGE, "FP32") => {
            let elements = content.floats()?;
            if elements_of(&shape) != Some(elements.len()) {
                let found = elements.len();
                return Err(Problem::malformed(format!("The shape is {shape:?}, and there are {found} elements.")));
            }
            Ok(InputImages::Preprocessed { shape, elements })
        }
        (IMAGE_BYTES, "BYTES") => {
            let encoded = content.encoded(most)?;
            if elements_of(&shape) != Some(images) || encoded.len() != images {
                let found = encoded.len();
                return Err(Problem::malformed(format!("The shape is {shape:?}, and there are {found} images.")));
            }
            Ok(InputImages::Encoded(encoded))
        }
        (IMAGE, other) => Err(Problem::malformed(format!("`{IMAGE}` is FP32, not `{}`.", shortened(other)))),
        (IMAGE_BYTES, other) => {
            Err(Problem::malformed(format!("`{IMAGE_BYTES}` is BYTES, not `{}`.", shortened(other))))
        }
        (other, _) => {
            let detail = format!("There is no input `{}`; there are `{IMAGE}` and `{IMAGE_BYTES}`.", shortened(other));
            Err(Problem::malformed(detail))
        }
    }
}

/// The number of elements of a shape, unless it overflows.
fn elements_of(shape: &[usize]) -> Option<usize> {
    shape.iter().try_fold(1usize, |product, side| product.checked_mul(*side))
}

/// The elements of an input, as a protocol gives them.
pub enum TensorContent<'a> {
    /// Numbers in 4 bytes, little-endian; texts with their length before them, in 4 bytes too.
    Raw(Bytes),
    Floats(Vec<f32>),
    /// Images as base64 or data URIs.
    Texts(Vec<Cow<'a, str>>),
    /// Encoded images.
    Elements(Vec<Bytes>),
}

impl TensorContent<'_> {
    fn floats(self) -> Result<Vec<f32>, Problem> {
        match self {
            Self::Floats(elements) => Ok(elements),
            Self::Texts(_) | Self::Elements(_) => Err(Problem::malformed("An FP32 tensor holds texts.")),
            Self::Raw(bytes) => match bytes.as_chunks::<4>() {
                (elements, []) => Ok(elements.iter().map(|element| f32::from_le_bytes(*element)).collect()),
                _ => Err(Problem::malformed("The bytes of an FP32 tensor are not a multiple of 4.")),
            },
        }
    }

    fn encoded(self, most: usize) -> Result<Vec<Result<ImageSource, Problem>>, Problem> {
        let mut bytes = match self {
            Self::Floats(elements) if elements.is_empty() => return Ok(Vec::new()),
            Self::Floats(_) => return Err(Problem::malformed("A BYTES tensor holds numbers.")),
            Self::Texts(texts) => return Ok(texts.iter().map(|text| source(text)).collect()),
            Self::Elements(elements) => return Ok(elements.into_iter().map(|e| Ok(ImageSource::Bytes(e))).collect()),
            Self::Raw(bytes) => bytes,
        };
        let mut elements = Vec::new();
        while !bytes.is_empty() {
            let length = bytes.first_chunk::<4>().map(|length| u32::from_le_bytes(*length) as usize);
            let Some(length) = length.filter(|length| bytes.len() - 4 >= *length) else {
                return Err(Problem::malformed("A BYTES tensor breaks off within an element."));
            };
            if elements.len() == most {
                return Err(Problem::too_many_images(most));
            }
            let mut element = bytes.split_to(4 + length);
            elements.push(Ok(ImageSource::Bytes(element.split_off(4))));
        }
        Ok(elements)
    }
}

/// A shape; long ones are refused while they are read.
#[derive(Debug)]
struct Axes(Vec<usize>);

impl<'de> Deserialize<'de> for Axes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AxesVisitor;
        impl<'de> Visitor<'de> for AxesVisitor {
            type Value = Axes;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("a shape")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Axes, A::Error> {
                let mut axes = Vec::new();
                while let Some(axis) = list.next_element()? {
                    if axes.len() == MAX_AXES {
                        return Err(A::Error::custom(format_args!("a shape has at most {MAX_AXES} axes")));
                    }
                    axes.push(axis);
                }
                Ok(Axes(axes))
            }
        }
        deserializer.deserialize_seq(AxesVisitor)
    }
}

/// The elements of nested lists in row-major order, without a tree of values between: that would take many times the
/// memory of the text.
#[derive(Debug, PartialEq)]
enum TensorData<'a> {
    Floats(Vec<f32>),
    Texts(Vec<Cow<'a, str>>),
}

impl<'de: 'a, 'a> Deserialize<'de> for TensorData<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (mut floats, mut texts) = (Vec::new(), Vec::new());
        deserializer.deserialize_seq(ElementsVisitor { floats: &mut floats, texts: &mut texts })?;
        match (texts.is_empty(), floats.is_empty()) {
            (true, _) => Ok(TensorData::Floats(floats)),
            (false, true) => Ok(TensorData::Texts(texts)),
            (false, false) => Err(D::Error::custom("a tensor holds both numbers and texts")),
        }
    }
}

struct ElementsVisitor<'v, 'a> {
    floats: &'v mut Vec<f32>,
    texts: &'v mut Vec<Cow<'a, str>>,
}

impl<'de: 'a, 'a> serde::de::DeserializeSeed<'de> for ElementsVisitor<'_, 'a> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de: 'a, 'a> Visitor<'de> for ElementsVisitor<'_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("numbers, texts or lists of them")
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.floats.push(value as f32);
        Ok(())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.visit_f64(value as f64)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.visit_f64(value as f64)
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<(), E> {
        self.texts.push(Cow::Borrowed(text));
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        self.texts.push(Cow::Owned(text.into()));
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let Self { floats, texts } = self;
        while list.next_element_seed(ElementsVisitor { floats, texts })?.is_some() {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images(header: &str, tensors: &[u8]) -> Result<InputImages, Problem> {
        parse(header.as_bytes())?.images(&Bytes::copy_from_slice(tensors), 4)
    }

    #[test]
    fn tensors_come_as_json_or_as_bytes() {
        let expected = InputImages::Preprocessed { shape: vec![1, 1, 2, 2], elements: vec![1.0, -2.0, 0.5, 4.0] };
        for data in ["[1, -2, 0.5, 4]", "[[[[1.0, -2], [0.5, 4]]]]"] {
            let header = format!(
                r#"{{"inputs": [{{"name": "image", "shape": [1, 1, 2, 2], "datatype": "FP32", "data": {data}}}]}}"#
            );
            assert_eq!(images(&header, &[]).unwrap(), expected);
        }
        let header = r#"{"id": "a", "inputs": [{"name": "image", "shape": [1, 1, 2, 2], "datatype": "FP32",
            "parameters": {"binary_data_size": 16}}], "outputs": [{"name": "logits", "parameters": {"binary_data": true}}]}"#;
        let bytes: Vec<u8> = [1.0f32, -2.0, 0.5, 4.0].iter().flat_map(|element| element.to_le_bytes()).collect();
        assert_eq!(images(header, &bytes).unwrap(), expected);
        assert!(images(header, &bytes[1..]).is_err() && images(header, &[]).is_err());
    }

    #[test]
    fn encoded_images_are_length_prefixed() {
        let header = |size: usize| {
            format!(
                r#"{{"inputs": [{{"name": "image_bytes", "shape": [2], "datatype": "BYTES", "parameters": {{"binary_data_size": {size}}}}}]}}"#
            )
        };
        let bytes = b"\x02\0\0\0hi\x01\0\0\0x";
        let expected = [b"hi".as_slice(), b"x"].map(|image| Ok(ImageSource::Bytes(Bytes::copy_from_slice(image))));
        assert_eq!(images(&header(11), bytes).unwrap(), InputImages::Encoded(expected.into()));
        for broken in [&b"\xff\xff\xff\xff"[..], b"\x02\0\0", b"\x02\0\0\0h", b"\x02\0\0\0hi"] {
            assert!(images(&header(broken.len()), broken).is_err(), "{broken:?}");
        }
        let json = r#"{"inputs": [{"name": "image_bytes", "shape": [1, 1], "datatype": "BYTES", "data": [["aGk="]]}]}"#;
        assert!(matches!(images(json, &[]), Ok(InputImages::Encoded(images)) if images[0].is_ok()));
    }

    #[test]
    fn malformed_requests_are_refused() {
        let input = |name: &str, shape: &str, datatype: &str, data: &str| {
            format!(
                r#"{{"inputs": [{{"name": "{name}", "shape": {shape}, "datatype": "{datatype}", "data": {data}}}]}}"#
            )
        };
        let deep = "[".repeat(100_000);
        for wrong in [
            "{}".into(),
            r#"{"inputs": []}"#.into(),
            input("image", "[]", "FP32", "[]"),
            input("image", "[1, 18446744073709551615, 18446744073709551615]", "FP32", "[1]"),
            input("image", "[1, 1, 1, 1, 1, 1, 1, 1, 1]", "FP32", "[1]"),
            input("image", "[1, -1]", "FP32", "[1]"),
            input("image", "[5, 1]", "FP32", "[1, 1, 1, 1, 1]"),
            input("image", "[1, 1]", "FP32", "[\"a\", 1]"),
            input("image", "[1, 1]", "FP64", "[1]"),
            input("image", "[1, 1]", "FP32", "[null]"),
            input("image", "[1, 1]", "FP32", &deep),
            input("image_bytes", "[1]", "BYTES", "[1]"),
            input("image_bytes", "[18446744073709551615, 3]", "BYTES", "[\"aGk=\"]"),
            input("pixels", "[1]", "FP32", "[1]"),
        ] {
            assert!(images(&wrong, &[]).is_err(), "{wrong:.100}");
        }
    }
}
