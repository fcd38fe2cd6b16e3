//! Settings that a model cannot follow: dropout where there is none, more frozen blocks than there are. What was asked for
//! and cannot be had is an error; what a named recipe brings along for other models is left out, in a line of the report.

use vit_graph::GraphError;
use vit_models::vit::Vit;
use vit_models::{Architecture, Mode};

use super::{Initialisation, Recipe};
use crate::error::TrainError;
use crate::step::groups::rate_factors;

/// A setting that makes no difference to a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfollowed {
    /// The recipe's key.
    pub key: &'static str,
    /// Its value, or the part of it that cannot be followed.
    pub value: String,
    /// Why the model cannot follow it.
    pub why: String,
}

impl Recipe {
    /// The settings that a model cannot follow, trained from scratch or from given weights.
    pub fn unfollowed(&self, architecture: &Architecture, scratch: bool) -> Result<Vec<Unfollowed>, GraphError> {
        let mut found = Vec::new();
        let mut add = |key, value: String, why: &str| found.push(Unfollowed { key, value, why: why.into() });
        let model = &self.model;
        if model.start == Initialisation::Mimetic && architecture.downcast_ref::<Vit>().is_none() {
            add("model.start", "mimetic".into(), "only a Vision Transformer starts that way");
        } else if model.start == Initialisation::Mimetic && !scratch {
            add("model.start", "mimetic".into(), "its weights come from a checkpoint");
        }

        // Every kind of dropout draws from streams of its own.
        type Set = fn(&mut Architecture, f32);
        let rates: [(&str, f64, Set, &str); 3] = [
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

        let names: Vec<&str> = graph.parameters().map(|(_, p)| p.name.as_str()).collect();
        let decay = self.optimiser.layer_decay;
        if decay != 1.0 && rate_factors(&names, decay as f32).iter().all(|factor| *factor == 1.0) {
            add("optimiser.layer_decay", decay.to_string(), "it has a single layer");
        }
        for (pattern, why) in model.freeze.misfits(architecture.heads(), &names) {
            add("model.freeze", format!("{pattern:?}"), &why);
        }
        Ok(found)
    }

    /// Leaves out what a model cannot follow and the recipe's named base brings along, in a line each; what was set
    /// differently is an error.
    pub(crate) fn leave_out_unfollowed(
        &mut self,
        model: &str,
        architecture: &Architecture,
        scratch: bool,
    ) -> Result<Vec<String>, TrainError> {
        let brought = Recipe::named(&self.base)?;
        let mut lines = Vec::new();
        for setting in self.unfollowed(architecture, scratch)? {
            let same = match setting.key {
                "model.start" => self.model.start == brought.model.start,
                "model.drop_path" => self.model.drop_path == brought.model.drop_path,
                "model.dropout" => self.model.dropout == brought.model.dropout,
                "model.attention_dropout" => self.model.attention_dropout == brought.model.attention_dropout,
                "optimiser.layer_decay" => self.optimiser.layer_decay == brought.optimiser.layer_decay,
                _ => false,
            };
            if !same {
                return Err(TrainError::Setting { model: model.into(), setting });
            }
            lines.push(self.leave_out(model, &setting));
        }
        Ok(lines)
    }

    /// Leaves out what a model cannot follow, in a line each, whoever asked for it: one recipe for several models.
    pub(crate) fn leave_out_for_one_of_many(
        &mut self,
        model: &str,
        architecture: &Architecture,
    ) -> Result<Vec<String>, TrainError> {
        let unfollowed = self.unfollowed(architecture, true)?;
        Ok(unfollowed.iter().map(|setting| self.leave_out(model, setting)).collect())
    }

    /// Gives a setting the value that asks for nothing, and says so.
    fn leave_out(&mut self, model: &str, Unfollowed { key, value, why }: &Unfollowed) -> String {
        match *key {
            "model.start" => self.model.start = Initialisation::Random,
            "model.drop_path" => self.model.drop_path = 0.0,
            "model.dropout" => self.model.dropout = 0.0,
            "model.attention_dropout" => self.model.attention_dropout = 0.0,
            "optimiser.layer_decay" => self.optimiser.layer_decay = 1.0,
            _ => self.model.freeze.0.retain(|pattern| format!("{pattern:?}") != *value),
        }
        format!("{key} = {value} of the recipe is left out for {model}: {why}")
    }
}
