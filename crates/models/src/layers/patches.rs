//! Image sizes that whole patches cover.

/// Why patches do not cover an image of this size, and the nearest sizes that they cover. `grid` gives the pixels along one
/// side of what is cut, from those of the image. Some published models leave a margin out; that is their choice of size, not
/// one to make by accident.
pub fn refuses_patches(
    size: [usize; 2],
    patch: [usize; 2],
    what: &str,
    grid: impl Fn(usize) -> usize,
) -> Option<String> {
    let suits = |axis: usize, extent: usize| {
        let pixels = grid(extent);
        pixels > 0 && patch[axis] > 0 && pixels.is_multiple_of(patch[axis])
    };
    if suits(0, size[0]) && suits(1, size[1]) {
        return None;
    }
    let below = [0, 1].map(|axis| (1..=size[axis]).rev().find(|extent| suits(axis, *extent)));
    let above =
        [0, 1].map(|axis| (size[axis]..=size[axis].saturating_add(1 << 12)).find(|extent| suits(axis, *extent)));
    let sizes = [below, above].map(|[height, width]| Some(format!("{}x{}", height?, width?)));
    let sizes: Vec<String> = sizes.into_iter().flatten().collect();
    let ([height, width], [rows, columns]) = (size, patch);
    Some(format!(
        "an image of {height}x{width} pixels cannot be cut into {what} of {rows}x{columns}; sizes that can are {}",
        sizes.join(" and ")
    ))
}
