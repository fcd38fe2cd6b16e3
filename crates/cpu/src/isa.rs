//! The instruction sets that kernels are compiled for, and the choice of one at run time. A binary holds every path of
//! its architecture.

use std::fmt;
use std::str::FromStr;

use crate::simd::{Kernel, Simd};

/// An instruction set that kernels can run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// AVX-512 and the matrix unit AMX, for large f32 and int8 matrix products.
    Amx,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// AArch64 with NEON.
    Neon,
    /// Plain Rust, on every machine.
    Portable,
}

impl Isa {
    /// Every instruction set, fastest first.
    pub const ALL: [Isa; 5] = [Isa::Amx, Isa::Avx512, Isa::Avx2, Isa::Neon, Isa::Portable];

    /// The fastest instruction set of this machine.
    pub fn detect() -> Isa {
        Isa::ALL.into_iter().find(|isa| isa.is_available()).unwrap_or(Isa::Portable)
    }

    /// The instruction sets this machine can run, fastest first.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// Whether this machine can run it.
    pub fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Isa::Avx512.is_available() && crate::amx::is_available(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            Isa::Portable => true,
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// Runs a kernel, compiled for this instruction set.
    ///
    /// # Panics
    /// If this machine does not have the instruction set.
    #[inline]
    pub(crate) fn dispatch<K: Kernel>(self, kernel: K) -> K::Output {
        assert!(self.is_available(), "this machine has no {self}");
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx | Isa::Avx512 => {
                // SAFETY: availability was asserted above.
                unsafe { crate::simd::Avx512::new() }.vectorize(kernel)
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                // SAFETY: availability was asserted above.
                unsafe { crate::simd::Avx2::new() }.vectorize(kernel)
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => {
                // SAFETY: availability was asserted above.
                unsafe { crate::simd::Neon::new() }.vectorize(kernel)
            }
            _ => crate::simd::Portable.vectorize(kernel),
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Isa::Amx => "amx",
            Isa::Avx512 => "avx512",
            Isa::Avx2 => "avx2",
            Isa::Neon => "neon",
            Isa::Portable => "portable",
        })
    }
}

/// The text is not the name of an instruction set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown instruction set {0:?}: expected amx, avx512, avx2, neon or portable")]
pub struct UnknownIsa(pub String);

impl FromStr for Isa {
    type Err = UnknownIsa;

    fn from_str(text: &str) -> Result<Isa, UnknownIsa> {
        Isa::ALL
            .into_iter()
            .find(|isa| isa.to_string().eq_ignore_ascii_case(text))
            .ok_or_else(|| UnknownIsa(text.to_owned()))
    }
}

/// Runs `loops` rounds of independent multiply-adds in registers and returns the number of floating-point operations,
/// to measure the peak that benchmarks compare kernels with.
pub fn fma_loop(isa: Isa, loops: usize) -> u64 {
    isa.dispatch(FmaLoop(loops))
}

struct FmaLoop(usize);

impl Kernel for FmaLoop {
    type Output = u64;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> u64 {
        // More than latency (4 to 5 cycles) times throughput (2 per cycle) of FMA on x86-64.
        const CHAINS: usize = 12;
        let mut sums = [s.splat(1.0); CHAINS];
        // An opaque factor, or the compiler would evaluate the loop.
        let x = s.splat(std::hint::black_box(0.999));
        for _ in 0..self.0 {
            for sum in &mut sums {
                *sum = s.mul_add(*sum, x, x);
            }
        }
        let mut total = s.splat(0.0);
        for sum in sums {
            total = s.add(total, sum);
        }
        std::hint::black_box(s.sum(total));
        (self.0 * CHAINS * S::LANES * 2) as u64
    }
}
