//! State that the processes of a run divide among them, instead of each having all of it (ZeRO, Rajbhandari et al., 2020):
//! the optimiser's, or also the parameters.
//!
//! Every process has a slice of each large tensor, adds that slice of the gradients and updates it. Slices begin at multiples of
//! the elements whose squares are added first, so that the norm of all gradients has the bits of an undivided step.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use vit_graph::ops::{AllGather, NormOfSums, Parameter, ReduceScatter, Reshape, SQUARES, Shards, Slice, SquareSums};
use vit_graph::{Graph, GraphError, Shape, Value};

/// The state that processes divide among them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShardedState {
    /// None: every process has all of it.
    #[default]
    None,
    /// The optimiser's tensors and the averages.
    Optimiser,
    /// The parameters, too; each is gathered before a block uses it.
    All,
}

/// This process's share of the divided state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sharding {
    /// Whether parameters are divided, too.
    pub parameters: bool,
    /// The number of this process.
    pub rank: usize,
    /// The number of processes.
    pub processes: usize,
}

/// Slices begin at multiples of so many elements.
const UNIT: usize = 2 * SQUARES;

impl Sharding {
    /// The slices of a tensor; `None` for one that is too small for a unit in each process.
    pub(crate) fn slices(&self, elements: usize) -> Option<Shards> {
        let units = elements.div_ceil(UNIT);
        let start = |rank: usize| (units * rank / self.processes * UNIT).min(elements);
        let lengths = (0..self.processes).map(|rank| start(rank + 1) - start(rank)).collect();
        (units >= self.processes).then_some(Shards { rank: self.rank, lengths })
    }
}

/// A tensor of which this process has a slice.
#[derive(Debug, Clone, PartialEq)]
pub struct ShardedTensor {
    /// The shape of the whole.
    pub shape: Shape,
    /// Its slices.
    pub shards: Shards,
}

/// A parameter that is trained.
pub(crate) struct TrainedParameter {
    /// Its definition, with the shape of the whole.
    pub parameter: Parameter,
    /// The parameter of the graph, which may be a slice.
    pub stored: Value,
    /// The whole parameter.
    pub whole: Value,
    /// The slices in which it is updated.
    pub shards: Option<Shards>,
    /// The value to which it is clipped after each step.
    pub max: Option<f32>,
}

impl TrainedParameter {
    /// Adds a parameter to a graph.
    pub fn add(graph: &mut Graph, parameter: &Parameter, sharding: Option<&Sharding>) -> Result<Self, GraphError> {
        let shards = sharding.and_then(|sharding| sharding.slices(parameter.shape.elements()));
        let (stored, whole) = match &shards {
            Some(shards) if sharding.is_some_and(|sharding| sharding.parameters) => {
                let shape = Shape::from([shards.own().len()]);
                let slice = graph.value(Parameter { shape, ..parameter.clone() }, &[])?;
                (slice, graph.value(gathered(&parameter.shape, shards), &[slice])?)
            }
            _ => {
                let value = graph.value(parameter.clone(), &[])?;
                (value, value)
            }
        };
        Ok(TrainedParameter { parameter: parameter.clone(), stored, whole, shards, max: None })
    }

    /// The shape in which it is updated.
    pub fn updated_shape(&self) -> Shape {
        self.shards.as_ref().map_or(self.parameter.shape.clone(), |shards| Shape::from([shards.own().len()]))
    }

    /// The elements that this process updates.
    pub fn updated(&self, graph: &mut Graph) -> Result<Value, GraphError> {
        match &self.shards {
            Some(shards) if self.stored == self.whole => slice(graph, self.whole, shards),
            _ => Ok(self.stored),
        }
    }

    /// Updates it with the new values of these elements.
    pub fn update(&self, graph: &mut Graph, new: Value) -> Result<(), GraphError> {
        let new = match &self.shards {
            Some(shards) if self.stored == self.whole => {
                graph.value(gathered(&self.parameter.shape, shards), &[new])?
            }
            _ => new,
        };
        graph.update(self.stored, new)
    }
}

fn gathered(shape: &Shape, shards: &Shards) -> AllGather {
    AllGather { shape: shape.clone(), shards: shards.clone() }
}

/// This process's slice of a value.
fn slice(graph: &mut Graph, value: Value, shards: &Shards) -> Result<Value, GraphError> {
    let flat = Shape::from([graph.shape(value).elements()]);
    let flat = graph.value(Reshape(flat), &[value])?;
    let own = shards.own();
    graph.value(Slice { axis: 0, start: own.start, length: own.len() }, &[flat])
}

/// Bytes of sums that may be on their way to other processes before the backward pass waits for the first of them.
const IN_FLIGHT: usize = 16 << 20;

/// The slices of gradients. A slice is taken some time after the sum over processes was started, so that the backward pass does
/// not wait, and before the end of the step, so that the whole gradient's memory is reused.
pub(super) struct GradientSlices<'a> {
    trained: &'a [TrainedParameter],
    slices: Vec<Option<Value>>,
    /// Sums that were started, with the indices of their parameters; the oldest first.
    started: VecDeque<(usize, Value)>,
}

impl<'a> GradientSlices<'a> {
    pub fn new(trained: &'a [TrainedParameter]) -> Self {
        GradientSlices { trained, slices: vec![None; trained.len()], started: VecDeque::new() }
    }

    /// Adds a gradient over all processes, if it has slices.
    pub fn scatter(&mut self, graph: &mut Graph, i: usize, gradient: Value) -> Result<Option<Value>, GraphError> {
        let Some(shards) = &self.trained[i].shards else { return Ok(None) };
        let sum = graph.value(ReduceScatter(shards.clone()), &[gradient])?;
        self.started.push_back((i, sum));
        while self.started.iter().map(|(_, value)| graph.ty(*value).bytes()).sum::<usize>() > IN_FLIGHT {
            self.take_oldest(graph)?;
        }
        Ok(Some(sum))
    }

    fn take_oldest(&mut self, graph: &mut Graph) -> Result<(), GraphError> {
        if let Some((i, sum)) = self.started.pop_front()
            && let Some(shards) = &self.trained[i].shards
        {
            self.slices[i] = Some(slice(graph, sum, shards)?);
        }
        Ok(())
    }

    /// The gradients of all parameters, in the shapes in which these are updated.
    pub fn finish(mut self, graph: &mut Graph, gradients: &[Value]) -> Result<Vec<Value>, GraphError> {
        while !self.started.is_empty() {
            self.take_oldest(graph)?;
        }
        let all = self.trained.iter().zip(gradients).zip(self.slices);
        all.map(|((trained, &gradient), taken)| match (&trained.shards, taken) {
            (_, Some(taken)) => Ok(taken),
            // A gradient that is zero was not exchanged.
            (Some(shards), None) => slice(graph, gradient, shards),
            (None, None) => Ok(gradient),
        })
        .collect()
    }
}

/// The global norm of gradients, some of which are slices.
pub(super) fn norm(graph: &mut Graph, trained: &[TrainedParameter], gradients: &[Value]) -> Result<Value, GraphError> {
    let mut sums = Vec::new();
    for (trained, &gradient) in trained.iter().zip(gradients) {
        let own = graph.value(SquareSums, &[gradient])?;
        sums.push(match &trained.shards {
            None => own,
            Some(Shards { rank, lengths }) => {
                let lengths = lengths.iter().map(|&length| SquareSums::count(length)).collect();
                let shape = Shape::from([SquareSums::count(trained.parameter.shape.elements())]);
                graph.value(AllGather { shape, shards: Shards { rank: *rank, lengths } }, &[own])?
            }
        });
    }
    graph.value(NormOfSums, &sums)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_whole_units_of_the_norm() {
        let sharding = |rank| Sharding { parameters: false, rank, processes: 4 };
        let shards = sharding(1).slices(9 * UNIT + 5).unwrap();
        assert_eq!(shards.lengths, [2 * UNIT, 3 * UNIT, 2 * UNIT, 2 * UNIT + 5]);
        assert_eq!(shards.own(), 2 * UNIT..5 * UNIT);
        assert_eq!(sharding(0).slices(3 * UNIT), None);
        assert_eq!(sharding(3).slices(3 * UNIT + 1).unwrap().own(), 3 * UNIT..3 * UNIT + 1);
    }
}
