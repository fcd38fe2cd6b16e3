//! Embeddings of tokens: compiled when they are first requested, since a run to the logits computes only the tokens that
//! the head reads.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use vit::{Model, ModelOptions, Pool, PooledOutput};

use super::WorkError;
use super::queue::{Due, Lane};
use super::reopen::Reopen;
use super::replica::{Replica, ReplicaContext};

/// Runs a replica for tokens until its queue is closed and empty.
pub(super) fn serve_tokens(context: ReplicaContext, reopen: &Reopen) {
    let compiled = catch_unwind(AssertUnwindSafe(|| compile(&context, reopen)));
    let panicked = || WorkError::Internal("compiling the model panicked".into());
    let error = match compiled.unwrap_or_else(|_| Err(panicked())) {
        Ok(model) => return Replica { model, lane: Lane::Tokens, context }.run(),
        Err(error) => error,
    };
    while context.queue.wait_until_due(Lane::Tokens, Duration::ZERO, None) == Due::Batch {
        context.queue.fail_lane(Lane::Tokens, &error);
    }
}

fn compile(context: &ReplicaContext, reopen: &Reopen) -> Result<Model, WorkError> {
    let failed = |error: vit::Error| WorkError::Internal(error.to_string());
    let checkpoint = reopen.checkpoint()?;
    let output = PooledOutput::new(&checkpoint.config.architecture, Pool::Patches).map_err(failed)?.output;
    let sizes = context.times.iter().map(|(size, _)| *size);
    let options = ModelOptions::new().batches(sizes).device(context.options).output(output);
    Model::of(&checkpoint, context.device.as_ref(), &options).map_err(failed)
}
