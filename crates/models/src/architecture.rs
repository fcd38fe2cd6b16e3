//! One type for every architecture, so that callers need no special cases.

use vit_graph::{Graph, GraphError};

use crate::layers::Mode;
use crate::vit::Vit;

/// Any model of the family. To add one: a file with its struct, a variant here, its names in `variant.rs`.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Architecture {
    Vit(Vit),
}

impl From<Vit> for Architecture {
    fn from(vit: Vit) -> Self {
        Architecture::Vit(vit)
    }
}

impl Architecture {
    /// The graph for a batch of images; see the architecture's own `build` for its inputs, outputs and taps.
    pub fn build(&self, batch: usize, mode: Mode) -> Result<Graph, GraphError> {
        match self {
            Architecture::Vit(vit) => vit.build(batch, mode),
        }
    }

    /// Height and width of the image.
    pub fn image_size(&self) -> [usize; 2] {
        match self {
            Architecture::Vit(vit) => vit.image_size,
        }
    }

    /// Changes the image size.
    pub fn set_image_size(&mut self, size: [usize; 2]) {
        match self {
            Architecture::Vit(vit) => vit.image_size = size,
        }
    }

    /// Colour channels.
    pub fn channels(&self) -> usize {
        match self {
            Architecture::Vit(vit) => vit.channels,
        }
    }

    /// Changes the number of colour channels.
    pub fn set_channels(&mut self, channels: usize) {
        match self {
            Architecture::Vit(vit) => vit.channels = channels,
        }
    }

    /// Classes; 0 without a head.
    pub fn classes(&self) -> usize {
        match self {
            Architecture::Vit(vit) => vit.classes,
        }
    }

    /// Changes the number of classes.
    pub fn set_classes(&mut self, classes: usize) {
        match self {
            Architecture::Vit(vit) => vit.classes = classes,
        }
    }

    /// Changes how much is dropped while training: after linear layers, of attention weights, and of whole residual
    /// branches in the last block.
    pub fn set_dropout(&mut self, dropout: f32, attention_dropout: f32, drop_path: f32) {
        match self {
            Architecture::Vit(vit) => {
                (vit.dropout, vit.attention_dropout, vit.drop_path) = (dropout, attention_dropout, drop_path);
            }
        }
    }
}
