//! Worker threads that prepare items in any order while the consumer receives them in order, with a bounded number of
//! items ahead. Training ([`Loader`](crate::Loader)), evaluation and inference ([`Pipeline`]) all run on it. A panic of
//! a worker is an error for the consumer.

use crate::loader::LoaderError;
use std::any::Any;
use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Prepares images on worker threads and delivers them in order.
pub struct Pipeline<'a> {
    /// Worker threads, at least 1.
    pub threads: usize,
    /// Images that may be prepared before the consumer needs them, at least 1.
    pub look_ahead: usize,
    /// The name of an image, for the error after a panic.
    pub name: &'a (dyn Fn(usize) -> String + Sync),
}

impl Pipeline<'_> {
    /// Calls `prepare` for each of `count` images on worker threads, and `each` with the results on this thread, in
    /// order, until `each` breaks or fails.
    ///
    /// ```
    /// use std::ops::ControlFlow;
    /// use vit_data::{LoaderError, Pipeline};
    ///
    /// let pipeline = Pipeline { threads: 2, look_ahead: 4, name: &|index| format!("{index}.jpg") };
    /// let mut squares = Vec::new();
    /// let end = pipeline.run(10, |index| index * index, |_, square| {
    ///     squares.push(square);
    ///     Ok::<_, LoaderError>(if square < 16 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
    /// })?;
    /// assert_eq!((squares, end), (vec![0, 1, 4, 9, 16], ControlFlow::Break(())));
    /// # Ok::<(), LoaderError>(())
    /// ```
    pub fn run<T: Send, E: From<LoaderError>>(
        &self,
        count: usize,
        prepare: impl Fn(usize) -> T + Sync,
        mut each: impl FnMut(usize, T) -> Result<ControlFlow<()>, E>,
    ) -> Result<ControlFlow<()>, E> {
        let queue = OrderedQueue::new(0..count as u64, self.look_ahead);
        let work = |item: u64| {
            let index = item as usize;
            catch_unwind(AssertUnwindSafe(|| prepare(index)))
                .map_err(|panic| LoaderError::Panic { name: (self.name)(index), message: panic_message(&*panic) })
        };
        std::thread::scope(|scope| {
            // However this scope is left, the workers must end, or it would wait for them.
            let _stop = StopOnDrop(&queue);
            for _ in 0..self.threads.clamp(1, count.max(1)) {
                let worker = || queue.work(|item| item, work);
                std::thread::Builder::new()
                    .spawn_scoped(scope, worker)
                    .map_err(|error| LoaderError::Thread(error.to_string()))?;
            }
            for index in 0..count {
                let prepared = queue.receive(1, || {})?.ok_or(LoaderError::Stopped)??;
                if each(index, prepared)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
            Ok(ControlFlow::Continue(()))
        })
    }
}

struct StopOnDrop<'a, T>(&'a OrderedQueue<T>);

impl<T> Drop for StopOnDrop<'_, T> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Numbered items: workers take them in order and finish them in any order, the consumer receives them in order.
pub(crate) struct OrderedQueue<T> {
    state: Mutex<QueueState<T>>,
    /// The most items taken by workers and not yet received.
    look_ahead: usize,
    /// An item can be taken, or the queue was stopped.
    work: Condvar,
    /// An item is finished, or a worker panicked.
    ready: Condvar,
    stopped: AtomicBool,
}

struct QueueState<T> {
    /// The item that the consumer receives next.
    first: u64,
    /// The item after the last.
    end: u64,
    /// The items from `first` on that workers have taken; `None` until finished.
    taken: VecDeque<Option<T>>,
    /// How many items the consumer waits for; 0 while it does not wait.
    awaited: usize,
    /// The message of a worker's panic: the item it had taken will never be finished.
    panic: Option<String>,
}

impl<T> QueueState<T> {
    /// Whether the next `count` items are finished.
    fn is_ready(&self, count: usize) -> bool {
        self.taken.len() >= count && self.taken.iter().take(count).all(Option::is_some)
    }
}

impl<T> OrderedQueue<T> {
    pub(crate) fn new(items: Range<u64>, look_ahead: usize) -> Self {
        let state = QueueState { first: items.start, end: items.end, taken: VecDeque::new(), awaited: 0, panic: None };
        Self {
            state: Mutex::new(state),
            look_ahead: look_ahead.max(1),
            work: Condvar::new(),
            ready: Condvar::new(),
            stopped: AtomicBool::new(false),
        }
    }

    /// Ends all workers, each after its current item.
    pub(crate) fn stop(&self) {
        let _state = lock(&self.state);
        self.stopped.store(true, Ordering::Relaxed);
        self.work.notify_all();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// The loop of a worker thread. `start` runs under the queue's lock and so in the order of the items; `prepare` runs
    /// without it.
    pub(crate) fn work<S>(&self, mut start: impl FnMut(u64) -> S, mut prepare: impl FnMut(S) -> T) {
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            while let Some((item, started)) = self.take(&mut start) {
                let prepared = prepare(started);
                let mut state = lock(&self.state);
                // The consumer cannot be past an item that is not finished.
                let place = (item - state.first) as usize;
                state.taken[place] = Some(prepared);
                if state.awaited > 0 && state.is_ready(state.awaited) {
                    self.ready.notify_all();
                }
            }
        }));
        if let Err(panic) = outcome {
            lock(&self.state).panic = Some(panic_message(&*panic));
            self.ready.notify_all();
        }
    }

    fn take<S>(&self, start: &mut impl FnMut(u64) -> S) -> Option<(u64, S)> {
        let mut state = lock(&self.state);
        loop {
            let item = state.first + state.taken.len() as u64;
            if self.is_stopped() || item >= state.end {
                return None;
            }
            if state.taken.len() < self.look_ahead {
                let started = start(item);
                state.taken.push_back(None);
                return Some((item, started));
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until the next `count` items are finished and gives the last of them; calls `waiting` if they are not yet.
    pub(crate) fn receive(&self, count: usize, waiting: impl FnOnce()) -> Result<Option<T>, LoaderError> {
        let mut state = lock(&self.state);
        if !state.is_ready(count) {
            waiting();
        }
        state.awaited = count;
        while !state.is_ready(count) {
            if let Some(message) = &state.panic {
                return Err(LoaderError::Panic { name: "a batch".to_owned(), message: message.clone() });
            }
            state = self.ready.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.awaited = 0;
        state.first += count as u64;
        let last = state.taken.drain(..count).last().flatten();
        self.work.notify_all();
        Ok(last)
    }
}

/// No state that is guarded here can be left half changed by a panic.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    fn pipeline(threads: usize, look_ahead: usize) -> Pipeline<'static> {
        Pipeline { threads, look_ahead, name: &|index| format!("image {index}") }
    }

    #[test]
    fn results_come_in_order_and_no_worker_runs_too_far_ahead() {
        for (threads, look_ahead) in [(1, 1), (4, 3), (3, 100)] {
            let (started, mut received) = (AtomicUsize::new(0), 0);
            let prepare = |index: usize| {
                started.fetch_max(index + 1, Ordering::Relaxed);
                // Later ones are faster, so that threads finish in another order than they start.
                std::thread::sleep(Duration::from_micros(200 / (index as u64 % 3 + 1)));
                index
            };
            let end = pipeline(threads, look_ahead).run(50, prepare, |index, prepared| {
                assert_eq!((index, prepared), (received, received));
                received += 1;
                assert!(started.load(Ordering::Relaxed) <= index + 1 + look_ahead);
                Ok::<_, LoaderError>(ControlFlow::Continue(()))
            });
            assert_eq!((end, received), (Ok(ControlFlow::Continue(())), 50));
        }
    }

    #[test]
    fn a_panic_of_a_worker_is_an_error_that_names_the_image() {
        let mut received = 0;
        let prepare = |index: usize| assert_ne!(index, 7, "the decoder broke down");
        let end = pipeline(3, 4).run(20, prepare, |_, ()| {
            received += 1;
            Ok::<_, LoaderError>(ControlFlow::Continue(()))
        });
        let Err(LoaderError::Panic { name, message }) = end else { panic!("{end:?}") };
        assert_eq!((received, name.as_str()), (7, "image 7"));
        assert!(message.contains("the decoder broke down"), "{message}");
    }

    #[test]
    fn errors_and_breaks_of_the_consumer_end_the_workers() {
        let failed = pipeline(3, 2).run(
            1000,
            |index| index,
            |index, _| match index {
                5 => Err(LoaderError::Batch),
                _ => Ok(ControlFlow::Continue(())),
            },
        );
        assert_eq!(failed, Err(LoaderError::Batch));
        let nothing = pipeline(3, 2).run(0, |index| index, |_, _| Err(LoaderError::Batch));
        assert_eq!(nothing, Ok(ControlFlow::Continue(())));
    }
}
