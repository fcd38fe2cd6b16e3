//! A model's attention layers, in order, and the positions of their tokens in the image.

use vit_graph::ops::{Op, Windows};
use vit_graph::{Graph, Value};
use vit_models::{Architecture, PatchGrid, TokenSequence};

use crate::{InsightError, Map};

/// The tokens of an attention layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tokens {
    /// Prefix tokens, then a grid of patches.
    Sequence {
        /// Class, distillation and register tokens.
        prefix: usize,
        /// Rows and columns of patches.
        grid: [usize; 2],
    },
    /// Windows of a grid; attention stays within a window.
    Windowed {
        /// Size and shift of the windows.
        windows: Windows,
        /// Rows and columns of the whole grid.
        grid: [usize; 2],
    },
}

/// An attention layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Layer {
    /// Its name in the model, e.g. `blocks.5.attn`; its weights are the tap `blocks.5.attn.weights`.
    pub name: String,
    /// Its tokens.
    pub tokens: Tokens,
    /// Number of heads.
    pub heads: usize,
    pub(crate) weights: Value,
}

const WEIGHTS: &str = ".attn.weights";

/// A model's attention layers, in order.
pub fn attention_layers(architecture: &Architecture, graph: &Graph) -> Vec<Layer> {
    let mut layers: Vec<Layer> = graph
        .taps()
        .iter()
        .filter(|(name, _)| name.ends_with(WEIGHTS))
        .filter_map(|(name, &weights)| {
            let name = name.trim_end_matches(".weights").to_string();
            let result = *graph.taps().get(&name)?;
            let tokens = match (architecture.tokens(), &graph.node(result.node).op) {
                (Some(TokenSequence { prefix, grid, .. }), _) => Tokens::Sequence { prefix, grid },
                (_, Op::Unwindows(op)) => Tokens::Windowed { windows: op.windows, grid: [op.image[1], op.image[2]] },
                _ => {
                    let shape = graph.shape(result);
                    Tokens::Sequence { prefix: 0, grid: [*shape.get(1)?, *shape.get(2)?] }
                }
            };
            Some(Layer { name, tokens, heads: graph.shape(weights)[1], weights })
        })
        .collect();
    layers.sort_by_key(|layer| layer.weights.node);
    layers
}

/// Height and width of the input that a grid covers: a Vision Transformer drops a border narrower than a patch.
pub fn covered(architecture: &Architecture, grid: [usize; 2]) -> [usize; 2] {
    match architecture.patches() {
        Some(PatchGrid { grid: patches, size: Some(size) }) if patches == grid => {
            [0, 1].map(|axis| grid[axis] * size[axis])
        }
        _ => architecture.image_size(),
    }
}

impl Layer {
    /// Rows and columns of the positions that attend.
    pub fn grid(&self) -> [usize; 2] {
        match self.tokens {
            Tokens::Sequence { grid, .. } | Tokens::Windowed { grid, .. } => grid,
        }
    }

    /// The attention that each position receives, from one image's weights `[windows, tokens, tokens]`: from the class
    /// token if there is one, else averaged over the queries of its window.
    pub fn received(&self, architecture: &Architecture, weights: &[f32]) -> Result<Map, InsightError> {
        let grid = self.grid();
        let places = grid[0] * grid[1];
        let mut values = vec![0.0; places];
        match self.tokens {
            Tokens::Sequence { prefix, .. } => {
                let tokens = prefix + places;
                let queries =
                    if architecture.tokens().is_some_and(|tokens| tokens.class_token) { 0..1 } else { prefix..tokens };
                let share = 1.0 / queries.len() as f32;
                let expected = tokens * tokens;
                if weights.len() != expected {
                    return Err(InsightError::Length { what: "attention weights", found: weights.len(), expected });
                }
                for query in queries {
                    let row = &weights[query * tokens + prefix..][..places];
                    values.iter_mut().zip(row).for_each(|(v, w)| *v += share * w);
                }
            }
            Tokens::Windowed { windows, .. } => {
                let area = windows.size[0] * windows.size[1];
                let [_, across] = windows.grid(&[1, grid[0], grid[1], 1]);
                for (window, weights) in weights.chunks_exact(area * area).enumerate() {
                    for key in 0..area {
                        let y = windows.source(0, window / across, key / windows.size[1], grid[0]);
                        let x = windows.source(1, window % across, key % windows.size[1], grid[1]);
                        if let (Some(y), Some(x)) = (y, x) {
                            let sum: f32 = (0..area).map(|query| weights[query * area + key]).sum();
                            values[y * grid[1] + x] = sum / area as f32;
                        }
                    }
                }
            }
        }
        Map::new(grid, values, architecture.image_size(), covered(architecture, grid))
    }
}
