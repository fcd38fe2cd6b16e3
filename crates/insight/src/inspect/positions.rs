//! Cosine similarity of every position embedding with every other, as a grid of grids: the paper's Figure 7, centre.

use vit_data::Image;
use vit_models::Architecture;
use vit_models::vit::{Positions, PositionsOn, Vit, sin_cos};
use vit_models::weights::Weights;
use vit_plot::palette::{Colour, MUTED};
use vit_plot::{Anchor, Area, ColourMap, Scene, Text};

use super::figure::{Figure, FigureData};
use crate::{InsightError, cosine_similarity};

/// The most grids along each side; larger models show every second, third, … position.
const MOST: usize = 16;
const SIDE: f32 = 620.0;

pub(super) fn figure(architecture: &Architecture, weights: &Weights) -> Result<Figure, InsightError> {
    let Some(vit) = architecture.downcast_ref::<Vit>() else {
        let relative =
            weights.tensors.keys().any(|name| name.contains("rel_pos") || name.contains("relative_position"));
        return Err(InsightError::Unsuitable(if relative {
            "Similarity of positions: this model has no position embeddings, only relative positions.".into()
        } else {
            "Similarity of positions: a convolutional network has no position embeddings.".into()
        }));
    };
    let embeddings = embeddings(vit, weights)?;
    let similarity = cosine_similarity(&embeddings, vit.dim)?;
    let (grid, range) = (vit.grid(), range(&similarity));
    Ok(Figure {
        name: "positions",
        title: "Similarity of position embeddings".into(),
        text: format!(
            "Each tile shows the cosine similarity of one patch's position embedding with all others, at that patch's row and \
             column. In a well-trained model, learned embeddings encode the 2-D grid: nearby patches are similar, and so are \
             patches of the same row or column. The colours span the values found here, from {:.2} to {:.2}.",
            range[0], range[1]
        ),
        scene: draw("Cosine similarity of position embeddings", &similarity, grid, range),
        data: vec![FigureData::Npy(vec![grid[0] * grid[1]; 2], similarity)],
    })
}

/// One vector per patch.
fn embeddings(vit: &Vit, weights: &Weights) -> Result<Vec<f32>, InsightError> {
    let [rows, columns] = vit.grid();
    let get = |name: &str, elements: usize| match weights.tensors.get(name) {
        Some(tensor) if tensor.data.len() == elements => Ok(&tensor.data),
        _ => Err(InsightError::Unsuitable(format!("Similarity of positions: the weights have no fitting `{name}`."))),
    };
    match vit.positions {
        Positions::Learned => {
            let prefix = if vit.positions_on == PositionsOn::AllTokens { vit.prefix_tokens() } else { 0 };
            Ok(get("pos_embed", (prefix + rows * columns) * vit.dim)?[prefix * vit.dim..].to_vec())
        }
        Positions::Learned2d => {
            let half = vit.dim / 2;
            let (row, column) = (get("pos_embed_row", rows * half)?, get("pos_embed_column", columns * half)?);
            let one =
                |at: usize| [&row[at / columns * half..][..half], &column[at % columns * half..][..half]].concat();
            Ok((0..rows * columns).flat_map(one).collect())
        }
        Positions::SinCos => Ok(sin_cos(vit.grid(), vit.dim)),
        Positions::None if vit.relative_bias.is_some() => Err(InsightError::Unsuitable(
            "Similarity of positions: this model has no position embeddings, only relative positions.".into(),
        )),
        Positions::None if vit.rotary.is_some() => Err(InsightError::Unsuitable(
            "Similarity of positions: this model has no position embeddings, only rotary positions.".into(),
        )),
        Positions::None => Err(InsightError::Unsuitable(
            "Similarity of positions: this model has no position embeddings; it sees a bag of patches.".into(),
        )),
    }
}

/// The smallest and the largest value, at least 0.01 apart.
pub(super) fn range(similarity: &[f32]) -> [f32; 2] {
    let finite = || similarity.iter().copied().filter(|value| value.is_finite());
    let (low, high) = (finite().fold(1.0, f32::min), finite().fold(-1.0, f32::max));
    [low.min(high - 0.01), high]
}

/// A tile for each patch with its similarity to all patches.
pub(super) fn draw(title: &str, similarity: &[f32], [rows, columns]: [usize; 2], [low, high]: [f32; 2]) -> Scene {
    let step = rows.max(columns).div_ceil(MOST);
    let (down, across) = (rows.div_ceil(step), columns.div_ceil(step));
    // Cells are whole pixels, so that all have the same size.
    let cell = (SIDE / (down.max(across) * rows.max(columns)) as f32).floor().max(1.0);
    let (gap, tile) = (4.0, [cell * columns as f32, cell * rows as f32]);
    let area = Area {
        x: 76.0,
        y: 76.0,
        width: across as f32 * (tile[0] + gap) - gap,
        height: down as f32 * (tile[1] + gap) - gap,
    };
    let width = (area.right() + 90.0).max(420.0);
    let bar = Area { x: area.right() + 24.0, y: area.y, width: 12.0, height: area.height.clamp(80.0, 240.0) };
    let mut scene = Scene::new(width, (area.bottom() + 62.0).max(bar.bottom() + 16.0));
    scene.text(Text::new(title, [24.0, 28.0], 16.0).bold());
    let mut note = format!("from {low:.2} to {high:.2}");
    if step > 1 {
        note += &format!(", every {step}th position in each direction");
    }
    scene.text(Text::new(note, [24.0, 50.0], 12.0).colour(MUTED));
    let patches = rows * columns;
    for y in 0..down {
        for x in 0..across {
            let of = y * step * columns + x * step;
            let colours = similarity[of * patches..][..patches].iter().flat_map(|&value| {
                let Colour(r, g, b) = ColourMap::Sea.at((value - low) / (high - low));
                [r, g, b]
            });
            let place = Area {
                x: area.x + x as f32 * (tile[0] + gap),
                y: area.y + y as f32 * (tile[1] + gap),
                width: tile[0],
                height: tile[1],
            };
            if let Ok(image) = Image::from_rgb(columns, rows, colours.collect()) {
                scene.image(place, image);
            }
        }
    }
    for (index, label_every) in [(0, down.div_ceil(8)), (1, across.div_ceil(8))] {
        let count = if index == 0 { down } else { across };
        for at in (0..count).step_by(label_every.max(1)) {
            let text = (at * step).to_string();
            let middle = at as f32 * (tile[1 - index] + gap) + tile[1 - index] / 2.0;
            if index == 0 {
                let place = [area.x - 8.0, area.y + middle];
                scene.text(Text::new(text, place, 11.0).colour(MUTED).anchor(Anchor::Right));
            } else {
                let place = [area.x + middle, area.bottom() + 14.0];
                scene.text(Text::new(text, place, 11.0).colour(MUTED).anchor(Anchor::Middle));
            }
        }
    }
    let under = [area.x + area.width / 2.0, area.bottom() + 38.0];
    scene.text(Text::new("column of the patch", under, 12.5).bold().anchor(Anchor::Middle));
    let beside = [32.0, area.y + area.height / 2.0];
    let rows = Text::new("row of the patch", beside, 12.5).bold().anchor(Anchor::Middle).turned();
    if rows.width() < area.height {
        scene.text(rows);
    }
    scene.colour_bar(bar, ColourMap::Sea, [low.into(), high.into()]);
    scene
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grids_of_all_sizes_are_readable() {
        for grid in [[1, 1], [2, 5], [7, 7], [14, 14], [24, 24], [3, 40]] {
            let patches: usize = grid.iter().product();
            let similarity: Vec<f32> = (0..patches * patches).map(|i| (i as f32 * 0.1).sin()).collect();
            let scene = draw("Similarity", &similarity, grid, range(&similarity));
            scene.assert_readable();
            assert!(scene.png(1.0).is_ok());
        }
    }

    #[test]
    fn values_that_are_close_together_have_different_colours() {
        let similarity = [1.0, 0.7, 0.7, 1.0];
        assert_eq!(range(&similarity), [0.7, 1.0]);
        let scene = draw("Similarity", &similarity, [1, 2], range(&similarity));
        scene.assert_readable();
        assert!(scene.texts().contains(&"from 0.70 to 1.00"), "{:?}", scene.texts());
        assert_eq!(range(&[1.0]), [0.99, 1.0]);
    }
}
