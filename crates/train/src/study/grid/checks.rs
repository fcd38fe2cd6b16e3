//! Contradictions of a study that are found before any dataset is opened, and its figure's axis.

use super::{DATA, FLOPS, IMAGES, MODEL, PARAMETERS, PRETRAIN_IMAGES, wrong};
use crate::error::TrainError;
use crate::study::file::Axis;
use crate::study::{SampleSize, StudyFile};

/// Refuses a study that contradicts itself.
pub(super) fn check(file: &StudyFile, axes: &[Axis], sizes: &[SampleSize]) -> Result<(), TrainError> {
    for (index, axis) in axes.iter().enumerate() {
        let taken = [MODEL, DATA, IMAGES, PRETRAIN_IMAGES, FLOPS, PARAMETERS, "seed", "fraction"];
        if taken.contains(&axis.name.as_str()) {
            return Err(wrong(format!("an axis cannot have the name {}, which every study has", axis.name)));
        }
        if axes[..index].iter().any(|before| before.name == axis.name) {
            return Err(wrong(format!("the axis {} is in the study twice", axis.name)));
        }
    }
    if file.seeds.is_empty() {
        return Err(wrong("a study needs at least one seed".into()));
    }
    if let Some(seed) = file.seeds.iter().enumerate().find(|(at, seed)| file.seeds[..*at].contains(seed)) {
        return Err(wrong(format!("the seed {} is in the study twice", seed.1)));
    }
    match &file.pretrain {
        Some(_) if file.checkpoint.is_some() => Err(wrong("a checkpoint is pre-trained; leave [pretrain] out".into())),
        None if !file.finetune => Err(wrong("finetune = false needs a section [pretrain]".into())),
        Some(_) if !file.finetune && file.probe.is_none() => {
            Err(wrong("finetune = false needs a section [probe]: nothing would be measured".into()))
        }
        Some(_) if !file.finetune && (sizes.len() > 1 || !file.axes.is_empty() || !file.sweep.is_empty()) => {
            Err(wrong(
                "with finetune = false only pre-training can be varied: [pretrain] images, fractions and axes".into(),
            ))
        }
        Some(_) if file.probe.is_some() && file.data.paths().len() > 1 => Err(wrong(
            "pre-trained models are probed on one dataset; leave [probe] out, or make a study of each".into(),
        )),
        Some(stage) if stage.data.as_os_str().is_empty() => Err(wrong("[pretrain] needs `data`".into())),
        _ => Ok(()),
    }
}

/// The figure's horizontal axis.
pub(super) fn x(
    file: &StudyFile,
    dimensions: &[(String, Vec<String>)],
    sweep: &[String],
) -> Result<String, TrainError> {
    let varied = |name: &str| dimensions.iter().any(|(known, values)| known == name && values.len() > 1);
    let free = |name: &str| !sweep.iter().any(|swept| swept == name);
    if file.x.is_empty() {
        let axis = dimensions.iter().map(|(name, _)| name.as_str());
        let axis = axis.filter(|name| ![MODEL, DATA, IMAGES, PRETRAIN_IMAGES].contains(name) && free(name));
        let candidates = [IMAGES, PRETRAIN_IMAGES].into_iter().chain(axis);
        return Ok(candidates.into_iter().find(|name| varied(name)).unwrap_or(IMAGES).into());
    }
    let computed = [FLOPS, PARAMETERS];
    let known: Vec<&str> =
        dimensions.iter().map(|(name, _)| name.as_str()).chain(computed).filter(|n| free(n)).collect();
    for name in std::iter::once(&file.x).chain(&file.lines) {
        if !known.contains(&name.as_str()) {
            return Err(wrong(format!(
                "`{name}` is nothing that the study varies; it should be one of {}",
                known.join(", ")
            )));
        }
    }
    Ok(file.x.clone())
}
