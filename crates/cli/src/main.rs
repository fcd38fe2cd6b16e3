//! `vit`: Vision Transformers from the command line. Arguments, progress and tables; the work is done by the crates.

mod bench;
mod checkpoints;
mod classify;
mod completions;
mod convert;
mod data;
mod device_options;
mod devices;
mod embed;
mod eval;
mod explain;
mod export;
mod hints;
mod images;
mod info;
mod inspect;
mod interrupt;
mod label;
mod man;
mod memory;
mod models;
mod patches;
mod plan;
mod probe;
mod recipes;
mod remote;
mod search;
mod serve;
mod shell;
mod study;
mod table;
mod terminal;
mod train;
mod training_view;
mod verify;
mod words;

use std::panic::PanicHookInfo;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// Vision Transformers in one binary: classify, embed and explain images, train, convert, verify and serve models
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
    #[command(flatten)]
    remote: remote::RemoteArguments,
}

#[derive(Subcommand)]
enum Command {
    Models(models::Arguments),
    Info(info::Arguments),
    Classify(classify::Arguments),
    Embed(embed::Arguments),
    Search(search::Arguments),
    Explain(explain::Arguments),
    Inspect(inspect::Arguments),
    Patches(patches::Arguments),
    Plan(plan::Arguments),
    Convert(convert::Arguments),
    Export(export::Arguments),
    Train(train::Arguments),
    Finetune(train::FinetuneArguments),
    Resume(train::ResumeArguments),
    Recipes(recipes::Arguments),
    Study(study::Arguments),
    Label(label::Arguments),
    Serve(serve::Arguments),
    Eval(eval::Arguments),
    Data(data::Arguments),
    Probe(probe::Arguments),
    Verify(verify::Arguments),
    Bench(bench::Arguments),
    Devices(devices::Arguments),
    Completions(completions::Arguments),
    Man(man::Arguments),
}

/// How a command ended, other than by an error.
#[derive(PartialEq)]
enum Outcome {
    Fine,
    /// A file or a comparison failed, which has been reported.
    Failed,
    /// A signal stopped a run, which was saved; the exit status.
    Interrupted(u8),
}

/// Blocks of this size and more are returned to the system when they are freed. glibc otherwise raises its threshold up to
/// 32 MB, and freed tensors of a checkpoint would stay in memory that a plan counts as free.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE_BLOCK: libc::c_int = 4 << 20;

fn main() -> ExitCode {
    // SAFETY: `mallopt` only changes a setting of the allocator, and no other thread runs yet.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BLOCK)
    };
    std::panic::set_hook(Box::new(report_panic));
    vit::on_cpu_fallback(|why| terminal::note(why));
    let mut command = Cli::command();
    let matches = command.get_matches_mut();
    hints::set_command(&command, &matches);
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let outcome = cli.remote.apply().and_then(|()| run(cli.command));
    match outcome {
        Ok(Outcome::Fine) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::from(1),
        Ok(Outcome::Interrupted(status)) => ExitCode::from(status),
        // The reader of our output may close it early, as `head` does.
        Err(error) if broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            // Errors about files name them, so a bare system error is about standard output.
            let alone = error.chain().len() == 1 && error.is::<std::io::Error>();
            let error = if alone { error.context("standard output") } else { error };
            terminal::error(hints::describe(&error));
            ExitCode::from(1)
        }
    }
}

fn run(command: Command) -> anyhow::Result<Outcome> {
    match command {
        Command::Models(arguments) => models::run(arguments),
        Command::Info(arguments) => info::run(arguments),
        Command::Classify(arguments) => classify::run(arguments),
        Command::Embed(arguments) => embed::run(arguments),
        Command::Search(arguments) => search::run(arguments),
        Command::Explain(arguments) => explain::run(arguments),
        Command::Inspect(arguments) => inspect::run(arguments),
        Command::Patches(arguments) => patches::run(arguments),
        Command::Plan(arguments) => plan::run(arguments),
        Command::Convert(arguments) => convert::run(arguments),
        Command::Export(arguments) => export::run(arguments),
        Command::Train(arguments) => train::run(arguments),
        Command::Finetune(arguments) => train::finetune(arguments),
        Command::Resume(arguments) => train::resume(arguments),
        Command::Recipes(arguments) => recipes::run(arguments),
        Command::Study(arguments) => study::run(arguments),
        Command::Label(arguments) => label::run(arguments),
        Command::Serve(arguments) => serve::run(arguments),
        Command::Eval(arguments) => eval::run(arguments),
        Command::Data(arguments) => data::run(arguments),
        Command::Probe(arguments) => probe::run(arguments),
        Command::Verify(arguments) => verify::run(arguments),
        Command::Bench(arguments) => bench::run(arguments),
        Command::Devices(arguments) => devices::run(arguments),
        Command::Completions(arguments) => completions::run(arguments, Cli::command()),
        Command::Man(arguments) => man::run(arguments, Cli::command()),
    }
}

/// Reports a panic in one line and ends the process. Panics of decoders that the data crate catches become errors about
/// the image.
fn report_panic(panic: &PanicHookInfo) {
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
    // Other threads may wait for the one that panicked.
    std::process::exit(1)
}

fn broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|e| e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe))
}
