//! Arguments that the constructors of timm's classes share. Each architecture's `timm.rs` reads and writes its class.

use serde_json::{Map, Value, json};

use super::Arguments;
use crate::layers::Norm;

/// A norm by timm's class or short name, with timm's epsilon unless the arguments say otherwise.
pub(crate) fn norm(args: &Arguments, name: &str, usual: Norm) -> Result<Norm, String> {
    let Some((class, bound)) = args.class(name)? else { return Ok(usual) };
    let epsilon = |usual: f64| Ok::<f32, String>(bound.number("eps")?.unwrap_or(usual) as f32);
    let found = match class.to_ascii_lowercase().as_str() {
        "batchnorm2d" | "batchnormact2d" | "batchnorm" => {
            Norm::Batch { epsilon: epsilon(1e-5)?, momentum: bound.number("momentum")?.unwrap_or(0.1) as f32 }
        }
        "groupnorm" | "groupnormact" => {
            Norm::Group { groups: bound.count("num_groups")?.unwrap_or(32), epsilon: epsilon(1e-5)? }
        }
        "layernorm" | "layernorm2d" => Norm::Layer { epsilon: epsilon(1e-5)? },
        _ => return Err(format!("timm's option `{name}` should be a batch, group or layer norm, not `{class}`")),
    };
    bound.finish(&["apply_act", "inplace", "act_layer"])?;
    Ok(found)
}

/// A norm as a class with its arguments.
pub(crate) fn described(norm: Norm) -> Value {
    match norm {
        Norm::Batch { epsilon, momentum } => {
            json!({ "BatchNorm2d": { "eps": short(epsilon), "momentum": short(momentum) } })
        }
        Norm::Group { groups, epsilon } => json!({ "GroupNormAct": { "num_groups": groups, "eps": short(epsilon) } }),
        Norm::Layer { epsilon } => json!({ "LayerNorm": { "eps": short(epsilon) } }),
    }
}

/// Refuses every kind of global pooling but the mean.
pub(crate) fn mean_pooling(args: &Arguments) -> Result<(), String> {
    match args.text("global_pool")? {
        None | Some("avg" | "") => Ok(()),
        Some(other) => Err(format!("timm's option `global_pool` should be avg, not `{other}`")),
    }
}

/// The rates among a constructor's arguments that are not zero.
pub(crate) fn rates(args: Map<String, Value>) -> Map<String, Value> {
    let is_rate = |name: &str| name.ends_with("_rate") || name.ends_with("_drop");
    args.into_iter().filter(|(name, value)| is_rate(name) && value.as_f64() != Some(0.0)).collect()
}

/// The entries of a JSON object.
pub(crate) fn object(json: Value) -> Map<String, Value> {
    match json {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// One number where both sides are equal.
pub(crate) fn square(size: [usize; 2]) -> Value {
    if size[0] == size[1] { json!(size[0]) } else { json!(size) }
}

/// The shortest decimal that means this f32: 0.485 instead of 0.48500001430511475.
pub(crate) fn short(value: f32) -> f64 {
    value.to_string().parse().unwrap_or(f64::from(value))
}
