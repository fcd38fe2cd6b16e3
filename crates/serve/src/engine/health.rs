//! Whether the devices of a model work, and the tasks that they are computing.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::WorkError;
use super::queue::{ModelQueue, Task};

/// A task of a batch and when its image was decoded.
pub(super) type BatchTask = (Task, Instant);

/// The tasks of a batch on a device. Whoever takes them answers them: its replica, or the watchdog if the device hangs.
pub(super) struct Flight {
    tasks: Mutex<Option<Vec<BatchTask>>>,
    /// When the batch takes absurdly long.
    limit: Instant,
}

impl Flight {
    pub fn take(&self) -> Option<Vec<BatchTask>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub fn fail(&self, error: &WorkError) {
        self.take().into_iter().flatten().for_each(|(task, _)| task.fail(error.clone()));
    }
}

/// The health of one replica.
pub(super) struct ReplicaHealth {
    queue: Arc<ModelQueue>,
    /// Replicas of the model that work.
    working: Arc<AtomicUsize>,
    state: Mutex<HealthState>,
}

#[derive(Default)]
struct HealthState {
    lost: Option<String>,
    flights: Vec<Arc<Flight>>,
}

impl ReplicaHealth {
    /// Of a replica that works.
    pub fn new(queue: Arc<ModelQueue>, working: Arc<AtomicUsize>) -> Self {
        working.fetch_add(1, Ordering::SeqCst);
        ReplicaHealth { queue, working, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, HealthState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn is_lost(&self) -> bool {
        self.lock().lost.is_some()
    }

    /// Registers the tasks of a batch that should take `expected`.
    pub fn begin(&self, tasks: Vec<BatchTask>, expected: Duration) -> Arc<Flight> {
        let limit = Instant::now() + Duration::from_millis(250) + 30 * expected;
        let flight = Arc::new(Flight { tasks: Mutex::new(Some(tasks)), limit });
        self.lock().flights.push(flight.clone());
        flight
    }

    pub fn end(&self, flight: &Arc<Flight>) {
        self.lock().flights.retain(|other| !Arc::ptr_eq(other, flight));
    }

    /// Marks the replica as lost and fails its batches; if it was the last of its model, all waiting images fail, too.
    pub fn lose(&self, reason: &str) {
        let mut state = self.lock();
        let flights = std::mem::take(&mut state.flights);
        let first = state.lost.replace(reason.into()).is_none();
        if first && self.working.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.queue.lose(reason);
        }
        drop(state);
        let error = WorkError::DeviceLost(reason.into());
        flights.iter().for_each(|flight| flight.fail(&error));
    }

    /// The replica works again.
    pub fn recover(&self) {
        let mut state = self.lock();
        if state.lost.take().is_some() {
            self.working.fetch_add(1, Ordering::SeqCst);
            self.queue.recover();
        }
    }

    /// Loses the replica if one of its batches has not ended in time.
    pub fn check(&self, now: Instant) {
        let late = self.lock().flights.iter().any(|flight| flight.limit <= now);
        if late {
            self.lose("a batch does not end");
        }
    }
}
