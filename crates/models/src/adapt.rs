//! Adapts weights to a model of another image size, with other classes or other channels. Every change is reported in one
//! line; tensors that do not match are an error that lists them.

use std::collections::HashSet;

use vit_graph::ops::Parameter;

use crate::architecture::{Architecture, PositionLayout};
use crate::error::ModelError;
use crate::layers::offsets;
use crate::vit::Vit;
use crate::weights::positions::{Resampling, resample};
use crate::weights::{Scheme, Tensor, Weights, patch_filters, relative};

/// How far weights may be changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Leniency {
    /// A head of another shape, or a missing one, is initialised anew.
    pub new_head: bool,
    /// The head is initialised anew even if its shape matches.
    pub other_classes: bool,
    /// Missing tensors are initialised anew, others that the model does not have are dropped.
    pub unmatched: bool,
}

/// Turns the weights of `from` into those of `to`, and returns a line for every change. On an error they are unchanged.
pub fn adapt(
    weights: &mut Weights,
    scheme: Scheme,
    from: &Architecture,
    to: &Architecture,
    leniency: Leniency,
) -> Result<Vec<String>, ModelError> {
    let parameters = to.parameters()?;
    let mut adaptation = Adaptation { old: weights, new: vec![], scheme, leniency, report: vec![], wrong: vec![] };
    adaptation.match_parameters(&parameters, from, to)?;
    let left_over = adaptation.left_over(&parameters, from, to);
    let Adaptation { new, report, wrong, .. } = adaptation;
    if !wrong.is_empty() {
        return Err(ModelError::unmatched(&wrong));
    }
    left_over.iter().for_each(|name| {
        weights.tensors.remove(name);
    });
    weights.tensors.extend(new);
    Ok(report)
}

struct Adaptation<'a> {
    old: &'a Weights,
    /// Tensors that replace old ones or are added.
    new: Vec<(String, Tensor)>,
    scheme: Scheme,
    leniency: Leniency,
    report: Vec<String>,
    wrong: Vec<String>,
}

impl Adaptation<'_> {
    fn match_parameters(
        &mut self,
        parameters: &[Parameter],
        from: &Architecture,
        to: &Architecture,
    ) -> Result<(), ModelError> {
        for parameter in parameters {
            let (name, shape) = (parameter.name.as_str(), parameter.shape.to_vec());
            let head = to.is_head(name);
            let tensor = match self.old.tensors.get(name).filter(|_| !(head && self.leniency.other_classes)) {
                Some(tensor) if tensor.shape == shape && from.position_layout(name) == to.position_layout(name) => {
                    continue;
                }
                Some(tensor) if head && self.leniency.new_head => {
                    self.note_head(name, &tensor.shape, &shape);
                    None
                }
                Some(tensor) => match self.adapt_tensor(name, tensor, &shape, from, to)? {
                    Some(adapted) => Some(adapted),
                    None => {
                        self.note(
                            name,
                            to,
                            format!("{name}: {:?} in the weights, {shape:?} in the model", tensor.shape),
                        );
                        None
                    }
                },
                None if head && self.leniency.new_head => {
                    let before: Vec<usize> = Some(from.classes()).filter(|&n| n > 0).into_iter().collect();
                    self.note_head(name, &before, &shape);
                    None
                }
                None => {
                    self.note(name, to, format!("{name} {shape:?}: not in the weights"));
                    None
                }
            };
            let tensor = match tensor {
                Some(tensor) => tensor,
                None => {
                    let mut data = vec![0.0; parameter.shape.elements()];
                    parameter.init.fill(0, name, &mut data);
                    Tensor { shape, data }
                }
            };
            self.new.push((name.into(), tensor));
        }
        Ok(())
    }

    /// Records a mismatch, with the options that the parameter follows from: an error, or a line in the report if mismatches
    /// are allowed.
    fn note(&mut self, name: &str, to: &Architecture, mismatch: String) {
        let options = to.options_of(name).map_or(String::new(), |options| format!(" (from {options})"));
        let line = format!("{mismatch}{options}");
        if self.leniency.unmatched { self.report.push(line) } else { self.wrong.push(line) }
    }

    fn note_head(&mut self, name: &str, old: &[usize], new: &[usize]) {
        if !name.ends_with(".weight") {
            return;
        }
        let head = name.trim_end_matches(".weight");
        let before = old.first().map_or("none".into(), |n| format!("{n} classes"));
        self.report.push(format!("{head}: {before} -> {} classes, starting from zero", new[0]));
    }

    /// The same tensor for another image size or number of channels.
    fn adapt_tensor(
        &mut self,
        name: &str,
        tensor: &Tensor,
        shape: &[usize],
        from: &Architecture,
        to: &Architecture,
    ) -> Result<Option<Tensor>, ModelError> {
        if name == to.first_filters() && tensor.shape.len() == 4 {
            let [o, c, h, w] = [shape[0], shape[1], shape[2], shape[3]];
            let old = [tensor.shape[2], tensor.shape[3]];
            let patches = to.patches().is_some_and(|patches| patches.size == Some([h, w])) && old != [h, w];
            if tensor.shape[0] != o || (old != [h, w] && !patches) {
                return Ok(None);
            }
            let mut adapted = tensor.clone();
            if patches {
                self.report
                    .push(format!("{name}: patches of {}x{} -> {h}x{w}, resized as in FlexiViT", old[0], old[1]));
                adapted = patch_filters::resize(&adapted, [h, w], self.method(from))?;
            }
            if tensor.shape[1] != c {
                self.report.push(format!("{name}: {} -> {c} input channels", tensor.shape[1]));
            }
            return Ok(Some(patch_filters::adapt_channels(adapted, c)?));
        }
        let (Some(old), Some(new)) = (from.position_layout(name), to.position_layout(name)) else { return Ok(None) };
        let method = self.method(from);
        let adapted = match (old, new) {
            (PositionLayout::Tokens { grid: old, .. }, PositionLayout::Tokens { prefix, grid: new }) => {
                resample_tokens(tensor, prefix, old, new, method)?
            }
            (PositionLayout::Line(_), PositionLayout::Line(new)) => resample_line(tensor, shape, new, method)?,
            (PositionLayout::Window(old), PositionLayout::Window(new)) => resample_window(tensor, old, new)?,
            _ => None,
        };
        let adapted = adapted.filter(|t| t.shape == shape);
        // All blocks of a stage are alike: one line is enough.
        if adapted.is_some() && (!name.contains("blocks.") || name.contains("blocks.0.")) {
            self.report.push(format!("{name}: {}", change(tensor, shape, old, new, method)));
        }
        Ok(adapted)
    }

    /// The JAX code resamples linearly, transformers without antialiasing unless there are registers, all others as timm does.
    fn method(&self, from: &Architecture) -> Resampling {
        let registers = from.downcast_ref().is_some_and(|vit: &Vit| vit.registers > 0);
        match self.scheme {
            Scheme::Jax => Resampling::Linear,
            Scheme::HuggingFace if !registers => Resampling::SharpBicubic,
            _ => Resampling::Bicubic,
        }
    }

    /// The names of tensors that the model does not have.
    fn left_over(&mut self, parameters: &[Parameter], from: &Architecture, to: &Architecture) -> Vec<String> {
        let wanted: HashSet<&str> = parameters.iter().map(|parameter| parameter.name.as_str()).collect();
        // The layers of pre-training go together: one line is enough. A file may have a decoder that its configuration does
        // not mention.
        let of_pretraining = from.pretraining().map_or(&["decoder_"][..], |pretraining| pretraining.prefixes());
        let belongs = |name: &str| of_pretraining.iter().any(|prefix| name.starts_with(prefix));
        let mut names = Vec::new();
        if to.pretraining().is_none() {
            let left_out = |name: &&String| !wanted.contains(name.as_str()) && belongs(name);
            names.extend(self.old.tensors.keys().filter(left_out).cloned());
            if !names.is_empty() {
                self.report.push(format!("{} tensors of pre-training: left out", names.len()));
            }
        }
        for (name, tensor) in self.old.tensors.iter().filter(|(name, _)| !wanted.contains(name.as_str())) {
            if names.contains(name) {
                continue;
            }
            let head = to.is_head(name);
            // A mask token is only used in pre-training.
            if name == "mask_token" || (head && self.leniency.new_head && !self.leniency.other_classes) {
                self.report.push(format!("{name}: left out"));
            } else if !(head && self.leniency.other_classes) {
                self.note(name, to, format!("{name} {:?}: not in the model", tensor.shape));
            }
            names.push(name.clone());
        }
        names
    }
}

/// The report of resampled positions.
fn change(tensor: &Tensor, shape: &[usize], old: PositionLayout, new: PositionLayout, method: Resampling) -> String {
    let sizes = |[h, w]: [usize; 2], [new_h, new_w]: [usize; 2]| format!("{h}x{w} -> {new_h}x{new_w}");
    let method = match method {
        Resampling::Linear => "linear",
        Resampling::Bicubic => "bicubic",
        Resampling::SharpBicubic => "bicubic without antialiasing",
    };
    match (old, new) {
        (PositionLayout::Window(old), PositionLayout::Window(new)) => {
            format!("windows of {}, positions resampled", sizes(old, new))
        }
        (PositionLayout::Tokens { grid: old, .. }, PositionLayout::Tokens { grid: new, .. })
            if tensor.shape == shape =>
        {
            format!("{} patches, positions resampled ({method})", sizes(old, new))
        }
        _ => format!("{:?} -> {shape:?}, positions resampled ({method})", tensor.shape),
    }
}

fn resample_tokens(
    tensor: &Tensor,
    prefix: usize,
    old: [usize; 2],
    new: [usize; 2],
    method: Resampling,
) -> Result<Option<Tensor>, ModelError> {
    let [_, tokens, _] = tensor.shape[..] else { return Ok(None) };
    let Some(patches) = tokens.checked_sub(prefix) else { return Ok(None) };
    // If the weights are of another size than their configuration says, only a square grid can be guessed.
    let old = Some(old).filter(|[rows, columns]| rows * columns == patches);
    if old.is_none() && patches.isqrt().pow(2) != patches {
        return Ok(None);
    }
    Ok(Some(resample(tensor, prefix, old, new, method)?))
}

fn resample_line(
    tensor: &Tensor,
    shape: &[usize],
    new: usize,
    method: Resampling,
) -> Result<Option<Tensor>, ModelError> {
    let Some(&dim) = tensor.shape.last().filter(|&&dim| dim > 0) else { return Ok(None) };
    let old = tensor.data.len() / dim;
    let flat = Tensor::new(vec![1, old, dim], tensor.data.clone())?;
    let resized = resample(&flat, 0, Some([old, 1]), [new, 1], method)?;
    Ok(Some(Tensor::new(shape.to_vec(), resized.data)?))
}

/// Biases of offsets for another window. Rows after those of the offsets (BEiT's for the class token) are kept.
fn resample_window(tensor: &Tensor, old: [usize; 2], new: [usize; 2]) -> Result<Option<Tensor>, ModelError> {
    Ok(match tensor.shape[..] {
        [rows, heads] => {
            let Some(others) = rows.checked_sub(offsets(old)) else { return Ok(None) };
            let (table, rest) = tensor.data.split_at(offsets(old) * heads);
            let mut data = relative::resample_table(table, heads, old, new)?;
            data.extend_from_slice(rest);
            Some(Tensor::new(vec![offsets(new) + others, heads], data)?)
        }
        [_, _, _] => Some(relative::resample_by_head(tensor, old, new)?),
        _ => None,
    })
}
