//! The constructor of timm's `ResNetV2`.

use serde_json::{Map, Value, json};
use vit_graph::ops::Operation;

use super::{ResNetV2, ResNetV2Block, StemPooling};
use crate::config::timm::{described, mean_pooling, norm, object, short};
use crate::config::{Arguments, Configured};
use crate::layers::{Padding, Standardise, Stem, round_width};
use vit_preprocess::Preprocess;

const CLASS: &str = "timm.models.resnetv2.ResNetV2";

impl Configured for ResNetV2 {
    fn constructor(&self) -> (&'static str, Map<String, Value>) {
        (CLASS, arguments(self))
    }

    fn configure(&mut self, args: &Arguments) -> Result<(), String> {
        let factor = args.number("width_factor")?.unwrap_or(1.0);
        if !(factor > 0.0 && factor <= 64.0) {
            return Err(format!("timm's option `width_factor` should be above 0 and at most 64, not {factor}"));
        }
        let scaled = |width: usize| round_width(width as f64 * factor);
        self.depths = args.counts("layers")?.unwrap_or_else(|| self.depths.clone());
        self.widths = args.counts("channels")?.unwrap_or_else(|| self.widths.clone()).into_iter().map(scaled).collect();
        self.widths.truncate(self.depths.len());
        self.stem_width = scaled(args.count("stem_chs")?.unwrap_or(self.stem_width));
        self.classes = args.count("num_classes")?.unwrap_or(self.classes);
        self.channels = args.count("in_chans")?.unwrap_or(self.channels);
        self.output_stride = args.count("output_stride")?.unwrap_or(self.output_stride);
        self.bottleneck = args.number("bottle_ratio")?.unwrap_or(self.bottleneck);
        self.average_down = args.flag("avg_down")?.unwrap_or(self.average_down);
        let (preact, basic) = (args.flag("preact")?, args.flag("basic")?);
        self.block = match (
            preact.unwrap_or(self.block != ResNetV2Block::PostActivation),
            basic.unwrap_or(self.block == ResNetV2Block::Basic),
        ) {
            (true, true) => ResNetV2Block::Basic,
            (true, false) => ResNetV2Block::Bottleneck,
            (false, false) => ResNetV2Block::PostActivation,
            (false, true) => return Err("timm's basic blocks need `preact`".into()),
        };
        if let Some(kind) = args.text("stem_type")? {
            (self.stem, self.stem_pooling) = stem(kind)?;
        }
        if let Some((class, bound)) = args.class("conv_layer")? {
            self.padding = match class {
                "StdConv2dSame" => Padding::Same,
                "StdConv2d" | "create_conv2d" | "Conv2d" => Padding::Symmetric,
                other => {
                    return Err(format!(
                        "timm's option `conv_layer` should be StdConv2d or StdConv2dSame, not `{other}`"
                    ));
                }
            };
            let epsilon = bound.number("eps")?.unwrap_or(1e-6) as f32;
            // Not timm's: Google's code adds the epsilon after the root.
            let deviation = bound.number("eps_on_std")?.map(|e| Standardise::Deviation(e as f32));
            self.standardise = class.starts_with("Std").then_some(deviation.unwrap_or(Standardise::Variance(epsilon)));
            bound.finish(&[])?;
        }
        self.norm = norm(args, "norm_layer", self.norm)?;
        self.activation = args.activation("act_layer")?.unwrap_or(self.activation);
        self.dropout = args.rate("drop_rate")?.unwrap_or(self.dropout);
        self.drop_path = args.rate("drop_path_rate")?.unwrap_or(self.drop_path);
        mean_pooling(args)?;
        args.finish(&["zero_init_last", "pretrained", "features_only"])
    }

    fn classes() -> Vec<(&'static str, Self, Preprocess)> {
        vec![(CLASS, constructed(), Preprocess::inception())]
    }
}

/// The model of the constructor without arguments; BiT's models have another stem and epsilon.
fn constructed() -> ResNetV2 {
    ResNetV2 {
        stem_pooling: StemPooling::Symmetric,
        standardise: Some(Standardise::Variance(1e-6)),
        ..ResNetV2::default()
    }
}

fn stem(kind: &str) -> Result<(Stem, StemPooling), String> {
    let pooling = match kind {
        _ if kind.contains("fixed") => StemPooling::Zeros,
        _ if kind.contains("same") => StemPooling::Same,
        _ => StemPooling::Symmetric,
    };
    match kind {
        "" | "fixed" | "same" => Ok((Stem::Plain, pooling)),
        // Not timm's: it has no stem for small images.
        "small" => Ok((Stem::Small, pooling)),
        "deep" | "deep_fixed" | "deep_same" => Ok((Stem::Deep, pooling)),
        "tiered" => Ok((Stem::Tiered, pooling)),
        other => Err(format!("timm's option `stem_type` is not known here: `{other}`")),
    }
}

/// The constructor's arguments that make this model.
fn arguments(net: &ResNetV2) -> Map<String, Value> {
    let stem = match (net.stem, net.stem_pooling) {
        (Stem::Plain, StemPooling::Symmetric) => "",
        (Stem::Plain, StemPooling::Zeros) => "fixed",
        (Stem::Plain, StemPooling::Same) => "same",
        (Stem::Deep, StemPooling::Symmetric) => "deep",
        (Stem::Deep, StemPooling::Zeros) => "deep_fixed",
        (Stem::Deep, StemPooling::Same) => "deep_same",
        (Stem::Tiered, _) => "tiered",
        (Stem::Small, _) => "small",
    };
    let class = match (net.standardise, net.padding) {
        (None, _) => "create_conv2d",
        (Some(_), Padding::Same) => "StdConv2dSame",
        (Some(_), _) => "StdConv2d",
    };
    let conv = match net.standardise {
        None => json!(class),
        Some(Standardise::Variance(epsilon)) => json!({ class: { "eps": short(epsilon) } }),
        Some(Standardise::Deviation(epsilon)) => json!({ class: { "eps_on_std": short(epsilon) } }),
    };
    object(json!({
        "layers": net.depths,
        "channels": net.widths,
        "stem_chs": net.stem_width,
        "num_classes": net.classes,
        "in_chans": net.channels,
        "output_stride": net.output_stride,
        "bottle_ratio": net.bottleneck,
        "avg_down": net.average_down,
        "preact": net.block != ResNetV2Block::PostActivation,
        "basic": net.block == ResNetV2Block::Basic,
        "stem_type": stem,
        "conv_layer": conv,
        "norm_layer": described(net.norm),
        "act_layer": net.activation.name(),
        "drop_rate": short(net.dropout),
        "drop_path_rate": short(net.drop_path),
    }))
}
