//! The forward and backward passes of a step, one pair per micro-batch, and their sums over micro-batches and parts.

use vit_graph::autodiff::{Finish, finish_gradients};
use vit_graph::ops::{Binary, Op, Scale, Slice};
use vit_graph::{Graph, GraphError, Inlined, Value};

use super::objective::Heads;
use super::part_sums::{Completion, PartTree};
use super::{Inputs, StepError, StepOptions};

/// What the passes of a step are made of.
pub(super) struct Passes<'a> {
    /// The model's forward pass on a micro-batch.
    pub forward: &'a Graph,
    pub inputs: &'a Inputs,
    pub options: &'a StepOptions,
    /// The trained parameters.
    pub wrt: &'a [Value],
}

/// Sums over the batch.
pub(super) struct BatchSums {
    pub loss: Value,
    /// In the order of [`Passes::wrt`].
    pub gradients: Vec<Value>,
    /// Running statistics of batch norms by name, added over parts.
    pub statistics: Vec<(String, Value)>,
}

impl Passes<'_> {
    /// Adds all passes to the graph; `logits` takes those of each micro-batch.
    pub fn build(&self, graph: &mut Graph, logits: &mut Vec<Value>) -> Result<BatchSums, StepError> {
        let own = self.options.parts.own.clone();
        let mut gradient_trees = vec![PartTree::default(); self.wrt.len()];
        let (mut loss_tree, mut statistics_trees) = (PartTree::default(), Vec::new());
        let mut sums = Err(StepError::NoPart);
        for part in own.clone() {
            let completion = match (part + 1 == own.end, self.options.exchange) {
                (false, _) => Completion::Open,
                (true, false) => Completion::Local,
                (true, true) => Completion::Exchanged,
            };
            let mut add = |graph: &mut Graph, i: usize, gradient| gradient_trees[i].add(graph, gradient, completion);
            let BatchSums { loss, gradients, statistics } = self.part(graph, part, logits, &mut add)?;
            let loss = loss_tree.add(graph, loss, completion)?;
            statistics_trees.resize_with(statistics.len(), PartTree::default);
            let added = statistics.into_iter().zip(&mut statistics_trees);
            let added = added.map(|((name, value), tree)| Ok((name, tree.add(graph, value, completion)?)));
            sums = Ok(BatchSums { loss, gradients, statistics: added.collect::<Result<_, GraphError>>()? });
        }
        sums
    }

    /// Adds the passes of one part, whose gradients go through `finish` as soon as they are complete.
    fn part(
        &self,
        graph: &mut Graph,
        part: usize,
        logits: &mut Vec<Value>,
        finish: Finish,
    ) -> Result<BatchSums, StepError> {
        let accumulate = self.options.accumulate.max(1);
        let (mut sums, mut statistics): (Option<(Value, Vec<Value>)>, _) = (None, Statistics::default());
        for micro_batch in part * accumulate..(part + 1) * accumulate {
            let (share, outcome) = self.forward(graph, micro_batch, &mut statistics)?;
            logits.push(outcome);
            let mut keep = |_: &mut Graph, _: usize, gradient| Ok(gradient);
            let finish = if micro_batch + 1 == (part + 1) * accumulate { &mut *finish } else { &mut keep };
            sums = Some(match sums {
                None => (share, finish_gradients(graph, share, self.wrt, None, finish)?),
                Some((loss, gradients)) => {
                    let gradients = finish_gradients(graph, share, self.wrt, Some(&gradients), finish)?;
                    (graph.value(Binary::Add, &[loss, share])?, gradients)
                }
            });
        }
        let (loss, gradients) = sums.ok_or(StepError::NoPart)?;
        Ok(BatchSums { loss, gradients, statistics: statistics.0 })
    }

    /// Adds the forward pass of a micro-batch: its share of the batch's loss, and its logits.
    fn forward(
        &self,
        graph: &mut Graph,
        micro_batch: usize,
        statistics: &mut Statistics,
    ) -> Result<(Value, Value), GraphError> {
        let Passes { forward, inputs, options, .. } = self;
        let accumulate = options.accumulate.max(1);
        let (first, all) = (options.parts.own.start * accumulate, options.parts.count * accumulate);
        let length = forward.shape(forward.output("logits")?)[0];
        // Also if this process has one micro-batch of several, so that its passes are those of the others.
        let mut own = |whole: Value| {
            let slice = Slice { axis: 0, start: (micro_batch - first) * length, length };
            if all == 1 { Ok(whole) } else { graph.value(slice, &[whole]) }
        };
        let (image, targets) = (own(inputs.image)?, own(inputs.targets)?);
        let teacher = inputs.teacher.map(own).transpose()?;
        let known = statistics.0.iter().map(|(name, value)| (name.as_str(), *value));
        let given: Vec<(&str, Value)> =
            [("image", image)].into_iter().chain(inputs.seed.map(|seed| ("seed", seed))).chain(known).collect();
        let inlined = graph.inline(forward, &given, micro_batch as u32 * forward.random_streams())?;
        statistics.follow(forward, &inlined);
        let heads = options.objective.heads(forward)?;
        let heads = Heads { labels: inlined.value(heads.labels), teacher: inlined.value(heads.teacher) };
        let loss = options.objective.build(graph, heads, targets, teacher)?;
        // The loss of a micro-batch is a mean, so the mean over the batch is the sum of such shares.
        let share = Scale(1.0 / all as f32);
        let share = if all == 1 { loss } else { graph.value(share, &[loss])? };
        Ok((share, inlined.value(forward.output("logits")?)))
    }
}

/// The running statistics of batch norms, carried from one micro-batch of a part to the next.
#[derive(Default)]
struct Statistics(Vec<(String, Value)>);

impl Statistics {
    fn follow(&mut self, forward: &Graph, inlined: &Inlined) {
        let name = |value: Value| match &forward.node(value.node).op {
            Op::Parameter(parameter) => Some(parameter.name.clone()),
            _ => None,
        };
        let updates = forward.updates().iter();
        self.0 = updates.filter_map(|(old, new)| Some((name(*old)?, inlined.value(*new)))).collect();
    }
}
