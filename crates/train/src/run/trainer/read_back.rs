//! Parameters read back from the step's device, for checkpoints and for the model that is evaluated.

use std::borrow::Cow;

use vit_data::Samples;
use vit_graph::GraphError;
use vit_graph::device::{Device, Parameters};
use vit_graph::ops::Parameter;
use vit_models::weights::{Tensor, Weights};
use vit_models::{Config, TokenizerFiles};

use super::session::Session;
use crate::error::TrainError;
use crate::evaluate::evaluation_batch;
use crate::evaluate::evaluator::Evaluator;
use crate::evaluate::neighbours::Neighbours;
use crate::run::saving::{CheckpointSource, RunPosition, SaveError, Snapshot};
use crate::run::setup::Setup;
use crate::step::sharding::ShardedTensor;

impl Session {
    /// The model compiled for evaluation, if there is something to evaluate it on.
    pub fn evaluator(&self, device: &dyn Device, setup: &Setup) -> Result<Option<Evaluator>, TrainError> {
        let Some(validation) = &setup.validation else { return Ok(None) };
        let batch = evaluation_batch(&setup.recipe).clamp(1, validation.len().max(1));
        if setup.recipe.is_pretraining() {
            let Some(neighbours) = Neighbours::of(&setup.train) else { return Ok(None) };
            let compile = |parameters: &mut dyn Parameters| {
                Evaluator::of_features(device, &setup.config, parameters, batch, neighbours)
            };
            return self.with_evaluated_parameters(compile).map(Some);
        }
        let pairs = setup.evaluated_pairs();
        let compile = |parameters: &mut dyn Parameters| match pairs {
            Some(pairs) => Evaluator::of_pairs(device, &setup.config, parameters, batch, pairs),
            None => Evaluator::new(device, &setup.config, parameters, batch),
        };
        // Rank 0 compiles first, when the others cannot send their slices yet.
        match self.has_all_state() {
            true => self.with_evaluated_parameters(compile).map(Some),
            false => compile(&mut UnsetParameters).map(Some),
        }
    }

    /// Hands the present parameters over to the model that is evaluated.
    pub fn set_parameters_of(&self, evaluator: &mut Evaluator) -> Result<(), TrainError> {
        self.with_evaluated_parameters(|parameters| evaluator.set_parameters(parameters))
    }

    fn with_evaluated_parameters<T>(
        &self,
        take_all: impl FnOnce(&mut dyn Parameters) -> Result<T, TrainError>,
    ) -> Result<T, TrainError> {
        let mut parameters = EvaluatedParameters { session: self, error: None };
        let result = take_all(&mut parameters);
        parameters.error.map_or(result, |error| Err(error.into()))
    }

    /// The checkpoint that a resumed run continues from.
    pub fn checkpoint<'a>(&'a self, setup: &'a Setup) -> RunCheckpoint<'a> {
        RunCheckpoint { session: self, setup }
    }

    /// The same in memory.
    pub fn snapshot(&self, setup: &Setup) -> Result<Snapshot, TrainError> {
        let config = setup.config.clone();
        let (weights, optimiser) = (self.read_all(false)?, self.read_all(true)?);
        let (tokenizer, position) = (setup.tokenizer.clone(), self.position.clone());
        Ok(Snapshot { config, tokenizer, weights, optimiser, position })
    }

    /// Sends this process's slices to the process that writes the checkpoint.
    pub fn contribute_to_checkpoint(&self) -> Result<(), TrainError> {
        if !self.has_all_state() {
            self.read_each(false, |_, _| {})?;
            self.read_each(true, |_, _| {})?;
        }
        Ok(())
    }

    /// The model as it is evaluated, without the optimiser's state.
    pub fn best_snapshot(&self, setup: &Setup) -> Result<Snapshot, TrainError> {
        let mut weights = self.unchanged.clone();
        for (_, parameter) in self.graph.graph.parameters() {
            let name = &parameter.name;
            if !self.unchanged.tensors.contains_key(name) && !self.graph.state.contains(name) {
                weights.tensors.insert(name.clone(), self.read_evaluated(parameter)?);
            }
        }
        let position = self.position.clone();
        let (config, tokenizer) = (setup.config.clone(), setup.tokenizer.clone());
        Ok(Snapshot { config, tokenizer, weights, optimiser: Weights::default(), position })
    }

    /// Whether all parameters and the optimiser's state of all processes are finite.
    pub fn is_finite(&self) -> Result<bool, TrainError> {
        let mut finite = true;
        for (_, parameter) in self.graph.graph.parameters() {
            let frozen = self.unchanged.tensors.contains_key(&parameter.name);
            finite &= frozen || self.read_stored(parameter)?.iter().all(|v| v.is_finite());
        }
        Ok(self.processes.all(finite)?)
    }

    /// The optimiser's state, or the model's weights.
    fn read_all(&self, state: bool) -> Result<Weights, GraphError> {
        let mut all = if state { Weights::default() } else { self.unchanged.clone() };
        self.read_each(state, |name, tensor| {
            all.tensors.insert(name.into(), tensor);
        })?;
        Ok(all)
    }

    fn read_each(&self, state: bool, mut take: impl FnMut(&str, Tensor)) -> Result<(), GraphError> {
        for (_, parameter) in self.graph.graph.parameters() {
            let name = &parameter.name;
            if self.graph.state.contains(name) == state && !self.unchanged.tensors.contains_key(name) {
                take(name, self.read(parameter)?);
            }
        }
        Ok(())
    }

    /// A parameter as it is evaluated: its moving average where there is one.
    fn read_evaluated(&self, parameter: &Parameter) -> Result<Tensor, GraphError> {
        let average = Parameter { name: format!("{}.average", parameter.name), ..parameter.clone() };
        self.read(if self.graph.state.contains(&average.name) { &average } else { parameter })
    }

    /// A parameter of the step or of the model, whole. All processes read the same ones in the same order, since each
    /// may have a slice.
    fn read(&self, parameter: &Parameter) -> Result<Tensor, GraphError> {
        let Some(ShardedTensor { shape, shards }) = self.graph.shards.get(&parameter.name) else {
            return Ok(Tensor { shape: parameter.shape.to_vec(), data: self.read_stored(parameter)? });
        };
        let mut data = vec![0.0; shape.elements()];
        self.executable.read_parameter(&parameter.name, &mut data[shards.own()])?;
        self.processes.all_gather_slices(&mut data, &shards.lengths)?;
        Ok(Tensor { shape: shape.to_vec(), data })
    }

    /// A parameter of the step as it is stored in this process.
    fn read_stored(&self, parameter: &Parameter) -> Result<Vec<f32>, GraphError> {
        let mut data = vec![0.0; parameter.shape.elements()];
        self.executable.read_parameter(&parameter.name, &mut data)?;
        Ok(data)
    }
}

/// The checkpoint of a session, read from the device one file at a time.
pub(super) struct RunCheckpoint<'a> {
    session: &'a Session,
    setup: &'a Setup,
}

impl CheckpointSource for RunCheckpoint<'_> {
    fn config(&self) -> &Config {
        &self.setup.config
    }

    fn tokenizer(&self) -> Option<&TokenizerFiles> {
        self.setup.tokenizer.as_ref()
    }

    fn position(&self) -> &RunPosition {
        &self.session.position
    }

    fn weights(&self) -> Result<Cow<'_, Weights>, SaveError> {
        Ok(Cow::Owned(self.session.read_all(false)?))
    }

    fn optimiser(&self) -> Result<Cow<'_, Weights>, SaveError> {
        Ok(Cow::Owned(self.session.read_all(true)?))
    }
}

/// Zeros, which are replaced before the first evaluation.
struct UnsetParameters;

impl Parameters for UnsetParameters {
    fn take(&mut self, parameter: &Parameter) -> Option<Cow<'_, [f32]>> {
        Some(Cow::Owned(vec![0.0; parameter.shape.elements()]))
    }
}

/// The parameters that are evaluated, read from the device one at a time.
struct EvaluatedParameters<'a> {
    session: &'a Session,
    error: Option<GraphError>,
}

impl Parameters for EvaluatedParameters<'_> {
    fn take(&mut self, parameter: &Parameter) -> Option<Cow<'_, [f32]>> {
        if let Some(tensor) = self.session.unchanged.tensors.get(&parameter.name) {
            return Some(Cow::Borrowed(&tensor.data));
        }
        match self.session.read_evaluated(parameter) {
            Ok(tensor) => Some(Cow::Owned(tensor.data)),
            Err(error) => {
                self.error = Some(error);
                None
            }
        }
    }
}
