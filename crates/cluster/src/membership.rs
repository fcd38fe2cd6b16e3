//! The rank of a process in its run, from the variables that its launcher sets.

use std::fmt;

use crate::{ClusterError, mpi_library, slurm};

/// The variable with the text that all processes of a run share.
pub(crate) const SECRET: &str = "VIT_CLUSTER_SECRET";

/// What started a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// A user, as a single process.
    User,
    /// `torchrun`, or anything else that sets its variables.
    Torchrun,
    /// `mpirun` or `mpiexec`.
    Mpirun,
    /// `srun`.
    Srun,
}

/// How the processes of a run reach each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// There is one process.
    Alone,
    /// By an MPI library.
    Mpi,
    /// By TCP, with a rendezvous at rank 0.
    Tcp {
        /// The name or IP address of the host of rank 0.
        address: String,
        /// The port where rank 0 listens.
        port: u16,
    },
}

/// The place of a process in its run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    /// The number of this process, from 0.
    pub rank: usize,
    /// The number of processes.
    pub size: usize,
    /// The number of this process among those of its host.
    pub local_rank: usize,
    /// The number of processes on this host.
    pub local_size: usize,
    /// What started the process.
    pub launcher: Launcher,
    /// How it reaches the others.
    pub route: Route,
}

impl Membership {
    /// A single process.
    pub fn alone() -> Membership {
        Membership { rank: 0, size: 1, local_rank: 0, local_size: 1, launcher: Launcher::User, route: Route::Alone }
    }

    /// The place of this process by its environment. The variables of torchrun come first, because users set them on
    /// purpose, then those of mpirun, then those of srun.
    pub fn from_environment() -> Result<Membership, ClusterError> {
        Self::from_variables(|name| std::env::var(name).ok(), || mpi_library().is_ok())
    }

    /// The same for any variables; `mpi_installed` decides the route under srun.
    fn from_variables(
        variable: impl Fn(&str) -> Option<String>,
        mpi_installed: impl FnOnce() -> bool,
    ) -> Result<Membership, ClusterError> {
        let variables = Variables { get: &|name| variable(name).filter(|text| !text.is_empty()) };
        let mut membership = if variables.has("RANK") || variables.has("WORLD_SIZE") {
            variables.torchrun()?
        } else if variables.has("OMPI_COMM_WORLD_RANK") {
            let local = ("OMPI_COMM_WORLD_LOCAL_RANK", Some("OMPI_COMM_WORLD_LOCAL_SIZE"));
            variables.mpirun(["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"], local)?
        } else if variables.is_srun_task() {
            variables.srun(mpi_installed)?
        } else if variables.has("PMI_RANK") {
            variables.mpirun(["PMI_RANK", "PMI_SIZE"], ("MPI_LOCALRANKID", Some("MPI_LOCALNRANKS")))?
        } else if variables.has("PMIX_RANK") {
            let text = "PMIX_RANK is set, but nothing tells the number of processes; start them by mpirun or srun";
            return Err(ClusterError::Environment(text.into()));
        } else {
            Membership::alone()
        };
        if membership.size == 1 {
            membership.route = Route::Alone;
        }
        Ok(membership)
    }
}

impl fmt::Display for Membership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let launcher = match self.launcher {
            Launcher::User => return write!(f, "the only process of its run"),
            Launcher::Torchrun => "torchrun's variables",
            Launcher::Mpirun => "mpirun",
            Launcher::Srun => "srun",
        };
        write!(f, "rank {} of {} by {launcher}", self.rank, self.size)?;
        match &self.route {
            Route::Alone => Ok(()),
            Route::Mpi => write!(f, ", over MPI"),
            Route::Tcp { address, port } => write!(f, ", over TCP with rank 0 at {address}:{port}"),
        }
    }
}

/// The environment, with errors that name its variables.
struct Variables<'a> {
    get: &'a dyn Fn(&str) -> Option<String>,
}

impl Variables<'_> {
    fn has(&self, name: &str) -> bool {
        (self.get)(name).is_some()
    }

    fn optional<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, ClusterError> {
        let Some(text) = (self.get)(name) else { return Ok(None) };
        let wrong = |_| ClusterError::Environment(format!("{name}={text} is not a number that can be used here"));
        text.parse().map(Some).map_err(wrong)
    }

    /// A number that must be there because `because` is.
    fn number(&self, name: &str, because: &str) -> Result<usize, ClusterError> {
        let missing = || ClusterError::Environment(format!("{because} is set, but {name} is not; set both or neither"));
        self.optional(name)?.ok_or_else(missing)
    }

    /// The place of a process by the names of its rank and the number of ranks, in the run and on its host.
    fn place(
        &self,
        [rank, size]: [&str; 2],
        (local_rank, local_size): (&str, Option<&str>),
    ) -> Result<Membership, ClusterError> {
        let local_size = local_size.map_or(Ok(None), |name| self.optional(name))?;
        let membership = Membership {
            rank: self.number(rank, size)?,
            size: self.number(size, rank)?,
            local_rank: self.optional(local_rank)?.unwrap_or(0),
            local_size: local_size.unwrap_or(1),
            ..Membership::alone()
        };
        if membership.rank >= membership.size {
            let text = format!("{rank}={} is not below {size}={}", membership.rank, membership.size);
            return Err(ClusterError::Environment(text));
        }
        Ok(Membership { local_size: membership.local_size.max(membership.local_rank + 1), ..membership })
    }

    fn torchrun(&self) -> Result<Membership, ClusterError> {
        let place = self.place(["RANK", "WORLD_SIZE"], ("LOCAL_RANK", Some("LOCAL_WORLD_SIZE")))?;
        if place.size == 1 {
            return Ok(Membership { launcher: Launcher::Torchrun, ..place });
        }
        let missing = |name| {
            ClusterError::Environment(format!("RANK and WORLD_SIZE are set, but {name} is not: where is rank 0?"))
        };
        let address = (self.get)("MASTER_ADDR").ok_or_else(|| missing("MASTER_ADDR"))?;
        let port: u16 = self.optional("MASTER_PORT")?.ok_or_else(|| missing("MASTER_PORT"))?;
        // torchrun itself listens at its port then.
        let taken = (self.get)("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True");
        let port = if taken { port.checked_add(1).unwrap_or(port - 1) } else { port };
        Ok(Membership { launcher: Launcher::Torchrun, route: Route::Tcp { address, port }, ..place })
    }

    fn mpirun(&self, run: [&str; 2], local: (&str, Option<&str>)) -> Result<Membership, ClusterError> {
        Ok(Membership { launcher: Launcher::Mpirun, route: Route::Mpi, ..self.place(run, local)? })
    }

    /// Whether srun started this process. A batch script has a rank and a number of tasks as well, but it is no task: it
    /// belongs to a job and to no step.
    fn is_srun_task(&self) -> bool {
        let step = self.has("SLURM_STEP_ID") || self.has("SLURM_STEPID") || !self.has("SLURM_JOB_ID");
        self.has("SLURM_PROCID") && step
    }

    fn srun(&self, mpi_installed: impl FnOnce() -> bool) -> Result<Membership, ClusterError> {
        let tasks = if self.has("SLURM_STEP_NUM_TASKS") { "SLURM_STEP_NUM_TASKS" } else { "SLURM_NTASKS" };
        let mut place = self.place(["SLURM_PROCID", tasks], ("SLURM_LOCALID", None))?;
        if let Some(here) = self.tasks_here(place.size)? {
            place.local_size = here.max(place.local_rank + 1);
        }
        // Without one of these, an MPI library would start every task as a run of one process.
        let managed = ["PMI_RANK", "PMI_FD", "PMIX_RANK"].iter().any(|name| self.has(name));
        let route = if place.size == 1 || (managed && mpi_installed()) { Route::Mpi } else { self.slurm_rendezvous()? };
        Ok(Membership { launcher: Launcher::Srun, route, ..place })
    }

    /// The tasks on this host: entry SLURM_NODEID of a list as `2(x3),1`.
    fn tasks_here(&self, size: usize) -> Result<Option<usize>, ClusterError> {
        let list = ["SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"].into_iter().find_map(|name| (self.get)(name));
        let (Some(list), Some(node)) = (list, self.optional::<usize>("SLURM_NODEID")?) else { return Ok(None) };
        let mut hosts = list.split(',').flat_map(|entry| {
            let (tasks, times) = entry.trim_end_matches(')').split_once("(x").unwrap_or((entry, "1"));
            std::iter::repeat_n(tasks.parse::<usize>().ok(), times.parse().unwrap_or(0).min(size))
        });
        Ok(hosts.nth(node).flatten())
    }

    fn slurm_rendezvous(&self) -> Result<Route, ClusterError> {
        let lists = ["SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"];
        let address = match (self.get)("MASTER_ADDR") {
            Some(address) => address,
            None => {
                let list = lists.into_iter().find_map(|name| (self.get)(name)).ok_or_else(|| {
                    let text = "SLURM_PROCID is set, but SLURM_STEP_NODELIST is not: where is rank 0?";
                    ClusterError::Environment(text.into())
                })?;
                let wrong = || ClusterError::Environment(format!("{list} is not a list of hosts of Slurm"));
                slurm::first_host(&list).ok_or_else(wrong)?
            }
        };
        // Steps that share a host have different ports, outside the usual range of ephemeral ones.
        let job: u64 = self.optional("SLURM_JOB_ID")?.unwrap_or(0);
        let step: u64 = self.optional("SLURM_STEP_ID")?.unwrap_or(0);
        let port = 10_000 + (job.wrapping_mul(7) + step) % 20_000;
        Ok(Route::Tcp { address, port: self.optional("MASTER_PORT")?.unwrap_or(port as u16) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(variables: &[(&str, &str)], mpi: bool) -> Result<Membership, String> {
        let get = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
        Membership::from_variables(get, || mpi).map_err(|error| error.to_string())
    }

    fn tcp(address: &str, port: u16) -> Route {
        Route::Tcp { address: address.into(), port }
    }

    #[test]
    fn nothing_in_the_environment_is_one_process() {
        assert_eq!(place(&[], true), Ok(Membership::alone()));
        assert_eq!(place(&[("MASTER_ADDR", "a"), ("RANK", "")], true), Ok(Membership::alone()));
    }

    #[test]
    fn the_variables_of_torchrun() {
        let variables = [
            ("RANK", "5"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "4"),
            ("MASTER_ADDR", "node3"),
            ("MASTER_PORT", "29500"),
        ];
        let expected = Membership {
            rank: 5,
            size: 8,
            local_rank: 1,
            local_size: 4,
            launcher: Launcher::Torchrun,
            route: tcp("node3", 29500),
        };
        assert_eq!(place(&variables, true), Ok(expected.clone()));
        assert_eq!(expected.to_string(), "rank 5 of 8 by torchrun's variables, over TCP with rank 0 at node3:29500");
        let agent = [&variables[..], &[("TORCHELASTIC_USE_AGENT_STORE", "True")]].concat();
        assert_eq!(place(&agent, true), Ok(Membership { route: tcp("node3", 29501), ..expected }));
        let alone = place(&[("RANK", "0"), ("WORLD_SIZE", "1")], true).unwrap();
        assert_eq!((alone.size, alone.route), (1, Route::Alone));
    }

    #[test]
    fn mixed_up_variables_are_one_sentence() {
        let error = |variables: &[(&str, &str)]| place(variables, true).unwrap_err();
        assert_eq!(error(&[("RANK", "4"), ("WORLD_SIZE", "4")]), "RANK=4 is not below WORLD_SIZE=4");
        assert_eq!(error(&[("RANK", "0")]), "RANK is set, but WORLD_SIZE is not; set both or neither");
        assert_eq!(error(&[("WORLD_SIZE", "2")]), "WORLD_SIZE is set, but RANK is not; set both or neither");
        assert_eq!(error(&[("RANK", "one"), ("WORLD_SIZE", "2")]), "RANK=one is not a number that can be used here");
        let two = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "a")];
        assert_eq!(error(&two), "RANK and WORLD_SIZE are set, but MASTER_PORT is not: where is rank 0?");
        assert_eq!(error(&two[..2]), "RANK and WORLD_SIZE are set, but MASTER_ADDR is not: where is rank 0?");
        let port = [&two[..], &[("MASTER_PORT", "70000")]].concat();
        assert_eq!(error(&port), "MASTER_PORT=70000 is not a number that can be used here");
        let slurm = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2")];
        assert_eq!(error(&slurm), "SLURM_PROCID is set, but SLURM_STEP_NODELIST is not: where is rank 0?");
    }

    #[test]
    fn the_variables_of_mpirun() {
        let open_mpi = [
            ("OMPI_COMM_WORLD_RANK", "2"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "0"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
            ("PMIX_RANK", "2"),
        ];
        let expected = Membership {
            rank: 2,
            size: 4,
            local_rank: 0,
            local_size: 2,
            launcher: Launcher::Mpirun,
            route: Route::Mpi,
        };
        assert_eq!(place(&open_mpi, true), Ok(expected));
        let mpich = place(&[("PMI_RANK", "1"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "1")], false).unwrap();
        assert_eq!((mpich.rank, mpich.size, mpich.local_rank, mpich.route), (1, 2, 1, Route::Mpi));
        assert!(place(&[("PMIX_RANK", "1")], true).unwrap_err().starts_with("PMIX_RANK is set, but nothing tells"));
    }

    #[test]
    fn the_variables_of_srun() {
        let variables = [
            ("SLURM_JOB_ID", "123"),
            ("SLURM_STEP_ID", "2"),
            ("SLURM_PROCID", "3"),
            ("SLURM_NTASKS", "5"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_NODEID", "1"),
            ("SLURM_TASKS_PER_NODE", "2(x2),1"),
            ("SLURM_JOB_NODELIST", "gpu[07-09],x"),
        ];
        let expected = Membership {
            rank: 3,
            size: 5,
            local_rank: 1,
            local_size: 2,
            launcher: Launcher::Srun,
            route: tcp("gpu07", 10_863),
        };
        assert_eq!(place(&variables, true), Ok(expected.clone()), "srun without MPI support");
        let managed = [&variables[..], &[("PMIX_RANK", "3")]].concat();
        assert_eq!(place(&managed, true), Ok(Membership { route: Route::Mpi, ..expected.clone() }));
        assert_eq!(place(&managed, false), Ok(expected), "without an MPI library");
        // A command of a batch script that is not started by srun.
        let script = [("SLURM_JOB_ID", "123"), ("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4")];
        assert_eq!(place(&script, true), Ok(Membership::alone()));
    }
}
