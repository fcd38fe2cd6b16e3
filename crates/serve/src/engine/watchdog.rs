//! A thread that notices batches which do not end.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::EngineError;
use super::health::ReplicaHealth;

const INTERVAL: Duration = Duration::from_millis(100);

/// The replicas of all models; the thread ends when this value is dropped.
#[derive(Clone)]
pub(super) struct Watchdog(Arc<Mutex<Vec<Weak<ReplicaHealth>>>>);

impl Watchdog {
    pub fn start() -> Result<Self, EngineError> {
        let replicas = Arc::<Mutex<Vec<Weak<ReplicaHealth>>>>::default();
        let watched = Arc::downgrade(&replicas);
        let watch = move || {
            let mut last = Instant::now();
            while let Some(replicas) = watched.upgrade() {
                let now = Instant::now();
                // Where the process itself was stopped for a while, its batches were, too.
                if now - last < 5 * INTERVAL {
                    let replicas = replicas.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    replicas.iter().filter_map(Weak::upgrade).for_each(|replica| replica.check(now));
                }
                last = now;
                drop(replicas);
                thread::sleep(INTERVAL);
            }
        };
        let started = thread::Builder::new().name("watchdog".into()).spawn(watch);
        started.map_err(|error| EngineError::Thread(error.to_string()))?;
        Ok(Watchdog(replicas))
    }

    pub fn add(&self, replica: &Arc<ReplicaHealth>) {
        let mut replicas = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        replicas.retain(|replica| replica.strong_count() > 0);
        replicas.push(Arc::downgrade(replica));
    }
}
