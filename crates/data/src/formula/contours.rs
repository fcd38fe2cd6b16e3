//! Radial contours: polygons around one centre, each a little larger than the one before and distorted by Perlin noise. A
//! class is their number, the number of vertices, the strength of the noise and how much they grow; instances vary the
//! centre, the first radius, the aspect ratio, the noise and the colours. Lengths are those of RCDB's 512 pixels.

use super::canvas::{Canvas, Hues};
use super::{FastRandom, FormulaKind};
use crate::image::Image;
use std::sync::LazyLock;

/// The size that lengths refer to.
const SIZE: f64 = 512.0;

/// Positions at which noise is known.
const POSITIONS: usize = 4096;

/// The parameters of a class.
struct ContourClass {
    vertices: usize,
    polygons: usize,
    /// The strength of the noise, in pixels.
    noise: f64,
    /// Pixels between polygons beside the noise.
    distance: f64,
}

impl ContourClass {
    fn new(class: u32) -> Self {
        let mut random = FormulaKind::Contours.random(class, None, 0);
        // An exponential distribution with a mean of 100, cut to 3 to 200.
        let mut vertices = || (-100.0 * libm::log(1.0 - random.uniform())) as usize;
        let vertices = std::iter::repeat_with(&mut vertices).find(|count| (3..=200).contains(count)).unwrap_or(3);
        let polygons = 1 + random.below(200);
        Self { vertices, polygons, noise: random.range(0.0, 4.0), distance: random.range(0.0, 0.1) }
    }
}

/// Draws an instance.
pub(super) fn draw(number: u32, instance: u32, side: usize) -> Image {
    let class = ContourClass::new(number);
    let mut random = FormulaKind::Contours.random(number, Some(instance), 0);
    let mut canvas = Canvas::new(side);
    let scale = canvas.extent as f64 / SIZE;
    let centre = [(); 2].map(|()| scale * (SIZE / 2.0 + random.range(-200.0, 200.0)));
    let radius = random.range(0.0, 100.0);
    let ovals = [(); 2].map(|()| random.range(1.0, 2.0));
    let mut noise = FastRandom::new(&mut random);

    let (growth, perlin) = (class.noise + class.distance, &**PERLIN);

    let angle = std::f64::consts::TAU / class.vertices as f64;
    let directions: Vec<[f64; 2]> = (0..class.vertices)
        .map(|vertex| [libm::cos(angle * vertex as f64), libm::sin(angle * vertex as f64)])
        .collect();
    // How far each vertex is from the centre along both axes.
    let mut reach = vec![ovals.map(|oval| oval * radius); class.vertices];
    let mut points = vec![[0.0; 2]; class.vertices];
    for polygon in 0..class.polygons {
        let vertices = reach.iter_mut().zip(&directions).zip(&mut points);
        for ((reach, direction), point) in vertices {
            let word = noise.word() as usize;
            for (axis, position) in [word, word >> 16].into_iter().enumerate() {
                reach[axis] += growth - 2.0 * class.noise * perlin[position % POSITIONS];
                point[axis] = centre[axis] + scale * direction[axis] * reach[axis];
            }
        }
        let ends = points.iter().skip(1).chain(&points[..1]);
        let mut visible = false;
        for (from, to) in points.iter().zip(ends) {
            visible |= line(&mut canvas, *from, *to, polygon as u8 + 1);
        }
        // Later polygons are further outside.
        if !visible && polygon > 0 {
            break;
        }
    }
    let hues = Hues::random(&mut random);
    let mut palette = [[255; 3]; 256];
    palette[1..=class.polygons].fill_with(|| hues.colour(&mut random));
    canvas.image(&palette, false, false)
}

/// One-dimensional Perlin noise at many random positions, of which polygons draw: between the lines through two random
/// gradients.
static PERLIN: LazyLock<Box<[f64; POSITIONS]>> = LazyLock::new(|| {
    let mut random = FastRandom(1);
    let mut values = Box::new([0.0; POSITIONS]);
    values.fill_with(|| {
        let at = 0.5 + 0.5 * random.signed();
        let (before, after) = (random.signed() * at, random.signed() * (at - 1.0));
        let fade = at * at * at * (at * (at * 6.0 - 15.0) + 10.0);
        before + fade * (after - before)
    });
    values
});

/// Draws a line; returns whether any of it is on the canvas.
fn line(canvas: &mut Canvas, from: [f64; 2], to: [f64; 2], index: u8) -> bool {
    let extent = canvas.extent as f64;
    let beyond = |axis: usize| (from[axis] < 0.0 && to[axis] < 0.0) || (from[axis] >= extent && to[axis] >= extent);
    if beyond(0) || beyond(1) {
        return false;
    }
    let [across, down] = [to[0] - from[0], to[1] - from[1]];
    let (across_by, down_by) = (across.abs(), down.abs());
    let longest = if across_by > down_by { across_by } else { down_by };
    let steps = (longest as i32).min(8 * canvas.extent as i32) + 1;
    let share = 1.0 / f64::from(steps);
    let (dx, dy) = (across * share, down * share);
    let (mut x, mut y, mut visible) = (from[0], from[1], false);
    for _ in 0..steps {
        if let Some(cell) = canvas.cell(x, y) {
            canvas.set(cell, index);
            visible = true;
        }
        x += dx;
        y += dy;
    }
    visible
}
