//! Dead code elimination by token. Where the head reads one token of a sequence, the last block must compute keys and
//! values for all tokens, but queries, attention and everything after it for that token only.

use std::ops::Range;

use super::{GraphCopy, eliminate_dead_code, only_consumers};
use crate::ops::{Attention, Op, Operation, Slice};
use crate::{Graph, GraphError, Node, NodeId, Type, Value};

/// The axis of tokens in `[batch, tokens, width]`.
const TOKENS: usize = 1;

/// Where consumers read only a range of tokens of `[batch, tokens, width]`, and the operation computes each token
/// independently (`Operation::row_inputs`): computes only that range, if it has at most half of the tokens. The limit
/// is there because the range is copied out of the operation's inputs: mean pooling, which skips only the class token,
/// would copy nearly everything to save one token.
///
/// Apply it before differentiating, since gradients read whole sequences.
pub fn eliminate_dead_tokens(graph: &Graph) -> Result<Graph, GraphError> {
    let graph = &eliminate_dead_code(graph)?;
    let live = LiveTokens::of(graph);
    let mut copy = GraphCopy::of(graph);
    for (id, node) in graph.nodes().iter().enumerate() {
        match &node.op {
            // `narrow_attention` inserts three linear layers in place of this one.
            _ if live.split[id] => {}
            Op::Attention(attention) if live.is_narrowed(id) => {
                let value = narrow_attention(&mut copy, &live, id, attention)?;
                copy.replace(Value { node: id, output: 0 }, value);
            }
            Op::Slice(slice) if live.slices_narrowed(node.inputs[0], slice) => {
                let value = live.take(&mut copy, node.inputs[0], slice.start..slice.start + slice.length, node)?;
                copy.replace(Value { node: id, output: 0 }, value);
            }
            op if live.is_narrowed(id) => {
                let by_row = row_inputs(graph, node).expect("only operations by row are narrowed");
                let mut inputs = Vec::new();
                for (&input, is_by_row) in node.inputs.iter().zip(by_row) {
                    let range = live.computed[id].clone();
                    inputs.push(if is_by_row { live.take(&mut copy, input, range, node)? } else { copy.lookup(input) });
                }
                let node = copy.new.add_like(node, op.clone(), &inputs)?;
                copy.replace(Value { node: id, output: 0 }, Value { node, output: 0 });
            }
            _ => copy.copy_node(id)?,
        }
    }
    // Drops the taps (named intermediates that can be requested as outputs) of narrowed values, since a tap stands for
    // the whole value. Graph outputs are never narrowed.
    for id in (0..graph.nodes().len()).filter(|&id| live.is_narrowed(id)) {
        copy.mapping[id].fill(None);
    }
    copy.finish()
}

struct LiveTokens<'a> {
    graph: &'a Graph,
    /// By node: the tokens of its first output that are computed, which is the smallest range with all that consumers
    /// read if the node is narrowed, else all.
    computed: Vec<Range<usize>>,
    /// Linear layers that compute packed query, key and value for one narrowed attention: they are split in three.
    split: Vec<bool>,
}

impl<'a> LiveTokens<'a> {
    /// Liveness analysis, from the last node to the first.
    fn of(graph: &'a Graph) -> Self {
        let nodes = graph.nodes();
        let consumers = only_consumers(graph);
        let all: Vec<Range<usize>> =
            (0..nodes.len()).map(|id| 0..tokens(graph, Value { node: id, output: 0 })).collect();
        let mut live = LiveTokens { graph, computed: all.clone(), split: vec![false; nodes.len()] };
        let mut read: Vec<Option<Range<usize>>> = vec![None; nodes.len()];
        let mark_read = |read: &mut Vec<Option<Range<usize>>>, value: Value, range: Range<usize>| {
            let range = if value.output == 0 { range } else { all[value.node].clone() };
            let slot = &mut read[value.node];
            *slot = Some(slot.take().map_or(range.clone(), |r| r.start.min(range.start)..r.end.max(range.end)));
        };
        for value in graph.outputs().iter().map(|(_, v)| v).chain(graph.updates().iter().map(|(_, v)| v)) {
            mark_read(&mut read, *value, all[value.node].clone());
        }
        for (id, node) in nodes.iter().enumerate().rev() {
            let by_row = row_inputs(graph, node);
            if let (Some(range), Some(_)) = (&read[id], &by_row)
                && 2 * range.len() <= all[id].len()
            {
                live.computed[id] = range.clone();
            }
            let narrow = live.is_narrowed(id);
            if let (true, Op::Attention(Attention { packed: true, .. })) = (narrow, &node.op) {
                let producer = node.inputs[0].node;
                let single = consumers[producer] == Some(id);
                live.split[producer] = single && matches!(nodes[producer].op, Op::Linear(l) if l.is_plain());
            }
            for (i, &input) in node.inputs.iter().enumerate() {
                let range = match &node.op {
                    Op::Slice(slice) if live.slices_tokens(input, slice) => slice.start..slice.start + slice.length,
                    _ if narrow && by_row.as_ref().is_some_and(|f| f[i]) => live.computed[id].clone(),
                    _ => all[input.node].clone(),
                };
                mark_read(&mut read, input, range);
            }
        }
        live
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

    /// The tokens `range` (in the old graph) of an old value, as a value of the new graph. A slice that this needs gets
    /// the scope and phase of `consumer`.
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

/// Attention of the live queries to all keys, without bias and dropout (`Attention::row_inputs` is `None` with them).
fn narrow_attention(
    copy: &mut GraphCopy,
    live: &LiveTokens,
    id: NodeId,
    attention: &Attention,
) -> Result<Value, GraphError> {
    let (graph, range) = (live.graph, live.computed[id].clone());
    let node = graph.node(id);
    let operands = if attention.packed {
        let producer = graph.node(node.inputs[0].node);
        let width = graph.shape(node.inputs[0])[2] / 3;
        let mut operands = Vec::new();
        for projection in 0..3 {
            let add = |copy: &mut GraphCopy, op: Op, inputs: &[Value], like: &Node| {
                copy.new.add_like(like, op, inputs).map(|node| Value { node, output: 0 })
            };
            // Query, key or value: along axis 0 of `weight [3 · width, k]` and `bias [3 · width]`, or axis 2 of `qkv`.
            let third = |axis: usize| Slice { axis, start: projection * width, length: width }.into();
            operands.push(if live.split[node.inputs[0].node] {
                let x = producer.inputs[0];
                let tokens = if projection == 0 { range.clone() } else { live.computed[x.node].clone() };
                let mut inputs = vec![live.take(copy, x, tokens, producer)?];
                for &parameter in &producer.inputs[1..] {
                    let moved = copy.lookup(parameter);
                    inputs.push(add(copy, third(0), &[moved], producer)?);
                }
                add(copy, producer.op.clone(), &inputs, producer)?
            } else {
                let producer_tokens = live.computed[node.inputs[0].node].clone();
                let tokens = if projection == 0 { range.clone() } else { producer_tokens };
                let qkv = live.take(copy, node.inputs[0], tokens, node)?;
                add(copy, third(2), &[qkv], node)?
            });
        }
        operands
    } else {
        vec![live.take(copy, node.inputs[0], range, node)?, copy.lookup(node.inputs[1]), copy.lookup(node.inputs[2])]
    };
    let op = Attention { packed: false, ..*attention };
    Ok(Value { node: copy.new.add_like(node, op, &operands)?, output: 0 })
}
