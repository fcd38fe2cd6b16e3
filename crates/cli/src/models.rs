//! `vit models`: the models known by name.

use std::io::Write;

use clap::Args;
use serde_json::{Value, json};
use vit_graph::cost::Cost;
use vit_models::{Mode, Variant, clip, variants};

use crate::Outcome;
use crate::table::{Align, Table, short};
use crate::terminal::Meaning;

/// List the models known by name
#[derive(Args)]
#[command(after_help = "\
Examples:
  vit models
  vit models dinov2
  vit models EfficientNet --json")]
pub struct Arguments {
    /// Only models whose name, paper name or family contains this; without it, the families
    filter: Option<String>,
    /// Print one JSON array of models
    #[arg(long)]
    json: bool,
}

/// A listed model.
struct Listed {
    variant: Variant,
    parameters: u64,
    flops: u64,
}

pub fn run(arguments: Arguments) -> anyhow::Result<Outcome> {
    let filter = arguments.filter.as_deref().unwrap_or_default().to_lowercase();
    let matches = |v: &Variant| {
        let names = [Some(v.name.as_str()), v.paper_name.as_deref(), Some(v.family)];
        names.iter().flatten().any(|name| name.to_lowercase().contains(&filter))
    };
    let found: Vec<Variant> = variants().into_iter().chain(clip::variants()).filter(matches).collect();
    if found.is_empty() {
        anyhow::bail!("no model's name contains `{filter}`; `vit models` lists them all");
    }
    let families = by_family(found)?;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let list = families.iter().flat_map(|(_, models)| models).map(described).collect();
        writeln!(out, "{:#}", Value::Array(list))?;
    } else if arguments.filter.is_none() {
        table_of_families(&families).print(&mut out, |_| None)?;
        writeln!(out, "\n`vit models FAMILY` lists the models of one, or those with a word in their name.")?;
    } else {
        let (table, headings) = table_of_models(&families);
        table.print(&mut out, |row| headings.contains(&row).then_some(Meaning::Heading))?;
    }
    Ok(Outcome::Fine)
}

/// The models of each family, in the order of their first models.
fn by_family(found: Vec<Variant>) -> anyhow::Result<Vec<(&'static str, Vec<Listed>)>> {
    let mut families: Vec<(&str, Vec<Listed>)> = Vec::new();
    for variant in found {
        let cost = Cost::of(&variant.architecture.build(1, Mode::Inference)?);
        let family = variant.family;
        let listed = Listed { variant, parameters: cost.parameters(), flops: cost.flops() };
        match families.iter_mut().find(|(name, _)| *name == family) {
            Some((_, models)) => models.push(listed),
            None => families.push((family, vec![listed])),
        }
    }
    Ok(families)
}

fn described(Listed { variant, parameters, flops }: &Listed) -> Value {
    json!({
        "name": variant.name,
        "paper_name": variant.paper_name,
        "family": variant.family,
        "image_size": variant.architecture.image_size(),
        "classes": variant.architecture.classes(),
        "head": variant.head(),
        "licence": variant.licence(),
        "parameters": parameters,
        "flops": flops,
    })
}

fn table_of_families(families: &[(&str, Vec<Listed>)]) -> Table {
    let mut table = Table::new(&[
        ("FAMILY", Align::Left),
        ("MODELS", Align::Right),
        ("PARAMETERS", Align::Right),
        ("IMAGE", Align::Right),
        ("LICENCES OF WEIGHTS", Align::Left),
    ]);
    for (family, models) in families {
        let range = |values: Vec<u64>, text: &dyn Fn(u64) -> String| {
            let (least, most) = (values.iter().min().copied(), values.iter().max().copied());
            let [least, most] = [least, most].map(|value| text(value.unwrap_or_default()));
            if least == most { least } else { format!("{least} to {most}") }
        };
        let mut licences: Vec<&str> = models.iter().filter_map(|model| model.variant.licence()).collect();
        licences.sort_unstable();
        licences.dedup();
        let others = licences.len().saturating_sub(1);
        let licences = licences.first().map_or(String::new(), |first| match others {
            0 => first.to_string(),
            _ => format!("{first} +{others}"),
        });
        table.row(vec![
            family.to_string(),
            models.len().to_string(),
            range(models.iter().map(|model| model.parameters).collect(), &short),
            range(models.iter().map(|model| model.variant.architecture.image_size()[0] as u64).collect(), &|side| {
                side.to_string()
            }),
            licences,
        ]);
    }
    table
}

/// The table, and the rows that are headings.
fn table_of_models(families: &[(&str, Vec<Listed>)]) -> (Table, Vec<usize>) {
    let mut table = Table::new(&[
        ("NAME", Align::Left),
        ("PAPER", Align::Left),
        ("IMAGE", Align::Right),
        ("PARAMETERS", Align::Right),
        ("FLOP", Align::Right),
        ("HEAD", Align::Left),
        ("LICENCE", Align::Left),
    ]);
    let (mut headings, mut rows) = (Vec::new(), 0);
    for (family, models) in families {
        headings.push(rows);
        rows += 1 + models.len();
        table.row([family, "", "", "", "", "", ""].map(str::to_string).to_vec());
        for Listed { variant, parameters, flops } in models {
            let [height, width] = variant.architecture.image_size();
            table.row(vec![
                variant.name.clone(),
                variant.paper_name.clone().unwrap_or_default(),
                format!("{height}x{width}"),
                short(*parameters),
                short(*flops),
                variant.head(),
                variant.licence().unwrap_or_default().to_string(),
            ]);
        }
    }
    (table, headings)
}
