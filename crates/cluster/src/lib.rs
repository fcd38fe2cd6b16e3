//! The processes of one run: who they are ([`Membership`]), how they exchange values ([`Communicator`]), and how they are
//! started on one machine ([`launch`]). It depends on no graph, device or model.
//!
//! Sums over ranks are added in one fixed binary tree ([`Reduce::Tree`]), so that the bits of a sum do not depend on the
//! number of processes as long as each contributes a whole subtree.
//!
//! ```
//! use vit_cluster::{Communicator, Reduce};
//!
//! let ranks = Communicator::threads(2).into_iter().map(|mut communicator| {
//!     std::thread::spawn(move || {
//!         let mut gradients = [communicator.rank() as f32 + 1.0; 5];
//!         communicator.all_reduce(&mut gradients, Reduce::Tree)?;
//!         assert_eq!(gradients, [3.0; 5]);
//!         Ok::<(), vit_cluster::ClusterError>(())
//!     })
//! });
//! for rank in ranks.collect::<Vec<_>>() {
//!     rank.join().unwrap()?;
//! }
//! # Ok::<(), vit_cluster::ClusterError>(())
//! ```

mod communicator;
mod error;
mod launch;
mod limits;
mod membership;
mod slurm;
mod sockets;
mod transport;
mod tree;
mod watch;

pub use communicator::{Communicator, Element, Reduce};
pub use error::ClusterError;
pub use launch::{Launched, launch};
pub use limits::Limits;
pub use membership::{Launcher, Membership, Route};
pub use transport::{Incoming, Outgoing, mpi_library};
pub use tree::{slice, tree_sum};
pub use watch::Health;
