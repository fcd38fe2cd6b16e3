//! `vit recipes`: the named settings of training runs.

use std::io::Write;

use clap::{Args, Subcommand};
use vit_train::Recipe;

use crate::Outcome;
use crate::table::{Align, Table};

/// List the training recipes, or print one in full
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit recipes
  vit recipes show small
  vit recipes show deit > mine.toml
  vit train --data photos --recipe mine.toml

A recipe file may leave out settings that it does not change: `base` names the
recipe that they come from.")]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<RecipeCommand>,
}

#[derive(Subcommand)]
enum RecipeCommand {
    /// Print a recipe as TOML, with a comment on every setting
    #[command(after_help = "\
Example:
  vit recipes show vit-finetune")]
    Show {
        /// The recipe's name
        name: String,
    },
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let mut out = std::io::stdout().lock();
    match arguments.command {
        Some(RecipeCommand::Show { name }) => write!(out, "{}", Recipe::named(&name)?.to_toml())?,
        None => {
            let mut table = Table::new(&[
                ("recipe", Align::Left),
                ("length", Align::Left),
                ("batch", Align::Right),
                ("for", Align::Left),
            ]);
            for name in Recipe::names() {
                let recipe = Recipe::named(name)?;
                table.row(vec![name.into(), recipe.length.to_string(), recipe.batch.to_string(), recipe.about]);
            }
            table.print(&mut out, |_| None)?;
        }
    }
    Ok(Outcome::Fine)
}
