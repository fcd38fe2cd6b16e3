//! The messages of ONNX (onnx.proto) that a model consists of, and their file.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use half::f16;
use vit_system::atomic_file;

use super::batch::Extent;
use super::protobuf::Message;

/// The operator set. It is the first with `LayerNormalization`, and every later version of a runtime takes it. `Gelu` and
/// `GroupNormalization` as one node need 20 and 21, which released versions of TensorRT and OpenVINO do not all take;
/// runtimes recognise their parts.
pub(super) const OPSET: i64 = 17;

/// The version of the file format that opset 17 was released with.
const IR_VERSION: i64 = 8;

/// A protobuf message is below 2 GiB; nodes and names stay within the margin.
const LARGEST_INLINE: u64 = (1 << 31) - (1 << 26);

/// Tensors up to this size are always in the model's file: runtimes need shapes and axes before they open the other one.
const LARGEST_SHAPE: u64 = 1 << 10;

/// The alignment of tensors in a file of their own, so that they can be mapped into memory.
const PAGE: u64 = 4096;

/// The element type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Element {
    F32,
    F16,
    U8,
    I64,
}

impl Element {
    /// `TensorProto.DataType`.
    pub fn code(self) -> i64 {
        match self {
            Element::F32 => 1,
            Element::U8 => 2,
            Element::I64 => 7,
            Element::F16 => 10,
        }
    }

    fn size(self) -> u64 {
        match self {
            Element::U8 => 1,
            Element::F16 => 2,
            Element::F32 => 4,
            Element::I64 => 8,
        }
    }
}

/// An attribute of a node.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Attribute {
    Int(&'static str, i64),
    Ints(&'static str, Vec<i64>),
    Float(&'static str, f32),
}

impl Attribute {
    fn message(&self) -> Message {
        let named = |name| Message::default().text(1, name);
        match self {
            Attribute::Float(name, value) => named(name).float(2, *value).integer(20, 1),
            Attribute::Int(name, value) => named(name).integer(3, *value).integer(20, 2),
            Attribute::Ints(name, values) => {
                values.iter().fold(named(name), |message, value| message.integer(8, *value)).integer(20, 7)
            }
        }
    }
}

/// An operator applied to values. An input without a name is left out.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Node {
    pub operator: &'static str,
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    pub attributes: Vec<Attribute>,
}

impl Node {
    fn message(&self) -> Message {
        let message = self.inputs.iter().fold(Message::default(), |message, input| message.text(1, input));
        let message = self.outputs.iter().fold(message, |message, output| message.text(2, output));
        let name = self.outputs.first().map_or("", String::as_str);
        let attributes: Vec<Message> = self.attributes.iter().map(Attribute::message).collect();
        message.text(3, name).text(4, self.operator).messages(5, &attributes)
    }
}

/// The elements of an initialiser.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Elements {
    Floats(Vec<f32>),
    Integers(Vec<i64>),
}

/// A tensor that the file holds. Floats are written in its element type.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Initialiser {
    pub name: String,
    pub shape: Vec<usize>,
    pub element: Element,
    pub elements: Elements,
}

impl Initialiser {
    fn bytes(&self) -> u64 {
        let count = match &self.elements {
            Elements::Floats(floats) => floats.len(),
            Elements::Integers(integers) => integers.len(),
        };
        count as u64 * self.element.size()
    }

    /// Everything but the elements.
    fn description(&self) -> Message {
        let message = self.shape.iter().fold(Message::default(), |message, &extent| message.integer(1, extent as i64));
        message.integer(2, self.element.code()).text(8, &self.name)
    }

    fn write_elements(&self, out: &mut impl Write) -> io::Result<()> {
        let mut buffer = Vec::with_capacity(1 << 15);
        match &self.elements {
            Elements::Integers(integers) => {
                integers.iter().try_for_each(|integer| out.write_all(&integer.to_le_bytes()))
            }
            Elements::Floats(floats) => floats.chunks(1 << 12).try_for_each(|floats| {
                buffer.clear();
                match self.element {
                    Element::F16 => floats.iter().for_each(|&v| buffer.extend(f16::from_f32(v).to_le_bytes())),
                    _ => floats.iter().for_each(|v| buffer.extend(v.to_le_bytes())),
                }
                out.write_all(&buffer)
            }),
        }
    }
}

/// An input or output of the model.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Port {
    pub name: String,
    pub element: Element,
    pub shape: Vec<Extent>,
}

impl Port {
    fn message(&self) -> Message {
        let dimension = |extent: &Extent| match extent {
            Extent::Fixed(extent) => Message::default().integer(1, *extent as i64),
            Extent::Batches(1) => Message::default().text(2, "batch"),
            Extent::Batches(times) => Message::default().text(2, &format!("batch_x_{times}")),
        };
        let dimensions: Vec<Message> = self.shape.iter().map(dimension).collect();
        let shape = Message::default().messages(1, &dimensions);
        let tensor = Message::default().integer(1, self.element.code()).message(2, &shape);
        Message::default().text(1, &self.name).message(2, &Message::default().message(1, &tensor))
    }
}

/// A model.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Model {
    pub name: String,
    pub nodes: Vec<Node>,
    pub initialisers: Vec<Initialiser>,
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
    pub metadata: Vec<(String, String)>,
}

impl Model {
    /// Removes the nodes and initialisers that no output depends on.
    pub fn remove_unused(&mut self) {
        let mut needed: HashSet<String> = self.outputs.iter().map(|output| output.name.clone()).collect();
        let mut kept = Vec::with_capacity(self.nodes.len());
        for node in std::mem::take(&mut self.nodes).into_iter().rev() {
            if node.outputs.iter().any(|output| needed.contains(output)) {
                needed.extend(node.inputs.iter().cloned());
                kept.push(node);
            }
        }
        kept.reverse();
        self.nodes = kept;
        self.initialisers.retain(|initialiser| needed.contains(&initialiser.name));
    }

    /// Writes the file, and beside it `NAME.data` with the tensors if one file cannot hold them; returns the latter's path.
    pub fn write(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        self.write_within(path, LARGEST_INLINE)
    }

    fn write_within(&self, path: &Path, largest: u64) -> io::Result<Option<PathBuf>> {
        if self.initialisers.iter().map(Initialiser::bytes).sum::<u64>() <= largest {
            atomic_file::write_with(path, |out| self.emit(out, &HashMap::new(), ""))?;
            return Ok(None);
        }
        let mut name = path.file_name().map(OsString::from).unwrap_or_default();
        name.push(".data");
        let beside = path.with_file_name(&name);
        let mut offsets = HashMap::new();
        atomic_file::write_with(&beside, |out| {
            let mut end = 0u64;
            for initialiser in self.initialisers.iter().filter(|initialiser| initialiser.bytes() > LARGEST_SHAPE) {
                let offset = end.next_multiple_of(PAGE);
                out.write_all(&vec![0; (offset - end) as usize])?;
                initialiser.write_elements(out)?;
                offsets.insert(initialiser.name.as_str(), offset);
                end = offset + initialiser.bytes();
            }
            out.flush()
        })?;
        atomic_file::write_with(path, |out| self.emit(out, &offsets, &name.to_string_lossy()))?;
        Ok(Some(beside))
    }

    /// The model with tensors that have an offset in the file `beside`. Elements are written in pieces, so lengths are
    /// computed first.
    fn emit(&self, out: &mut impl Write, offsets: &HashMap<&str, u64>, beside: &str) -> io::Result<()> {
        let described = |initialiser: &Initialiser| {
            let description = initialiser.description();
            let Some(offset) = offsets.get(initialiser.name.as_str()) else {
                return (description.header(9, initialiser.bytes()), initialiser.bytes());
            };
            let (offset, length) = (offset.to_string(), initialiser.bytes().to_string());
            let entry = |key, value: &str| Message::default().text(1, key).text(2, value);
            let place = [entry("location", beside), entry("offset", &offset), entry("length", &length)];
            (description.messages(13, &place).integer(14, 1), 0)
        };
        let initialisers: Vec<(Message, u64)> = self.initialisers.iter().map(described).collect();
        let nodes = self.nodes.iter().fold(Message::default(), |graph, node| graph.message(1, &node.message()));
        let ports = |field, ports: &[Port], graph| {
            ports.iter().fold(graph, |graph: Message, port| graph.message(field, &port.message()))
        };
        let head = nodes.text(2, &self.name);
        let tail = ports(12, &self.outputs, ports(11, &self.inputs, Message::default()));
        let start = |(description, bytes): &(Message, u64)| Message::default().header(5, description.len() + bytes);
        let tensors: u64 = initialisers.iter().map(|tensor| start(tensor).len() + tensor.0.len() + tensor.1).sum();
        let opset = Message::default().text(1, "").integer(2, OPSET);
        let entry = |(key, value): &(String, String)| Message::default().text(1, key).text(2, value);
        let metadata: Vec<Message> = self.metadata.iter().map(entry).collect();
        let model = Message::default()
            .integer(1, IR_VERSION)
            .text(2, "vit")
            .text(3, env!("CARGO_PKG_VERSION"))
            .message(8, &opset)
            .messages(14, &metadata)
            .header(7, head.len() + tensors + tail.len());
        out.write_all(model.as_bytes())?;
        out.write_all(head.as_bytes())?;
        for (described, initialiser) in initialisers.iter().zip(&self.initialisers) {
            out.write_all(start(described).as_bytes())?;
            out.write_all(described.0.as_bytes())?;
            if described.1 > 0 {
                initialiser.write_elements(out)?;
            }
        }
        out.write_all(tail.as_bytes())?;
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model() -> Model {
        let floats = |name: &str, count: usize, element| Initialiser {
            name: name.into(),
            shape: vec![count],
            element,
            elements: Elements::Floats((0..count).map(|i| i as f32).collect()),
        };
        let add = |a: &str, b: &str, y: &str| Node {
            operator: "Add",
            inputs: vec![a.into(), b.into()],
            outputs: vec![y.into()],
            attributes: Vec::new(),
        };
        let port = |name: &str| Port {
            name: name.into(),
            element: Element::F32,
            shape: vec![Extent::Batches(1), Extent::Fixed(2000)],
        };
        Model {
            name: "sum".into(),
            nodes: vec![add("x", "large", "h"), add("x", "unused", "nothing"), add("h", "small", "y")],
            initialisers: vec![
                floats("large", 2000, Element::F32),
                floats("unused", 1, Element::F32),
                floats("small", 1, Element::F32),
            ],
            inputs: vec![port("x")],
            outputs: vec![port("y")],
            metadata: Vec::new(),
        }
    }

    #[test]
    fn what_no_output_needs_is_removed() {
        let mut model = model();
        model.remove_unused();
        assert_eq!(model.nodes.iter().map(|node| node.outputs[0].as_str()).collect::<Vec<_>>(), ["h", "y"]);
        assert_eq!(model.initialisers.iter().map(|i| i.name.as_str()).collect::<Vec<_>>(), ["large", "small"]);
    }

    #[test]
    fn tensors_that_one_file_cannot_hold_are_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sum.onnx");
        assert_eq!(model().write_within(&path, 1 << 20).unwrap(), None);
        let whole = std::fs::read(&path).unwrap();
        let beside = model().write_within(&path, 4000).unwrap().unwrap();
        assert_eq!(beside, folder.path().join("sum.onnx.data"));
        let data = std::fs::read(&beside).unwrap();
        assert_eq!(data.len(), 8000);
        assert_eq!(data[4..8], 1f32.to_le_bytes());
        let file = std::fs::read(&path).unwrap();
        assert!(file.len() + 7000 < whole.len());
        assert!(file.windows(13).any(|bytes| bytes == b"sum.onnx.data"));
    }
}
