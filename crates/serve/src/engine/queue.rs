//! The bounded queue of a model: admission, images to decode, decoded images that wait for a batch.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::oneshot;
use vit::Image;

use super::outputs::NeededOutputs;
use super::statistics::Counters;
use super::{Answer, ExplainWork, Explained, WorkError, WorkInput};

/// Images of one lane are computed by the same executables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    /// Logits and features.
    Head,
    /// All tokens or pixels of the last layer, which a run to the logits does not compute.
    Tokens,
    /// Explanations.
    Explain,
}

const LANES: usize = 3;

/// An image of a request.
pub(super) struct Admission {
    pub input: WorkInput,
    pub reply: Reply,
    pub deadline: Instant,
}

/// Counts an image from its admission until this value is dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Where the result of a task goes, and what it is.
pub(super) enum Reply {
    Answer(NeededOutputs, oneshot::Sender<Result<Answer, WorkError>>),
    Explain(ExplainWork, oneshot::Sender<Result<Explained, WorkError>>),
}

/// The work of one image.
pub(super) struct Task {
    reply: Reply,
    deadline: Instant,
    pub admitted: Instant,
    counters: Arc<Counters>,
    /// Until the batch starts.
    waiting: Option<Counted>,
    /// Until just before the ticket gets its result.
    pending: Counted,
}

impl Task {
    pub fn lane(&self) -> Lane {
        match &self.reply {
            Reply::Answer(needed, _) => needed.lane(),
            Reply::Explain(..) => Lane::Explain,
        }
    }

    /// What the answer needs; `None` for explanations.
    pub fn needed(&self) -> Option<NeededOutputs> {
        match &self.reply {
            Reply::Answer(needed, _) => Some(*needed),
            Reply::Explain(..) => None,
        }
    }

    /// What to explain; `None` for other tasks.
    pub fn explanation(&self) -> Option<&ExplainWork> {
        match &self.reply {
            Reply::Answer(..) => None,
            Reply::Explain(what, _) => Some(what),
        }
    }

    fn is_cancelled(&self) -> bool {
        match &self.reply {
            Reply::Answer(_, reply) => reply.is_closed(),
            Reply::Explain(_, reply) => reply.is_closed(),
        }
    }

    /// The task, unless its ticket was dropped or its time is up.
    fn if_alive(self, now: Instant) -> Option<Task> {
        if self.is_cancelled() {
            return None;
        }
        if self.deadline <= now {
            self.fail(WorkError::Deadline);
            return None;
        }
        Some(self)
    }

    /// Where the result goes. The task no longer counts, so that its client finds the counters up to date.
    fn into_reply(self) -> Reply {
        drop((self.waiting, self.pending));
        self.reply
    }

    pub fn fail(self, error: WorkError) {
        self.counters.failed();
        match self.into_reply() {
            Reply::Answer(_, reply) => _ = reply.send(Err(error)),
            Reply::Explain(_, reply) => _ = reply.send(Err(error)),
        }
    }

    pub fn answer(self, answer: Answer) {
        self.counters.answered(answer.timing.decode, answer.timing.queue);
        if let Reply::Answer(_, reply) = self.into_reply() {
            let _ = reply.send(Ok(answer));
        }
    }

    pub fn explained(self, explained: Explained) {
        self.counters.answered(explained.timing.decode, explained.timing.queue);
        if let Reply::Explain(_, reply) = self.into_reply() {
            let _ = reply.send(Ok(explained));
        }
    }
}

/// An image that waits for a decoder.
pub(super) struct EncodedImage {
    pub bytes: Bytes,
    pub task: Task,
}

/// An image that waits for its batch.
pub(super) struct ReadyImage {
    /// `[channels, height, width]`.
    pub input: Vec<f32>,
    /// The decoded image, for explanations.
    pub image: Option<Image>,
    pub decoded: Instant,
    pub task: Task,
}

#[derive(Default)]
struct Backlog {
    encoded: VecDeque<EncodedImage>,
    /// Images that are being decoded.
    decoding: usize,
    ready: [VecDeque<ReadyImage>; LANES],
    /// Input buffers for reuse.
    spare: Vec<Vec<f32>>,
    /// Whether no more images can come.
    closed: bool,
    /// Why no replica works.
    lost: Option<String>,
    drain: Drain,
}

/// The rate at which a queue with a backlog drains.
#[derive(Default)]
struct Drain {
    /// When the last batch was dequeued, if it left a backlog.
    last: Option<Instant>,
    per_image: Option<Duration>,
}

impl Drain {
    /// Follows the dequeuing of a batch as a moving average.
    fn dequeued(&mut self, images: usize, now: Instant, backlog: bool) {
        if let Some(last) = self.last.filter(|_| images > 0) {
            let sample = (now - last) / images as u32;
            self.per_image = Some(self.per_image.map_or(sample, |average| (7 * average + sample) / 8));
        }
        if images > 0 || !backlog {
            self.last = backlog.then_some(now);
        }
    }

    /// The images that drain in the given time.
    fn within(&self, wait: Duration) -> usize {
        self.per_image.map_or(usize::MAX, |time| (wait.as_nanos() / time.as_nanos().max(1)) as usize)
    }
}

/// See [`ModelQueue::bound_wait`].
const MIN_WAIT_BOUND: Duration = Duration::from_secs(1);

impl Backlog {
    /// Images that are or will be decoded.
    fn coming(&self) -> usize {
        self.encoded.len() + self.decoding
    }

    fn push_ready(&mut self, image: ReadyImage) {
        match &self.lost {
            Some(reason) => image.task.fail(WorkError::DeviceLost(reason.clone())),
            None => self.ready[image.task.lane() as usize].push_back(image),
        }
    }
}

/// The queue of a model.
pub(super) struct ModelQueue {
    capacity: usize,
    full_batch: usize,
    wait_bound: OnceLock<Duration>,
    /// Images that may wait now: at most `capacity`, fewer while the queue drains slowly.
    limit: AtomicUsize,
    waiting: Arc<AtomicUsize>,
    counters: Arc<Counters>,
    backlog: Mutex<Backlog>,
    /// By lane: a batch may be due.
    changed: [Condvar; LANES],
}

/// Why [`ModelQueue::wait_until_due`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Batch,
    TimedOut,
    Closed,
}

impl ModelQueue {
    pub fn new(capacity: usize, full_batch: usize, counters: Arc<Counters>) -> Self {
        ModelQueue {
            capacity,
            full_batch,
            wait_bound: OnceLock::new(),
            limit: AtomicUsize::new(capacity),
            waiting: Arc::default(),
            counters,
            backlog: Mutex::default(),
            changed: Default::default(),
        }
    }

    /// Sets the time per image on an unloaded device. The wait in the queue is then bounded by the time that a full queue
    /// takes at this rate, or by [`MIN_WAIT_BOUND`] if that is longer: a queue that drains more slowly admits fewer images.
    pub fn bound_wait(&self, per_image: Duration) {
        let full = per_image.saturating_mul(self.capacity.try_into().unwrap_or(u32::MAX));
        let _ = self.wait_bound.set(full.max(MIN_WAIT_BOUND));
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Images that wait, being decoded included.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Why no replica works.
    pub fn lost(&self) -> Option<String> {
        self.lock().lost.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Backlog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether so many images have room now; images without a client make room first.
    pub fn has_room(&self, images: usize) -> bool {
        if self.fits(self.waiting(), images) {
            return true;
        }
        self.drop_cancelled();
        self.fits(self.waiting(), images)
    }

    fn fits(&self, waiting: usize, images: usize) -> bool {
        let limit = if waiting == 0 { self.capacity } else { self.limit.load(Ordering::Relaxed) };
        waiting + images <= limit
    }

    fn drop_cancelled(&self) {
        let mut backlog = self.lock();
        backlog.encoded.retain(|image| !image.task.is_cancelled());
        for ready in &mut backlog.ready {
            ready.retain(|image| !image.task.is_cancelled());
        }
        self.unlock_and_notify(backlog, 0);
    }

    /// Takes room for all of these, or for none.
    fn reserve(&self, images: usize) -> bool {
        let reserve = |waiting: usize| self.fits(waiting, images).then_some(waiting + images);
        self.waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, reserve).is_ok()
    }

    /// Admits the images of one request together, or none. The result is the number of images to decode.
    pub fn admit(&self, images: Vec<Admission>) -> Option<usize> {
        let count = images.len();
        if !self.reserve(count) {
            self.drop_cancelled();
            if !self.reserve(count) {
                return None;
            }
        }
        self.counters.pending.fetch_add(count, Ordering::Relaxed);
        let now = Instant::now();
        let (mut to_decode, mut ready) = (0, 0);
        let mut backlog = self.lock();
        for Admission { input, reply, deadline } in images {
            let task = Task {
                reply,
                deadline,
                admitted: now,
                counters: self.counters.clone(),
                waiting: Some(Counted(self.waiting.clone())),
                pending: Counted(self.counters.pending.clone()),
            };
            match input {
                WorkInput::Encoded(bytes) => {
                    to_decode += 1;
                    backlog.encoded.push_back(EncodedImage { bytes, task });
                }
                WorkInput::Tensor(input) => {
                    ready += 1;
                    backlog.push_ready(ReadyImage { input, image: None, decoded: now, task });
                }
            }
        }
        self.unlock_and_notify(backlog, ready);
        Some(to_decode)
    }

    /// The next image to decode and a buffer for its input. Every image that is taken is followed by
    /// [`ModelQueue::decoded`].
    pub fn take_encoded(&self) -> Option<(EncodedImage, Vec<f32>)> {
        let mut backlog = self.lock();
        let now = Instant::now();
        while let Some(EncodedImage { bytes, task }) = backlog.encoded.pop_front() {
            if let Some(task) = task.if_alive(now) {
                backlog.decoding += 1;
                return Some((EncodedImage { bytes, task }, backlog.spare.pop().unwrap_or_default()));
            }
        }
        // Images of which only cancelled ones were left no longer keep a batch waiting.
        self.unlock_and_notify(backlog, 0);
        None
    }

    /// Ends the decoding of an image, which is ready or has failed.
    pub fn decoded(&self, image: Option<ReadyImage>) {
        let mut backlog = self.lock();
        backlog.decoding -= 1;
        let ready = usize::from(image.is_some());
        image.into_iter().for_each(|image| backlog.push_ready(image));
        self.unlock_and_notify(backlog, ready);
    }

    /// Wakes a replica of each lane whose batch is due, or whose first image begins to wait, given how many images became
    /// ready. The lock is released first, since a replica that wakes while it is held goes back to sleep.
    fn unlock_and_notify(&self, backlog: MutexGuard<'_, Backlog>, new: usize) {
        let (last, closed) = (backlog.coming() == 0, backlog.closed);
        let due = |ready: &VecDeque<_>| match ready.len() {
            0 => false,
            images => images <= new || images >= self.full_batch || last,
        };
        let due = backlog.ready.each_ref().map(due);
        drop(backlog);
        for (due, changed) in due.into_iter().zip(&self.changed) {
            match closed {
                true => changed.notify_all(),
                false if due => changed.notify_one(),
                false => {}
            }
        }
    }

    /// Waits until a lane has a full batch. On an idle device (`until` is `None`), a batch is also due when its oldest image
    /// has waited `max_delay`, and when no other image is being decoded; else waiting ends at the given time.
    pub fn wait_until_due(&self, lane: Lane, max_delay: Duration, until: Option<Instant>) -> Due {
        let mut backlog = self.lock();
        loop {
            let now = Instant::now();
            let ready = &backlog.ready[lane as usize];
            let coming = backlog.coming();
            let oldest = ready.front().filter(|_| until.is_none());
            let delayed_until = oldest.map(|oldest| oldest.decoded + max_delay);
            if ready.len() >= self.full_batch || delayed_until.is_some_and(|time| coming == 0 || time <= now) {
                return Due::Batch;
            }
            if backlog.closed && coming == 0 && ready.is_empty() {
                return Due::Closed;
            }
            if until.is_some_and(|time| time <= now) {
                return Due::TimedOut;
            }
            let changed = &self.changed[lane as usize];
            backlog = match delayed_until.or(until) {
                None => changed.wait(backlog).unwrap_or_else(PoisonError::into_inner),
                Some(time) => changed.wait_timeout(backlog, time - now).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }

    /// Dequeues the oldest images of a lane. Cancelled and expired images are dropped first; `choose` maps the number of
    /// the remaining ones to the batch size.
    pub fn take_ready(&self, lane: Lane, choose: impl FnOnce(usize) -> usize) -> Vec<ReadyImage> {
        let mut backlog = self.lock();
        let ready = &mut backlog.ready[lane as usize];
        let now = Instant::now();
        let alive = |ReadyImage { input, image, decoded, task }| {
            Some(ReadyImage { input, image, decoded, task: task.if_alive(now)? })
        };
        *ready = std::mem::take(ready).into_iter().filter_map(alive).collect();
        let count = choose(ready.len()).min(ready.len());
        let mut taken: Vec<ReadyImage> = ready.drain(..count).collect();
        taken.iter_mut().for_each(|image| image.task.waiting = None);
        backlog.drain.dequeued(taken.len(), now, self.waiting() > 0);
        if let Some(bound) = self.wait_bound.get() {
            let limit = backlog.drain.within(*bound).max(self.full_batch).min(self.capacity);
            self.limit.store(limit, Ordering::Relaxed);
        }
        taken
    }

    /// Fails the images of a lane.
    pub fn fail_lane(&self, lane: Lane, error: &WorkError) {
        for image in self.take_ready(lane, |ready| ready) {
            image.task.fail(error.clone());
        }
    }

    /// Keeps input buffers for reuse.
    pub fn recycle(&self, buffers: impl IntoIterator<Item = Vec<f32>>) {
        let mut backlog = self.lock();
        let room = self.capacity.saturating_sub(backlog.spare.len());
        backlog.spare.extend(buffers.into_iter().take(room));
    }

    /// Fails all images, now and until [`ModelQueue::recover`].
    pub fn lose(&self, reason: &str) {
        let mut backlog = self.lock();
        backlog.lost = Some(reason.into());
        let encoded = backlog.encoded.drain(..).map(|image| image.task).collect::<Vec<_>>();
        let ready = backlog.ready.iter_mut().flat_map(|ready| ready.drain(..)).map(|image| image.task);
        let tasks: Vec<Task> = encoded.into_iter().chain(ready).collect();
        drop(backlog);
        tasks.into_iter().for_each(|task| task.fail(WorkError::DeviceLost(reason.into())));
    }

    pub fn recover(&self) {
        self.lock().lost = None;
    }

    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// No more images will be admitted; replicas end when the last has been taken.
    pub fn close(&self) {
        let mut backlog = self.lock();
        backlog.closed = true;
        self.unlock_and_notify(backlog, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drain_rate_follows_a_backlog_and_ignores_idle_time() {
        let (mut drain, start) = (Drain::default(), Instant::now());
        let after = |ms| start + Duration::from_millis(ms);
        assert_eq!(drain.within(Duration::ZERO), usize::MAX, "nothing is known yet");
        drain.dequeued(8, after(0), true);
        drain.dequeued(8, after(80), true);
        assert_eq!(drain.within(Duration::from_secs(1)), 100);
        drain.dequeued(8, after(160), false);
        drain.dequeued(1, after(60_000), true);
        assert_eq!(drain.within(Duration::from_secs(1)), 100, "the queue was empty for a minute");
        drain.dequeued(8, after(60_240), true);
        assert!(drain.within(Duration::from_secs(1)) < 100);
    }
}
