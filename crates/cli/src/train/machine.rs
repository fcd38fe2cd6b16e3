//! How a training run is carried out: options that do not change its result on the same kind of device.

use std::time::Duration;

use clap::{Args, ValueEnum};
use vit::DeviceChoice;
use vit_graph::device::Device;
use vit_train::{Launch, Processes, ShardedState, TrainerOptions};

use super::processes::Member;
use crate::device_options::Placement;
use crate::shell;

#[derive(Args)]
pub struct MachineArguments {
    #[command(flatten)]
    pub placement: Placement,
    /// Memory for decoded images, in megabytes [default: 2048]
    #[arg(long, value_name = "MB", help_heading = "How to run")]
    cache: Option<u64>,
    /// The longest time between two saves, in minutes [default: 5]
    #[arg(long, value_name = "MINUTES", help_heading = "How to run")]
    save_every: Option<f64>,
    /// Recompute activations in the backward pass instead of keeping them: much
    /// less memory, about a third more time, the same result
    #[arg(long, help_heading = "How to run")]
    recompute: bool,
    /// What several processes divide among them instead of each having all of it:
    /// the optimiser's state, or all (the parameters, too). The same result
    #[arg(long, value_name = "STATE", help_heading = "How to run")]
    shard: Option<ShardChoice>,
}

/// A choice of `--shard`.
#[derive(Clone, Copy, ValueEnum)]
pub enum ShardChoice {
    None,
    Optimiser,
    All,
}

impl From<ShardChoice> for ShardedState {
    fn from(choice: ShardChoice) -> ShardedState {
        match choice {
            ShardChoice::None => ShardedState::None,
            ShardChoice::Optimiser => ShardedState::Optimiser,
            ShardChoice::All => ShardedState::All,
        }
    }
}

impl From<ShardedState> for ShardChoice {
    fn from(state: ShardedState) -> ShardChoice {
        match state {
            ShardedState::None => ShardChoice::None,
            ShardedState::Optimiser => ShardChoice::Optimiser,
            ShardedState::All => ShardChoice::All,
        }
    }
}

impl MachineArguments {
    pub fn options(&self, processes: &Processes) -> TrainerOptions {
        TrainerOptions {
            threads: self.placement.threads(),
            cache_bytes: self.cache.unwrap_or(2048) << 20,
            save_every: Duration::try_from_secs_f64(60.0 * self.save_every.unwrap_or(5.0)).unwrap_or(Duration::MAX),
            recompute: self.recompute,
            processes: processes.clone(),
            sharded: self.shard.map_or(ShardedState::None, ShardedState::from),
        }
    }

    /// The usual options at a place.
    pub fn usual(placement: Placement) -> MachineArguments {
        MachineArguments { placement, cache: None, save_every: None, recompute: false, shard: None }
    }

    /// These options at another place.
    pub fn at(&self, placement: Placement) -> MachineArguments {
        MachineArguments { placement, ..*self }
    }

    /// The record of how a run was started, for its folder.
    pub fn launch(&self, device: &dyn Device) -> Launch {
        Launch {
            command: shell::this_command(),
            folder: std::env::current_dir().unwrap_or_default(),
            device: device.id(),
            threads: self.placement.threads,
            cache: self.cache,
            save_every: self.save_every,
            recompute: self.recompute,
            shard: self.shard.map(ShardedState::from),
        }
    }

    /// These options; those not given are as when the run began.
    pub fn or_as_begun(self, launch: &Launch, member: &Member) -> anyhow::Result<MachineArguments> {
        let begun_on = match launch.device.as_str() {
            "" => None,
            device => Some(device.parse::<DeviceChoice>().map_err(anyhow::Error::msg)?),
        };
        let threads = self.placement.threads.or(launch.threads);
        Ok(MachineArguments {
            placement: member.placement(Placement { threads, ..self.placement }, begun_on),
            cache: self.cache.or(launch.cache),
            save_every: self.save_every.or(launch.save_every),
            recompute: self.recompute || launch.recompute,
            shard: self.shard.or(launch.shard.map(ShardChoice::from)),
        })
    }
}
