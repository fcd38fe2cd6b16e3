//! Inlining one graph into another, as training steps do with the forward pass of each micro-batch.

use std::collections::HashMap;

use crate::ops::{Op, Operation, SyncedParts, sync_batch_norm};
use crate::{Graph, GraphError, Node, NodeId, Value};

/// Maps the values of an inlined graph to those of the graph that it was inlined into, by node and output.
pub struct Inlined(Vec<Vec<Value>>);

impl Inlined {
    /// The new value of an old one.
    pub fn value(&self, old: Value) -> Value {
        self.0[old.node][old.output]
    }
}

/// What distinguishes one inlined copy of a graph from another.
pub struct Inlining<'a> {
    /// Values that replace the inputs and parameters of these names. Other parameters are those of the same name in the
    /// graph that is appended to, if it has them before.
    pub given: Vec<(&'a str, Value)>,
    /// Added to the indices of random streams, so that each copy draws its own random numbers.
    pub streams: u32,
}

impl Graph {
    /// Appends the nodes of another graph. Outputs, updates and taps are not copied.
    pub fn inline(&mut self, inner: &Graph, inlining: &Inlining) -> Result<Inlined, GraphError> {
        let mut copy = InlinedCopy::new(self, inner, inlining);
        (0..inner.nodes().len()).try_for_each(|node| copy.append(self, node))?;
        Ok(copy.moved)
    }

    /// Appends several copies of another graph whose batch norms normalise all copies together: up to each batch norm, the
    /// nodes of every copy in turn, then one batch norm of all.
    pub fn inline_synced(
        &mut self,
        inner: &Graph,
        inlinings: &[Inlining],
        synced: SyncedParts,
    ) -> Result<Vec<Inlined>, GraphError> {
        let mut copies: Vec<InlinedCopy> = inlinings.iter().map(|i| InlinedCopy::new(self, inner, i)).collect();
        let is_norm = |id: &NodeId| matches!(inner.node(*id).op, Op::BatchNorm(_));
        let mut next = 0;
        for norm in (0..inner.nodes().len()).filter(is_norm).chain([inner.nodes().len()]) {
            for copy in &mut copies {
                (next..norm).try_for_each(|node| copy.append(self, node))?;
            }
            next = norm + 1;
            let Some(Op::BatchNorm(op)) = inner.nodes().get(norm).map(|node| &node.op) else { break };
            let inputs: Vec<Vec<Value>> = copies.iter().map(|copy| copy.inputs(inner.node(norm))).collect();
            self.enter(&inner.node(norm).scope);
            let outputs = sync_batch_norm(self, *op, synced, &inputs)?;
            self.leave();
            let (results, statistics) = outputs.split_at(copies.len());
            for (copy, result) in copies.iter_mut().zip(results) {
                copy.moved.0.push([&[*result], statistics].concat());
            }
        }
        Ok(copies.into_iter().map(|copy| copy.moved).collect())
    }

    /// An exclusive upper bound of the indices of the graph's random streams.
    pub fn random_streams(&self) -> u32 {
        let stream = |node: &Node| node.op.clone().random_stream().map(|stream| *stream);
        self.nodes().iter().filter_map(stream).max().map_or(0, |stream| stream + 1)
    }
}

/// A copy of a graph that is being appended to another, node by node.
struct InlinedCopy<'a> {
    inner: &'a Graph,
    inlining: &'a Inlining<'a>,
    /// The parameters that the graph appended to had before, by name.
    shared: HashMap<String, Value>,
    /// The new values of the nodes appended so far.
    moved: Inlined,
}

impl<'a> InlinedCopy<'a> {
    fn new(graph: &Graph, inner: &'a Graph, inlining: &'a Inlining<'a>) -> Self {
        let shared = graph.parameters().map(|(node, p)| (p.name.clone(), Value { node, output: 0 })).collect();
        InlinedCopy { inner, inlining, shared, moved: Inlined(Vec::with_capacity(inner.nodes().len())) }
    }

    fn inputs(&self, node: &Node) -> Vec<Value> {
        node.inputs.iter().map(|&v| self.moved.value(v)).collect()
    }

    /// Appends node `id` of the inner graph; its nodes must come in order.
    fn append(&mut self, graph: &mut Graph, id: NodeId) -> Result<(), GraphError> {
        let node = self.inner.node(id);
        let given = |name: &str| self.inlining.given.iter().find(|(given, _)| *given == name).map(|(_, value)| *value);
        let known = match &node.op {
            Op::Input(input) => given(&input.name),
            Op::Parameter(p) => given(&p.name).or_else(|| self.shared.get(&p.name).copied()),
            _ => None,
        };
        if let Some(value) = known {
            if *graph.ty(value) != node.outputs[0] {
                return Err(GraphError::Shape {
                    op: "inline",
                    scope: node.scope.clone(),
                    inputs: graph.ty(value).to_string(),
                    reason: format!("it should be {}", node.outputs[0]),
                });
            }
            self.moved.0.push(vec![value]);
            return Ok(());
        }
        let mut op = node.op.clone();
        if let Some(stream) = op.random_stream() {
            *stream += self.inlining.streams;
        }
        let added = graph.add_like(node, op, &self.inputs(node))?;
        self.moved.0.push((0..node.outputs.len()).map(|output| Value { node: added, output }).collect());
        Ok(())
    }
}
