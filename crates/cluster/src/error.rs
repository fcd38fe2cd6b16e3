//! What can go wrong between the processes of a run, in one sentence each.

use std::time::Duration;

/// Why the processes of a run cannot work together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// A rank cannot go on, so the others cannot either. All ranks report the same one, unless the network is divided.
    #[error("rank {rank} on {host} {what}")]
    Peer {
        /// The rank that failed.
        rank: usize,
        /// The host it runs on.
        host: String,
        /// What happened to it: a verb and the rest of the sentence.
        what: String,
    },
    /// The variables of the launcher are incomplete or contradict each other.
    #[error("{0}")]
    Environment(String),
    /// The processes have no shared secret.
    #[error(
        "{0} is not set; set it to the same random text for all processes, as in `export {0}=$(openssl rand -hex 16)`"
    )]
    NoSecret(&'static str),
    /// Some ranks never connected.
    #[error("{} of {size} did not arrive at {address} within {} s{}", list(.missing), limit.as_secs(), note(*.refused))]
    Missing {
        /// The ranks that did not connect.
        missing: Vec<usize>,
        /// The number of ranks.
        size: usize,
        /// Where they were expected.
        address: String,
        /// The time limit.
        limit: Duration,
        /// Connections with another secret.
        refused: usize,
    },
    /// Nothing answers where rank 0 should.
    #[error("rank 0 did not answer at {address} within {} s: {reason}", limit.as_secs())]
    NoRendezvous {
        /// Where rank 0 should be.
        address: String,
        /// The time limit.
        limit: Duration,
        /// The last failure to connect.
        reason: String,
    },
    /// The two sides of a connection have different secrets, or the other side is no rank of a run.
    #[error("the process at {address} does not have the secret of this run ({variable})")]
    WrongSecret {
        /// The other side.
        address: String,
        /// The variable that has the secret.
        variable: &'static str,
    },
    /// What was found at an address is something else.
    #[error("the program that listens at {0} is no process of a run; choose another port for the rendezvous")]
    NotARank(String),
    /// Rank 0 refused this process.
    #[error("rank 0 on {address} refused this process: {reason}")]
    Refused {
        /// The address of rank 0.
        address: String,
        /// Its reason.
        reason: String,
    },
    /// There is no MPI library.
    #[error(
        "no MPI library was found; install one (Debian and Ubuntu: `apt install openmpi-bin` or `apt install mpich`, \
         Fedora: `dnf install openmpi`) or set VIT_MPI_LIBRARY to its path"
    )]
    NoMpi,
    /// A library cannot be used.
    #[error("the {name} library {path} cannot be used: {reason}")]
    Library {
        /// What it should be.
        name: &'static str,
        /// Its path.
        path: String,
        /// The loader's reason.
        reason: String,
    },
    /// The MPI library is not that of the program that started the processes.
    #[error(
        "{library} does not belong to the mpirun that started this process: it finds {found} processes instead of \
         {expected}; set {variable} to the path of the right library"
    )]
    OtherMpi {
        /// The library that was found.
        library: String,
        /// The processes that were started.
        expected: usize,
        /// The processes that the library finds.
        found: usize,
        /// The variable that chooses a library.
        variable: &'static str,
    },
    /// A system call failed before the ranks were connected.
    #[error("{doing}: {reason}")]
    System {
        /// What was attempted.
        doing: String,
        /// The system's reason.
        reason: String,
    },
}

impl ClusterError {
    pub(crate) fn system(doing: impl Into<String>) -> impl FnOnce(std::io::Error) -> ClusterError {
        move |error| ClusterError::System { doing: doing.into(), reason: error.to_string() }
    }
}

/// "rank 3" or "ranks 1, 2, 3".
fn list(ranks: &[usize]) -> String {
    let listed: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, listed.join(", "))
}

fn note(connections: usize) -> String {
    match connections {
        0 => String::new(),
        1 => "; one connection did not know the secret".into(),
        several => format!("; {several} connections did not know the secret"),
    }
}
