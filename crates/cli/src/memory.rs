//! The memory and disk that a run takes, as text and JSON, and the refusal of a run that does not fit.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use anyhow::bail;
use serde_json::json;
use vit::Precision;
use vit_graph::Graph;
use vit_graph::device::Device;
use vit_models::Config;
use vit_system::host::{self, FreeMemory, MemoryLimit};
use vit_train::{
    Alternatives, ImageSizes, MemoryBaseline, MemoryPhase, Processes, Recipe, RunDisk, RunMemory, Setup, ShardedState,
    Shortage, TrainError, TrainerOptions, Workload, free_disk,
};

use crate::{table, terminal};

/// A run's memory on an open device.
pub struct Planned<'a> {
    pub device: &'a dyn Device,
    pub memory: RunMemory,
    workload: Workload,
}

/// Bytes with two decimals above a gigabyte.
fn amount(bytes: u64) -> String {
    if bytes < 1_000_000_000 { table::bytes(bytes) } else { format!("{:.2} GB", bytes as f64 / 1e9) }
}

/// The memory in use now, by the process and on the device.
fn before(device: Option<FreeMemory>) -> MemoryBaseline {
    let device = device.filter(|room| room.limit == MemoryLimit::Gpu);
    MemoryBaseline { resident: host::resident().unwrap_or(0), device, own_memory: device.is_some() }
}

impl<'a> Planned<'a> {
    /// Plans a new run, or one that continues from a snapshot of so many bytes.
    pub fn new(
        device: &'a dyn Device,
        setup: &Setup,
        options: &TrainerOptions,
        snapshot: u64,
    ) -> Result<Planned<'a>, TrainError> {
        let workload = Workload::of(setup, options, snapshot);
        let memory = RunMemory::new(&workload, &|graph: &Graph| device.plan(graph), before(device.free_memory()))?;
        Ok(Planned { device, memory, workload })
    }

    /// Refuses a run that does not fit, and names options with which it would.
    pub fn ensure_fits(&self) -> anyhow::Result<()> {
        let device = self.device;
        let own = device.free_memory().filter(|room| room.limit == MemoryLimit::Gpu);
        let rooms = (host::free_memory(), own);
        let Some(shortage) = self.memory.shortage(rooms.0, rooms.1) else { return Ok(()) };
        let _busy = terminal::busy("looking for a batch that fits");
        let fits = |workload: &Workload| {
            let planned = RunMemory::new(workload, &|graph: &Graph| device.plan(graph), before(own));
            planned.is_ok_and(|memory| memory.shortage(rooms.0, rooms.1).is_none())
        };
        let found = Alternatives::of(&self.workload, &fits);
        bail!("{}", refusal(&self.memory, &shortage, &self.workload, &found))
    }
}

/// The memory of a run in one line.
pub fn of_workload(device: &dyn Device, workload: &Workload) -> anyhow::Result<String> {
    let memory = RunMemory::new(workload, &|graph: &Graph| device.plan(graph), before(device.free_memory()))?;
    Ok(line(&memory))
}

/// Plans a run for an H100 or H200 on a machine without one.
pub fn without_gpu(setup: &Setup, options: &TrainerOptions, precision: Precision) -> anyhow::Result<RunMemory> {
    let plan = |graph: &Graph| vit_cuda::plan_without_gpu(graph, precision);
    let before = MemoryBaseline { own_memory: true, ..before(None) };
    Ok(RunMemory::new(&Workload::of(setup, options, 0), &plan, before)?)
}

/// One sentence: the memory needed, the memory free, and the options that help.
fn refusal(memory: &RunMemory, shortage: &Shortage, workload: &Workload, found: &Alternatives) -> String {
    let gpu = shortage.room.limit == MemoryLimit::Gpu;
    let mut parts: Vec<(&str, u64)> =
        memory.parts.iter().map(|part| (part.name, if gpu { part.device } else { part.host })).collect();
    parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let most: Vec<String> = parts.iter().take(3).map(|(name, size)| format!("{name} {}", amount(*size))).collect();
    let batch = workload.recipe.batch;
    let mut ways = Vec::new();
    ways.extend(found.batch.map(|batch| format!("--batch {batch}")));
    ways.extend(found.recompute.then(|| format!("--batch {batch} with --recompute")));
    ways.extend(found.accumulate.map(|parts| format!("--batch {batch} with --set accumulate={parts}")));
    let ways = match ways.as_slice() {
        [] => "not even a batch of 1 would fit; take a smaller --model or --image-size".to_string(),
        ways => format!("what fits: {}", ways.join(", or ")),
    };
    format!(
        "with a batch of {batch} this run needs {} ({}, …), and {}; {ways}",
        amount(shortage.needed),
        most.join(", "),
        shortage.room
    )
}

/// Prints in one line the memory of a run.
pub fn announce(memory: &RunMemory) {
    terminal::note(line(memory));
}

fn line(memory: &RunMemory) -> String {
    let gpu = match memory.device() {
        0 => String::new(),
        device => format!(", and {} of the GPU's", amount(device)),
    };
    format!("memory: up to {}{gpu}", amount(memory.host()))
}

/// Prints the whole plan.
pub fn show(memory: &RunMemory, place: &str, own: Option<FreeMemory>) {
    terminal::note(format_args!("memory on {place}:"));
    lines(memory, own).iter().for_each(terminal::note);
}

/// The plan as lines: every part, their sum, and the free memory.
pub fn lines(memory: &RunMemory, own: Option<FreeMemory>) -> Vec<String> {
    let on_gpu = memory.device() > 0;
    let line = |name: &str, host: &str, device: &str, more: &str| {
        let gpu = if on_gpu { format!(" {device:>10}") } else { String::new() };
        format!("  {name:<16}{host:>10}{gpu}  {more}").trim_end().to_string()
    };
    let cell = |size: u64| if size > 0 { amount(size) } else { String::new() };
    let heading = on_gpu.then(|| line("", "host", "GPU", ""));
    let parts = memory.parts.iter().map(|part| {
        let when = match part.when {
            MemoryPhase::Always => "",
            MemoryPhase::Evaluating => "while evaluating",
            MemoryPhase::Saving => "while saving",
        };
        line(part.name, &cell(part.host), &cell(part.device), when)
    });
    let rooms = [host::free_memory(), own.filter(|room| room.limit == MemoryLimit::Gpu)];
    let there: Vec<String> = rooms.iter().flatten().map(FreeMemory::to_string).collect();
    let most = line("at most", &cell(memory.host()), &cell(memory.device()), &there.join("; "));
    heading.into_iter().chain(parts).chain([most]).collect()
}

/// The plan as JSON.
pub fn json(memory: &RunMemory) -> serde_json::Value {
    let parts: Vec<_> = memory
        .parts
        .iter()
        .map(|part| json!({ "name": part.name, "host": part.host, "device": part.device }))
        .collect();
    json!({ "host_bytes": memory.host(), "device_bytes": memory.device(), "parts": parts })
}

/// The memory for training a model with the default recipe, for an unknown dataset.
pub fn of_training(config: &Config, batch: usize, device: &dyn Device) -> anyhow::Result<RunMemory> {
    let plan = |graph: &Graph| device.plan(graph);
    Ok(RunMemory::new(&default_training(config, batch)?, &plan, before(device.free_memory()))?)
}

/// The same of one of several H100 or H200, planned without them. The batch is that of all of them.
pub fn of_training_on_gpus(
    config: &Config,
    batch: usize,
    gpus: usize,
    sharded: ShardedState,
    precision: Precision,
) -> anyhow::Result<RunMemory> {
    let plan = |graph: &Graph| vit_cuda::plan_without_gpu(graph, precision);
    let before = MemoryBaseline { own_memory: true, ..before(None) };
    let mut workload = default_training(config, batch)?;
    workload.recipe.parts = gpus;
    workload.options = TrainerOptions { processes: Processes::planned(gpus), sharded, ..workload.options };
    Ok(RunMemory::new(&workload, &plan, before)?)
}

fn default_training(config: &Config, batch: usize) -> anyhow::Result<Workload> {
    let mut config = config.clone();
    let mut recipe = Recipe::named("small")?;
    recipe.batch = batch;
    recipe.apply_to(&mut config.architecture);
    if config.architecture.classes() == 0 {
        config.architecture.set_classes(1000);
    }
    let options = TrainerOptions {
        threads: 1,
        cache_bytes: 0,
        save_every: Duration::MAX,
        recompute: false,
        processes: Processes::default(),
        sharded: ShardedState::None,
    };
    Ok(Workload { config, recipe, options, images: ImageSizes::default(), validation: batch, held: 0 })
}

/// Prints the size of a run's folder, and fails if the disk cannot hold it.
pub fn ensure_disk(memory: &RunMemory, setup: &Setup, folder: &Path) -> anyhow::Result<()> {
    let disk = RunDisk::new(memory.state, setup.validation.is_some());
    let line = disk_line(disk, free_disk(folder), &folder.display()).map_err(anyhow::Error::msg)?;
    terminal::note(line);
    Ok(())
}

fn disk_line(disk: RunDisk, free: Option<u64>, folder: &dyn Display) -> Result<String, String> {
    let [at_rest, peak] = [disk.at_rest, disk.peak].map(amount);
    let Some(free) = free else { return Ok(format!("disk: up to {peak} in {folder}")) };
    let there = amount(free);
    if free < disk.at_rest {
        return Err(format!(
            "{folder}: the run's checkpoints take {at_rest}, and {peak} while one is written, but only {there} are free on \
             that disk; make room, or name a folder on another disk with --out"
        ));
    }
    let tight = if free < disk.peak { "; the oldest checkpoint makes room for the next" } else { "" };
    Ok(format!("disk: up to {peak} in {folder}, {there} are free{tight}"))
}

/// The peak memory of the process beside the plan.
pub fn compared(peak: u64, memory: &RunMemory) -> String {
    format!("{} of memory at most, {} planned; ", amount(peak), amount(memory.host()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_the_disk_cannot_hold_began_anyway() {
        let disk = RunDisk { at_rest: 9_600_000_000, peak: 13_200_000_000 };
        let line = |free| disk_line(disk, Some(free), &"runs/one");
        assert_eq!(line(99_000_000_000).unwrap(), "disk: up to 13.20 GB in runs/one, 99.00 GB are free");
        assert!(line(10_000_000_000).unwrap().ends_with("the oldest checkpoint makes room for the next"));
        assert_eq!(
            line(9_000_000_000).unwrap_err(),
            "runs/one: the run's checkpoints take 9.60 GB, and 13.20 GB while one is written, but only 9.00 GB are free on that \
             disk; make room, or name a folder on another disk with --out"
        );
    }
}
