//! Training in several processes, which this command starts itself, or mpirun, srun or torchrun did.

use std::process::Command;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use vit::DeviceChoice;
use vit_cluster::{ClusterError, Communicator, Health, Limits, Membership, Reduce, launch};
use vit_train::Processes;

use crate::device_options::Placement;
use crate::{Outcome, hints, terminal};

/// The options about processes.
#[derive(Args, Clone, Copy)]
pub struct ProcessArguments {
    /// Train in N processes on this machine. Their number changes the time, not the
    /// result
    #[arg(long, value_name = "N", help_heading = "How to run", conflicts_with = "gpus")]
    processes: Option<usize>,
    /// Train on N GPUs of this machine or on all of them, with a process for each
    #[arg(long, value_name = "N|all", help_heading = "How to run")]
    gpus: Option<GpuCount>,
    /// How processes add gradients: tree, in an order that does not depend on their
    /// number; fast, in that of the network library, with rounding differences
    #[arg(long, value_name = "HOW", help_heading = "How to run", default_value = "tree", hide_default_value = true)]
    reduce: ReduceChoice,
}

#[derive(Clone, Copy, ValueEnum)]
enum ReduceChoice {
    Tree,
    Fast,
}

#[derive(Clone, Copy)]
enum GpuCount {
    All,
    Of(usize),
}

impl FromStr for GpuCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("all", _) => Ok(GpuCount::All),
            (_, Ok(count)) if count > 0 => Ok(GpuCount::Of(count)),
            _ => Err("should be a number of GPUs or `all`".into()),
        }
    }
}

/// This process among those of its run.
pub struct Member {
    pub processes: Processes,
    membership: Membership,
    /// How it reaches the others, for messages.
    transport: String,
}

impl ProcessArguments {
    /// Starts the processes, or does the work of one of them.
    pub fn run(self, work: impl FnOnce(&Member) -> anyhow::Result<Outcome>) -> anyhow::Result<Outcome> {
        let membership = Membership::from_environment()?;
        let asked = self.count()?;
        if let Some(asked) = asked.filter(|asked| membership.size > 1 && *asked != membership.size) {
            bail!("{asked} processes were asked for, but this is one of {}; leave the option out", membership.size);
        }
        if let Some(count) = asked.filter(|count| *count > 1 && membership.size == 1) {
            return start(count);
        }
        if membership.rank > 0 {
            terminal::be_quiet();
        }
        let communicator = Communicator::connect(&membership, Limits::from_environment()?)?;
        let transport = communicator.transport().to_string();
        if communicator.size() > 1 {
            end_after_failures(communicator.health());
        }
        let reduce = match self.reduce {
            ReduceChoice::Tree => Reduce::Tree,
            ReduceChoice::Fast => Reduce::Fast,
        };
        let member = Member { processes: Processes::new(communicator, reduce), membership, transport };
        let outcome = work(&member);
        match outcome {
            Err(error) => member.end_with(error),
            fine => fine,
        }
    }

    /// How many processes were asked for.
    fn count(self) -> anyhow::Result<Option<usize>> {
        ensure!(self.processes != Some(0), "--processes 0: give 1 or more");
        let Some(gpus) = self.gpus else { return Ok(self.processes) };
        let found = vit_cuda::devices().context("no GPU can be used")?.len();
        match gpus {
            GpuCount::All => Ok(Some(found)),
            GpuCount::Of(count) => {
                ensure!(count <= found, "--gpus {count}: this machine has {found}");
                Ok(Some(count))
            }
        }
    }
}

/// Ends this process where another one failed and this one does not notice: its GPU may wait for the other for ever.
fn end_after_failures(health: Health) {
    std::thread::spawn(move || {
        let failure = loop {
            match health.failure() {
                Some(failure) => break failure,
                None => std::thread::sleep(Duration::from_millis(500)),
            }
        };
        std::thread::sleep(Duration::from_secs(8));
        terminal::error(failure);
        std::process::exit(1);
    });
}

/// Starts this command once for every process and waits.
fn start(count: usize) -> anyhow::Result<Outcome> {
    let program = std::env::current_exe().context("cannot find this program's file")?;
    let launched = launch(count, |_| {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1));
        command
    })?;
    launched.unreported.iter().for_each(terminal::error);
    Ok(match launched.status {
        0 => Outcome::Fine,
        1 => Outcome::Failed,
        status => Outcome::Interrupted(u8::try_from(status).unwrap_or(1)),
    })
}

impl Member {
    /// Where this process runs: each on its GPU if there are any, and on its share of the cores. `begun` is where the run
    /// began, if it did.
    pub fn placement(&self, given: Placement, begun: Option<DeviceChoice>) -> Placement {
        let Membership { local_rank, local_size, .. } = self.membership;
        if self.processes.size() == 1 {
            return Placement { device: given.device.or(begun), ..given };
        }
        let gpus = || vit_cuda::devices().map_or(0, |gpus| gpus.len());
        let device = match (given.device, begun) {
            (Some(DeviceChoice::Auto) | None, None | Some(DeviceChoice::Auto)) => match gpus() {
                0 => DeviceChoice::Cpu,
                found => DeviceChoice::Cuda(local_rank % found),
            },
            (None, Some(DeviceChoice::Cuda(_))) => DeviceChoice::Cuda(local_rank % gpus().max(1)),
            (Some(device), _) | (None, Some(device)) => device,
        };
        let threads = given.threads.unwrap_or_else(|| (given.threads() / local_size).max(1) as u32);
        Placement { device: Some(device), threads: Some(threads) }
    }

    /// The processes, for the line that says where a run trains; nothing for one.
    pub fn description(&self) -> String {
        match self.processes.size() {
            1 => String::new(),
            size => format!(", in {size} processes over {}", self.transport),
        }
    }

    /// Tells the other processes that this one failed. Rank 0 reports the errors of all; others only what rank 0 cannot:
    /// its own death, and on other hosts a silence, since the network between them and rank 0 may be down.
    fn end_with(&self, error: anyhow::Error) -> anyhow::Result<Outcome> {
        if self.processes.size() == 1 {
            return Err(error);
        }
        self.processes.fail(&hints::describe(&error).to_string());
        let reports = match self.processes.failure() {
            _ if self.processes.is_root() => true,
            Some(ClusterError::Peer { rank: 0, what, .. }) => !what.starts_with("failed"),
            Some(ClusterError::Peer { what, .. }) => self.membership.local_rank == 0 && what.contains("been silent"),
            _ => false,
        };
        if reports { Err(error) } else { Ok(Outcome::Failed) }
    }
}
