//! The reliability diagram: accuracy against confidence, with the number of predictions.

use crate::evaluate::metrics::Calibration;
use vit_plot::axis::{Axis, figure};
use vit_plot::palette::{BLUE, FRAME, GRID, INK, MUTED, ORANGE, WHITE};
use vit_plot::{Anchor, Area, Scene, Text};

const WIDTH: f32 = 620.0;

/// The figure of a model's calibration.
pub fn reliability(title: &str, calibration: &Calibration) -> Scene {
    let table = calibration.table();
    let samples: u64 = table.iter().map(|bin| bin.samples).sum();
    let mut scene = Scene::new(WIDTH, 720.0);
    scene.text(Text::new(title, [24.0, 28.0], 18.0).bold().within(WIDTH - 48.0));
    if samples == 0 {
        let middle = [WIDTH / 2.0, 360.0];
        scene.text(Text::new("nothing has been measured yet", middle, 15.0).colour(MUTED).anchor(Anchor::Middle));
        return scene;
    }
    let upper = Area { x: 76.0, y: 88.0, width: 516.0, height: 400.0 };
    let lower = Area { x: 76.0, y: 536.0, width: 516.0, height: 112.0 };
    let across = Axis { from: 0.0, to: 1.0, pixels: [upper.x, upper.right()] };
    let up = Axis { from: 0.0, to: 1.0, pixels: [upper.bottom(), upper.y] };
    let share = |count: u64| count as f64 / samples as f64;
    let tallest = table.iter().map(|bin| share(bin.samples)).fold(0.0, f64::max);
    let down = Axis { from: 0.0, to: tallest, pixels: [lower.bottom(), lower.y] };

    let mean = |value: &dyn Fn(&crate::evaluate::metrics::ReliabilityBin) -> f64| -> f64 {
        table.iter().map(|bin| share(bin.samples) * value(bin)).sum::<f64>()
    };
    let (accuracy, confidence) = (mean(&|bin| bin.accuracy), mean(&|bin| bin.confidence));
    let summary = format!(
        "expected calibration error {} %   accuracy {} %   mean confidence {} %",
        figure(100.0 * calibration.ece()),
        figure(100.0 * accuracy),
        figure(100.0 * confidence)
    );
    scene.text(Text::new(summary, [24.0, 56.0], 13.0).colour(MUTED).within(WIDTH - 48.0));

    for tenth in (0..=10).step_by(2) {
        let value = f64::from(tenth) / 10.0;
        let (x, y) = (across.place(value), up.place(value));
        scene.line(vec![[upper.x, y], [upper.right(), y]], 1.0, GRID);
        scene.text(Text::new(percent(value), [upper.x - 10.0, y], 12.0).colour(MUTED).anchor(Anchor::Right));
        scene.line(vec![[x, lower.bottom()], [x, lower.bottom() + 4.0]], 1.0, FRAME);
        scene.text(Text::new(percent(value), [x, lower.bottom() + 15.0], 12.0).colour(MUTED).anchor(Anchor::Middle));
    }
    for bin in table.iter().filter(|bin| bin.samples > 0) {
        let (left, right) = (across.place(bin.above) + 1.0, across.place(bin.upto) - 1.0);
        let column = |axis: Axis, from: f64, to: f64| Area {
            x: left,
            y: axis.place(to.max(from)),
            width: right - left,
            height: axis.place(to.min(from)) - axis.place(to.max(from)),
        };
        scene.rectangle(column(up, 0.0, bin.accuracy), BLUE.mix(WHITE, 0.25));
        scene.rectangle(column(up, bin.accuracy, bin.confidence), ORANGE.mix(WHITE, 0.6));
        let level = up.place(bin.accuracy);
        scene.line(vec![[left, level], [right, level]], 2.0, BLUE);
        scene.rectangle(column(down, 0.0, share(bin.samples)), BLUE.mix(WHITE, 0.5));
    }
    let diagonal = vec![[across.place(0.0), up.place(0.0)], [across.place(1.0), up.place(1.0)]];
    scene.dashes(diagonal, 1.5, INK);
    for area in [upper, lower] {
        scene.line(vec![[area.x, area.bottom()], [area.right(), area.bottom()]], 1.0, FRAME);
    }
    let top = down.place(tallest);
    scene.text(Text::new("0", [lower.x - 10.0, lower.bottom()], 12.0).colour(MUTED).anchor(Anchor::Right));
    let label = format!("{} %", figure(100.0 * tallest));
    scene.text(Text::new(label, [lower.x - 10.0, top], 12.0).colour(MUTED).anchor(Anchor::Right));
    scene.line(vec![[lower.x, top], [lower.right(), top]], 1.0, GRID);

    legend(&mut scene, [upper.x + 14.0, upper.y + 18.0]);
    let beside = |area: Area| [20.0, area.y + area.height / 2.0];
    scene.text(Text::new("accuracy", beside(upper), 13.0).bold().anchor(Anchor::Middle).turned());
    scene.text(Text::new("samples", beside(lower), 13.0).bold().anchor(Anchor::Middle).turned());
    let under = [lower.x + lower.width / 2.0, lower.bottom() + 40.0];
    scene.text(Text::new("confidence", under, 13.0).bold().anchor(Anchor::Middle));
    scene
}

fn percent(value: f64) -> String {
    format!("{:.0} %", 100.0 * value)
}

fn legend(scene: &mut Scene, [x, y]: [f32; 2]) {
    scene.rectangle(Area { x: x - 8.0, y: y - 14.0, width: 220.0, height: 72.0 }, WHITE);
    let entries = [("accuracy", BLUE.mix(WHITE, 0.25)), ("gap to confidence", ORANGE.mix(WHITE, 0.6))];
    for (index, (name, colour)) in entries.into_iter().enumerate() {
        let y = y + 22.0 * index as f32;
        scene.rectangle(Area { x, y: y - 6.0, width: 18.0, height: 12.0 }, colour);
        scene.text(Text::new(name, [x + 26.0, y], 12.0));
    }
    let y = y + 44.0;
    scene.dashes(vec![[x, y], [x + 18.0, y]], 1.5, INK);
    scene.text(Text::new("perfectly calibrated", [x + 26.0, y], 12.0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::metrics::Evaluation;

    #[test]
    fn diagrams_are_readable() {
        for samples in [0u32, 1, 7, 400] {
            let mut evaluation = Evaluation::new(3, 0);
            for sample in 0..samples {
                let logits = [sample as f32 * 0.01, 0.0, -0.5];
                evaluation.add(&logits, &[u32::from(sample % 3 == 0)], &[0]).unwrap();
            }
            reliability("Can its confidence be believed?", evaluation.calibration()).assert_readable();
        }
    }
}
