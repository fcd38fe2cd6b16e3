//! The thread that exchanges values with other processes while kernels run.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use vit_graph::GraphError;
use vit_graph::exchange::{Collective, Exchange};

/// Ranges of an executable's arena that are exchanged as one message.
pub(crate) struct Bucket {
    pub collective: Collective,
    /// In the order of the message.
    pub pieces: Vec<BucketRange>,
    /// The number of elements of each process, if processes have slices.
    pub lengths: Vec<usize>,
    /// The whole value if the bucket has only one: the message is then its memory, and nothing is copied.
    pub only: Option<BucketRange>,
}

/// Elements of one value.
pub(crate) struct BucketRange(pub *mut [f32]);

// SAFETY: a pointer; `ExchangeThread::start` states who may use it when.
unsafe impl Send for BucketRange {}
// SAFETY: as above.
unsafe impl Sync for BucketRange {}

/// A thread with a queue of buckets, exchanged in the order of the queue.
pub(crate) struct ExchangeThread {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    waiting: VecDeque<Arc<Bucket>>,
    /// How many buckets were started and finished since the thread began.
    started: u64,
    finished: u64,
    /// Set once; no bucket is exchanged afterwards.
    failed: Option<GraphError>,
    ending: bool,
}

impl ExchangeThread {
    pub fn new(exchange: Arc<dyn Exchange>) -> Self {
        let queue = Arc::new(Queue::default());
        let shared = queue.clone();
        let work = move || shared.work(exchange.as_ref());
        let thread = std::thread::Builder::new().name("vit-exchange".into()).spawn(work);
        if let Err(error) = &thread {
            let why = format!("cannot start the thread that exchanges gradients: {error}");
            queue.lock().failed = Some(GraphError::Exchange(why));
        }
        ExchangeThread { queue, thread: thread.ok() }
    }

    /// Queues a bucket and returns its number for [`ExchangeThread::wait`].
    ///
    /// # Safety
    /// The memory of the bucket must stay allocated, and only the thread may use it, until `wait` has returned for this
    /// number.
    pub unsafe fn start(&self, bucket: &Arc<Bucket>) -> u64 {
        let mut state = self.queue.lock();
        state.started += 1;
        if state.failed.is_some() {
            state.finished = state.started;
        } else {
            state.waiting.push_back(bucket.clone());
            self.queue.changed.notify_all();
        }
        state.started
    }

    /// Waits until a bucket has been exchanged. Even after an error the thread no longer uses its memory.
    pub fn wait(&self, number: u64) -> Result<(), GraphError> {
        let mut state = self.queue.lock();
        while state.finished < number {
            state = self.queue.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.failed.clone().map_or(Ok(()), Err)
    }
}

impl Drop for ExchangeThread {
    fn drop(&mut self) {
        self.queue.lock().ending = true;
        self.queue.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // Its errors are those of the buckets.
            let _ = thread.join();
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread's loop.
    fn work(&self, exchange: &dyn Exchange) {
        let mut message = Vec::new();
        let mut state = self.lock();
        loop {
            if let Some(bucket) = state.waiting.pop_front() {
                drop(state);
                let outcome = exchange_bucket(exchange, &bucket, &mut message);
                state = self.lock();
                state.finished += 1;
                if let Err(error) = outcome {
                    state.failed = Some(error);
                    state.waiting.clear();
                    state.finished = state.started;
                }
                self.changed.notify_all();
            } else if state.ending {
                return;
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

fn exchange_bucket(exchange: &dyn Exchange, bucket: &Bucket, message: &mut Vec<f32>) -> Result<(), GraphError> {
    let Bucket { collective, pieces, lengths, only } = bucket;
    if let Some(BucketRange(only)) = only {
        // SAFETY: the caller of `start` leaves the memory to this thread.
        return collective.exchange(exchange, unsafe { &mut **only }, lengths);
    }
    message.clear();
    for BucketRange(piece) in pieces {
        // SAFETY: as above.
        message.extend_from_slice(unsafe { &**piece });
    }
    collective.exchange(exchange, message, lengths)?;
    let mut rest = message.as_slice();
    for BucketRange(piece) in pieces {
        // SAFETY: as above; pieces do not overlap.
        let to = unsafe { &mut **piece };
        let (exchanged, after) = rest.split_at(to.len());
        to.copy_from_slice(exchanged);
        rest = after;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Doubles values, as two processes with equal ones would; fails at a negative value.
    struct Twice;

    impl Exchange for Twice {
        fn processes(&self) -> usize {
            2
        }

        fn rank(&self) -> usize {
            0
        }

        fn fixed_order(&self) -> bool {
            true
        }

        fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, GraphError> {
            Ok(vec![bytes.to_vec(); 2])
        }

        fn all_reduce(&self, values: &mut [f32]) -> Result<(), GraphError> {
            if values[0] < 0.0 {
                return Err(GraphError::Exchange("rank 1 on node7 ended".into()));
            }
            values.iter_mut().for_each(|v| *v *= 2.0);
            Ok(())
        }

        fn reduce_scatter(&self, values: &mut [f32], _: &[usize]) -> Result<(), GraphError> {
            self.all_reduce(values)
        }

        fn all_gather_slices(&self, _: &mut [f32], _: &[usize]) -> Result<(), GraphError> {
            Ok(())
        }
    }

    #[test]
    fn buckets_are_exchanged_in_order_and_an_error_ends_the_exchange() {
        let thread = ExchangeThread::new(Arc::new(Twice));
        let mut values: [Vec<f32>; 4] = [vec![1.0, 2.0], vec![3.0], vec![-1.0], vec![5.0]];
        let ranges: Vec<*mut [f32]> = values.iter_mut().map(|v| v.as_mut_slice() as *mut [f32]).collect();
        let bucket = |ranges: &[*mut [f32]]| {
            let pieces = ranges.iter().map(|&range| BucketRange(range)).collect();
            Arc::new(Bucket { collective: Collective::AllReduce, pieces, lengths: vec![], only: None })
        };
        // SAFETY: `values` outlives the waits below and is not used before them.
        let [good, bad, late] =
            [&ranges[..2], &ranges[2..3], &ranges[3..]].map(|ranges| unsafe { thread.start(&bucket(ranges)) });
        thread.wait(good).ok();
        assert_eq!(thread.wait(bad), Err(GraphError::Exchange("rank 1 on node7 ended".into())));
        assert!(thread.wait(late).is_err());
        assert_eq!(values, [vec![2.0, 4.0], vec![6.0], vec![-1.0], vec![5.0]]);
    }
}
