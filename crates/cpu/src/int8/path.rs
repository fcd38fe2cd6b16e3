//! The ways to multiply bytes, two for each instruction set, and the choice of one at run time.
//! Kernels are written once, generic over [`Dot`], as the others are over [`Simd`].

use std::fmt;

use super::block::Block;
use crate::isa::Isa;
use crate::simd::Simd;

/// A way to multiply bytes. An [`Isa`] converts into its fastest one on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Path {
    /// The matrix unit AMX, and what AVX-512 with VNNI does.
    Amx,
    /// AVX-512 with VNNI: four products a lane in one instruction.
    Avx512Vnni,
    /// AVX-512 with products of 16-bit numbers.
    Avx512,
    /// AVX2 with AVX-VNNI.
    AvxVnni,
    /// AVX2 with products of 16-bit numbers.
    Avx2,
    /// NEON with the dot product extension.
    NeonDot,
    /// NEON with widening products.
    Neon,
    /// SSE2 with products of 16-bit numbers, on every x86-64 machine.
    Sse2,
    /// Plain Rust, on every machine.
    Portable,
}

impl From<Isa> for Path {
    fn from(isa: Isa) -> Path {
        let ways = match isa {
            Isa::Amx => [Path::Amx, Path::Avx512],
            Isa::Avx512 => [Path::Avx512Vnni, Path::Avx512],
            Isa::Avx2 => [Path::AvxVnni, Path::Avx2],
            Isa::Neon => [Path::NeonDot, Path::Neon],
            Isa::Portable => [Path::Sse2, Path::Portable],
        };
        if ways[0].is_available() { ways[0] } else { ways[1] }
    }
}

impl Path {
    /// Every path, fastest first.
    pub const ALL: [Path; 9] = [
        Path::Amx,
        Path::Avx512Vnni,
        Path::Avx512,
        Path::AvxVnni,
        Path::Avx2,
        Path::NeonDot,
        Path::Neon,
        Path::Sse2,
        Path::Portable,
    ];

    /// The paths this machine can run, fastest first.
    pub fn available() -> Vec<Path> {
        Path::ALL.into_iter().filter(|path| path.is_available()).collect()
    }

    /// Whether this machine can run it.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Path::Amx => Isa::Amx.is_available() && Path::Avx512Vnni.is_available(),
            #[cfg(target_arch = "x86_64")]
            Path::Avx512Vnni => Isa::Avx512.is_available() && is_x86_feature_detected!("avx512vnni"),
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 => Isa::Avx512.is_available(),
            #[cfg(target_arch = "x86_64")]
            Path::AvxVnni => Isa::Avx2.is_available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => Isa::Avx2.is_available(),
            #[cfg(target_arch = "aarch64")]
            Path::NeonDot => Isa::Neon.is_available() && std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "aarch64")]
            Path::Neon => Isa::Neon.is_available(),
            #[cfg(target_arch = "x86_64")]
            Path::Sse2 => true,
            Path::Portable => true,
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// Runs a kernel on this path.
    ///
    /// # Panics
    /// If this machine does not have its instructions.
    #[inline]
    pub(super) fn dispatch<K: DotKernel>(self, kernel: K) -> K::Output {
        assert!(self.is_available(), "this machine has no {self}");
        match self {
            #[cfg(target_arch = "x86_64")]
            Path::Amx | Path::Avx512Vnni => {
                // SAFETY: availability was asserted above.
                unsafe { super::x86::Avx512Vnni::new() }.vectorize(kernel)
            }
            #[cfg(target_arch = "x86_64")]
            Path::Avx512 => {
                // SAFETY: availability was asserted above.
                unsafe { super::x86::Avx512Wide::new() }.vectorize(kernel)
            }
            #[cfg(target_arch = "x86_64")]
            Path::AvxVnni => {
                // SAFETY: availability was asserted above.
                unsafe { super::x86::AvxVnni::new() }.vectorize(kernel)
            }
            #[cfg(target_arch = "x86_64")]
            Path::Avx2 => {
                // SAFETY: availability was asserted above.
                unsafe { super::x86::Avx2Wide::new() }.vectorize(kernel)
            }
            #[cfg(target_arch = "aarch64")]
            Path::NeonDot => {
                // SAFETY: availability was asserted above.
                unsafe { super::neon::NeonDot::new() }.vectorize(kernel)
            }
            #[cfg(target_arch = "aarch64")]
            Path::Neon => {
                // SAFETY: availability was asserted above.
                unsafe { super::neon::NeonWide::new() }.vectorize(kernel)
            }
            #[cfg(target_arch = "x86_64")]
            Path::Sse2 => super::x86::Sse2.vectorize(kernel),
            _ => super::portable::Plain.vectorize(kernel),
        }
    }
}

/// Rows of A in a block, if they are short.
const BLOCK_ROWS: usize = 96;
/// Fewer rows do not fill the tiles of the matrix unit.
const MATRIX_ROWS: usize = 16;
/// With fewer groups, taking sums to C takes longer than summing, and the vector units are as fast.
const FEWEST_GROUPS: usize = 128;
/// Groups of a tile of the matrix unit.
pub(super) const MATRIX_GROUPS: usize = 16;
/// The most rows for the matrix unit, which is done with them sooner.
const MATRIX_BLOCK_ROWS: usize = 448;

impl Path {
    /// Rows and columns that blocks should be multiples of, and the most rows.
    pub(super) fn block_shape(self, m: usize, groups: usize, shape: Shape) -> ([usize; 2], usize) {
        if self.on_matrix_unit(m, groups) {
            // Whole panels, which are squares as well two at a time.
            ([32, 2 * shape.columns], MATRIX_BLOCK_ROWS)
        } else {
            ([shape.rows, shape.columns], BLOCK_ROWS)
        }
    }

    /// Runs a block on this path.
    pub(super) fn block(self, block: Block<'_>) {
        #[cfg(target_arch = "x86_64")]
        if self.on_matrix_unit(block.m, block.groups) {
            assert!(self.is_available(), "this machine has no {self}");
            // SAFETY: the machine has the instructions and the unit, of which this is the only one here.
            unsafe { super::amx::run(super::x86::Avx512Vnni::new(), &mut crate::amx::Amx::new(), block) };
            return;
        }
        self.dispatch(block);
    }

    /// Whether the matrix unit takes so many rows with sums of so many groups: whole tiles of them.
    fn on_matrix_unit(self, m: usize, groups: usize) -> bool {
        self == Path::Amx && m >= MATRIX_ROWS && groups >= FEWEST_GROUPS && groups.is_multiple_of(MATRIX_GROUPS)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Path::Amx => "amx",
            Path::Avx512Vnni => "avx512-vnni",
            Path::Avx512 => "avx512",
            Path::AvxVnni => "avx-vnni",
            Path::Avx2 => "avx2",
            Path::NeonDot => "neon-dotprod",
            Path::Neon => "neon",
            Path::Sse2 => "sse2",
            Path::Portable => "portable",
        })
    }
}

/// Work that is compiled once for each path. As for [`crate::simd::Kernel`], `run` and everything generic it calls
/// must be `#[inline(always)]`.
pub(super) trait DotKernel {
    type Output;
    fn run<D: Dot>(self, d: D) -> Self::Output;
}

/// Dot products of short groups of bytes, one group in each lane of a vector of `i32` sums.
///
/// Activations (the left-hand side) are stored as the path multiplies them: as they are, or less an offset. Weights
/// (the right-hand side) are signed bytes, the groups of neighbouring columns one after the other.
///
/// # Safety
/// Vectors must have as many lanes as those of `Float`, and loads and stores the extent that they say.
pub(super) unsafe trait Dot: Copy {
    /// The vectors of `f32` to go with it.
    type Float: Simd;
    /// A sum in each lane.
    type Sums: Copy;
    /// The same group of activations in each lane.
    type Left: Copy;
    /// A group of weights in each lane.
    type Right: Copy;
    /// Terms of a group.
    const GROUP: usize;
    /// Bytes of a stored activation.
    const LEFT_BYTES: usize;
    /// Rows of the register tile.
    const TILE_ROWS: usize;
    /// Vectors in a row of the register tile.
    const TILE_VECTORS: usize;

    /// Calls the kernel as a function of its own, compiled with the instructions enabled.
    fn vectorize<K: DotKernel>(self, kernel: K) -> K::Output;
    fn float(self) -> Self::Float;
    fn zero(self) -> Self::Sums;
    /// # Safety
    /// A group of stored activations at `p` must be readable.
    unsafe fn load_left(self, p: *const u8) -> Self::Left;
    /// # Safety
    /// A group for each lane must be readable at `p`.
    unsafe fn load_right(self, p: *const i8) -> Self::Right;
    /// `sums + left · right` in each lane.
    fn dot(self, left: Self::Left, right: Self::Right, sums: Self::Sums) -> Self::Sums;
    /// # Safety
    /// A number for each lane must be writable at `p`.
    unsafe fn store_sums(self, p: *mut i32, sums: Self::Sums);
    /// `sums - offset * weight_sums`, then to the nearest `f32`.
    /// # Safety
    /// A number for each lane must be readable at both.
    unsafe fn load_total(self, sums: *const i32, offset: i32, weight_sums: *const i32) -> <Self::Float as Simd>::V;
    /// Stores `min(round(x) + zero, 255)` as activations are stored. Of an `x` that is not finite, anything.
    /// # Safety
    /// `LEFT_BYTES` for each lane must be writable at `p`.
    unsafe fn store_left(self, p: *mut u8, x: <Self::Float as Simd>::V, zero: i32);
    /// What zero is as a stored activation.
    fn offset(zero: i32) -> i32;
}

/// The most rows of any register tile.
pub(super) const MAX_TILE_ROWS: usize = 8;
/// The most columns of any register tile.
pub(super) const MAX_TILE_COLUMNS: usize = 48;

/// The shapes of a path, for code that runs before one is chosen.
#[derive(Clone, Copy)]
pub(super) struct Shape {
    pub group: usize,
    pub left_bytes: usize,
    /// Of the register tile.
    pub rows: usize,
    /// Of the register tile and so of a packed panel.
    pub columns: usize,
}

pub(super) struct TileShape;

impl DotKernel for TileShape {
    type Output = Shape;

    #[inline(always)]
    fn run<D: Dot>(self, _: D) -> Shape {
        Shape {
            group: D::GROUP,
            left_bytes: D::LEFT_BYTES,
            rows: D::TILE_ROWS,
            columns: D::TILE_VECTORS * D::Float::LANES,
        }
    }
}

/// Runs `loops` rounds of independent dot products in registers and returns how many operations they were: the peak
/// that a benchmark compares [`super::gemm`] with.
pub fn dot_loop(path: impl Into<Path>, loops: usize) -> u64 {
    path.into().dispatch(DotLoop(loops))
}

struct DotLoop(usize);

impl DotKernel for DotLoop {
    type Output = u64;

    #[inline(always)]
    fn run<D: Dot>(self, d: D) -> u64 {
        const ROWS: usize = 5;
        const VECTORS: usize = 2;
        let mut sums = [[d.zero(); VECTORS]; ROWS];
        let bytes = [1u8; 64 * VECTORS];
        for _ in 0..self.0 {
            // The compiler must not know the operands, nor that they are equal, or it would do the work itself.
            let p = std::hint::black_box(bytes.as_ptr());
            for (i, row) in sums.iter_mut().enumerate() {
                for (j, sum) in row.iter_mut().enumerate() {
                    // SAFETY: no vector has more than 64 bytes.
                    let (left, right) = unsafe { (d.load_left(p.add(4 * i)), d.load_right(p.add(64 * j).cast())) };
                    *sum = d.dot(left, right, *sum);
                }
            }
        }
        let mut out = [0i32; MAX_TILE_COLUMNS];
        for sum in sums.into_iter().flatten() {
            // SAFETY: a vector has at most 16 lanes.
            unsafe { d.store_sums(out.as_mut_ptr(), sum) };
            std::hint::black_box(&out);
        }
        (self.0 * ROWS * VECTORS * D::Float::LANES * D::GROUP * 2) as u64
    }
}
