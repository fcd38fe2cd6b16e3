//! Self-distillation with no labels, DINO (Caron et al., 2021): the student should give every crop of an image the output that
//! the teacher, its moving average, gives another large crop. Centring and sharpening keep the outputs from collapsing.

use std::collections::HashMap;

use vit_graph::ops::{
    Binary, Broadcast, Concat, Constant, CrossEntropy, MatMul, Parameter, Reduce, Reshape, Scale, Slice, Softmax,
};
use vit_graph::rewrite::{eliminate_dead_code, eliminate_dead_tokens, patchify};
use vit_graph::{Graph, GraphError, Init, Inlining, Value};
use vit_models::Architecture;
use vit_models::vit::{Masks, Vit};
use vit_models::weights::Tensor;
use vit_models::weights::positions::{Resampling, resample};

use crate::step::sharding::TrainedParameter;

/// The large crops of an image, which teacher and student see.
const GLOBAL: usize = 2;

/// The share of the old centre in the new one.
const CENTRE_MOMENTUM: f32 = 0.9;

/// The parameter that is subtracted from the teacher's outputs: their moving average.
pub(in crate::step) const CENTRE: &str = "dino_head.centre";

/// The prototypes.
pub(in crate::step) const LAST_LAYER: &str = "dino_head.last_layer.weight";

/// The crops of an image, and how outputs are sharpened.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MultiCrop {
    /// Small crops.
    pub local_crops: usize,
    /// Height and width of a small crop.
    pub local_size: [usize; 2],
    /// The temperature of the student's outputs.
    pub student_temperature: f32,
}

/// What changes from step to step besides the learning rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DistillationSchedule {
    /// The temperature of the teacher's outputs in the first step.
    pub first_temperature: f64,
    /// The temperature after the warm-up.
    pub temperature: f64,
    /// Steps in which it changes linearly from the first one.
    pub warmup: u64,
    /// First steps, in which prototypes do not change.
    pub frozen: u64,
}

impl DistillationSchedule {
    /// The input `teacher_sharpness` of a step, counted from 1: one over the temperature.
    pub fn sharpness(&self, step: u64) -> f32 {
        let progress = (step.saturating_sub(1) as f64 / self.warmup.max(1) as f64).min(1.0);
        let progress = if self.warmup == 0 { 1.0 } else { progress };
        (1.0 / (self.first_temperature + (self.temperature - self.first_temperature) * progress)) as f32
    }

    /// The input `last_layer` of a step, the factor of the prototypes' gradient.
    pub fn last_layer(&self, step: u64) -> f32 {
        if step <= self.frozen { 0.0 } else { 1.0 }
    }
}

/// The values of a step that its passes read besides the images.
#[derive(Debug, Clone, Copy)]
pub(in crate::step) struct TeacherState<'a> {
    /// The moving averages of the parameters by name, which are the teacher's parameters.
    pub averages: &'a HashMap<String, Value>,
    /// One over the temperature of the teacher's outputs.
    pub sharpness: Value,
    /// The centre before the micro-batch.
    pub centre: Value,
}

/// The forward passes of a micro-batch of images.
pub(in crate::step) struct SelfDistillationPasses {
    crops: MultiCrop,
    /// The model on large crops, with dropout.
    student: Graph,
    /// The same without.
    teacher: Graph,
    /// The model on small crops.
    local: Option<Graph>,
    /// The matrix that resamples positions to the grid of small crops, and the number of tokens before the patches.
    positions: Option<(Constant, usize)>,
}

impl SelfDistillationPasses {
    /// The passes of this many images.
    pub fn new(vit: &Vit, crops: MultiCrop, images: usize) -> Result<Self, GraphError> {
        let build = |vit: &Vit, batch: usize, masks: Masks| {
            let mut graph = Architecture::from(vit.clone()).build_pretraining(batch, masks)?;
            graph.retain_outputs(|name| name == "projection");
            eliminate_dead_tokens(&patchify(&eliminate_dead_code(&graph)?)?)
        };
        let small = Vit { image_size: crops.local_size, ..vit.clone() };
        let local = (crops.local_crops > 0).then(|| build(&small, crops.local_crops * images, Masks::Random));
        Ok(SelfDistillationPasses {
            crops,
            student: build(vit, GLOBAL * images, Masks::Random)?,
            teacher: build(vit, GLOBAL * images, Masks::Given)?,
            local: local.transpose()?,
            positions: resampling(vit, &small)?,
        })
    }

    /// The graph whose parameters are trained.
    pub fn student(&self) -> &Graph {
        &self.student
    }

    /// The elements of an image's crops.
    pub fn elements(&self, vit: &Vit) -> usize {
        let [large, small] = [vit.image_size, self.crops.local_size].map(|[height, width]| height * width);
        vit.channels * (GLOBAL * large + self.crops.local_crops * small)
    }

    /// Random streams of a micro-batch.
    pub fn random_streams(&self) -> u32 {
        self.student.random_streams() + self.local.as_ref().map_or(0, Graph::random_streams)
    }

    /// Adds the loss of a micro-batch of `views [images, elements]`, and the centre after it, from the centre before.
    pub fn loss(
        &self,
        graph: &mut Graph,
        views: Value,
        seed: Option<Value>,
        streams: u32,
        state: TeacherState,
    ) -> Result<(Value, Value), GraphError> {
        let TeacherState { averages, sharpness, centre } = state;
        let projection = |part: &Graph| part.output("projection");
        let (large, small) = self.crops(graph, views)?;
        let seed = seed.map(|seed| ("seed", seed));

        let given = [("image", large)].into_iter().chain(seed).collect();
        let inlined = graph.inline(&self.student, &Inlining { given, streams })?;
        let student = inlined.value(projection(&self.student)?);

        let weights = averages.iter().map(|(name, value)| (name.as_str(), *value));
        let given = [("image", large)].into_iter().chain(weights).collect();
        let inlined = graph.inline(&self.teacher, &Inlining { given, streams: 0 })?;
        let teacher = inlined.value(projection(&self.teacher)?);
        let old = graph.parameter(CENTRE)?;
        let targets = targets(graph, teacher, old, sharpness)?;

        let others = swapped(graph, targets)?;
        let global = self.cross_entropy(graph, student, others)?;
        let mut loss = graph.value(Scale(self.share(GLOBAL)), &[global])?;
        if let (Some(local), Some(small)) = (&self.local, small) {
            let positions = self.local_positions(graph)?.map(|positions| ("pos_embed", positions));
            let given = [("image", small)].into_iter().chain(seed).chain(positions).collect();
            let streams = streams + self.student.random_streams();
            let inlined = graph.inline(local, &Inlining { given, streams })?;
            let student = inlined.value(projection(local)?);
            let both = self.both(graph, targets)?;
            let local = self.cross_entropy(graph, student, both)?;
            let local = graph.value(Scale(self.share(self.crops.local_crops)), &[local])?;
            loss = graph.value(Binary::Add, &[loss, local])?;
        }
        let mean = graph.value(Reduce::mean([0]), &[teacher])?;
        let kept = graph.value(Scale(CENTRE_MOMENTUM), &[centre])?;
        let added = graph.value(Scale(1.0 - CENTRE_MOMENTUM), &[mean])?;
        Ok((loss, graph.value(Binary::Add, &[kept, added])?))
    }

    /// The share of crops in the loss, which is a mean over pairs of a crop and another large one: a small crop is in two pairs,
    /// whose sum its cross-entropy is.
    fn share(&self, crops: usize) -> f32 {
        crops as f32 / (GLOBAL + GLOBAL * self.crops.local_crops) as f32
    }

    /// The large and the small crops as images.
    fn crops(&self, graph: &mut Graph, views: Value) -> Result<(Value, Option<Value>), GraphError> {
        let cut = |graph: &mut Graph, start: usize, part: &Graph| {
            let image = part.inputs().find(|(_, input)| input.name == "image").map(|(_, input)| input.ty.shape.clone());
            let shape = image.unwrap_or_default();
            let length = shape.elements() / graph.shape(views)[0].max(1);
            let crops = graph.value(Slice { axis: 1, start, length }, &[views])?;
            Ok::<_, GraphError>((graph.value(Reshape(shape), &[crops])?, length))
        };
        let (large, length) = cut(graph, 0, &self.student)?;
        let small = self.local.as_ref().map(|local| cut(graph, length, local)).transpose()?;
        Ok((large, small.map(|(small, _)| small)))
    }

    /// The sum of both large crops' targets for every small crop.
    fn both(&self, graph: &mut Graph, targets: Value) -> Result<Value, GraphError> {
        let [images, _, prototypes] = [0, 1, 2].map(|axis| graph.shape(targets)[axis]);
        let sum = graph.value(Reduce::sum([1]), &[targets])?;
        let sum = graph.value(Reshape([images, 1, prototypes].into()), &[sum])?;
        graph.value(Broadcast([images, self.crops.local_crops, prototypes].into()), &[sum])
    }

    fn cross_entropy(&self, graph: &mut Graph, student: Value, targets: Value) -> Result<Value, GraphError> {
        let logits = graph.value(Scale(1.0 / self.crops.student_temperature), &[student])?;
        let targets = graph.value(Reshape(graph.shape(logits).clone()), &[targets])?;
        graph.value(CrossEntropy, &[logits, targets])
    }

    /// The position embeddings of small crops, resampled from those of large ones.
    fn local_positions(&self, graph: &mut Graph) -> Result<Option<Value>, GraphError> {
        let Some((matrix, prefix)) = &self.positions else { return Ok(None) };
        let table = graph.parameter("pos_embed")?;
        let tokens = graph.shape(table)[1];
        let patches = graph.value(Slice { axis: 1, start: *prefix, length: tokens - prefix }, &[table])?;
        let matrix = graph.value(matrix.clone(), &[])?;
        let patches = graph.value(MatMul::default(), &[matrix, patches])?;
        if *prefix == 0 {
            return Ok(Some(patches));
        }
        let others = graph.value(Slice { axis: 1, start: 0, length: *prefix }, &[table])?;
        graph.value(Concat { axis: 1 }, &[others, patches]).map(Some)
    }
}

/// The teacher's outputs `[images, 2, prototypes]`, centred and sharpened.
fn targets(graph: &mut Graph, teacher: Value, centre: Value, sharpness: Value) -> Result<Value, GraphError> {
    let centred = graph.value(Binary::Sub, &[teacher, centre])?;
    let sharpened = graph.value(Binary::Mul, &[centred, sharpness])?;
    let shares = graph.value(Softmax, &[sharpened])?;
    let [rows, prototypes] = [0, 1].map(|axis| graph.shape(shares)[axis]);
    graph.value(Reshape([rows / GLOBAL, GLOBAL, prototypes].into()), &[shares])
}

/// The targets of each large crop: those of the other one.
fn swapped(graph: &mut Graph, targets: Value) -> Result<Value, GraphError> {
    let [first, second] = [0, 1].map(|start| graph.value(Slice { axis: 1, start, length: 1 }, &[targets]));
    graph.value(Concat { axis: 1 }, &[second?, first?])
}

/// The matrix that resamples a table of positions, and the rows before it; `None` where positions are not learned for each
/// patch.
fn resampling(large: &Vit, small: &Vit) -> Result<Option<(Constant, usize)>, GraphError> {
    use vit_models::PositionLayout::Tokens;
    let model = Architecture::from(large.clone());
    let has_table = model.parameters()?.iter().any(|parameter| parameter.name == "pos_embed");
    let Some(Tokens { prefix, grid }) = model.position_layout("pos_embed").filter(|_| has_table) else {
        return Ok(None);
    };
    let (cells, new) = (grid[0] * grid[1], small.grid());
    let identity = (0..cells * cells).map(|i| if i / cells == i % cells { 1.0 } else { 0.0 }).collect();
    let identity = Tensor { shape: vec![1, cells, cells], data: identity };
    let matrix = resample(&identity, 0, Some(grid), new, Resampling::Bicubic);
    let unsuitable = |error: vit_models::weights::WeightsError| GraphError::Shape {
        op: "positions",
        scope: "pos_embed".into(),
        inputs: format!("{grid:?}"),
        reason: error.to_string(),
    };
    let matrix = matrix.map_err(unsuitable)?;
    Ok(Some((Constant::f32([1, new[0] * new[1], cells], matrix.data), prefix)))
}

/// Adds the moving averages of parameters, which are the teacher's, and the centre.
pub(in crate::step) fn add_state(
    graph: &mut Graph,
    trained: &[TrainedParameter],
    prototypes: usize,
) -> Result<HashMap<String, Value>, GraphError> {
    graph.value(Parameter { trainable: false, ..Parameter::new(CENTRE, [prototypes], Init::Zeros) }, &[])?;
    let average = |TrainedParameter { parameter, .. }: &TrainedParameter| {
        let name = format!("{}.average", parameter.name);
        Ok((parameter.name.clone(), graph.value(Parameter { name, ..parameter.clone() }, &[])?))
    };
    trained.iter().map(average).collect()
}
