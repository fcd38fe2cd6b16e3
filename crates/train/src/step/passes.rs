//! The forward and backward passes of a step, one pair per micro-batch, and their sums over micro-batches and parts.

use std::collections::HashMap;

use vit_graph::autodiff::{FinishGradient, finish_gradients};
use vit_graph::ops::{AllReduce, Binary, Op, Reshape, Scale, Slice, SyncedParts};
use vit_graph::{Graph, GraphError, Inlined, Inlining, Node, Value};
use vit_models::clip::Clip;
use vit_models::vit::Vit;

use super::objective::Heads;
use super::objective::pretraining::MaskedPrediction;
use super::objective::pretraining::self_distillation::{CENTRE, SelfDistillationPasses, TeacherState};
use super::part_sums::PartTree;
use super::sharding::{GradientSlices, TrainedParameter};
use super::{Inputs, StepError, StepOptions};

/// What the passes of a step are made of.
pub(super) struct Passes<'a> {
    /// The model's forward pass on a micro-batch.
    pub forward: &'a Graph,
    pub objective: PassObjective<'a>,
    pub inputs: &'a Inputs,
    pub options: &'a StepOptions,
    pub trained: &'a [TrainedParameter],
    /// The whole trained parameters.
    pub wrt: &'a [Value],
}

/// Where the loss of a pass comes from.
pub(super) enum PassObjective<'a> {
    /// Labels, perhaps with a teacher's.
    Labels,
    /// The masked patches of the images.
    Masked(&'a Vit),
    /// Which images and texts of the batch are pairs.
    Pairs(&'a Clip),
    /// Other crops of the images.
    SelfDistillation {
        passes: Box<SelfDistillationPasses>,
        /// The moving averages of the parameters by name.
        averages: HashMap<String, Value>,
        /// One over the temperature of the teacher's outputs.
        sharpness: Value,
    },
}

/// Sums over the batch.
pub(super) struct BatchSums {
    pub loss: Value,
    /// In the order of [`Passes::trained`]; of a parameter that is updated in slices, this process's.
    pub gradients: Vec<Value>,
    /// Running statistics of batch norms by name; of parts that are normalised separately, their mean.
    pub statistics: Vec<(String, Value)>,
}

impl Passes<'_> {
    /// Adds all passes to the graph; `logits` takes those of each micro-batch.
    pub fn build(&self, graph: &mut Graph, logits: &mut Vec<Value>) -> Result<BatchSums, StepError> {
        if let PassObjective::Pairs(clip) = self.objective {
            return self.contrasted(graph, clip);
        }
        let is_norm = |node: &Node| matches!(node.op, Op::BatchNorm(_));
        let synced = self.options.sync_batch_norm && self.options.parts.count > 1;
        if synced && self.forward.nodes().iter().any(is_norm) {
            self.all_parts_together(graph, logits)
        } else {
            self.part_after_part(graph, logits)
        }
    }

    /// The passes of one part after those of another, so that all parts share the memory of activations.
    fn part_after_part(&self, graph: &mut Graph, logits: &mut Vec<Value>) -> Result<BatchSums, StepError> {
        let own = self.options.parts.own.clone();
        let mut gradient_trees = vec![PartTree::default(); self.wrt.len()];
        let (mut loss_tree, mut statistics_trees) = (PartTree::default(), Vec::new());
        let mut slices = GradientSlices::new(self.trained);
        let mut sums = Err(StepError::NoPart);
        for part in own.clone() {
            let last = part + 1 == own.end;
            let mut add = |graph: &mut Graph, i: usize, gradient| {
                let sum = gradient_trees[i].add(graph, gradient, last)?;
                if last { self.exchanged_gradient(graph, i, sum, &mut slices) } else { Ok(sum) }
            };
            let BatchSums { loss, gradients, statistics } = self.part(graph, part, logits, &mut add)?;
            let loss = loss_tree.add(graph, loss, last)?;
            statistics_trees.resize_with(statistics.len(), PartTree::default);
            let added = statistics.into_iter().zip(&mut statistics_trees);
            let added = added.map(|((name, value), tree)| Ok((name, tree.add(graph, value, last)?)));
            sums = Ok(BatchSums { loss, gradients, statistics: added.collect::<Result<_, GraphError>>()? });
        }
        let mut sums = sums?;
        sums.gradients = slices.finish(graph, &sums.gradients)?;
        sums.loss = self.exchanged(graph, sums.loss)?;
        for (_, sum) in &mut sums.statistics {
            *sum = self.exchanged(graph, *sum)?;
        }
        if self.options.parts.count > 1 {
            for (_, sum) in &mut sums.statistics {
                *sum = graph.value(Scale(1.0 / self.options.parts.count as f32), &[*sum])?;
            }
        }
        Ok(sums)
    }

    /// The sum over all processes of the sum over this process's parts.
    fn exchanged(&self, graph: &mut Graph, sum: Value) -> Result<Value, GraphError> {
        // The gradient of a parameter that the loss does not depend on: zero in all processes.
        let is_zero = matches!(graph.node(sum.node).op, Op::Constant(_));
        if self.options.exchange && !is_zero { graph.value(AllReduce, &[sum]) } else { Ok(sum) }
    }

    /// The same of a gradient; of one that is updated in slices, only this process's slice is complete.
    pub(super) fn exchanged_gradient(
        &self,
        graph: &mut Graph,
        i: usize,
        sum: Value,
        slices: &mut GradientSlices,
    ) -> Result<Value, GraphError> {
        let is_zero = matches!(graph.node(sum.node).op, Op::Constant(_));
        match if is_zero { None } else { slices.scatter(graph, i, sum)? } {
            Some(scattered) => Ok(scattered),
            None => self.exchanged(graph, sum),
        }
    }

    /// The trained parameters by name.
    pub(super) fn named<'a>(&'a self, values: &'a [Value]) -> Vec<(&'a str, Value)> {
        self.trained.iter().map(|trained| trained.parameter.name.as_str()).zip(values.iter().copied()).collect()
    }

    /// Adds the passes of one part, whose gradients go through `finish` as soon as they are complete.
    fn part(
        &self,
        graph: &mut Graph,
        part: usize,
        logits: &mut Vec<Value>,
        finish: FinishGradient,
    ) -> Result<BatchSums, StepError> {
        let accumulate = self.options.accumulate.max(1);
        let (mut sums, mut statistics): (Option<(Value, Vec<Value>)>, _) = (None, Statistics::default());
        for micro_batch in part * accumulate..(part + 1) * accumulate {
            let (share, outcome) = self.pass(graph, micro_batch, &mut statistics)?;
            logits.extend(outcome);
            let mut keep = |_: &mut Graph, _: usize, gradient| Ok(gradient);
            let finish = if micro_batch + 1 == (part + 1) * accumulate { &mut *finish } else { &mut keep };
            sums = Some(match sums {
                None => (share, finish_gradients(graph, &[share], self.wrt, None, finish)?),
                Some((loss, gradients)) => {
                    let gradients = finish_gradients(graph, &[share], self.wrt, Some(&gradients), finish)?;
                    (graph.value(Binary::Add, &[loss, share])?, gradients)
                }
            });
        }
        let (loss, gradients) = sums.ok_or(StepError::NoPart)?;
        Ok(BatchSums { loss, gradients, statistics: statistics.0 })
    }

    /// Adds the forward pass of a micro-batch: its share of the batch's loss, and its logits if there are labels.
    fn pass(
        &self,
        graph: &mut Graph,
        micro_batch: usize,
        statistics: &mut Statistics,
    ) -> Result<(Value, Option<Value>), GraphError> {
        let MicroBatch { inlining, sources } = self.micro_batch(graph, micro_batch, statistics, self.wrt)?;
        if let PassObjective::SelfDistillation { passes, averages, sharpness } = &self.objective {
            let centre = statistics.0.first().map(|(_, centre)| *centre);
            let centre = centre.map_or_else(|| graph.parameter(CENTRE), Ok)?;
            let streams = micro_batch as u32 * passes.random_streams();
            let state = TeacherState { averages, sharpness: *sharpness, centre };
            let (loss, centre) = passes.loss(graph, sources.image, self.inputs.seed, streams, state)?;
            statistics.0 = vec![(CENTRE.to_string(), centre)];
            return Ok((self.share(graph, loss)?, None));
        }
        let inlined = graph.inline(self.forward, &inlining)?;
        *statistics = Statistics::after(self.forward, &inlined);
        self.share_of_loss(graph, &inlined, sources)
    }

    /// The passes of all parts side by side, since every batch norm waits for the statistics of all of them: the activations
    /// of all parts of this process are in memory at once.
    fn all_parts_together(&self, graph: &mut Graph, logits: &mut Vec<Value>) -> Result<BatchSums, StepError> {
        let (own, accumulate) = (self.options.parts.own.clone(), self.options.accumulate.max(1));
        if own.is_empty() {
            return Err(StepError::NoPart);
        }
        let (parts, trained) = (own.len(), self.wrt.len());
        let synced = SyncedParts { parts: self.options.parts.count, own: parts, exchange: self.options.exchange };
        // Every part has its own view of the parameters, by which its gradients are distinguished.
        let mut views = Vec::with_capacity(parts * trained);
        for &parameter in std::iter::repeat_n(self.wrt, parts).flatten() {
            let shape = graph.shape(parameter).clone();
            views.push(graph.value(Reshape(shape), &[parameter])?);
        }

        let mut outcomes = vec![Vec::new(); parts];
        let (mut losses, mut sums): (Vec<Value>, Option<Vec<Value>>) = (Vec::new(), None);
        let mut totals: Vec<Option<Value>> = vec![None; trained];
        let mut slices = GradientSlices::new(self.trained);
        let mut statistics = Statistics::default();
        for pass in 0..accumulate {
            let mut micro_batches = Vec::new();
            for (part, views) in own.clone().zip(views.chunks(trained)) {
                micro_batches.push(self.micro_batch(graph, part * accumulate + pass, &statistics, views)?);
            }
            let (inlinings, sources): (Vec<_>, Vec<_>) =
                micro_batches.into_iter().map(|m| (m.inlining, m.sources)).unzip();
            let inlined = graph.inline_synced(self.forward, &inlinings, synced)?;
            drop(inlinings);
            statistics = Statistics::after(self.forward, &inlined[0]);
            let mut shares = Vec::new();
            for (part, (inlined, sources)) in inlined.iter().zip(sources).enumerate() {
                let (share, outcome) = self.share_of_loss(graph, inlined, sources)?;
                outcomes[part].extend(outcome);
                shares.push(share);
            }
            let mut complete: Vec<Option<Value>> = vec![None; views.len()];
            let mut finish = |graph: &mut Graph, i: usize, gradient: Value| {
                complete[i] = Some(gradient);
                let parameter = i % trained;
                let of_parts: Option<Vec<Value>> = complete.iter().skip(parameter).step_by(trained).copied().collect();
                if let Some(of_parts) = of_parts.filter(|_| pass + 1 == accumulate) {
                    let sum = sum(graph, &of_parts)?;
                    totals[parameter] = Some(self.exchanged_gradient(graph, parameter, sum, &mut slices)?);
                }
                Ok(gradient)
            };
            sums = Some(finish_gradients(graph, &shares, &views, sums.as_deref(), &mut finish)?);
            losses = match pass {
                0 => shares,
                _ => {
                    let pairs = losses.into_iter().zip(shares);
                    pairs.map(|(loss, share)| graph.value(Binary::Add, &[loss, share])).collect::<Result<_, _>>()?
                }
            };
        }
        logits.extend(outcomes.into_iter().flatten());
        let gradients: Vec<Value> = totals.into_iter().flatten().collect();
        let gradients = slices.finish(graph, &gradients)?;
        let loss = sum(graph, &losses)?;
        Ok(BatchSums { loss: self.exchanged(graph, loss)?, gradients, statistics: statistics.0 })
    }

    /// The slices of the step's inputs that a micro-batch consists of, and the trained parameters that it reads.
    pub(super) fn micro_batch<'a>(
        &'a self,
        graph: &mut Graph,
        micro_batch: usize,
        statistics: &'a Statistics,
        parameters: &'a [Value],
    ) -> Result<MicroBatch<'a>, GraphError> {
        let Passes { forward, inputs, options, .. } = self;
        let accumulate = options.accumulate.max(1);
        let (first, all) = (options.parts.own.start * accumulate, options.parts.count * accumulate);
        let length = graph.shape(inputs.image)[0] / (options.parts.own.len() * accumulate).max(1);
        // Also if this process has one micro-batch of several, so that its passes are those of the others.
        let mut own = |whole: Value| {
            let slice = Slice { axis: 0, start: (micro_batch - first) * length, length };
            if all == 1 { Ok(whole) } else { graph.value(slice, &[whole]) }
        };
        let (image, targets) = (own(inputs.image)?, inputs.targets.map(&mut own).transpose()?);
        let teacher = inputs.teacher.map(own).transpose()?;
        let known = statistics.0.iter().map(|(name, value)| (name.as_str(), *value));
        let given = [("image", image)].into_iter().chain(inputs.seed.map(|seed| ("seed", seed))).chain(known);
        let texts = inputs.pairs.iter().flat_map(|pairs| pairs.of_part(micro_batch - first));
        let given = given.chain(self.named(parameters)).chain(texts).collect();
        let inlining = Inlining { given, streams: micro_batch as u32 * forward.random_streams() };
        Ok(MicroBatch { inlining, sources: LossSources { image, targets, teacher } })
    }

    /// The share of the batch's loss that an inlined forward pass has, and its logits if there are labels.
    fn share_of_loss(
        &self,
        graph: &mut Graph,
        inlined: &Inlined,
        sources: LossSources,
    ) -> Result<(Value, Option<Value>), GraphError> {
        let Passes { forward, options, .. } = self;
        let LossSources { image, targets, teacher } = sources;
        let output = |name: &str| Ok::<_, GraphError>(inlined.value(forward.output(name)?));
        if let PassObjective::Masked(vit) = &self.objective {
            let [prediction, order] = MaskedPrediction::OUTPUTS.map(output);
            let found = MaskedPrediction { image, prediction: prediction?, order: order? };
            let loss = found.loss(graph, vit, &options.colours)?;
            return Ok((self.share(graph, loss)?, None));
        }
        let logits = output("logits")?;
        let heads = options.objective.heads(forward)?;
        let heads = Heads { labels: inlined.value(heads.labels), teacher: inlined.value(heads.teacher) };
        // Where there are logits, there are targets.
        let loss = options.objective.build(graph, heads, targets.unwrap_or(logits), teacher)?;
        Ok((self.share(graph, loss)?, Some(logits)))
    }

    /// The loss of a micro-batch is a mean, so the mean over the batch is the sum of such shares.
    fn share(&self, graph: &mut Graph, loss: Value) -> Result<Value, GraphError> {
        let all = self.options.parts.count * self.options.accumulate.max(1);
        if all == 1 { Ok(loss) } else { graph.value(Scale(1.0 / all as f32), &[loss]) }
    }
}

/// The sum of the values of this process's parts.
fn sum(graph: &mut Graph, of_parts: &[Value]) -> Result<Value, GraphError> {
    let (mut tree, mut sum) = (PartTree::default(), of_parts[0]);
    for (part, value) in of_parts.iter().enumerate() {
        sum = tree.add(graph, *value, part + 1 == of_parts.len())?;
    }
    Ok(sum)
}

/// The operands of a forward pass and its loss.
pub(super) struct MicroBatch<'a> {
    pub inlining: Inlining<'a>,
    sources: LossSources,
}

/// The operands of the loss other than the model's outputs.
#[derive(Clone, Copy)]
struct LossSources {
    image: Value,
    targets: Option<Value>,
    teacher: Option<Value>,
}

/// The running statistics of batch norms, carried from one micro-batch of a part to the next.
#[derive(Default)]
pub(super) struct Statistics(Vec<(String, Value)>);

impl Statistics {
    /// Those after an inlined forward pass.
    fn after(forward: &Graph, inlined: &Inlined) -> Statistics {
        let name = |value: Value| match &forward.node(value.node).op {
            Op::Parameter(parameter) => Some(parameter.name.clone()),
            _ => None,
        };
        let updates = forward.updates().iter();
        Statistics(updates.filter_map(|(old, new)| Some((name(*old)?, inlined.value(*new)))).collect())
    }
}
