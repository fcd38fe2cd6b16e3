//! The model card: what a model is, in a few lines.

use vit_graph::GraphError;
use vit_graph::cost::Cost;
use vit_models::{Config, Mode};

/// Facts about a model, by name.
pub fn card(config: &Config) -> Result<Vec<(&'static str, String)>, GraphError> {
    let architecture = &config.architecture;
    let cost = Cost::of(&architecture.build(1, Mode::Inference)?);
    let ([height, width], p) = (architecture.image_size(), &config.preprocessing);
    let mut facts = vec![
        ("Architecture", config.name.clone().unwrap_or_else(|| architecture.kind().into())),
        ("Parameters", short(cost.parameters())),
        ("FLOP per image", format!("{} (2 per multiply-add)", short(cost.flops()))),
        ("Input", format!("{height} x {width}, {} channels", architecture.channels())),
    ];
    facts.extend(architecture.facts());
    facts.push(("Classes", classes(config)));
    let [rows, columns] = p.image_size;
    facts.push((
        "Preprocessing",
        format!(
            "{} to {rows} x {columns}, crop {} ({}), mean {:?}, std {:?}",
            p.interpolation, p.crop_pct, p.crop_mode, p.mean, p.std
        ),
    ));
    Ok(facts)
}

fn classes(config: &Config) -> String {
    const MOST: usize = 12;
    match (config.architecture.classes(), config.labels.as_slice()) {
        (0, _) => "none: it gives features".into(),
        (count, []) => format!("{count}, without names"),
        (count, labels) => {
            let first: Vec<&str> = labels.iter().take(MOST).map(String::as_str).collect();
            format!("{count}: {}{}", first.join(", "), if count > MOST { ", …" } else { "" })
        }
    }
}

/// A number with three digits and a unit.
fn short(number: u64) -> String {
    let mut value = number as f64;
    for unit in ["", " thousand", " million", " billion", " trillion"] {
        if value < 999.5 {
            let decimals = if unit.is_empty() || value >= 99.95 { 0 } else { 1 };
            return format!("{value:.decimals$}{unit}");
        }
        value /= 1000.0;
    }
    number.to_string()
}
