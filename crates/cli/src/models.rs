//! `vit models`: the models known by name.

use std::io::Write;

use clap::Args;
use serde_json::json;
use vit_graph::cost::Cost;
use vit_models::{Mode, Variant, variants};

use crate::Outcome;
use crate::table::{Align, Table, short};
use crate::terminal::Meaning;

/// List the models known by name
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit models
  vit models base
  vit models EfficientNet --json")]
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
    let mut found: Vec<Variant> = variants().into_iter().filter(matches).collect();
    // Families stay together, in the order of their first model.
    let mut families: Vec<&str> = Vec::new();
    found.iter().for_each(|v| {
        if !families.contains(&v.family) {
            families.push(v.family)
        }
    });
    found.sort_by_key(|v| families.iter().position(|family| *family == v.family));
    let mut out = std::io::stdout().lock();
    if found.is_empty() {
        anyhow::bail!("no model's name contains `{filter}`; `vit models` lists them all");
    }
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("PAPER", Align::Left),
        ("IMAGE", Align::Right),
        ("PARAMETERS", Align::Right),
        ("FLOP", Align::Right),
    ]);
    let mut list = Vec::new();
    let mut headings = Vec::new();
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
        if families.first() == Some(&v.family) {
            families.remove(0);
            headings.push(headings.len() + list.len() - 1);
            table.row([v.family, "", "", "", ""].map(str::to_string).to_vec());
        }
        table.row(vec![v.name, paper, format!("{height}x{width}"), short(cost.parameters()), short(cost.flops())]);
    }
    if arguments.json {
        writeln!(out, "{:#}", serde_json::Value::Array(list))?;
    } else {
        table.print(&mut out, |row| headings.contains(&row).then_some(Meaning::Heading))?;
    }
    Ok(Outcome::Fine)
}
