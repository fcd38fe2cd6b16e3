//! Adapts weights to a model: another image size, other classes, other channels. Every change is reported in one line,
//! and what does not match is an error that lists it.

use std::collections::HashSet;

use vit_graph::Graph;

use crate::architecture::Architecture;
use crate::error::ModelError;
use crate::layers::Mode;
use crate::vit::{PositionsOn, Vit};
use crate::weights::positions::{Method, resample};
use crate::weights::{Scheme, Tensor, Weights, patch_filters, relative};

/// How far weights may be changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Leniency {
    /// A head that does not fit, or is missing, starts anew.
    pub new_head: bool,
    /// The head starts anew even if it fits.
    pub other_classes: bool,
    /// Anything missing starts anew, anything left over is dropped.
    pub unmatched: bool,
}

/// Turns the weights of `from` into those that `to` needs, and gives a line for every change. After an error they are as
/// they were.
pub fn adapt(
    weights: &mut Weights,
    scheme: Scheme,
    from: &Architecture,
    to: &Architecture,
    leniency: Leniency,
) -> Result<Vec<String>, ModelError> {
    let graph = to.build(1, Mode::Inference)?;
    let mut adaptation = Adaptation { old: weights, new: vec![], scheme, leniency, report: vec![], wrong: vec![] };
    adaptation.match_parameters(&graph, from, to)?;
    let left_over = adaptation.left_over(&graph, to);
    let Adaptation { new, report, wrong, .. } = adaptation;
    if !wrong.is_empty() {
        return Err(ModelError::Unmatched(list(&wrong)));
    }
    left_over.iter().for_each(|name| {
        weights.tensors.remove(name);
    });
    weights.tensors.extend(new);
    Ok(report)
}

struct Adaptation<'a> {
    old: &'a Weights,
    /// Tensors that take the place of old ones, or are added.
    new: Vec<(String, Tensor)>,
    scheme: Scheme,
    leniency: Leniency,
    report: Vec<String>,
    wrong: Vec<String>,
}

impl Adaptation<'_> {
    fn match_parameters(&mut self, graph: &Graph, from: &Architecture, to: &Architecture) -> Result<(), ModelError> {
        for (_, parameter) in graph.parameters() {
            let (name, shape) = (parameter.name.as_str(), parameter.shape.to_vec());
            let head = to.is_head(name);
            let tensor = match self.old.tensors.get(name).filter(|_| !(head && self.leniency.other_classes)) {
                Some(tensor) if tensor.shape == shape && !moved(name, from, to) => continue,
                Some(tensor) if head && self.leniency.new_head => {
                    self.note_head(name, &tensor.shape, &shape);
                    None
                }
                Some(tensor) => match self.adapt_tensor(name, tensor, &shape, from, to)? {
                    Some(adapted) => Some(adapted),
                    None => {
                        self.note(format!("{name}: {:?} in the weights, {shape:?} in the model", tensor.shape));
                        None
                    }
                },
                None if head && self.leniency.new_head => {
                    let before: Vec<usize> = Some(from.classes()).filter(|&n| n > 0).into_iter().collect();
                    self.note_head(name, &before, &shape);
                    None
                }
                None => {
                    self.note(format!("{name} {shape:?}: not in the weights"));
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

    /// What does not match: an error, or a line in the report where the user allows it.
    fn note(&mut self, line: String) {
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
            if [tensor.shape[0], tensor.shape[2], tensor.shape[3]] != [o, h, w] {
                return Ok(None);
            }
            self.report.push(format!("{name}: {} -> {c} input channels", tensor.shape[1]));
            return Ok(Some(patch_filters::adapt_channels(tensor.clone(), c)?));
        }
        if let Some((old, new)) = window(name, from).zip(window(name, to)) {
            let adapted = resample_window(tensor, old, new)?.filter(|t| t.shape == shape);
            // A line for the first block of a stage is enough.
            if adapted.is_some() && name.contains("blocks.0.") {
                let ([h, w], [new_h, new_w]) = (old, new);
                self.report.push(format!("{name}: windows of {h}x{w} -> {new_h}x{new_w}, positions resampled"));
            }
            return Ok(adapted);
        }
        let (Architecture::Vit(from), Architecture::Vit(to)) = (from, to) else { return Ok(None) };
        let adapted = match name {
            "pos_embed" => self.resample_learned(tensor, from, to)?,
            "pos_embed_row" => self.resample_line(tensor, shape, shape[1])?,
            "pos_embed_column" => self.resample_line(tensor, shape, shape[2])?,
            _ if name.ends_with("relative_position_bias_table") => self.resample_table(tensor, from, to)?,
            _ => None,
        };
        Ok(adapted.filter(|t| t.shape == shape).inspect(|t| {
            let method = if self.method() == Method::Linear { "linear" } else { "bicubic" };
            let place = if name.starts_with("blocks.") && !name.starts_with("blocks.0.") { return } else { name };
            let change = if t.shape == tensor.shape {
                let ([rows, columns], [new_rows, new_columns]) = (from.grid(), to.grid());
                format!("{rows}x{columns} -> {new_rows}x{new_columns} patches")
            } else {
                format!("{:?} -> {:?}", tensor.shape, t.shape)
            };
            self.report.push(format!("{place}: {change}, positions resampled ({method})"));
        }))
    }

    /// The JAX code resamples linearly, everyone else as timm.
    fn method(&self) -> Method {
        if self.scheme == Scheme::Jax { Method::Linear } else { Method::Bicubic }
    }

    fn resample_learned(&self, tensor: &Tensor, from: &Vit, to: &Vit) -> Result<Option<Tensor>, ModelError> {
        let prefix = if to.positions_on == PositionsOn::AllTokens { to.prefix_tokens() } else { 0 };
        let [_, tokens, _] = tensor.shape[..] else { return Ok(None) };
        let Some(patches) = tokens.checked_sub(prefix) else { return Ok(None) };
        let old = Some(from.grid()).filter(|[rows, columns]| rows * columns == patches);
        if old.is_none() && patches.isqrt().pow(2) != patches {
            return Ok(None);
        }
        Ok(Some(resample(tensor, prefix, old, to.grid(), self.method())?))
    }

    /// Positions along one side of the image.
    fn resample_line(&self, tensor: &Tensor, shape: &[usize], new: usize) -> Result<Option<Tensor>, ModelError> {
        let Some(&dim) = tensor.shape.last().filter(|&&dim| dim > 0) else { return Ok(None) };
        let old = tensor.data.len() / dim;
        let flat = Tensor::new(vec![1, old, dim], tensor.data.clone())?;
        let resized = resample(&flat, 0, Some([old, 1]), [new, 1], self.method())?;
        Ok(Some(Tensor::new(shape.to_vec(), resized.data)?))
    }

    /// Relative positions: the offsets between patches form a grid; rows for prefix tokens follow it.
    fn resample_table(&self, tensor: &Tensor, from: &Vit, to: &Vit) -> Result<Option<Tensor>, ModelError> {
        let [rows, heads] = tensor.shape[..] else { return Ok(None) };
        let offsets = |vit: &Vit| vit.grid().map(|extent| 2 * extent - 1);
        let (old, new) = (offsets(from), offsets(to));
        let Some(extra) = rows.checked_sub(old[0] * old[1]) else { return Ok(None) };
        let (grid, rest) = tensor.data.split_at(old[0] * old[1] * heads);
        let grid = Tensor::new(vec![1, old[0] * old[1], heads], grid.to_vec())?;
        let mut resized = resample(&grid, 0, Some(old), new, self.method())?.data;
        resized.extend_from_slice(rest);
        Ok(Some(Tensor::new(vec![new[0] * new[1] + extra, heads], resized)?))
    }

    /// The names of tensors that the model does not have.
    fn left_over(&mut self, graph: &Graph, to: &Architecture) -> Vec<String> {
        let wanted: HashSet<&str> = graph.parameters().map(|(_, parameter)| parameter.name.as_str()).collect();
        let mut names = Vec::new();
        for (name, tensor) in self.old.tensors.iter().filter(|(name, _)| !wanted.contains(name.as_str())) {
            let head = to.is_head(name);
            // A mask token is only used while pre-training.
            if name == "mask_token" || (head && self.leniency.new_head && !self.leniency.other_classes) {
                self.report.push(format!("{name}: left out"));
            } else if !(head && self.leniency.other_classes) {
                self.note(format!("{name} {:?}: not in the model", tensor.shape));
            }
            names.push(name.clone());
        }
        names
    }
}

/// The window that a table of relative positions belongs to, where the architecture has windows.
fn window(name: &str, architecture: &Architecture) -> Option<[usize; 2]> {
    name.strip_suffix("relative_position_bias_table")?;
    let stage = |prefix: &str| name.strip_prefix(prefix)?.split('.').next()?.parse::<usize>().ok();
    match architecture {
        Architecture::Swin(swin) => {
            let stage = stage("layers.").filter(|&stage| stage < swin.windows.len())?;
            Some(swin.window(stage).size)
        }
        Architecture::CoAtNet(net) => Some(net.grid(stage("stages.").filter(|&stage| stage < net.stages.len())?)),
        _ => None,
    }
}

fn resample_window(tensor: &Tensor, old: [usize; 2], new: [usize; 2]) -> Result<Option<Tensor>, ModelError> {
    Ok(match tensor.shape[..] {
        [_, heads] => {
            let data = relative::resample_table(&tensor.data, heads, old, new)?;
            Some(Tensor::new(vec![(2 * new[0] - 1) * (2 * new[1] - 1), heads], data)?)
        }
        [_, _, _] => Some(relative::resample_by_head(tensor, old, new)?),
        _ => None,
    })
}

/// Whether positions belong to another grid, which may have as many patches: 4x4 and 2x8.
fn moved(name: &str, from: &Architecture, to: &Architecture) -> bool {
    if let (old @ Some(_), new) = (window(name, from), window(name, to)) {
        return old != new;
    }
    let (Architecture::Vit(from), Architecture::Vit(to)) = (from, to) else { return false };
    let positions = name == "pos_embed" || name.ends_with("relative_position_bias_table");
    positions && from.grid() != to.grid()
}

/// The first lines of a long list, and how many there are.
fn list(lines: &[String]) -> String {
    let mut text = String::new();
    for line in lines.iter().take(12) {
        text.push_str("\n  ");
        text.push_str(line);
    }
    if lines.len() > 12 {
        text.push_str(&format!("\n  … {} in all", lines.len()));
    }
    text
}
