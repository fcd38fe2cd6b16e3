//! Relative position biases: what each head adds to its attention scores by offset.

use vit_data::Image;
use vit_models::weights::Weights;
use vit_plot::palette::{Colour, MUTED};
use vit_plot::{Anchor, Area, ColourMap, Scene, Text};

use super::figure::{Figure, FigureData};
use crate::InsightError;
use crate::layers::{Layer, Tokens};

const MAX_LAYERS: usize = 8;
const MAX_HEADS: usize = 12;
const TILE: f32 = 64.0;
const LEFT: f32 = 150.0;

/// One layer's table, `[heads, rows, columns]` of offsets.
struct Table<'a> {
    layer: &'a Layer,
    offsets: [usize; 2],
    values: Vec<f32>,
}

/// The biases of the layers that have them; `None` if none has.
pub(super) fn figure(layers: &[Layer], weights: &Weights) -> Result<Option<Figure>, InsightError> {
    let tables: Vec<Table> = layers.iter().filter_map(|layer| table(layer, weights)).collect();
    if tables.is_empty() {
        return Ok(None);
    }
    let step = tables.len().div_ceil(MAX_LAYERS);
    let shown: Vec<&Table> = tables.iter().step_by(step).collect();
    let heads = shown.iter().map(|t| t.layer.heads).max().unwrap_or(1).min(MAX_HEADS);
    let mut scene =
        Scene::new(LEFT + heads as f32 * (TILE + 8.0) + 90.0, 76.0 + shown.len() as f32 * (TILE + 8.0) + 20.0);
    scene.text(Text::new("Bias of attention by relative position", [24.0, 28.0], 16.0).bold());
    let largest = shown.iter().flat_map(|t| &t.values).fold(0.0f32, |m, v| m.max(v.abs())).max(1e-6);
    let note = format!("the centre of each tile is offset zero; one tile per head, at most {MAX_HEADS}");
    scene.text(Text::new(note, [24.0, 52.0], 12.0).colour(MUTED).within(scene.size().0 - 48.0));
    for (index, table) in shown.iter().enumerate() {
        let y = 76.0 + index as f32 * (TILE + 8.0);
        let name = Text::new(&table.layer.name, [LEFT - 10.0, y + TILE / 2.0], 11.5).anchor(Anchor::Right);
        scene.text(name.within(LEFT - 30.0));
        let area: usize = table.offsets.iter().product();
        for (head, values) in table.values.chunks(area).take(MAX_HEADS).enumerate() {
            let colours = values.iter().flat_map(|v| {
                let Colour(r, g, b) = ColourMap::Sea.at((v / largest + 1.0) / 2.0);
                [r, g, b]
            });
            let place = Area { x: LEFT + head as f32 * (TILE + 8.0), y, width: TILE, height: TILE };
            if let Ok(image) = Image::from_rgb(table.offsets[1], table.offsets[0], colours.collect()) {
                scene.image(place, image);
            }
        }
    }
    let bar = Area { x: LEFT + heads as f32 * (TILE + 8.0) + 12.0, y: 76.0, width: 12.0, height: TILE.max(100.0) };
    scene.colour_bar(bar, ColourMap::Sea, [-f64::from(largest), f64::from(largest)]);
    let numbers = tables.iter().map(|t| {
        serde_json::json!({ "layer": t.layer.name, "heads": t.layer.heads, "offsets": t.offsets, "bias": t.values })
    });
    Ok(Some(Figure {
        name: "relative",
        title: "Relative position bias".into(),
        text: "The learned bias on attention scores for every offset between query and key: light where it raises attention, \
               dark where it lowers it."
            .into(),
        scene,
        data: vec![FigureData::Json(numbers.collect())],
    }))
}

fn table<'a>(layer: &'a Layer, weights: &Weights) -> Option<Table<'a>> {
    let names = ["relative_position_bias_table", "rel_pos.relative_position_bias_table"];
    let tensor = names.iter().find_map(|name| weights.tensors.get(&format!("{}.{name}", layer.name)))?;
    let window = match layer.tokens {
        Tokens::Windowed { windows, .. } => windows.size,
        Tokens::Sequence { grid, .. } => grid,
    };
    let offsets = window.map(|side| 2 * side - 1);
    let area = offsets[0] * offsets[1];
    let values = match tensor.shape.as_slice() {
        // `[offsets, heads]`; rows for prefix tokens follow those for patches.
        [rows, heads] if *rows >= area && *heads == layer.heads => {
            (0..*heads).flat_map(|head| (0..area).map(move |at| tensor.data[at * heads + head])).collect()
        }
        [heads, rows, columns] if *heads == layer.heads && [*rows, *columns] == offsets => tensor.data.clone(),
        _ => return None,
    };
    Some(Table { layer, offsets, values })
}
