//! Rewrites: functions from a graph to one with the same results up to rounding, except [`quantise_int8`], which
//! approximates. Training and int8 inference apply some before compiling; each device then applies its own list.

mod activation_checkpointing;
mod add_norm;
mod add_norm_grad;
mod batch_norm;
mod conv;
mod dead_code;
mod dead_tokens;
mod derivative;
mod gathers;
mod identity;
mod int8;
mod layer_scale;
mod linear;
mod patchify;
mod relu_grad;

pub use activation_checkpointing::checkpoint_activations;
pub use add_norm::fuse_add_norm;
pub use add_norm_grad::fuse_norm_grad_add;
pub use batch_norm::fold_batch_norm;
pub use conv::fuse_conv;
pub use dead_code::eliminate_dead_code;
pub use dead_tokens::eliminate_dead_tokens;
pub use derivative::save_activation_derivative;
pub use gathers::gather_by_block;
pub use identity::eliminate_identities;
pub use int8::quantise_int8;
pub use layer_scale::fold_layer_scale;
pub use linear::fuse_linear;
pub use patchify::patchify;
pub use relu_grad::relu_grad_from_output;

use crate::{Graph, GraphError, Node, NodeId, Value};

/// Copies a graph node by node and maps old values to new ones.
struct GraphCopy<'a> {
    old: &'a Graph,
    new: Graph,
    /// The new value of each old one, `[node][output]`; `None` until the old one is copied or replaced, and for ever if
    /// it is fused away or eliminated.
    mapping: Vec<Vec<Option<Value>>>,
}

impl<'a> GraphCopy<'a> {
    fn of(old: &'a Graph) -> Self {
        let mapping = old.nodes().iter().map(|n| vec![None; n.outputs.len()]).collect();
        GraphCopy { old, new: Graph::new(), mapping }
    }

    /// The new value of an old one, which must have been copied or replaced.
    fn lookup(&self, value: Value) -> Value {
        self.mapping[value.node][value.output].expect("a value is copied or replaced before it is used")
    }

    fn inputs(&self, node: &Node) -> Vec<Value> {
        node.inputs.iter().map(|&v| self.lookup(v)).collect()
    }

    /// Copies a node unchanged.
    fn copy_node(&mut self, id: NodeId) -> Result<(), GraphError> {
        let node = self.old.node(id);
        let added = self.new.add_like(node, node.op.clone(), &self.inputs(node))?;
        for output in 0..node.outputs.len() {
            self.mapping[id][output] = Some(Value { node: added, output });
        }
        Ok(())
    }

    /// Replaces an old value by this new one.
    fn replace(&mut self, old: Value, new: Value) {
        self.mapping[old.node][old.output] = Some(new);
    }

    /// The new graph with the outputs, updates and taps of the old one; taps of values that were fused away
    /// or eliminated are dropped.
    fn finish(mut self) -> Result<Graph, GraphError> {
        for (name, value) in self.old.outputs() {
            let value = self.lookup(*value);
            self.new.set_output(name, value)?;
        }
        for (parameter, value) in self.old.updates() {
            let (parameter, value) = (self.lookup(*parameter), self.lookup(*value));
            self.new.update(parameter, value)?;
        }
        for (name, value) in self.old.taps() {
            if let Some(value) = self.mapping[value.node][value.output] {
                self.new.set_tap(name, value);
            }
        }
        Ok(self.new)
    }
}

/// The consumer of every node's first output if that is its only use ([`Graph::uses`]); `None` if there are several (a node
/// that reads it twice counts as two), or if it is an output or the new value of an update.
fn only_consumers(graph: &Graph) -> Vec<Option<NodeId>> {
    let uses = graph.uses();
    let mut consumers = vec![None; graph.nodes().len()];
    for (id, node) in graph.nodes().iter().enumerate() {
        node.inputs.iter().filter(|v| v.output == 0 && uses[v.node][0] == 1).for_each(|v| consumers[v.node] = Some(id));
    }
    consumers
}
