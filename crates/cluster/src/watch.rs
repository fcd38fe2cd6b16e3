//! Signs of life. Beside the connections for data, ranks have a link for heartbeats, on which a thread sends and listens
//! whatever the rest of the process does. A link that is closed or silent is a failure; the first one that a rank notices is
//! announced on all its links, so that every rank ends with the same sentence.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::sockets::{self, Pending};
use crate::{ClusterError, Limits};

/// A failure that is being announced reaches the peers before the process exits.
const WAKE: Duration = Duration::from_millis(50);

/// Messages on a link: this byte, for a failure followed by the rank (u32), the length (u32) and the text.
const HEARTBEAT: u8 = 0;
const FAREWELL: u8 = 1;
const FAILURE: u8 = 2;

/// No sentence is longer: a length beyond it is not a length.
const LONGEST_TEXT: usize = 64 * 1024;

/// The state of a run as its ranks see it, from any thread and at any time.
#[derive(Clone)]
pub struct Health(Option<Arc<Watched>>);

impl Health {
    pub(crate) fn alone() -> Health {
        Health(None)
    }

    /// Tells all other ranks that this one ends with an error, so that their calls end with an error that quotes it.
    pub fn fail(&self, reason: &str) {
        if let Some(watched) = &self.0 {
            watched.record(watched.rank, format!("failed: {reason}"));
        }
    }

    /// The first failure that this rank noticed or received.
    pub fn failure(&self) -> Option<ClusterError> {
        self.0.as_ref().and_then(|watched| watched.failure())
    }
}

/// The links of one rank and the thread that watches them, which ends with this.
pub(crate) struct Watch {
    watched: Arc<Watched>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) struct Watched {
    rank: usize,
    hosts: Vec<String>,
    links: Vec<Link>,
    failure: Arc<FirstFailure>,
    closing: AtomicBool,
}

/// The failure that ends the run.
#[derive(Default)]
pub(crate) struct FirstFailure {
    error: Mutex<Option<ClusterError>>,
    /// Whether there is one, for loops that check it often.
    set: AtomicBool,
}

struct Link {
    peer: usize,
    /// Does not block.
    socket: TcpStream,
    /// Bytes that the socket has not taken yet.
    unsent: Mutex<Vec<u8>>,
    /// The peer said farewell: it will neither send nor receive.
    left: AtomicBool,
}

impl Watch {
    /// Watches the links to other ranks.
    pub fn start(
        rank: usize,
        hosts: Vec<String>,
        links: Vec<(usize, TcpStream)>,
        limits: Limits,
    ) -> Result<Watch, ClusterError> {
        let links = links
            .into_iter()
            .map(|(peer, socket)| {
                socket.set_nonblocking(true)?;
                socket.set_nodelay(true)?;
                Ok(Link { peer, socket, unsent: Mutex::default(), left: AtomicBool::new(false) })
            })
            .collect::<std::io::Result<_>>()
            .map_err(ClusterError::system("cannot set up the links between ranks"))?;
        let closing = AtomicBool::new(false);
        let watched = Arc::new(Watched { rank, hosts, links, failure: Arc::default(), closing });
        let thread = std::thread::Builder::new().name("vit-heartbeat".into()).spawn({
            let watched = watched.clone();
            move || watched.listen(limits)
        });
        let thread = thread.map_err(ClusterError::system("cannot start a thread for heartbeats"))?;
        Ok(Watch { watched, thread: Some(thread) })
    }

    /// Ranks in one process, which share their failure and need no links.
    pub fn shared(rank: usize, hosts: Vec<String>, failure: Arc<FirstFailure>) -> Watch {
        let closing = AtomicBool::new(false);
        Watch { watched: Arc::new(Watched { rank, hosts, links: Vec::new(), failure, closing }), thread: None }
    }

    pub fn health(&self) -> Health {
        Health(Some(self.watched.clone()))
    }

    pub fn rank(&self) -> usize {
        self.watched.rank
    }

    pub fn hosts(&self) -> &[String] {
        &self.watched.hosts
    }

    /// An error if a rank has failed; cheap.
    pub fn check(&self) -> Result<(), ClusterError> {
        match self.watched.failure.set.load(Ordering::Acquire) {
            true => Err(self.watched.failure().expect("a recorded failure")),
            false => Ok(()),
        }
    }

    /// Records that a rank failed unless another failure came first, announces it, and returns the one that holds.
    pub fn record(&self, rank: usize, what: String) -> ClusterError {
        self.watched.record(rank, what)
    }

    /// The failure behind a data connection that broke. The links show whether the peer died or another rank ended it,
    /// possibly later: at the latest when the peer has been silent for too long.
    pub fn broken_connection(&self, peer: usize, limits: Limits) -> ClusterError {
        let deadline = Instant::now() + limits.silence + limits.heartbeat();
        while Instant::now() < deadline {
            if let Err(failure) = self.check() {
                return failure;
            }
            if self.watched.links.iter().any(|link| link.peer == peer && link.left.load(Ordering::Acquire)) {
                return self.record(peer, "left the run before the others".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        self.record(peer, "closed its connection".into())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.health().fail("it panicked");
        }
        self.watched.closing.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Watched {
    fn failure(&self) -> Option<ClusterError> {
        lock(&self.failure.error).clone()
    }

    fn record(&self, rank: usize, what: String) -> ClusterError {
        let mut failure = lock(&self.failure.error);
        if let Some(first) = &*failure {
            return first.clone();
        }
        let mut message = vec![FAILURE];
        message.extend((rank as u32).to_le_bytes());
        let text = &what.as_bytes()[..what.len().min(LONGEST_TEXT)];
        message.extend((text.len() as u32).to_le_bytes());
        message.extend(text);
        let host = self.hosts.get(rank).map_or("an unknown host", String::as_str).to_owned();
        let error = failure.insert(ClusterError::Peer { rank, host, what }).clone();
        self.failure.set.store(true, Ordering::Release);
        for link in &self.links {
            link.send(&message);
        }
        error
    }

    /// Sends heartbeats and listens until the communicator is dropped.
    fn listen(&self, limits: Limits) {
        let mut states: Vec<LinkState> = self.links.iter().map(|_| LinkState::new()).collect();
        let mut last_beat: Option<Instant> = None;
        while !self.closing.load(Ordering::Acquire) {
            if last_beat.is_none_or(|last| last.elapsed() >= limits.heartbeat()) {
                self.links.iter().for_each(|link| link.send(&[HEARTBEAT]));
                last_beat = Some(Instant::now());
            }
            let open: Vec<Pending> = self
                .links
                .iter()
                .zip(&states)
                .filter(|(_, state)| !state.closed)
                .map(|(link, _)| Pending { socket: &link.socket, read: true, write: false })
                .collect();
            // Also without links this sleeps, so that a single loop serves every number of ranks.
            sockets::wait(&open, WAKE);
            for (link, state) in self.links.iter().zip(&mut states).filter(|(_, state)| !state.closed) {
                link.send(&[]);
                let before = Instant::now();
                self.receive(link, state);
                // A process that was stopped finds old messages first; its own sleep is no silence of others.
                if !state.closed && before.saturating_duration_since(state.heard) > limits.silence {
                    let seconds = limits.silence.as_secs_f64();
                    let what = format!("has been silent for {seconds} s: it hangs, or its network is down");
                    self.record(link.peer, what);
                }
            }
        }
        for (link, state) in self.links.iter().zip(&mut states) {
            link.send(&[FAREWELL]);
            let _ = link.socket.shutdown(Shutdown::Write);
            // Closing a socket with unread bytes resets the connection, which could overtake the farewell.
            self.receive(link, state);
        }
    }

    /// Reads what has arrived on a link.
    fn receive(&self, link: &Link, state: &mut LinkState) {
        let mut bytes = [0; 4096];
        let end = loop {
            match (&link.socket).read(&mut bytes) {
                Ok(0) => break Some("died: its connection was closed".to_owned()),
                Ok(count) => state.received.extend(&bytes[..count]),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => break None,
                    ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset => break Some("died: its connection was closed".to_owned()),
                    _ => break Some(format!("cannot be reached: {error}")),
                },
            }
        };
        while let Some((message, length)) = Message::parse(&state.received) {
            state.heard = Instant::now();
            state.received.drain(..length);
            match message {
                Message::Heartbeat => {}
                Message::Farewell => link.left.store(true, Ordering::Release),
                Message::Failure { rank, what } => {
                    self.record(rank, what);
                }
                Message::Invalid => {
                    self.record(link.peer, "sent something that is not a heartbeat".into());
                }
            }
        }
        if let Some(what) = end {
            state.closed = true;
            if !link.left.load(Ordering::Acquire) {
                self.record(link.peer, what);
            }
        }
    }
}

/// The watching thread's state of a link.
struct LinkState {
    heard: Instant,
    received: Vec<u8>,
    closed: bool,
}

impl LinkState {
    fn new() -> LinkState {
        LinkState { heard: Instant::now(), received: Vec::new(), closed: false }
    }
}

enum Message {
    Heartbeat,
    Farewell,
    Failure { rank: usize, what: String },
    Invalid,
}

impl Message {
    /// The first message in `bytes` and its length, if it is complete.
    fn parse(bytes: &[u8]) -> Option<(Message, usize)> {
        let word = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize);
        match *bytes.first()? {
            HEARTBEAT => Some((Message::Heartbeat, 1)),
            FAREWELL => Some((Message::Farewell, 1)),
            FAILURE => {
                let (rank, length) = (word(1)?, word(5)?);
                if length > LONGEST_TEXT {
                    return Some((Message::Invalid, bytes.len()));
                }
                let what = String::from_utf8_lossy(bytes.get(9..9 + length)?).into_owned();
                Some((Message::Failure { rank, what }, 9 + length))
            }
            _ => Some((Message::Invalid, bytes.len())),
        }
    }
}

impl Link {
    /// Sends what the socket takes at once and keeps the rest. A broken connection is noticed by the reader.
    fn send(&self, message: &[u8]) {
        let mut unsent = lock(&self.unsent);
        // A peer that reads nothing needs no more heartbeats.
        if unsent.len() < LONGEST_TEXT || message != [HEARTBEAT] {
            unsent.extend(message);
        }
        while !unsent.is_empty() {
            match (&self.socket).write(&unsent) {
                Ok(count) if count > 0 => drop(unsent.drain(..count)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => break,
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
