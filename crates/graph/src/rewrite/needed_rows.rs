//! Dead code elimination by token. Where the head reads one token of a sequence, the last block needs the keys and
//! values of all tokens, but the queries, their attention and everything after it only of that token.

use std::ops::Range;

use super::{GraphCopy, dead_code, only_consumers};
use crate::ops::{Attention, Op, Operation, Slice};
use crate::{Graph, GraphError, Node, NodeId, Type, Value};

/// The axis of tokens in `[batch, tokens, width]`.
const TOKENS: usize = 1;

/// Computes only the tokens of each sequence that have a consumer, where they are at most half of it. Apply it before
/// differentiating, since gradients consume the whole of a value.
pub fn needed_rows(graph: &Graph) -> Result<Graph, GraphError> {
    let graph = &dead_code(graph)?;
    let rows = NeededRows::of(graph);
    let mut copy = GraphCopy::of(graph);
    for (id, node) in graph.nodes().iter().enumerate() {
        match &node.op {
            // `narrow_attention` adds the three parts.
            _ if rows.split[id] => {}
            Op::Attention(attention) if rows.is_narrowed(id) => {
                let value = narrow_attention(&mut copy, &rows, id, attention)?;
                copy.replace(Value { node: id, output: 0 }, value);
            }
            Op::Slice(slice) if rows.slices_narrowed(node.inputs[0], slice) => {
                let value = rows.take(&mut copy, node.inputs[0], slice.start..slice.start + slice.length, node)?;
                copy.replace(Value { node: id, output: 0 }, value);
            }
            op if rows.is_narrowed(id) => {
                let by_row = row_inputs(graph, node).unwrap_or_default();
                let mut inputs = Vec::new();
                for (&input, is_by_row) in node.inputs.iter().zip(by_row) {
                    let range = rows.computed[id].clone();
                    inputs.push(if is_by_row { rows.take(&mut copy, input, range, node)? } else { copy.lookup(input) });
                }
                let node = copy.new.add_like(node, op.clone(), &inputs)?;
                copy.replace(Value { node: id, output: 0 }, Value { node, output: 0 });
            }
            _ => copy.copy_node(id)?,
        }
    }
    // Drop the taps of narrowed values: a tap is the whole value.
    for id in (0..graph.nodes().len()).filter(|&id| rows.is_narrowed(id)) {
        copy.mapping[id].fill(None);
    }
    copy.finish()
}

/// The tokens of the first output of every node that are computed.
struct NeededRows<'a> {
    graph: &'a Graph,
    computed: Vec<Range<usize>>,
    /// Linear layers that compute packed query, key and value for one narrowed attention: they are split in three.
    split: Vec<bool>,
}

impl<'a> NeededRows<'a> {
    /// From the last node to the first: a node computes the tokens that its consumers read.
    fn of(graph: &'a Graph) -> Self {
        let nodes = graph.nodes();
        let consumers = only_consumers(graph);
        let all: Vec<Range<usize>> =
            (0..nodes.len()).map(|id| 0..tokens(graph, Value { node: id, output: 0 })).collect();
        let mut rows = NeededRows { graph, computed: all.clone(), split: vec![false; nodes.len()] };
        let mut read: Vec<Option<Range<usize>>> = vec![None; nodes.len()];
        let reads = |read: &mut Vec<Option<Range<usize>>>, value: Value, range: Range<usize>| {
            let range = if value.output == 0 { range } else { all[value.node].clone() };
            let slot = &mut read[value.node];
            *slot = Some(slot.take().map_or(range.clone(), |r| r.start.min(range.start)..r.end.max(range.end)));
        };
        for value in graph.outputs().iter().map(|(_, v)| v).chain(graph.updates().iter().map(|(_, v)| v)) {
            reads(&mut read, *value, all[value.node].clone());
        }
        for (id, node) in nodes.iter().enumerate().rev() {
            let by_row = row_inputs(graph, node);
            if let (Some(range), Some(_)) = (&read[id], &by_row)
                && 2 * range.len() <= all[id].len()
            {
                rows.computed[id] = range.clone();
            }
            let narrow = rows.is_narrowed(id);
            if let (true, Op::Attention(Attention { packed: true, .. })) = (narrow, &node.op) {
                let producer = node.inputs[0].node;
                let single = consumers[producer] == Some(id);
                rows.split[producer] = single && matches!(nodes[producer].op, Op::Linear(l) if l.is_plain());
            }
            for (i, &input) in node.inputs.iter().enumerate() {
                let range = match &node.op {
                    Op::Slice(slice) if rows.slices_tokens(input, slice) => slice.start..slice.start + slice.length,
                    _ if narrow && by_row.as_ref().is_some_and(|f| f[i]) => rows.computed[id].clone(),
                    _ => all[input.node].clone(),
                };
                reads(&mut read, input, range);
            }
        }
        rows
    }

    /// Whether a node computes only some of its tokens.
    fn is_narrowed(&self, id: NodeId) -> bool {
        self.computed[id].len() < tokens(self.graph, Value { node: id, output: 0 })
    }

    fn slices_tokens(&self, input: Value, slice: &Slice) -> bool {
        slice.axis == TOKENS && self.graph.shape(input).len() == 3
    }

    /// Whether a slice selects tokens of a narrowed value.
    fn slices_narrowed(&self, input: Value, slice: &Slice) -> bool {
        self.slices_tokens(input, slice) && input.output == 0 && self.is_narrowed(input.node)
    }

    /// These tokens of an old value in the new graph, for the `consumer` that reads them.
    fn take(
        &self,
        copy: &mut GraphCopy,
        value: Value,
        range: Range<usize>,
        consumer: &Node,
    ) -> Result<Value, GraphError> {
        let (have, moved) = (&self.computed[value.node], copy.lookup(value));
        if *have == range {
            return Ok(moved);
        }
        let slice = Slice { axis: TOKENS, start: range.start - have.start, length: range.len() };
        Ok(Value { node: copy.new.add_like(consumer, slice, &[moved])?, output: 0 })
    }
}

/// The number of tokens; 1 for values of another rank.
fn tokens(graph: &Graph, value: Value) -> usize {
    let shape = graph.shape(value);
    if shape.len() == 3 { shape[TOKENS] } else { 1 }
}

/// [`Operation::row_inputs`] of a node whose output is a sequence of tokens.
fn row_inputs(graph: &Graph, node: &Node) -> Option<Vec<bool>> {
    if node.outputs[0].shape.len() != 3 {
        return None;
    }
    let inputs: Vec<Type> = node.inputs.iter().map(|&v| graph.ty(v).clone()).collect();
    node.op.row_inputs(&inputs, &node.outputs[0])
}

/// Attention of the needed queries to all keys.
fn narrow_attention(
    copy: &mut GraphCopy,
    rows: &NeededRows,
    id: NodeId,
    attention: &Attention,
) -> Result<Value, GraphError> {
    let (graph, range) = (rows.graph, rows.computed[id].clone());
    let node = graph.node(id);
    let operands = if attention.packed {
        let producer = graph.node(node.inputs[0].node);
        let width = graph.shape(node.inputs[0])[2] / 3;
        let mut parts = Vec::new();
        for part in 0..3 {
            let add = |copy: &mut GraphCopy, op: Op, inputs: &[Value], like: &Node| {
                copy.new.add_like(like, op, inputs).map(|node| Value { node, output: 0 })
            };
            let third = |axis: usize| Slice { axis, start: part * width, length: width }.into();
            parts.push(if rows.split[node.inputs[0].node] {
                let x = producer.inputs[0];
                let part_rows = if part == 0 { range.clone() } else { rows.computed[x.node].clone() };
                let mut inputs = vec![rows.take(copy, x, part_rows, producer)?];
                for &parameter in &producer.inputs[1..] {
                    let moved = copy.lookup(parameter);
                    inputs.push(add(copy, third(0), &[moved], producer)?);
                }
                add(copy, producer.op.clone(), &inputs, producer)?
            } else {
                let part_rows = if part == 0 { range.clone() } else { rows.computed[node.inputs[0].node].clone() };
                let qkv = rows.take(copy, node.inputs[0], part_rows, node)?;
                add(copy, third(2), &[qkv], node)?
            });
        }
        parts
    } else {
        vec![rows.take(copy, node.inputs[0], range, node)?, copy.lookup(node.inputs[1]), copy.lookup(node.inputs[2])]
    };
    let op = Attention { packed: false, ..*attention };
    Ok(Value { node: copy.new.add_like(node, op, &operands)?, output: 0 })
}
