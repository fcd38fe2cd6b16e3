//! A training run from its first step to its last line.

use std::path::Path;
use std::time::Duration;

use anyhow::{anyhow, ensure};
use serde_json::json;
use vit_graph::GraphError;
use vit_graph::device::Device;
use vit_system::host;
use vit_train::{Clock, Finished, Launch, RunFolder, Setup, Snapshot, TrainError, TrainerOptions, train};

use super::machine::MachineArguments;
use super::processes::Member;
use crate::interrupt::Interrupt;
use crate::memory::{self, Planned};
use crate::table::bytes;
use crate::training_view::{Reporting, View};
use crate::{Outcome, hints, shell, terminal};

/// A run whose memory is planned and whose folder exists.
pub struct PlannedRun<'a> {
    pub planned: &'a Planned<'a>,
    pub folder: &'a RunFolder,
    pub machine: &'a MachineArguments,
    pub member: &'a Member,
    pub reporting: Reporting,
    pub launch: &'a Launch,
}

impl PlannedRun<'_> {
    /// Trains from the beginning, or from a snapshot.
    pub fn train(&self, setup: &mut Setup, from: Option<Snapshot>) -> anyhow::Result<Outcome> {
        let (device, folder) = (self.planned.device, self.folder);
        let (place, precision, others) = (device.description(), &setup.settings.precision, self.member.description());
        terminal::note(format_args!("training on {place} in {precision}{others}"));
        folder.write_command(&commands(folder.place(), self.launch)?)?;
        // A bucket that cannot be written to is an error now and not at the first checkpoint.
        folder.publish()?;
        let interrupt = Interrupt::listen()?;
        let mut view = View::new(self.reporting);
        let options = self.machine.options(&self.member.processes);
        let finished = train(device, setup, folder, from, &options, &mut view, &interrupt.stop);
        view.close();
        match finished {
            // The device or another process failed, not the run.
            Err(error)
                if !folder.last().is_empty()
                    && (error.is_of_another_process()
                        || matches!(
                            error,
                            TrainError::Graph(GraphError::Device { .. } | GraphError::Memory { .. })
                        )) =>
            {
                let (reason, resume) = (hints::describe(&error.into()), resume_command(folder.place()));
                Err(anyhow!("{reason}; `{resume}` continues from the last checkpoint"))
            }
            finished => self.summarise(setup, &finished?, &interrupt),
        }
    }

    /// Prints the result and what the run took.
    fn summarise(&self, setup: &Setup, finished: &Finished, interrupt: &Interrupt) -> anyhow::Result<Outcome> {
        let Finished { complete, early, position, waiting, seconds } = finished;
        let (folder, planned) = (self.folder, &self.planned.memory);
        let (peak, disk) = (host::peak(), folder.bytes_on_disk()?);
        self.reporting.event(&json!({
            "event": "end", "complete": complete, "early": early, "step": position.step, "run": folder.place(),
            "best": position.best, "seconds": seconds, "waiting": waiting, "peak_memory": peak,
            "planned_memory": planned.host(), "disk": disk,
        }));
        let memory = peak.map_or(String::new(), |peak| memory::compared(peak, planned));
        let taken = format!("{memory}{} on disk in {}", bytes(disk), folder.place().display());
        if !complete {
            let (step, resume) = (position.step, resume_command(folder.place()));
            terminal::note(format_args!("stopped and saved after step {step}; `{resume}` continues"));
            terminal::note(taken);
            return Ok(interrupt.outcome());
        }
        if *early {
            terminal::note(format_args!(
                "stopped early after step {}: {} evaluations in a row gave no new best",
                position.step, setup.recipe.patience
            ));
        }
        let time = Clock(Duration::try_from_secs_f64(*seconds).unwrap_or_default());
        terminal::note(format_args!("done in {time}, {:.1}% of it waiting for data", 100.0 * waiting));
        terminal::note(taken);
        match &position.best {
            Some(best) => terminal::note(format_args!(
                "best {} {:.2}% after step {}: {}",
                best.metric,
                100.0 * best.value,
                best.step,
                folder.place_of(&folder.best()).display()
            )),
            None => terminal::note(format_args!("the model: {}", folder.place_of(&folder.last()).display())),
        }
        ensure!(position.step > 0, "the recipe has no steps; check `length`");
        Ok(Outcome::Fine)
    }
}

/// Takes part in a run whose folder rank 0 has.
pub fn assist(
    device: &dyn Device,
    setup: &mut Setup,
    from: Option<Snapshot>,
    options: &TrainerOptions,
) -> anyhow::Result<Outcome> {
    let interrupt = Interrupt::listen()?;
    let finished = vit_train::assist(device, setup, from, options, &interrupt.stop)?;
    Ok(if finished.complete { Outcome::Fine } else { interrupt.outcome() })
}

fn resume_command(run: &Path) -> String {
    format!("vit resume {}", shell::quoted(run.as_os_str()))
}

/// The script that is kept with a run: the command that began it, and the one that resumes it.
fn commands(run: &Path, launch: &Launch) -> anyhow::Result<String> {
    let resume = resume_command(&vit_storage::absolute(run)?);
    if launch.command.is_empty() {
        return Ok(resume);
    }
    let folder = shell::quoted(launch.folder.as_os_str());
    Ok(format!("# Begun in {folder} with:\n# {}\n# Goes on with:\n{resume}", launch.command))
}
