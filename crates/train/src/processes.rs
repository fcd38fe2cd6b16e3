//! The processes that train one model together. Rank 0 writes the run's folder and reports; all of them take the same steps.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vit_cluster::{ClusterError, Communicator, Health, Incoming, Outgoing, Reduce};
use vit_data::loader::BatchParts;
use vit_graph::GraphError;
use vit_graph::exchange::Exchange;

use crate::error::TrainError;

/// This process among those of a run; by default the only one.
#[derive(Clone)]
pub struct Processes {
    rank: usize,
    size: usize,
    /// The connection to the others, if there are any.
    group: Option<Arc<ProcessGroup>>,
}

impl Default for Processes {
    fn default() -> Self {
        Processes::planned(1)
    }
}

struct ProcessGroup {
    communicator: Mutex<Communicator>,
    health: Health,
    reduce: Reduce,
    rank: usize,
    size: usize,
}

impl std::fmt::Debug for Processes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "rank {} of {}", self.rank(), self.size())
    }
}

impl PartialEq for Processes {
    fn eq(&self, other: &Self) -> bool {
        (self.rank(), self.size()) == (other.rank(), other.size())
    }
}

impl Processes {
    /// The processes at the other ends of a communicator.
    pub fn new(communicator: Communicator, reduce: Reduce) -> Processes {
        let (rank, size, health) = (communicator.rank(), communicator.size(), communicator.health());
        let group = ProcessGroup { communicator: Mutex::new(communicator), health, reduce, rank, size };
        Processes { rank, size, group: (size > 1).then(|| Arc::new(group)) }
    }

    /// The first of so many processes without the others: for the memory that a run would take, and not for running it.
    pub fn planned(size: usize) -> Processes {
        Processes { rank: 0, size, group: None }
    }

    /// The number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of processes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether this is the process that writes the run's folder.
    pub fn is_root(&self) -> bool {
        self.rank() == 0
    }

    /// Tells the others that this process ends with an error, so that they end, too.
    pub fn fail(&self, reason: &str) {
        if let Some(group) = &self.group {
            group.health.fail(reason);
        }
    }

    /// The first failure of any process that this one noticed or was told of.
    pub fn failure(&self) -> Option<ClusterError> {
        self.group.as_ref().and_then(|group| group.health.failure())
    }

    /// The exchange of gradients, for the device.
    pub fn exchange(&self) -> Option<Arc<dyn Exchange>> {
        self.group.clone().map(|group| group as Arc<dyn Exchange>)
    }

    /// The parts of a batch that this process computes.
    pub(crate) fn parts(&self, count: usize) -> BatchParts {
        BatchParts::of_process(count.max(1), self.rank(), self.size())
    }

    /// Why a batch of so many parts cannot be divided among these processes to the same bits.
    pub(crate) fn misfit(&self, parts: usize) -> Option<String> {
        let Some(group) = &self.group else { return None };
        let size = group.size;
        if size > parts {
            let what = match parts {
                1 => "does not cut its batch into parts".into(),
                _ => format!("cuts its batch into {parts} parts"),
            };
            return Some(format!("the run {what}, so it has at most {parts} processes and not {size}"));
        }
        (group.reduce == Reduce::Tree && !size.is_power_of_two())
            .then(|| format!("{size} is not a power of two, which sums in a fixed order need; start {less} or {more} processes, or choose the fast reduction", less = size.next_power_of_two() / 2, more = size.next_power_of_two()))
    }

    fn lock(&self) -> Option<MutexGuard<'_, Communicator>> {
        self.group.as_ref().map(|group| group.communicator.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Bytes of the root for all processes.
    pub(crate) fn broadcast(&self, bytes: Vec<u8>) -> Result<Vec<u8>, ClusterError> {
        let Some(mut communicator) = self.lock() else { return Ok(bytes) };
        let mut length = [bytes.len() as u64];
        communicator.broadcast(0, &mut length)?;
        let mut bytes = bytes;
        bytes.resize(length[0] as usize, 0);
        communicator.broadcast(0, &mut bytes)?;
        Ok(bytes)
    }

    /// The bytes of all processes, for the root; `None` in the others.
    pub(crate) fn gather(&self, bytes: Vec<u8>) -> Result<Option<Vec<Vec<u8>>>, ClusterError> {
        let Some(mut communicator) = self.lock() else { return Ok(Some(vec![bytes])) };
        let mut lengths = vec![0; self.size()];
        lengths[self.rank()] = bytes.len() as u64;
        communicator.all_gather(&mut lengths)?;
        if !self.is_root() {
            communicator.exchange(&[Outgoing { to: 0, bytes: &bytes }], &mut [])?;
            return Ok(None);
        }
        let mut gathered: Vec<Vec<u8>> = lengths.iter().map(|&length| vec![0; length as usize]).collect();
        let mut incoming: Vec<Incoming> =
            gathered.iter_mut().enumerate().skip(1).map(|(from, bytes)| Incoming { from, bytes }).collect();
        communicator.exchange(&[], &mut incoming)?;
        gathered[0] = bytes;
        Ok(Some(gathered))
    }

    /// What the root says, for all processes.
    pub(crate) fn of_root(&self, yes: bool) -> Result<bool, ClusterError> {
        Ok(self.broadcast(vec![u8::from(yes)])? == [1])
    }

    /// Whether it holds in all processes.
    pub(crate) fn all(&self, yes: bool) -> Result<bool, ClusterError> {
        let Some(mut communicator) = self.lock() else { return Ok(yes) };
        Ok(communicator.all_gather_bytes(&[u8::from(yes)])?.iter().all(|one| *one == [1]))
    }

    /// Values whose slices of these lengths the processes have, in all of them.
    pub(crate) fn all_gather_slices(&self, values: &mut [f32], lengths: &[usize]) -> Result<(), GraphError> {
        self.group.as_ref().map_or(Ok(()), |group| group.all_gather_slices(values, lengths))
    }

    /// Returns when all processes have called it.
    pub(crate) fn barrier(&self) -> Result<(), ClusterError> {
        self.lock().map_or(Ok(()), |mut communicator| communicator.barrier())
    }

    /// Checks that something is the same in all processes; an error names the first in which it differs from rank 0.
    pub(crate) fn ensure_same(&self, what: &str, here: &str) -> Result<(), TrainError> {
        let Some(mut communicator) = self.lock() else { return Ok(()) };
        let all = communicator.all_gather_bytes(here.as_bytes())?;
        let Some(rank) = all.iter().position(|one| *one != all[0]) else { return Ok(()) };
        let (one, first) = (String::from_utf8_lossy(&all[rank]), String::from_utf8_lossy(&all[0]));
        let (mut lines, host) = (one.lines().zip(first.lines()), communicator.host(rank));
        let (one, first) = lines.find(|(one, first)| one != first).unwrap_or((&one, &first));
        Err(TrainError::Unsuitable(format!(
            "rank {rank} on {host} has another {what} than rank 0: {one:?} and not {first:?}"
        )))
    }
}

impl Exchange for ProcessGroup {
    fn processes(&self) -> usize {
        self.size
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn fixed_order(&self) -> bool {
        self.reduce == Reduce::Tree
    }

    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, GraphError> {
        let mut communicator = self.communicator.lock().unwrap_or_else(PoisonError::into_inner);
        communicator.all_gather_bytes(bytes).map_err(|error| GraphError::Exchange(error.to_string()))
    }

    fn all_reduce(&self, values: &mut [f32]) -> Result<(), GraphError> {
        let mut communicator = self.communicator.lock().unwrap_or_else(PoisonError::into_inner);
        communicator.all_reduce(values, self.reduce).map_err(|error| GraphError::Exchange(error.to_string()))
    }

    fn reduce_scatter(&self, values: &mut [f32], lengths: &[usize]) -> Result<(), GraphError> {
        let mut communicator = self.communicator.lock().unwrap_or_else(PoisonError::into_inner);
        let sums = communicator.reduce_scatter_slices(values, lengths, self.reduce);
        sums.map_err(|error| GraphError::Exchange(error.to_string()))
    }

    fn all_gather_slices(&self, values: &mut [f32], lengths: &[usize]) -> Result<(), GraphError> {
        let mut communicator = self.communicator.lock().unwrap_or_else(PoisonError::into_inner);
        communicator.all_gather_slices(values, lengths).map_err(|error| GraphError::Exchange(error.to_string()))
    }
}
