//! Sums over the parts of a batch, in an order that does not depend on the number of processes.

use vit_graph::ops::{Op, PartSum};
use vit_graph::{Graph, GraphError, Value};

/// The sum of one value over parts, which are added in a balanced binary tree: `((0 + 1) + (2 + 3)) + ...`. A subtree is
/// added as soon as it is complete, so no more values are in memory than the tree is high.
#[derive(Clone, Default)]
pub(super) struct PartTree {
    /// Complete subtrees from left to right, with their numbers of parts.
    subtrees: Vec<(usize, Value)>,
}

impl PartTree {
    /// Adds the next part; returns the sum with the last one, and a subtree's before.
    pub fn add(&mut self, graph: &mut Graph, value: Value, last: bool) -> Result<Value, GraphError> {
        // The gradient of a parameter that the loss does not depend on: zero in all parts.
        if matches!(graph.node(value.node).op, Op::Constant(_)) {
            return Ok(value);
        }
        let (mut parts, mut sum) = (1, value);
        let merges = |size: usize, parts: usize| size == parts || last;
        while let Some((size, left)) = self.subtrees.pop_if(|(size, _)| merges(*size, parts)) {
            (parts, sum) = (parts + size, graph.value(PartSum, &[left, sum])?);
        }
        self.subtrees.push((parts, sum));
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vit_graph::ops::Input;
    use vit_graph::{Shape, Type};

    fn written(graph: &Graph, value: Value) -> String {
        let node = graph.node(value.node);
        match &node.op {
            Op::Input(input) => input.name.clone(),
            _ => format!("({}+{})", written(graph, node.inputs[0]), written(graph, node.inputs[1])),
        }
    }

    fn sum(parts: std::ops::Range<usize>) -> String {
        let (mut graph, mut tree) = (Graph::new(), PartTree::default());
        let mut total = None;
        for part in parts.clone() {
            let ty = Type::f32(Shape::default());
            let value = graph.value(Input { name: part.to_string(), ty }, &[]).unwrap();
            total = Some(tree.add(&mut graph, value, part + 1 == parts.end).unwrap());
        }
        written(&graph, total.unwrap())
    }

    #[test]
    fn processes_add_whole_subtrees() {
        assert_eq!(sum(0..1), "0");
        assert_eq!(sum(0..8), "(((0+1)+(2+3))+((4+5)+(6+7)))");
        assert_eq!(sum(4..8), "((4+5)+(6+7))");
        assert_eq!(sum(0..7), "(((0+1)+(2+3))+((4+5)+6))");
    }
}
