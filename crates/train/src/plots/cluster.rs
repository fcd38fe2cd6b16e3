//! Training speed against the number of GPUs, both on logarithmic axes. Measured points are filled, computed ones hollow.

use vit_plot::axis::{Axis, labels};
use vit_plot::palette::{BLUE, Colour, FRAME, GREEN, GRID, INK, MUTED, ORANGE, PURPLE, RED, WHITE};
use vit_plot::{Anchor, Area, Scene, Text};

const WIDTH: f32 = 1000.0;
const HEIGHT: f32 = 620.0;
const COLOURS: [Colour; 5] = [BLUE, ORANGE, GREEN, PURPLE, RED];

/// One model's speeds.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterLine {
    /// The model.
    pub name: String,
    /// Numbers of GPUs and predicted images per second, ascending.
    pub computed: Vec<(usize, f64)>,
    /// Numbers of GPUs and measured images per second.
    pub measured: Vec<(usize, f64)>,
}

/// Images per second of models against the number of GPUs. Dashes continue the speed of one GPU.
pub fn cluster(title: &str, lines: &[ClusterLine]) -> Scene {
    let mut scene = Scene::new(WIDTH, HEIGHT);
    scene.text(Text::new(title, [24.0, 28.0], 18.0).bold().within(WIDTH - 48.0));
    let points = || lines.iter().flat_map(|line| line.computed.iter().chain(&line.measured));
    let (Some(most), Some(slowest), Some(fastest)) = (
        points().map(|(gpus, _)| *gpus).max(),
        points().map(|(_, speed)| *speed).min_by(f64::total_cmp),
        points().map(|(_, speed)| *speed).max_by(f64::total_cmp),
    ) else {
        return scene;
    };
    let plot = Area { x: 84.0, y: 96.0, width: 720.0, height: HEIGHT - 96.0 - 96.0 };
    let x = Axis { from: -0.3, to: (most as f64).log2() + 0.3, pixels: [plot.x, plot.right()] };
    let y = Axis { from: slowest.log10().floor(), to: fastest.log10().ceil(), pixels: [plot.bottom(), plot.y] };
    draw_axes(&mut scene, plot, x, y, most);
    for (line, colour) in lines.iter().zip(COLOURS) {
        let place = |(gpus, speed): &(usize, f64)| [x.place((*gpus as f64).log2()), y.place(speed.log10())];
        if let (Some((first, speed)), Some((last, _))) = (line.computed.first(), line.computed.last()) {
            let ideal = (*last, speed * *last as f64 / *first as f64);
            scene.dashes(vec![place(&(*first, *speed)), place(&ideal)], 1.0, colour.mix(WHITE, 0.4));
        }
        scene.line(line.computed.iter().map(place).collect(), 2.0, colour);
        for point in &line.computed {
            scene.dot(place(point), 4.5, colour);
            scene.dot(place(point), 2.8, WHITE);
        }
        for point in &line.measured {
            scene.dot(place(point), 7.5, WHITE);
            scene.dot(place(point), 6.0, colour);
        }
        if let Some(last) = line.computed.last() {
            let [_, at] = place(last);
            scene.text(Text::new(&line.name, [plot.right() + 16.0, at], 14.0).colour(colour).bold());
        }
    }
    draw_key(&mut scene, plot);
    scene
}

fn draw_axes(scene: &mut Scene, plot: Area, x: Axis, y: Axis, most: usize) {
    scene.text(Text::new("images per second", [plot.x, plot.y - 22.0], 14.0).bold());
    for power in y.from as i32..=y.to as i32 {
        let at = y.place(f64::from(power));
        let value = 10f64.powi(power);
        let label = if value < 1e4 { format!("{value}") } else { labels(&[value])[0].clone() };
        scene.line(vec![[plot.x, at], [plot.right(), at]], 1.0, GRID);
        scene.text(Text::new(label, [plot.x - 10.0, at], 12.0).colour(MUTED).anchor(Anchor::Right));
    }
    scene.line(vec![[plot.x, plot.bottom()], [plot.right(), plot.bottom()]], 1.0, FRAME);
    for power in 0..=most.ilog2() {
        let at = x.place(f64::from(power));
        scene.line(vec![[at, plot.bottom()], [at, plot.bottom() + 4.0]], 1.0, FRAME);
        let label = Text::new(format!("{}", 1u64 << power), [at, plot.bottom() + 15.0], 12.0);
        scene.text(label.colour(MUTED).anchor(Anchor::Middle));
    }
    let below = [plot.x + plot.width / 2.0, plot.bottom() + 38.0];
    scene.text(Text::new("GPUs", below, 12.0).colour(MUTED).anchor(Anchor::Middle));
}

fn draw_key(scene: &mut Scene, plot: Area) {
    let at = plot.bottom() + 66.0;
    scene.dot([plot.x + 6.0, at], 6.0, INK);
    scene.text(Text::new("measured", [plot.x + 20.0, at], 12.0));
    scene.dot([plot.x + 126.0, at], 4.5, INK);
    scene.dot([plot.x + 126.0, at], 2.8, WHITE);
    scene.text(Text::new("computed", [plot.x + 140.0, at], 12.0));
    scene.dashes(vec![[plot.x + 240.0, at], [plot.x + 276.0, at]], 1.0, INK);
    scene.text(Text::new("the speed of one GPU times their number", [plot.x + 286.0, at], 12.0));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figure_is_readable() {
        let line = |name: &str, speed: f64| ClusterLine {
            name: name.into(),
            computed: (0..13).map(|power| (1 << power, speed * f64::from(1 << power) * 0.9f64.powi(power))).collect(),
            measured: vec![(1, speed * 1.02)],
        };
        let scene = cluster("Training", &[line("Ti/16", 34000.0), line("B/16", 4800.0), line("H/14", 560.0)]);
        scene.assert_readable();
        assert!(scene.texts().contains(&"4096"));
        assert_eq!(cluster("none", &[]).texts(), ["none"]);
    }
}
