//! Threads of one process as ranks: the collectives without any network, for tests.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::{Incoming, Outgoing, Transport, mismatch};
use crate::ClusterError;
use crate::watch::{FirstFailure, Watch};

struct Threads {
    watch: Watch,
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
}

/// The transports of `size` ranks.
pub(crate) fn threads(size: usize) -> Vec<Box<dyn Transport>> {
    let failure = Arc::<FirstFailure>::default();
    let hosts: Vec<String> = (0..size).map(|rank| format!("thread {rank}")).collect();
    let (mut to, mut from): (Vec<Vec<_>>, Vec<Vec<_>>) = (0..size).map(|_| (Vec::new(), Vec::new())).unzip();
    for sender in &mut to {
        for receiver in &mut from {
            let (sending, receiving) = channel();
            sender.push(sending);
            receiver.push(receiving);
        }
    }
    let rank = |(rank, (to, from))| -> Box<dyn Transport> {
        Box::new(Threads { watch: Watch::shared(rank, hosts.clone(), failure.clone()), to, from })
    };
    to.into_iter().zip(from).enumerate().map(rank).collect()
}

impl Transport for Threads {
    fn name(&self) -> &str {
        "threads"
    }

    fn watch(&self) -> &Watch {
        &self.watch
    }

    fn exchange(&mut self, outgoing: &[Outgoing<'_>], incoming: &mut [Incoming<'_>]) -> Result<(), ClusterError> {
        let left = |peer| self.watch.record(peer, "left the run before the others".into());
        for Outgoing { to, bytes } in outgoing {
            self.to[*to].send(bytes.to_vec()).map_err(|_| left(*to))?;
        }
        for Incoming { from, bytes } in incoming {
            let message = loop {
                match self.from[*from].recv_timeout(Duration::from_millis(20)) {
                    Ok(message) => break message,
                    Err(RecvTimeoutError::Disconnected) => return Err(left(*from)),
                    Err(RecvTimeoutError::Timeout) => self.watch.check()?,
                }
            };
            if message.len() != bytes.len() {
                return Err(self.watch.record(*from, mismatch(message.len() as u64, bytes.len())));
            }
            bytes.copy_from_slice(&message);
        }
        Ok(())
    }
}
