//! Several processes that share a study: each takes runs that no other is at, as the locks of run folders tell.

use std::process::Command;

use anyhow::{Context, ensure};
use vit::DeviceChoice;
use vit_cluster::launch;

use crate::device_options::Placement;
use crate::{Outcome, terminal};

/// Says to a process which one of how many it is.
const JOB: &str = "VIT_STUDY_JOB";

/// The part of this process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Job {
    /// Which one it is; `None` for the process that starts the others.
    index: Option<usize>,
    count: usize,
}

impl Job {
    /// As the process was started, with so many jobs asked for.
    pub fn of_this_process(jobs: u32) -> anyhow::Result<Job> {
        let count = jobs as usize;
        let Ok(index) = std::env::var(JOB) else {
            return Ok(Job { index: (count == 1).then_some(0), count });
        };
        let index = index.parse::<usize>().ok().filter(|index| *index < count);
        ensure!(index.is_some(), "{JOB} is set by `vit study --jobs`; unset it");
        if index != Some(0) {
            terminal::be_quiet();
        }
        Ok(Job { index, count })
    }

    /// Whether it only starts the others and waits for them.
    pub fn starts_others(self) -> bool {
        self.index.is_none()
    }

    pub fn is_first(self) -> bool {
        self.index == Some(0)
    }

    pub fn is_alone(self) -> bool {
        self.count == 1
    }

    /// Where this job runs: on its share of the cores, and on one of the GPUs.
    pub fn placement(self, given: Placement) -> Placement {
        let Some(index) = self.index.filter(|_| self.count > 1) else { return given };
        let gpus = || vit_cuda::devices().map_or(0, |gpus| gpus.len());
        let device = match given.device {
            None | Some(DeviceChoice::Auto) => match gpus() {
                0 => Some(DeviceChoice::Cpu),
                gpus => Some(DeviceChoice::Cuda(index % gpus)),
            },
            chosen => chosen,
        };
        Placement { device, threads: Some((given.threads() / self.count).max(1) as u32) }
    }

    /// Starts this command once for every job and waits.
    pub fn start(self) -> anyhow::Result<Outcome> {
        let program = std::env::current_exe().context("cannot find this program's file")?;
        let launched = launch(self.count, |index| {
            let mut command = Command::new(&program);
            command.args(std::env::args_os().skip(1)).env(JOB, index.to_string());
            command
        })?;
        launched.unreported.iter().for_each(terminal::error);
        Ok(match launched.status {
            0 => Outcome::Fine,
            1 => Outcome::Failed,
            status => Outcome::Interrupted(u8::try_from(status).unwrap_or(1)),
        })
    }
}
