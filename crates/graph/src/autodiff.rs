//! Reverse-mode differentiation: appends the backward pass to a graph.

use crate::ops::{Binary, Operation, Reduce, Reshape};
use crate::{Graph, GraphError, NodeId, Phase, Value};

/// The gradients of a scalar `loss` with respect to each of `wrt`; zeros where the loss does not depend on it.
pub fn gradients(graph: &mut Graph, loss: Value, wrt: &[Value]) -> Result<Vec<Value>, GraphError> {
    differentiate(graph, &[(loss, None)], wrt, &vec![None; wrt.len()], &mut |_, _, gradient| Ok(gradient))
}

/// The values of `sums` plus the gradients of a scalar `loss`, each added as soon as it is computed, so that the memory
/// of the gradient can be reused. `wrt` must be parameters: the sum of any other value would be propagated to that
/// value's inputs.
pub fn add_gradients(graph: &mut Graph, loss: Value, wrt: &[Value], sums: &[Value]) -> Result<Vec<Value>, GraphError> {
    let sums: Vec<Option<Value>> = sums.iter().copied().map(Some).collect();
    differentiate(graph, &[(loss, None)], wrt, &sums, &mut |_, _, gradient| Ok(gradient))
}

/// Given the index of a value in `wrt` and its complete gradient: returns what takes the gradient's place.
pub type FinishGradient<'a> = &'a mut dyn FnMut(&mut Graph, usize, Value) -> Result<Value, GraphError>;

/// As [`add_gradients`], or [`gradients`] without `sums`, of the sum of `losses`. `finish` is called for each gradient
/// as soon as it is complete, so that the nodes which `finish` adds run during the backward pass, not after it.
pub fn finish_gradients(
    graph: &mut Graph,
    losses: &[Value],
    wrt: &[Value],
    sums: Option<&[Value]>,
    finish: FinishGradient,
) -> Result<Vec<Value>, GraphError> {
    let sums = sums.map_or(vec![None; wrt.len()], |sums| sums.iter().copied().map(Some).collect());
    let starts: Vec<Start> = losses.iter().map(|loss| (*loss, None)).collect();
    differentiate(graph, &starts, wrt, &sums, finish)
}

/// The rest of a backward pass that was begun elsewhere: the gradients with respect to `wrt`, given pairs of a value
/// and its gradient. `finish` as in [`finish_gradients`].
pub fn continue_gradients(
    graph: &mut Graph,
    values: &[(Value, Value)],
    wrt: &[Value],
    finish: FinishGradient,
) -> Result<Vec<Value>, GraphError> {
    let starts: Vec<Start> = values.iter().map(|(value, gradient)| (*value, Some(*gradient))).collect();
    differentiate(graph, &starts, wrt, &vec![None; wrt.len()], finish)
}

/// A value that a backward pass starts from, and its gradient; `None` for a loss, whose gradient is 1.
type Start = (Value, Option<Value>);

fn differentiate(
    graph: &mut Graph,
    starts: &[Start],
    wrt: &[Value],
    sums: &[Option<Value>],
    finish: FinishGradient,
) -> Result<Vec<Value>, GraphError> {
    graph.restoring_phase_and_scope(|graph| append_backward(graph, starts, wrt, sums, finish))
}

fn append_backward(
    graph: &mut Graph,
    starts: &[Start],
    wrt: &[Value],
    sums: &[Option<Value>],
    finish: FinishGradient,
) -> Result<Vec<Value>, GraphError> {
    if let Some((loss, _)) = starts.iter().find(|(loss, dy)| dy.is_none() && graph.shape(*loss).elements() != 1) {
        return Err(GraphError::Gradient {
            op: graph.node(loss.node).op.name(),
            scope: graph.node(loss.node).scope.clone(),
            reason: format!("the loss should be a scalar, not {}", graph.ty(*loss)),
        });
    }
    let last = starts.iter().map(|(value, _)| value.node).max().unwrap_or(0);
    let differentiated = depends_on(graph, last, wrt);
    // The gradients with respect to each output of each node, as far as they are summed.
    let mut upstream: Vec<Vec<Option<Value>>> =
        graph.nodes()[..=last].iter().map(|n| vec![None; n.outputs.len()]).collect();
    let phase = graph.set_phase(Phase::Backward);
    for (value, gradient) in starts {
        let shape = graph.shape(*value).clone();
        upstream[value.node][value.output] = Some(gradient.map_or_else(|| graph.fill(shape, 1.0), Ok)?);
    }
    for (v, sum) in wrt.iter().zip(sums).filter(|(v, sum)| sum.is_some() && v.node <= last) {
        upstream[v.node][v.output] = *sum;
    }

    // The backward pass visits nodes in reverse, so the gradient of a value is complete after the first node, in graph
    // order, that reads the value and that a start depends on.
    let needed = needed_for(graph, starts, last);
    let mut first_readers: Vec<Vec<usize>> = vec![Vec::new(); last + 1];
    for (i, v) in wrt.iter().enumerate() {
        let reads = |node: &NodeId| needed[*node] && graph.node(*node).inputs.contains(v);
        (0..=last).find(reads).into_iter().for_each(|node| first_readers[node].push(i));
    }
    let mut finished: Vec<Option<Value>> = vec![None; wrt.len()];

    for node in (0..=last).rev() {
        if !differentiated[node] || upstream[node].iter().all(Option::is_none) {
            continue;
        }
        let op = graph.node(node).op.clone();
        let inputs = graph.node(node).inputs.clone();
        let scope = graph.node(node).scope.clone();
        let needs_gradient = inputs.iter().map(|v| differentiated[v.node] && graph.ty(*v).dtype.is_float()).collect();
        graph.enter(&scope);
        let mut backward =
            Backward { graph, node, upstream: &upstream[node], needs_gradient, found: vec![None; inputs.len()] };
        op.gradient(&mut backward)?;
        let found = backward.found;
        for (input, gradient) in inputs.iter().zip(found) {
            let (Some(gradient), true) = (gradient, differentiated[input.node]) else { continue };
            let slot = &mut upstream[input.node][input.output];
            *slot = Some(match *slot {
                Some(sum) => graph.value(Binary::Add, &[sum, gradient])?,
                None => gradient,
            });
        }
        for &i in &first_readers[node] {
            if let Some(gradient) = upstream[wrt[i].node][wrt[i].output] {
                finished[i] = Some(finish(graph, i, gradient)?);
            }
        }
        graph.leave();
    }
    graph.set_phase(phase);
    for (i, v) in wrt.iter().enumerate() {
        if finished[i].is_some() {
            continue;
        }
        let gradient = match upstream.get(v.node).and_then(|outputs| outputs[v.output]).or(sums[i]) {
            Some(gradient) => gradient,
            None => {
                let shape = graph.shape(*v).clone();
                graph.fill(shape, 0.0)?
            }
        };
        finished[i] = Some(finish(graph, i, gradient)?);
    }
    Ok(finished.into_iter().flatten().collect())
}

/// Which nodes up to `last` the starts depend on, themselves included.
fn needed_for(graph: &Graph, starts: &[Start], last: NodeId) -> Vec<bool> {
    let mut needed = vec![false; last + 1];
    starts.iter().for_each(|(value, _)| needed[value.node] = true);
    for id in (0..=last).rev() {
        if needed[id] {
            graph.node(id).inputs.iter().for_each(|input| needed[input.node] = true);
        }
    }
    needed
}

/// Which nodes up to `last` depend on one of `wrt`.
fn depends_on(graph: &Graph, last: NodeId, wrt: &[Value]) -> Vec<bool> {
    let mut depends = vec![false; last + 1];
    for (id, node) in graph.nodes()[..=last].iter().enumerate() {
        depends[id] = wrt.iter().any(|v| v.node == id) || node.inputs.iter().any(|v| depends[v.node]);
    }
    depends
}

/// The context in which [`Operation::gradient`] adds the backward nodes of one operation.
pub struct Backward<'a> {
    /// The graph, to which backward nodes are added.
    pub graph: &'a mut Graph,
    node: NodeId,
    upstream: &'a [Option<Value>],
    needs_gradient: Vec<bool>,
    found: Vec<Option<Value>>,
}

impl Backward<'_> {
    /// The number of inputs of the operation.
    pub fn inputs(&self) -> usize {
        self.needs_gradient.len()
    }

    /// An input of the operation.
    pub fn input(&self, i: usize) -> Value {
        self.graph.node(self.node).inputs[i]
    }

    /// An output of the operation.
    pub fn output(&self, i: usize) -> Value {
        Value { node: self.node, output: i }
    }

    /// The gradient of the loss with respect to the first output; zeros if the loss does not depend on it.
    pub fn dy(&mut self) -> Result<Value, GraphError> {
        self.dy_of(0)
    }

    /// The same with respect to any output.
    pub fn dy_of(&mut self, output: usize) -> Result<Value, GraphError> {
        match self.upstream[output] {
            Some(dy) => Ok(dy),
            None => {
                let shape = self.graph.shape(self.output(output)).clone();
                self.graph.fill(shape, 0.0)
            }
        }
    }

    /// An error if the loss depends on an output other than the first; `what` names these outputs.
    pub fn only_first_output(&self, what: &str) -> Result<(), GraphError> {
        self.only_outputs_before(1, what)
    }

    /// An error if the loss depends on output `first` or one after it; `what` names these outputs.
    pub fn only_outputs_before(&self, first: usize, what: &str) -> Result<(), GraphError> {
        if self.upstream[first..].iter().any(Option::is_some) {
            return Err(self.unsupported(&format!("the loss depends on {what}")));
        }
        Ok(())
    }

    /// Whether the gradient of this input is needed.
    pub fn needs_gradient(&self, i: usize) -> bool {
        self.needs_gradient[i]
    }

    /// Sets the gradient of an input.
    pub fn set(&mut self, i: usize, gradient: Value) -> Result<(), GraphError> {
        if self.graph.shape(gradient) != self.graph.shape(self.input(i)) {
            let found = self.graph.shape(gradient).clone();
            return Err(self.unsupported(&format!("its gradient for input {i} has the shape {found}")));
        }
        self.found[i] = Some(gradient);
        Ok(())
    }

    /// Sets the gradients of the first `count` inputs, where needed, to the outputs of `node`.
    pub fn set_all(&mut self, node: NodeId, count: usize) -> Result<(), GraphError> {
        for i in (0..count).filter(|&i| self.needs_gradient[i]).collect::<Vec<_>>() {
            self.set(i, Value { node, output: i })?;
        }
        Ok(())
    }

    /// Sums a gradient over the axes along which input `i` was broadcast.
    pub fn sum_to_input(&mut self, gradient: Value, i: usize) -> Result<Value, GraphError> {
        let (from, to) = (self.graph.shape(gradient).clone(), self.graph.shape(self.input(i)).clone());
        let extra = from.len() - to.len();
        let axes: Vec<usize> = (0..from.len()).filter(|&a| a < extra || (to[a - extra] == 1 && from[a] != 1)).collect();
        let summed = if axes.is_empty() { gradient } else { self.graph.value(Reduce::sum(axes), &[gradient])? };
        if *self.graph.shape(summed) == to { Ok(summed) } else { self.graph.value(Reshape(to), &[summed]) }
    }

    /// The error of an operation that cannot be differentiated.
    pub fn unsupported(&self, reason: &str) -> GraphError {
        let node = self.graph.node(self.node);
        GraphError::Gradient { op: node.op.name(), scope: node.scope.clone(), reason: reason.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, Init, Tensor};

    /// Processes exchange gradients in this order, also those that run more passes than others.
    #[test]
    fn gradients_are_finished_in_the_order_of_the_backward_pass_in_every_pass() {
        let x = Tensor::input("x", DType::F32, [2, 3]);
        let weights: Vec<Tensor> = (0..3).map(|i| x.parameter(&i.to_string(), [3, 3], Init::Ones)).collect();
        let pass = || weights.iter().fold(x.clone(), |x, weight| x.linear(weight, None)).sum([0, 1]).value().unwrap();
        let losses = [pass(), pass()];
        let wrt: Vec<Value> = weights.iter().map(|weight| weight.value().unwrap()).collect();
        let unused = x.parameter("unused", [3], Init::Ones).value().unwrap();
        let wrt = [wrt, vec![unused]].concat();
        drop(weights);
        let mut graph = x.finish().unwrap();
        for loss in losses {
            let (mut order, mut ends) = (Vec::new(), Vec::new());
            let mut finish = |graph: &mut Graph, i: usize, gradient: Value| {
                order.push(i);
                ends.push(graph.nodes().len());
                Ok(gradient)
            };
            finish_gradients(&mut graph, &[loss], &wrt, None, &mut finish).unwrap();
            assert_eq!(order, [2, 1, 0, 3]);
            assert!(ends[0] < ends[1] && ends[1] < ends[2], "{ends:?}");
        }
    }

    #[test]
    fn an_error_in_the_backward_pass_leaves_phase_and_scope_as_they_were() {
        let x = Tensor::input("x", DType::F32, [3]);
        let weight = x.parameter("w", [3], Init::Ones);
        let (wrt, scope) = ([weight.value().unwrap()], x.scope("block"));
        let loss = (&x * &weight).sum([0]).value().unwrap();
        drop((scope, weight));
        let mut graph = x.finish().unwrap();
        let mut fail = |graph: &mut Graph, _: usize, _: Value| {
            Err(GraphError::Gradient { op: "mul", scope: graph.qualified(""), reason: "not today".into() })
        };
        graph.enter("head");
        finish_gradients(&mut graph, &[loss], &wrt, None, &mut fail).unwrap_err();
        let node = graph.fill([3], 1.0).unwrap().node;
        assert_eq!((graph.node(node).phase, graph.node(node).scope.as_str()), (Phase::Forward, "head"));
    }

    #[test]
    fn the_sum_of_a_parameter_added_after_the_loss_was_lost() {
        let x = Tensor::input("x", DType::F32, [3]);
        let loss = x.sum([0]).value().unwrap();
        let parameter = x.parameter("w", [3], Init::Zeros).value().unwrap();
        let mut graph = x.finish().unwrap();
        let sum = graph.fill([3], 2.0).unwrap();
        assert_eq!(add_gradients(&mut graph, loss, &[parameter], &[sum]).unwrap(), [sum]);
    }
}
