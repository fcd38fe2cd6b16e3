//! Activation checkpointing (Chen et al., 2016, arXiv:1604.06174): the backward pass recomputes the activations inside
//! a model's blocks from the blocks' inputs, for about a third more arithmetic and a fraction of the memory.
//!
//! Dropout masks are functions of seed and position, so recomputed values are the same bits.

use std::collections::{HashMap, HashSet};

use super::GraphCopy;
use crate::memory::root_of;
use crate::ops::Operation;
use crate::{Graph, GraphError, Node, NodeId, Phase, Value};

/// In a graph with a backward pass: the nodes inside a block whose values the backward pass reads are copied, with
/// [`Phase::Recompute`], to right before the first of these reads, and the backward pass reads the copies. Not
/// recomputed are values that forward nodes outside the block read, outputs and updates of the graph, and results of
/// operations that must not be repeated.
///
/// A block is a numbered module of the model, e.g. `blocks.3` or `layers.1.blocks.0`.
pub fn checkpoint_activations(graph: &Graph) -> Result<Graph, GraphError> {
    let blocks = Blocks::find(graph);
    let mut copy = GraphCopy::of(graph);
    let mut recomputed_values: HashMap<Value, Value> = HashMap::new();
    let mut recomputed_blocks = HashSet::new();
    for (id, node) in graph.nodes().iter().enumerate() {
        if !is_backward(graph, id) {
            copy.copy_node(id)?;
            continue;
        }
        for &input in &node.inputs {
            if let Some(block) = blocks.dropped(input)
                && recomputed_blocks.insert(block)
            {
                blocks.recompute(block, graph, &mut copy, &mut recomputed_values)?;
            }
        }
        let inputs = current_inputs(node, &copy, &recomputed_values);
        let added = copy.new.add_like(node, node.op.clone(), &inputs)?;
        for output in 0..node.outputs.len() {
            copy.replace(Value { node: id, output }, Value { node: added, output });
        }
    }
    copy.finish()
}

/// The blocks of a model, each a range of consecutive nodes.
struct Blocks {
    /// The block of each node; `None` outside blocks, in the backward pass, and for nodes without inputs.
    of: Vec<Option<usize>>,
    /// By block: the nodes that are recomputed, in topological order.
    recomputed: Vec<Vec<NodeId>>,
    /// Values that stay in memory until the backward pass.
    kept: HashSet<Value>,
}

impl Blocks {
    fn find(graph: &Graph) -> Blocks {
        let of = block_of_nodes(graph);
        let mut kept = HashSet::new();
        let mut keep = |value: Value| {
            kept.insert(value);
            // A reshape shares its input's memory.
            kept.insert(root_of(graph, value));
        };
        let mut read_by_backward: HashSet<Value> = HashSet::new();
        for (id, node) in graph.nodes().iter().enumerate() {
            for &input in &node.inputs {
                if is_backward(graph, id) {
                    read_by_backward.insert(input);
                } else if of[input.node] != of[id] {
                    keep(input);
                }
            }
            if !node.op.is_repeatable() {
                (0..node.outputs.len()).for_each(|output| keep(Value { node: id, output }));
            }
        }
        let named = graph.outputs().iter().map(|(_, v)| *v).chain(graph.updates().iter().map(|(_, v)| *v));
        named.for_each(keep);

        let block_count = of.iter().flatten().max().map_or(0, |last| last + 1);
        let mut blocks = Blocks { of, recomputed: vec![Vec::new(); block_count], kept };
        let mut to_recompute = vec![false; graph.nodes().len()];
        for id in (0..graph.nodes().len()).rev() {
            let Some(block) = blocks.of[id] else { continue };
            let value = |output: usize| Value { node: id, output };
            let outputs = 0..graph.node(id).outputs.len();
            to_recompute[id] |=
                outputs.into_iter().map(value).any(|v| read_by_backward.contains(&v) && !blocks.kept.contains(&v));
            if to_recompute[id] {
                blocks.recomputed[block].push(id);
                for &input in &graph.node(id).inputs {
                    if blocks.of[input.node] == Some(block) && !blocks.kept.contains(&input) {
                        to_recompute[input.node] = true;
                    }
                }
            }
        }
        blocks.recomputed.iter_mut().for_each(|nodes| nodes.reverse());
        blocks
    }

    /// The block of a value; `None` if it has none or the value is kept for the backward pass.
    fn dropped(&self, value: Value) -> Option<usize> {
        self.of[value.node].filter(|_| !self.kept.contains(&value))
    }

    /// Adds the recomputed nodes of a block to the new graph, and their outputs that were not kept to
    /// `recomputed_values`.
    fn recompute(
        &self,
        block: usize,
        graph: &Graph,
        copy: &mut GraphCopy,
        recomputed_values: &mut HashMap<Value, Value>,
    ) -> Result<(), GraphError> {
        for &id in &self.recomputed[block] {
            let node = graph.node(id);
            let inputs = current_inputs(node, copy, recomputed_values);
            let recomputed = Node { phase: Phase::Recompute, ..node.clone() };
            let added = copy.new.add_like(&recomputed, recomputed.op.clone(), &inputs)?;
            for output in 0..node.outputs.len() {
                let value = Value { node: id, output };
                if !self.kept.contains(&value) {
                    recomputed_values.insert(value, Value { node: added, output });
                }
            }
        }
        Ok(())
    }
}

/// The inputs of a node in the new graph, recomputed where they were not kept.
fn current_inputs(node: &Node, copy: &GraphCopy, recomputed_values: &HashMap<Value, Value>) -> Vec<Value> {
    node.inputs.iter().map(|v| recomputed_values.get(v).copied().unwrap_or_else(|| copy.lookup(*v))).collect()
}

/// Whether a node belongs to the backward pass. Updates count as forward nodes: the backward pass reads none of their
/// results, so none is recomputed, and the values that they read from blocks are kept.
fn is_backward(graph: &Graph, id: NodeId) -> bool {
    matches!(graph.node(id).phase, Phase::Backward | Phase::Recompute)
}

/// The block of each node: consecutive forward nodes of one numbered module. Micro-batches have separate blocks, since
/// the backward pass of one precedes the forward pass of the next.
fn block_of_nodes(graph: &Graph) -> Vec<Option<usize>> {
    let (mut last, mut count): (Option<&str>, usize) = (None, 0);
    let nodes = graph.nodes().iter().enumerate();
    nodes
        .map(|(id, node)| {
            // Parameters and inputs are in memory anyway, and do not end a block.
            if node.inputs.is_empty() {
                return None;
            }
            let scope = if is_backward(graph, id) { None } else { block_scope(&node.scope) };
            count += usize::from(scope.is_some() && scope != last);
            last = scope;
            scope.map(|_| count - 1)
        })
        .collect()
}

/// The scope up to its last number: `blocks.3` of `blocks.3.attn.qkv`.
pub(super) fn block_scope(scope: &str) -> Option<&str> {
    let mut end = 0;
    let mut found = None;
    for name in scope.split('.') {
        end += name.len();
        if name.chars().all(|c| c.is_ascii_digit()) && !name.is_empty() {
            found = Some(&scope[..end]);
        }
        end += 1;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::autodiff::gradients;
    use crate::memory::MemoryPlan;
    use crate::ops::{Activation, CrossEntropy};
    use crate::reference::{self, Array, Bindings};
    use crate::{DType, Init, Tensor};

    #[test]
    fn a_block_is_named_by_its_number() {
        assert_eq!(block_scope("blocks.3.attn.qkv"), Some("blocks.3"));
        assert_eq!(block_scope("layers.1.blocks.10.mlp"), Some("layers.1.blocks.10"));
        assert_eq!(block_scope("patch_embed.proj"), None);
    }

    /// Six blocks of `x + linear(gelu(linear(norm(x))))`, a loss and its gradients as outputs.
    fn network() -> Graph {
        let mut x = Tensor::input("x", DType::F32, [64, 8]);
        for block in 0..6 {
            let _scope = x.scope(&format!("blocks.{block}"));
            let up = x.parameter(&format!("{block}.up"), [32, 8], Init::Normal { std: 0.3 });
            let down = x.parameter(&format!("{block}.down"), [8, 32], Init::Normal { std: 0.3 });
            let gamma = x.parameter(&format!("{block}.gamma"), [8], Init::Ones);
            let beta = x.parameter(&format!("{block}.beta"), [8], Init::Zeros);
            let hidden = x.layer_norm(&gamma, &beta, 1e-6).linear(&up, None).activation(Activation::Gelu);
            x = &x + &hidden.linear(&down, None);
        }
        x.output("logits");
        let mut graph = x.finish().unwrap();
        let logits = graph.output("logits").unwrap();
        let ty = graph.ty(logits).clone();
        let targets = graph.value(crate::ops::Input { name: "targets".into(), ty }, &[]).unwrap();
        let loss = graph.value(CrossEntropy, &[logits, targets]).unwrap();
        let wrt: Vec<Value> = graph.parameters().map(|(node, _)| Value { node, output: 0 }).collect();
        let found = gradients(&mut graph, loss, &wrt).unwrap();
        graph.set_output("loss", loss).unwrap();
        for (i, gradient) in found.into_iter().enumerate() {
            graph.set_output(&format!("gradient {i}"), gradient).unwrap();
        }
        graph
    }

    #[test]
    fn gradients_are_the_same_and_the_arena_is_smaller() {
        let graph = network();
        let rewritten = checkpoint_activations(&graph).unwrap();
        let mut bindings = Bindings::new();
        let named = graph.inputs().map(|(_, i)| (i.name.clone(), i.ty.shape.clone(), Init::Normal { std: 0.5 }));
        let named = named.chain(graph.parameters().map(|(_, p)| (p.name.clone(), p.shape.clone(), p.init)));
        for (name, shape, init) in named {
            let mut data = vec![0.0; shape.elements()];
            init.fill(1, &name, &mut data);
            bindings = bindings.with(&name, Array::new(shape, data.iter().map(|&v| v.into()).collect()));
        }
        let (expected, found) =
            (reference::run(&graph, &bindings).unwrap(), reference::run(&rewritten, &bindings).unwrap());
        assert_eq!(expected.len(), found.len());
        for (name, array) in &expected {
            assert_eq!(array.data(), found[name].data(), "{name}");
        }
        let arena = |graph: &Graph| MemoryPlan::new(graph, |_| 0, |_| false).arena_bytes;
        let (before, after) = (arena(&graph), arena(&rewritten));
        assert!(2 * after < before, "{after} of {before} bytes");
    }

    #[test]
    fn a_graph_without_a_backward_pass_is_unchanged() {
        let mut graph = network();
        graph.retain_outputs(|name| name == "logits");
        let graph = crate::rewrite::eliminate_dead_code(&graph).unwrap();
        assert_eq!(checkpoint_activations(&graph).unwrap().nodes().len(), graph.nodes().len());
    }
}
