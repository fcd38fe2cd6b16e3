//! `vit completions`: commands and options that a shell completes.

use std::io::Write;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::Outcome;

/// Print a script with which a shell completes commands and options
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit completions bash > ~/.local/share/bash-completion/completions/vit
  vit completions zsh > ~/.zfunc/_vit
  vit completions fish > ~/.config/fish/completions/vit.fish
  vit completions elvish >> ~/.config/elvish/rc.elv
  vit completions powershell >> $PROFILE

The folders must exist. zsh reads ~/.zfunc if ~/.zshrc has
`fpath+=~/.zfunc; autoload -Uz compinit; compinit`.")]
pub struct Arguments {
    /// bash, zsh, fish, elvish or powershell
    #[arg(value_name = "SHELL", hide_possible_values = true)]
    shell: Shell,
}

pub fn run(arguments: Arguments, mut command: Command) -> anyhow::Result<Outcome> {
    // The generators panic if they cannot write.
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut command, "vit", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(Outcome::Fine)
}
