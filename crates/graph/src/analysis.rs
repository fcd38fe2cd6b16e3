//! Facts about a graph that several passes and devices need.

use std::collections::{HashMap, HashSet};

use crate::memory::root_of;
use crate::ops::{Op, Operation};
use crate::{Graph, NodeId, Value};

/// Which nodes depend only on constants and on parameters that runs do not update, themselves included. A device
/// computes them when it is given parameters; no run computes them again.
pub fn constant_nodes(graph: &Graph) -> Vec<bool> {
    let updated: HashSet<NodeId> = graph.updates().iter().map(|(parameter, _)| parameter.node).collect();
    let mut constant = vec![false; graph.nodes().len()];
    for (id, node) in graph.nodes().iter().enumerate() {
        constant[id] = match node.op {
            Op::Input(_) => false,
            Op::Constant(_) => true,
            Op::Parameter(_) => !updated.contains(&id),
            _ => node.op.is_repeatable() && node.inputs.iter().all(|v| constant[v.node]),
        };
    }
    constant
}

/// Which nodes have something to compute: all but sources, views and nodes without a used output.
pub fn computed_nodes(graph: &Graph) -> Vec<bool> {
    let uses = graph.uses();
    let computed = |(id, node): (NodeId, &crate::Node)| node.op.computes() && uses[id].iter().any(|&n| n > 0);
    graph.nodes().iter().enumerate().map(computed).collect()
}

/// The updates that need no copy, as pairs of a new value and the parameter that it overwrites: its operation works in
/// place ([`Operation::in_place`]), the device's kernel for the node does so, too (`supported`), and the old value is
/// neither read afterwards nor an output.
pub fn in_place_updates(graph: &Graph, supported: impl Fn(NodeId) -> bool) -> HashMap<Value, Value> {
    let mut last_consumer: HashMap<Value, NodeId> = HashMap::new();
    for (id, node) in graph.nodes().iter().enumerate() {
        node.inputs.iter().for_each(|&input| {
            last_consumer.insert(root_of(graph, input), id);
        });
    }
    let outputs: HashSet<Value> = graph.outputs().iter().map(|(_, v)| root_of(graph, *v)).collect();
    let in_place = |(parameter, new): &(Value, Value)| {
        let node = graph.node(new.node);
        let mut pairs = node.op.in_place().iter();
        supported(new.node)
            && pairs.any(|&(input, output)| output == new.output && node.inputs[input] == *parameter)
            && last_consumer.get(parameter) == Some(&new.node)
            && !outputs.contains(parameter)
    };
    graph.updates().iter().filter(|update| in_place(update)).map(|&(parameter, new)| (new, parameter)).collect()
}
