//! `vit resume`: an interrupted run continues.

use std::path::PathBuf;

use anyhow::{anyhow, bail};
use clap::Args;
use vit::Precision;
use vit_graph::device::Parameters;
use vit_train::{ChangedData, RunConfig, RunFolder, Setup};

use super::machine::MachineArguments;
use super::parse_share;
use super::processes::{Member, ProcessArguments};
use super::run::{PlannedRun, assist};
use crate::memory::{self, Planned};
use crate::training_view::Reporting;
use crate::{Outcome, terminal};

/// Continue a run that was interrupted
#[derive(Args)]
#[command(after_help = "\
Example:
  vit resume runs/photos-1

The run continues from its last checkpoint, on the device on which it began, and
ends with the same weights, bit for bit, as if it had never been interrupted. If
images were added, removed, replaced or relabelled since, it says so and stops.")]
pub struct ResumeArguments {
    /// The run's folder or URL
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Continue although the data changed, with the split kept: held-out images
    /// stay held out, new images are trained on
    #[arg(long)]
    accept_changed_data: bool,
    /// Stop if more than this share of the training or validation images cannot be
    /// read, as 5% or 0.05 [default: as begun]
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    max_unreadable: Option<f64>,
    #[command(flatten)]
    reporting: Reporting,
    #[command(flatten)]
    machine: MachineArguments,
    #[command(flatten)]
    processes: ProcessArguments,
}

pub fn resume(arguments: ResumeArguments) -> anyhow::Result<Outcome> {
    arguments.processes.run(|member| resume_as(arguments, member))
}

fn resume_as(arguments: ResumeArguments, member: &Member) -> anyhow::Result<Outcome> {
    let ResumeArguments { run, accept_changed_data, max_unreadable, reporting, machine, .. } = arguments;
    reporting.apply();
    let processes = &member.processes;
    let run = if processes.is_root() { RunFolder::resume(&run)? } else { RunFolder::open(&run)? };
    let launch = RunConfig::of(&run)?.launch;
    if run.last().is_empty() {
        bail!(
            "{}: this run was stopped before its first checkpoint; begin it again with `vit train` and --overwrite",
            run.place().display()
        );
    }
    let opened = run.last().open()?;
    opened.notes.iter().for_each(terminal::note);
    let snapshot = opened.snapshot;
    let changed = if accept_changed_data { ChangedData::Accept } else { ChangedData::Refuse };
    let mut setup = {
        let _busy = terminal::busy(format!("opening the data of {}", run.place().display()));
        Setup::resume(&run, &snapshot, changed)?
    };
    setup.settings.max_unreadable = max_unreadable.unwrap_or(setup.settings.max_unreadable);
    setup.divide(processes)?;
    setup.report.iter().for_each(terminal::note);
    let precision: Precision = setup.settings.precision.parse().map_err(anyhow::Error::msg)?;
    let chosen = machine.placement.device.is_some();
    let machine = machine.or_as_begun(&launch, member)?;
    let device =
        machine.placement.in_precision(precision).open_with_exchange(processes.exchange().as_ref()).map_err(|error| match chosen || launch.device.is_empty() {
            true => error.into(),
            false => anyhow!(
                "{}: the run was begun on {} in {precision}, and that cannot be had here: {error}. Resume it where there \
                 is such a device, or name another with --device",
                run.place().display(),
                launch.device
            ),
        })?;
    let held = snapshot.weights.held_bytes() + snapshot.optimiser.held_bytes();
    let planned = Planned::new(device.as_ref(), &setup, &machine.options(processes), held)?;
    planned.ensure_fits()?;
    if !processes.is_root() {
        return assist(device.as_ref(), &mut setup, Some(snapshot), &machine.options(processes));
    }
    memory::announce(&planned.memory);
    PlannedRun { planned: &planned, folder: &run, machine: &machine, member, reporting, launch: &launch }
        .train(&mut setup, Some(snapshot))
}
