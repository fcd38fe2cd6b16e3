//! The names that each library gives to the same weights, one file per scheme, mapped onto timm's. Unknown names are kept,
//! and reported when the weights are adapted to a model.

pub mod big_transfer;
pub mod eva;
pub mod hugging_face;
pub mod jax;
pub mod original;
pub mod timm;
pub mod torchvision;

use super::{Tensor, Weights, WeightsError};

/// The library whose names a file uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// timm, and the original DeiT, MAE and DINO repositories that it grew with.
    Timm,
    /// transformers.
    HuggingFace,
    /// torchvision's `vit_…` models.
    Torchvision,
    /// Google's vision_transformer and big_vision.
    Jax,
    /// Google's Big Transfer.
    BigTransfer,
    /// Facebook's DINOv3.
    Dinov3 {
        /// The periods of its rotary positions are rounded to bf16.
        bf16_periods: bool,
    },
}

impl Scheme {
    /// The scheme of weights; `None` where no Vision Transformer's names are recognised.
    pub fn detect(weights: &Weights) -> Option<Self> {
        if jax::detect(weights) {
            Some(Self::Jax)
        } else if big_transfer::detect(weights) {
            Some(Self::BigTransfer)
        } else if hugging_face::detect(weights) {
            Some(Self::HuggingFace)
        } else if torchvision::detect(weights) {
            Some(Self::Torchvision)
        } else if let Some(bf16_periods) = eva::detect_dinov3(weights) {
            Some(Self::Dinov3 { bf16_periods })
        } else if timm::detect(weights) {
            Some(Self::Timm)
        } else {
            None
        }
    }
}

/// Weights with canonical names and shapes, and the scheme that they had. Where no scheme is recognised, names are taken as
/// timm's, which are canonical for the other architectures.
pub fn canonical(weights: Weights) -> Result<(Weights, Scheme), WeightsError> {
    let scheme = Scheme::detect(&weights).unwrap_or(Scheme::Timm);
    let weights = match scheme {
        Scheme::Timm | Scheme::Dinov3 { .. } => timm::to_canonical(weights)?,
        Scheme::HuggingFace => hugging_face::to_canonical(weights)?,
        Scheme::Torchvision => torchvision::to_canonical(weights)?,
        Scheme::Jax => jax::to_canonical(weights)?,
        Scheme::BigTransfer => big_transfer::to_canonical(weights)?,
    };
    Ok((weights, scheme))
}

/// Renames every tensor; one whose new name is `None` is dropped.
fn rename(weights: Weights, mut rename: impl FnMut(&str) -> Option<String>) -> Result<Weights, WeightsError> {
    let mut renamed = Weights { metadata: weights.metadata, ..Weights::default() };
    for (name, tensor) in weights.tensors {
        if let Some(name) = rename(&name) {
            renamed.insert(name, tensor)?;
        }
    }
    Ok(renamed)
}

/// Stacks tensors along their first axis, as the rows of query, key and value are stacked into one projection.
pub(crate) fn concat(name: &str, parts: Vec<Tensor>) -> Result<Tensor, WeightsError> {
    let mut parts = parts.into_iter();
    let Some(mut whole) = parts.next() else {
        return Err(WeightsError::Missing { name: name.into() });
    };
    for part in parts {
        let (Some((rows, rest)), Some((more, same))) = (whole.shape.split_first_mut(), part.shape.split_first()) else {
            return Err(WeightsError::shape(name, &part.shape, "at least one axis to stack along"));
        };
        match rows.checked_add(*more) {
            Some(sum) if rest == same => *rows = sum,
            _ => {
                return Err(WeightsError::shape(
                    name,
                    &part.shape,
                    format!("a shape that stacks onto {:?}", whole.shape),
                ));
            }
        }
        whole.data.extend(part.data);
    }
    Ok(whole)
}
