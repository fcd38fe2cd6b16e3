//! `vit`: Vision Transformers from the command line. Arguments, progress and tables; the work is done by the crates.

mod classify;
mod convert;
mod embed;
mod info;
mod models;
mod pictures;
mod table;
mod terminal;
mod verify;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Vision Transformers in one binary: classify pictures, inspect and convert models, prove that a port is right.
#[derive(Parser)]
#[command(name = "vit", version, max_term_width = 100, arg_required_else_help = true)]
#[command(
    after_help = "Example:\n  vit classify --model checkpoints/cifar10 photos/\n\n`vit COMMAND --help` shows an example of each."
)]
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
    Convert(convert::Arguments),
    Verify(verify::Arguments),
}

/// How a command ended that did not stop with an error.
#[derive(PartialEq)]
enum Outcome {
    Fine,
    /// Something failed that has been reported already: some file, some comparison.
    Failed,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Models(arguments) => models::run(arguments),
        Command::Info(arguments) => info::run(arguments),
        Command::Classify(arguments) => classify::run(arguments),
        Command::Embed(arguments) => embed::run(arguments),
        Command::Convert(arguments) => convert::run(arguments),
        Command::Verify(arguments) => verify::run(arguments),
    };
    match outcome {
        Ok(Outcome::Fine) => ExitCode::SUCCESS,
        Ok(Outcome::Failed) => ExitCode::from(1),
        // Whoever reads our output may stop reading, as `head` does.
        Err(error) if broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::error(&format!("{error:#}"));
            ExitCode::from(1)
        }
    }
}

fn broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .any(|e| e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe))
}
