//! A fork-join thread pool: each thread, the caller's included, owns a share of the numbered tasks and steals from the
//! other shares when its own is done. A share is a contiguous range of tasks, the same one in all calls with as many
//! tasks, so that a thread finds the same rows in its own caches.
//!
//! A call allocates nothing and never waits for a worker that is still asleep. Tasks run in no fixed order: a task must
//! write only memory that no other task of the same call touches.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a worker spins for the next call before it sleeps: longer than the gap between two operations of a model,
/// short enough to cost an idle machine nothing.
const SPIN: Duration = Duration::from_micros(50);

// The state word: the number of the call (from bit 16 on), whether workers may still enter it (bit 15), and how many
// are inside (the bits below).
const OPEN: u64 = 1 << 15;
const INSIDE: u64 = OPEN - 1;
const CALL: u64 = 1 << 16;

thread_local! {
    /// Whether this thread is inside a task: nested calls run inline.
    static IN_TASK: Cell<bool> = const { Cell::new(false) };
}

type Task<'a> = &'a (dyn Fn(usize, usize) + Sync);

struct Job {
    task: *const (dyn Fn(usize, usize) + Sync),
    tasks: usize,
}

/// How many tasks of a share have been started; a thread that finds none left may count beyond the end. Padded to two
/// cache lines against false sharing.
#[repr(align(128))]
struct ShareCounter(AtomicUsize);

struct PoolState {
    /// The state word, as above.
    state: AtomicU64,
    /// By share.
    started: Box<[ShareCounter]>,
    /// Workers that sleep or are about to.
    asleep: AtomicUsize,
    stop: AtomicBool,
    job: UnsafeCell<Option<Job>>,
    /// Guards only the two condition variables; the data is in the atomics.
    lock: Mutex<()>,
    /// Workers sleep on it until a call starts.
    work: Condvar,
    /// The caller sleeps on it until the last worker has left the call.
    done: Condvar,
    /// The first panic of a task.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is written only while the call is closed and no worker is inside, and read only by workers that are
// inside; the state word orders the two.
unsafe impl Sync for PoolState {}
// SAFETY: the pointer in `job` is to a `Sync` closure and is not used after the call that borrows it.
unsafe impl Send for PoolState {}

/// A fixed set of threads that run the tasks of one call at a time.
pub struct ThreadPool {
    shared: Arc<PoolState>,
    workers: Vec<JoinHandle<()>>,
    /// Held during a call; another thread that calls meanwhile runs its tasks alone.
    calling: Mutex<()>,
}

impl ThreadPool {
    /// A pool that runs on `threads` threads, the caller's included. Zero counts as one.
    pub fn new(threads: usize) -> ThreadPool {
        let threads = threads.clamp(1, INSIDE as usize);
        let shared = Arc::new(PoolState {
            state: AtomicU64::new(0),
            started: (0..threads).map(|_| ShareCounter(AtomicUsize::new(0))).collect(),
            asleep: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            job: UnsafeCell::new(None),
            lock: Mutex::new(()),
            work: Condvar::new(),
            done: Condvar::new(),
            panic: Mutex::new(None),
        });
        let (ready, is_ready) = std::sync::mpsc::channel();
        let workers: Vec<JoinHandle<()>> = (1..threads)
            .map_while(|index| {
                let (shared, ready) = (Arc::clone(&shared), ready.clone());
                let worker = move || {
                    let _ = ready.send(());
                    shared.work(index);
                };
                // Where the system refuses more threads, the pool runs on those it has.
                std::thread::Builder::new().name(format!("vit-cpu-{index}")).spawn(worker).ok()
            })
            .collect();
        // A thread allocates while it starts, and calls must not: wait until all have started.
        workers.iter().for_each(|_| {
            let _ = is_ready.recv();
        });
        ThreadPool { shared, workers, calling: Mutex::new(()) }
    }

    /// How many threads run tasks, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `task(i)` for every `i` below `tasks` and returns when all are done.
    ///
    /// A panic in a task is raised again here, after the others have stopped. A call from inside a task runs inline.
    pub fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        self.run_with_worker(tasks, &|i, _| task(i));
    }

    /// Like [`ThreadPool::run`], with the index of the thread as second argument: it is below [`ThreadPool::threads`],
    /// and no two tasks of this call that run at the same time have the same one.
    pub fn run_with_worker(&self, tasks: usize, task: &(dyn Fn(usize, usize) + Sync)) {
        let alone = tasks <= 1 || self.workers.is_empty() || IN_TASK.get();
        let guard = if alone {
            None
        } else {
            match self.calling.try_lock() {
                Ok(guard) => Some(guard),
                Err(std::sync::TryLockError::Poisoned(e)) => Some(e.into_inner()),
                Err(std::sync::TryLockError::WouldBlock) => None,
            }
        };
        match guard {
            Some(_guard) => self.fork(tasks, task),
            None => (0..tasks).for_each(|i| task(i, 0)),
        }
    }

    /// Divides `data` into chunks of `chunk` elements, the last of which may be shorter, and runs `task(i, chunk i)`
    /// for each.
    pub fn run_chunks<T: Send>(&self, data: &mut [T], chunk: usize, task: &(dyn Fn(usize, &mut [T]) + Sync)) {
        let len = data.len();
        let data = DisjointMut::new(data);
        self.run(len.div_ceil(chunk), &|i| {
            let start = i * chunk;
            // SAFETY: the chunks of tasks do not overlap.
            task(i, unsafe { data.slice(start, chunk.min(len - start)) });
        });
    }

    fn fork(&self, tasks: usize, task: Task<'_>) {
        let shared = &*self.shared;
        // SAFETY: the pointer is last used before this function returns, while `task` is borrowed.
        let task_ptr: *const (dyn Fn(usize, usize) + Sync + 'static) =
            unsafe { std::mem::transmute::<Task<'_>, Task<'static>>(task) };
        // SAFETY: the call before is closed and no worker is inside, so no thread reads the job.
        unsafe {
            *shared.job.get() = Some(Job { task: task_ptr, tasks });
        }
        shared.started.iter().for_each(|share| share.0.store(0, Ordering::Relaxed));
        let call = (shared.state.load(Ordering::Relaxed) & !(CALL - 1)).wrapping_add(CALL);
        // SeqCst on `state` and `asleep`: the caller sees the sleeper or the sleeper sees the call, so no wake-up is
        // lost.
        shared.state.store(call | OPEN, Ordering::SeqCst);
        if shared.asleep.load(Ordering::SeqCst) > 0 {
            shared.wake(&shared.work);
        }

        shared.run_tasks(task, tasks, 0);

        let mut state = shared.state.fetch_and(!OPEN, Ordering::AcqRel) & !OPEN;
        let start = Instant::now();
        while state & INSIDE != 0 {
            if start.elapsed() < SPIN {
                for _ in 0..16 {
                    std::hint::spin_loop();
                }
                state = shared.state.load(Ordering::Acquire);
                continue;
            }
            let mut guard = shared.guard();
            state = shared.state.load(Ordering::Acquire);
            while state & INSIDE != 0 {
                guard = shared.done.wait(guard).unwrap_or_else(PoisonError::into_inner);
                state = shared.state.load(Ordering::Acquire);
            }
        }
        let panic = shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.wake(&self.shared.work);
        for worker in self.workers.drain(..) {
            // A worker catches the panics of its tasks, so it does not end with one.
            let _ = worker.join();
        }
    }
}

impl PoolState {
    fn guard(&self) -> MutexGuard<'_, ()> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the threads that sleep or have decided to. They decide under the lock, so all of them sleep once it has
    /// been taken. It is released before they are woken: a thread that wakes has to take it, and would sleep again.
    fn wake(&self, sleepers: &Condvar) {
        drop(self.guard());
        sleepers.notify_all();
    }

    /// Runs tasks until none is left, first those of the thread's own share. A panic ends the call on all threads and
    /// is kept for the caller.
    fn run_tasks(&self, task: Task<'_>, tasks: usize, worker: usize) {
        let shares = self.started.len();
        IN_TASK.set(true);
        let result = catch_unwind(AssertUnwindSafe(|| {
            for share in (worker..shares).chain(0..worker) {
                let (start, end) = (share * tasks / shares, (share + 1) * tasks / shares);
                let started = &self.started[share].0;
                // A load leaves the cache line shared, where `fetch_add` on a finished share would take it from its
                // owner.
                while started.load(Ordering::Relaxed) < end - start {
                    let i = start + started.fetch_add(1, Ordering::Relaxed);
                    if i >= end {
                        break;
                    }
                    task(i, worker);
                }
            }
        }));
        IN_TASK.set(false);
        if let Err(payload) = result {
            self.started.iter().for_each(|share| share.0.store(tasks, Ordering::Relaxed));
            let mut panic = self.panic.lock().unwrap_or_else(PoisonError::into_inner);
            panic.get_or_insert(payload);
        }
    }

    fn work(&self, worker: usize) {
        let mut last = 0;
        while let Some(call) = self.wait_for_call(last) {
            last = call;
            // SAFETY: this worker has entered the call, and the caller keeps the job until all workers have left.
            let job = unsafe { &*self.job.get() };
            if let Some(job) = job {
                // SAFETY: as above, and the caller keeps the closure as long.
                self.run_tasks(unsafe { &*job.task }, job.tasks, worker);
            }
            let state = self.state.fetch_sub(1, Ordering::AcqRel) - 1;
            if state & (OPEN | INSIDE) == 0 {
                self.wake(&self.done);
            }
        }
    }

    /// Waits for a call other than `last` and enters it; `None` when the pool is dropped.
    fn wait_for_call(&self, last: u64) -> Option<u64> {
        let mut start = Instant::now();
        loop {
            if self.stop.load(Ordering::Acquire) {
                return None;
            }
            let state = self.state.load(Ordering::SeqCst);
            let call = state / CALL;
            if state & OPEN != 0 && call != last {
                let entered = self.state.compare_exchange_weak(state, state + 1, Ordering::AcqRel, Ordering::Relaxed);
                if entered.is_ok() {
                    return Some(call);
                }
                continue;
            }
            if start.elapsed() < SPIN {
                for _ in 0..16 {
                    std::hint::spin_loop();
                }
                continue;
            }
            let guard = self.guard();
            self.asleep.fetch_add(1, Ordering::SeqCst);
            let state = self.state.load(Ordering::SeqCst);
            let nothing_new = state & OPEN == 0 || state / CALL == last;
            if nothing_new && !self.stop.load(Ordering::SeqCst) {
                drop(self.work.wait(guard).unwrap_or_else(PoisonError::into_inner));
            }
            self.asleep.fetch_sub(1, Ordering::SeqCst);
            start = Instant::now();
        }
    }
}

/// A mutable slice of which each task takes its own, disjoint range.
pub(crate) struct DisjointMut<'a, T> {
    start: *mut T,
    len: usize,
    _slice: PhantomData<&'a mut [T]>,
}

// SAFETY: ranges are handed out by an unsafe function whose callers keep them disjoint.
unsafe impl<T: Send> Sync for DisjointMut<'_, T> {}
// SAFETY: it stands for a `&mut [T]`.
unsafe impl<T: Send> Send for DisjointMut<'_, T> {}

impl<'a, T> DisjointMut<'a, T> {
    pub(crate) fn new(data: &'a mut [T]) -> Self {
        DisjointMut { start: data.as_mut_ptr(), len: data.len(), _slice: PhantomData }
    }

    /// A pointer to an element, or to the end.
    pub(crate) fn at(&self, start: usize) -> *mut T {
        assert!(start <= self.len, "element {start} of {}", self.len);
        self.start.wrapping_add(start)
    }

    /// # Safety
    /// No other slice or pointer may be used for elements of this range while the slice is alive.
    #[allow(clippy::mut_from_ref)]
    pub(crate) unsafe fn slice(&self, start: usize, len: usize) -> &'a mut [T] {
        assert!(start <= self.len && len <= self.len - start, "elements {start}+{len} of {}", self.len);
        // SAFETY: in bounds by the assertion, disjoint by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), len) }
    }
}
