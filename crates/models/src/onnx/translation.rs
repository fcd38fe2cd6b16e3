//! From operations to nodes of ONNX.
//!
//! A value of the graph can be in several forms in the file: as it is, as an image with channels first, or as query, key and
//! value apart. Operators ask for the form that they read, which is made when it is first asked for. So images are transposed
//! only between operators that disagree.

use std::collections::HashMap;

use vit_graph::ops::{Op, Operation};
use vit_graph::{Node as GraphNode, NodeId, Value};

use super::batch::{BatchGraph, Extent};
use super::constants::Constants;
use super::model::{Attribute, Element, Elements, Initialiser, Model, Node, Port};
use super::{OnnxError, Precision};
use crate::weights::{Tensor, Weights};

/// The tensors of the file that have a value.
#[derive(Debug, Clone, Default)]
pub(super) struct Forms {
    /// As the graph has it.
    pub plain: Option<String>,
    /// `[batch, rows, columns, channels]` as `[batch, channels, rows, columns]`.
    pub channels_first: Option<String>,
    /// The thirds of its last axis: query, key and value.
    pub thirds: Option<[String; 3]>,
}

/// A model that is being written, and what is known of its values so far.
pub(super) struct Translation<'a> {
    pub graph: &'a BatchGraph,
    pub constants: Constants<'a>,
    pub model: Model,
    precision: Precision,
    forms: Vec<Vec<Forms>>,
    /// The nodes that read the first output of each node; `None` where it is an output of the graph.
    consumers: Vec<Option<Vec<NodeId>>>,
    /// The scope of new nodes.
    scope: String,
    /// The names of nodes and tensors, each with how often it was asked for again.
    names: HashMap<String, usize>,
    /// Small tensors that several nodes read.
    shared: HashMap<(Element, Vec<usize>, Vec<u64>), String>,
}

impl<'a> Translation<'a> {
    pub fn new(graph: &'a BatchGraph, weights: Weights, precision: Precision) -> Result<Self, OnnxError> {
        let nodes = graph.graph().nodes();
        let mut consumers = vec![Some(Vec::new()); nodes.len()];
        for (id, node) in nodes.iter().enumerate() {
            for input in node.inputs.iter().filter(|input| input.output == 0) {
                consumers[input.node].iter_mut().for_each(|all| all.push(id));
            }
        }
        graph.graph().outputs().iter().for_each(|(_, value)| consumers[value.node] = None);
        Ok(Translation {
            graph,
            constants: Constants::new(graph, weights)?,
            model: Model::default(),
            precision,
            forms: nodes.iter().map(|node| vec![Forms::default(); node.outputs.len()]).collect(),
            consumers,
            scope: String::new(),
            names: HashMap::new(),
            shared: HashMap::new(),
        })
    }

    /// Adds the operators of all nodes.
    pub fn operators(&mut self) -> Result<(), OnnxError> {
        let graph = self.graph;
        for (id, node) in graph.graph().nodes().iter().enumerate() {
            if matches!(node.op, Op::Input(_)) || self.constants.is_constant(id) {
                continue;
            }
            self.scope.clone_from(&node.scope);
            self.operator(id)?;
        }
        self.scope.clear();
        Ok(())
    }

    fn operator(&mut self, id: NodeId) -> Result<(), OnnxError> {
        match &self.node(id).op {
            Op::Linear(linear) if linear.is_plain() && !linear.int8 => self.linear(id),
            Op::MatMul(product) => self.matmul(id, product),
            Op::Conv2d(conv) => self.convolution(id, conv),
            Op::Pool2d(pool) => self.pooling(id, pool),
            Op::Windows(windows) => self.windows(id, windows),
            Op::Unwindows(unwindows) => self.unwindows(id, &unwindows.windows),
            Op::Attention(attention) if attention.dropout.is_none() => self.attention(id, attention),
            Op::Rotary(rotary) => self.rotary(id, rotary),
            Op::CosineQkv(cosine) => self.cosine(id, cosine.heads),
            Op::LayerNorm(norm) => self.layer_norm(id, norm),
            Op::GroupNorm(norm) => self.group_norm(id, norm),
            Op::Activation(activation) => self.activation(id, *activation),
            Op::Softmax(_) => self.softmax(id),
            Op::Binary(binary) => self.binary(id, *binary),
            Op::Scale(scale) => self.scaled(id, scale.0),
            Op::Unary(unary) => self.unary(id, *unary),
            Op::Reshape(_) => self.reshaped(id),
            Op::Permute(permute) => self.permuted(id, &permute.0),
            Op::Slice(slice) => self.sliced(id, slice),
            Op::Pad(pad) => self.padded(id, pad),
            Op::Concat(concat) => self.concatenated(id, concat.axis),
            Op::Broadcast(_) => self.broadcast(id),
            Op::Reduce(reduce) => self.reduced(id, reduce),
            Op::Gather(_) => self.gathered(id),
            _ => Err(self.unsupported(id)),
        }
    }

    pub fn node(&self, id: NodeId) -> &'a GraphNode {
        self.graph.node(id)
    }

    /// The error for an operation, or a use of it, that has no translation.
    pub fn unsupported(&self, id: NodeId) -> OnnxError {
        let node = self.node(id);
        let scope = if node.scope.is_empty() { "the model".into() } else { node.scope.clone() };
        OnnxError::Operation { operation: node.op.name(), scope }
    }

    /// The nodes that read a value; none if it is an output of the graph or no node's first output.
    pub fn consumers(&self, value: Value) -> &[NodeId] {
        match &self.consumers[value.node] {
            Some(consumers) if value.output == 0 => consumers,
            _ => &[],
        }
    }

    pub fn shape(&self, value: Value) -> Result<Vec<Extent>, OnnxError> {
        self.graph.shape(value)
    }

    /// The extents of a value that do not depend on the batch; the others are those of the first batch size.
    pub fn extents(&self, value: Value) -> &'a [usize] {
        self.graph.graph().shape(value)
    }

    /// A name that is not used yet: this one, or with a number.
    fn unused(&mut self, name: String) -> String {
        let mut candidate = name.clone();
        while let Some(count) = self.names.get_mut(&candidate) {
            *count += 1;
            candidate = format!("{candidate}_{count}");
        }
        self.names.insert(candidate.clone(), 0);
        candidate
    }

    /// Adds a node with so many outputs.
    pub fn add_outputs<const N: usize>(
        &mut self,
        operator: &'static str,
        inputs: &[&str],
        attributes: Vec<Attribute>,
    ) -> [String; N] {
        let separator = if self.scope.is_empty() { "" } else { "/" };
        let outputs = [(); N].map(|()| self.unused(format!("{}{separator}{operator}", self.scope)));
        let inputs = inputs.iter().map(|&input| input.to_string()).collect();
        self.model.nodes.push(Node { operator, inputs, outputs: outputs.to_vec(), attributes });
        outputs
    }

    /// Adds a node with attributes.
    pub fn add_with(&mut self, operator: &'static str, inputs: &[&str], attributes: Vec<Attribute>) -> String {
        let [output] = self.add_outputs(operator, inputs, attributes);
        output
    }

    /// Adds a node.
    pub fn add(&mut self, operator: &'static str, inputs: &[&str]) -> String {
        self.add_with(operator, inputs, Vec::new())
    }

    /// Adds a tensor of floats in the model's precision.
    pub fn floats(&mut self, name: &str, shape: &[usize], floats: Vec<f32>) -> String {
        let name = self.unused(name.into());
        let (element, elements) = (self.element(), Elements::Floats(floats));
        self.model.initialisers.push(Initialiser { name: name.clone(), shape: shape.to_vec(), element, elements });
        name
    }

    /// A small tensor, which all nodes with the same one share.
    fn shared(&mut self, kind: &str, shape: Vec<usize>, element: Element, elements: Elements) -> String {
        let bits = match &elements {
            Elements::Floats(floats) => floats.iter().map(|v| v.to_bits().into()).collect(),
            Elements::Integers(integers) => integers.iter().map(|&v| v as u64).collect(),
        };
        let key = (element, shape.clone(), bits);
        if let Some(name) = self.shared.get(&key) {
            return name.clone();
        }
        let name = self.unused(kind.into());
        self.shared.insert(key, name.clone());
        self.model.initialisers.push(Initialiser { name: name.clone(), shape, element, elements });
        name
    }

    /// A tensor of floats in the model's precision that several nodes may share.
    pub fn table(&mut self, kind: &str, shape: &[usize], floats: Vec<f32>) -> String {
        self.shared(kind, shape.to_vec(), self.element(), Elements::Floats(floats))
    }

    /// A scalar in the model's precision.
    pub fn scalar(&mut self, value: f32) -> String {
        self.shared("scalar", Vec::new(), self.element(), Elements::Floats(vec![value]))
    }

    /// A scalar in f32.
    pub fn wide_scalar(&mut self, value: f32) -> String {
        self.shared("scalar", Vec::new(), Element::F32, Elements::Floats(vec![value]))
    }

    /// A list of integers: a shape, axes, indices.
    pub fn integers(&mut self, integers: &[i64]) -> String {
        self.shared("integers", vec![integers.len()], Element::I64, Elements::Integers(integers.to_vec()))
    }

    /// A single integer.
    pub fn integer(&mut self, integer: i64) -> String {
        self.shared("integer", Vec::new(), Element::I64, Elements::Integers(vec![integer]))
    }

    /// The element type of floats.
    pub fn element(&self) -> Element {
        match self.precision {
            Precision::F32 => Element::F32,
            Precision::F16 => Element::F16,
        }
    }

    /// A value in f32, for sums and small differences that f16 cannot hold.
    pub fn wide(&mut self, x: &str) -> String {
        match self.precision {
            Precision::F32 => x.into(),
            Precision::F16 => self.cast(x, Element::F32),
        }
    }

    /// A value of f32 in the model's precision.
    pub fn narrow(&mut self, x: &str) -> String {
        match self.precision {
            Precision::F32 => x.into(),
            Precision::F16 => self.cast(x, Element::F16),
        }
    }

    pub fn cast(&mut self, x: &str, to: Element) -> String {
        self.add_with("Cast", &[x], vec![Attribute::Int("to", to.code())])
    }

    pub fn transpose(&mut self, x: &str, order: &[usize]) -> String {
        let order = order.iter().map(|&axis| axis as i64).collect();
        self.add_with("Transpose", &[x], vec![Attribute::Ints("perm", order)])
    }

    /// A tensor with another shape, of which one extent may depend on the batch.
    pub fn reshape(&mut self, x: &str, shape: &[Extent]) -> Result<String, OnnxError> {
        if shape.iter().filter(|extent| !extent.is_fixed()).count() > 1 {
            return Err(OnnxError::Batch { scope: self.scope.clone(), what: "more than one axis".into() });
        }
        let shape: Vec<i64> = shape.iter().map(|extent| extent.dimension()).collect();
        let shape = self.integers(&shape);
        Ok(self.add("Reshape", &[x, &shape]))
    }

    pub fn forms(&self, value: Value) -> &Forms {
        &self.forms[value.node][value.output]
    }

    pub fn set_plain(&mut self, id: NodeId, name: String) {
        self.forms[id][0].plain = Some(name);
    }

    /// Sets an output other than the first.
    pub fn set_output(&mut self, id: NodeId, output: usize, name: String) {
        self.forms[id][output].plain = Some(name);
    }

    pub fn set_channels_first(&mut self, id: NodeId, name: String) {
        self.forms[id][0].channels_first = Some(name);
    }

    pub fn set_thirds(&mut self, id: NodeId, thirds: [String; 3]) {
        self.forms[id][0].thirds = Some(thirds);
    }

    /// Sets the result of an operator that keeps the layout of its input.
    pub fn set_in_layout(&mut self, id: NodeId, channels_first: bool, name: String) {
        if channels_first { self.set_channels_first(id, name) } else { self.set_plain(id, name) }
    }

    /// A value in one of the two layouts.
    pub fn in_layout(&mut self, value: Value, channels_first: bool) -> Result<String, OnnxError> {
        if channels_first { self.channels_first(value) } else { self.plain(value) }
    }

    /// Whether a value is there as an image with channels first alone.
    pub fn only_channels_first(&self, value: Value) -> bool {
        let forms = self.forms(value);
        forms.channels_first.is_some() && forms.plain.is_none()
    }

    /// A value as the graph has it.
    pub fn plain(&mut self, value: Value) -> Result<String, OnnxError> {
        let forms = self.forms(value).clone();
        let name = match forms {
            Forms { plain: Some(name), .. } => return Ok(name),
            _ if self.constants.is_constant(value.node) => {
                let Tensor { shape, data } = self.constant(value)?;
                let name = self.constant_name(value, "");
                self.floats(&name, &shape, data)
            }
            Forms { channels_first: Some(image), .. } => self.relaid(&image, value, [0, 2, 3, 1])?,
            Forms { thirds: Some([q, k, v]), .. } => {
                self.add_with("Concat", &[&q, &k, &v], vec![Attribute::Int("axis", -1)])
            }
            _ => return Err(self.unsupported(value.node)),
        };
        self.forms[value.node][value.output].plain = Some(name.clone());
        Ok(name)
    }

    /// An image with channels first.
    pub fn channels_first(&mut self, value: Value) -> Result<String, OnnxError> {
        if let Some(name) = &self.forms(value).channels_first {
            return Ok(name.clone());
        }
        let plain = self.plain(value)?;
        let name = self.relaid(&plain, value, [0, 3, 1, 2])?;
        self.forms[value.node][value.output].channels_first = Some(name.clone());
        Ok(name)
    }

    /// An image in the other layout; `order` is the transposition.
    fn relaid(&mut self, image: &str, value: Value, order: [usize; 4]) -> Result<String, OnnxError> {
        let shape = self.shape(value)?;
        // A single pixel is not moved.
        if shape[1..3] == [Extent::Fixed(1); 2] {
            let channels_last = order == [0, 2, 3, 1];
            let shape = if channels_last { shape } else { [0, 3, 1, 2].map(|axis| shape[axis]).to_vec() };
            return self.reshape(image, &shape);
        }
        Ok(self.transpose(image, &order))
    }

    /// Query, key and value.
    pub fn thirds(&mut self, value: Value) -> Result<[String; 3], OnnxError> {
        if let Some(thirds) = &self.forms(value).thirds {
            return Ok(thirds.clone());
        }
        let plain = self.plain(value)?;
        let width = (self.extents(value).last().copied().unwrap_or(0) / 3) as i64;
        let widths = self.integers(&[width; 3]);
        let thirds = self.add_outputs("Split", &[&plain, &widths], vec![Attribute::Int("axis", -1)]);
        self.forms[value.node][value.output].thirds = Some(thirds.clone());
        Ok(thirds)
    }

    /// The value of a constant, which is moved if this is its only use; an error for any other value.
    pub fn constant(&mut self, value: Value) -> Result<Tensor, OnnxError> {
        if self.constants.is_constant(value.node) {
            self.constants.take(value)
        } else {
            Err(self.unsupported(value.node))
        }
    }

    /// The value of a constant that is read again.
    pub fn copied_constant(&self, value: Value) -> Result<Tensor, OnnxError> {
        if self.constants.is_constant(value.node) {
            self.constants.copied(value)
        } else {
            Err(self.unsupported(value.node))
        }
    }

    /// The name of a constant's tensor: the parameter's where it is one.
    pub fn constant_name(&self, value: Value, part: &str) -> String {
        match &self.node(value.node).op {
            Op::Parameter(parameter) => format!("{}{part}", parameter.name),
            op => {
                let scope = &self.node(value.node).scope;
                format!("{scope}{}{}{part}", if scope.is_empty() { "" } else { "/" }, op.name())
            }
        }
    }

    /// Adds an input of the model.
    pub fn input(&mut self, port: Port) -> String {
        let name = self.unused(port.name.clone());
        self.model.inputs.push(port);
        name
    }

    /// Makes a value of the graph an output of the model, in f32.
    pub fn output(&mut self, name: &str, value: Value) -> Result<(), OnnxError> {
        let shape = self.shape(value)?;
        let found = self.plain(value)?;
        let (operator, attributes) = match self.precision {
            Precision::F32 => ("Identity", Vec::new()),
            Precision::F16 => ("Cast", vec![Attribute::Int("to", Element::F32.code())]),
        };
        let name = self.unused(name.into());
        self.model.nodes.push(Node { operator, inputs: vec![found], outputs: vec![name.clone()], attributes });
        self.model.outputs.push(Port { name, element: Element::F32, shape });
        Ok(())
    }
}
