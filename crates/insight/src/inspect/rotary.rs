//! Rotary positions as similarities: the dot product of two equal vectors after each was rotated to its patch, as a grid
//! of grids like that of position embeddings.

use vit_models::Architecture;
use vit_models::vit::{RotaryAngles, Vit};
use vit_models::weights::Weights;

use super::figure::{Figure, FigureData};
use super::positions::{draw, range};
use crate::{InsightError, cosine_similarity};

/// The figure, if the model has rotary positions.
pub(super) fn figure(architecture: &Architecture, weights: &Weights) -> Result<Option<Figure>, InsightError> {
    let Some((vit, rotary)) = architecture.downcast_ref::<Vit>().and_then(|vit| Some((vit, vit.rotary?))) else {
        return Ok(None);
    };
    let (grid, pairs) = (vit.grid(), vit.dim / vit.heads / 2);
    let learned = rotary.angles == RotaryAngles::Mixed;
    let frequencies = match weights.tensors.get("rope.freqs").filter(|_| learned) {
        Some(tensor) if tensor.data.len() == 2 * vit.depth * vit.heads * pairs => tensor.data.clone(),
        _ if learned => {
            let reason = "Rotary positions: the weights have no fitting `rope.freqs`.";
            return Err(InsightError::Unsuitable(reason.into()));
        }
        _ => rotary.frequencies(2 * pairs),
    };
    let directions = unit_vectors(&rotary.coordinates(grid), &frequencies);
    let similarity = cosine_similarity(&directions, frequencies.len())?;
    let range = range(&similarity);
    let frequencies = match rotary.angles {
        RotaryAngles::Axial { .. } | RotaryAngles::Centred { .. } => {
            "Half of the channels turn with the row and half with the column, so rows and columns of a patch stand out."
        }
        RotaryAngles::Mixed => "Frequencies were learned for every head; this is the mean over all heads and blocks.",
    };
    Ok(Some(Figure {
        name: "rotary",
        title: "Similarity by rotary positions".into(),
        text: format!(
            "Each tile shows, for one patch, how similar a query stays to an equal key at each other patch, when both are \
             rotated to their positions: 1 at the patch itself, less where the angles differ. {frequencies} The colours \
             span the values found here, from {:.2} to {:.2}.",
            range[0], range[1]
        ),
        scene: draw("Cosine similarity by rotary positions", &similarity, grid, range),
        data: vec![FigureData::Npy(vec![grid[0] * grid[1]; 2], similarity)],
    }))
}

/// Cosine and sine of every angle of every patch, from coordinates `[patches, 2]` and frequencies `[2, angles]`. The dot
/// product of two of them is the sum of the cosines of the differences of their angles.
fn unit_vectors(coordinates: &[f32], frequencies: &[f32]) -> Vec<f32> {
    let (first, second) = frequencies.split_at(frequencies.len() / 2);
    let of = |place: &[f32]| -> Vec<f32> {
        let angles = first.iter().zip(second).map(|(f, g)| place[0] * f + place[1] * g);
        angles.flat_map(|angle| [angle.cos(), angle.sin()]).collect()
    };
    coordinates.chunks_exact(2).flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use vit_models::vit::RotaryPositions;

    #[test]
    fn similarity_depends_on_the_offset_alone() {
        let (rotary, grid) = (RotaryPositions::eva02([16, 16]), [16, 16]);
        let frequencies = rotary.frequencies(64);
        let vectors = unit_vectors(&rotary.coordinates(grid), &frequencies);
        let similarity = cosine_similarity(&vectors, frequencies.len()).unwrap();
        let at = |a: [usize; 2], b: [usize; 2]| similarity[(a[0] * 16 + a[1]) * 256 + b[0] * 16 + b[1]];
        assert!((at([3, 4], [3, 4]) - 1.0).abs() < 1e-5);
        assert!((at([3, 4], [5, 9]) - at([8, 2], [10, 7])).abs() < 1e-4);
        assert!(at([3, 4], [3, 5]) > at([3, 4], [9, 12]));
    }

    #[test]
    fn learned_frequencies_are_drawn_too() {
        let variant = vit_models::variant("vit_small_patch16_rope_mixed_224").unwrap();
        let vit: &Vit = variant.architecture.downcast_ref().unwrap();
        let weights = Weights {
            tensors: [(
                "rope.freqs".to_string(),
                vit_models::weights::Tensor {
                    shape: vec![2, vit.depth, vit.heads, 32],
                    data: (0..2 * vit.depth * vit.heads * 32).map(|i| (i as f32 * 0.7).sin()).collect(),
                },
            )]
            .into(),
            ..Weights::default()
        };
        let figure = figure(&variant.architecture, &weights).unwrap().unwrap();
        figure.scene.assert_readable();
        assert!(super::figure(&variant.architecture, &Weights::default()).is_err());
    }
}
