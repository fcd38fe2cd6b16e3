//! The parameters that a session starts with.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};

use vit_graph::device::{Initial, Parameters};
use vit_graph::ops::Parameter;
use vit_models::weights::{Tensor, Weights};

use crate::run::setup::FirstWeights;
use crate::step::sharding::ShardedTensor;

/// The model's parameters from its first weights, the optimiser's from a snapshot or zero. Keeps a copy of parameters that
/// steps do not change, since a device may keep these in another form only.
pub(super) struct FirstParameters<'a> {
    pub first: FirstWeights,
    /// The optimiser's tensors of a snapshot.
    pub state: Weights,
    /// Names of the optimiser's tensors.
    pub names: &'a [String],
    pub seed: u64,
    /// The tensors of which this process takes a slice.
    pub shards: &'a BTreeMap<String, ShardedTensor>,
    /// Moving averages begin as the parameters that they average, since a step reads them.
    pub averages: Option<HashMap<String, Vec<f32>>>,
    /// Names of parameters that steps change.
    pub changed: &'a HashSet<String>,
    pub unchanged: Weights,
}

impl Parameters for FirstParameters<'_> {
    fn held_bytes(&self) -> u64 {
        let first = match &self.first {
            FirstWeights::Given(weights) => weights.held_bytes(),
            FirstWeights::Random => 0,
        };
        first + self.state.held_bytes()
    }

    fn take(&mut self, parameter: &Parameter) -> Option<Cow<'_, [f32]>> {
        let Some(ShardedTensor { shape, shards }) = self.shards.get(&parameter.name) else {
            return self.take_whole(parameter).map(Cow::Owned);
        };
        let whole = Parameter { shape: shape.clone(), ..parameter.clone() };
        self.take_whole(&whole).map(|data| Cow::Owned(data[shards.own()].to_vec()))
    }
}

impl FirstParameters<'_> {
    fn take_whole(&mut self, parameter: &Parameter) -> Option<Vec<f32>> {
        let name = &parameter.name;
        if self.names.contains(name) {
            let zeros = || vec![0.0; parameter.shape.elements()];
            let averaged = name.strip_suffix(".average");
            let first = averaged.and_then(|name| self.averages.as_mut()?.remove(name));
            let resumed = self.state.tensors.remove(name).map(|tensor| tensor.data);
            return Some(resumed.or(first).unwrap_or_else(zeros));
        }
        let data = match &mut self.first {
            FirstWeights::Given(weights) => weights.tensors.remove(name)?.data,
            FirstWeights::Random => Initial { seed: self.seed }.take(parameter)?.into_owned(),
        };
        if let Some(averages) = &mut self.averages {
            averages.insert(name.clone(), data.clone());
        }
        if !self.changed.contains(name) {
            let tensor = Tensor { shape: parameter.shape.to_vec(), data: data.clone() };
            self.unchanged.tensors.insert(name.clone(), tensor);
        }
        Some(data)
    }
}
