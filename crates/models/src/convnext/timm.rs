//! The constructor of timm's `ConvNeXt`.

use serde_json::{Map, Value, json};
use vit_graph::ops::Operation;

use super::{ConvNext, ConvNextStem};
use crate::architecture::Architecture;
use crate::config::timm::{mean_pooling, object, short};
use crate::config::{Arguments, Configured, TimmForm, whole};
use vit_preprocess::Preprocess;

const CLASS: &str = "timm.models.convnext.ConvNeXt";

impl Configured for ConvNext {
    fn constructor(&self) -> (&'static str, Map<String, Value>) {
        (CLASS, arguments(self))
    }

    fn configure(&mut self, args: &Arguments) -> Result<(), String> {
        self.depths = args.counts("depths")?.unwrap_or_else(|| self.depths.clone());
        self.widths = args.counts("dims")?.unwrap_or_else(|| self.widths.clone());
        self.kernels = match args.get("kernel_sizes") {
            None if self.kernels.len() == self.depths.len() => self.kernels.clone(),
            None => vec![self.kernels[0]; self.depths.len().min(16)],
            Some(value) => match whole(value) {
                Some(kernel) => vec![kernel; self.depths.len().min(16)],
                None => args.counts("kernel_sizes")?.unwrap_or_default(),
            },
        };
        self.classes = args.count("num_classes")?.unwrap_or(self.classes);
        self.channels = args.count("in_chans")?.unwrap_or(self.channels);
        self.output_stride = args.count("output_stride")?.unwrap_or(self.output_stride);
        let patch = args.count("patch_size")?;
        self.stem = match (args.text("stem_type")?, self.stem) {
            (None, ConvNextStem::Patches(side)) => ConvNextStem::Patches(patch.unwrap_or(side)),
            (None, overlapping) => overlapping,
            (Some("patch"), _) => ConvNextStem::Patches(patch.unwrap_or(4)),
            (Some("overlap"), _) => ConvNextStem::Overlapping,
            (Some("overlap_tiered"), _) => ConvNextStem::OverlappingTiered,
            (Some("overlap_act"), _) => ConvNextStem::OverlappingActive,
            (Some(other), _) => {
                return Err(format!(
                    "timm's option `stem_type` should be patch, overlap, overlap_tiered or overlap_act, not `{other}`"
                ));
            }
        };
        self.first_stride = first_stride(self.stem);
        self.conv_bias = args.flag("conv_bias")?.unwrap_or(self.conv_bias);
        self.mlp_as_filters = args.flag("conv_mlp")?.unwrap_or(self.mlp_as_filters);
        self.response_norm = args.flag("use_grn")?.unwrap_or(self.response_norm);
        if args.has("ls_init_value") {
            self.layer_scale = args.number("ls_init_value")?.map(|v| v as f32);
        }
        self.norm_before_pooling = args.flag("head_norm_first")?.unwrap_or(self.norm_before_pooling);
        self.head_hidden = match args.count("head_hidden_size")? {
            Some(0) => None,
            hidden => hidden.or(self.head_hidden),
        };
        self.activation = args.activation("act_layer")?.unwrap_or(self.activation);
        match args.text("norm_layer")? {
            None | Some("" | "layernorm" | "layernorm2d") => {}
            Some(other) => return Err(format!("timm's option `norm_layer` should be layernorm here, not `{other}`")),
        }
        if let Some(epsilon) = args.number("norm_eps")? {
            (self.norm_epsilon, self.last_norm_epsilon) = (epsilon as f32, epsilon as f32);
        }
        self.dropout = args.rate("drop_rate")?.unwrap_or(self.dropout);
        self.drop_path = args.rate("drop_path_rate")?.unwrap_or(self.drop_path);
        mean_pooling(args)?;
        args.finish(&["head_init_scale", "pretrained", "features_only"])
    }

    fn timm(&self) -> TimmForm {
        let mut args = arguments(self);
        args.remove("in_chans");
        args.remove("num_classes");
        let base = match self.depths.len() {
            4 if self.first_stride != first_stride(self.stem) => {
                Err("timm's ConvNeXt halves the resolution in its first stage after patches of 2 pixels".into())
            }
            4 if self.output_stride > 32 => Err("timm's ConvNeXt has an output stride of 32 at most".into()),
            4 => Ok(("convnext_tiny".into(), args)),
            stages => Err(format!("timm's ConvNeXt has 4 stages, not {stages}")),
        };
        let mut extra = Map::new();
        if self.first_stride != first_stride(self.stem) {
            extra.insert("first_stride".into(), json!(self.first_stride));
        }
        if self.last_norm_epsilon != self.norm_epsilon {
            extra.insert("last_norm_epsilon".into(), json!(short(self.last_norm_epsilon)));
        }
        TimmForm { base, extra, ..TimmForm::published(arguments(self)) }
    }

    fn configure_extra(&mut self, extra: &Arguments) -> Result<(), String> {
        self.first_stride = extra.count("first_stride")?.unwrap_or(self.first_stride);
        self.last_norm_epsilon = extra.number("last_norm_epsilon")?.map_or(self.last_norm_epsilon, |e| e as f32);
        extra.finish(&[])
    }

    fn same_in_timm(&self, other: &Architecture) -> bool {
        let Some(other) = other.downcast_ref::<ConvNext>() else { return false };
        ConvNext { last_norm_epsilon: self.last_norm_epsilon, ..other.clone() } == *self
    }

    fn differences(&self, built: &Architecture) -> Vec<String> {
        let last = |net: &ConvNext| net.last_norm_epsilon;
        match built.downcast_ref().map(last) {
            Some(epsilon) if epsilon != self.last_norm_epsilon => vec![format!(
                "timm computes with an epsilon of {epsilon:e} in the last norm instead of {:e}; its outputs differ a little",
                self.last_norm_epsilon
            )],
            _ => Vec::new(),
        }
    }

    fn classes() -> Vec<(&'static str, Self, Preprocess)> {
        vec![(CLASS, ConvNext::default(), Preprocess::imagenet())]
    }
}

/// The stride of timm's first stage.
fn first_stride(stem: ConvNextStem) -> usize {
    if stem == ConvNextStem::Patches(2) { 2 } else { 1 }
}

/// The constructor's arguments that make this model.
fn arguments(net: &ConvNext) -> Map<String, Value> {
    let (stem, patch) = match net.stem {
        ConvNextStem::Patches(side) => ("patch", side),
        ConvNextStem::Overlapping => ("overlap", 4),
        ConvNextStem::OverlappingTiered => ("overlap_tiered", 4),
        ConvNextStem::OverlappingActive => ("overlap_act", 4),
    };
    object(json!({
        "in_chans": net.channels,
        "num_classes": net.classes,
        "output_stride": net.output_stride,
        "depths": net.depths,
        "dims": net.widths,
        "kernel_sizes": net.kernels,
        "ls_init_value": net.layer_scale.map(short),
        "stem_type": stem,
        "patch_size": patch,
        "head_norm_first": net.norm_before_pooling,
        "head_hidden_size": net.head_hidden,
        "conv_mlp": net.mlp_as_filters,
        "conv_bias": net.conv_bias,
        "use_grn": net.response_norm,
        "act_layer": net.activation.name(),
        "norm_eps": short(net.norm_epsilon),
        "drop_rate": short(net.dropout),
        "drop_path_rate": short(net.drop_path),
    }))
}
