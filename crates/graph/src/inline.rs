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
    /// Values that replace the inputs and parameters of these names. Other parameters are shared by name.
    pub given: Vec<(&'a str, Value)>,
    /// Added to the indices of random streams.
    pub streams: u32,
}

impl Graph {
    /// Appends the nodes of another graph. Outputs, updates and taps are not copied.
    pub fn inline(&mut self, part: &Graph, inlining: &Inlining) -> Result<Inlined, GraphError> {
        let mut copy = InlinedCopy::new(self, part, inlining);
        (0..part.nodes().len()).try_for_each(|node| copy.append(self, node))?;
        Ok(copy.moved)
    }

    /// Appends several copies of another graph whose batch norms normalise all of them together. The copies take turns at
    /// every batch norm.
    pub fn inline_synced(
        &mut self,
        part: &Graph,
        inlinings: &[Inlining],
        synced: SyncedParts,
    ) -> Result<Vec<Inlined>, GraphError> {
        let mut copies: Vec<InlinedCopy> = inlinings.iter().map(|i| InlinedCopy::new(self, part, i)).collect();
        let is_norm = |id: &NodeId| matches!(part.node(*id).op, Op::BatchNorm(_));
        let mut next = 0;
        for norm in (0..part.nodes().len()).filter(is_norm).chain([part.nodes().len()]) {
            for copy in &mut copies {
                (next..norm).try_for_each(|node| copy.append(self, node))?;
            }
            next = norm + 1;
            let Some(Op::BatchNorm(op)) = part.nodes().get(norm).map(|node| &node.op) else { break };
            let inputs: Vec<Vec<Value>> = copies.iter().map(|copy| copy.inputs(part.node(norm))).collect();
            self.enter(&part.node(norm).scope);
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
    part: &'a Graph,
    inlining: &'a Inlining<'a>,
    /// The parameters of the other graph.
    shared: HashMap<String, Value>,
    moved: Inlined,
}

impl<'a> InlinedCopy<'a> {
    fn new(graph: &Graph, part: &'a Graph, inlining: &'a Inlining<'a>) -> Self {
        let shared = graph.parameters().map(|(node, p)| (p.name.clone(), Value { node, output: 0 })).collect();
        InlinedCopy { part, inlining, shared, moved: Inlined(Vec::with_capacity(part.nodes().len())) }
    }

    fn inputs(&self, node: &Node) -> Vec<Value> {
        node.inputs.iter().map(|&v| self.moved.value(v)).collect()
    }

    /// Appends the next node.
    fn append(&mut self, graph: &mut Graph, id: NodeId) -> Result<(), GraphError> {
        let node = self.part.node(id);
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
