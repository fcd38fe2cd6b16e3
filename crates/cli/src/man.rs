//! `vit man`: the help of every command as a man page.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};
use vit_system::atomic_file;

use crate::{Outcome, terminal};

/// Write a man page for every command
#[derive(Args)]
#[command(after_help = "\
Example:
  vit man ~/.local/share/man/man1

`man vit` and `man vit-train` show them.")]
pub struct Arguments {
    /// The folder to write them to; it is created if missing
    folder: PathBuf,
}

pub fn run(arguments: Arguments, command: Command) -> anyhow::Result<Outcome> {
    let folder = &arguments.folder;
    std::fs::create_dir_all(folder).with_context(|| format!("the folder {}", folder.display()))?;
    // `vit help train` needs no page beside that of `vit train`.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let count = write_pages(&command, folder)?;
    terminal::note(format_args!("{}: {count} pages", folder.display()));
    Ok(Outcome::Fine)
}

/// Writes the pages of a command and of those below it; their number.
fn write_pages(command: &Command, folder: &Path) -> anyhow::Result<usize> {
    let path = folder.join(Man::new(command.clone()).get_filename());
    atomic_file::write(&path, page(command)?).with_context(|| path.display().to_string())?;
    command.get_subcommands().try_fold(1, |count, below| Ok(count + write_pages(below, folder)?))
}

fn page(command: &Command) -> std::io::Result<Vec<u8>> {
    let man = Man::new(command.clone()).source(concat!("vit ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(text) = command.get_after_help() {
        examples(&text.to_string()).to_writer(&mut page)?;
    }
    Ok(page)
}

/// What stands below the options in a help, which begins with a line `Examples:`. Indented lines are commands, which are kept
/// as they are.
fn examples(text: &str) -> Roff {
    let mut section = Roff::new();
    section.control("SH", ["EXAMPLES"]);
    for line in text.lines().skip(1) {
        if line.is_empty() {
            section.control("PP", []);
        } else if line.starts_with(' ') {
            section.control("nf", []).text([roman(line)]).control("fi", []);
        } else {
            section.text([roman(line)]);
        }
    }
    section
}
