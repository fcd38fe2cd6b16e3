//! One training step as one graph.

pub(crate) mod average;
pub(crate) mod finite;
pub(crate) mod groups;
pub(crate) mod objective;
pub(crate) mod optimiser;
pub(crate) mod pairs;
mod part_sums;
mod passes;
pub(crate) mod schedule;
pub(crate) mod sharding;

use std::borrow::Cow;
use std::collections::BTreeMap;

use vit_data::loader::BatchParts;
use vit_graph::device::Parameters;
use vit_graph::ops::{AllReduce, Binary, Concat, GlobalNorm, GuardedUpdate, Input, Parameter, Scale};
use vit_graph::rewrite::{
    checkpoint_activations, eliminate_dead_code, eliminate_dead_tokens, eliminate_identities, fold_layer_scale,
    gather_by_block, patchify,
};
use vit_graph::{Graph, GraphError, Phase, Shape, Type, Value};
use vit_models::clip::{Clip, LOGIT_SCALE};
use vit_models::vit::{Masks, Vit};
use vit_models::{Architecture, Mode};

use groups::Freeze;
use objective::Objective;
use objective::pretraining::self_distillation::{CENTRE, LAST_LAYER, SelfDistillationPasses, add_state};
use objective::pretraining::{Colours, MaskedPrediction, MultiCrop};
use optimiser::{Optimiser, OptimiserMethod, UpdateInputs};
use pairs::{EMBEDDINGS, PairInputs, loss_parameters};
use passes::{BatchSums, PassObjective, Passes};
use sharding::{ShardedTensor, Sharding, TrainedParameter};

/// How a model is trained in one step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepOptions {
    /// The objective that is minimised.
    pub objective: Objective,
    /// How images were normalised; predictions of colours depend on it.
    pub colours: Colours,
    /// The crops of self-distillation.
    pub crops: Option<MultiCrop>,
    /// The optimiser.
    pub optimiser: Optimiser,
    /// The parts of the batch, whose sums are added in a fixed tree, and those of them that this step computes.
    pub parts: BatchParts,
    /// Whether the sums of other processes are added, which compute the other parts.
    pub exchange: bool,
    /// Micro-batches of a part, whose gradients are accumulated; 0 and 1 both mean the whole part at once.
    pub accumulate: usize,
    /// Batch norms normalise all parts of a batch together, and not each part by itself.
    pub sync_batch_norm: bool,
    /// The state of which this process has a part only, since others have the rest; with an exchange.
    pub sharding: Option<Sharding>,
    /// The weight decay is an input of every step, and that of the optimiser unused.
    pub scheduled_decay: bool,
    /// Keep a moving average of every trained parameter.
    pub average: bool,
    /// Parameters that are not trained.
    pub freeze: Freeze,
    /// Recompute activations of the model's blocks in the backward pass: less memory, more arithmetic, the same bits.
    pub recompute: bool,
}

impl From<Optimiser> for StepOptions {
    fn from(optimiser: Optimiser) -> Self {
        StepOptions { optimiser, ..StepOptions::default() }
    }
}

/// Why a step cannot be built.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The model cannot be built or differentiated.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A batch that cannot be split.
    #[error(
        "a batch of {batch} cannot be split into {parts} micro-batches of one size; choose a batch that is a multiple of {parts}"
    )]
    Uneven {
        /// Images in a batch.
        batch: usize,
        /// Micro-batches.
        parts: usize,
    },
    /// Pairs are contrasted over the whole batch.
    #[error(
        "pairs of image and text are contrasted over the whole batch, which cannot be cut into micro-batches; set accumulate \
         to 1, and save memory with --recompute"
    )]
    AccumulatedPairs,
    /// A process without a part of the batch.
    #[error("this process has no part of the batch; start fewer processes")]
    NoPart,
    /// An optimiser that needs whole parameters.
    #[error(
        "lamb scales updates by the norms of whole parameters, which processes do not have if they divide its state"
    )]
    ShardedLamb,
    /// The teacher of self-distillation is an average of whole parameters.
    #[error("the teacher of self-distillation needs whole averages of parameters, so processes cannot divide them")]
    ShardedTeacher,
    /// No parameter is trained.
    #[error("every parameter is frozen, so there is nothing to train; leave out the head at least: [\"backbone\"]")]
    Frozen,
}

/// A training step.
///
/// Inputs: `image`, `targets [batch, classes]` unless it is pre-training without labels, `rate`, `step` (from 1 on); with
/// anything random `seed`, with a teacher `teacher [batch, classes]`, with averages `average_decay`, with a
/// schedule for it `weight_decay`, with self-distillation `teacher_sharpness` and `last_layer`, the factor of the prototypes'
/// gradient. Outputs: `loss`, the gradients' `grad_norm` before clipping, and with targets `logits`. A run updates every trained parameter `NAME`, the
/// optimiser's state (such as `NAME.adam_mean`), its `NAME.average` and the running statistics of batch norms; if `loss` or
/// `grad_norm` is not finite, it updates nothing.
///
/// The step of an image-text model has no targets. Of each of this process's parts it has the inputs `ids.PART` and, if the
/// model has it, `ends.PART`, of all of them `captions [batch, 24]`; PART counts from 0.
///
/// With [`StepOptions::sharding`], state and parameters may be slices ([`TrainingStep::shards`]), and so are gradients.
///
/// With an exchange, `image`, `targets`, `teacher` and `logits` are those of this process, and everything else is the same
/// in all processes; the output `stop` is the sum of the processes' inputs of that name.
pub struct TrainingStep {
    /// The graph.
    pub graph: Graph,
    /// The names of the trained parameters with their gradients.
    pub gradients: Vec<(String, Value)>,
    /// The names of the optimiser's state and of the averages, all of which start at zero.
    pub state: Vec<String>,
    /// The parameters and the state of which this process has a slice, by name.
    pub shards: BTreeMap<String, ShardedTensor>,
}

impl TrainingStep {
    /// Builds the step of a classifier, or of pre-training if the model has layers for that.
    pub fn new(architecture: &Architecture, batch: usize, options: impl Into<StepOptions>) -> Result<Self, StepError> {
        let options = options.into();
        let micro_batches = options.parts.count * options.accumulate.max(1);
        if !batch.is_multiple_of(micro_batches) {
            return Err(StepError::Uneven { batch, parts: micro_batches });
        }
        let images = batch / micro_batches;
        let clip = architecture.downcast_ref::<Clip>();
        if clip.is_some() && options.accumulate > 1 {
            return Err(StepError::AccumulatedPairs);
        }
        let vit = architecture.downcast_ref::<Vit>().filter(|vit| vit.pretraining.is_some());
        let distillation = match (vit, options.crops) {
            (Some(vit), Some(crops)) => Some((vit, SelfDistillationPasses::new(vit, crops, images)?)),
            _ => None,
        };
        let forward = match &distillation {
            Some((_, passes)) => passes.student().clone(),
            None => forward(architecture, images)?,
        };
        let mut graph = Graph::new();
        let elements = distillation.as_ref().map(|(vit, passes)| passes.elements(vit));
        let inputs = Inputs::add(&mut graph, &forward, &options, options.parts.places(batch).len(), elements)?;
        let of_loss = clip.map_or(Ok(Vec::new()), loss_parameters)?;
        let parameters: Vec<Parameter> = forward.parameters().map(|(_, p)| p.clone()).chain(of_loss).collect();
        let names: Vec<&str> = parameters.iter().map(|p| p.name.as_str()).collect();
        let frozen = options.freeze.includes(architecture.heads(), &names);
        let mut trained = Vec::new();
        for (parameter, frozen) in parameters.iter().zip(frozen) {
            if parameter.trainable && !frozen {
                let max = clip.filter(|_| parameter.name == LOGIT_SCALE).and_then(Clip::max_logit_scale);
                let added = TrainedParameter::add(&mut graph, parameter, options.sharding.as_ref())?;
                trained.push(TrainedParameter { max, ..added });
            } else {
                graph.value(parameter.clone(), &[])?;
            }
        }
        if trained.is_empty() {
            return Err(StepError::Frozen);
        }
        if options.sharding.is_some() && matches!(options.optimiser.method, OptimiserMethod::Lamb { .. }) {
            return Err(StepError::ShardedLamb);
        }

        if options.sharding.is_some() && distillation.is_some() {
            return Err(StepError::ShardedTeacher);
        }
        let wrt: Vec<Value> = trained.iter().map(|trained| trained.whole).collect();
        let objective = match (distillation, vit) {
            (Some((_, passes)), _) => {
                let averages = add_state(&mut graph, &trained, forward.shape(forward.output("projection")?).last())?;
                let sharpness = scalar(&mut graph, "teacher_sharpness")?;
                PassObjective::SelfDistillation { passes: Box::new(passes), averages, sharpness }
            }
            (None, Some(vit)) => PassObjective::Masked(vit),
            (None, None) => clip.map_or(PassObjective::Labels, PassObjective::Pairs),
        };
        let passes =
            Passes { forward: &forward, objective, inputs: &inputs, options: &options, trained: &trained, wrt: &wrt };
        let mut logits = Vec::new();
        let BatchSums { loss, gradients: mut found, statistics } = passes.build(&mut graph, &mut logits)?;
        if let PassObjective::SelfDistillation { .. } = passes.objective
            && let Some(last) = trained.iter().position(|trained| trained.parameter.name == LAST_LAYER)
        {
            // Prototypes are normalised, so weight decay alone does not change them.
            let factor = scalar(&mut graph, "last_layer")?;
            found[last] = graph.value(Binary::Mul, &[found[last], factor])?;
        }
        if let Some(stop) = inputs.stop {
            let stop = graph.value(AllReduce, &[stop])?;
            graph.set_output("stop", stop)?;
        }
        graph.set_output("loss", loss)?;
        let norm = match options.sharding {
            Some(_) => sharding::norm(&mut graph, &trained, &found)?,
            None => graph.value(GlobalNorm, &found)?,
        };
        graph.set_output("grad_norm", norm)?;
        // A loss can overflow where its gradients do not. Adding 0 * loss leaves a finite norm unchanged to the bit.
        let nothing = graph.value(Scale(0.0), &[loss])?;
        let guard = graph.value(Binary::Add, &[norm, nothing])?;
        if !logits.is_empty() {
            let logits = if let [only] = logits[..] { only } else { graph.value(Concat { axis: 0 }, &logits)? };
            graph.set_output("logits", logits)?;
        }

        graph.set_phase(Phase::Update);
        for (name, new) in statistics {
            // Computed in the forward pass, before the norm of the gradients that guards all updates.
            let old = graph.parameter(&name)?;
            let guarded = graph.value(GuardedUpdate, &[old, new, guard])?;
            graph.update(old, guarded)?;
        }
        let Inputs { rate, step, average_decay, weight_decay, .. } = inputs;
        let update = UpdateInputs { rate, step, norm: guard, average_decay, weight_decay };
        let mut state = options.optimiser.build(&mut graph, &trained, &found, &names, &update)?;
        state.extend(graph.parameter(CENTRE).ok().map(|_| CENTRE.to_string()));
        let shards = shards(&trained, &state);
        let gradients = trained.into_iter().map(|trained| trained.parameter.name).zip(found).collect();
        let step = TrainingStep { graph, gradients, state, shards };
        let step = if options.sync_batch_norm { step.rewritten(eliminate_identities)? } else { step };
        let step = if options.recompute { step.rewritten(checkpoint_activations)? } else { step };
        let gathers = options.sharding.is_some_and(|sharding| sharding.parameters);
        if gathers { Ok(step.rewritten(gather_by_block)?) } else { Ok(step) }
    }
}

/// The tensors of a step that are slices, with what they are slices of.
fn shards(trained: &[TrainedParameter], state: &[String]) -> BTreeMap<String, ShardedTensor> {
    let mut found = BTreeMap::new();
    for TrainedParameter { parameter, stored, whole, shards, .. } in trained {
        let Some(shards) = shards else { continue };
        let sharded = ShardedTensor { shape: parameter.shape.clone(), shards: shards.clone() };
        let of_parameter = |name: &&String| name.rsplit_once('.').is_some_and(|(of, _)| of == parameter.name);
        found.extend(state.iter().filter(of_parameter).map(|name| (name.clone(), sharded.clone())));
        if stored != whole {
            found.insert(parameter.name.clone(), sharded);
        }
    }
    found
}

impl TrainingStep {
    /// The step after a rewrite of its graph.
    fn rewritten(mut self, rewrite: fn(&Graph) -> Result<Graph, GraphError>) -> Result<Self, GraphError> {
        // As outputs, gradients can be found again after the rewrite.
        let output = |name: &str| format!("gradient of {name}");
        for (name, value) in &self.gradients {
            self.graph.set_output(&output(name), *value)?;
        }
        let mut graph = rewrite(&self.graph)?;
        for (name, value) in &mut self.gradients {
            *value = graph.output(&output(name))?;
        }
        graph.retain_outputs(|name| !name.starts_with(&output("")));
        Ok(TrainingStep { graph, ..self })
    }
}

/// The model's forward pass on a micro-batch, reduced to what the logits depend on: in the last block of a Vision
/// Transformer, to the tokens that the head reads.
fn forward(architecture: &Architecture, batch: usize) -> Result<Graph, GraphError> {
    let mut graph;
    if architecture.pretraining().is_some() {
        graph = architecture.build_pretraining(batch, Masks::Random)?;
        graph.retain_outputs(|name| MaskedPrediction::OUTPUTS.contains(&name));
    } else {
        graph = architecture.build(batch, Mode::Training)?;
        match architecture.downcast_ref::<Clip>() {
            Some(_) => graph.retain_outputs(|name| EMBEDDINGS.contains(&name)),
            None => graph.retain_outputs(|name| name.starts_with("logits")),
        }
    }
    // Rewritten before differentiation, so that gradients are matrix products of the same few rows.
    fold_layer_scale(&eliminate_dead_tokens(&patchify(&eliminate_dead_code(&graph)?)?)?)
}

/// Adds a scalar input.
fn scalar(graph: &mut Graph, name: &str) -> Result<Value, GraphError> {
    graph.value(Input { name: name.into(), ty: Type::f32(Shape::default()) }, &[])
}

/// The inputs of a step.
struct Inputs {
    image: Value,
    targets: Option<Value>,
    teacher: Option<Value>,
    pairs: Option<PairInputs>,
    seed: Option<Value>,
    rate: Value,
    step: Value,
    average_decay: Option<Value>,
    weight_decay: Option<Value>,
    stop: Option<Value>,
}

impl Inputs {
    /// `elements`: those of an image's crops, where these have several sizes.
    fn add(
        graph: &mut Graph,
        forward: &Graph,
        options: &StepOptions,
        batch: usize,
        elements: Option<usize>,
    ) -> Result<Self, GraphError> {
        let pairs = match forward.output(EMBEDDINGS[0]) {
            Ok(_) => Some(PairInputs::add(graph, forward, options.parts.own.len())?),
            Err(_) => None,
        };
        let mut add = |name: &str, ty: Type| graph.value(Input { name: name.into(), ty }, &[]);
        let ty = |name: &str| forward.inputs().find(|(_, i)| i.name == name).map(|(_, i)| i.ty.clone());
        let whole = |shape: &Shape| Type::f32(shape.with(0, batch));
        let classes = forward.output("logits").ok().map(|logits| whole(forward.shape(logits)));
        let image = ty("image").or(classes.clone()).map_or(Type::f32(Shape::default()), |ty| whole(&ty.shape));
        let image = elements.map_or(image, |elements| Type::f32([batch, elements]));
        let number = Type::f32(Shape::default());
        let teacher = classes.clone().filter(|_| options.objective.distillation.is_some());
        Ok(Inputs {
            pairs,
            image: add("image", image)?,
            targets: classes.map(|classes| add("targets", classes)).transpose()?,
            teacher: teacher.map(|classes| add("teacher", classes)).transpose()?,
            seed: ty("seed").map(|ty| add("seed", ty)).transpose()?,
            rate: add("rate", number.clone())?,
            step: add("step", number.clone())?,
            average_decay: options.average.then(|| add("average_decay", number.clone())).transpose()?,
            weight_decay: options.scheduled_decay.then(|| add("weight_decay", number.clone())).transpose()?,
            stop: options.exchange.then(|| add("stop", number)).transpose()?,
        })
    }
}

/// The parameters of a step before its first run: the model's, and the optimiser's state at zero.
pub struct StepParameters<'a> {
    /// The model's parameters.
    pub model: &'a mut dyn Parameters,
    /// The names in [`TrainingStep::state`].
    pub state: &'a [String],
}

impl Parameters for StepParameters<'_> {
    fn take(&mut self, parameter: &Parameter) -> Option<Cow<'_, [f32]>> {
        if self.state.contains(&parameter.name) {
            return Some(Cow::Owned(vec![0.0; parameter.shape.elements()]));
        }
        self.model.take(parameter)
    }
}
