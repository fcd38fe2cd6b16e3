//! Fractals: the attractor of an iterated function system, drawn by the chaos game. A class is a set of affine maps, chosen
//! by how much of the image the attractor fills; instances vary one of the maps' six parameters, the orientation, whether
//! points or patches are drawn, and the colours, one for each map.

use super::canvas::{Canvas, Hues};
use super::{FastRandom, FormulaKind};
use crate::augment::SampleRandom;
use crate::image::Image;

/// The share of the image that a class must fill, with the points and the size of [`FractalClass::fills`]: 0.38 points per
/// pixel, as in FractalDB.
const FILLING_RATE: f64 = 0.2;

/// Entries of the table by which maps are chosen.
const CHOICES: usize = 1024;

/// Orbits that are iterated in turns, to hide the latency of an iteration.
const ORBITS: usize = 4;

/// Iterations until an orbit is close to the attractor.
const SETTLING: usize = 20;

/// An orbit that leaves this range has no attractor.
const DIVERGED: f64 = 1e4;

/// Values of an instance that are tried until its orbits stay in range.
const ATTEMPTS: u32 = 8;

/// `x' = a x + b y + e`, `y' = c x + d y + f`.
#[derive(Clone, Copy, Debug)]
struct AffineMap {
    /// `a`, `b`, `c`, `d`, `e`, `f`.
    parameters: [f64; 6],
}

impl AffineMap {
    #[inline]
    fn apply(&self, [x, y]: [f64; 2]) -> [f64; 2] {
        let [a, b, c, d, e, f] = self.parameters;
        [a * x + b * y + e, c * x + d * y + f]
    }

    fn determinant(&self) -> f64 {
        let [a, b, c, d, ..] = self.parameters;
        a * d - b * c
    }

    /// The same map of scaled and shifted coordinates.
    fn seen_through(&self, view: &View) -> Self {
        let [a, b, c, d, e, f] = self.parameters;
        let ([sx, sy], [tx, ty]) = (view.scale, view.shift);
        let (b, c) = (b * sx / sy, c * sy / sx);
        Self { parameters: [a, b, c, d, sx * e + tx - a * tx - b * ty, sy * f + ty - c * tx - d * ty] }
    }
}

/// From the plane to the canvas: `scale * x + shift`.
struct View {
    scale: [f64; 2],
    shift: [f64; 2],
}

/// The maps of a class, and how they are chosen.
pub(super) struct FractalClass {
    maps: Vec<AffineMap>,
    /// Every map as often as its probability, which is proportional to its determinant.
    choices: Box<[u8; CHOICES]>,
}

impl FractalClass {
    /// The first class of a random sequence that fills the image.
    pub fn search(class: u32) -> Self {
        let candidates = (0..).map(|attempt| Self::random(&mut FormulaKind::Fractals.random(class, None, attempt)));
        // The sequence has no end.
        candidates.into_iter().find(Self::fills).unwrap_or_else(|| unreachable!())
    }

    fn random(random: &mut SampleRandom) -> Self {
        let count = 2 + random.below(7);
        let map = |_| AffineMap { parameters: std::array::from_fn(|_| random.range(-1.0, 1.0)) };
        let maps: Vec<AffineMap> = (0..count).map(map).collect();
        let all: f64 = maps.iter().map(|map| libm::fabs(map.determinant())).sum();
        let mut choices = Box::new([0; CHOICES]);
        let (mut sum, mut start) = (0.0, 0);
        for (index, map) in maps.iter().enumerate() {
            sum += libm::fabs(map.determinant());
            let end = if index + 1 == count { CHOICES } else { (sum / all * CHOICES as f64) as usize };
            choices[start..end.max(start)].fill(index as u8);
            start = end.max(start);
        }
        Self { maps, choices }
    }

    /// Whether a sparse drawing of the class fills enough of the image.
    fn fills(&self) -> bool {
        const SIDE: usize = 256;
        const POINTS: usize = 25_000;
        let mut random = FastRandom(1);
        let Some((view, mut orbit)) = self.view(&self.maps, SIDE as f64, &mut random) else { return false };
        let mut canvas = Canvas::new(SIDE);
        let maps: Vec<AffineMap> = self.maps.iter().map(|map| map.seen_through(&view)).collect();
        self.iterate(&maps, &mut orbit, POINTS / ORBITS, &mut random, |[x, y], _| {
            if let Some(cell) = canvas.cell(x, y) {
                canvas.set(cell, 1);
            }
        });
        canvas.filled() as f64 >= FILLING_RATE * (SIDE * SIDE) as f64
    }

    /// Draws an instance.
    pub fn draw(&self, class: u32, instance: u32, side: usize) -> Image {
        let mut canvas = Canvas::new(side);
        let extent = canvas.extent as f64;
        for attempt in 0..=ATTEMPTS {
            let mut random = FormulaKind::Fractals.random(class, Some(instance), attempt);
            // One parameter of all maps, or none; the last attempt is the class itself, which is in range.
            let varied = random.below(7);
            let weight = if attempt < ATTEMPTS { random.range(0.8, 1.2) } else { 1.0 };
            let mut maps = self.maps.clone();
            for map in &mut maps {
                if let Some(parameter) = map.parameters.get_mut(varied) {
                    *parameter *= weight;
                }
            }
            let mut fast = FastRandom::new(&mut random);
            let Some((view, mut orbit)) = self.view(&maps, extent, &mut fast) else { continue };
            let maps: Vec<AffineMap> = maps.iter().map(|map| map.seen_through(&view)).collect();
            let patches = random.chance(0.5);
            let mask = random.below(511) + 1;
            // Patches of 3 x 3 pixels cover more than points.
            let points = canvas.extent * canvas.extent * if patches { 2 } else { 4 } / 4;
            let rounds = (points / ORBITS).clamp(64, 1 << 20);
            if patches {
                let offsets = canvas.patch();
                let offsets: Vec<isize> = (0..9).filter(|bit| mask >> bit & 1 == 1).map(|bit| offsets[bit]).collect();
                self.iterate(&maps, &mut orbit, rounds, &mut fast, |[x, y], map| {
                    if let Some(cell) = canvas.cell(x, y) {
                        for offset in &offsets {
                            canvas.set(cell.wrapping_add_signed(*offset), map + 1);
                        }
                    }
                });
            } else {
                self.iterate(&maps, &mut orbit, rounds, &mut fast, |[x, y], map| {
                    if let Some(cell) = canvas.cell(x, y) {
                        canvas.set(cell, map + 1);
                    }
                });
            }
            let hues = Hues::random(&mut random);
            let mut palette = [[0; 3]; 256];
            palette[1..=maps.len()].fill_with(|| hues.colour(&mut random));
            return canvas.image(&palette, random.chance(0.5), random.chance(0.5));
        }
        // Unreachable in practice: a class that fills the image is in range.
        canvas.image(&[[0; 3]; 256], false, false)
    }

    /// How the attractor is scaled to a canvas, judged by the beginning of its orbits, and where these are on the canvas; `None`
    /// if they diverge or have no extent.
    fn view(&self, maps: &[AffineMap], extent: f64, random: &mut FastRandom) -> Option<(View, [[f64; 2]; ORBITS])> {
        const ROUNDS: usize = 400;
        let mut orbit = [[0.0; 2]; ORBITS];
        self.iterate(maps, &mut orbit, SETTLING, random, |_, _| ());
        let (mut low, mut high) = ([f64::INFINITY; 2], [f64::NEG_INFINITY; 2]);
        self.iterate(maps, &mut orbit, ROUNDS, random, |point, _| {
            for axis in 0..2 {
                low[axis] = if point[axis] < low[axis] { point[axis] } else { low[axis] };
                high[axis] = if point[axis] > high[axis] { point[axis] } else { high[axis] };
            }
        });
        let spans = [high[0] - low[0], high[1] - low[1]];
        let in_range = |axis: usize| low[axis] > -DIVERGED && high[axis] < DIVERGED && spans[axis] > 1e-3;
        if !(in_range(0) && in_range(1)) {
            return None;
        }
        // FractalDB leaves 6 of 512 pixels free; the rest of the orbits may go a little further.
        let margin = extent * (12.0 / 512.0);
        let scale = spans.map(|span| (extent - 2.0 * margin) / span);
        let shift = [margin - scale[0] * low[0], margin - scale[1] * low[1]];
        let seen = orbit.map(|[x, y]| [scale[0] * x + shift[0], scale[1] * y + shift[1]]);
        Some((View { scale, shift }, seen))
    }

    /// Continues the orbits and passes on every point with the map that led to it.
    #[inline]
    fn iterate(
        &self,
        maps: &[AffineMap],
        orbit: &mut [[f64; 2]; ORBITS],
        rounds: usize,
        random: &mut FastRandom,
        mut point: impl FnMut([f64; 2], u8),
    ) {
        for _ in 0..rounds {
            // Two words hold the choices of all orbits.
            let words = [random.word(), random.word()];
            for (index, at) in orbit.iter_mut().enumerate() {
                let choice = (words[index / 2] >> (16 * (index % 2))) as usize % CHOICES;
                let map = self.choices[choice];
                *at = maps[map as usize].apply(*at);
                point(*at, map);
            }
        }
    }
}
