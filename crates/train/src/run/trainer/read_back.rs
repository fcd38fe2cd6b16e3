//! Parameters read back from the step's device, for checkpoints and for the model that is evaluated.

use std::borrow::Cow;

use vit_data::Samples;
use vit_graph::GraphError;
use vit_graph::device::{Device, Parameters};
use vit_graph::ops::Parameter;
use vit_models::Config;
use vit_models::weights::{Tensor, Weights};

use super::session::Session;
use crate::error::TrainError;
use crate::evaluate::evaluation_batch;
use crate::evaluate::evaluator::Evaluator;
use crate::run::saving::{CheckpointSource, RunPosition, SaveError, Snapshot};
use crate::run::setup::Setup;

impl Session {
    /// The model compiled for evaluation, if there is something to evaluate it on.
    pub fn evaluator(&self, device: &dyn Device, setup: &Setup) -> Result<Option<Evaluator>, TrainError> {
        let Some(validation) = &setup.validation else { return Ok(None) };
        let batch = evaluation_batch(&setup.recipe).clamp(1, validation.len().max(1));
        let compile = |parameters: &mut dyn Parameters| Evaluator::new(device, &setup.config, parameters, batch);
        self.with_evaluated_parameters(compile).map(Some)
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
        RunCheckpoint { session: self, config: &setup.config }
    }

    /// The same in memory.
    pub fn snapshot(&self, setup: &Setup) -> Result<Snapshot, TrainError> {
        let config = setup.config.clone();
        let (weights, optimiser) = (self.read_all(false)?, self.read_all(true)?);
        Ok(Snapshot { config, weights, optimiser, position: self.position.clone() })
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
        Ok(Snapshot { config: setup.config.clone(), weights, optimiser: Weights::default(), position })
    }

    /// Whether all parameters and the optimiser's state are finite.
    pub fn is_finite(&self) -> Result<bool, GraphError> {
        for (_, parameter) in self.graph.graph.parameters() {
            let frozen = self.unchanged.tensors.contains_key(&parameter.name);
            if !frozen && !self.read(parameter)?.data.iter().all(|v| v.is_finite()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The optimiser's state, or the model's weights.
    fn read_all(&self, state: bool) -> Result<Weights, GraphError> {
        let mut all = if state { Weights::default() } else { self.unchanged.clone() };
        for (_, parameter) in self.graph.graph.parameters() {
            let name = &parameter.name;
            if self.graph.state.contains(name) == state && !self.unchanged.tensors.contains_key(name) {
                all.tensors.insert(name.clone(), self.read(parameter)?);
            }
        }
        Ok(all)
    }

    /// A parameter as it is evaluated: its moving average where there is one.
    fn read_evaluated(&self, parameter: &Parameter) -> Result<Tensor, GraphError> {
        let average = Parameter { name: format!("{}.average", parameter.name), ..parameter.clone() };
        self.read(if self.graph.state.contains(&average.name) { &average } else { parameter })
    }

    fn read(&self, parameter: &Parameter) -> Result<Tensor, GraphError> {
        let mut data = vec![0.0; parameter.shape.elements()];
        self.executable.read_parameter(&parameter.name, &mut data)?;
        Ok(Tensor { shape: parameter.shape.to_vec(), data })
    }
}

/// The checkpoint of a session, read from the device one file at a time.
pub(super) struct RunCheckpoint<'a> {
    session: &'a Session,
    config: &'a Config,
}

impl CheckpointSource for RunCheckpoint<'_> {
    fn config(&self) -> &Config {
        self.config
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
