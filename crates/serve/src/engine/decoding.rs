//! The threads that decode and preprocess images, for all models.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use vit::Image;
use vit::data::{ApplyPreprocess, DecodeOptions, Preprocess, decode};

use super::cpu_turns::CpuTurns;
use super::queue::{EncodedImage, Lane, ModelQueue, ReadyImage};
use super::{EngineError, WorkError};

/// How long a decoder waits for a batch on the CPU to end.
const MAX_WAIT: Duration = Duration::from_millis(500);

/// The part of a model that decoders need.
pub(super) struct DecodeTarget {
    pub queue: Arc<ModelQueue>,
    pub preprocess: Preprocess,
}

/// Decoder threads; they end when this value is dropped.
pub(super) struct DecodePool {
    shared: Arc<PoolQueue>,
}

#[derive(Default)]
struct PoolQueue {
    jobs: Mutex<Jobs>,
    added: Condvar,
}

#[derive(Default)]
struct Jobs {
    /// One entry per image, in the order of admission.
    models: VecDeque<Arc<DecodeTarget>>,
    stop: bool,
}

impl PoolQueue {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The model of the next image; `None` when the pool ends.
    fn next(&self) -> Option<Arc<DecodeTarget>> {
        let waiting = |jobs: &mut Jobs| jobs.models.is_empty() && !jobs.stop;
        let mut jobs = self.added.wait_while(self.lock(), waiting).unwrap_or_else(PoisonError::into_inner);
        jobs.models.pop_front()
    }
}

impl DecodePool {
    /// `turns` is given if models run on the CPU.
    pub fn start(threads: usize, options: DecodeOptions, turns: Option<Arc<CpuTurns>>) -> Result<Self, EngineError> {
        let shared = Arc::<PoolQueue>::default();
        for index in 0..threads.max(1) {
            let (queue, options, turns) = (shared.clone(), options.clone(), turns.clone());
            let work = move || {
                while let Some(target) = queue.next() {
                    if let Some(turns) = &turns {
                        turns.wait_idle(MAX_WAIT);
                    }
                    if let Some((image, buffer)) = target.queue.take_encoded() {
                        target.queue.decoded(prepare(&target, image, buffer, &options));
                    }
                }
            };
            let started = thread::Builder::new().name(format!("decode-{index}")).spawn(work);
            started.map_err(|error| EngineError::Thread(error.to_string()))?;
        }
        Ok(DecodePool { shared })
    }

    /// Decodes so many images of a model's queue.
    pub fn add(&self, target: &Arc<DecodeTarget>, images: usize) {
        self.shared.lock().models.extend(std::iter::repeat_n(target.clone(), images));
        (0..images).for_each(|_| self.shared.added.notify_one());
    }
}

impl Drop for DecodePool {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.added.notify_all();
    }
}

/// Decodes and preprocesses an image; a failure is reported to its ticket.
fn prepare(
    target: &DecodeTarget,
    EncodedImage { bytes, task }: EncodedImage,
    mut input: Vec<f32>,
    options: &DecodeOptions,
) -> Option<ReadyImage> {
    let prepared = catch_unwind(AssertUnwindSafe(|| {
        let image = decode(&bytes, options).map_err(|error| WorkError::Image(error.to_string()))?;
        input.resize(target.preprocess.output_len(), 0.0);
        target.preprocess.apply_into(&image, &mut input).map_err(|error| WorkError::Image(error.to_string()))?;
        Ok::<Image, WorkError>(image)
    }));
    match prepared {
        Ok(Ok(image)) => {
            let image = (task.lane() == Lane::Explain).then_some(image);
            Some(ReadyImage { input, image, decoded: Instant::now(), task })
        }
        Ok(Err(error)) => {
            task.fail(error);
            None
        }
        Err(_) => {
            task.fail(WorkError::Internal("decoding panicked".into()));
            None
        }
    }
}
