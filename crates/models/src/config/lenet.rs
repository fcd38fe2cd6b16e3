//! LeNet-5's few choices.

use serde_json::{Map, Value, json};
use vit_graph::ops::{Operation, PoolMode};

use super::{Arguments, Config, unnamed};
use crate::lenet::{LeNet, variants};

pub(super) fn from_arguments(args: &Map<String, Value>, input: Option<[usize; 2]>) -> Result<Config, String> {
    let base = LeNet { image_size: input.unwrap_or([28, 28]), ..LeNet::default() };
    let net = apply(&Arguments::new("LeNet", args), base)?;
    let usual = variants().remove(0).preprocessing;
    Ok(unnamed(net, usual))
}

/// Changes a model as the arguments say.
pub(super) fn apply(args: &Arguments, mut net: LeNet) -> Result<LeNet, String> {
    net.activation = args.activation("act")?.unwrap_or(net.activation);
    net.pooling = match args.text("pool")? {
        None => net.pooling,
        Some("avg") => PoolMode::Mean,
        Some("max") => PoolMode::Max,
        Some(other) => return Err(format!("LeNet's option `pool` should be avg or max, not `{other}`")),
    };
    net.classes = args.count("num_classes")?.unwrap_or(net.classes);
    net.channels = args.count("in_chans")?.unwrap_or(net.channels);
    args.finish(&[])?;
    Ok(net)
}

/// The arguments that make this model.
pub(super) fn arguments(net: &LeNet) -> Map<String, Value> {
    let all = json!({
        "act": net.activation.name(),
        "pool": if net.pooling == PoolMode::Max { "max" } else { "avg" },
        "num_classes": net.classes,
        "in_chans": net.channels,
    });
    all.as_object().cloned().unwrap_or_default()
}
