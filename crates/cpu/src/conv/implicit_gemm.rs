//! Convolution as implicit GEMM: a matrix product whose left-hand side, the im2col matrix, is never materialised. A row
//! of that matrix is the receptive field of a pixel of the result, which lies in the padded image in a few contiguous
//! segments, one for each row of the filters.

use vit_graph::ops::ResidualAt;

use super::{ConvEpilogue, ConvGeometry};
use crate::gemm::{
    Epilogue, LoopBody, MC, SumsToC, TaskGrid, TileBuffer, check_workspace, for_each_tile, kc, packed_len,
};
use crate::isa::Isa;
use crate::simd::{Kernel, MAX_LANES, MAX_TILE_ROWS, MAX_TILE_VECTORS, Simd};
use crate::thread_pool::{DisjointMut, ThreadPool};

/// Contiguous elements of a receptive field, relative to its first.
#[derive(Clone, Copy, Debug)]
struct Segment {
    offset: usize,
    len: usize,
}

/// A kc block, one iteration of the pc loop: the segments of a receptive field that make up one range of k.
struct SegmentBlock {
    segments: Vec<Segment>,
    /// Where the range starts in k, which is `[kh][kw][channels]`.
    k_start: usize,
}

/// A convolution with the addressing of its receptive fields.
pub(crate) struct ImplicitGemm {
    geometry: ConvGeometry,
    k_blocks: Vec<SegmentBlock>,
}

impl ImplicitGemm {
    /// # Panics
    /// If the last receptive field is not inside the padded image.
    pub fn new(geometry: ConvGeometry) -> Self {
        let ConvGeometry { output, kernel, stride, dilation, .. } = geometry;
        for axis in 0..2 {
            let end = output[axis].saturating_sub(1) * stride[axis] + (kernel[axis] - 1) * dilation[axis] + 1;
            assert!(end <= padded(&geometry)[axis], "conv: receptive fields up to {end} exceed the padded image");
        }
        let kc = kc(geometry.terms());
        let mut k_blocks = vec![SegmentBlock { segments: Vec::new(), k_start: 0 }];
        let (mut terms, mut block_terms) = (0, 0);
        for mut segment in segments(&geometry) {
            while segment.len > 0 {
                if block_terms == kc {
                    k_blocks.push(SegmentBlock { segments: Vec::new(), k_start: terms });
                    block_terms = 0;
                }
                let len = segment.len.min(kc - block_terms);
                let last = k_blocks.len() - 1;
                k_blocks[last].segments.push(Segment { offset: segment.offset, len });
                segment = Segment { offset: segment.offset + len, len: segment.len - len };
                terms += len;
                block_terms += len;
            }
        }
        ImplicitGemm { geometry, k_blocks }
    }

    /// Elements of workspace that [`ImplicitGemm::run`] needs: the padded images.
    pub fn workspace(&self) -> usize {
        let g = &self.geometry;
        let [height, width] = padded(g);
        if is_padded(g) { g.batch * height * width * g.image[2] } else { 0 }
    }

    /// Convolves on the threads of the pool. `weight` is `[filters, kh, kw, channels]`, packed as [`crate::gemm`] packs
    /// the weights of a linear layer of `kh * kw * channels` inputs.
    ///
    /// # Panics
    /// If a slice does not fit the geometry.
    #[allow(clippy::too_many_arguments)]
    pub fn run(
        &self,
        pool: &ThreadPool,
        isa: Isa,
        x: &[f32],
        weight: &[f32],
        epilogue: ConvEpilogue<'_>,
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
        let image = if is_padded(g) {
            pad(pool, g, x, workspace);
            &*workspace
        } else {
            x
        };
        let TaskGrid { rows, columns } = TaskGrid::fewest_tiles(isa, pool.threads(), m, n);
        let c = DisjointMut::new(y);
        pool.run(rows.blocks * columns.blocks, &|task| {
            let (row, rows) = rows.block(task / columns.blocks);
            let (column, columns) = columns.block(task % columns.blocks);
            // `fewest_tiles` makes blocks of at most MC rows, since MC is a multiple of every MR.
            let mut pixels = [0; MC];
            for (i, pixel) in pixels[..rows].iter_mut().enumerate() {
                *pixel = self.receptive_field(row + i);
            }
            let residual = |position: ResidualAt| {
                epilogue.residual.filter(|(at, _)| *at == position).map(|(_, r)| (&r[row * n + column..], n))
            };
            let block = ConvBlock {
                image: image.as_ptr(),
                pixels: &pixels[..rows],
                k_blocks: &self.k_blocks,
                weight: weight[column * k..].as_ptr(),
                k,
                columns,
                c: c.at(row * n + column),
                ldc: n,
                epilogue: Epilogue {
                    bias: epilogue.bias.map(|b| &b[column..]),
                    activation: epilogue.activation,
                    residual: residual(ResidualAt::AfterActivation),
                    ..Epilogue::default()
                },
                residual_before_activation: residual(ResidualAt::BeforeActivation),
            };
            // SAFETY: the checks above cover every block, receptive fields are inside the padded image, and blocks of
            // the result do not overlap.
            unsafe { block.run(isa) };
        });
    }

    /// Where the receptive field of a pixel of the result begins in the padded images.
    fn receptive_field(&self, pixel: usize) -> usize {
        let g = &self.geometry;
        let ([oh, ow], [height, width]) = (g.output, padded(g));
        let (b, y, x) = (pixel / (oh * ow), pixel / ow % oh, pixel % ow);
        ((b * height + y * g.stride[0]) * width + x * g.stride[1]) * g.image[2]
    }
}

fn is_padded(g: &ConvGeometry) -> bool {
    g.padding != [[0; 2]; 2]
}

/// Height and width of the padded image.
fn padded(g: &ConvGeometry) -> [usize; 2] {
    [0, 1].map(|axis| g.image[axis] + g.padding[axis][0] + g.padding[axis][1])
}

/// The segments of a receptive field: rows of the filters, or single taps if these are dilated.
fn segments(g: &ConvGeometry) -> Vec<Segment> {
    let ([_, width], channels, [kh, kw]) = (padded(g), g.image[2], g.kernel);
    let row = |ky: usize| ky * g.dilation[0] * width * channels;
    if g.dilation[1] == 1 {
        return (0..kh).map(|ky| Segment { offset: row(ky), len: kw * channels }).collect();
    }
    let tap = |(ky, kx): (usize, usize)| Segment { offset: row(ky) + kx * g.dilation[1] * channels, len: channels };
    (0..kh).flat_map(|ky| (0..kw).map(move |kx| (ky, kx))).map(tap).collect()
}

/// Copies images into a border of zeros.
fn pad(pool: &ThreadPool, g: &ConvGeometry, x: &[f32], padded_images: &mut [f32]) {
    let ([height, width], [h, w, c], [[top, _], [left, _]]) = (padded(g), g.image, g.padding);
    pool.run_chunks(padded_images, width * c, &|row, out| {
        let (b, y) = (row / height, row % height);
        // The workspace may be longer than the images.
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

/// Some pixels and some channels of the result.
struct ConvBlock<'a> {
    image: *const f32,
    /// The offset of each pixel's receptive field.
    pixels: &'a [usize],
    k_blocks: &'a [SegmentBlock],
    /// Packed panels of the filters.
    weight: *const f32,
    k: usize,
    columns: usize,
    c: *mut f32,
    ldc: usize,
    epilogue: Epilogue<'a>,
    /// The residual if it is added before the activation, and its row stride.
    residual_before_activation: Option<(&'a [f32], usize)>,
}

impl ConvBlock<'_> {
    /// Computes the block.
    ///
    /// # Safety
    /// The receptive fields, the panels of `columns` filters and the operands of the epilogue must be readable, the
    /// block of the result writable, and no other thread may access it.
    unsafe fn run(self, isa: Isa) {
        isa.dispatch(ConvMacrokernel(self));
    }
}

struct ConvMacrokernel<'a>(ConvBlock<'a>);

impl Kernel for ConvMacrokernel<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let block = self.0;
        let (m, n, k_blocks) = (block.pixels.len(), block.columns, block.k_blocks.len());
        let buffer = &mut TileBuffer::zeros();
        let mut body = ConvBody { s, block, buffer, k_block: 0, column: 0, to_c: SumsToC::none() };
        for_each_tile(m, n, k_blocks, S::TILE_VECTORS * S::LANES, &mut body);
    }
}

/// The state of the loops. Its raw pointers are valid as [`ConvBlock::run`] requires.
struct ConvBody<'a, 'b, S> {
    s: S,
    block: ConvBlock<'a>,
    buffer: &'b mut TileBuffer,
    k_block: usize,
    // State of the current panel:
    column: usize,
    to_c: SumsToC<'a>,
}

/// The bias of a convolution without one. Without operands [`SumsToC::store`] adds nothing to a panel of whole vectors,
/// but 0.0 to one that ends in a partial vector; since `-0.0 + 0.0` is `0.0`, the sign of a zero would depend on the
/// vector width.
static NO_BIAS: [f32; MAX_TILE_VECTORS * MAX_LANES] = [0.0; MAX_TILE_VECTORS * MAX_LANES];

impl<S: Simd> LoopBody for ConvBody<'_, '_, S> {
    #[inline(always)]
    fn begin_k_block(&mut self, index: usize) {
        self.k_block = index;
    }

    #[inline(always)]
    fn begin_panel(&mut self, column: usize, columns: usize) {
        let ConvBlock { k_blocks, c, ldc, epilogue, residual_before_activation, .. } = self.block;
        let last = self.k_block + 1 == k_blocks.len();
        let (epilogue, residual_before_activation) = if last {
            let bias = epilogue.bias.map_or(&NO_BIAS[..], |bias| &bias[column..]);
            let residual_before_activation = residual_before_activation.map(|(x, ld)| (&x[column..], ld));
            (Epilogue { bias: Some(bias), ..epilogue.at(0, column) }, residual_before_activation)
        } else {
            (Epilogue { bias: Some(&NO_BIAS), ..Epilogue::default() }, None)
        };
        let (c, add_c, d_activation) = (c.wrapping_add(column), self.k_block > 0, std::ptr::null_mut());
        self.column = column;
        self.to_c = SumsToC { columns, c, ldc, add_c, epilogue, residual_before_activation, d_activation };
    }

    #[inline(always)]
    fn tiles(&mut self, row: usize) -> usize {
        let ConvBlock { image, pixels, k_blocks, weight, k, .. } = self.block;
        let nr = S::TILE_VECTORS * S::LANES;
        let rows = S::TILE_ROWS.min(pixels.len() - row);
        let SegmentBlock { segments, k_start } = &k_blocks[self.k_block];
        // SAFETY: the tile is inside the block, for which the caller of `ConvBlock::run` guarantees the memory. Rows
        // after the last repeat it.
        unsafe {
            let mut fields = [image; MAX_TILE_ROWS];
            for (r, field) in fields.iter_mut().enumerate() {
                *field = image.add(pixels[row + r.min(rows - 1)]);
            }
            let out = self.buffer.0.as_mut_ptr();
            let weight = weight.add(self.column * k + k_start * nr);
            let vectors = self.to_c.columns.div_ceil(S::LANES);
            indirect_microkernel(self.s, vectors, IndirectTile { fields, segments, weight, out });
            self.to_c.store(self.s, out, nr, row, rows);
        }
        rows
    }
}

/// A register tile whose rows of A are receptive fields.
struct IndirectTile<'a> {
    fields: [*const f32; MAX_TILE_ROWS],
    segments: &'a [Segment],
    weight: *const f32,
    out: *mut f32,
}

/// Computes the sums of MR rows and the first `vectors` vectors of a tile into `out`, rows NR apart.
///
/// # Safety
/// The segments of every receptive field and their terms of the panel must be readable, and the tile writable.
#[inline(always)]
unsafe fn indirect_microkernel<S: Simd>(s: S, vectors: usize, tile: IndirectTile<'_>) {
    match (S::TILE_ROWS, vectors) {
        (4, 1) => s.vectorize(IndirectMicrokernel::<4, 1>(tile)),
        (4, _) => s.vectorize(IndirectMicrokernel::<4, 2>(tile)),
        (6, 1) => s.vectorize(IndirectMicrokernel::<6, 1>(tile)),
        (6, _) => s.vectorize(IndirectMicrokernel::<6, 2>(tile)),
        (_, 1) => s.vectorize(IndirectMicrokernel::<8, 1>(tile)),
        (_, 2) => s.vectorize(IndirectMicrokernel::<8, 2>(tile)),
        (_, _) => s.vectorize(IndirectMicrokernel::<8, 3>(tile)),
    }
}

struct IndirectMicrokernel<'a, const ROWS: usize, const VECTORS: usize>(IndirectTile<'a>);

impl<const ROWS: usize, const VECTORS: usize> Kernel for IndirectMicrokernel<'_, ROWS, VECTORS> {
    type Output = ();

    #[inline(always)]
    #[allow(clippy::needless_range_loop, reason = "plain counted loops are what unrolls into registers")]
    fn run<S: Simd>(self, s: S) {
        // A compile-time condition: no code is generated for the shapes of other instruction sets.
        if ROWS != S::TILE_ROWS || VECTORS > S::TILE_VECTORS {
            unreachable!("a tile of another instruction set");
        }
        let IndirectTile { fields, segments, mut weight, out } = self.0;
        let mut sums = [[s.splat(0.0); VECTORS]; ROWS];
        // SAFETY: guaranteed by the caller of `indirect_microkernel`.
        unsafe {
            for segment in segments {
                let mut row = [fields[0]; ROWS];
                for r in 0..ROWS {
                    row[r] = fields[r].add(segment.offset);
                }
                for i in 0..segment.len {
                    let mut filters = [s.splat(0.0); VECTORS];
                    for j in 0..VECTORS {
                        filters[j] = s.load(weight.add(j * S::LANES));
                    }
                    for r in 0..ROWS {
                        let x = s.splat(*row[r].add(i));
                        for j in 0..VECTORS {
                            sums[r][j] = s.mul_add(x, filters[j], sums[r][j]);
                        }
                    }
                    weight = weight.add(S::TILE_VECTORS * S::LANES);
                }
            }
            for r in 0..ROWS {
                for j in 0..VECTORS {
                    s.store(out.add((r * S::TILE_VECTORS + j) * S::LANES), sums[r][j]);
                }
            }
        }
    }
}
