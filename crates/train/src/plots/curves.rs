//! Training curves: loss, accuracy, learning rate and speed, each in a panel, as far as they were logged.

use crate::run::folder::{MetricsRow, columns};
use vit_plot::axis::{Axis, figure, labels, ticks, ticks_around};
use vit_plot::palette::{BLUE, Colour, FRAME, GREEN, GRID, INK, MUTED, ORANGE, PURPLE, WHITE};
use vit_plot::{Anchor, Area, Scene, Text};

const WIDTH: f32 = 1000.0;
const HEADER: f32 = 52.0;
const PANEL_HEIGHT: f32 = 270.0;

/// A curve of a panel.
struct Series {
    name: &'static str,
    column: &'static str,
    colour: Colour,
    /// Which point is marked as the best.
    best: Option<Extremum>,
    /// Noisy values are drawn as a pale line below their moving mean.
    noisy: bool,
}

impl Series {
    /// Points in a window of the moving mean; 1 without one.
    fn window(&self, points: &[[f64; 2]]) -> usize {
        if self.noisy { (points.len() / 40).max(1) } else { 1 }
    }

    /// The value at the end of the line.
    fn last(&self, points: &[[f64; 2]]) -> Option<f64> {
        let run = points.split(|[_, value]| !value.is_finite()).rfind(|run| !run.is_empty())?;
        moving_mean(run, self.window(points)).last().map(|[_, value]| *value)
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Extremum {
    Largest,
    Smallest,
}

struct Panel {
    title: &'static str,
    series: Vec<Series>,
    /// Values are shares, shown as percentages.
    percent: bool,
    from_zero: bool,
}

fn panels() -> Vec<Panel> {
    let series = |name, column, colour, best, noisy| Series { name, column, colour, best, noisy };
    let panel = |title, series, percent, from_zero| Panel { title, series, percent, from_zero };
    vec![
        panel(
            "Loss",
            vec![
                series("train", columns::TRAIN_LOSS, BLUE, None, true),
                series("validation", columns::VAL_LOSS, ORANGE, Some(Extremum::Smallest), false),
            ],
            false,
            false,
        ),
        panel(
            "Accuracy, %",
            vec![
                series("top-1", columns::VAL_TOP1, ORANGE, Some(Extremum::Largest), false),
                series("top-5", columns::VAL_TOP5, PURPLE, None, false),
                series("nearest neighbours", columns::VAL_NEIGHBOURS, ORANGE, Some(Extremum::Largest), false),
            ],
            true,
            false,
        ),
        panel(
            "R@1, %",
            vec![
                series("image to text", columns::VAL_IMAGE_TO_TEXT, ORANGE, Some(Extremum::Largest), false),
                series("text to image", columns::VAL_TEXT_TO_IMAGE, PURPLE, Some(Extremum::Largest), false),
            ],
            true,
            false,
        ),
        panel("Learning rate", vec![series("", columns::RATE, GREEN, None, false)], false, true),
        panel("Images per second", vec![series("", columns::IMAGES_PER_SECOND, BLUE, None, true)], false, true),
    ]
}

/// The curves of a run from its rows, 1000 pixels wide.
pub fn curves(title: &str, rows: &[MetricsRow]) -> Scene {
    // Epochs are easier to compare than steps, if every row has one.
    let by_epoch = !rows.is_empty() && rows.iter().all(|row| row.epoch.is_some_and(f64::is_finite));
    let place = |row: &MetricsRow| if by_epoch { row.epoch.unwrap_or(0.0) } else { row.step as f64 };
    let mut panels = panels();
    for panel in &mut panels {
        panel.series.retain(|series| rows.iter().any(|row| row.get(series.column).is_some_and(f64::is_finite)));
    }
    panels.retain(|panel| !panel.series.is_empty());

    let across = panels.len().clamp(1, 2);
    let down = panels.len().div_ceil(across).max(1);
    let panel_height = if down == 1 { 2.0 * PANEL_HEIGHT } else { PANEL_HEIGHT };
    let mut scene = Scene::new(WIDTH, HEADER + down as f32 * panel_height + 8.0);
    scene.text(Text::new(title, [24.0, 28.0], 18.0).bold().within(WIDTH - 48.0));
    if panels.is_empty() {
        let middle = [WIDTH / 2.0, HEADER + panel_height / 2.0];
        scene.text(Text::new("nothing has been measured yet", middle, 15.0).colour(MUTED).anchor(Anchor::Middle));
        return scene;
    }
    let last = rows.iter().map(place).fold(0.0, f64::max);
    let first = rows.iter().map(place).fold(last, f64::min);
    let span = if first < last { [first.min(last * 0.02), last] } else { [last - 1.0, last + 1.0] };
    let panel_width = (WIDTH - 16.0) / across as f32;
    for (index, panel) in panels.iter().enumerate() {
        let area = Area {
            x: 8.0 + (index % across) as f32 * panel_width,
            y: HEADER + (index / across) as f32 * panel_height,
            width: panel_width,
            height: panel_height,
        };
        let points = |column: &str| -> Vec<[f64; 2]> {
            let factor = if panel.percent { 100.0 } else { 1.0 };
            rows.iter().filter_map(|row| Some([place(row), factor * row.get(column)?])).collect()
        };
        draw_panel(&mut scene, panel, area, span, if by_epoch { "epoch" } else { "step" }, points);
    }
    scene
}

fn draw_panel(
    scene: &mut Scene,
    panel: &Panel,
    area: Area,
    span: [f64; 2],
    unit: &str,
    points: impl Fn(&str) -> Vec<[f64; 2]>,
) {
    let plot = Area { x: area.x + 64.0, y: area.y + 36.0, width: area.width - 88.0, height: area.height - 86.0 };
    let curves: Vec<Vec<[f64; 2]>> = panel.series.iter().map(|series| points(series.column)).collect();
    let values = || curves.iter().flatten().map(|[_, value]| *value).filter(|value| value.is_finite());
    let smallest = if panel.from_zero { 0.0 } else { values().fold(f64::INFINITY, f64::min) };
    let count = if plot.height > 300.0 { 7 } else { 4 };
    let levels = ticks_around(smallest, values().fold(f64::NEG_INFINITY, f64::max), count);
    let (Some(&from), Some(&to)) = (levels.first(), levels.last()) else { return };
    let x = Axis { from: span[0], to: span[1], pixels: [plot.x, plot.right()] };
    let y = Axis { from, to, pixels: [plot.bottom(), plot.y] };

    for (tick, label) in levels.iter().zip(labels(&levels)) {
        let at = y.place(*tick);
        scene.line(vec![[plot.x, at], [plot.right(), at]], 1.0, GRID);
        scene.text(Text::new(label, [plot.x - 10.0, at], 12.0).colour(MUTED).anchor(Anchor::Right));
    }
    scene.line(vec![[plot.x, plot.bottom()], [plot.right(), plot.bottom()]], 1.0, FRAME);
    let moments = ticks(span[0], span[1], 6);
    for (tick, label) in moments.iter().zip(labels(&moments)) {
        let at = x.place(*tick);
        scene.line(vec![[at, plot.bottom()], [at, plot.bottom() + 4.0]], 1.0, FRAME);
        scene.text(Text::new(label, [at, plot.bottom() + 15.0], 12.0).colour(MUTED).anchor(Anchor::Middle));
    }
    let below = [plot.x + plot.width / 2.0, plot.bottom() + 33.0];
    scene.text(Text::new(unit, below, 12.0).colour(MUTED).anchor(Anchor::Middle));
    scene.text(Text::new(panel.title, [plot.x, area.y + 16.0], 14.0).bold());

    for (series, points) in panel.series.iter().zip(&curves) {
        draw_series(scene, series, points, x, y);
    }
    draw_legend(scene, panel, &curves, [plot.right(), area.y + 16.0]);
}

fn draw_series(scene: &mut Scene, series: &Series, points: &[[f64; 2]], x: Axis, y: Axis) {
    let on_screen = |points: &[[f64; 2]]| points.iter().map(|[at, value]| [x.place(*at), y.place(*value)]).collect();
    let window = series.window(points);
    let smooth = window > 1;
    for run in thin(points, x).split(|[_, value]| !value.is_finite()).filter(|run| !run.is_empty()) {
        let colour = if smooth { series.colour.mix(WHITE, 0.7) } else { series.colour };
        if let [[at, value]] = run {
            scene.dot([x.place(*at), y.place(*value)], 2.5, colour);
        } else {
            scene.line(on_screen(run), if smooth { 1.0 } else { 2.0 }, colour);
        }
    }
    if smooth {
        for run in points.split(|[_, value]| !value.is_finite()).filter(|run| run.len() > 1) {
            scene.line(on_screen(&thin(&moving_mean(run, window), x)), 2.0, series.colour);
        }
    }
    if let Some([at, value]) = series.best.and_then(|best| best_of(points, best)) {
        let centre = [x.place(at), y.place(value)];
        scene.dot(centre, 5.5, WHITE);
        scene.dot(centre, 4.0, series.colour);
    }
}

/// The legend with the best or last values, from the right edge of the panel to the left.
fn draw_legend(scene: &mut Scene, panel: &Panel, curves: &[Vec<[f64; 2]>], [mut right, y]: [f32; 2]) {
    for (series, points) in panel.series.iter().zip(curves).rev() {
        let (word, value) = match series.best.and_then(|best| best_of(points, best)) {
            Some([_, value]) => ("best", Some(value)),
            None => ("now", series.last(points)),
        };
        let Some(value) = value else { continue };
        let text = if series.name.is_empty() {
            format!("{word} {}", figure(value))
        } else {
            format!("{}, {word} {}", series.name, figure(value))
        };
        let text = Text::new(text, [right, y], 12.0).colour(INK).anchor(Anchor::Right);
        right -= text.width() + 7.0;
        scene.text(text);
        scene.line(vec![[right - 16.0, y], [right, y]], 2.5, series.colour);
        right -= 16.0 + 16.0;
    }
}

fn best_of(points: &[[f64; 2]], best: Extremum) -> Option<[f64; 2]> {
    let finite = points.iter().copied().filter(|[_, value]| value.is_finite());
    finite.reduce(|a, b| match best {
        Extremum::Largest if b[1] > a[1] => b,
        Extremum::Smallest if b[1] < a[1] => b,
        _ => a,
    })
}

/// The moving mean.
fn moving_mean(points: &[[f64; 2]], window: usize) -> Vec<[f64; 2]> {
    let mut sums = vec![0.0];
    for [_, value] in points {
        sums.push(sums[sums.len() - 1] + value);
    }
    let mean = |index: usize| {
        // At the steep start the window shrinks on both sides, so that the mean is unbiased; at the flat end only on one,
        // so that the last value is smooth.
        let reach = (window / 2).min(index);
        let (from, to) = (index - reach, (index + reach + 1).min(points.len()));
        [points[index][0], (sums[to] - sums[from]) / (to - from) as f64]
    };
    (0..points.len()).map(mean).collect()
}

/// At most two points for every half pixel, the lowest and the highest: the curve looks the same in a smaller file. Points
/// that are not finite stay, as gaps.
fn thin(points: &[[f64; 2]], x: Axis) -> Vec<[f64; 2]> {
    let columns = 2.0 * (x.pixels[1] - x.pixels[0]);
    if points.len() as f32 <= 2.0 * columns {
        return points.to_vec();
    }
    let column = |point: &[f64; 2]| (2.0 * x.place(point[0])).floor();
    let mut thinned = Vec::new();
    let alike = |a: &[f64; 2], b: &[f64; 2]| column(a) == column(b) && a[1].is_finite() == b[1].is_finite();
    for group in points.chunk_by(alike) {
        let mut ends: Vec<&[f64; 2]> = group.iter().collect();
        if group.len() > 2 {
            let by_value = |a: &&&[f64; 2], b: &&&[f64; 2]| a[1].total_cmp(&b[1]);
            let chosen: Vec<_> =
                [ends.iter().min_by(by_value), ends.iter().max_by(by_value)].into_iter().flatten().copied().collect();
            ends = chosen;
            ends.sort_by(|a, b| a[0].total_cmp(&b[0]));
        }
        thinned.extend(ends);
    }
    thinned
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(steps: u64, scale: f64) -> Vec<MetricsRow> {
        (1..=steps)
            .map(|step| {
                let done = step as f64 / steps as f64;
                let row = MetricsRow::new(step * 50)
                    .epoch(done * 90.0)
                    .with(columns::TRAIN_LOSS, scale * (7.0 - 5.0 * done))
                    .with(columns::RATE, scale * 1e-3 * (1.0 - done))
                    .with(columns::IMAGES_PER_SECOND, scale * 800.0);
                if step % 10 == 0 {
                    row.with(columns::VAL_LOSS, scale * (6.5 - 4.0 * done))
                        .with(columns::VAL_TOP1, done * 0.8)
                        .with(columns::VAL_TOP5, done)
                } else {
                    row
                }
            })
            .collect()
    }

    #[test]
    fn curves_are_readable_at_any_length_and_scale() {
        for steps in [0, 1, 2, 10, 37, 1000, 20000] {
            for scale in [1e-6, 1e-3, 1.0, 123.0, 1e6] {
                let scene = curves("vit_base on flowers", &run(steps, scale));
                scene.assert_readable();
                assert_eq!(scene.size().0, 1000.0);
            }
        }
        assert_eq!(curves("", &run(20, 1.0)).size(), (1000.0, 600.0));
    }

    #[test]
    fn retrieval_has_a_panel() {
        for scale in [0.01, 1.0] {
            let mut rows = run(20, 1.0);
            for (done, row) in rows.iter_mut().enumerate() {
                let share = scale * (1.0 + done as f64) / 20.0;
                row.values.push((columns::VAL_IMAGE_TO_TEXT.into(), share));
                row.values.push((columns::VAL_TEXT_TO_IMAGE.into(), 0.9 * share));
            }
            let scene = curves("ViT-B-32 on captioned", &rows);
            scene.assert_readable();
            assert!(scene.texts().contains(&"R@1, %"));
        }
    }

    #[test]
    fn a_run_that_diverged_has_gaps() {
        let mut rows = run(100, 1.0);
        for row in &mut rows[50..] {
            row.values[0].1 = f64::NAN;
        }
        let scene = curves("diverged", &rows);
        scene.assert_readable();
        assert!(!scene.svg().contains("NaN") && !scene.svg().contains("inf"));
        rows.iter_mut().for_each(|row| row.values.iter_mut().for_each(|(_, value)| *value = f64::NAN));
        assert!(curves("lost", &rows).texts().contains(&"nothing has been measured yet"));
    }

    #[test]
    fn a_long_run_makes_a_small_file() {
        let svg = curves("long", &run(200_000, 1.0)).svg();
        assert!(svg.len() < 500_000, "{} bytes", svg.len());
    }

    #[test]
    fn thinning_keeps_every_spike() {
        let mut points: Vec<[f64; 2]> = (0..10_000).map(|i| [f64::from(i), 1.0]).collect();
        points[4321][1] = 9.0;
        points[7777][1] = -3.0;
        let thinned = thin(&points, Axis { from: 0.0, to: 10_000.0, pixels: [0.0, 400.0] });
        assert!(thinned.len() <= 1604 && thinned.contains(&[4321.0, 9.0]) && thinned.contains(&[7777.0, -3.0]));
    }

    #[test]
    fn the_moving_mean_of_a_line_is_the_line_up_to_the_end() {
        let line: Vec<[f64; 2]> = (0..50).map(|i| [f64::from(i), 3.0 - 0.5 * f64::from(i)]).collect();
        let means = moving_mean(&line, 9);
        for (mean, point) in means.iter().zip(&line[..46]) {
            assert!((mean[1] - point[1]).abs() < 1e-9);
        }
        // The last is the mean of the last five.
        assert!((means[49][1] - line[47][1]).abs() < 1e-9);
    }
}
