//! `vit models`: what there is.

use std::io::Write;

use clap::Args;
use serde_json::json;
use vit::graph::cost::Cost;
use vit::models::{Mode, Variant, variants};

use crate::Outcome;
use crate::table::{Align, Table, short};

/// List the models that are known by name
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit models
  vit models base
  vit models DeiT --json")]
pub struct Arguments {
    /// Only models whose name, paper name or family contains this
    filter: Option<String>,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let filter = arguments.filter.unwrap_or_default().to_lowercase();
    let matches = |v: &Variant| {
        let names = [Some(v.name.as_str()), v.paper_name.as_deref(), Some(v.family)];
        names.iter().flatten().any(|name| name.to_lowercase().contains(&filter))
    };
    let found: Vec<Variant> = variants().into_iter().filter(matches).collect();
    let mut out = std::io::stdout().lock();
    if found.is_empty() {
        anyhow::bail!("no model's name contains `{filter}`; `vit models` lists them all");
    }
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("PAPER", Align::Left),
        ("FAMILY", Align::Left),
        ("IMAGE", Align::Right),
        ("PARAMETERS", Align::Right),
        ("FLOP", Align::Right),
    ]);
    let mut list = Vec::new();
    for v in found {
        let cost = Cost::of(&v.architecture.build(1, Mode::Inference)?);
        let [height, width] = v.architecture.image_size();
        list.push(json!({
            "name": v.name,
            "paper_name": v.paper_name,
            "family": v.family,
            "image_size": [height, width],
            "parameters": cost.parameters(),
            "flops": cost.flops(),
        }));
        let paper = v.paper_name.unwrap_or_default();
        let family = v.family.to_string();
        table.row(vec![
            v.name,
            paper,
            family,
            format!("{height}x{width}"),
            short(cost.parameters()),
            short(cost.flops()),
        ]);
    }
    if arguments.json {
        writeln!(out, "{:#}", serde_json::Value::Array(list))?;
    } else {
        table.print(&mut out, |_| None)?;
    }
    Ok(Outcome::Fine)
}
