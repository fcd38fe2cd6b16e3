//! Collective operations on top of messages between pairs of ranks.

use std::ops::AddAssign;

use bytemuck::{Pod, cast_slice, cast_slice_mut};

use crate::membership::{Membership, Route, SECRET};
use crate::transport::{self, Addends, Incoming, Meeting, Mpi, Outgoing, Tcp, Transport};
use crate::{ClusterError, Health, Limits, slice, tree_sum};

/// Elements of a slice that travel in one message. It bounds the scratch of a reduction, and the sums of one segment are
/// gathered while the next one is sent to its owners.
const SEGMENT: usize = 256 * 1024;

/// How contributions of the ranks are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reduce {
    /// In the order of [`tree_sum`]: the bits depend on the contributions alone.
    #[default]
    Tree,
    /// By the transport's own all-reduce, whose order may depend on the number of ranks, the length and the network.
    /// The same as `Tree` on transports without one.
    Fast,
}

/// An element of a vector that ranks add: `f32` or `f64`.
pub trait Element: Pod + AddAssign + sealed::Addend {}

impl Element for f32 {}
impl Element for f64 {}

mod sealed {
    use super::Addends;

    pub trait Addend: Sized {
        fn addends(values: &mut [Self]) -> Addends<'_>;
    }

    impl Addend for f32 {
        fn addends(values: &mut [f32]) -> Addends<'_> {
            Addends::F32(values)
        }
    }

    impl Addend for f64 {
        fn addends(values: &mut [f64]) -> Addends<'_> {
            Addends::F64(values)
        }
    }
}

/// One rank's end of the connections between the processes of a run. All ranks make the same calls in the same order, with
/// vectors of the same lengths. If one of them fails, the calls of all others return an error that names it; after an error
/// only [`fail`](Self::fail) may be called.
pub struct Communicator {
    /// `None` for a single process: all collectives are then the identity.
    transport: Option<Box<dyn Transport>>,
    /// The contributions of the other ranks to this rank's slice; of 8 bytes, for the alignment of `f64`.
    scratch: Vec<u64>,
}

impl Communicator {
    /// The only process of a run: every collective returns at once.
    pub fn alone() -> Communicator {
        Communicator { transport: None, scratch: Vec::new() }
    }

    /// Connects to the other ranks of this process's run.
    pub fn connect(membership: &Membership, limits: Limits) -> Result<Communicator, ClusterError> {
        let &Membership { rank, size, .. } = membership;
        match &membership.route {
            Route::Alone => Ok(Communicator::alone()),
            Route::Mpi => Ok(Communicator::over(Box::new(Mpi::connect(membership, limits)?))),
            Route::Tcp { address, port } => {
                let secret = std::env::var(SECRET).ok().filter(|secret| !secret.is_empty());
                let secret = &secret.ok_or(ClusterError::NoSecret(SECRET))?;
                let meeting = Meeting { rank, size, address, port: *port, secret };
                Ok(Communicator::over(Box::new(Tcp::connect(&meeting, limits)?)))
            }
        }
    }

    /// Threads of this process as ranks, for tests.
    pub fn threads(size: usize) -> Vec<Communicator> {
        transport::threads(size).into_iter().map(Communicator::over).collect()
    }

    fn over(transport: Box<dyn Transport>) -> Communicator {
        Communicator { transport: Some(transport), scratch: Vec::new() }
    }

    /// The number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.transport.as_ref().map_or(0, |transport| transport.watch().rank())
    }

    /// The number of processes.
    pub fn size(&self) -> usize {
        self.transport.as_ref().map_or(1, |transport| transport.watch().hosts().len())
    }

    /// The host of a rank, in the words of its operating system.
    pub fn host(&self, rank: usize) -> &str {
        self.transport.as_ref().map_or("this machine", |transport| &transport.watch().hosts()[rank])
    }

    /// The transport's name for users, as "TCP" or "Open MPI v4.1.4"; "one process" if there is none.
    pub fn transport(&self) -> &str {
        self.transport.as_ref().map_or("one process", |transport| transport.name())
    }

    /// Sends and receives all messages at the same time.
    ///
    /// # Panics
    /// If a message is to or from this rank itself, or there is no such rank.
    pub fn exchange(&mut self, outgoing: &[Outgoing<'_>], incoming: &mut [Incoming<'_>]) -> Result<(), ClusterError> {
        let (rank, size) = (self.rank(), self.size());
        let mut peers = outgoing.iter().map(|message| message.to).chain(incoming.iter().map(|message| message.from));
        assert!(
            peers.all(|peer| peer != rank && peer < size),
            "a message to or from rank {rank} itself or beyond {size}"
        );
        match &mut self.transport {
            Some(transport) => transport.exchange(outgoing, incoming),
            None => Ok(()),
        }
    }

    /// Sends a message; returns when `bytes` may change, which may be before it has arrived.
    pub fn send(&mut self, to: usize, bytes: &[u8]) -> Result<(), ClusterError> {
        self.exchange(&[Outgoing { to, bytes }], &mut [])
    }

    /// Receives a message, which must have the length of `bytes`.
    pub fn recv(&mut self, from: usize, bytes: &mut [u8]) -> Result<(), ClusterError> {
        self.exchange(&[], &mut [Incoming { from, bytes }])
    }

    /// Returns when all ranks have called it.
    pub fn barrier(&mut self) -> Result<(), ClusterError> {
        let (rank, size) = (self.rank(), self.size());
        transport::barrier(rank, size, |outgoing, incoming| self.exchange(outgoing, incoming))
    }

    /// Copies `values` of `root` to all ranks.
    pub fn broadcast<T: Pod>(&mut self, root: usize, values: &mut [T]) -> Result<(), ClusterError> {
        // A binomial tree over the ranks relative to the root: a rank receives from the one without its highest bit.
        let (rank, size) = (self.rank(), self.size());
        let relative = (rank + size - root) % size;
        let mut bit = 1;
        while bit < size {
            let absolute = |relative: usize| (relative + root) % size;
            if relative < bit && relative + bit < size {
                self.send(absolute(relative + bit), cast_slice(values))?;
            } else if (bit..2 * bit).contains(&relative) {
                self.recv(absolute(relative - bit), cast_slice_mut(values))?;
            }
            bit *= 2;
        }
        Ok(())
    }

    /// Every rank contributes its own [`slice()`] of `values`; afterwards all ranks have all slices.
    pub fn all_gather<T: Pod>(&mut self, values: &mut [T]) -> Result<(), ClusterError> {
        self.all_gather_slices(values, &even(values.len(), self.size()))
    }

    /// As [`all_gather`](Self::all_gather), with slices of these lengths.
    ///
    /// # Panics
    /// If `lengths` are not those of all ranks and of all values.
    pub fn all_gather_slices<T: Pod>(&mut self, values: &mut [T], lengths: &[usize]) -> Result<(), ClusterError> {
        let (rank, size) = (self.rank(), self.size());
        if size == 1 {
            return Ok(());
        }
        let mut parts = slices(values, lengths);
        let (before, from) = parts.split_at_mut(rank);
        let Some((own, after)) = from.split_first_mut() else { unreachable!("a slice for every rank") };
        let own: &[u8] = cast_slice(own);
        let others = (0..rank).zip(before).chain((rank + 1..).zip(after));
        let (mut outgoing, mut incoming): (Vec<_>, Vec<_>) = others
            .map(|(peer, part)| {
                (Outgoing { to: peer, bytes: own }, Incoming { from: peer, bytes: cast_slice_mut(part) })
            })
            .unzip();
        outgoing.retain(|message| !message.bytes.is_empty());
        incoming.retain(|message| !message.bytes.is_empty());
        self.exchange(&outgoing, &mut incoming)
    }

    /// The bytes of every rank, whose lengths may differ, in the order of the ranks.
    pub fn all_gather_bytes(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, ClusterError> {
        let (rank, size) = (self.rank(), self.size());
        let mut lengths = vec![0u64; size];
        lengths[rank] = bytes.len() as u64;
        self.all_gather(&mut lengths)?;
        let mut gathered: Vec<Vec<u8>> = lengths.iter().map(|&len| vec![0; len as usize]).collect();
        gathered[rank].copy_from_slice(bytes);
        let others = || (0..size).filter(|&peer| peer != rank);
        let outgoing: Vec<_> = others().map(|to| Outgoing { to, bytes }).collect();
        let mut incoming: Vec<_> = gathered
            .iter_mut()
            .enumerate()
            .filter(|(peer, _)| *peer != rank)
            .map(|(from, bytes)| Incoming { from, bytes })
            .collect();
        self.exchange(&outgoing, &mut incoming)?;
        Ok(gathered)
    }

    /// Adds `values` of all ranks elementwise. Afterwards this rank's own [`slice()`] of `values` has the sum, and the rest is
    /// unspecified.
    pub fn reduce_scatter<T: Element>(&mut self, values: &mut [T], how: Reduce) -> Result<(), ClusterError> {
        self.reduce(values, &even(values.len(), self.size()), how, false)
    }

    /// As [`reduce_scatter`](Self::reduce_scatter), with slices of these lengths.
    ///
    /// # Panics
    /// If `lengths` are not those of all ranks and of all values.
    pub fn reduce_scatter_slices<T: Element>(
        &mut self,
        values: &mut [T],
        lengths: &[usize],
        how: Reduce,
    ) -> Result<(), ClusterError> {
        self.reduce(values, lengths, how, false)
    }

    /// Adds `values` of all ranks elementwise. All ranks get the same bits.
    pub fn all_reduce<T: Element>(&mut self, values: &mut [T], how: Reduce) -> Result<(), ClusterError> {
        self.reduce(values, &even(values.len(), self.size()), how, true)
    }

    /// A handle for other threads, which can end the run at any time.
    pub fn health(&self) -> Health {
        self.transport.as_ref().map_or_else(Health::alone, |transport| transport.watch().health())
    }

    /// Tells all other ranks that this one ends with an error, so that their calls end with an error that quotes it.
    pub fn fail(&self, reason: &str) {
        self.health().fail(reason);
    }

    /// Sends each slice to its owner, which adds the contributions in tree order, and gathers the sums: the volume of a
    /// ring all-reduce. Slices travel in segments: the sums of one are gathered while the next goes to its owners.
    fn reduce<T: Element>(
        &mut self,
        values: &mut [T],
        lengths: &[usize],
        how: Reduce,
        gather: bool,
    ) -> Result<(), ClusterError> {
        let (rank, size) = (self.rank(), self.size());
        let Some(transport) = &mut self.transport else { return Ok(()) };
        if how == Reduce::Fast
            && let Some(result) = transport.all_reduce(T::addends(values))
        {
            return result;
        }
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let scratch = (size - 1) * longest.min(SEGMENT) * size_of::<T>();
        if self.scratch.len() < scratch.div_ceil(8) {
            self.scratch.resize(scratch.div_ceil(8), 0);
        }
        let scratch: &mut [T] = cast_slice_mut(&mut self.scratch);

        let rounds = longest.div_ceil(SEGMENT);
        // The last round has nothing to add.
        for start in (0..rounds + usize::from(gather)).map(|round| round * SEGMENT) {
            let mut parts = slices(values, lengths);
            let (own_sums, own) = segments(parts.remove(rank), start);
            let peers = (0..size).filter(|&peer| peer != rank);
            let (mut outgoing, mut incoming) = (Vec::new(), Vec::new());
            // Messages of a pair of ranks are in this order on both sides: contributions, sums.
            let mut rest = &mut scratch[..];
            for (peer, part) in peers.zip(parts) {
                let (sums, next) = segments(part, start);
                let (contribution, after) = rest.split_at_mut(own.len());
                rest = after;
                outgoing.push(Outgoing { to: peer, bytes: cast_slice(next) });
                incoming.push(Incoming { from: peer, bytes: cast_slice_mut(contribution) });
                if gather {
                    outgoing.push(Outgoing { to: peer, bytes: cast_slice(own_sums) });
                    incoming.push(Incoming { from: peer, bytes: cast_slice_mut(sums) });
                }
            }
            outgoing.retain(|message| !message.bytes.is_empty());
            incoming.retain(|message| !message.bytes.is_empty());
            transport.exchange(&outgoing, &mut incoming)?;

            if !own.is_empty() {
                let mut contributions: Vec<&mut [T]> = scratch.chunks_exact_mut(own.len()).take(size - 1).collect();
                contributions.insert(rank, own);
                tree_sum(&mut contributions);
                if rank > 0 {
                    let (first, others) = contributions.split_at_mut(1);
                    others[rank - 1].copy_from_slice(first[0]);
                }
            }
        }
        Ok(())
    }
}

/// The segment of a slice whose sums are gathered, and the one that is added, in the round that starts at `start`.
fn segments<T>(slice: &mut [T], start: usize) -> (&mut [T], &mut [T]) {
    let (before, from) = slice.split_at_mut(start.min(slice.len()));
    let added = from.len().min(SEGMENT);
    // A last segment that is shorter begins at the same place.
    let gathered = start.saturating_sub(SEGMENT).min(before.len());
    (&mut before[gathered..], &mut from[..added])
}

/// The lengths of the slices of all ranks.
fn even(len: usize, size: usize) -> Vec<usize> {
    (0..size).map(|rank| slice(len, rank, size).len()).collect()
}

/// `values` divided into the slices of all ranks.
fn slices<'a, T>(mut values: &'a mut [T], lengths: &[usize]) -> Vec<&'a mut [T]> {
    assert_eq!(lengths.iter().sum::<usize>(), values.len(), "slices of all values");
    let mut parts = Vec::with_capacity(lengths.len());
    for &length in lengths {
        let (part, rest) = values.split_at_mut(length);
        parts.push(part);
        values = rest;
    }
    parts
}
