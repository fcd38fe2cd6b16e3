//! Convolution of channels-last images as a matrix product whose left-hand side is never written down: a row of it is a
//! pixel's neighbourhood, and along each row of a filter that neighbourhood lies in one piece. Sums are taken in the
//! order that the filters' size alone decides.

mod depthwise;
mod depthwise_grad;
mod implicit_gemm;

pub(crate) use depthwise::depthwise;
pub(crate) use depthwise_grad::{depthwise_grad_input, depthwise_grad_weight, depthwise_grad_weight_workspace};

use vit_graph::ops::ResidualAt;

use crate::activation::Activation;
use crate::gemm::{check_workspace, packed_len};
use crate::isa::Isa;
use crate::pool::{DisjointMut, Pool};
use crate::simd::TileShape;
use implicit_gemm::{Block, Segment};

/// Everything about one convolution that its shapes tell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Geometry {
    pub batch: usize,
    /// Height, width and channels of the image.
    pub image: [usize; 3],
    /// Height and width of the result.
    pub output: [usize; 2],
    pub filters: usize,
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    pub padding: [[usize; 2]; 2],
    pub dilation: [usize; 2],
}

impl Geometry {
    /// Terms of each sum.
    pub fn terms(&self) -> usize {
        self.kernel[0] * self.kernel[1] * self.image[2]
    }

    /// Pixels of the result, over all images.
    fn pixels(&self) -> usize {
        self.batch * self.output[0] * self.output[1]
    }

    fn is_padded(&self) -> bool {
        self.padding != [[0; 2]; 2]
    }

    /// Height and width with the border.
    fn padded(&self) -> [usize; 2] {
        [0, 1].map(|axis| self.image[axis] + self.padding[axis][0] + self.padding[axis][1])
    }

    /// The pieces in which a neighbourhood lies, relative to its first pixel.
    fn pieces(&self) -> Vec<Segment> {
        let ([_, width], channels, [kh, kw]) = (self.padded(), self.image[2], self.kernel);
        let row = |ky: usize| ky * self.dilation[0] * width * channels;
        if self.dilation[1] == 1 {
            return (0..kh).map(|ky| Segment { offset: row(ky), len: kw * channels }).collect();
        }
        let tap =
            |(ky, kx): (usize, usize)| Segment { offset: row(ky) + kx * self.dilation[1] * channels, len: channels };
        (0..kh).flat_map(|ky| (0..kw).map(move |kx| (ky, kx))).map(tap).collect()
    }
}

/// What happens to the sums on their way out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epilogue<'a> {
    pub bias: Option<&'a [f32]>,
    pub activation: Option<Activation>,
    pub residual: Option<(ResidualAt, &'a [f32])>,
}

/// A convolution made ready: its neighbourhood cut into parts whose filters stay in the cache.
pub(crate) struct Plan {
    geometry: Geometry,
    /// Each part: its pieces, and the number of its first term.
    parts: Vec<(Vec<Segment>, usize)>,
}

/// The most terms that are summed in registers before they go to the result.
const PART_TERMS: usize = 768;
/// Pixels of a task.
const BLOCK_ROWS: usize = 96;
/// Tasks per thread that even out what other processes take away.
const TASKS_PER_THREAD: usize = 6;

impl Plan {
    pub fn new(geometry: Geometry) -> Self {
        let terms = geometry.terms();
        let count = terms.div_ceil(PART_TERMS).max(1);
        let size = terms.div_ceil(count).next_multiple_of(8);
        let mut parts = vec![(Vec::new(), 0)];
        let (mut done, mut filled) = (0, 0);
        for mut piece in geometry.pieces() {
            while piece.len > 0 {
                if filled == size {
                    parts.push((Vec::new(), done));
                    filled = 0;
                }
                let len = piece.len.min(size - filled);
                if let Some((pieces, _)) = parts.last_mut() {
                    pieces.push(Segment { offset: piece.offset, len });
                }
                piece = Segment { offset: piece.offset + len, len: piece.len - len };
                done += len;
                filled += len;
            }
        }
        Plan { geometry, parts }
    }

    /// How many numbers of workspace [`Plan::run`] needs: the images with their border.
    pub fn workspace(&self) -> usize {
        let g = &self.geometry;
        let [height, width] = g.padded();
        if g.is_padded() { g.batch * height * width * g.image[2] } else { 0 }
    }

    /// Convolves on the threads of the pool. `weight` is packed as [`crate::gemm`] packs a linear layer's.
    ///
    /// # Panics
    /// If a slice does not fit the geometry.
    #[allow(clippy::too_many_arguments)]
    pub fn run(
        &self,
        pool: &Pool,
        isa: Isa,
        x: &[f32],
        weight: &[f32],
        epilogue: Epilogue<'_>,
        y: &mut [f32],
        workspace: &mut [f32],
    ) {
        let g = &self.geometry;
        let (m, n, k) = (g.pixels(), g.filters, g.terms());
        assert_eq!(x.len(), g.batch * g.image.iter().product::<usize>(), "conv: image of the wrong length");
        assert_eq!(y.len(), m * n, "conv: result of the wrong length");
        assert_eq!(weight.len(), packed_len(isa, k, n), "conv: packed filters for k={k} n={n}");
        assert!(epilogue.bias.is_none_or(|b| b.len() == n), "conv: bias of the wrong length");
        assert!(epilogue.residual.is_none_or(|(_, r)| r.len() == y.len()), "conv: residual of the wrong length");
        check_workspace("conv", workspace.len(), self.workspace());
        if m == 0 || n == 0 {
            return;
        }
        let image = if g.is_padded() {
            pad(pool, g, x, workspace);
            &*workspace
        } else {
            x
        };
        let (tile_rows, tile_columns) = isa.dispatch(TileShape);
        let even = |total: usize, blocks: usize, unit: usize| total.div_ceil(blocks).next_multiple_of(unit);
        let row_blocks = m.div_ceil(BLOCK_ROWS);
        let rows = even(m, row_blocks, tile_rows);
        let wanted = if pool.threads() > 1 { pool.threads() * TASKS_PER_THREAD } else { 1 };
        let columns = even(n, wanted.div_ceil(row_blocks).clamp(1, n.div_ceil(tile_columns)), tile_columns);
        let (row_blocks, column_blocks) = (m.div_ceil(rows), n.div_ceil(columns));
        let c = DisjointMut::new(y);
        pool.run(row_blocks * column_blocks, &|task| {
            let (row, column) = (task / column_blocks * rows, task % column_blocks * columns);
            let mut starts = [0; BLOCK_ROWS + crate::simd::MAX_TILE_ROWS];
            let rows = rows.min(m - row);
            for (i, start) in starts[..rows].iter_mut().enumerate() {
                *start = self.start(row + i);
            }
            isa.dispatch(Block {
                image: image.as_ptr(),
                starts: &starts[..rows],
                parts: &self.parts,
                // The panels of a column block follow one another.
                weight: weight[column * k..].as_ptr(),
                terms: k,
                columns: columns.min(n - column),
                // Tasks write blocks that do not overlap, each inside the result.
                c: c.at(row * n + column),
                ldc: n,
                bias: epilogue.bias.map(|b| b[column..].as_ptr()),
                activation: epilogue.activation,
                residual: epilogue.residual.map(|(at, r)| (at, r[row * n + column..].as_ptr())),
            });
        });
    }

    /// Where the neighbourhood of a pixel of the result begins.
    fn start(&self, pixel: usize) -> usize {
        let g = &self.geometry;
        let ([oh, ow], [height, width]) = (g.output, g.padded());
        let (b, y, x) = (pixel / (oh * ow), pixel / ow % oh, pixel % ow);
        ((b * height + y * g.stride[0]) * width + x * g.stride[1]) * g.image[2]
    }
}

/// Copies images into a border of zeros.
fn pad(pool: &Pool, g: &Geometry, x: &[f32], padded: &mut [f32]) {
    let ([_, width], [h, w, c], [[top, _], [left, _]]) = (g.padded(), g.image, g.padding);
    let height = g.padded()[0];
    pool.run_chunks(padded, width * c, &|line, out| {
        let (b, y) = (line / height, line % height);
        match y.checked_sub(top).filter(|&y| y < h && b < g.batch) {
            Some(y) => {
                out[..left * c].fill(0.0);
                out[left * c..][..w * c].copy_from_slice(&x[(b * h + y) * w * c..][..w * c]);
                out[(left + w) * c..].fill(0.0);
            }
            None => out.fill(0.0),
        }
    });
}
