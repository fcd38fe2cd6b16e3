//! A model that answers: admission of work, and what clients may know about it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::oneshot;
use vit::Prediction;
use vit::data::Preprocess;

use super::decoding::{DecodePool, DecodeTarget};
use super::open::spawn;
use super::outputs::NeededOutputs;
use super::queue::{Admission, Lane, Reply};
use super::reopen::Reopen;
use super::replica::ReplicaContext;
use super::statistics::Counters;
use super::tokens::serve_tokens;
use super::{
    Answer, ExplainWork, Explained, ModelCard, Refused, Statistics, Ticket, Work, WorkError, WorkInput, WorkOutput,
};

/// A model that answers.
pub struct ServedModel {
    pub(super) card: ModelCard,
    pub(super) target: Arc<DecodeTarget>,
    pub(super) decoders: Arc<DecodePool>,
    pub(super) counters: Arc<Counters>,
    pub(super) contexts: Vec<ReplicaContext>,
    pub(super) reopen: Reopen,
    /// Starts the replicas of [`Lane::Tokens`].
    pub(super) tokens: Once,
    pub(super) working: Arc<AtomicUsize>,
    pub(super) draining: Arc<AtomicBool>,
}

impl ServedModel {
    /// What a client may know.
    pub fn card(&self) -> &ModelCard {
        &self.card
    }

    /// From an image to the model's input.
    pub fn preprocess(&self) -> &Preprocess {
        &self.target.preprocess
    }

    /// Whether so many more images would be admitted now; lets a server refuse before it reads a body.
    pub fn has_room(&self, images: usize) -> Result<(), Refused> {
        let queue = &self.target.queue;
        if self.draining.load(Ordering::Relaxed) {
            return Err(Refused::Draining);
        }
        if images > queue.capacity() {
            return Err(Refused::TooMany { images, queue: queue.capacity() });
        }
        if let Some(reason) = self.lost() {
            return Err(Refused::Lost(reason));
        }
        if !queue.has_room(images) {
            return Err(self.overloaded());
        }
        Ok(())
    }

    /// Admits the images of one request together, or none.
    pub fn submit(&self, images: Vec<Work>) -> Result<Vec<Ticket<Answer>>, Refused> {
        let mut tickets = Vec::with_capacity(images.len());
        let mut admissions = Vec::with_capacity(images.len());
        for Work { input, output, deadline } in images {
            let (reply, ticket) = oneshot::channel();
            tickets.push(Ticket(ticket));
            match self.check(&input, output) {
                Ok(needed) => {
                    if needed.lane() == Lane::Tokens {
                        self.tokens.call_once(|| self.start_tokens());
                    }
                    admissions.push(Admission { input, reply: Reply::Answer(needed, reply), deadline });
                }
                Err(error) => {
                    self.counters.failed();
                    let _ = reply.send(Err(error));
                }
            }
        }
        self.admit(admissions)?;
        Ok(tickets)
    }

    /// Admits the images of one request for explanation together, or none.
    pub fn explain(
        &self,
        images: Vec<Bytes>,
        what: &ExplainWork,
        deadline: Instant,
    ) -> Result<Vec<Ticket<Explained>>, Refused> {
        let admission = |image| {
            let (reply, ticket) = oneshot::channel();
            let reply = Reply::Explain(what.clone(), reply);
            (Admission { input: WorkInput::Encoded(image), reply, deadline }, Ticket(ticket))
        };
        let (admissions, tickets): (Vec<_>, Vec<_>) = images.into_iter().map(admission).unzip();
        self.admit(admissions)?;
        Ok(tickets)
    }

    /// The first `count` predictions that `Model::classify` gives.
    pub fn predictions(&self, logits: &[f32], count: usize) -> Vec<Prediction> {
        Prediction::likeliest(&self.card.config, logits, count)
    }

    /// Counters since start, for KServe's statistics and for metrics.
    pub fn statistics(&self) -> Statistics {
        self.counters.statistics(self.target.queue.waiting())
    }

    /// Images admitted and not yet answered, by earlier versions of the model too.
    pub(super) fn pending(&self) -> usize {
        self.counters.pending()
    }

    /// Whether all replicas work.
    pub(super) fn works(&self) -> bool {
        self.working.load(Ordering::SeqCst) == self.contexts.len()
    }

    /// Why no replica works, if none does.
    pub(super) fn lost(&self) -> Option<String> {
        if self.working.load(Ordering::SeqCst) > 0 {
            return None;
        }
        Some(self.target.queue.lost().unwrap_or_default())
    }

    fn admit(&self, admissions: Vec<Admission>) -> Result<(), Refused> {
        self.has_room(admissions.len())?;
        let to_decode = self.target.queue.admit(admissions).ok_or_else(|| self.overloaded())?;
        self.decoders.add(&self.target, to_decode);
        Ok(())
    }

    /// What can be refused before an image is admitted.
    fn check(&self, input: &WorkInput, output: WorkOutput) -> Result<NeededOutputs, WorkError> {
        let expected = self.preprocess().output_len();
        match input {
            WorkInput::Tensor(values) if values.len() != expected => {
                Err(WorkError::Length { found: values.len(), expected })
            }
            _ => NeededOutputs::new(&self.card.config.architecture, output),
        }
    }

    fn start_tokens(&self) {
        for (index, context) in self.contexts.iter().enumerate() {
            let (context, reopen) = (context.clone(), self.reopen.clone());
            let queue = context.queue.clone();
            let started = spawn(format!("{}-tokens-{index}", self.card.name), move || serve_tokens(context, &reopen));
            if let Err(error) = started {
                queue.fail_lane(Lane::Tokens, &WorkError::Internal(error.to_string()));
            }
        }
    }

    fn overloaded(&self) -> Refused {
        let (size, seconds) = self.card.batches.last().copied().unwrap_or((1, 0.0));
        let replicas = self.working.load(Ordering::Relaxed).max(1);
        let batches = self.target.queue.waiting().div_ceil(size * replicas);
        Refused::Overloaded { retry_after: Duration::from_secs_f64(seconds * batches as f64) }
    }
}

impl Drop for ServedModel {
    /// Replicas finish what was admitted, then end.
    fn drop(&mut self) {
        self.target.queue.close();
    }
}
