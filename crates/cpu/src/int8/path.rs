//! The instructions that multiply bytes, two sets for each [`Isa`], and the choice of one at run time.
//! Kernels are generic over [`Dot`], as those of f32 are over [`Simd`].

use std::fmt;

use super::block::QuantisedBlock;
use crate::isa::Isa;
use crate::simd::Simd;

/// A set of instructions that multiply bytes. An [`Isa`] converts into its fastest one on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DotPath {
    /// AMX for large products, AVX-512 with VNNI for the others.
    Amx,
    /// AVX-512 with VNNI: four products per lane in one instruction.
    Avx512Vnni,
    /// AVX-512 with products of 16-bit integers.
    Avx512,
    /// AVX2 with AVX-VNNI.
    AvxVnni,
    /// AVX2 with products of 16-bit integers.
    Avx2,
    /// NEON with the dot product extension.
    NeonDot,
    /// NEON with widening products.
    Neon,
    /// SSE2 with products of 16-bit integers, on every x86-64 machine.
    Sse2,
    /// Portable Rust, on every machine.
    Portable,
}

impl From<Isa> for DotPath {
    fn from(isa: Isa) -> DotPath {
        let paths = match isa {
            // With AMX only a lack of VNNI makes `DotPath::Amx` unavailable, and `DotPath::Avx512Vnni` with it.
            Isa::Amx => [DotPath::Amx, DotPath::Avx512],
            Isa::Avx512 => [DotPath::Avx512Vnni, DotPath::Avx512],
            Isa::Avx2 => [DotPath::AvxVnni, DotPath::Avx2],
            Isa::Neon => [DotPath::NeonDot, DotPath::Neon],
            Isa::Portable => [DotPath::Sse2, DotPath::Portable],
        };
        if paths[0].is_available() { paths[0] } else { paths[1] }
    }
}

impl DotPath {
    /// Every path, fastest first.
    pub const ALL: [DotPath; 9] = [
        DotPath::Amx,
        DotPath::Avx512Vnni,
        DotPath::Avx512,
        DotPath::AvxVnni,
        DotPath::Avx2,
        DotPath::NeonDot,
        DotPath::Neon,
        DotPath::Sse2,
        DotPath::Portable,
    ];

    /// The paths this machine can run, fastest first.
    pub fn available() -> Vec<DotPath> {
        DotPath::ALL.into_iter().filter(|path| path.is_available()).collect()
    }

    /// Whether this machine can run it.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            DotPath::Amx => Isa::Amx.is_available() && DotPath::Avx512Vnni.is_available(),
            #[cfg(target_arch = "x86_64")]
            DotPath::Avx512Vnni => Isa::Avx512.is_available() && is_x86_feature_detected!("avx512vnni"),
            #[cfg(target_arch = "x86_64")]
            DotPath::Avx512 => Isa::Avx512.is_available(),
            #[cfg(target_arch = "x86_64")]
            DotPath::AvxVnni => Isa::Avx2.is_available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            DotPath::Avx2 => Isa::Avx2.is_available(),
            #[cfg(target_arch = "aarch64")]
            DotPath::NeonDot => Isa::Neon.is_available() && std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "aarch64")]
            DotPath::Neon => Isa::Neon.is_available(),
            #[cfg(target_arch = "x86_64")]
            DotPath::Sse2 => true,
            DotPath::Portable => true,
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
        // SAFETY: the assertion covers the instructions of every token.
        unsafe {
            match self {
                #[cfg(target_arch = "x86_64")]
                DotPath::Amx | DotPath::Avx512Vnni => super::x86::Avx512Vnni::new().vectorize(kernel),
                #[cfg(target_arch = "x86_64")]
                DotPath::Avx512 => super::x86::Avx512Widening::new().vectorize(kernel),
                #[cfg(target_arch = "x86_64")]
                DotPath::AvxVnni => super::x86::AvxVnni::new().vectorize(kernel),
                #[cfg(target_arch = "x86_64")]
                DotPath::Avx2 => super::x86::Avx2Widening::new().vectorize(kernel),
                #[cfg(target_arch = "aarch64")]
                DotPath::NeonDot => super::neon::NeonDot::new().vectorize(kernel),
                #[cfg(target_arch = "aarch64")]
                DotPath::Neon => super::neon::NeonWidening::new().vectorize(kernel),
                #[cfg(target_arch = "x86_64")]
                DotPath::Sse2 => super::x86::Sse2.vectorize(kernel),
                _ => super::portable::PortableDot.vectorize(kernel),
            }
        }
    }
}

/// MC, the most rows of a block: a multiple of every register tile's rows (4, 6 or 8). Up to a k of 4032, so many rows
/// of bytes ([`super::row_bytes`], with padding) fit [`super::BLOCK_BYTES`].
const MC: usize = 96;
/// MC on AMX: the most rows that fit [`super::BLOCK_BYTES`] for a k of 768, with padding 832 bytes, in multiples of the
/// accumulators' 32.
const AMX_MC: usize = 448;
/// Fewer rows do not fill the tile registers.
const AMX_MIN_ROWS: usize = 16;
/// With fewer groups dequantisation takes longer than the sums, and the vector units are as fast.
const AMX_MIN_GROUPS: usize = 128;
/// Groups in a row of one of AMX's tile registers.
pub(super) const AMX_TILE_GROUPS: usize = 16;

impl DotPath {
    /// The rows and columns that blocks are multiples of, and the most rows of a block.
    pub(super) fn block_shape(self, m: usize, groups: usize, shape: PathShape) -> ([usize; 2], usize) {
        if self.uses_amx(m, groups) {
            // The accumulators are 32 x 32. A panel has 48 columns, so two are three times theirs.
            ([32, 2 * shape.columns], AMX_MC)
        } else {
            ([shape.rows, shape.columns], MC)
        }
    }

    /// Computes a block on this path.
    ///
    /// # Safety
    /// As for [`QuantisedBlock::run`].
    pub(super) unsafe fn run_block(self, block: QuantisedBlock<'_>) {
        #[cfg(target_arch = "x86_64")]
        if self.uses_amx(block.m, block.groups) {
            assert!(self.is_available(), "this machine has no {self}");
            // SAFETY: the machine has the instructions, and this is the thread's only `Amx`; the caller guarantees the
            // memory.
            unsafe { super::amx::run(super::x86::Avx512Vnni::new(), &mut crate::amx::Amx::new(), block) };
            return;
        }
        // SAFETY: guaranteed by the caller.
        unsafe { block.run(self) };
    }

    /// Whether AMX computes a product or a block of so many rows and groups; the groups must fill whole tile registers.
    fn uses_amx(self, m: usize, groups: usize) -> bool {
        self == DotPath::Amx && m >= AMX_MIN_ROWS && groups >= AMX_MIN_GROUPS && groups.is_multiple_of(AMX_TILE_GROUPS)
    }
}

impl fmt::Display for DotPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            DotPath::Amx => "amx",
            DotPath::Avx512Vnni => "avx512-vnni",
            DotPath::Avx512 => "avx512",
            DotPath::AvxVnni => "avx-vnni",
            DotPath::Avx2 => "avx2",
            DotPath::NeonDot => "neon-dotprod",
            DotPath::Neon => "neon",
            DotPath::Sse2 => "sse2",
            DotPath::Portable => "portable",
        })
    }
}

/// A kernel that is compiled once for each path. As for [`crate::simd::Kernel`], `run` and all generic functions that
/// it calls must be `#[inline(always)]`.
pub(super) trait DotKernel {
    type Output;
    fn run<D: Dot>(self, d: D) -> Self::Output;
}

/// Dot products of short groups of bytes, one group in each lane of a vector of `i32` sums.
///
/// Activations (the left-hand side), quantised to `q` in 0..=255 with a zero point, are stored as the path multiplies
/// them: `q` as a byte, `q - 128` where the instruction takes signed bytes, or `q - zero` in 16 bits. Weights (the
/// right-hand side) are signed bytes, `[column][GROUP]`.
///
/// # Safety
/// Vectors must have as many lanes as those of `Float`, and loads and stores the documented extent.
pub(super) unsafe trait Dot: Copy {
    /// The vectors of `f32` with as many lanes.
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

    /// Calls the kernel as a separate function, compiled with the instructions enabled.
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
    /// An element for each lane must be writable at `p`.
    unsafe fn store_sums(self, p: *mut i32, sums: Self::Sums);
    /// The sums as if activations were stored as `q - zero`: `sums - offset * weight_sums`, converted to `f32`.
    /// # Safety
    /// An element for each lane must be readable at both.
    unsafe fn load_centred_sums(
        self,
        sums: *const i32,
        offset: i32,
        weight_sums: *const i32,
    ) -> <Self::Float as Simd>::V;
    /// Stores the activation `q = min(round(x) + zero, 255)`, which must not be negative; an `x` that is not finite
    /// may give any value.
    /// # Safety
    /// `LEFT_BYTES` for each lane must be writable at `p`.
    unsafe fn store_left(self, p: *mut u8, x: <Self::Float as Simd>::V, zero: i32);
    /// The zero point in the form of a stored activation: what [`Dot::load_centred_sums`] subtracts per term.
    fn offset(zero: i32) -> i32;
}

/// Keeps kernels separate functions, as in [`crate::simd`].
#[inline(never)]
pub(super) fn outlined<D: Dot, K: DotKernel>(d: D, kernel: K) -> K::Output {
    kernel.run(d)
}

/// The items that paths with [`crate::simd::Portable`] vectors of f32 have in common.
macro_rules! portable_floats {
    () => {
        type Float = $crate::simd::Portable;
        const TILE_ROWS: usize = 4;
        const TILE_VECTORS: usize = 2;

        #[inline(always)]
        fn vectorize<K: DotKernel>(self, kernel: K) -> K::Output {
            $crate::int8::path::outlined(self, kernel)
        }

        #[inline(always)]
        fn float(self) -> $crate::simd::Portable {
            $crate::simd::Portable
        }
    };
}
pub(super) use portable_floats;

/// Defines a token: a type whose values prove that the machine has the instructions of a path.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! token {
    ($(#[$doc:meta])* $name:ident($float:ty) = $features:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $name($float);

        impl $name {
            /// # Safety
            /// The machine must have the instructions.
            #[inline(always)]
            pub(super) unsafe fn new() -> Self {
                // SAFETY: they include those of the vectors of f32.
                $name(unsafe { <$float>::new() })
            }

            #[target_feature(enable = $features)]
            fn enabled<K: DotKernel>(self, kernel: K) -> K::Output {
                kernel.run(self)
            }

            /// Keeps kernels separate functions, as in [`crate::simd`].
            #[inline(never)]
            fn outlined<K: DotKernel>(self, kernel: K) -> K::Output {
                // SAFETY: `self` proves that the instructions are available.
                unsafe { self.enabled(kernel) }
            }
        }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(super) use token;

/// Defines the operations of a path that are a few intrinsics each.
#[cfg(target_arch = "x86_64")]
macro_rules! operations {
    (
        load_right($right_at:ident) = $load_right:expr;
        dot($left:ident, $right:ident, $sums:ident) = $dot:expr;
        store_left($left_at:ident, $x:ident, $zero:ident) = $store_left:expr;
    ) => {
        #[inline(always)]
        unsafe fn load_right(self, $right_at: *const i8) -> Self::Right {
            // SAFETY: `self` proves that the instructions are available; the caller guarantees the memory.
            unsafe { $load_right }
        }

        #[inline(always)]
        fn dot(self, $left: Self::Left, $right: Self::Right, $sums: Self::Sums) -> Self::Sums {
            // SAFETY: `self` proves that the instructions are available.
            unsafe { $dot }
        }

        #[inline(always)]
        unsafe fn store_left(self, $left_at: *mut u8, $x: <Self::Float as Simd>::V, $zero: i32) {
            // SAFETY: `self` proves that the instructions are available; the caller guarantees the memory.
            unsafe { $store_left }
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(super) use operations;

/// The most rows of any register tile.
pub(super) const MAX_TILE_ROWS: usize = 8;
/// The most columns of any register tile.
pub(super) const MAX_TILE_COLUMNS: usize = 48;

/// The constants of a path.
#[derive(Clone, Copy)]
pub(super) struct PathShape {
    /// Terms that a lane sums at a time: elements of a column of B, consecutive along k, that are packed together.
    pub group: usize,
    /// Bytes of a stored activation.
    pub left_bytes: usize,
    /// MR, the rows of the register tile.
    pub rows: usize,
    /// NR, the columns of the register tile and of a packed panel.
    pub columns: usize,
}

/// Returns the constants of the path that it runs on.
pub(super) struct ShapeOf;

impl DotKernel for ShapeOf {
    type Output = PathShape;

    #[inline(always)]
    fn run<D: Dot>(self, _: D) -> PathShape {
        PathShape {
            group: D::GROUP,
            left_bytes: D::LEFT_BYTES,
            rows: D::TILE_ROWS,
            columns: D::TILE_VECTORS * D::Float::LANES,
        }
    }
}

/// Runs `loops` rounds of independent dot products in registers and returns the number of operations, for the peak that
/// a benchmark compares [`super::gemm`] with.
pub fn dot_loop(path: impl Into<DotPath>, loops: usize) -> u64 {
    path.into().dispatch(DotLoop(loops))
}

struct DotLoop(usize);

impl DotKernel for DotLoop {
    type Output = u64;

    #[inline(always)]
    fn run<D: Dot>(self, d: D) -> u64 {
        // Ten independent sums: latency (up to 5 cycles) times throughput (up to 2 per cycle) of the instruction.
        const ROWS: usize = 5;
        const VECTORS: usize = 2;
        let mut sums = [[d.zero(); VECTORS]; ROWS];
        let bytes = [1u8; 64 * VECTORS];
        for _ in 0..self.0 {
            // Hides from the compiler that all operands are equal, or it would fold the loop.
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
