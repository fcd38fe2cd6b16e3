//! `vit eval --suite`: one model on many datasets, by one protocol.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use vit_data::loader::UnreadableLimit;
use vit_graph::device::Parameters;
use vit_models::builtin;
use vit_train::probe::{NearestNeighbours, ProbeOptions};
use vit_train::{Processes, Study, StudyMachine, SuiteFile, SuiteProtocol, SuiteReport, TrainError};

use super::Arguments;
use crate::interrupt::Interrupt;
use crate::study::{Work, print};
use crate::train::{MachineArguments, read_recipe};
use crate::{Outcome, checkpoints, terminal};

/// Evaluates the model on all datasets of the suite, and prints the table.
pub fn run(arguments: &Arguments, path: &Path) -> anyhow::Result<Outcome> {
    let text = vit_system::regular_file::read_to_string(path);
    let text = text.with_context(|| format!("the suite {} cannot be read", path.display()))?;
    let mut suite = SuiteFile::parse(&text).with_context(|| path.display().to_string())?;
    if suite.name.is_empty() {
        suite.name = path.file_stem().map_or_else(|| "suite".into(), |stem| stem.to_string_lossy().into_owned());
    }
    let out = arguments.out.clone().unwrap_or_else(|| PathBuf::from("suites").join(&suite.name));
    let report = match suite.protocol {
        SuiteProtocol::Probe => probe(arguments, &suite, &out)?,
        SuiteProtocol::Finetune => match finetune(arguments, &suite, &out)? {
            Ok(report) => report,
            Err(outcome) => return Ok(outcome),
        },
    };
    let files = report.write(&out)?;
    if arguments.json {
        writeln!(std::io::stdout().lock(), "{}", report.json())?;
    } else {
        print(&report.table())?;
    }
    terminal::note(format_args!("{}: {}", out.display(), files.join(", ")));
    Ok(Outcome::Fine)
}

fn probe(arguments: &Arguments, suite: &SuiteFile, out: &Path) -> anyhow::Result<SuiteReport> {
    let model = arguments.model.path();
    let config = checkpoints::open(&model, false)?.into_image_tower()?.config;
    let device = arguments.device.inference().open()?;
    let options = ProbeOptions {
        batch: arguments.batch as usize,
        threads: arguments.device.placement.threads(),
        shots: Vec::new(),
        draws: 1,
        seed: 0,
        nearest: NearestNeighbours::default(),
    };
    // The device takes the weights, so each dataset gets them anew.
    let mut weights = || -> Result<Box<dyn Parameters>, TrainError> {
        let opened = vit_models::Checkpoint::open_image_model(&model, vit_models::OpenOptions::default())?;
        Ok(Box::new(opened.weights))
    };
    let begin = |name: &str| terminal::note(format_args!("{name}: computing features"));
    let name = model.display().to_string();
    Ok(suite.probe(out, &name, device.as_ref(), &config, &mut weights, &options, begin)?)
}

/// The report, or how the command ends if a signal stopped it.
fn finetune(arguments: &Arguments, suite: &SuiteFile, out: &Path) -> anyhow::Result<Result<SuiteReport, Outcome>> {
    let model = checkpoints::folder_of_config(&arguments.model.path()).into_owned();
    let model = if builtin::is_meant(&model) { model } else { vit_storage::absolute(&model)? };
    let placement = arguments.device.placement;
    let (device, precision) = arguments.device.training()?.open(placement, None)?;
    let machine = MachineArguments::usual(placement);
    let settings = StudyMachine {
        own: Vec::new(),
        max_unreadable: UnreadableLimit::default().share,
        precision: precision.to_string(),
        launch: machine.launch(device.as_ref()),
    };
    let study = Study::open(&out.join("study"), suite.study(&model), settings, &read_recipe)?;
    terminal::note(format_args!("training on {} in {precision}", device.description()));
    let options = machine.options(&Processes::default());
    let interrupt = Interrupt::listen()?;
    let work = Work { study: &study, device: device.as_ref(), options: &options, interrupt: &interrupt };
    Ok(match work.carry_out()? {
        Outcome::Fine => Ok(suite.fine_tuned(&study)?),
        outcome => Err(outcome),
    })
}
