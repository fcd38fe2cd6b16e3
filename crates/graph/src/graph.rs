//! The graph: nodes in topological order with typed outputs, checked when they are added.

use std::collections::BTreeMap;

use crate::memory::root_of;
use crate::ops::{Constant, Input, Op, Operation, Parameter, Scale};
use crate::{GraphError, Shape, Type};

/// The index of a node. Inputs have smaller indices than their consumers.
pub type NodeId = usize;

/// One output of one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Value {
    /// The node that computes it.
    pub node: NodeId,
    /// Which of that node's outputs.
    pub output: usize,
}

/// The phase of a training step that a node belongs to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The model and its loss.
    #[default]
    Forward,
    /// Gradients.
    Backward,
    /// Activations that are computed a second time for the backward pass.
    Recompute,
    /// New values of parameters.
    Update,
}

/// An operation applied to values.
#[derive(Debug, Clone)]
pub struct Node {
    /// The operation.
    pub op: Op,
    /// Its operands.
    pub inputs: Vec<Value>,
    /// The types of its outputs. Devices need not compute an output without uses.
    pub outputs: Vec<Type>,
    /// The module it belongs to, e.g. `blocks.3.attn`.
    pub scope: String,
    /// The phase of a training step it belongs to.
    pub phase: Phase,
}

impl Node {
    /// Phase and scope, for profiles and errors: `backward.blocks.3.attn`.
    pub fn path(&self) -> String {
        let phase = match self.phase {
            Phase::Forward => return self.scope.clone(),
            Phase::Backward => "backward",
            Phase::Recompute => "recompute",
            Phase::Update => "update",
        };
        [phase, &self.scope].iter().filter(|name| !name.is_empty()).copied().collect::<Vec<_>>().join(".")
    }
}

/// A static program: nodes in topological order, named outputs, updates of parameters, named intermediates.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    nodes: Vec<Node>,
    outputs: Vec<(String, Value)>,
    updates: Vec<(Value, Value)>,
    taps: BTreeMap<String, Value>,
    scope: Vec<String>,
    phase: Phase,
}

/// Keeps byte counts far from overflow.
const MAX_ELEMENTS: usize = 1 << 44;

impl Graph {
    /// An empty graph.
    pub fn new() -> Self {
        Graph::default()
    }

    /// All nodes, in topological order.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// One node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id]
    }

    /// The type of a value.
    ///
    /// # Panics
    /// If this graph has no such value.
    pub fn ty(&self, value: Value) -> &Type {
        &self.nodes[value.node].outputs[value.output]
    }

    /// The shape of a value.
    pub fn shape(&self, value: Value) -> &Shape {
        &self.ty(value).shape
    }

    /// Appends a node; an error if its inputs have the wrong types.
    pub fn add(&mut self, op: impl Into<Op>, inputs: &[Value]) -> Result<NodeId, GraphError> {
        let op = op.into();
        for &input in inputs {
            self.check(op.name(), input)?;
        }
        let types: Vec<Type> = inputs.iter().map(|&v| self.ty(v).clone()).collect();
        let fail = |reason: String| GraphError::Shape {
            op: op.name(),
            scope: self.scope_name(),
            inputs: types.iter().map(Type::to_string).collect::<Vec<_>>().join(", "),
            reason,
        };
        let outputs = op.infer(&types).map_err(fail)?;
        for output in &outputs {
            if output.shape.checked_elements().is_none_or(|n| n > MAX_ELEMENTS) {
                return Err(fail(format!("the result {output} is too large")));
            }
        }
        self.nodes.push(Node { op, inputs: inputs.to_vec(), outputs, scope: self.qualified(""), phase: self.phase });
        Ok(self.nodes.len() - 1)
    }

    /// Checks that this graph has such a value; `op` is the operation that errors name.
    fn check(&self, op: &'static str, value: Value) -> Result<(), GraphError> {
        if self.nodes.get(value.node).is_some_and(|node| value.output < node.outputs.len()) {
            return Ok(());
        }
        Err(GraphError::Shape {
            op,
            scope: self.scope_name(),
            inputs: format!("output {} of node {}", value.output, value.node),
            reason: format!("this graph of {} nodes has no such value", self.nodes.len()),
        })
    }

    /// The current scope, as errors name it.
    pub(crate) fn scope_name(&self) -> String {
        let scope = self.qualified("");
        if scope.is_empty() { "the model".into() } else { scope }
    }

    /// Appends a node and returns its first output.
    pub fn value(&mut self, op: impl Into<Op>, inputs: &[Value]) -> Result<Value, GraphError> {
        Ok(Value { node: self.add(op, inputs)?, output: 0 })
    }

    /// Appends a node with the scope and the phase of another one, perhaps of another graph.
    pub(crate) fn add_like(&mut self, like: &Node, op: impl Into<Op>, inputs: &[Value]) -> Result<NodeId, GraphError> {
        let scope = std::mem::replace(&mut self.scope, vec![like.scope.clone()]);
        let phase = self.set_phase(like.phase);
        let added = self.add(op, inputs);
        (self.scope, self.phase) = (scope, phase);
        added
    }

    /// Sets the phase of the nodes that are added from now on; returns the one before.
    pub fn set_phase(&mut self, phase: Phase) -> Phase {
        std::mem::replace(&mut self.phase, phase)
    }

    /// Restores phase and scope after `append`, also if it returns an error before it leaves a scope.
    pub(crate) fn restoring_phase_and_scope<T>(&mut self, append: impl FnOnce(&mut Graph) -> T) -> T {
        let (phase, scope) = (self.phase, self.scope.clone());
        let appended = append(self);
        (self.phase, self.scope) = (phase, scope);
        appended
    }

    /// Enters a module of the model inside the current one; nodes added until [`Graph::leave`] belong to it.
    pub fn enter(&mut self, name: &str) {
        self.scope.push(name.to_string());
    }

    /// Leaves the module entered last.
    pub fn leave(&mut self) {
        self.scope.pop();
    }

    /// `name` inside the current module, e.g. `blocks.3.attn.name`; an empty name is that module itself.
    pub fn qualified(&self, name: &str) -> String {
        let names = self.scope.iter().map(String::as_str).chain([name]);
        names.filter(|name| !name.is_empty()).collect::<Vec<_>>().join(".")
    }

    /// Makes a value an output. For a parameter that a run updates, the output is its value before the run.
    pub fn set_output(&mut self, name: &str, value: Value) -> Result<(), GraphError> {
        self.check("output", value)?;
        if self.outputs.iter().any(|(n, _)| n == name) {
            return Err(GraphError::DuplicateName(name.into()));
        }
        let root = root_of(self, value);
        let is_updated = self.updates.iter().any(|(parameter, _)| *parameter == root);
        let value = if is_updated { self.copied(value)? } else { value };
        self.outputs.push((name.into(), value));
        Ok(())
    }

    /// A copy of a value in memory of its own; no rewrite removes it.
    fn copied(&mut self, value: Value) -> Result<Value, GraphError> {
        self.value(Scale(1.0), &[value])
    }

    /// The named outputs, in the order they were set.
    pub fn outputs(&self) -> &[(String, Value)] {
        &self.outputs
    }

    /// The output of that name.
    pub fn output(&self, name: &str) -> Result<Value, GraphError> {
        self.outputs
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| *v)
            .ok_or_else(|| unknown("output", name, self.outputs.iter().map(|(n, _)| n.as_str())))
    }

    /// Updates a parameter to this value at the end of a run. All nodes, outputs and updates of other parameters read
    /// its value from before the run.
    pub fn update(&mut self, parameter: Value, new: Value) -> Result<(), GraphError> {
        self.check("update", parameter)?;
        self.check("update", new)?;
        let node = self.node(parameter.node);
        let reason = match &node.op {
            Op::Parameter(p) if self.updates.iter().any(|(other, _)| *other == parameter) => {
                Some(format!("`{}` is already updated", p.name))
            }
            Op::Parameter(_) if self.ty(parameter) == self.ty(new) => None,
            Op::Parameter(_) => Some(format!("the new value is {}", self.ty(new))),
            _ => Some("only parameters can be updated".into()),
        };
        if let Some(reason) = reason {
            return Err(GraphError::Shape {
                op: "update",
                scope: node.scope.clone(),
                inputs: self.ty(parameter).to_string(),
                reason,
            });
        }
        // Devices write new values into parameters one after another at the end of a run, or in place where nothing
        // reads the old value afterwards, and outputs are read after that. So a new value must not share the memory of
        // another parameter, nor an output that of an updated one.
        let root = root_of(self, new);
        let of_another = root != parameter && matches!(self.node(root.node).op, Op::Parameter(_));
        let new = if of_another { self.copied(new)? } else { new };
        for i in 0..self.outputs.len() {
            if root_of(self, self.outputs[i].1) == parameter {
                self.outputs[i].1 = self.copied(self.outputs[i].1)?;
            }
        }
        self.updates.push((parameter, new));
        Ok(())
    }

    /// The parameters that a run updates, each with its new value.
    pub fn updates(&self) -> &[(Value, Value)] {
        &self.updates
    }

    /// The graph without its updates.
    pub fn without_updates(&self) -> Graph {
        Graph { updates: Vec::new(), ..self.clone() }
    }

    /// Names an intermediate inside the current module, so that [`Graph::request`] can make it an output.
    /// This costs nothing by itself.
    pub fn set_tap(&mut self, name: &str, value: Value) {
        self.taps.insert(self.qualified(name), value);
    }

    /// The named intermediates.
    pub fn taps(&self) -> &BTreeMap<String, Value> {
        &self.taps
    }

    /// Makes the intermediate of that name an output.
    pub fn request(&mut self, tap: &str) -> Result<(), GraphError> {
        let Some(&value) = self.taps.get(tap) else {
            return Err(unknown("value", tap, self.taps.keys().map(String::as_str)));
        };
        if self.outputs.iter().any(|(n, _)| n == tap) {
            return Ok(());
        }
        self.set_output(tap, value)
    }

    /// Removes the outputs that are not to be kept; [`crate::rewrite::eliminate_dead_code`] then removes the nodes that
    /// only they need.
    pub fn retain_outputs(&mut self, keep: impl Fn(&str) -> bool) {
        self.outputs.retain(|(name, _)| keep(name));
    }

    /// The graph's inputs.
    pub fn inputs(&self) -> impl Iterator<Item = (NodeId, &Input)> {
        self.nodes.iter().enumerate().filter_map(|(id, n)| match &n.op {
            Op::Input(input) => Some((id, input)),
            _ => None,
        })
    }

    /// The graph's parameters.
    pub fn parameters(&self) -> impl Iterator<Item = (NodeId, &Parameter)> {
        self.nodes.iter().enumerate().filter_map(|(id, n)| match &n.op {
            Op::Parameter(parameter) => Some((id, parameter)),
            _ => None,
        })
    }

    /// The parameter of that name.
    pub fn parameter(&self, name: &str) -> Result<Value, GraphError> {
        self.parameters()
            .find(|(_, p)| p.name == name)
            .map(|(node, _)| Value { node, output: 0 })
            .ok_or_else(|| unknown("parameter", name, self.parameters().map(|(_, p)| p.name.as_str())))
    }

    /// A constant filled with one value.
    pub fn fill(&mut self, shape: impl Into<Shape>, value: f32) -> Result<Value, GraphError> {
        self.value(Constant::filled(shape, value), &[])
    }

    /// The number of uses of each output of each node; being a graph output or the new value of an update counts.
    pub fn uses(&self) -> Vec<Vec<usize>> {
        let mut uses: Vec<Vec<usize>> = self.nodes.iter().map(|n| vec![0; n.outputs.len()]).collect();
        let named = self.outputs.iter().map(|(_, v)| v).chain(self.updates.iter().map(|(_, v)| v));
        let used = self.nodes.iter().flat_map(|n| &n.inputs).chain(named);
        for v in used {
            uses[v.node][v.output] += 1;
        }
        uses
    }
}

/// The error for a name that is not among `known`, of which it lists the first 12.
pub(crate) fn unknown<'a>(kind: &'static str, name: &str, known: impl Iterator<Item = &'a str>) -> GraphError {
    let mut known: Vec<&str> = known.collect();
    let total = known.len();
    known.truncate(12);
    let mut list = known.join(", ");
    if total > known.len() {
        list.push_str(&format!(", … ({total} in all)"));
    }
    GraphError::UnknownName { kind, name: name.into(), known: if list.is_empty() { "none".into() } else { list } }
}
