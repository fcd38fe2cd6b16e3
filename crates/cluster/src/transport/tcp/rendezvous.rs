//! How ranks find each other: all connect to rank 0, which sends them the addresses of all once the last has arrived; then
//! every rank connects to those below it.

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use super::Meeting;
use super::acceptor::Acceptor;
use super::handshake::{self, Claim, HandshakeError, Purpose, Secret, Session, Timed, random};
use crate::ClusterError;
use crate::membership::SECRET;
use crate::sockets::host_name;

/// Ranks of other versions may cut a step differently.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The longest table: 64 thousand ranks.
const LONGEST_FRAME: usize = 16 << 20;

/// The connections of one rank.
pub(super) struct Mesh {
    pub hosts: Vec<String>,
    /// For heartbeats.
    pub links: Vec<(usize, TcpStream)>,
    /// By rank; `None` at this rank.
    pub data: Vec<Option<TcpStream>>,
}

/// Connects to all other ranks within `limit`.
pub(super) fn meet(meeting: &Meeting<'_>, limit: Duration) -> Result<Mesh, ClusterError> {
    let deadline = Instant::now() + limit;
    let secret = Secret::new(meeting.secret.as_bytes());
    match meeting.rank {
        0 => host(meeting, &secret, limit, deadline),
        _ => join(meeting, &secret, limit, deadline),
    }
}

/// A rank as rank 0 describes it to the others.
struct Entry {
    host: String,
    /// `None` for the host of rank 0, which other hosts reach by another address than rank 0 does.
    ip: Option<IpAddr>,
    port: u16,
}

/// Rank 0.
fn host(meeting: &Meeting<'_>, secret: &Secret, limit: Duration, deadline: Instant) -> Result<Mesh, ClusterError> {
    let size = meeting.size;
    let address = format!("{}:{}", meeting.address, meeting.port);
    let resolved = resolve(meeting).map_err(ClusterError::system(format!("cannot find the address of {address}")))?;
    let listener = TcpListener::bind((listening_ip(meeting.address, &resolved), meeting.port))
        .map_err(ClusterError::system(format!("rank 0 cannot listen at {address}")))?;
    let acceptor = Acceptor::start(listener, secret.clone())
        .map_err(ClusterError::system(format!("rank 0 cannot listen at {address}")))?;

    let mut joined: BTreeMap<usize, (TcpStream, Entry)> = BTreeMap::new();
    while joined.len() < size - 1 {
        let Some((claim, socket)) = acceptor.next(deadline) else {
            let missing = (1..size).filter(|rank| !joined.contains_key(rank)).collect();
            let error = ClusterError::Missing { missing, size, address, limit, refused: acceptor.refused() };
            for (socket, _) in joined.values() {
                let _ = write_frame(socket, &format!("refused {error}"));
            }
            return Err(error);
        };
        let (Purpose::Join, Some(entry)) = (claim.purpose, greeting(&socket)) else { continue };
        let rank = claim.rank as usize;
        let reason = match (&entry, joined.get(&rank)) {
            (Err(version), _) => format!("it has version {version}, and rank 0 has version {VERSION}"),
            _ if claim.size as usize != size => {
                format!("it counts {} processes, and rank 0 counts {size}", claim.size)
            }
            _ if rank == 0 || rank >= size => format!("there is no rank {rank} of {size} to join"),
            (Ok(entry), Some((_, first))) => {
                format!("two processes claim rank {rank}, on {} and on {}", first.host, entry.host)
            }
            _ => String::new(),
        };
        match entry {
            Ok(entry) if reason.is_empty() => drop(joined.insert(rank, (socket, entry))),
            _ => drop(write_frame(&socket, &format!("refused {reason}"))),
        }
    }

    let session: Session = random().map_err(ClusterError::system("cannot start a session"))?;
    let own = Entry { host: host_name(), ip: None, port: meeting.port };
    let entries = || std::iter::once(&own).chain(joined.values().map(|(_, entry)| entry));
    let mut table = format!("session {:032x}", u128::from_be_bytes(session));
    for Entry { host, ip, port } in entries() {
        table += &format!("\n{host}\t{}\t{port}", ip.map_or("*".into(), |ip| ip.to_string()));
    }
    for (rank, (socket, entry)) in &joined {
        write_frame(socket, &table).map_err(|error| ClusterError::Peer {
            rank: *rank,
            host: entry.host.clone(),
            what: format!("left before all ranks had arrived: {error}"),
        })?;
    }
    let hosts = entries().map(|entry| entry.host.clone()).collect();
    let expected = (1..size as u32).map(|rank| (rank, Purpose::Data)).collect();
    let mut found = acceptor.expect(session, expected, (size, limit, deadline))?;
    let data = (0..size as u32).map(|rank| found.remove(&(rank, Purpose::Data))).collect();
    let links = joined.into_iter().map(|(rank, (socket, _))| (rank, socket)).collect();
    Ok(Mesh { hosts, links, data })
}

/// Any other rank.
fn join(meeting: &Meeting<'_>, secret: &Secret, limit: Duration, deadline: Instant) -> Result<Mesh, ClusterError> {
    let (rank, size) = (meeting.rank, meeting.size);
    let address = format!("{}:{}", meeting.address, meeting.port);
    let listening = |error| ClusterError::system("cannot listen for other ranks")(error);
    let claim = |purpose, session| Claim { purpose, rank: rank as u32, size: size as u32, session };

    let rendezvous = || resolve(meeting);
    let link =
        open_connection(&rendezvous, &address, (limit, deadline), secret, claim(Purpose::Join, Session::default()))?;
    let own_ip = link.local_addr().map_err(listening)?.ip();
    let any_ip: IpAddr = if own_ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // A host may resolve its own name to a loopback address, as Debian's do.
    let listener_ip = if own_ip.is_loopback() && !is_loopback(meeting.address) { any_ip } else { own_ip };
    let listener = TcpListener::bind((listener_ip, 0)).map_err(listening)?;
    let acceptor = Acceptor::start(listener, secret.clone()).map_err(listening)?;

    let lost = |reason: String| ClusterError::NoRendezvous { address: address.clone(), limit, reason };
    write_frame(&link, &format!("{}\n{}\n{VERSION}", host_name(), acceptor.address.port()))
        .map_err(|error| lost(error.to_string()))?;
    // Rank 0 tells why if not all ranks arrive, shortly after the time limit.
    let table = read_frame(&link, deadline + handshake::LIMIT).map_err(|error| match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => lost("it ended before all ranks had arrived".into()),
        _ => lost(error.to_string()),
    })?;
    if let Some(reason) = table.strip_prefix("refused ") {
        return Err(ClusterError::Refused { address, reason: reason.into() });
    }
    let (session, entries) = parse_table(&table, size).ok_or_else(|| ClusterError::NotARank(address.clone()))?;

    let mut data: Vec<Option<TcpStream>> = (0..size).map(|_| None).collect();
    let mut links = vec![(0, link)];
    let rendezvous_ip = links[0].1.peer_addr().map_err(listening)?.ip();
    for (peer, entry) in entries.iter().enumerate().take(rank) {
        let peer_address = SocketAddr::new(entry.ip.unwrap_or(rendezvous_ip), entry.port);
        let open = |purpose| {
            let name = format!("{peer_address} (rank {peer} on {})", entry.host);
            open_connection(&|| Ok(vec![peer_address]), &name, (limit, deadline), secret, claim(purpose, session))
        };
        data[peer] = Some(open(Purpose::Data)?);
        if peer > 0 {
            links.push((peer, open(Purpose::Heartbeats)?));
        }
    }
    let later = rank as u32 + 1..size as u32;
    let expected = later.clone().flat_map(|rank| [(rank, Purpose::Heartbeats), (rank, Purpose::Data)]).collect();
    let mut found = acceptor.expect(session, expected, (size, limit, deadline))?;
    for peer in later {
        data[peer as usize] = found.remove(&(peer, Purpose::Data));
        links.extend(found.remove(&(peer, Purpose::Heartbeats)).map(|socket| (peer as usize, socket)));
    }
    Ok(Mesh { hosts: entries.into_iter().map(|entry| entry.host).collect(), links, data })
}

/// The description that a joining rank sends; an error with its version if that differs, `None` if it is malformed.
fn greeting(socket: &TcpStream) -> Option<Result<Entry, String>> {
    let text = read_frame(socket, Instant::now() + handshake::LIMIT).ok()?;
    let mut lines = text.lines();
    let (host, port, version) = (lines.next()?, lines.next()?.parse().ok()?, lines.next()?);
    if version != VERSION {
        return Some(Err(version.into()));
    }
    let ip = socket.peer_addr().ok()?.ip();
    Some(Ok(Entry { host: host.replace('\t', " "), ip: Some(ip).filter(|ip| !ip.is_loopback()), port }))
}

fn parse_table(table: &str, size: usize) -> Option<(Session, Vec<Entry>)> {
    let mut lines = table.lines();
    let session = u128::from_str_radix(lines.next()?.strip_prefix("session ")?, 16).ok()?.to_be_bytes();
    let entry = |line: &str| {
        let mut fields = line.split('\t');
        let (host, ip, port) = (fields.next()?.to_owned(), fields.next()?, fields.next()?.parse().ok()?);
        let ip = if ip == "*" { None } else { Some(ip.parse().ok()?) };
        Some(Entry { host, ip, port })
    };
    let entries: Vec<Entry> = lines.map(entry).collect::<Option<_>>()?;
    (entries.len() == size).then_some((session, entries))
}

/// Connects and proves a claim; tries again until the deadline where nothing answers yet.
pub(in crate::transport) fn open_connection(
    addresses: &dyn Fn() -> std::io::Result<Vec<SocketAddr>>,
    name: &str,
    (limit, deadline): (Duration, Instant),
    secret: &Secret,
    claim: Claim,
) -> Result<TcpStream, ClusterError> {
    loop {
        let attempt = addresses().and_then(|addresses| {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = left.clamp(Duration::from_millis(1), handshake::LIMIT);
            let mut last = std::io::Error::from(ErrorKind::AddrNotAvailable);
            for address in addresses {
                match TcpStream::connect_timeout(&address, timeout) {
                    Ok(socket) => return Ok(socket),
                    Err(error) => last = error,
                }
            }
            Err(last)
        });
        let reason = match attempt.map_err(HandshakeError::Io).and_then(|socket| {
            secret.connect(&socket, claim)?;
            Ok(socket)
        }) {
            Ok(socket) => return Ok(socket),
            Err(HandshakeError::Foreign) => return Err(ClusterError::NotARank(name.into())),
            Err(HandshakeError::Secret) => {
                return Err(ClusterError::WrongSecret { address: name.into(), variable: SECRET });
            }
            Err(HandshakeError::Io(error)) => error.to_string(),
        };
        if Instant::now() >= deadline {
            return Err(ClusterError::NoRendezvous { address: name.into(), limit, reason });
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn resolve(meeting: &Meeting<'_>) -> std::io::Result<Vec<SocketAddr>> {
    Ok((meeting.address, meeting.port).to_socket_addrs()?.collect())
}

/// Whether an address was chosen to be reachable on its host alone.
fn is_loopback(address: &str) -> bool {
    address == "localhost" || address.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// Where rank 0 listens: on all interfaces, because its name may mean a loopback address on its own host.
fn listening_ip(address: &str, resolved: &[SocketAddr]) -> IpAddr {
    let v4 = resolved.iter().any(SocketAddr::is_ipv4);
    match (is_loopback(address), v4) {
        (true, true) => Ipv4Addr::LOCALHOST.into(),
        (true, false) => Ipv6Addr::LOCALHOST.into(),
        (false, true) => Ipv4Addr::UNSPECIFIED.into(),
        (false, false) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

fn write_frame(socket: &TcpStream, text: &str) -> std::io::Result<()> {
    let length = (text.len() as u32).to_le_bytes();
    Timed::until(socket, Instant::now() + handshake::LIMIT).write_all(&[&length, text.as_bytes()].concat())
}

fn read_frame(socket: &TcpStream, deadline: Instant) -> std::io::Result<String> {
    let mut socket = Timed::until(socket, deadline);
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > LONGEST_FRAME {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut bytes = vec![0; length];
    socket.read_exact(&mut bytes)?;
    String::from_utf8(bytes).map_err(|_| ErrorKind::InvalidData.into())
}
