//! A full mesh of TCP connections: two per pair of ranks, one for data and one for heartbeats. Data is neither encrypted nor
//! authenticated after the handshake.

mod acceptor;
mod handshake;
mod rendezvous;

#[cfg(unix)]
pub(super) use acceptor::Acceptor;
pub(crate) use handshake::random;
#[cfg(unix)]
pub(super) use handshake::{Claim, Purpose, Secret, Session};
#[cfg(unix)]
pub(super) use rendezvous::open_connection;

use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::{Incoming, Outgoing, Transport, mismatch};
use crate::sockets::{self, Pending};
use crate::watch::Watch;
use crate::{ClusterError, Limits};

/// How often a call that makes no progress checks whether a rank has failed.
const CHECK: Duration = Duration::from_millis(100);

/// A message is its length as a little-endian u64 and its bytes.
const HEADER: usize = 8;

pub(crate) struct Tcp {
    watch: Watch,
    /// By rank; `None` at this rank. They do not block.
    sockets: Vec<Option<TcpStream>>,
    limits: Limits,
}

/// Where and as whom to meet the other ranks.
pub(crate) struct Meeting<'a> {
    pub rank: usize,
    pub size: usize,
    /// The address of rank 0: a name or an IP.
    pub address: &'a str,
    pub port: u16,
    pub secret: &'a str,
}

impl Tcp {
    /// Connects to all other ranks.
    pub fn connect(meeting: &Meeting<'_>, limits: Limits) -> Result<Tcp, ClusterError> {
        let mesh = rendezvous::meet(meeting, limits.rendezvous)?;
        for socket in mesh.data.iter().flatten() {
            socket
                .set_nonblocking(true)
                .and_then(|()| socket.set_nodelay(true))
                .map_err(ClusterError::system("cannot set up the connections between ranks"))?;
        }
        let watch = Watch::start(meeting.rank, mesh.hosts, mesh.links, limits)?;
        Ok(Tcp { watch, sockets: mesh.data, limits })
    }

    fn socket(&self, peer: usize) -> &TcpStream {
        self.sockets[peer].as_ref().expect("a connection to every other rank")
    }
}

/// A message that is partly sent.
struct Sending<'a> {
    to: usize,
    header: [u8; HEADER],
    bytes: &'a [u8],
    /// Bytes sent, the header included.
    done: usize,
}

impl Sending<'_> {
    fn is_complete(&self) -> bool {
        self.done == HEADER + self.bytes.len()
    }

    fn step(&mut self, mut socket: &TcpStream) -> std::io::Result<usize> {
        let bytes = &self.bytes[self.done.saturating_sub(HEADER)..];
        let count = match self.header.get(self.done..).filter(|header| !header.is_empty()) {
            Some(header) => socket.write_vectored(&[IoSlice::new(header), IoSlice::new(bytes)])?,
            None => socket.write(bytes)?,
        };
        self.done += count;
        Ok(count)
    }
}

/// A message that is partly received.
struct Receiving<'a> {
    from: usize,
    header: [u8; HEADER],
    bytes: &'a mut [u8],
    /// Bytes received, the header included.
    done: usize,
}

impl Receiving<'_> {
    fn is_complete(&self) -> bool {
        self.done == HEADER + self.bytes.len()
    }

    fn step(&mut self, mut socket: &TcpStream) -> std::io::Result<usize> {
        let count = match self.done.checked_sub(HEADER) {
            None => socket.read(&mut self.header[self.done..])?,
            Some(done) => socket.read(&mut self.bytes[done..])?,
        };
        self.done += count;
        Ok(count)
    }

    /// The length that the peer announced, if it is not the expected one.
    fn mismatch(&self) -> Option<u64> {
        let sent = u64::from_le_bytes(self.header);
        (self.done >= HEADER && sent != self.bytes.len() as u64).then_some(sent)
    }
}

/// Whether an operation on a socket made progress; an error if the connection is broken.
fn progress(result: std::io::Result<usize>) -> Result<bool, ()> {
    match result {
        Ok(0) => Err(()),
        Ok(_) => Ok(true),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(false),
        Err(_) => Err(()),
    }
}

impl Transport for Tcp {
    fn name(&self) -> &str {
        "TCP"
    }

    fn watch(&self) -> &Watch {
        &self.watch
    }

    fn exchange(&mut self, outgoing: &[Outgoing<'_>], incoming: &mut [Incoming<'_>]) -> Result<(), ClusterError> {
        let mut sending: Vec<Sending> = outgoing
            .iter()
            .map(|&Outgoing { to, bytes }| Sending { to, header: (bytes.len() as u64).to_le_bytes(), bytes, done: 0 })
            .collect();
        let mut receiving: Vec<Receiving> = incoming
            .iter_mut()
            .map(|Incoming { from, bytes }| Receiving { from: *from, header: [0; HEADER], bytes, done: 0 })
            .collect();
        let mut last_progress = Instant::now();
        loop {
            let mut progressed = false;
            // Only the first incomplete message of a peer may proceed: their order is part of the protocol.
            for peer in 0..self.sockets.len() {
                if let Some(message) = sending.iter_mut().find(|message| message.to == peer && !message.is_complete()) {
                    let step = message.step(self.socket(peer));
                    progressed |= progress(step).map_err(|()| self.watch.broken_connection(peer, self.limits))?;
                }
                let mut of_peer = receiving.iter_mut().filter(|message| message.from == peer);
                if let Some(message) = of_peer.find(|message| !message.is_complete()) {
                    let step = message.step(self.socket(peer));
                    progressed |= progress(step).map_err(|()| self.watch.broken_connection(peer, self.limits))?;
                    if let Some(sent) = message.mismatch() {
                        return Err(self.watch.record(peer, mismatch(sent, message.bytes.len())));
                    }
                }
            }
            if progressed {
                last_progress = Instant::now();
                continue;
            }
            sending.retain(|message| !message.is_complete());
            receiving.retain(|message| !message.is_complete());
            let mut peers =
                sending.iter().map(|message| message.to).chain(receiving.iter().map(|message| message.from));
            let Some(waited_for) = peers.next() else { return Ok(()) };
            self.watch.check()?;
            if last_progress.elapsed() > self.limits.call {
                let seconds = self.limits.call.as_secs();
                return Err(self.watch.record(waited_for, format!("has not joined a collective call for {seconds} s")));
            }
            let pending: Vec<Pending> = (0..self.sockets.len())
                .filter_map(|peer| {
                    let write = sending.iter().any(|message| message.to == peer);
                    let read = receiving.iter().any(|message| message.from == peer);
                    (write || read).then(|| Pending { socket: self.socket(peer), read, write })
                })
                .collect();
            sockets::wait(&pending, CHECK);
        }
    }
}
