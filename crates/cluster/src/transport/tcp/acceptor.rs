//! Accepting connections of other ranks on a port that anything may connect to.

use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use super::handshake::{Claim, HandshakeError, Purpose, Secret, Session};
use crate::ClusterError;

/// Handshakes at the same time; more connections are closed, since each takes a thread.
const HANDSHAKES: usize = 1024;

/// A listening socket whose connections are verified in the background, until it is dropped.
pub(in crate::transport) struct Acceptor {
    pub address: SocketAddr,
    accepted: Receiver<(Claim, TcpStream)>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    handshakes: AtomicUsize,
    refused: AtomicUsize,
}

impl Acceptor {
    pub fn start(listener: TcpListener, secret: Secret) -> std::io::Result<Acceptor> {
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::<Shared>::default();
        let (sender, accepted) = channel();
        std::thread::Builder::new().name("vit-rendezvous".into()).spawn({
            let shared = shared.clone();
            move || listen(&listener, &secret, &sender, &shared)
        })?;
        Ok(Acceptor { address, accepted, shared })
    }

    /// The next connection whose handshake succeeded.
    pub fn next(&self, deadline: Instant) -> Option<(Claim, TcpStream)> {
        self.accepted.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
    }

    /// Connections with another secret.
    pub fn refused(&self) -> usize {
        self.shared.refused.load(Ordering::Relaxed)
    }

    /// Waits for these connections of a session.
    pub fn expect(
        &self,
        session: Session,
        mut expected: Vec<(u32, Purpose)>,
        (size, limit, deadline): (usize, Duration, Instant),
    ) -> Result<HashMap<(u32, Purpose), TcpStream>, ClusterError> {
        let mut found = HashMap::new();
        while !expected.is_empty() {
            let Some((claim, socket)) = self.next(deadline) else {
                let mut missing: Vec<usize> = expected.iter().map(|(rank, _)| *rank as usize).collect();
                missing.dedup();
                let (address, refused) = (self.address.to_string(), self.refused());
                return Err(ClusterError::Missing { missing, size, address, limit, refused });
            };
            let key = (claim.rank, claim.purpose);
            if claim.session == session
                && let Some(at) = expected.iter().position(|wanted| *wanted == key)
            {
                expected.swap_remove(at);
                found.insert(key, socket);
            }
        }
        Ok(found)
    }
}

impl Drop for Acceptor {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
    }
}

fn listen(listener: &TcpListener, secret: &Secret, sender: &Sender<(Claim, TcpStream)>, shared: &Arc<Shared>) {
    while !shared.stop.load(Ordering::Relaxed) {
        let Ok((socket, _)) = listener.accept() else {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        };
        if shared.handshakes.fetch_add(1, Ordering::Relaxed) >= HANDSHAKES {
            shared.handshakes.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (secret, sender, shared) = (secret.clone(), sender.clone(), shared.clone());
        // Not on Linux, but elsewhere an accepted socket may inherit the listener's mode.
        let _ = socket.set_nonblocking(false);
        let handshake = move || {
            match secret.accept(&socket) {
                Ok(claim) => drop(sender.send((claim, socket))),
                Err(HandshakeError::Secret) => drop(shared.refused.fetch_add(1, Ordering::Relaxed)),
                // Something that is no rank: a port scanner, a health check.
                Err(_) => {}
            }
            shared.handshakes.fetch_sub(1, Ordering::Relaxed);
        };
        // Without a thread the connection is closed, and its rank tries again.
        let _ = std::thread::Builder::new().name("vit-handshake".into()).spawn(handshake);
    }
}
