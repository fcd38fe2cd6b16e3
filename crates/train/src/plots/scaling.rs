//! Accuracy against what a study varies: one line per model over a logarithmic axis (training images, FLOPs, parameters), as
//! in the figures of the ViT paper, or over the values of a setting, with standard deviations as error bars.

use vit_plot::axis::{Axis, labels, ticks_around};
use vit_plot::palette::{BLUE, Colour, FRAME, GREEN, GRID, MUTED, ORANGE, PURPLE, RED, WHITE};
use vit_plot::{Anchor, Area, Scene, Text};

const WIDTH: f32 = 1000.0;
const HEIGHT: f32 = 560.0;
/// Distance between the names of two lines.
const LINE: f32 = 19.0;
const COLOURS: [Colour; 5] = [BLUE, ORANGE, GREEN, PURPLE, RED];
/// Half the width of an error bar's ends.
const CAP: f32 = 4.0;
/// Distance of points that stand side by side.
const SIDE: f32 = 9.0;

/// One line.
#[derive(Debug, Clone, PartialEq)]
pub struct ScalingLine {
    /// Its name, such as the model.
    pub name: String,
    /// Its points.
    pub points: Vec<ScalingPoint>,
}

/// A score.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalingPoint {
    /// The quantity on the horizontal axis, or the index of its label.
    pub x: f64,
    /// The score, a share.
    pub score: f64,
    /// Its standard deviation over seeds.
    pub deviation: Option<f64>,
}

/// The horizontal axis.
#[derive(Debug, Clone, PartialEq)]
pub enum ScalingAxis {
    /// A quantity above zero, on a logarithmic scale.
    Logarithmic {
        /// Its name.
        name: String,
    },
    /// Values by their labels, at equal distances.
    Labelled {
        /// The name of the setting.
        name: String,
        /// Its values.
        labels: Vec<String>,
    },
}

impl ScalingAxis {
    fn name(&self) -> &str {
        match self {
            ScalingAxis::Logarithmic { name } | ScalingAxis::Labelled { name, .. } => name,
        }
    }

    /// Whether its values are numbers.
    fn is_ordered(&self) -> bool {
        match self {
            ScalingAxis::Logarithmic { .. } => true,
            ScalingAxis::Labelled { labels, .. } => labels.iter().all(|label| label.parse::<f64>().is_ok()),
        }
    }

    /// Where on the axis a value is.
    fn scale(&self, x: f64) -> f64 {
        match self {
            ScalingAxis::Logarithmic { .. } => x.ln(),
            ScalingAxis::Labelled { .. } => x,
        }
    }

    fn has(&self, x: f64) -> bool {
        x.is_finite()
            && match self {
                ScalingAxis::Logarithmic { .. } => x > 0.0,
                ScalingAxis::Labelled { labels, .. } => x >= 0.0 && (x as usize) < labels.len(),
            }
    }

    fn label(&self, x: f64) -> String {
        match self {
            ScalingAxis::Logarithmic { .. } if x < 1e4 => format!("{x}"),
            ScalingAxis::Logarithmic { .. } if x < 1e9 => labels(&[x])[0].clone(),
            ScalingAxis::Logarithmic { .. } => format!("{x:.1e}"),
            ScalingAxis::Labelled { labels, .. } => labels.get(x as usize).cloned().unwrap_or_default(),
        }
    }

    /// The values that get a tick: those of all points, or every label.
    fn ticks(&self, mut values: Vec<f64>) -> Vec<f64> {
        if let ScalingAxis::Labelled { labels, .. } = self {
            values = (0..labels.len()).map(|index| index as f64).collect();
        }
        values.sort_by(f64::total_cmp);
        values.dedup();
        values
    }
}

/// The scores of several lines; `what` names the score, which is a share.
pub fn scaling(title: &str, what: &str, axis: &ScalingAxis, lines: &[ScalingLine]) -> Scene {
    let mut scene = Scene::new(WIDTH, HEIGHT);
    scene.text(Text::new(title, [24.0, 28.0], 18.0).bold().within(WIDTH - 48.0));
    let lines: Vec<(&str, Vec<ScalingPoint>)> = lines
        .iter()
        .map(|line| {
            let drawable = line.points.iter().filter(|point| axis.has(point.x) && point.score.is_finite());
            let in_percent = |point: &ScalingPoint| {
                let deviation = point.deviation.filter(|deviation| deviation.is_finite());
                ScalingPoint { x: point.x, score: 100.0 * point.score, deviation: deviation.map(|d| 100.0 * d) }
            };
            let mut points: Vec<ScalingPoint> = drawable.map(in_percent).collect();
            points.sort_by(|a, b| a.x.total_cmp(&b.x));
            (line.name.as_str(), points)
        })
        .filter(|(_, points)| !points.is_empty())
        .collect();
    let plot = Area { x: 72.0, y: 84.0, width: 600.0, height: HEIGHT - 84.0 - 72.0 };
    let points = || lines.iter().flat_map(|(_, points)| points.iter());
    let (low, high) = points().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), point| {
        let [least, most] = ends(point);
        (low.min(least), high.max(most))
    });
    if low > high {
        let middle = [WIDTH / 2.0, HEIGHT / 2.0];
        scene.text(Text::new("nothing has been measured yet", middle, 15.0).colour(MUTED).anchor(Anchor::Middle));
        return scene;
    }
    let levels = ticks_around(low, high, 6);
    let values = axis.ticks(points().map(|point| point.x).collect());
    // If all points have the same value, they are in the middle.
    let (first, last) = (axis.scale(values[0]), axis.scale(values[values.len() - 1]));
    let margin = if first < last { 0.06 * (last - first) } else { 1.0 };
    let x = Axis { from: first - margin, to: last + margin, pixels: [plot.x, plot.right()] };
    let (Some(&from), Some(&to)) = (levels.first(), levels.last()) else { return scene };
    let y = Axis { from, to, pixels: [plot.bottom(), plot.y] };
    draw_axes(&mut scene, plot, what, (axis, x, &values), (y, &levels));

    let mut names: Vec<(f32, f32, String, usize)> = Vec::new();
    for (index, (name, points)) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        // Values without an order are not joined by lines, and points of several lines stand side by side.
        let beside = if axis.is_ordered() { 0.0 } else { SIDE * (index as f32 - (lines.len() - 1) as f32 / 2.0) };
        let place = |point: &ScalingPoint| [x.place(axis.scale(point.x)) + beside, y.place(point.score)];
        let places: Vec<[f32; 2]> = points.iter().map(place).collect();
        match (axis.is_ordered(), index < COLOURS.len()) {
            (true, true) => scene.line(places.clone(), 2.0, colour),
            // Further lines are dashed.
            (true, false) => scene.dashes(places.clone(), 2.0, colour),
            (false, _) => {}
        }
        for (point, place) in points.iter().zip(&places) {
            if point.deviation.is_some() {
                let [bottom, top] = ends(point).map(|end| y.place(end));
                scene.line(vec![[place[0], bottom], [place[0], top]], 1.5, colour);
                for end in [bottom, top] {
                    scene.line(vec![[place[0] - CAP, end], [place[0] + CAP, end]], 1.5, colour);
                }
            }
            scene.dot(*place, 5.5, WHITE);
            scene.dot(*place, 4.0, colour);
        }
        if let (Some([_, height]), Some(point)) = (places.last(), points.last()) {
            names.push((*height, *height, format!("{name}  {:.1}%", point.score), index));
        }
    }
    name_lines(&mut scene, plot, names);
    scene
}

/// The ends of a point's error bar, in percent.
fn ends(point: &ScalingPoint) -> [f64; 2] {
    let deviation = point.deviation.unwrap_or(0.0);
    [point.score - deviation, point.score + deviation].map(|end| end.clamp(0.0, 100.0))
}

fn draw_axes(
    scene: &mut Scene,
    plot: Area,
    what: &str,
    (axis, x, values): (&ScalingAxis, Axis, &[f64]),
    (y, levels): (Axis, &[f64]),
) {
    scene.text(Text::new(format!("{what}, %"), [plot.x, plot.y - 22.0], 14.0).bold());
    for (tick, label) in levels.iter().zip(labels(levels)) {
        let at = y.place(*tick);
        scene.line(vec![[plot.x, at], [plot.right(), at]], 1.0, GRID);
        scene.text(Text::new(label, [plot.x - 10.0, at], 12.0).colour(MUTED).anchor(Anchor::Right));
    }
    scene.line(vec![[plot.x, plot.bottom()], [plot.right(), plot.bottom()]], 1.0, FRAME);
    // From the right, since the largest value is the most important one; labels that would overlap are omitted, except those
    // of a setting, which are shortened.
    let widest = match axis {
        ScalingAxis::Labelled { labels, .. } => plot.width / labels.len().max(1) as f32 - 8.0,
        ScalingAxis::Logarithmic { .. } => plot.width,
    };
    let mut free = plot.right() + 40.0;
    for value in values.iter().rev() {
        let at = x.place(axis.scale(*value));
        scene.line(vec![[at, plot.bottom()], [at, plot.bottom() + 4.0]], 1.0, FRAME);
        let text = Text::new(axis.label(*value), [at, plot.bottom() + 15.0], 12.0).within(widest);
        let text = text.colour(MUTED).anchor(Anchor::Middle);
        if at + text.width() / 2.0 + 8.0 < free {
            free = at - text.width() / 2.0;
            scene.text(text);
        }
    }
    let below = [plot.x + plot.width / 2.0, plot.bottom() + 38.0];
    scene.text(Text::new(axis.name(), below, 12.0).colour(MUTED).anchor(Anchor::Middle));
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

    fn images() -> ScalingAxis {
        ScalingAxis::Logarithmic { name: "training images".into() }
    }

    fn point(x: f64, score: f64) -> ScalingPoint {
        ScalingPoint { x, score, deviation: None }
    }

    fn lines(models: usize, sizes: &[f64]) -> Vec<ScalingLine> {
        let line = |model: usize| ScalingLine {
            name: format!("vit_of_some_size_patch4_{model}"),
            points: sizes
                .iter()
                .map(|size| point(*size, 0.3 + 0.02 * model as f64 + 0.04 * (size + 1.0).ln()))
                .collect(),
        };
        (0..models).map(line).collect()
    }

    #[test]
    fn lines_are_readable_however_many() {
        for sizes in
            [&[5000.0][..], &[5000.0, 15000.0, 50000.0], &[1.0, 3.0, 1.2e6], &[900.0, 1000.0, 1001.0], &[1e15, 3e17]]
        {
            for models in [0, 1, 5, 12] {
                let scene = scaling("CIFAR-10", "top-1", &images(), &lines(models, sizes));
                scene.assert_readable();
                assert_eq!(scene.size(), (WIDTH, HEIGHT));
            }
        }
        // Names of equal lines are moved apart.
        let same: Vec<ScalingLine> =
            (0..8).map(|i| ScalingLine { name: format!("m{i}"), points: vec![point(10.0, 0.5)] }).collect();
        scaling("alike", "top-1", &images(), &same).assert_readable();
    }

    #[test]
    fn settings_have_their_labels_and_error_bars_stay_inside() {
        for count in [1, 2, 4, 9] {
            let values = (0..count).map(|at| format!("a rather long value {at}")).collect();
            let axis = ScalingAxis::Labelled { name: "position".into(), labels: values };
            let sizes: Vec<f64> = (0..count).map(|at| at as f64).collect();
            let mut lines = lines(2, &sizes);
            lines.iter_mut().flat_map(|line| &mut line.points).for_each(|point| point.deviation = Some(0.2));
            let scene = scaling("positions", "top-1", &axis, &lines);
            scene.assert_readable();
            assert!(scene.texts().contains(&"position"));
        }
    }

    #[test]
    fn numbers_that_are_none_are_left_out() {
        let odd =
            ScalingLine { name: "odd".into(), points: vec![point(0.0, 0.5), point(10.0, f64::NAN), point(20.0, 0.4)] };
        let svg = scaling("odd", "top-1", &images(), &[odd]).svg();
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert!(scaling("", "top-1", &images(), &[]).texts().contains(&"nothing has been measured yet"));
    }
}
