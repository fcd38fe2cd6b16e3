//! Reads that run ahead of their use. Announced extents wait in a queue; up to [`IN_FLIGHT`] of them are requested at a
//! time, as long as the results that wait for their readers take at most [`HELD_BYTES`].

use std::collections::{BTreeMap, HashMap};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use super::{Client, RemoteObject, repeated};
use crate::error::StorageError;

/// Requests at a time. At 20 ms, that is 3,200 objects per second.
const IN_FLIGHT: usize = 64;

/// Bytes that are requested or wait for their readers.
const HELD_BYTES: u64 = 256 << 20;

/// The assumed size of an object that was not listed or opened.
const UNKNOWN_BYTES: u64 = 1 << 20;

/// Readers take extents nearly in the order of the announcements. One that is this far behind was given up by its reader,
/// such as a loader that has ended.
const GIVEN_UP: u64 = 1 << 14;

#[derive(Default)]
pub(super) struct ReadAhead {
    state: Mutex<ReadAheadState>,
    finished: Condvar,
}

#[derive(Default)]
struct ReadAheadState {
    entries: HashMap<ExtentKey, Entry>,
    /// Extents in the order of their announcements.
    order: BTreeMap<u64, ExtentKey>,
    /// The first announcement that may still wait for its request.
    next: u64,
    announced: u64,
    in_flight: usize,
    held: u64,
}

/// An object by the hash of its URL, and the range of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ExtentKey {
    object: u128,
    range: Option<(u64, u64)>,
}

struct Entry {
    number: u64,
    bytes: u64,
    /// The number of reads that were announced.
    readers: u32,
    progress: Progress,
}

enum Progress {
    Waiting(RemoteObject),
    Requested,
    Finished(Result<Bytes, StorageError>),
}

impl ReadAhead {
    fn state(&self) -> MutexGuard<'_, ReadAheadState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn announce(
        &self,
        client: &'static Client,
        objects: impl Iterator<Item = (RemoteObject, Option<(u64, u64)>)>,
    ) {
        let mut state = self.state();
        for (object, range) in objects {
            let key = ExtentKey { object: object.hash(), range };
            if let Some(entry) = state.entries.get_mut(&key) {
                entry.readers += 1;
                continue;
            }
            let known = || client.known(&object).map_or(UNKNOWN_BYTES, |known| known.bytes);
            let bytes = range.map_or_else(known, |(_, length)| length);
            let number = state.announced;
            state.announced += 1;
            state.order.insert(number, key);
            state.entries.insert(key, Entry { number, bytes, readers: 1, progress: Progress::Waiting(object) });
        }
        self.request(client, state);
    }

    /// Starts requests as far as the limits allow.
    fn request(&self, client: &'static Client, mut state: MutexGuard<ReadAheadState>) {
        while state.in_flight < IN_FLIGHT {
            let Some((number, key)) = state.order.range(state.next..).next().map(|(number, key)| (*number, *key))
            else {
                state.next = state.announced;
                return;
            };
            let held = state.held;
            let Some(entry) = state.entries.get_mut(&key) else {
                state.next = number + 1;
                continue;
            };
            let bytes = entry.bytes;
            // One extent may always be on its way, whatever its size.
            if held > 0 && held + bytes > HELD_BYTES {
                return;
            }
            state.next = number + 1;
            let Some(entry) = state.entries.get_mut(&key) else { continue };
            let Progress::Waiting(object) = std::mem::replace(&mut entry.progress, Progress::Requested) else {
                continue;
            };
            state.in_flight += 1;
            state.held += bytes;
            client.runtime.spawn(async move {
                let result = repeated(|| client.fetch(&object, key.range)).await;
                client.read_ahead.finish(client, key, result);
            });
        }
    }

    fn finish(&self, client: &'static Client, key: ExtentKey, result: Result<Bytes, StorageError>) {
        let mut state = self.state();
        state.in_flight -= 1;
        let finished = state.entries.get_mut(&key).map(|entry| {
            let before = entry.bytes;
            entry.bytes = result.as_ref().map_or(0, |bytes| bytes.len() as u64);
            entry.progress = Progress::Finished(result);
            (before, entry.bytes)
        });
        if let Some((before, now)) = finished {
            state.held = state.held - before + now;
        }
        self.finished.notify_all();
        self.request(client, state);
    }

    /// The result of an announced extent, after waiting if it is on its way. `None` if it was not announced or is still in
    /// the queue, so that its reader requests it without delay.
    pub(super) fn take(&self, object: &RemoteObject, range: Option<(u64, u64)>) -> Option<Result<Bytes, StorageError>> {
        let key = ExtentKey { object: object.hash(), range };
        let mut state = self.state();
        loop {
            let entry = state.entries.get_mut(&key)?;
            match &entry.progress {
                Progress::Waiting(_) => {
                    state.remove(key);
                    return None;
                }
                Progress::Requested => {
                    state = self.finished.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                Progress::Finished(result) => {
                    let (result, number) = (result.clone(), entry.number);
                    entry.readers -= 1;
                    if entry.readers == 0 {
                        state.remove(key);
                    }
                    state.remove_given_up(number);
                    if let Ok(client) = super::client() {
                        self.request(client, state);
                    }
                    return Some(result);
                }
            }
        }
    }
}

impl ReadAheadState {
    fn remove(&mut self, key: ExtentKey) {
        if let Some(entry) = self.entries.remove(&key) {
            self.order.remove(&entry.number);
            if matches!(entry.progress, Progress::Finished(_)) {
                self.held -= entry.bytes;
            }
        }
    }

    /// Drops results that were not read although many later ones were.
    fn remove_given_up(&mut self, number: u64) {
        while let Some((first, key)) = self.order.first_key_value().map(|(first, key)| (*first, *key))
            && first + GIVEN_UP < number
        {
            let is_requested =
                self.entries.get(&key).is_some_and(|entry| matches!(entry.progress, Progress::Requested));
            if is_requested {
                return;
            }
            self.remove(key);
            self.order.remove(&first);
        }
    }
}
