//! The model card: what a model is, in a few lines.

use vit_graph::GraphError;
use vit_graph::cost::Cost;
use vit_models::vit::{Pooling, Positions, Vit};
use vit_models::{Architecture, Config, Mode};

/// Facts about a model, by name.
pub fn card(config: &Config) -> Result<Vec<(&'static str, String)>, GraphError> {
    let architecture = &config.architecture;
    let cost = Cost::of(&architecture.build(1, Mode::Inference)?);
    let ([height, width], p) = (architecture.image_size(), &config.preprocessing);
    let mut facts = vec![
        ("Architecture", config.name.clone().unwrap_or_else(|| kind(architecture).into())),
        ("Parameters", short(cost.parameters())),
        ("FLOP per image", format!("{} (2 per multiply-add)", short(cost.flops()))),
        ("Input", format!("{height} x {width}, {} channels", architecture.channels())),
    ];
    if let Architecture::Vit(vit) = architecture {
        facts.extend(tokens(vit));
    }
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

fn kind(architecture: &Architecture) -> &'static str {
    match architecture {
        Architecture::Vit(_) => "Vision Transformer",
        Architecture::ResNet(_) => "ResNet",
        Architecture::ResNetV2(_) => "ResNet v2 (BiT)",
        Architecture::LeNet(_) => "LeNet",
        Architecture::EfficientNet(_) => "EfficientNet",
        Architecture::Swin(_) => "Swin Transformer",
        Architecture::CoAtNet(_) => "CoAtNet",
    }
}

fn tokens(vit: &Vit) -> Vec<(&'static str, String)> {
    let ([rows, columns], [high, wide]) = (vit.grid(), vit.patch_size);
    let of = if vit.backbone.is_some() { "of a convolutional feature map" } else { "pixels" };
    let mut others = Vec::new();
    if vit.class_token {
        others.push("a class token".to_string());
    }
    if vit.distillation_token {
        others.push("a distillation token".into());
    }
    if vit.registers > 0 {
        others.push(format!("{} registers", vit.registers));
    }
    let others = if others.is_empty() { "nothing else".into() } else { others.join(", ") };
    let positions = match vit.positions {
        Positions::None => "none",
        Positions::Learned => "learned, one vector per token",
        Positions::Learned2d => "learned, by row and column",
        Positions::SinCos => "sines and cosines",
        Positions::Relative => "relative, a bias on attention",
    };
    let pooling = match vit.pooling {
        Pooling::Token => "the class token",
        Pooling::Mean => "the mean of the patch tokens",
        Pooling::Map => "attention pooling",
    };
    vec![
        ("Tokens", format!("{rows} x {columns} = {} patches of {high} x {wide} {of}; {others}", rows * columns)),
        ("Encoder", format!("{} blocks, width {}, {} heads, MLP {}", vit.depth, vit.dim, vit.heads, vit.mlp_dim)),
        ("Positions", positions.into()),
        ("Answers from", pooling.into()),
    ]
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
