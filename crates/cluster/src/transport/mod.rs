//! How bytes travel between ranks.

#[cfg(unix)]
mod mpi;
#[cfg(not(unix))]
#[path = "no_mpi.rs"]
mod mpi;
mod tcp;
mod threads;

pub(crate) use mpi::Mpi;
pub use mpi::mpi_library;
pub(crate) use tcp::{Meeting, Tcp, random};
pub(crate) use threads::threads;

use crate::ClusterError;
use crate::watch::Watch;

/// A message to another rank.
pub struct Outgoing<'a> {
    /// The rank that receives it.
    pub to: usize,
    /// Its content.
    pub bytes: &'a [u8],
}

/// Space for a message of another rank, which must have exactly its length.
pub struct Incoming<'a> {
    /// The rank that sends it.
    pub from: usize,
    /// Its content after the exchange.
    pub bytes: &'a mut [u8],
}

/// Values that a library adds by its own all-reduce.
pub enum Addends<'a> {
    F32(&'a mut [f32]),
    F64(&'a mut [f64]),
}

/// The connections of one rank to all others. Messages of a pair of ranks arrive in the order in which they were sent.
pub(crate) trait Transport: Send {
    /// The transport's name for users.
    fn name(&self) -> &str;

    /// The signs of life of the other ranks.
    fn watch(&self) -> &Watch;

    /// Sends and receives all messages at the same time, so that no order of them can deadlock. No call follows an error.
    fn exchange(&mut self, outgoing: &[Outgoing<'_>], incoming: &mut [Incoming<'_>]) -> Result<(), ClusterError>;

    /// The library's own all-reduce, in an order of its choice; `None` if it has none.
    fn all_reduce(&mut self, _values: Addends<'_>) -> Option<Result<(), ClusterError>> {
        None
    }
}

/// What happened to a peer whose message has not the expected length.
fn mismatch(sent: u64, expected: usize) -> String {
    format!("sent {sent} bytes where {expected} were expected: the ranks do not run the same program")
}

/// Returns when all ranks have called it. Dissemination (Hensgen, Finkel and Manber 1988): after round k a rank has heard of
/// 2^(k+1) ranks.
pub(crate) fn barrier<E>(
    rank: usize,
    size: usize,
    mut exchange: impl FnMut(&[Outgoing<'_>], &mut [Incoming<'_>]) -> Result<(), E>,
) -> Result<(), E> {
    let mut distance = 1;
    while distance < size {
        let (to, from) = ((rank + distance) % size, (rank + size - distance) % size);
        exchange(&[Outgoing { to, bytes: &[0] }], &mut [Incoming { from, bytes: &mut [0] }])?;
        distance *= 2;
    }
    Ok(())
}
