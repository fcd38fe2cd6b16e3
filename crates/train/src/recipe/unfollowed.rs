//! Settings that have no effect on a model: dropout in a model without dropout, more frozen blocks than it has. One that
//! the user set is an error; one of a named recipe is reset, with a line in the report.

use vit_graph::ops::Op;
use vit_graph::{GraphError, Node};
use vit_models::vit::Vit;
use vit_models::{Architecture, Mode};

use super::{BatchNormSetting, Initialisation, Recipe};
use crate::error::TrainError;
use crate::step::groups::rate_factors;

/// A setting that has no effect on a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfollowed {
    /// The recipe's key.
    pub key: &'static str,
    /// Its value, or the part of it without effect.
    pub value: String,
    /// Why it has no effect.
    pub why: String,
}

impl Recipe {
    /// The settings without effect on a model that is trained from scratch or from given weights.
    pub fn unfollowed(&self, architecture: &Architecture, scratch: bool) -> Result<Vec<Unfollowed>, GraphError> {
        let mut found = Vec::new();
        let mut add = |key, value: String, why: &str| found.push(Unfollowed { key, value, why: why.into() });
        let model = &self.model;
        if model.start == Initialisation::Mimetic && architecture.downcast_ref::<Vit>().is_none() {
            add("model.start", "mimetic".into(), "only a Vision Transformer starts that way");
        } else if model.start == Initialisation::Mimetic && !scratch {
            add("model.start", "mimetic".into(), "its weights come from a checkpoint");
        }

        if !model.options.is_empty() && !scratch {
            add("model.options", format!("{:?}", model.options), "its weights come from a checkpoint");
        }

        // Every dropout in a graph has its own random stream.
        type Set = fn(&mut Architecture, f32);
        let rates: [(&str, f64, Set, &str); 4] = [
            (
                "model.drop_path",
                model.drop_path,
                |model, rate| model.set_drop_path(rate),
                "it has no blocks to leave out",
            ),
            ("model.dropout", model.dropout, |model, rate| model.set_dropout(rate), "it has no dropout"),
            (
                "model.attention_dropout",
                model.attention_dropout,
                |model, rate| model.set_attention_dropout(rate),
                "it has no attention",
            ),
            (
                "model.patch_drop",
                model.patch_drop,
                |model, rate| model.set_patch_drop(rate),
                "it has no sequence of patches",
            ),
        ];
        let mut plain = architecture.clone();
        rates.iter().for_each(|(_, _, set, _)| set(&mut plain, 0.0));
        let graph = plain.build(1, Mode::Training)?;
        for (key, rate, set, why) in rates {
            let mut dropping = plain.clone();
            set(&mut dropping, rate as f32);
            if rate > 0.0 && dropping.build(1, Mode::Training)?.random_streams() == graph.random_streams() {
                add(key, rate.to_string(), why);
            }
        }

        let is_norm = |node: &Node| matches!(node.op, Op::BatchNorm(_));
        if self.batch_norm == BatchNormSetting::Sync && !graph.nodes().iter().any(is_norm) {
            add("batch_norm", "sync".into(), "it has no batch norms");
        }
        let parameters = architecture.parameters()?;
        let names: Vec<&str> = parameters.iter().map(|p| p.name.as_str()).collect();
        let decay = self.optimiser.layer_decay;
        if decay != 1.0 && rate_factors(&names, decay as f32).iter().all(|factor| *factor == 1.0) {
            add("optimiser.layer_decay", decay.to_string(), "it has a single layer");
        }
        for (pattern, why) in model.freeze.unmatched(architecture.heads(), &names) {
            add("model.freeze", format!("{pattern:?}"), &why);
        }
        Ok(found)
    }

    /// Resets settings without effect that the named base has, too, and returns a line on each; others are an error.
    pub(crate) fn leave_out_unfollowed(
        &mut self,
        model: &str,
        architecture: &Architecture,
        scratch: bool,
    ) -> Result<Vec<String>, TrainError> {
        let base = Recipe::named(&self.base)?;
        let mut lines = Vec::new();
        for setting in self.unfollowed(architecture, scratch)? {
            let same = match setting.key {
                "model.start" => self.model.start == base.model.start,
                "model.options" => self.model.options == base.model.options,
                "model.drop_path" => self.model.drop_path == base.model.drop_path,
                "model.dropout" => self.model.dropout == base.model.dropout,
                "model.attention_dropout" => self.model.attention_dropout == base.model.attention_dropout,
                "model.patch_drop" => self.model.patch_drop == base.model.patch_drop,
                "batch_norm" => self.batch_norm == base.batch_norm,
                "optimiser.layer_decay" => self.optimiser.layer_decay == base.optimiser.layer_decay,
                _ => false,
            };
            if !same {
                return Err(TrainError::Setting { model: model.into(), setting });
            }
            lines.push(self.leave_out(model, &setting));
        }
        Ok(lines)
    }

    /// Resets all settings without effect and returns a line on each: for one recipe that trains several models.
    pub(crate) fn leave_out_for_one_of_many(
        &mut self,
        model: &str,
        architecture: &Architecture,
        scratch: bool,
    ) -> Result<Vec<String>, TrainError> {
        let unfollowed = self.unfollowed(architecture, scratch)?;
        Ok(unfollowed.iter().map(|setting| self.leave_out(model, setting)).collect())
    }

    /// Resets a setting to its neutral value and returns a line on it.
    fn leave_out(&mut self, model: &str, Unfollowed { key, value, why }: &Unfollowed) -> String {
        match *key {
            "model.start" => self.model.start = Initialisation::Random,
            "model.options" => self.model.options.clear(),
            "model.drop_path" => self.model.drop_path = 0.0,
            "model.dropout" => self.model.dropout = 0.0,
            "model.attention_dropout" => self.model.attention_dropout = 0.0,
            "model.patch_drop" => self.model.patch_drop = 0.0,
            "batch_norm" => self.batch_norm = BatchNormSetting::Part,
            "optimiser.layer_decay" => self.optimiser.layer_decay = 1.0,
            _ => self.model.freeze.0.retain(|pattern| format!("{pattern:?}") != *value),
        }
        format!("{key} = {value} of the recipe is left out for {model}: {why}")
    }
}
