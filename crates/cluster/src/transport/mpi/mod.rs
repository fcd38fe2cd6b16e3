//! Messages by an MPI library. All its calls are non-blocking and polled, with pauses that grow, so that ranks which share
//! a core do not take it from each other. MPI itself notices neither a rank that hangs nor a link that is down, so ranks
//! have heartbeats by TCP as well, between rank 0 and every other.

mod library;

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use self::library::{Handle, Library, Status};
use super::tcp::{Acceptor, Claim, Purpose, Secret, Session, open_connection, random};
use super::{Addends, Incoming, Outgoing, Transport, barrier, mismatch};
use crate::membership::Membership;
use crate::sockets::host_name;
use crate::watch::Watch;
use crate::{ClusterError, Limits};

/// The most bytes of one message of MPI, whose counts are `int`.
const LARGEST: usize = 1 << 30;

/// Heartbeats are an extra, which must not delay a run for long where TCP does not work.
const LINKING: Duration = Duration::from_secs(10);

/// The length of a host's name between ranks.
const HOST: usize = 256;

/// The name and version of the MPI library, or why there is none.
pub fn mpi_library() -> Result<String, ClusterError> {
    Library::find().map(|library| library.name.clone())
}

pub(crate) struct Mpi {
    world: World,
    watch: Watch,
    limits: Limits,
}

impl Mpi {
    /// Initialises MPI, which a process can do once.
    pub fn connect(membership: &Membership, limits: Limits) -> Result<Mpi, ClusterError> {
        let world = World::initialise(Library::find()?, membership)?;
        let deadline = Instant::now() + limits.rendezvous;
        let mut poll = |peer: usize| {
            let (what, host) = ("did not arrive in time".into(), "an unknown host".into());
            if Instant::now() < deadline { Ok(()) } else { Err(ClusterError::Peer { rank: peer, host, what }) }
        };
        let hosts = world.host_names(&mut poll)?;
        let links = world.links(&hosts, &mut poll)?;
        let watch = Watch::start(world.rank, hosts, links, limits)?;
        Ok(Mpi { world, watch, limits })
    }

    /// Polls until a collective call is done.
    fn poll(&self) -> impl FnMut(usize) -> Result<(), ClusterError> + '_ {
        let start = Instant::now();
        move |peer| {
            self.watch.check()?;
            if start.elapsed() > self.limits.call {
                let seconds = self.limits.call.as_secs();
                return Err(self.watch.record(peer, format!("has not joined a collective call for {seconds} s")));
            }
            Ok(())
        }
    }
}

impl Transport for Mpi {
    fn name(&self) -> &str {
        &self.world.library.name
    }

    fn watch(&self) -> &Watch {
        &self.watch
    }

    fn exchange(&mut self, outgoing: &[Outgoing<'_>], incoming: &mut [Incoming<'_>]) -> Result<(), ClusterError> {
        let failed = |failure| self.failure(failure);
        self.world.exchange(outgoing, incoming, &mut self.poll()).map_err(failed)
    }

    fn all_reduce(&mut self, values: Addends<'_>) -> Option<Result<(), ClusterError>> {
        let constants = &self.world.library.constants;
        let (address, length, kind, size) = match values {
            Addends::F32(values) => (values.as_mut_ptr().cast::<u8>(), values.len(), constants.float, 4),
            Addends::F64(values) => (values.as_mut_ptr().cast::<u8>(), values.len(), constants.double, 8),
        };
        for start in (0..length).step_by(LARGEST / size) {
            let count = (length - start).min(LARGEST / size);
            // SAFETY: the range is part of `values`, which are borrowed until the request is complete.
            let result = unsafe {
                let values = address.add(start * size).cast();
                self.world.all_reduce(values, count as c_int, kind, &mut self.poll())
            };
            if let Err(failure) = result {
                return Some(Err(self.failure(failure)));
            }
        }
        Some(Ok(()))
    }
}

impl Mpi {
    fn failure(&self, failure: Failure) -> ClusterError {
        match failure {
            Failure::Cluster(error) => error,
            Failure::Mpi(rank, text) => self.watch.record(rank, text),
        }
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.watch.health().fail("it panicked");
        }
        // Ranks that leave after a failure do not finalise, which would wait for the others. mpirun ends those that remain.
        let together = self.watch.check().is_ok()
            && barrier(self.world.rank, self.world.size, |outgoing, incoming| {
                self.world.exchange(outgoing, incoming, &mut self.poll())
            })
            .is_ok();
        if together {
            // SAFETY: initialised, and no request is pending.
            unsafe { (self.world.library.finalize)() };
        } else if self.world.rank > 0 {
            // mpirun kills all ranks as soon as one ends, and rank 0 is the one that reports the failure.
            std::thread::sleep(Duration::from_secs(2));
        }
    }
}

/// Why a call failed.
enum Failure {
    Cluster(ClusterError),
    /// The library returned an error in an operation with a rank.
    Mpi(usize, String),
}

impl Failure {
    /// As an error of a call before the hosts of the ranks are known.
    fn early(self) -> ClusterError {
        match self {
            Failure::Cluster(error) => error,
            Failure::Mpi(rank, what) => ClusterError::Peer { rank, host: "an unknown host".into(), what },
        }
    }
}

impl From<ClusterError> for Failure {
    fn from(error: ClusterError) -> Self {
        Failure::Cluster(error)
    }
}

/// The communicator of all ranks.
struct World {
    library: &'static Library,
    rank: usize,
    size: usize,
}

/// A request that is not complete.
struct Request {
    handle: Handle,
    peer: usize,
    /// The expected bytes of a receive.
    receives: Option<usize>,
}

impl World {
    fn initialise(library: &'static Library, membership: &Membership) -> Result<World, ClusterError> {
        let failed =
            |what: &str| ClusterError::System { doing: format!("{} cannot start", library.name), reason: what.into() };
        let constants = &library.constants;
        let (mut rank, mut size, mut done, mut provided) = (0, 0, 0, 0);
        let null = std::ptr::null_mut();
        // SAFETY: all pointers are to live variables, and the calls are in the order that MPI prescribes.
        unsafe {
            if (library.initialized)(&mut done) != 0 || done != 0 {
                return Err(failed("it was started in this process before"));
            }
            let level = constants.thread_serialized;
            if (library.init_thread)(null, null.cast(), level, &mut provided) != 0 {
                return Err(failed("MPI_Init_thread failed"));
            }
            (library.comm_set_errhandler)(constants.world, constants.errors_return);
            (library.comm_rank)(constants.world, &mut rank);
            (library.comm_size)(constants.world, &mut size);
        }
        let (rank, size) = (rank as usize, size as usize);
        if (rank, size) != (membership.rank, membership.size) {
            return Err(ClusterError::OtherMpi {
                library: library.name.clone(),
                expected: membership.size,
                found: size,
                variable: library::LIBRARY,
            });
        }
        Ok(World { library, rank, size })
    }

    fn error(&self, peer: usize, code: c_int) -> Failure {
        let (mut text, mut length) = ([0u8; 1024], 0);
        // SAFETY: MPI writes at most MPI_MAX_ERROR_STRING bytes, which is 512 or less.
        unsafe { (self.library.error_string)(code, text.as_mut_ptr().cast(), &mut length) };
        let text = String::from_utf8_lossy(&text[..(length.max(0) as usize).min(text.len())]).into_owned();
        Failure::Mpi(peer, format!("cannot be reached by {}: {text}", self.library.name))
    }

    /// Sends and receives all messages; `poll` may end the wait for a rank.
    fn exchange(
        &self,
        outgoing: &[Outgoing<'_>],
        incoming: &mut [Incoming<'_>],
        poll: &mut dyn FnMut(usize) -> Result<(), ClusterError>,
    ) -> Result<(), Failure> {
        let constants = &self.library.constants;
        let mut requests = Vec::new();
        let mut posted = Ok(());
        for Incoming { from, bytes } in incoming {
            for part in bytes.chunks_mut(LARGEST) {
                let mut handle = 0;
                // SAFETY: `part` is borrowed until all requests are complete: this function does not return before
                // (see `abandon`).
                let code = unsafe {
                    let (address, count) = (part.as_mut_ptr().cast(), part.len() as c_int);
                    (self.library.irecv)(
                        address,
                        count,
                        constants.byte,
                        *from as c_int,
                        0,
                        constants.world,
                        &mut handle,
                    )
                };
                match code {
                    0 => requests.push(Request { handle, peer: *from, receives: Some(part.len()) }),
                    _ => posted = Err(self.error(*from, code)),
                }
            }
        }
        for &Outgoing { to, bytes } in outgoing {
            for part in bytes.chunks(LARGEST) {
                let mut handle = 0;
                // SAFETY: as above.
                let code = unsafe {
                    let (address, count) = (part.as_ptr().cast(), part.len() as c_int);
                    (self.library.isend)(address, count, constants.byte, to as c_int, 0, constants.world, &mut handle)
                };
                match code {
                    0 => requests.push(Request { handle, peer: to, receives: None }),
                    _ => posted = Err(self.error(to, code)),
                }
            }
        }
        let result = posted.and_then(|()| self.complete(&mut requests, poll));
        if result.is_err() {
            self.abandon(requests);
        }
        result
    }

    /// # Safety
    /// `count` values of the type `kind` at the address must be valid and unused until this returns.
    unsafe fn all_reduce(
        &self,
        values: *mut c_void,
        count: c_int,
        kind: Handle,
        poll: &mut dyn FnMut(usize) -> Result<(), ClusterError>,
    ) -> Result<(), Failure> {
        let constants = &self.library.constants;
        let mut handle = 0;
        let in_place = constants.in_place as *const c_void;
        // SAFETY: the caller guarantees the values, and this function does not return before the request is complete: after a
        // failure it ends the process.
        let code = unsafe {
            (self.library.iallreduce)(in_place, values, count, kind, constants.sum, constants.world, &mut handle)
        };
        // MPI does not report which rank a collective waits for.
        let peer = (self.rank + 1) % self.size;
        if code != 0 {
            return Err(self.error(peer, code));
        }
        let mut requests = vec![Request { handle, peer, receives: None }];
        let result = self.complete(&mut requests, poll);
        if result.is_err() {
            self.end_process("a reduction cannot be cancelled");
        }
        result
    }

    /// Polls until all requests are complete; removes those that are.
    fn complete(
        &self,
        requests: &mut Vec<Request>,
        poll: &mut dyn FnMut(usize) -> Result<(), ClusterError>,
    ) -> Result<(), Failure> {
        let mut pause = Pause::new();
        while !requests.is_empty() {
            let before = requests.len();
            let mut failure = None;
            requests.retain_mut(|request| match self.test(request) {
                Ok(complete) => !complete,
                Err(error) => {
                    failure.get_or_insert(error);
                    false
                }
            });
            if let Some(failure) = failure {
                return Err(failure);
            }
            if let Some(request) = requests.first() {
                poll(request.peer)?;
            }
            if requests.len() == before { pause.grow() } else { pause = Pause::new() }
        }
        Ok(())
    }

    fn test(&self, request: &mut Request) -> Result<bool, Failure> {
        let (mut complete, mut status, mut count) = (0, Status::default(), 0);
        // SAFETY: the request is live, and the pointers are to live variables that are large enough.
        let code = unsafe { (self.library.test)(&mut request.handle, &mut complete, &mut status) };
        if code != 0 {
            return Err(self.error(request.peer, code));
        }
        if let (true, Some(expected)) = (complete != 0, request.receives) {
            // SAFETY: the status is that of a complete receive.
            unsafe { (self.library.get_count)(&status, self.library.constants.byte, &mut count) };
            if count as usize != expected {
                return Err(Failure::Mpi(request.peer, mismatch(count as u64, expected)));
            }
        }
        Ok(complete != 0)
    }

    /// Cancels the receives of a failed exchange. The library must not write to buffers that their owner frees; where it
    /// does not let go of one, the process ends here. Sends only read their buffers, and only
    /// inside calls of MPI, of which none follows.
    fn abandon(&self, mut requests: Vec<Request>) {
        requests.retain(|request| request.receives.is_some());
        for request in &mut requests {
            // SAFETY: the request is live.
            unsafe { (self.library.cancel)(&mut request.handle) };
        }
        let deadline = Instant::now() + Duration::from_secs(1);
        while !requests.is_empty() {
            requests.retain_mut(|request| matches!(self.test(request), Ok(false)));
            if Instant::now() > deadline {
                self.end_process("a message cannot be cancelled");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn end_process(&self, reason: &str) -> ! {
        eprintln!("rank {} on {} ends, because another rank failed and {reason}", self.rank, host_name());
        // SAFETY: MPI is initialised.
        unsafe { (self.library.abort)(self.library.constants.world, 1) };
        std::process::exit(1);
    }

    /// The names of the hosts of all ranks.
    fn host_names(&self, poll: &mut dyn FnMut(usize) -> Result<(), ClusterError>) -> Result<Vec<String>, ClusterError> {
        let mut names = vec![[0u8; HOST]; self.size];
        let own = host_name();
        let length = own.len().min(HOST - 1);
        names[self.rank][..length].copy_from_slice(&own.as_bytes()[..length]);
        let own = names[self.rank];
        let others = (0..self.size).filter(|&peer| peer != self.rank);
        let outgoing: Vec<_> = others.map(|to| Outgoing { to, bytes: &own }).collect();
        let mut incoming: Vec<_> = names
            .iter_mut()
            .enumerate()
            .filter(|(peer, _)| *peer != self.rank)
            .map(|(from, bytes)| Incoming { from, bytes: &mut bytes[..] })
            .collect();
        self.exchange(&outgoing, &mut incoming, poll).map_err(Failure::early)?;
        let text = |name: &[u8; HOST]| {
            let length = name.iter().position(|&byte| byte == 0).unwrap_or(HOST);
            String::from_utf8_lossy(&name[..length]).into_owned()
        };
        Ok(names.iter().map(text).collect())
    }

    /// Connections for heartbeats between rank 0 and every other that can reach it.
    fn links(
        &self,
        hosts: &[String],
        poll: &mut dyn FnMut(usize) -> Result<(), ClusterError>,
    ) -> Result<Vec<(usize, TcpStream)>, ClusterError> {
        let deadline = Instant::now() + LINKING;
        let mut exchange = |outgoing: &[Outgoing<'_>], incoming: &mut [Incoming<'_>]| {
            self.exchange(outgoing, incoming, poll).map_err(Failure::early)
        };
        if self.rank == 0 {
            let (acceptor, invitation) =
                Invitation::issue().map_err(ClusterError::system("cannot listen for ranks"))?;
            let invited = invitation.to_bytes();
            let outgoing: Vec<_> = (1..self.size).map(|to| Outgoing { to, bytes: &invited }).collect();
            exchange(&outgoing, &mut [])?;
            let mut linked = vec![[0u8]; self.size - 1];
            let incoming = linked.iter_mut().zip(1..).map(|(bytes, from)| Incoming { from, bytes: &mut bytes[..] });
            exchange(&[], &mut incoming.collect::<Vec<_>>())?;
            let expected = (1..).zip(&linked).filter(|(_, linked)| linked[0] == 1);
            let expected = expected.map(|(rank, _)| (rank, Purpose::Heartbeats)).collect();
            let found = acceptor.expect(invitation.session, expected, (self.size, LINKING, deadline + LINKING))?;
            Ok(found.into_iter().map(|((rank, _), socket)| (rank as usize, socket)).collect())
        } else {
            let mut invited = [0; INVITATION];
            exchange(&[], &mut [Incoming { from: 0, bytes: &mut invited }])?;
            let invitation = Invitation::from_bytes(&invited);
            let socket = invitation.accept(self, hosts, deadline).ok();
            exchange(&[Outgoing { to: 0, bytes: &[u8::from(socket.is_some())] }], &mut [])?;
            Ok(socket.map(|socket| (0, socket)).into_iter().collect())
        }
    }
}

/// Where rank 0 listens for the heartbeats of the others.
struct Invitation {
    port: u16,
    secret: [u8; 32],
    session: Session,
}

const INVITATION: usize = 2 + 32 + 16;

impl Invitation {
    fn issue() -> std::io::Result<(Acceptor, Invitation)> {
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        let invitation = Invitation { port: listener.local_addr()?.port(), secret: random()?, session: random()? };
        Ok((Acceptor::start(listener, Secret::new(&invitation.secret))?, invitation))
    }

    fn to_bytes(&self) -> [u8; INVITATION] {
        let mut bytes = [0; INVITATION];
        bytes[..2].copy_from_slice(&self.port.to_le_bytes());
        bytes[2..34].copy_from_slice(&self.secret);
        bytes[34..].copy_from_slice(&self.session);
        bytes
    }

    fn from_bytes(bytes: &[u8; INVITATION]) -> Invitation {
        let (mut secret, mut session) = ([0; 32], Session::default());
        secret.copy_from_slice(&bytes[2..34]);
        session.copy_from_slice(&bytes[34..]);
        Invitation { port: u16::from_le_bytes([bytes[0], bytes[1]]), secret, session }
    }

    /// Connects to rank 0: by the loopback address on the same host, otherwise by the host's name.
    fn accept(&self, world: &World, hosts: &[String], deadline: Instant) -> Result<TcpStream, ClusterError> {
        let (host, local) = (&hosts[0], hosts[0] == hosts[world.rank]);
        let addresses = || {
            let named = (host.as_str(), self.port).to_socket_addrs();
            let loopback = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), self.port);
            if local { Ok(vec![loopback]) } else { named.map(Iterator::collect) }
        };
        let (rank, size) = (world.rank as u32, world.size as u32);
        let claim = Claim { purpose: Purpose::Heartbeats, rank, size, session: self.session };
        open_connection(&addresses, host, (LINKING, deadline), &Secret::new(&self.secret), claim)
    }
}

/// Pauses between polls: none at first, then a tenth of the time waited so far. Sleeps rather than yields: on a loaded
/// machine a yield gives away a whole time slice (an all-reduce of 23 MB between two ranks took 80 ms instead of 14).
struct Pause {
    start: Instant,
    polls: usize,
}

impl Pause {
    fn new() -> Pause {
        Pause { start: Instant::now(), polls: 0 }
    }

    fn grow(&mut self) {
        self.polls += 1;
        if self.polls < 10 {
            std::hint::spin_loop();
        } else {
            let pause = self.start.elapsed() / 10;
            std::thread::sleep(pause.clamp(Duration::from_micros(20), Duration::from_millis(1)));
        }
    }
}
