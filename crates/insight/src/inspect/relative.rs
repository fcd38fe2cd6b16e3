//! Relative position biases: what each head adds to its attention scores by offset.

use std::collections::BTreeMap;

use vit_data::Image;
use vit_graph::Graph;
use vit_graph::reference::{self, Array, Bindings};
use vit_graph::rewrite::eliminate_dead_code;
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

/// The last part of a table's name.
const TABLE: &str = "bias_table";

/// The name of biases that all layers share.
const SHARED: &str = "shared_rel_pos";

/// One layer's biases, `[heads, rows, columns]` of offsets.
struct BiasTable<'a> {
    layer: &'a Layer,
    offsets: [usize; 2],
    values: Vec<f32>,
}

/// The biases of the layers that have them; `None` if none has. Of those that all layers share, one is drawn.
pub(super) fn figure(layers: &[Layer], tables: &BTreeMap<String, Array>) -> Option<Figure> {
    let shared = tables.len() == 1 && tables.keys().all(|name| name.starts_with(SHARED));
    let layers = if shared { &layers[..layers.len().min(1)] } else { layers };
    let tables: Vec<BiasTable> = layers.iter().filter_map(|layer| bias_table(layer, tables)).collect();
    if tables.is_empty() {
        return None;
    }
    let step = tables.len().div_ceil(MAX_LAYERS);
    let shown: Vec<&BiasTable> = tables.iter().step_by(step).collect();
    let heads = shown.iter().map(|t| t.layer.heads).max().unwrap_or(1).min(MAX_HEADS);
    let mut scene =
        Scene::new(LEFT + heads as f32 * (TILE + 8.0) + 90.0, 76.0 + shown.len() as f32 * (TILE + 8.0) + 20.0);
    scene.text(Text::new("Bias of attention by relative position", [24.0, 28.0], 16.0).bold());
    let largest = shown.iter().flat_map(|t| &t.values).fold(0.0f32, |m, v| m.max(v.abs())).max(1e-6);
    let note = format!("the centre of each tile is offset zero; one tile per head, at most {MAX_HEADS}");
    scene.text(Text::new(note, [24.0, 52.0], 12.0).colour(MUTED).within(scene.size().0 - 48.0));
    for (index, table) in shown.iter().enumerate() {
        let y = 76.0 + index as f32 * (TILE + 8.0);
        let name = if shared { "all layers" } else { &table.layer.name };
        let name = Text::new(name, [LEFT - 10.0, y + TILE / 2.0], 11.5).anchor(Anchor::Right);
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
    Some(Figure {
        name: "relative",
        title: "Relative position bias".into(),
        text: "The learned bias on attention scores for every offset between query and key: light where it raises attention, \
               dark where it lowers it."
            .into(),
        scene,
        data: vec![FigureData::Json(numbers.collect())],
    })
}

/// The tables of biases `[offsets, heads]` of a model, by the names of their taps: parameters, or what an MLP computes from
/// offsets. Rows for prefix tokens follow those for offsets.
pub(super) fn bias_tables(graph: &Graph, weights: &Weights) -> Result<BTreeMap<String, Array>, InsightError> {
    let mut graph = graph.clone();
    graph.retain_outputs(|_| false);
    let taps: Vec<String> = graph.taps().keys().filter(|name| name.ends_with(TABLE)).cloned().collect();
    for tap in &taps {
        graph.request(tap)?;
    }
    let graph = eliminate_dead_code(&graph)?;
    let mut bindings = Bindings::new();
    // The tables do not depend on the inputs, which are in every graph.
    for (_, input) in graph.inputs() {
        bindings = bindings.with(&input.name, Array::filled(input.ty.shape.clone(), 0.0));
    }
    for (_, parameter) in graph.parameters() {
        if let Some(tensor) = weights.tensors.get(&parameter.name) {
            bindings = bindings.with(&parameter.name, Array::from_f32(parameter.shape.clone(), &tensor.data));
        }
    }
    Ok(if taps.is_empty() { BTreeMap::new() } else { reference::run(&graph, &bindings)? })
}

fn bias_table<'a>(layer: &'a Layer, tables: &BTreeMap<String, Array>) -> Option<BiasTable<'a>> {
    let names = [format!("{}.{TABLE}", layer.name), format!("{}.rel_pos.{TABLE}", layer.name)];
    let table = names.iter().find_map(|name| tables.get(name)).or_else(|| tables.get(&format!("{SHARED}.{TABLE}")))?;
    let window = match layer.tokens {
        Tokens::Windowed { windows, .. } => windows.size,
        Tokens::Sequence { grid, .. } => grid,
    };
    let offsets = window.map(|side| 2 * side - 1);
    let (area, heads) = (offsets[0] * offsets[1], layer.heads);
    if table.shape().len() != 2 || table.shape()[0] < area || table.shape()[1] != heads {
        return None;
    }
    let of_head = |head: usize| (0..area).map(move |at| table.data()[at * heads + head] as f32);
    Some(BiasTable { layer, offsets, values: (0..heads).flat_map(of_head).collect() })
}
