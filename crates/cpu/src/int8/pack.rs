//! Packed weights: the scale of each output channel, the sum of its bytes (with which the offset of the activations is
//! subtracted from the products), and the bytes in panels of NR columns, padded with zeros.

use super::MAX_TERMS;
use super::path::{Dot, DotKernel, DotPath, PathShape, ShapeOf};
use super::quantise::{weight, weight_scale};
use crate::gemm::check_matrix;
use crate::simd::Simd;
use crate::thread_pool::{DisjointMut, ThreadPool};

/// The length of packed weights in `f32`. The slice should start at a multiple of 64 bytes for full speed.
///
/// # Panics
/// If `k` is above [`MAX_TERMS`].
pub fn packed_len(path: impl Into<DotPath>, k: usize, n: usize) -> usize {
    assert!(k <= MAX_TERMS, "sums of {k} terms: at most {MAX_TERMS} fit in 32 bits");
    let shape = path.into().dispatch(ShapeOf);
    let columns = n.next_multiple_of(shape.columns);
    2 * columns + columns * k.next_multiple_of(shape.group) / 4
}

/// Quantises the weights `[n, k]` of a linear layer and packs them for [`super::gemm`] on the same path.
///
/// # Panics
/// If `weights` is too short, or `dst` is not [`packed_len`] long.
pub fn pack(path: impl Into<DotPath>, weights: &[f32], k: usize, n: usize, dst: &mut [f32]) {
    let path = path.into();
    pack_panels(path, weights, k, n, dst, |panels, pack| (0..panels).for_each(pack));
}

/// [`pack`] on the threads of the pool.
///
/// # Panics
/// As [`pack`].
pub fn pack_parallel(
    pool: &ThreadPool,
    path: impl Into<DotPath>,
    weights: &[f32],
    k: usize,
    n: usize,
    dst: &mut [f32],
) {
    let path = path.into();
    pack_panels(path, weights, k, n, dst, |panels, pack| pool.run(panels, pack));
}

fn pack_panels(
    path: DotPath,
    weights: &[f32],
    k: usize,
    n: usize,
    dst: &mut [f32],
    run: impl FnOnce(usize, &(dyn Fn(usize) + Sync)),
) {
    check_matrix("weights", weights.len(), n, k, k);
    assert_eq!(dst.len(), packed_len(path, k, n), "packed weights for k={k} n={n}");
    let shape = path.dispatch(ShapeOf);
    let width = shape.columns;
    let panels = n.div_ceil(width);
    let (scales, rest) = dst.split_at_mut(panels * width);
    let (sums, bytes) = rest.split_at_mut(panels * width);
    let sums: &mut [i32] = bytemuck::cast_slice_mut(sums);
    let bytes: &mut [i8] = bytemuck::cast_slice_mut(bytes);
    let panel_bytes = k.next_multiple_of(shape.group) * width;
    let (scales, sums, bytes) = (DisjointMut::new(scales), DisjointMut::new(sums), DisjointMut::new(bytes));
    run(panels, &|i| {
        let first = i * width;
        // SAFETY: panels do not overlap.
        let kernel = unsafe {
            PackPanel {
                weights: &weights[first * k..n.min(first + width) * k],
                k,
                scales: scales.slice(first, width),
                sums: sums.slice(first, width),
                bytes: bytes.slice(i * panel_bytes, panel_bytes),
            }
        };
        path.dispatch(kernel);
    });
}

/// The scales, the sums and the bytes of packed weights.
pub(super) fn sections(shape: PathShape, n: usize, packed: &[f32]) -> (&[f32], &[i32], &[i8]) {
    let columns = n.next_multiple_of(shape.columns);
    let (scales, rest) = packed.split_at(columns);
    let (sums, bytes) = rest.split_at(columns);
    (scales, bytemuck::cast_slice(sums), bytemuck::cast_slice(bytes))
}

struct PackPanel<'a> {
    /// `[columns, k]`. The last panel may have fewer than NR columns of weights; the others are padding.
    weights: &'a [f32],
    k: usize,
    /// `[NR]`
    scales: &'a mut [f32],
    /// `[NR]`
    sums: &'a mut [i32],
    /// `[group][NR][GROUP]`
    bytes: &'a mut [i8],
}

impl DotKernel for PackPanel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<D: Dot>(self, _: D) {
        let width = D::TILE_VECTORS * D::Float::LANES;
        let k = self.k;
        self.scales.fill(0.0);
        self.sums.fill(0);
        self.bytes.fill(0);
        for column in 0..width {
            if (column + 1) * k > self.weights.len() {
                break;
            }
            let row = &self.weights[column * k..][..k];
            let (scale, inverse) = weight_scale(row);
            let mut sum = 0;
            for (t, &w) in row.iter().enumerate() {
                let value = weight(w, scale, inverse);
                sum += i32::from(value);
                self.bytes[(t / D::GROUP * width + column) * D::GROUP + t % D::GROUP] = value;
            }
            self.scales[column] = scale;
            self.sums[column] = sum;
        }
    }
}
