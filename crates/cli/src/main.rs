//! `vit`: Vision Transformers from the command line. Arguments, progress and tables; the work is done by the crates.

mod bench;
mod checkpoints;
mod classify;
mod convert;
mod device_options;
mod devices;
mod embed;
mod eval;
mod explain;
mod hints;
mod info;
mod inspect;
mod interrupt;
mod label;
mod memory;
mod models;
mod patches;
mod pictures;
mod recipes;
mod shell;
mod study;
mod table;
mod terminal;
mod train;
mod training_view;
mod verify;

use std::panic::PanicHookInfo;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Vision Transformers in one binary: classify pictures, inspect and convert models, prove that a port is right
#[derive(Parser)]
#[command(name = "vit", bin_name = "vit", version, max_term_width = 80, arg_required_else_help = true)]
#[command(after_help = "\
Examples:
  vit models base
  vit info vit_base_patch16_224
  vit classify examples/images

Every command has examples in its help: `vit classify --help`.
The exit status is 0 if all went well, 1 if something failed, 2 if the command
was used wrongly, 130 or 143 if Ctrl-C or SIGTERM stopped a run, after saving.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Models(models::Arguments),
    Info(info::Arguments),
    Classify(classify::Arguments),
    Embed(embed::Arguments),
    Explain(explain::Arguments),
    Inspect(inspect::Arguments),
    Patches(patches::Arguments),
    Convert(convert::Arguments),
    Train(train::Arguments),
    Finetune(train::FinetuneArguments),
    Resume(train::ResumeArguments),
    Recipes(recipes::Arguments),
    Study(study::Arguments),
    Label(label::Arguments),
    Eval(eval::Arguments),
    Verify(verify::Arguments),
    Bench(bench::Arguments),
    Devices(devices::Arguments),
}

/// How a command ended that did not stop with an error.
#[derive(PartialEq)]
enum Outcome {
    Fine,
    /// Something failed that has been reported already: some file, some comparison.
    Failed,
    /// A signal stopped a run, which was saved; the exit status that says so.
    Interrupted(u8),
}

/// Blocks of this size and more go back to the system when they are freed. The C library otherwise learns to keep them,
/// up to 32 MB each, and a checkpoint's tensors would stay in memory that a plan counts as free.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE_BLOCK: libc::c_int = 4 << 20;

fn main() -> ExitCode {
    // SAFETY: it changes a setting of the allocator, before there is another thread.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BLOCK)
    };
    std::panic::set_hook(Box::new(stop));
    vit::on_cpu_fallback(|why| terminal::note(why));
    let outcome = match Cli::parse().command {
        Command::Models(arguments) => models::run(arguments),
        Command::Info(arguments) => info::run(arguments),
        Command::Classify(arguments) => classify::run(arguments),
        Command::Embed(arguments) => embed::run(arguments),
        Command::Explain(arguments) => explain::run(arguments),
        Command::Inspect(arguments) => inspect::run(arguments),
        Command::Patches(arguments) => patches::run(arguments),
        Command::Convert(arguments) => convert::run(arguments),
        Command::Train(arguments) => train::run(arguments),
        Command::Finetune(arguments) => train::finetune(arguments),
        Command::Resume(arguments) => train::resume(arguments),
        Command::Recipes(arguments) => recipes::run(arguments),
        Command::Study(arguments) => study::run(arguments),
        Command::Label(arguments) => label::run(arguments),
        Command::Eval(arguments) => eval::run(arguments),
        Command::Verify(arguments) => verify::run(arguments),
        Command::Bench(arguments) => bench::run(arguments),
        Command::Devices(arguments) => devices::run(arguments),
    };
    match outcome {
        Ok(Outcome::Fine) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::from(1),
        Ok(Outcome::Interrupted(status)) => ExitCode::from(status),
        // Whoever reads our output may stop reading, as `head` does.
        Err(error) if broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Errors of files name them; what comes from the system alone was meant for standard output.
            let alone = error.chain().len() == 1 && error.is::<std::io::Error>();
            let error = if alone { error.context("standard output") } else { error };
            terminal::error(hints::describe(&error));
            ExitCode::from(1)
        }
    }
}

/// People are told of a bug in one line. Panics of decoders that the data crate catches are none: the picture's error
/// message says it all.
fn stop(panic: &PanicHookInfo) {
    if vit_data::decode::catches_panics() {
        return;
    }
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let place = panic.location().map_or(String::new(), |place| format!(" at {place}"));
    terminal::error(format_args!(
        "this is a bug in vit {}: {}{place}; please report it with the command that you ran",
        env!("CARGO_PKG_VERSION"),
        text.unwrap_or("it stopped")
    ));
    // Other threads may wait for the one that panics.
    std::process::exit(1)
}

fn broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|e| e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe))
}
