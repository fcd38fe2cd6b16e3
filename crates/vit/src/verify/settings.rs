//! The settings of a recorded training run, from its config.json: optimiser, clipping, label smoothing.

use serde_json::{Map, Value};
use vit_train::{DecayOn, Optimiser, OptimiserMethod};

/// The settings of recorded steps.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settings {
    pub optimiser: Optimiser,
    /// The learning rate of each step; the last holds for the steps after it.
    pub rates: Vec<f32>,
    pub label_smoothing: f32,
}

impl Settings {
    pub fn rate(&self, step: usize) -> f32 {
        self.rates.get(step).or(self.rates.last()).copied().unwrap_or(0.0)
    }
}

/// Reads the settings of a run; one that cannot be replayed is an error.
pub(super) fn parse(config: &Value) -> Result<Settings, String> {
    let optimiser = config.get("optimizer").and_then(Value::as_object);
    let optimiser = optimiser.ok_or("config.json has no `optimizer` with its settings")?;
    let name = optimiser.get("optimizer").or(optimiser.get("name")).and_then(Value::as_str);
    let name = name.ok_or("config.json names no optimizer.optimizer")?;
    for unknown in ["amsgrad", "maximize"] {
        if optimiser.get(unknown).and_then(Value::as_bool) == Some(true) {
            return Err(format!("optimizer.{unknown} is not supported"));
        }
    }
    let policy = optimiser.get("decay").and_then(Value::as_str);
    let decoupled = policy.is_some_and(|text| text.to_lowercase().contains("decoupled"));
    // Settings that are not recorded are PyTorch's defaults.
    let adam = |epsilon: f32| -> Result<[f32; 3], String> {
        let betas = optimiser.get("betas").and_then(Value::as_array).cloned().unwrap_or_default();
        let beta = |i: usize, usual: f64| betas.get(i).and_then(Value::as_f64).unwrap_or(usual) as f32;
        Ok([beta(0, 0.9), beta(1, 0.999), number(optimiser, "eps", epsilon)?])
    };
    let (method, usual_decay) = match name.to_lowercase().as_str() {
        "adam" if !decoupled => {
            let [beta1, beta2, epsilon] = adam(1e-8)?;
            (OptimiserMethod::Adam { beta1, beta2, epsilon }, 0.0)
        }
        "adam" | "adamw" => {
            let [beta1, beta2, epsilon] = adam(1e-8)?;
            (OptimiserMethod::AdamW { beta1, beta2, epsilon }, 0.01)
        }
        "lamb" => {
            let [beta1, beta2, epsilon] = adam(1e-6)?;
            (OptimiserMethod::Lamb { beta1, beta2, epsilon }, 0.01)
        }
        "sgd" => {
            let (momentum, dampening) = (number(optimiser, "momentum", 0.0)?, number(optimiser, "dampening", 0.0)?);
            let nesterov = optimiser.get("nesterov").and_then(Value::as_bool).unwrap_or(false);
            (OptimiserMethod::Sgd { momentum, dampening, nesterov }, 0.0)
        }
        other => return Err(format!("the optimizer `{other}` is not known; AdamW, Adam, LAMB and SGD are")),
    };
    let rates = match optimiser.get("lr") {
        Some(Value::Array(rates)) => rates.iter().filter_map(Value::as_f64).map(|r| r as f32).collect(),
        Some(Value::Number(rate)) => vec![rate.as_f64().unwrap_or(0.0) as f32],
        _ => return Err("config.json has no learning rate, optimizer.lr".into()),
    };
    Ok(Settings {
        optimiser: Optimiser {
            method,
            weight_decay: number(optimiser, "weight_decay", usual_decay)?,
            decay_on: decay_on(policy)?,
            layer_decay: 1.0,
            clip: clip(config.get("grad_clip"))?,
        },
        rates,
        label_smoothing: label_smoothing(config)?,
    })
}

fn number(map: &Map<String, Value>, key: &str, usual: f32) -> Result<f32, String> {
    match map.get(key) {
        None | Some(Value::Null) => Ok(usual),
        Some(value) => value.as_f64().map(|v| v as f32).ok_or_else(|| format!("optimizer.{key} is not a number")),
    }
}

/// A number, or an object with the number under one of these keys; null, false and zero count as none.
fn within(value: Option<&Value>, keys: &[&str]) -> Result<Option<f32>, String> {
    match value {
        None | Some(Value::Null | Value::Bool(false)) => Ok(None),
        Some(Value::Number(number)) => Ok(number.as_f64().map(|v| v as f32)),
        Some(Value::Object(map)) if keys.iter().any(|key| map.contains_key(*key)) => {
            within(keys.iter().find_map(|key| map.get(*key)), &[])
        }
        Some(other) => Err(format!("{other} should be a number")),
    }
}

fn clip(value: Option<&Value>) -> Result<Option<f32>, String> {
    let clip = within(value, &["global_norm", "max_norm", "norm"]).map_err(|what| format!("grad_clip: {what}"))?;
    Ok(clip.filter(|&clip| clip > 0.0))
}

pub(super) fn label_smoothing(config: &Value) -> Result<f32, String> {
    let smoothing = within(config.get("label_smoothing"), &["value"]);
    Ok(smoothing.map_err(|what| format!("label_smoothing: {what}"))?.unwrap_or(0.0))
}

/// The parameters that decay, from a sentence like "parameters with ndim >= 2 only"; all of them if it names none, as in
/// PyTorch.
fn decay_on(text: Option<&str>) -> Result<DecayOn, String> {
    let Some(text) = text else { return Ok(DecayOn::Everything) };
    let words = text.to_lowercase();
    let any = |parts: &[&str]| parts.iter().any(|part| words.contains(part));
    let matrices = any(&["ndim >= 2", "ndim>=2", "ndim > 1", "ndim>1", "2-d", "2d", "matri", "two axes"]);
    let exception = any(&["except", "exclud", "without", "not ", "no ", "none", "skip", "but "]);
    let vectors = any(&["1-d", "1d", "ndim == 1", "ndim <= 1", "ndim<=1", "ndim < 2", "ndim<2", "bias", "norm"]);
    let tokens = any(&["pos_embed", "cls_token", "position", "token"]);
    let included = any(&[" too", "also", "as well", "includ"]);
    match (matrices || (vectors && exception), tokens) {
        (true, true) if !included => Ok(DecayOn::Weights),
        (true, _) => Ok(DecayOn::Matrices),
        (false, true) if exception => {
            Err(format!("optimizer.decay is `{text}`; decay of all but tokens is not supported"))
        }
        _ => Ok(DecayOn::Everything),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sentences_about_decay_are_understood() {
        for (text, expected) in [
            ("decoupled; parameters with ndim >= 2 only (so pos_embed and cls_token decay too)", DecayOn::Matrices),
            ("decoupled; ndim >= 2", DecayOn::Matrices),
            ("no decay on biases and norms", DecayOn::Matrices),
            ("decoupled; ndim >= 2 except pos_embed and cls_token", DecayOn::Weights),
            ("not on 1-d parameters, cls_token, pos_embed", DecayOn::Weights),
            ("decoupled; all parameters", DecayOn::Everything),
            ("coupled (L2), every parameter", DecayOn::Everything),
            ("decoupled", DecayOn::Everything),
        ] {
            assert_eq!(decay_on(Some(text)), Ok(expected), "{text}");
        }
        assert_eq!(decay_on(None), Ok(DecayOn::Everything));
        assert!(decay_on(Some("all except cls_token")).is_err());
    }

    #[test]
    fn defaults_are_pytorchs_and_absence_is_no_clipping() {
        let settings = parse(&json!({ "optimizer": { "optimizer": "AdamW", "lr": 0.1 } })).unwrap();
        assert_eq!(settings.optimiser.method, OptimiserMethod::AdamW { beta1: 0.9, beta2: 0.999, epsilon: 1e-8 });
        assert_eq!((settings.optimiser.weight_decay, settings.optimiser.clip), (0.01, None));
        assert_eq!((settings.rate(0), settings.rate(9), settings.label_smoothing), (0.1, 0.1, 0.0));

        let config = json!({
            "optimizer": { "optimizer": "SGD", "lr": [0.1, 0.2], "momentum": 0.5, "nesterov": true, "weight_decay": 0.1 },
            "grad_clip": { "global_norm": null },
            "label_smoothing": { "value": 0.2 },
        });
        let settings = parse(&config).unwrap();
        let method = OptimiserMethod::Sgd { momentum: 0.5, dampening: 0.0, nesterov: true };
        assert_eq!((settings.optimiser.method, settings.optimiser.clip), (method, None));
        assert_eq!((settings.rate(0), settings.rate(1), settings.rate(2)), (0.1, 0.2, 0.2));
        assert_eq!((settings.optimiser.weight_decay, settings.label_smoothing), (0.1, 0.2));
        assert_eq!(clip(Some(&json!(2.0))), Ok(Some(2.0)));

        for (config, part) in [
            (json!({}), "no `optimizer`"),
            (json!({ "optimizer": { "optimizer": "Adagrad", "lr": 1 } }), "`adagrad` is not known"),
            (json!({ "optimizer": { "optimizer": "SGD" } }), "no learning rate"),
            (json!({ "optimizer": { "optimizer": "SGD", "lr": 1 }, "grad_clip": "much" }), "grad_clip"),
            (json!({ "optimizer": { "optimizer": "Adam", "lr": 1, "amsgrad": true } }), "amsgrad"),
        ] {
            let error = parse(&config).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
