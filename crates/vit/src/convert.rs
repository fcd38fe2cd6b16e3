//! Conversion of any published format to a checkpoint folder, with proof that both give the same outputs.

use std::path::Path;

use vit_graph::device::{Device, Elements};
use vit_models::weights::safetensors::Dtype;
use vit_models::{Checkpoint, Layout, Mode, OpenOptions, config};

use crate::verify::largest_difference;
use crate::{DeviceOptions, Error};

/// The result of a conversion.
#[derive(Debug, Clone, PartialEq)]
pub struct Conversion {
    /// What was changed, and what the other library does differently, one line each.
    pub report: Vec<String>,
    /// The largest absolute difference of each output between the original and the written model.
    pub differences: Vec<(String, f64)>,
}

/// Writes a checkpoint as a folder in another layout and element type, opens it again, and compares the outputs of both
/// for the same input.
pub fn convert(mut checkpoint: Checkpoint, folder: &Path, layout: Layout, dtype: Dtype) -> Result<Conversion, Error> {
    if let (true, Some(same)) = (folder.is_dir(), checkpoint.source.parent())
        && same.canonicalize().ok() == folder.canonicalize().ok()
    {
        return Err(Error::file(folder, "the weights come from this folder; the converted ones need another"));
    }
    let mut report = std::mem::take(&mut checkpoint.report);
    report.extend(match layout {
        Layout::Timm => config::timm_differences(&checkpoint.config),
        Layout::HuggingFace => config::hugging_face_differences(&checkpoint.config),
    });
    checkpoint.save(folder, layout, dtype)?;
    let written = Checkpoint::open(folder, OpenOptions::default())?;
    let device = DeviceOptions::new().open()?;
    let (before, after) = (outputs(checkpoint, device.as_ref())?, outputs(written, device.as_ref())?);
    let mut differences = Vec::new();
    for ((name, a), (_, b)) in before.iter().zip(&after) {
        differences.push((name.clone(), if a.len() == b.len() { largest_difference(a, b) } else { f64::INFINITY }));
    }
    Ok(Conversion { report, differences })
}

/// All outputs of a model for one fixed input of noise.
fn outputs(mut checkpoint: Checkpoint, device: &dyn Device) -> Result<Vec<(String, Vec<f32>)>, Error> {
    let graph = checkpoint.config.architecture.build(1, Mode::Inference)?;
    let mut executable = device.compile(&graph, &mut checkpoint.weights)?;
    let ([height, width], channels) =
        (checkpoint.config.architecture.image_size(), checkpoint.config.architecture.channels());
    let mut image = vec![0.0; channels * height * width];
    vit_graph::Init::Normal { std: 1.0 }.fill(0, "image", &mut image);
    executable.write("image", Elements::F32(&image))?;
    executable.run()?;
    let mut all = Vec::new();
    for (name, value) in graph.outputs() {
        let mut values = vec![0.0; graph.shape(*value).elements()];
        executable.read(name, &mut values)?;
        all.push((name.clone(), values));
    }
    Ok(all)
}
