//! The confusion matrix as a figure: rows are true classes, cells are shaded by their share of the row.

use vit_data::Image;

use crate::evaluate::metrics::Confusion;
use vit_plot::axis::ticks;
use vit_plot::palette::{Colour, FRAME, INK, MUTED, WHITE};
use vit_plot::{Anchor, Area, Scene, Text};

/// Up to this number of classes, every class has a cell with a name.
const NAMED: usize = 30;
/// Up to this number of classes, every class has a row of pixels; of more, neighbours share one.
const SEPARATE: usize = 1000;
const NAME_SIZE: f32 = 12.0;
const LONGEST_NAME: f32 = 150.0;

/// The figure of a confusion matrix. Classes without a name are numbered.
pub fn confusion_matrix(title: &str, confusion: &Confusion, names: &[String]) -> Scene {
    let classes = confusion.classes();
    let support: Vec<u64> = confusion.per_class().iter().map(|class| class.support).collect();
    let share = |label: usize, count: u64| count as f32 / support[label].max(1) as f32;
    if classes <= NAMED { named(title, confusion, names, share) } else { unnamed(title, confusion, share) }
}

fn named(title: &str, confusion: &Confusion, names: &[String], share: impl Fn(usize, u64) -> f32) -> Scene {
    let classes = confusion.classes();
    let cell = (640.0 / classes.max(1) as f32).clamp(26.0, 72.0);
    let side = cell * classes as f32;
    let name = |class: usize| names.get(class).cloned().unwrap_or_else(|| class.to_string());
    let label = |class: usize| Text::new(name(class), [0.0, 0.0], NAME_SIZE).within(LONGEST_NAME);
    let longest = (0..classes).map(|class| label(class).width()).fold(0.0, f32::max);
    // Names under the columns are horizontal if all of them fit.
    let flat = longest < cell - 8.0;
    let below = if flat { NAME_SIZE } else { longest };

    let matrix = Area { x: 56.0 + longest, y: 60.0, width: side.max(cell), height: side.max(cell) };
    let (width, bar) = frame_size(title, matrix);
    let mut scene = Scene::new(width, matrix.bottom() + below + 62.0);
    title_and_bar(&mut scene, title, matrix, bar, false);
    for (true_class, predicted, count) in confusion.cells() {
        let area = Area {
            x: matrix.x + predicted as f32 * cell,
            y: matrix.y + true_class as f32 * cell,
            width: cell,
            height: cell,
        };
        let part = share(true_class, count);
        scene.rectangle(area, Colour::intensity(part));
        let at = [area.x + cell / 2.0, area.y + cell / 2.0];
        let text = Text::new(count.to_string(), at, (cell * 0.3).clamp(9.0, 14.0)).anchor(Anchor::Middle);
        // Omitted if it does not fit into the cell; the shade shows it, too.
        if text.width() <= cell - 4.0 {
            scene.text(text.colour(if part > 0.45 { WHITE } else { INK }));
        }
    }
    for class in 0..classes {
        let middle = (class as f32 + 0.5) * cell;
        let across = Text { at: [matrix.x - 8.0, matrix.y + middle], ..label(class) };
        scene.text(across.anchor(Anchor::Right));
        let column = [matrix.x + middle, matrix.bottom() + 8.0 + if flat { NAME_SIZE / 2.0 } else { 0.0 }];
        let text = Text { at: column, ..label(class) };
        scene.text(if flat { text.anchor(Anchor::Middle) } else { text.anchor(Anchor::Right).turned() });
    }
    scene.frame(matrix, FRAME);
    axis_titles(&mut scene, matrix, below + 8.0, longest + 8.0);
    scene
}

fn unnamed(title: &str, confusion: &Confusion, share: impl Fn(usize, u64) -> f32) -> Scene {
    let classes = confusion.classes();
    let together = classes.div_ceil(SEPARATE);
    let rows = classes.div_ceil(together);
    let scale = (700 / rows).max(1);
    let side = (rows * scale) as f32;
    let matrix = Area { x: 84.0, y: 60.0, width: side, height: side };
    let (width, bar) = frame_size(title, matrix);
    let mut scene = Scene::new(width, matrix.bottom() + 74.0);
    title_and_bar(&mut scene, title, matrix, bar, true);

    // The maximum of the cells that share a pixel, so that a single bad cell stays visible.
    let mut shares = vec![0f32; rows * rows];
    for (label, predicted, count) in confusion.cells() {
        let pixel = &mut shares[label / together * rows + predicted / together];
        *pixel = pixel.max(share(label, count));
    }
    let pixels = shares.iter().flat_map(|share| {
        let Colour(red, green, blue) = Colour::intensity(shade_of_many(*share));
        [red, green, blue]
    });
    if let Ok(image) = Image::from_rgb(rows, rows, pixels.collect()) {
        scene.image(matrix, image);
    }
    scene.frame(matrix, FRAME);
    for tick in ticks(0.0, (classes - 1) as f64, 8) {
        let place = (tick as usize / together * scale) as f32 + scale as f32 / 2.0;
        let (row, column) = (matrix.y + place, matrix.x + place);
        let text = |at| Text::new(tick.to_string(), at, NAME_SIZE).colour(MUTED);
        scene.line(vec![[matrix.x - 5.0, row], [matrix.x, row]], 1.0, FRAME);
        scene.line(vec![[column, matrix.bottom()], [column, matrix.bottom() + 5.0]], 1.0, FRAME);
        scene.text(text([matrix.x - 9.0, row]).anchor(Anchor::Right));
        scene.text(text([column, matrix.bottom() + 15.0]).anchor(Anchor::Middle));
    }
    axis_titles(&mut scene, matrix, 20.0, 44.0);
    scene
}

/// The width of the scene and the area of the colour bar.
fn frame_size(title: &str, matrix: Area) -> (f32, Area) {
    let bar = Area { x: matrix.right() + 28.0, y: matrix.y, width: 14.0, height: matrix.height.min(260.0) };
    let title = Text::new(title, [0.0, 0.0], 18.0).bold();
    ((bar.right() + 60.0).max(24.0 + title.width().min(700.0) + 24.0), bar)
}

fn title_and_bar(scene: &mut Scene, title: &str, matrix: Area, bar: Area, many: bool) {
    scene.text(Text::new(title, [24.0, 28.0], 18.0).bold().within(scene.size().0 - 48.0));
    for line in 0..bar.height as usize {
        let share = 1.0 - line as f32 / bar.height;
        let area = Area { y: bar.y + line as f32, height: 1.0, ..bar };
        scene.rectangle(area, Colour::intensity(if many { shade_of_many(share) } else { share }));
    }
    scene.frame(bar, FRAME);
    let marks: &[f32] = if matrix.height > 150.0 { &[0.0, 0.25, 0.5, 0.75, 1.0] } else { &[0.0, 1.0] };
    for &mark in marks {
        let at = [bar.right() + 7.0, bar.bottom() - mark * bar.height];
        let above = if many && mark == 0.0 { "> " } else { "" };
        scene.text(Text::new(format!("{above}{:.0} %", 100.0 * mark), at, 11.0).colour(MUTED));
    }
}

/// The shade of a cell. If a cell is one pixel, shades follow the square root and start well above white, so that rare
/// confusions are visible.
fn shade_of_many(share: f32) -> f32 {
    if share > 0.0 { 0.25 + 0.75 * share.sqrt() } else { 0.0 }
}

fn axis_titles(scene: &mut Scene, matrix: Area, below: f32, left: f32) {
    let under = [matrix.x + matrix.width / 2.0, matrix.bottom() + below + 20.0];
    scene.text(Text::new("predicted", under, 13.0).bold().anchor(Anchor::Middle));
    let beside = [matrix.x - left - 18.0, matrix.y + matrix.height / 2.0];
    scene.text(Text::new("true", beside, 13.0).bold().anchor(Anchor::Middle).turned());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evaluate::metrics::Evaluation;

    /// A matrix whose classes are mostly taken for themselves, each sample `times` over.
    fn confusion(classes: usize, samples: usize) -> Confusion {
        let mut evaluation = Evaluation::new(classes, 0);
        for sample in 0..samples {
            let label = sample % classes;
            let predicted = if sample % 3 == 0 { (label * 7 + sample) % classes } else { label };
            let mut logits = vec![0.0; classes];
            logits[predicted] = 5.0;
            evaluation.add(&logits, &[label as u32], &[sample]).unwrap();
        }
        evaluation.confusion().clone()
    }

    #[test]
    fn matrices_of_all_sizes_are_readable() {
        let long: Vec<String> = (0..30).map(|i| format!("a class with a rather long name, number {i}")).collect();
        let short: Vec<String> = (0..30).map(|i| format!("c{i}")).collect();
        for classes in [1, 2, 3, 10, 17, 30] {
            for names in [&long, &short, &vec![]] {
                let scene = confusion_matrix("Which class is taken for which", &confusion(classes, 500), names);
                scene.assert_readable();
            }
        }
        for classes in [31, 100, 365, 1000, 1001, 2500] {
            confusion_matrix("Which class is taken for which", &confusion(classes, 300), &[]).assert_readable();
        }
        confusion_matrix("", &Confusion::new(0), &[]).assert_readable();
    }
}
