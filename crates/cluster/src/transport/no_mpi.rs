//! Where MPI is not supported: libraries for Windows have another interface.

use std::convert::Infallible;

use super::{Incoming, Outgoing, Transport};
use crate::membership::Membership;
use crate::watch::Watch;
use crate::{ClusterError, Limits};

/// Why there is no MPI library.
pub fn mpi_library() -> Result<String, ClusterError> {
    Err(ClusterError::NoMpi)
}

pub(crate) struct Mpi(Infallible);

impl Mpi {
    pub fn connect(_: &Membership, _: Limits) -> Result<Mpi, ClusterError> {
        Err(ClusterError::NoMpi)
    }
}

impl Transport for Mpi {
    fn name(&self) -> &str {
        match self.0 {}
    }

    fn watch(&self) -> &Watch {
        match self.0 {}
    }

    fn exchange(&mut self, _: &[Outgoing<'_>], _: &mut [Incoming<'_>]) -> Result<(), ClusterError> {
        match self.0 {}
    }
}
