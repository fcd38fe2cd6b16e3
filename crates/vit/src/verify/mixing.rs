//! Replays recorded mixup and cutmix batches: images, targets, logits, losses and gradients.
//!
//! The partner of image `i` is image `batch - 1 - i`. `io.safetensors` holds `images`, `labels`, and for
//! each kind `KIND_images`, `KIND_targets`, `KIND_logits`, `KIND_loss`; `grad.NAME` are gradients of `mixup_loss`.

use serde_json::Value;
use vit_models::Checkpoint;
use vit_models::weights::{Tensor, Weights};
use vit_train::{Optimiser, OptimiserMethod};

use super::training::{Replay, compare_gradients, gradients, one_hot, take};
use super::{Comparison, ReplayError, VerifyOptions, settings, usual_tolerance};

/// Mixing is two products and a sum.
const MIXED: f64 = 1e-6;
const LOSS: f64 = 1e-5;
const GRADIENT: f64 = 1e-5;

/// How two images become one.
enum RecordedMix {
    /// `share` of the image and `1 - share` of its partner, in every pixel.
    Mixup { share: f32 },
    /// The partner's pixels inside a box; the labels are mixed by area.
    Cutmix { rows: [usize; 2], columns: [usize; 2], share: f32 },
}

impl RecordedMix {
    fn parse(kind: &str, config: &Value) -> Result<RecordedMix, String> {
        let share = config[kind]["lam"].as_f64().ok_or(format!("config.json has no {kind}.lam"))? as f32;
        if kind == "mixup" {
            return Ok(RecordedMix::Mixup { share });
        }
        let edges: Option<Vec<usize>> = config[kind]["bbox_yl_yh_xl_xh"]
            .as_array()
            .map(|edges| edges.iter().filter_map(Value::as_u64).map(|e| e as usize).collect());
        match edges.as_deref() {
            Some(&[top, bottom, left, right]) => {
                Ok(RecordedMix::Cutmix { rows: [top, bottom], columns: [left, right], share })
            }
            _ => Err("config.json has no cutmix.bbox_yl_yh_xl_xh of four numbers".into()),
        }
    }

    fn share(&self) -> f32 {
        match *self {
            RecordedMix::Mixup { share } | RecordedMix::Cutmix { share, .. } => share,
        }
    }

    fn images(&self, images: &Tensor, [height, width]: [usize; 2]) -> Vec<f32> {
        let each = images.data.len() / images.shape[0].max(1);
        let partners = images.data.chunks_exact(each.max(1)).rev().flatten();
        let mix = |(i, (own, partner)): (usize, (&f32, &f32))| match self {
            RecordedMix::Mixup { share } => share * own + (1.0 - share) * partner,
            RecordedMix::Cutmix { rows, columns, .. } => {
                let (row, column) = (i / width % height, i % width);
                let inside = (rows[0]..rows[1]).contains(&row) && (columns[0]..columns[1]).contains(&column);
                if inside { *partner } else { *own }
            }
        };
        images.data.iter().zip(partners).enumerate().map(mix).collect()
    }

    fn targets(&self, targets: &[f32], classes: usize) -> Vec<f32> {
        let partners = targets.chunks_exact(classes.max(1)).rev().flatten();
        targets.iter().zip(partners).map(|(own, partner)| self.share() * own + (1.0 - self.share()) * partner).collect()
    }
}

pub(super) fn replay(
    config: &Value,
    checkpoint: &mut Checkpoint,
    images: Tensor,
    mut io: Weights,
    options: &VerifyOptions,
) -> Result<Vec<Comparison>, ReplayError> {
    let [batch, _, height, width] = images.shape[..] else {
        return Err(ReplayError::Recording("`images` should be [batch, channels, height, width]".into()));
    };
    let classes = checkpoint.config.architecture.classes();
    let smoothing = settings::label_smoothing(config).map_err(ReplayError::Recording)?;
    let targets = one_hot(&take(&mut io, "labels")?.data, classes, smoothing)?;
    if targets.len() != batch * classes {
        return Err(ReplayError::Recording(format!("there should be {batch} labels")));
    }
    let gradients = gradients(&mut io)?;
    // With a learning rate of zero the weights stay unchanged.
    let method = OptimiserMethod::Sgd { momentum: 0.0, dampening: 0.0, nesterov: false };
    let still = Optimiser { method, weight_decay: 0.0, clip: None, ..Optimiser::default() };
    let mut replay = Replay::new(checkpoint, batch, &still.into(), options)?;
    let tolerance = |usual: f64| options.tolerance.unwrap_or(usual);
    let mut arrays = Vec::new();
    for kind in ["mixup", "cutmix"] {
        if !io.tensors.contains_key(&format!("{kind}_images")) {
            continue;
        }
        let mix = RecordedMix::parse(kind, config).map_err(ReplayError::Recording)?;
        let (images, targets) = (mix.images(&images, [height, width]), mix.targets(&targets, classes));
        replay.run(&images, &targets, 0.0, 1)?;
        for (name, found, usual) in [
            ("images", images, MIXED),
            ("targets", targets, MIXED),
            ("logits", replay.read("logits")?, usual_tolerance("logits", config, options.device.precision)),
            ("loss", replay.read("loss")?, LOSS),
        ] {
            let name = format!("{kind}_{name}");
            if let Some(expected) = io.tensors.remove(&name) {
                arrays.push(Comparison::new(name, &expected, Some(&found), tolerance(usual)));
            }
        }
        if kind == "mixup" {
            arrays.extend(compare_gradients(&gradients, &replay.gradients()?, tolerance(GRADIENT)));
        }
    }
    for (name, expected) in &io.tensors {
        arrays.push(Comparison::new(name.clone(), expected, None, tolerance(LOSS)));
    }
    Ok(arrays)
}
