//! Accuracy against dataset size: one line per model over a logarithmic axis, as in figures 3 and 4 of the ViT paper.

use vit_plot::axis::{Axis, labels, ticks_around};
use vit_plot::palette::{BLUE, Colour, FRAME, GREEN, GRID, MUTED, ORANGE, PURPLE, RED, WHITE};
use vit_plot::{Anchor, Area, Scene, Text};

const WIDTH: f32 = 1000.0;
const HEIGHT: f32 = 560.0;
/// Distance between the names of two lines.
const LINE: f32 = 19.0;
const COLOURS: [Colour; 5] = [BLUE, ORANGE, GREEN, PURPLE, RED];

/// One model's line.
#[derive(Debug, Clone, PartialEq)]
pub struct ScalingLine {
    /// The model.
    pub name: String,
    /// Pairs of the number of training images and the score.
    pub points: Vec<(f64, f64)>,
}

/// The scores of models against their number of training images; `what` names the score, which is a share.
pub fn scaling(title: &str, what: &str, lines: &[ScalingLine]) -> Scene {
    let mut scene = Scene::new(WIDTH, HEIGHT);
    scene.text(Text::new(title, [24.0, 28.0], 18.0).bold().within(WIDTH - 48.0));
    let drawable = |(x, y): &(f64, f64)| *x > 0.0 && x.is_finite() && y.is_finite();
    let lines: Vec<(&str, Vec<[f64; 2]>)> = lines
        .iter()
        .map(|line| {
            let points = line.points.iter().filter(|point| drawable(point));
            let mut points: Vec<[f64; 2]> = points.map(|(x, y)| [*x, 100.0 * y]).collect();
            points.sort_by(|a, b| a[0].total_cmp(&b[0]));
            (line.name.as_str(), points)
        })
        .filter(|(_, points)| !points.is_empty())
        .collect();
    let plot = Area { x: 72.0, y: 84.0, width: 600.0, height: HEIGHT - 84.0 - 72.0 };
    let values = || lines.iter().flat_map(|(_, points)| points.iter());
    let (low, high) = values().fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), [_, y]| (l.min(*y), h.max(*y)));
    if low > high {
        let middle = [WIDTH / 2.0, HEIGHT / 2.0];
        scene.text(Text::new("nothing has been measured yet", middle, 15.0).colour(MUTED).anchor(Anchor::Middle));
        return scene;
    }
    let levels = ticks_around(low, high, 6);
    let mut sizes: Vec<f64> = values().map(|[x, _]| *x).collect();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    // If all models saw the same number of images, their points are in the middle.
    let (first, last) = (sizes[0].ln(), sizes[sizes.len() - 1].ln());
    let margin = if first < last { 0.06 * (last - first) } else { 1.0 };
    let x = Axis { from: first - margin, to: last + margin, pixels: [plot.x, plot.right()] };
    let (Some(&from), Some(&to)) = (levels.first(), levels.last()) else { return scene };
    let y = Axis { from, to, pixels: [plot.bottom(), plot.y] };
    draw_axes(&mut scene, plot, what, (x, &sizes), (y, &levels));

    let mut ends: Vec<(f32, f32, String, usize)> = Vec::new();
    for (index, (name, points)) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let places: Vec<[f32; 2]> = points.iter().map(|[at, value]| [x.place(at.ln()), y.place(*value)]).collect();
        // Further lines are dashed.
        if index < COLOURS.len() {
            scene.line(places.clone(), 2.0, colour);
        } else {
            scene.dashes(places.clone(), 2.0, colour);
        }
        for place in &places {
            scene.dot(*place, 5.5, WHITE);
            scene.dot(*place, 4.0, colour);
        }
        if let (Some([_, height]), Some([_, value])) = (places.last(), points.last()) {
            ends.push((*height, *height, format!("{name}  {value:.1}%"), index));
        }
    }
    name_lines(&mut scene, plot, ends);
    scene
}

fn draw_axes(scene: &mut Scene, plot: Area, what: &str, (x, sizes): (Axis, &[f64]), (y, levels): (Axis, &[f64])) {
    scene.text(Text::new(format!("{what}, %"), [plot.x, plot.y - 22.0], 14.0).bold());
    for (tick, label) in levels.iter().zip(labels(levels)) {
        let at = y.place(*tick);
        scene.line(vec![[plot.x, at], [plot.right(), at]], 1.0, GRID);
        scene.text(Text::new(label, [plot.x - 10.0, at], 12.0).colour(MUTED).anchor(Anchor::Right));
    }
    scene.line(vec![[plot.x, plot.bottom()], [plot.right(), plot.bottom()]], 1.0, FRAME);
    // From the right, since the largest size is the most important one; labels that would overlap are omitted.
    let mut free = plot.right() + 40.0;
    for size in sizes.iter().rev() {
        let at = x.place(size.ln());
        scene.line(vec![[at, plot.bottom()], [at, plot.bottom() + 4.0]], 1.0, FRAME);
        let label = if *size < 1e4 { format!("{size}") } else { labels(&[*size])[0].clone() };
        let text = Text::new(label, [at, plot.bottom() + 15.0], 12.0).colour(MUTED).anchor(Anchor::Middle);
        if at + text.width() / 2.0 + 8.0 < free {
            free = at - text.width() / 2.0;
            scene.text(text);
        }
    }
    let below = [plot.x + plot.width / 2.0, plot.bottom() + 38.0];
    scene.text(Text::new("training images", below, 12.0).colour(MUTED).anchor(Anchor::Middle));
}

/// Names at the right, beside the ends of their lines, moved apart where they would overlap.
fn name_lines(scene: &mut Scene, plot: Area, mut ends: Vec<(f32, f32, String, usize)>) {
    ends.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.3.cmp(&b.3)));
    let mut next = plot.y;
    for end in &mut ends {
        end.1 = end.0.max(next);
        next = end.1 + LINE;
    }
    // Names that were moved below the bottom are moved up again.
    let mut last = plot.bottom();
    for end in ends.iter_mut().rev() {
        end.1 = end.1.min(last);
        last = end.1 - LINE;
    }
    let left = plot.right() + 28.0;
    for (height, at, text, index) in ends {
        let colour = COLOURS[index % COLOURS.len()];
        scene.line(vec![[plot.right() - 4.0, height], [left - 8.0, at]], 1.0, colour.mix(WHITE, 0.5));
        scene.text(Text::new(text, [left, at], 13.0).colour(colour).within(WIDTH - 16.0 - left));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(models: usize, sizes: &[f64]) -> Vec<ScalingLine> {
        let line = |model: usize| ScalingLine {
            name: format!("vit_of_some_size_patch4_{model}"),
            points: sizes.iter().map(|size| (*size, 0.3 + 0.02 * model as f64 + 0.04 * size.ln())).collect(),
        };
        (0..models).map(line).collect()
    }

    #[test]
    fn lines_are_readable_however_many() {
        for sizes in [&[5000.0][..], &[5000.0, 15000.0, 50000.0], &[1.0, 3.0, 1.2e6], &[900.0, 1000.0, 1001.0]] {
            for models in [0, 1, 5, 12] {
                let scene = scaling("CIFAR-10", "top-1", &lines(models, sizes));
                scene.assert_readable();
                assert_eq!(scene.size(), (WIDTH, HEIGHT));
            }
        }
        // Names of equal lines are moved apart.
        let same: Vec<ScalingLine> =
            (0..8).map(|i| ScalingLine { name: format!("m{i}"), points: vec![(10.0, 0.5)] }).collect();
        scaling("alike", "top-1", &same).assert_readable();
    }

    #[test]
    fn numbers_that_are_none_are_left_out() {
        let odd = ScalingLine { name: "odd".into(), points: vec![(0.0, 0.5), (10.0, f64::NAN), (20.0, 0.4)] };
        let svg = scaling("odd", "top-1", &[odd]).svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert!(scaling("", "top-1", &[]).texts().contains(&"nothing has been measured yet"));
    }
}
