//! Mutual authentication of a new connection by the secret of the run: each side sends a challenge and answers with an HMAC
//! of both challenges and the claim of the connecting side.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

/// The first bytes of both sides, with the version of the protocol.
const MAGIC: &[u8; 8] = b"vitrank1";

/// Both sides answer at once, so a connection that takes longer is none of ours.
pub(in crate::transport) const LIMIT: Duration = Duration::from_secs(5);

/// A run's random number, so that processes of an earlier run with the same secret do not join.
pub(in crate::transport) type Session = [u8; 16];

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::transport) enum Purpose {
    /// To rank 0, for the rendezvous; afterwards its link for heartbeats.
    Join = 0,
    Heartbeats = 1,
    Data = 2,
}

/// The identity that the connecting side claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport) struct Claim {
    pub purpose: Purpose,
    pub rank: u32,
    pub size: u32,
    /// Zero when joining.
    pub session: Session,
}

const CLAIM: usize = 25;

impl Claim {
    fn to_bytes(self) -> [u8; CLAIM] {
        let mut bytes = [0; CLAIM];
        bytes[0] = self.purpose as u8;
        bytes[1..5].copy_from_slice(&self.rank.to_le_bytes());
        bytes[5..9].copy_from_slice(&self.size.to_le_bytes());
        bytes[9..].copy_from_slice(&self.session);
        bytes
    }

    fn from_bytes(bytes: &[u8; CLAIM]) -> Option<Claim> {
        let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let purpose = match bytes[0] {
            0 => Purpose::Join,
            1 => Purpose::Heartbeats,
            2 => Purpose::Data,
            _ => return None,
        };
        let session = bytes[9..].try_into().ok()?;
        Some(Claim { purpose, rank: word(1), size: word(5), session })
    }
}

/// Why a handshake failed.
#[derive(Debug)]
pub(in crate::transport) enum HandshakeError {
    /// The other side does not speak this protocol.
    Foreign,
    /// The other side has another secret.
    Secret,
    Io(std::io::Error),
}

impl From<std::io::Error> for HandshakeError {
    fn from(error: std::io::Error) -> Self {
        HandshakeError::Io(error)
    }
}

/// The secret of a run.
#[derive(Clone)]
pub(in crate::transport) struct Secret(hmac::Key);

impl Secret {
    pub fn new(secret: &[u8]) -> Secret {
        Secret(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// The bytes that a side signs. The name of the side keeps an answer from being returned to its sender.
    fn signed(side: &[u8; 7], challenges: [&[u8; 32]; 2], claim: &[u8; CLAIM]) -> Vec<u8> {
        [&side[..], challenges[0], challenges[1], claim].concat()
    }

    /// Connects: proves the claim and checks that the other side has the secret, too.
    pub fn connect(&self, socket: &TcpStream, claim: Claim) -> Result<(), HandshakeError> {
        let mut socket = Timed::until(socket, Instant::now() + LIMIT);
        let own: [u8; 32] = random()?;
        socket.write_all(&[&MAGIC[..], &own].concat())?;
        let other = socket.read_challenge()?;
        let claim = claim.to_bytes();
        let tag = hmac::sign(&self.0, &Self::signed(b"connect", [&own, &other], &claim));
        socket.write_all(&[&claim[..], tag.as_ref()].concat())?;
        let mut answer = [0; 32];
        socket.read_exact(&mut answer).map_err(|error| match error.kind() {
            // A side that cannot verify the tag closes the connection.
            ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset => HandshakeError::Secret,
            _ => HandshakeError::Io(error),
        })?;
        let signed = Self::signed(b"accept!", [&own, &other], &claim);
        hmac::verify(&self.0, &signed, &answer).map_err(|_| HandshakeError::Secret)
    }

    /// Accepts: checks the claim of the connecting side, then proves to have the secret.
    pub fn accept(&self, socket: &TcpStream) -> Result<Claim, HandshakeError> {
        let mut socket = Timed::until(socket, Instant::now() + LIMIT);
        let other = socket.read_challenge()?;
        let own: [u8; 32] = random()?;
        socket.write_all(&[&MAGIC[..], &own].concat())?;
        let (mut claim, mut tag) = ([0; CLAIM], [0; 32]);
        socket.read_exact(&mut claim)?;
        socket.read_exact(&mut tag)?;
        let signed = Self::signed(b"connect", [&other, &own], &claim);
        hmac::verify(&self.0, &signed, &tag).map_err(|_| HandshakeError::Secret)?;
        let answer = hmac::sign(&self.0, &Self::signed(b"accept!", [&other, &own], &claim));
        socket.write_all(answer.as_ref())?;
        Claim::from_bytes(&claim).ok_or(HandshakeError::Foreign)
    }
}

/// Random bytes of the operating system.
pub(crate) fn random<const N: usize>() -> std::io::Result<[u8; N]> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| std::io::Error::other("the system has no random numbers"))?;
    Ok(bytes)
}

/// A socket whose operations end by one deadline, also if the other side sends single bytes.
pub(in crate::transport) struct Timed<'a> {
    socket: &'a TcpStream,
    deadline: Instant,
}

impl<'a> Timed<'a> {
    pub fn until(socket: &'a TcpStream, deadline: Instant) -> Self {
        Timed { socket, deadline }
    }

    fn read_challenge(&mut self) -> Result<[u8; 32], HandshakeError> {
        let (mut magic, mut challenge) = ([0; MAGIC.len()], [0; 32]);
        self.read_exact(&mut magic)?;
        if magic != *MAGIC {
            return Err(HandshakeError::Foreign);
        }
        self.read_exact(&mut challenge)?;
        Ok(challenge)
    }

    fn left(&self) -> std::io::Result<Duration> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(std::io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        self.socket.set_read_timeout(Some(self.left()?))?;
        self.socket.read(bytes)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.socket.set_write_timeout(Some(self.left()?))?;
        self.socket.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
